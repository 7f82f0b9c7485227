#!/usr/bin/env bash
# Prints what the image has to carry: the licences of all that is linked into the programs. First Mimeo's own, then by crate the licence
# that it is under, then each text that crates come with, once, under the names of those that do; last Rust's own library and the C libraries.
#
#   licenses.sh TARGET COMPILER [PACKAGE...]    for programs of this target, linked by this C compiler; by default those of the image
#
# The Dockerfile runs it where they have just been built: what is linked is unpacked there. cargo fetches what it lists besides.
set -euo pipefail
export LC_ALL=C
cd "$(dirname "${BASH_SOURCE[0]}")"
target=$1 compiler=$2
shift 2
packages=("$@")
(($# > 0)) || packages=(mimeo-webhook mimeo-reconciler)

section() { printf '\n\n==== %s ====\n\n' "$*"; }

sources=$(echo "${CARGO_HOME:-$HOME/.cargo}"/registry/src/*/)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
section Mimeo
cat LICENSE

section Crates
cargo tree --locked --target "$target" --edges normal --prefix none --no-dedupe --format '{p}|{l}' "${packages[@]/#/--package=}" |
    sed -n '/(\//! s/^\([^ ]*\) v\([^ |]*\)[^|]*|/\1-\2 /p' | sort -u >"$work/crates"
while read -r crate licence; do
    echo "$crate: $licence"
    # Where crates.io is mirrored, cargo has a folder for each place.
    for folder in $sources; do
        [[ -d $folder$crate ]] || continue
        find "$folder$crate" -maxdepth 1 -type f -iregex '.*/\(licen[cs]e\|copying\|copyright\|notice\|unlicense\)[^/]*' -exec sha256sum {} + |
            sed "s|\$| $crate|" >>"$work/texts"
    done
done <"$work/crates"
sort "$work/texts" >"$work/sorted"
cut -d ' ' -f 1 "$work/sorted" | uniq | while read -r text; do
    section "$(awk -v text="$text" '$1 == text { print $3 }' "$work/sorted" | sort -u | tr '\n' ' ')"
    cat "$(awk -v text="$text" '$1 == text { print $2; exit }' "$work/sorted")"
done

section "Rust's standard library"
cat "$(rustc --print sysroot)/share/doc/rust/COPYRIGHT-library.html"

for library in libc.a libgcc_eh.a; do
    package=$(dpkg -S "$(realpath "$("$compiler" -print-file-name="$library")")")
    package=${package%%:*}
    section "$library, of Debian's package $package"
    cat "/usr/share/doc/$package/copyright"
done
