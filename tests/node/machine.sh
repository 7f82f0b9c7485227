#!/usr/bin/env bash
# A machine with one Kubernetes node on it, for the end-to-end tests: runs until it is ended, and leaves nothing behind.
#
#   machine.sh                  in the foreground; "ready" appears in $state/ready once the node is
#   machine.sh run COMMAND...   inside it, while it runs
#   machine.sh kill NAME        ends one of its programs at once, as a crash does
#   machine.sh start NAME       starts that again
#   machine.sh reboot           cuts its power: all that runs in it ends at once, its disk stays, it boots
#
# The machine is a set of namespaces (pid, mount, network) whose first process is inside.sh. When that one ends, the kernel
# ends everything in it and takes back its mounts, bridges and rules. So this machine's own network, its containers and its
# kubelet, if it has any, are not touched; the only things outside are the folder $state, one end of a cable, cgroups named mimeo-node,
# and some settings of the kernel that a kubelet makes, which are set back.
# One machine at a time: addresses and names are fixed. Another one waits.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
export state=/var/lib/mimeo-node
address=10.90.0.1
# What a kubelet sets that no namespace holds, as it was before: written back at the end, or by the next one if this one is killed.
settings=/run/mimeo-node-sysctls
kernel=(vm.overcommit_memory vm.panic_on_oom kernel.panic kernel.panic_on_oops kernel.keys.root_maxkeys kernel.keys.root_maxbytes)

say() { printf 'node: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

first() { # the machine's first process, as this machine numbers it
    [[ -s $state/first && -d /proc/$(<"$state/first") ]] || die "no machine runs"
    cat "$state/first"
}

inside() { nsenter --target "$(first)" --mount --pid --net -- "$@"; }

# The groups of the node's pods stand below one of its own in every hierarchy, so that they are nobody else's.
groups() {
    local root
    for root in /sys/fs/cgroup /sys/fs/cgroup/*; do
        if [[ -e $root/cgroup.procs && ! -L $root ]]; then echo "$root/mimeo-node"; fi
    done
}

make_groups() {
    local group file
    for group in $(groups); do
        mkdir -p "$group"
        # Empty in a new group, which then takes no process.
        for file in cpuset.cpus cpuset.mems; do
            if [[ -e $group/$file && -z $(<"$group/$file") ]]; then cat "${group%/*}/$file" >"$group/$file"; fi
        done
    done
}

remove_groups() { # a group is busy for a moment after its last process
    local try group
    for try in 1 2 3 4 5 6 7 8 9 10; do
        for group in $(groups); do
            [[ ! -d $group ]] || find "$group" -depth -type d -exec rmdir {} + 2>/dev/null || true
        done
        [[ -n $(find /sys/fs/cgroup -maxdepth 2 -type d -name mimeo-node -print -quit) ]] || return 0
        sleep 0.2
    done
    say "cgroups named mimeo-node are left in /sys/fs/cgroup"
}

restore() {
    [[ -e $settings ]] || return 0
    sysctl --quiet --load "$settings" || say "these were not set back: $(<"$settings")"
    rm "$settings"
}

boot() {
    rm -f "$state/first" "$state/ready" "$state/booted"
    make_groups
    # Whatever ends this shell, the machine ends with it.
    setpriv --pdeathsig KILL unshare --mount --pid --net --fork --kill-child --mount-proc --propagation private \
        "$here/inside.sh" >>"$state/log/machine.log" 2>&1 9>&- &
    namespaces=$!
    until [[ -e $state/booted ]]; do
        kill -0 "$namespaces" 2>/dev/null || die "it did not boot: $(tail -n 5 "$state/log/machine.log")"
        sleep 0.02
    done
    local first
    first=$(tr -d ' ' <"/proc/$namespaces/task/$namespaces/children")
    # The cable: kc0 here, eth0 there. It goes when the machine does.
    ip link add kc0 type veth peer name kc1
    ip address add 10.90.0.254/24 dev kc0
    ip link set kc0 up
    ip link set kc1 netns "$first" name eth0
    # So that tests reach Services and pods from outside.
    local network
    for network in 10.96.0.0/16 10.244.0.0/16; do
        ip route add "$network" via $address || die "this machine has a route to $network already"
    done
    echo "$first" >"$state/first.new"
    mv "$state/first.new" "$state/first"
    wait "$namespaces" || true
    ip link delete kc0 2>/dev/null || true
    remove_groups
}

clean() {
    trap '' INT TERM HUP
    [[ -z ${namespaces:-} ]] || kill -9 "$namespaces" 2>/dev/null || true
    wait || true
    ip link delete kc0 2>/dev/null || true
    remove_groups
    restore
    rm -rf "$state"
}

case ${1:-} in
run) shift; inside "$@" ;;
kill) inside "$here/inside.sh" kill "$2" ;;
start) inside "$here/inside.sh" start "$2" ;;
reboot)
    touch "$state/again"
    kill -9 "$(first)"
    until [[ ! -e $state/again ]]; do sleep 0.05; done
    ;;
'')
    exec 9>/run/lock/mimeo-node
    flock --nonblock 9 || { say "waiting for another one to end"; flock 9; }
    # What a run left that was killed with everything around it.
    remove_groups
    restore
    rm -rf "$state"
    sysctl "${kernel[@]}" >"$settings"
    mkdir -p "$state/log"
    echo $$ >"$state/pid"
    ln -s "$("$here/../control-plane/build.sh" kube-proxy kube-scheduler kubelet)" "$state/bin"
    trap clean EXIT
    trap 'exit 130' INT TERM HUP
    "$here/certificates.sh" "$state/pki" "$address"
    touch "$state/again"
    while [[ -e $state/again ]]; do
        rm "$state/again"
        boot
    done
    ;;
*) die "unknown: $1" ;;
esac
