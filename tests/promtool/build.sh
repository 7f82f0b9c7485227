#!/usr/bin/env bash
# Builds promtool from the version of Prometheus pinned in go.mod, once, into a cache directory outside the source tree. Prints the
# program's path on stdout and nothing else; progress goes to stderr.
#
#   MIMEO_CACHE_DIR      where to keep it (default: ${XDG_CACHE_HOME:-$HOME/.cache}/mimeo)
#
# May run many times at once: one builds, the others wait.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

say() { printf 'promtool: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

version=$(sed -n 's|^[[:space:]]*github\.com/prometheus/prometheus \(v[0-9.]*\).*$|\1|p' "$here/go.mod")
[[ -n $version ]] || die "go.mod names no version of github.com/prometheus/prometheus"
digest=$(cat "$here/go.mod" "$here/go.sum" "$here/build.sh" | sha256sum | cut -c 1-12)
cache=${MIMEO_CACHE_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/mimeo}
out=$cache/promtool/$version-$(uname -m)-$digest
mkdir -p "$out" || die "cannot create the cache directory $out"
out=$(cd "$out" && pwd)

if [[ ! -x $out/promtool ]]; then
    # Without flock (util-linux) two first runs only do the same work twice: what they publish is whole either way.
    exec 9>"$out/.lock"
    if command -v flock >/dev/null; then flock 9; fi
fi
if [[ ! -x $out/promtool ]]; then
    command -v go >/dev/null || die "the Go toolchain (1.26 or newer) is needed to build promtool: https://go.dev/dl"
    work=$(mktemp -d "$out/.build.XXXXXX")
    trap 'rm -rf "$work"' EXIT
    say "building promtool $version into $out (once; 2 to 4 minutes)"
    started=$SECONDS
    # Nothing is scraped: it needs none of the ways to find what to scrape, which are half of it.
    (cd "$here" && CGO_ENABLED=0 go build -trimpath -tags remove_all_sd -ldflags="-s -w" -o "$work/promtool" github.com/prometheus/prometheus/cmd/promtool >&2) ||
        die "building promtool failed; if modules can't be downloaded: is the proxy reachable? (GOPROXY=$(go env GOPROXY))"
    # A rename within one file system: whoever sees the name sees the whole file.
    mv "$work/promtool" "$out/promtool"
    say "built in $((SECONDS - started)) s"
fi
printf '%s\n' "$out/promtool"
