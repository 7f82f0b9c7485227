#!/usr/bin/env bash
# Runs a machine with one Kubernetes node for the end-to-end tests, until it is stopped. It leaves nothing behind.
#
#   machine.sh                  runs the machine in the foreground; the file $state/ready appears once the node is ready
#   machine.sh run COMMAND...   runs a command inside the running machine
#   machine.sh kill NAME        kills one of its programs, as in a crash
#   machine.sh start NAME       starts that program again
#   machine.sh reboot           simulates a power failure: kills all processes, keeps the disk, and boots again
#
# The machine is a set of Linux namespaces (pid, mount, network) whose first process is inside.sh. When that process ends, the kernel
# ends all other processes and removes the mounts, bridges and firewall rules. So the host's own network, containers and kubelet are
# not changed. Only the folder $state, one end of a veth pair, the cgroups mimeo-node and some kernel settings of the kubelet are outside
# of the namespaces. The script restores these settings.
# Only one machine runs at a time, because addresses and names are fixed. A second one waits.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
export state=/var/lib/mimeo-node
address=10.90.0.1
# Earlier values of the kernel settings that a kubelet changes for the whole host. This script restores them when it ends. If it is
# killed, the next run does.
settings=/run/mimeo-node-sysctls
kernel=(vm.overcommit_memory vm.panic_on_oom kernel.panic kernel.panic_on_oops kernel.keys.root_maxkeys kernel.keys.root_maxbytes)

say() { printf 'node: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

first() { # prints the pid of the machine's first process, as seen by the host
    [[ -s $state/first && -d /proc/$(<"$state/first") ]] || die "no machine runs"
    cat "$state/first"
}

inside() { nsenter --target "$(first)" --mount --pid --net -- "$@"; }

# Prints the parent cgroup of the node's pods in each hierarchy. It is separate, so that the host uses none of these cgroups.
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
        # These files are empty in a new cgroup, which then accepts no process.
        for file in cpuset.cpus cpuset.mems; do
            if [[ -e $group/$file && -z $(<"$group/$file") ]]; then cat "${group%/*}/$file" >"$group/$file"; fi
        done
    done
}

remove_groups() { # retries, because a cgroup is busy for a moment after its last process has ended
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
    # The kernel ends the machine when this shell ends, even if it is killed.
    setpriv --pdeathsig KILL unshare --mount --pid --net --fork --kill-child --mount-proc --propagation private \
        "$here/inside.sh" >>"$state/log/machine.log" 2>&1 9>&- &
    namespaces=$!
    until [[ -e $state/booted ]]; do
        kill -0 "$namespaces" 2>/dev/null || die "it did not boot: $(tail -n 5 "$state/log/machine.log")"
        sleep 0.02
    done
    local first
    first=$(tr -d ' ' <"/proc/$namespaces/task/$namespaces/children")
    # A veth pair connects host and machine: kc0 on the host, eth0 in the machine. It disappears with the machine.
    ip link add kc0 type veth peer name kc1
    ip address add 10.90.0.254/24 dev kc0
    ip link set kc0 up
    ip link set kc1 netns "$first" name eth0
    # With these routes tests reach Services and pods from the host.
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
    # Cleans up after a run that was killed together with its parent processes.
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
