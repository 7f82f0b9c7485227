#!/usr/bin/env bash
# Sees to a browser for the tests of the page: Debian's Chromium and its driver, which root installs where they are missing. Fails where
# there is none and none can be had.
set -euo pipefail
packages=(chromium chromium-driver)
found() { command -v chromium >/dev/null && command -v chromedriver >/dev/null; }
if ! found && [[ $EUID == 0 ]] && command -v apt-get >/dev/null; then
    printf 'installing %s\n' "${packages[*]}" >&2
    { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq --yes --no-install-recommends "${packages[@]}"; } >/dev/null || true
fi
found
