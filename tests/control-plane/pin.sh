#!/usr/bin/env bash
# Pins one Kubernetes version for the tests: writes versions/1.N.mod and versions/1.N.sum.
#
#   pin.sh 1.33.13
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

[[ ${1:-} =~ ^1\.([0-9]+)\.[0-9]+$ ]] || { echo "usage: pin.sh 1.MINOR.PATCH" >&2; exit 1; }
version=$1
mod=versions/1.${BASH_REMATCH[1]}.mod

mkdir -p versions
cat >"$mod" <<END
module mimeo.dev/control-plane

go 1.26.0

require k8s.io/kubernetes v$version

tool (
$(printf '\tk8s.io/kubernetes/cmd/%s\n' kube-apiserver kube-controller-manager kube-proxy kube-scheduler kubectl kubelet)
)
END
rm -f "${mod%.mod}.sum"
# Kubernetes requires the modules of its own repository in version v0.0.0. Their tags are v0.MINOR.PATCH.
own=$(go mod download -modfile="$mod" -json "k8s.io/kubernetes@v$version" | sed -n 's|^\t"GoMod": "\(.*\)",$|\1|p')
for module in $(sed -n 's|^\t\(k8s\.io/[a-z-]*\) v0\.0\.0\( .*\)\?$|\1|p' "$own"); do
    go mod edit -replace "$module=$module@v0${version#1}" "$mod"
done
go mod tidy -modfile="$mod"
