#!/usr/bin/env bash
# Builds images without a registry, as archives that containerd imports, with buildah and as root.
#
#   image.sh mimeo CONTEXT FILE TAG [PLATFORM]   the project's Dockerfile over this folder, as localhost/mimeo:TAG
#   image.sh pause FILE                          localhost/pause:1, which holds a pod's namespaces, and is a pod that does nothing
#   image.sh digest FILE                         of the image in an archive
#
# The Dockerfile's builder image would be pulled. A stand-in for it is made here, once, of Debian's packages; toolchain and crates
# are this machine's own, mounted where that image has them. What was compiled is kept in the cache, and so are the last images:
# one of the same sources isn't built again. For a platform that is named (linux/arm64) nothing of that is used.
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
    # What rust:1-slim-bookworm has besides the toolchain.
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
    # One at a time makes the builder, and fills the cache.
    exec 9>"$cache/.lock"
    flock 9
    stand_in
    # Fetched here, so that nothing is while it is built.
    (cd "$context" && cargo fetch --locked --quiet)
    mounts=(
        --volume "$(cd "$context" && rustc --print sysroot):/usr/local/toolchain:ro"
        --volume "${CARGO_HOME:-$HOME/.cargo}/registry:/usr/local/cargo/registry"
    )
    build() { # build NAME [OPTION...]: the same time for every file and for the image itself, so that equal contents are equal images
        images build --quiet --isolation chroot --pull-never --timestamp 0 --build-arg "BUILDER=$builder" "${mounts[@]}" \
            --ignorefile "$context/.dockerignore" --tag "$@" "$context" >&2
    }
    if [[ -n ${5:-} ]]; then
        exec 9>&-
        # The builder has no rustup: the library for the target has to be in the toolchain that is mounted.
        [[ $5 != linux/arm64 || -e $(cd "$context" && rustc --print sysroot)/lib/rustlib/aarch64-unknown-linux-gnu ]] ||
            { say "this takes: rustup target add aarch64-unknown-linux-gnu"; exit 1; }
        # Debian's buildah knows what it builds for, but not what it builds on, and looks for a builder of that other platform.
        build "$tag" --platform "$5" --build-arg "BUILDPLATFORM=linux/$(dpkg --print-architecture)"
    else
        sources=$(cd "$context" &&
            { rustc --version && find Dockerfile LICENSE licenses.sh Cargo.toml Cargo.lock shared webhook reconciler -type f -print0 | sort -z | xargs -0 sha256sum; } |
            sha256sum | cut -c 1-12)
        if ! images inspect --type image "localhost/mimeo:$sources" >/dev/null 2>&1; then
            mkdir -p "$cache/target"
            mounts+=(--volume "$cache/target:/src/target")
            # Cargo goes by the times of files, which say nothing here: of other sources, all have changed.
            find "$cache/target" -depth -path '*/.fingerprint/mimeo-*' -delete
            build "localhost/mimeo:$sources"
            # This one, the one before and that of another branch.
            echo "$sources" >>"$cache/built"
            head -n -3 "$cache/built" | while read -r old; do images rmi "localhost/mimeo:$old" >/dev/null 2>&1 || true; done
            tail -n 3 "$cache/built" >"$cache/built.new"
            mv "$cache/built.new" "$cache/built"
        fi
        images tag "localhost/mimeo:$sources" "$tag"
    fi
    archive "$tag" "$file"
    # What had the name before, and the builder's last stage.
    images rmi --prune >/dev/null 2>&1 || true
    ;;
pause)
    file=$2
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    source=$(cd "$here/../control-plane" && go list -m -f '{{.Dir}}' k8s.io/kubernetes)/build/pause/linux/pause.c
    gcc -Os -static -s -o "$work/pause" "$source"
    printf '%s\n' 'FROM scratch' 'COPY pause /' 'USER 65535:65535' 'ENTRYPOINT ["/pause"]' >"$work/Dockerfile"
    images build --quiet --timestamp 0 --tag localhost/pause:1 "$work" >&2
    archive localhost/pause:1 "$file"
    ;;
digest) tar --extract --to-stdout --file "$2" index.json | sed -n 's/.*"digest":"\(sha256:[0-9a-f]*\)".*/\1/p' ;;
*) say "unknown: ${1:-}"; exit 1 ;;
esac
