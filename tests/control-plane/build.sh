#!/usr/bin/env bash
# Builds etcd, kube-apiserver, kube-controller-manager and kubectl from pinned versions, once, into a cache directory outside the
# source tree. Prints that directory on stdout and nothing else; progress goes to stderr.
#
#   build.sh [NAME...]   and these programs of Kubernetes besides: a node needs kube-proxy, kube-scheduler and kubelet
#
#   KUBERNETES           the minor version, one of versions/ (default: 1.36)
#   MIMEO_CACHE_DIR      where to keep them (default: ${XDG_CACHE_HOME:-$HOME/.cache}/mimeo)
#   KUBEBUILDER_ASSETS   a directory of ready binaries: nothing is built, it is printed instead
#
# May run many times at once: one builds, the others wait. Interrupted, it goes on where it stopped.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
binaries=(etcd kube-apiserver kubectl kube-controller-manager "$@")

say() { printf 'control-plane: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

if [[ -n ${KUBEBUILDER_ASSETS:-} ]]; then
    # The controller manager is not among the usual assets; whoever needs it says so.
    for name in etcd kube-apiserver "$@"; do
        [[ -x $KUBEBUILDER_ASSETS/$name ]] || die "KUBEBUILDER_ASSETS is set to $KUBEBUILDER_ASSETS, which has no $name"
    done
    printf '%s\n' "$(cd "$KUBEBUILDER_ASSETS" && pwd)"
    exit 0
fi

minor=${KUBERNETES:-1.36}
pinned=$here/versions/$minor
[[ -f $pinned.mod ]] || die "KUBERNETES is $minor; versions/ has: $(cd "$here/versions" && echo *.mod | sed 's/\.mod//g')"
version=$(sed -n 's|^[[:space:]]*k8s\.io/kubernetes \(v[0-9.]*\).*$|\1|p' "$pinned.mod")
[[ -n $version ]] || die "$pinned.mod names no version of k8s.io/kubernetes"
digest=$(cat "$here/go.mod" "$here/go.sum" "$pinned.mod" "$pinned.sum" "$here/build.sh" | sha256sum | cut -c 1-12)
cache=${MIMEO_CACHE_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/mimeo}
out=$cache/control-plane/$version-$(uname -m)-$digest
mkdir -p "$out" || die "cannot create the cache directory $out"
out=$(cd "$out" && pwd)

complete() {
    local name
    for name in "${binaries[@]}"; do [[ -x $out/$name ]] || return 1; done
}

run_go() { # run_go NAME ARG...: `go ARG...` on the package of this program, with its pinned modules
    local name=$1 mod=$pinned.mod package=k8s.io/kubernetes/cmd/$1
    shift
    if [[ $name == etcd ]]; then
        mod=$here/go.mod
        package=go.etcd.io/etcd/server/v3
    fi
    (cd "$here" && CGO_ENABLED=0 go "$1" -modfile="$mod" "${@:2}" "$package")
}

build() { # build NAME LDFLAGS
    [[ ! -x $out/$1 ]] || return 0
    say "building $1 ..."
    local started=$SECONDS
    run_go "$1" build -trimpath -ldflags="$2" -o "$work/$1" >&2 || die "building $1 failed"
    # A rename within one file system: whoever sees the name sees the whole file.
    mv "$work/$1" "$out/$1"
    say "built $1 in $((SECONDS - started)) s"
}

if ! complete; then
    # Without flock (util-linux) two first runs only do the same work twice: what they publish is whole either way.
    exec 9>"$out/.lock"
    if command -v flock >/dev/null; then flock 9; fi
fi
if ! complete; then
    command -v go >/dev/null || die "the Go toolchain (1.26 or newer) is needed to build the control plane: https://go.dev/dl"
    work=$(mktemp -d "$out/.build.XXXXXX")
    trap 'rm -rf "$work"' EXIT
    say "building ${binaries[*]} of Kubernetes $version into $out (once; 5 to 10 minutes)"
    # Fetches exactly the modules that the builds below need, so that a failing network is told apart from a failing build.
    for name in "${binaries[@]}"; do
        run_go "$name" list -deps >/dev/null ||
            die "downloading the Go modules failed: is the module proxy reachable? (GOPROXY=$(go env GOPROXY))"
    done
    # Without these /version reports a placeholder that clients cannot parse.
    base=k8s.io/component-base/version
    stamp="-X $base.gitVersion=$version -X $base.gitMajor=1 -X $base.gitMinor=${minor#1.} -X $base.gitTreeState=clean"
    for name in "${binaries[@]}"; do
        if [[ $name == etcd ]]; then build etcd "-s -w"; else build "$name" "-s -w $stamp"; fi
    done
fi
printf '%s\n' "$out"
