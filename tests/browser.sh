#!/usr/bin/env bash
# Sees to a browser for the tests of the page: Debian's Chromium and its driver, which root installs where they are missing. Fails where
# there is none and none can be had.
#
#   browser.sh axe       prints the path of axe-core's script instead, which npm fetches once, into the cache; fails where it cannot
#
#   MIMEO_CACHE_DIR      where to keep it (default: ${XDG_CACHE_HOME:-$HOME/.cache}/mimeo)
set -euo pipefail

axe_version=4.10.3
axe_digest=Xm7bpRXnDSX2YE2YFfBk2FnF0ep6tmG7xPh8iHee8MIcrgq762Nkce856dYtJYLkuIoYZvGfTs/PbZhideTcEg==

axe() {
    local script=${MIMEO_CACHE_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/mimeo}/axe-core/$axe_version/axe.min.js
    if [[ ! -f $script ]]; then
        work=$(mktemp -d)
        trap 'rm -rf "$work"' EXIT
        npm pack --silent --pack-destination "$work" "axe-core@$axe_version" >/dev/null
        [[ $(openssl dgst -sha512 -binary "$work"/axe-core-*.tgz | base64 -w 0) == "$axe_digest" ]] || { printf 'axe-core %s is another one\n' "$axe_version" >&2; return 1; }
        tar -xzf "$work"/axe-core-*.tgz -C "$work" package/axe.min.js
        mkdir -p "$(dirname "$script")"
        # In one step: another run may look for it.
        cp "$work/package/axe.min.js" "$script.$$"
        mv "$script.$$" "$script"
    fi
    printf '%s\n' "$script"
}

if [[ ${1:-} == axe ]]; then
    axe
    exit
fi

packages=(chromium chromium-driver)
found() { command -v chromium >/dev/null && command -v chromedriver >/dev/null; }
if ! found && [[ $EUID == 0 ]] && command -v apt-get >/dev/null; then
    printf 'installing %s\n' "${packages[*]}" >&2
    { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq --yes --no-install-recommends "${packages[@]}"; } >/dev/null || true
fi
found
