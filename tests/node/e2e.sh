#!/usr/bin/env bash
# Runs the end-to-end tests: installs tools, builds the image, starts the machine, runs the tests, and removes everything but the cache.
#
#   e2e.sh [FILTER...]    runs only tests whose names contain one of these words
#
# The last line counts the tests. If this machine can't run a node or one of the tests, the script prints a warning and passes. With
# MIMEO_E2E=required in the environment it fails instead.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
top=$(cd "$here/../.." && pwd)
state=/var/lib/mimeo-node
started=$SECONDS

say() { printf 'e2e: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }
case ${MIMEO_E2E:-} in
'' | required) ;;
*) die "MIMEO_E2E is $MIMEO_E2E, which means nothing: required, or leave it out" ;;
esac
# skipped WHAT WHY: prints a warning about tests that don't run. No test is skipped without this warning.
skipped() {
    printf '\n!!! e2e: SKIPPED, %s: %s\n\n' "$1" "$2" >&2
    [[ ${MIMEO_E2E:-} != required ]] || die "nothing may be skipped here: MIMEO_E2E=required"
}
skip() {
    skipped "nothing was tested on a node" "$1"
    exit 0
}

[[ $(uname -s) == Linux ]] || skip "it takes Linux"
[[ $EUID == 0 ]] || skip "it takes root"
packages=(buildah containerd containernetworking-plugins curl debootstrap gcc iproute2 iptables nftables openssl runc)
missing=()
for package in "${packages[@]}"; do
    dpkg-query --show --showformat '${db:Status-Status}' "$package" 2>/dev/null | grep -qx installed || missing+=("$package")
done
if ((${#missing[@]} > 0)); then
    command -v apt-get >/dev/null || skip "these are not installed, and this is no Debian: ${missing[*]}"
    say "installing ${missing[*]}"
    # A failed installation is an error: this machine could run the tests, and an unreachable mirror must not skip them all unnoticed.
    { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq --yes --no-install-recommends "${missing[@]}"; } >&2 ||
        die "these can't be installed: ${missing[*]}"
fi
# Tries the kernel features that a node needs, without lasting effects. The root user of a container, for example, may lack some.
try() { "${@:2}" >/dev/null 2>&1 || skip "$1"; }
try "no namespaces can be made here" unshare --mount --pid --net --fork --mount-proc true
try "there is no overlay file system" unshare --mount sh -ec '
    mount -t tmpfs tmpfs /mnt && cd /mnt && mkdir lower upper work merged
    mount -t overlay -o lowerdir=lower,upperdir=upper,workdir=work overlay merged'
try "no network can be made here" unshare --net sh -ec 'ip link add kc0 type veth peer name kc1 && nft add table ip probe'
try "the kernel's settings can't be written here" sh -ec 'sysctl "vm.overcommit_memory=$(sysctl -n vm.overcommit_memory)"'
try "no cgroups can be made here" sh -ec '
    for root in /sys/fs/cgroup /sys/fs/cgroup/*; do
        if [ -e "$root/cgroup.procs" ] && [ ! -L "$root" ]; then mkdir "$root/mimeo-probe" && rmdir "$root/mimeo-probe"; fi
    done'

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
"$top/tests/tools/build.sh" helm >/dev/null
# Builds the whole workspace, as all other builds do. Dependencies then have the same features, and cargo builds them only once.
cargo build --locked --quiet --workspace --bins --test e2e
cargo test --locked --quiet --workspace --test e2e --no-run
e2e() { cargo test --locked --quiet --workspace --test e2e -- --test-threads=1 "$@"; }
"$here/image.sh" pause "$work/pause.tar"
"$here/image.sh" mimeo "$top" "$work/mimeo.tar" e2e
images=(pause mimeo)
# The upgrade tests start from the programs and the chart of the previous commit. A checkout of depth 1 doesn't have that commit.
list=$(e2e --list "$@")
upgrades=$(grep -c '^upgrade::.*: test$' <<<"$list" || true)
left_out=0 filter=()
if ((upgrades > 0)); then
    if git cat-file -e HEAD^:manifests/chart 2>/dev/null; then
        mkdir "$work/before"
        git archive HEAD^ | tar -x -C "$work/before"
        "$here/image.sh" mimeo "$work/before" "$work/before.tar" before
        images+=(before)
    else
        skipped "no upgrade was tested" "the commit before this one isn't here (git fetch --deepen 1 brings it)"
        left_out=$upgrades filter=(--skip upgrade::)
    fi
fi
say "built after $((SECONDS - started)) s"

# If this shell is killed, the kernel ends the machine, too.
setpriv --pdeathsig TERM "$here/machine.sh" &
machine=$!
# The new machine waits while another one runs.
until [[ -e $state/ready && $(cat "$state/pid" 2>/dev/null) == "$machine" ]]; do
    kill -0 "$machine" 2>/dev/null || { say "the machine has ended"; exit 1; }
    sleep 0.1
done
[[ ! -d $work/before ]] || cp -r "$work/before/manifests/chart" "$state/chart-before"
for image in "${images[@]}"; do
    # This path exists inside the machine, too.
    cp "$work/$image.tar" "$state/$image.tar"
    "$here/machine.sh" run ctr --address /run/mimeo-node/containerd.sock --namespace k8s.io images import "$state/$image.tar" >&2
done
say "the node runs after $((SECONDS - started)) s"

status=0
e2e "${filter[@]}" "$@" 2>&1 | tee "$work/log" || status=$?
say "over after $((SECONDS - started)) s"
awk -v left_out="$left_out" '
    /^test result: / { for (i = 1; i < NF; i++) { if ($(i + 1) ~ /^passed/) p += $i; if ($(i + 1) ~ /^failed/) f += $i } }
    END { printf "%d passed, %d failed%s\n", p, f, left_out ? ", " left_out " SKIPPED: the upgrade" : ""; exit !(p + f + left_out) }
' "$work/log" || { say "no test has such a name"; status=1; }
exit "$status"
