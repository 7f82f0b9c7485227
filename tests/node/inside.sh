#!/usr/bin/env bash
# The first process of machine.sh's machine. It boots the machine, and then only reaps orphaned processes.
#
#   inside.sh               boots the machine
#   inside.sh start NAME    starts a program, and waits until it is ready
#   inside.sh kill NAME     sends SIGKILL to a program, and waits until it has ended
#
# Longer settings of the programs are in config/. The paths there are fixed, because only one machine runs at a time.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
pki=$state/pki
address=10.90.0.1
# Not below $state, because the path of a socket must be short.
run=/run/mimeo-node

programs() { # programs NAME: sets `command` to the command line of a program
    case $1 in
    etcd)
        command=("$state/bin/etcd" --data-dir "$state/etcd" --unsafe-no-fsync --log-level error
            --listen-client-urls http://127.0.0.1:2379 --advertise-client-urls http://127.0.0.1:2379
            --listen-peer-urls http://127.0.0.1:2380 --initial-advertise-peer-urls http://127.0.0.1:2380
            --initial-cluster default=http://127.0.0.1:2380)
        ;;
    kube-apiserver)
        command=("$state/bin/kube-apiserver" --etcd-servers http://127.0.0.1:2379 --bind-address 0.0.0.0 --secure-port 6443
            --advertise-address "$address" --service-cluster-ip-range 10.96.0.0/16 --allow-privileged=true
            --authorization-mode Node,RBAC --enable-admission-plugins NodeRestriction
            --tls-cert-file "$pki/apiserver.crt" --tls-private-key-file "$pki/apiserver.key" --client-ca-file "$pki/ca.crt"
            --kubelet-client-certificate "$pki/apiserver-kubelet.crt" --kubelet-client-key "$pki/apiserver-kubelet.key"
            --kubelet-certificate-authority "$pki/ca.crt" --kubelet-preferred-address-types InternalIP
            --service-account-issuer https://kubernetes.default.svc
            --service-account-key-file "$pki/tokens.pub" --service-account-signing-key-file "$pki/tokens.key")
        ;;
    kube-controller-manager)
        # With its default limit of 20 requests per second the controller manager takes 5 s to start.
        command=("$state/bin/kube-controller-manager" --kubeconfig "$pki/controller-manager.kubeconfig"
            --use-service-account-credentials --leader-elect=false --service-account-private-key-file "$pki/tokens.key"
            --root-ca-file "$pki/ca.crt" --cluster-signing-cert-file "$pki/ca.crt" --cluster-signing-key-file "$pki/ca.key"
            --bind-address 127.0.0.1 --kube-api-qps 500 --kube-api-burst 1000)
        ;;
    kube-scheduler)
        command=("$state/bin/kube-scheduler" --kubeconfig "$pki/scheduler.kubeconfig" --leader-elect=false
            --bind-address 127.0.0.1 --kube-api-qps 500 --kube-api-burst 1000)
        ;;
    kube-proxy) command=("$state/bin/kube-proxy" --config "$here/config/kube-proxy.yaml") ;;
    containerd) command=(containerd --config "$here/config/containerd.toml") ;;
    kubelet)
        command=("$state/bin/kubelet" --config "$here/config/kubelet.yaml" --kubeconfig "$pki/kubelet.kubeconfig"
            --root-dir "$state/kubelet" --cert-dir "$state/kubelet/pki" --hostname-override node1 --node-ip "$address")
        ;;
    *) echo "no program $1" >&2; exit 1 ;;
    esac
}

# Sends a request with the admin's certificate. Only the API server needs the certificate.
answers() { curl --silent --fail --max-time 2 --cacert "$pki/ca.crt" --cert "$pki/admin.crt" --key "$pki/admin.key" "$@" >/dev/null; }

ready() {
    case $1 in
    etcd) answers http://127.0.0.1:2379/health ;;
    kube-apiserver) answers https://127.0.0.1:6443/readyz ;;
    # The kubelet is ready only once it has found containerd. Without containerd it ends, and nothing here restarts it.
    kubelet) answers http://127.0.0.1:10248/healthz ;;
    containerd) ctr --address "$run/containerd.sock" version >/dev/null 2>&1 ;;
    *) true ;;
    esac
}

start() {
    local name=$1 command
    programs "$name"
    # The program keeps no file of the caller open, and runs in its own session, so that it gets none of the caller's signals.
    setsid "${command[@]}" </dev/null >>"$state/log/$name.log" 2>&1 &
    echo $! >"$run/$name.pid"
}

await() {
    local name
    for name in "$@"; do
        until ready "$name"; do
            kill -0 "$(<"$run/$name.pid")" 2>/dev/null || { echo "$name has ended" >&2; tail -n 5 "$state/log/$name.log" >&2; exit 1; }
            sleep 0.1
        done
    done
}

case ${1:-} in
start) start "$2"; await "$2"; exit ;;
kill)
    process=$(<"$run/$2.pid")
    kill -9 "$process"
    # A process keeps its ports and files until it has ended. A large process needs a moment for that.
    while kill -0 "$process" 2>/dev/null; do sleep 0.05; done
    exit
    ;;
esac

# Only this machine sees the mounts and the network below, because it has its own namespaces.
mount --make-rshared /
# Mounts an empty /run, as after any boot. The programs always write to the other folders, whatever their settings say.
for folder in /run /var/lib/kubelet /var/lib/cni /var/log/containers /var/log/pods; do
    mkdir -p "$folder"
    mount -t tmpfs -o mode=755 tmpfs "$folder"
done
mkdir -p "$run" /run/lock "$state/cni"
cp "$here/config/pods.conflist" "$state/cni/"
: >"$state/resolv.conf"
ip link set lo up
touch "$state/booted"
until ip link show eth0 >/dev/null 2>&1; do sleep 0.02; done
ip address add "$address/24" dev eth0
ip link set eth0 up
ip route add default via 10.90.0.254
echo 1 >/proc/sys/net/ipv4/ip_forward

start etcd
start kube-apiserver
start containerd
await etcd kube-apiserver containerd
for name in kube-controller-manager kube-scheduler kube-proxy kubelet; do start "$name"; done
touch "$state/ready"
# This shell is the first process, so it must stay: it reaps orphaned processes, and `exec sleep` would not.
sleep infinity &
wait $!
