#!/usr/bin/env bash
# certificates.sh DIRECTORY ADDRESS: creates a CA for the node at this address, the certificates that it signs, and kubeconfigs.
set -euo pipefail
mkdir -p "$1"
cd "$1"
address=$2

key() { openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:prime256v1 -out "$1.key" 2>/dev/null; }

sign() { # sign NAME SUBJECT USAGE [ALTERNATIVE NAMES]
    key "$1"
    openssl req -new -key "$1.key" -subj "$2" |
        openssl x509 -req -CA ca.crt -CAkey ca.key -days 2 -out "$1.crt" \
            -extfile <(printf '%s\n' "extendedKeyUsage=$3" ${4:+"subjectAltName=$4"}) 2>/dev/null
}

kubeconfig() { # kubeconfig NAME SUBJECT: writes a kubeconfig with a new client certificate
    sign "$1" "$2" clientAuth
    cat >"$1.kubeconfig" <<EOF
apiVersion: v1
kind: Config
current-context: node
contexts: [{name: node, context: {cluster: node, user: $1}}]
clusters:
- name: node
  cluster: {server: "https://$address:6443", certificate-authority-data: $(base64 -w 0 ca.crt)}
users:
- name: $1
  user: {client-certificate-data: $(base64 -w 0 "$1.crt"), client-key-data: $(base64 -w 0 "$1.key")}
EOF
}

key ca
openssl req -x509 -key ca.key -subj /CN=node-ca -days 2 -out ca.crt
names=DNS:localhost,DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc,DNS:kubernetes.default.svc.cluster.local
sign apiserver /CN=kube-apiserver serverAuth "IP:127.0.0.1,IP:10.96.0.1,IP:$address,$names"
sign apiserver-kubelet /O=system:masters/CN=apiserver-kubelet-client clientAuth
sign kubelet-serving /CN=node1 serverAuth "DNS:node1,IP:$address"
kubeconfig admin /O=system:masters/CN=admin
kubeconfig controller-manager /CN=system:kube-controller-manager
kubeconfig scheduler /CN=system:kube-scheduler
kubeconfig kube-proxy /CN=system:kube-proxy
kubeconfig kubelet /O=system:nodes/CN=system:node:node1
openssl genpkey -algorithm RSA -pkeyopt rsa_keygen_bits:2048 -out tokens.key 2>/dev/null
openssl pkey -in tokens.key -pubout -out tokens.pub
