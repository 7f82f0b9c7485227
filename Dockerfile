# Both programs as static binaries, and the licences of what is in them. Builds with any builder that knows stages:
#
#     docker build -t mimeo:dev .        buildah build -t mimeo:dev .
#
# For another architecture than one's own it is compiled across, which takes no emulation:
#
#     docker build --platform linux/arm64 -t mimeo:dev .
#
# The tag is the toolchain of rust-toolchain.toml, which is left out of the context: rustup would fetch clippy for it. A tag may be
# moved to another image; a digest may not: --build-arg BUILDER=rust@sha256:... Another Debian with that toolchain and a C compiler
# will do as well.
ARG BUILDER=rust:1.95.0-slim-bookworm
FROM --platform=$BUILDPLATFORM ${BUILDER} AS build
# Set by the builder, from --platform.
ARG TARGETARCH
WORKDIR /src
# What compiles for the target: Rust's library and a C compiler, fetched unless they are there.
RUN set -eu; \
    case "$TARGETARCH" in amd64) cpu=x86_64 ;; arm64) cpu=aarch64 ;; *) echo "no such TARGETARCH: '$TARGETARCH'"; exit 1 ;; esac; \
    target=$cpu-unknown-linux-gnu; compiler=cc; \
    if [ "$target" != "$(rustc -vV | sed -n 's/^host: //p')" ]; then \
        compiler=$cpu-linux-gnu-gcc; \
        [ -e "$(rustc --print sysroot)/lib/rustlib/$target" ] || rustup target add "$target"; \
        command -v "$compiler" || { apt-get update && apt-get install --yes --no-install-recommends "gcc-$(echo $cpu | tr _ -)-linux-gnu" "libc6-dev-$TARGETARCH-cross"; }; \
    fi; \
    # A static C library, so that the image needs none. The target is named even if it is the builder's own, because
    # these flags would otherwise hold for build scripts and macros too, and macros can't be static. Relocations
    # are packed: a list of each would be a fifteenth of the image.
    printf '[build]\ntarget = "%s"\n[target.%s]\nlinker = "%s"\nrustflags = ["-Ctarget-feature=+crt-static", "-Clink-arg=-Wl,-z,pack-relative-relocs"]\n' \
        "$target" "$target" "$compiler" >/config.toml; \
    echo "$target $compiler" >/target
COPY . .
RUN set -eu; read -r target compiler </target; \
    cargo build --config /config.toml --locked --release -p mimeo-webhook -p mimeo-reconciler; \
    ./licenses.sh "$target" "$compiler" >/licenses.txt; \
    # A twentieth of the room; without a name and a time, so that it is the same each time.
    gzip --best --no-name /licenses.txt; \
    cd "target/$target/release"; mv mimeo-webhook mimeo-reconciler /

# No shell, no CA certificates: the only server that is called is the API server, whose CA comes with the service account.
FROM scratch
LABEL org.opencontainers.image.title="Mimeo" \
      org.opencontainers.image.description="Keeps copies of Kubernetes objects where they are needed" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /mimeo-webhook /mimeo-reconciler /licenses.txt.gz /
USER 65532:65532
