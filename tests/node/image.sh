#!/usr/bin/env bash
# Builds images without a registry, as archives that containerd can import. It uses buildah and needs root.
#
#   image.sh mimeo CONTEXT FILE TAG [PLATFORM]   builds the Dockerfile of the folder CONTEXT, as localhost/mimeo:TAG
#   image.sh pause FILE                          builds localhost/pause:1, the pause container of pods; also a test pod that does nothing
#   image.sh digest FILE                         prints the digest of the image in an archive
#
# The Dockerfile's builder image would come from a registry. So this script makes a substitute once, from Debian's packages. It mounts
# this machine's toolchain and crates at the paths of the original image. The cache keeps the compiled crates and the last images, so
# that equal sources aren't built again. A build with PLATFORM (linux/arm64) uses none of these.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${MIMEO_CACHE_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/mimeo}/node
suite=bookworm
builder=localhost/mimeo-builder:$suite

say() { printf 'image: %s\n' "$*" >&2; }
images() { buildah --root "$cache/images" --runroot /run/mimeo-images --storage-driver overlay "$@"; }

archive() { # archive IMAGE FILE
    rm -f "$2"
    images push --quiet "$1" "oci-archive:$(realpath "$2"):$1"
}

stand_in() {
    ! images inspect --type image "$builder" >/dev/null 2>&1 || return 0
    say "making the builder of $suite (once; a minute)"
    local root
    root=$(mktemp -d "$cache/builder.XXXXXX")
    # The packages of rust:1-slim-bookworm, without the toolchain.
    debootstrap --variant=minbase --include=ca-certificates,gcc,libc6-dev "$suite" "$root/debian" >"$root/log" || { tail "$root/log" >&2; exit 1; }
    printf '%s\n' 'FROM scratch' 'COPY debian/ /' \
        'ENV PATH=/usr/local/toolchain/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin CARGO_HOME=/usr/local/cargo' \
        >"$root/Dockerfile"
    images build --quiet --tag "$builder" "$root" >&2
    rm -rf "$root"
}

mkdir -p "$cache"

case ${1:-} in
mimeo)
    context=$2 file=$3 tag=localhost/mimeo:$4
    # Only one process at a time makes the builder and fills the cache.
    exec 9>"$cache/.lock"
    flock 9
    stand_in
    # Downloads the crates now, so that the build itself downloads nothing.
    (cd "$context" && cargo fetch --locked --quiet)
    mounts=(
        --volume "$(cd "$context" && rustc --print sysroot):/usr/local/toolchain:ro"
        --volume "${CARGO_HOME:-$HOME/.cargo}/registry:/usr/local/cargo/registry"
    )
    build() { # build NAME [OPTION...]: all files and the image get the same timestamp, so that equal contents give equal images
        images build --quiet --isolation chroot --pull-never --timestamp 0 --build-arg "BUILDER=$builder" "${mounts[@]}" \
            --ignorefile "$context/.dockerignore" --tag "$@" "$context" >&2
    }
    if [[ -n ${5:-} ]]; then
        exec 9>&-
        # The builder has no rustup, so the mounted toolchain must have the standard library for the target.
        [[ $5 != linux/arm64 || -e $(cd "$context" && rustc --print sysroot)/lib/rustlib/aarch64-unknown-linux-gnu ]] ||
            { say "this takes: rustup target add aarch64-unknown-linux-gnu"; exit 1; }
        # Debian's buildah doesn't set BUILDPLATFORM. Without it, buildah looks for a builder image of the target platform.
        build "$tag" --platform "$5" --build-arg "BUILDPLATFORM=linux/$(dpkg --print-architecture)"
    else
        sources=$(cd "$context" &&
            { rustc --version && find Dockerfile LICENSE licenses.sh Cargo.toml Cargo.lock shared webhook reconciler -type f -print0 | sort -z | xargs -0 sha256sum; } |
            sha256sum | cut -c 1-12)
        if ! images inspect --type image "localhost/mimeo:$sources" >/dev/null 2>&1; then
            mkdir -p "$cache/target"
            mounts+=(--volume "$cache/target:/src/target")
            # Cargo compares the times of files, which are useless here. So all of Mimeo's crates count as changed if the sources differ.
            find "$cache/target" -depth -path '*/.fingerprint/mimeo-*' -delete
            build "localhost/mimeo:$sources"
            # Keeps three images: the current one, the one before, and one of another branch.
            echo "$sources" >>"$cache/built"
            head -n -3 "$cache/built" | while read -r old; do images rmi "localhost/mimeo:$old" >/dev/null 2>&1 || true; done
            tail -n 3 "$cache/built" >"$cache/built.new"
            mv "$cache/built.new" "$cache/built"
        fi
        images tag "localhost/mimeo:$sources" "$tag"
    fi
    archive "$tag" "$file"
    # Removes the image that had this name before, and the last build stage.
    images rmi --prune >/dev/null 2>&1 || true
    ;;
pause)
    file=$2
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    pinned=versions/${KUBERNETES:-1.36}.mod
    module=$(cd "$here/../control-plane" && go list -modfile="$pinned" -m -f '{{.Dir}}' k8s.io/kubernetes)
    source=$module/build/pause/linux/pause.c
    gcc -Os -static -s -o "$work/pause" "$source"
    printf '%s\n' 'FROM scratch' 'COPY pause /' 'USER 65535:65535' 'ENTRYPOINT ["/pause"]' >"$work/Dockerfile"
    images build --quiet --timestamp 0 --tag localhost/pause:1 "$work" >&2
    archive localhost/pause:1 "$file"
    ;;
digest) tar --extract --to-stdout --file "$2" index.json | sed -n 's/.*"digest":"\(sha256:[0-9a-f]*\)".*/\1/p' ;;
*) say "unknown: ${1:-}"; exit 1 ;;
esac
