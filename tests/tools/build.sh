#!/usr/bin/env bash
# Builds the tool of this name, once, into a cache directory outside the source tree: what its folder here pins, in go.mod. Prints the
# program's path on stdout and nothing else; progress goes to stderr.
#
#   build.sh helm|promtool
#
#   MIMEO_CACHE_DIR      where to keep it (default: ${XDG_CACHE_HOME:-$HOME/.cache}/mimeo)
#
# May run many times at once: one builds, the others wait.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
tool=${1-}

say() { printf 'tools: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

flags="-s -w"
tags=
case $tool in
helm) module=helm.sh/helm/v4 ;;
promtool)
    module=github.com/prometheus/prometheus
    # Nothing is scraped: it needs none of the ways to find what to scrape, which are half of it.
    tags=remove_all_sd
    ;;
*) die "no tool is called '$tool'" ;;
esac
version=$(awk -v module="$module" '$1 == module { print $2 }' "$here/$tool/go.mod")
[[ -n $version ]] || die "go.mod names no version of $module"
# Without these it calls itself a development version.
[[ $tool != helm ]] || flags+=" -X $module/internal/version.version=$version -X $module/internal/version.gitTreeState=clean"

digest=$(cat "$here/$tool/go.mod" "$here/$tool/go.sum" "$here/build.sh" | sha256sum | cut -c 1-12)
cache=${MIMEO_CACHE_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/mimeo}
out=$cache/$tool/$version-$(uname -m)-$digest
mkdir -p "$out" || die "cannot create the cache directory $out"
out=$(cd "$out" && pwd)

if [[ ! -x $out/$tool ]]; then
    # Without flock (util-linux) two first runs only do the same work twice: what they publish is whole either way.
    exec 9>"$out/.lock"
    if command -v flock >/dev/null; then flock 9; fi
fi
if [[ ! -x $out/$tool ]]; then
    command -v go >/dev/null || die "the Go toolchain (1.26 or newer) is needed to build $tool: https://go.dev/dl"
    work=$(mktemp -d "$out/.build.XXXXXX")
    trap 'rm -rf "$work"' EXIT
    say "building $tool $version into $out (once; 2 to 4 minutes)"
    started=$SECONDS
    (cd "$here/$tool" && CGO_ENABLED=0 go build -trimpath -tags "$tags" -ldflags="$flags" -o "$work/$tool" "$module/cmd/$tool" >&2) ||
        die "building $tool failed; if modules can't be downloaded: is the proxy reachable? (GOPROXY=$(go env GOPROXY))"
    # A rename within one file system: whoever sees the name sees the whole file.
    mv "$work/$tool" "$out/$tool"
    say "built in $((SECONDS - started)) s"
fi
printf '%s\n' "$out/$tool"
