#!/usr/bin/env bash
# The end-to-end tests, from nothing to nothing: tools, image, machine, tests, and all of it gone but what is cached.
#
#   e2e.sh [FILTER...]    only the tests whose names contain one of these
#
# It closes with a line that counts the tests. Where a machine with a node can't be run it says so loudly, and passes.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
top=$(cd "$here/../.." && pwd)
state=/var/lib/mimeo-node
started=$SECONDS

say() { printf 'e2e: %s\n' "$*" >&2; }
skip() {
    printf '\n!!! e2e: SKIPPED, nothing was tested on a node: %s\n\n' "$1" >&2
    exit 0
}

[[ $(uname -s) == Linux ]] || skip "it takes Linux"
[[ $EUID == 0 ]] || skip "it takes root"
unshare --mount --pid --net --fork --mount-proc true 2>/dev/null || skip "no namespaces can be made here"
grep -qw overlay /proc/filesystems || modprobe overlay 2>/dev/null || skip "there is no overlay file system"

packages=(buildah containerd containernetworking-plugins curl debootstrap gcc iproute2 iptables nftables openssl runc)
missing=()
for package in "${packages[@]}"; do
    dpkg-query --show --showformat '${db:Status-Status}' "$package" 2>/dev/null | grep -qx installed || missing+=("$package")
done
if ((${#missing[@]} > 0)); then
    command -v apt-get >/dev/null || skip "these are not installed, and this is no Debian: ${missing[*]}"
    say "installing ${missing[*]}"
    apt-get update -qq >&2
    DEBIAN_FRONTEND=noninteractive apt-get install -qq --yes --no-install-recommends "${missing[@]}" >&2
fi

work=$(mktemp -d)
machine=
clean() {
    local status=$?
    trap '' INT TERM HUP
    if [[ -n $machine ]]; then
        if ((status != 0)); then
            for log in "$state"/log/*.log; do printf -- '--- %s ends with ---\n' "$log"; tail -n 15 "$log"; done >&2 2>/dev/null || true
        fi
        kill "$machine" 2>/dev/null || true
        wait "$machine" 2>/dev/null || true
    fi
    rm -rf "$work"
}
trap clean EXIT
trap 'exit 130' INT TERM HUP

cd "$top"
"$top/tests/control-plane/build.sh" kube-proxy kube-scheduler kubelet >/dev/null
"$here/helm/build.sh" >/dev/null
"$here/image.sh" pause "$work/pause.tar"
"$here/image.sh" mimeo "$top" "$work/mimeo.tar"
cargo build --locked --quiet -p mimeo-tests --bins
cargo test --locked --quiet -p mimeo-node-tests --test e2e --no-run
say "built after $((SECONDS - started)) s"

# Should this shell be killed, the machine goes all the same.
setpriv --pdeathsig TERM "$here/machine.sh" &
machine=$!
# Another one may run, and be waited for.
until [[ -e $state/ready && $(<"$state/pid") == "$machine" ]]; do
    kill -0 "$machine" 2>/dev/null || { say "the machine has ended"; exit 1; }
    sleep 0.1
done
for image in pause mimeo; do
    # A path that the machine knows, too.
    cp "$work/$image.tar" "$state/$image.tar"
    "$here/machine.sh" run ctr --address /run/mimeo-node/containerd.sock --namespace k8s.io images import "$state/$image.tar" >&2
done
say "the node runs after $((SECONDS - started)) s"

status=0
cargo test --locked --quiet -p mimeo-node-tests --test e2e -- --test-threads=1 "$@" 2>&1 | tee "$work/log" || status=$?
say "over after $((SECONDS - started)) s"
awk '
    /^test result: / { for (i = 1; i < NF; i++) { if ($(i + 1) ~ /^passed/) p += $i; if ($(i + 1) ~ /^failed/) f += $i } }
    END { printf "%d passed, %d failed\n", p, f; exit !(p + f) }
' "$work/log" || { say "no test has such a name"; status=1; }
exit "$status"
