#!/usr/bin/env bash
# Builds Helm from the version pinned in go.mod, once, into a cache directory outside the source tree. Prints the program's
# path on stdout and nothing else; progress goes to stderr.
#
#   MIMEO_CACHE_DIR      where to keep it (default: ${XDG_CACHE_HOME:-$HOME/.cache}/mimeo)
#
# May run many times at once: one builds, the others wait.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

say() { printf 'helm: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

version=$(sed -n 's|^[[:space:]]*helm\.sh/helm/v4 \(v[0-9.]*\).*$|\1|p' "$here/go.mod")
[[ -n $version ]] || die "go.mod names no version of helm.sh/helm/v4"
digest=$(cat "$here/go.mod" "$here/go.sum" "$here/build.sh" | sha256sum | cut -c 1-12)
cache=${MIMEO_CACHE_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/mimeo}
out=$cache/helm/$version-$(uname -m)-$digest
mkdir -p "$out" || die "cannot create the cache directory $out"
out=$(cd "$out" && pwd)

if [[ ! -x $out/helm ]]; then
    # Without flock (util-linux) two first runs only do the same work twice: what they publish is whole either way.
    exec 9>"$out/.lock"
    if command -v flock >/dev/null; then flock 9; fi
fi
if [[ ! -x $out/helm ]]; then
    command -v go >/dev/null || die "the Go toolchain (1.26 or newer) is needed to build Helm: https://go.dev/dl"
    work=$(mktemp -d "$out/.build.XXXXXX")
    trap 'rm -rf "$work"' EXIT
    say "building Helm $version into $out (once; 2 to 4 minutes)"
    started=$SECONDS
    # Without these it calls itself a development version.
    stamp="-X helm.sh/helm/v4/internal/version.version=$version -X helm.sh/helm/v4/internal/version.gitTreeState=clean"
    (cd "$here" && CGO_ENABLED=0 go build -trimpath -ldflags="-s -w $stamp" -o "$work/helm" helm.sh/helm/v4/cmd/helm >&2) ||
        die "building Helm failed; if modules can't be downloaded: is the proxy reachable? (GOPROXY=$(go env GOPROXY))"
    # A rename within one file system: whoever sees the name sees the whole file.
    mv "$work/helm" "$out/helm"
    say "built in $((SECONDS - started)) s"
fi
printf '%s\n' "$out/helm"
