# The image has both programs as static binaries, and the licences of their dependencies. Any builder with multi-stage builds can build it:
#
#     docker build -t mimeo:dev .        buildah build -t mimeo:dev .
#
# For another architecture the build cross-compiles and needs no emulation:
#
#     docker build --platform linux/arm64 -t mimeo:dev .
#
# The tag names the toolchain of rust-toolchain.toml. That file is not in the build context, because rustup would then download clippy.
# A tag can move to another image. To pin one, use a digest: --build-arg BUILDER=rust@sha256:... Every Debian image with that toolchain
# and a C compiler works.
ARG BUILDER=rust:1.95.0-slim-bookworm
FROM --platform=$BUILDPLATFORM ${BUILDER} AS build
# The builder sets this from --platform.
ARG TARGETARCH
WORKDIR /src
# Installs Rust's standard library and a C compiler for the target if they are missing.
RUN set -eu; \
    case "$TARGETARCH" in amd64) cpu=x86_64 ;; arm64) cpu=aarch64 ;; *) echo "no such TARGETARCH: '$TARGETARCH'"; exit 1 ;; esac; \
    target=$cpu-unknown-linux-gnu; compiler=cc; \
    if [ "$target" != "$(rustc -vV | sed -n 's/^host: //p')" ]; then \
        compiler=$cpu-linux-gnu-gcc; \
        [ -e "$(rustc --print sysroot)/lib/rustlib/$target" ] || rustup target add "$target"; \
        command -v "$compiler" || { apt-get update && apt-get install --yes --no-install-recommends "gcc-$(echo $cpu | tr _ -)-linux-gnu" "libc6-dev-$TARGETARCH-cross"; }; \
    fi; \
    # The C library is linked statically, so that the image needs none. The target is named even if it is the builder's own. Otherwise
    # these flags would apply to build scripts and macros too, and macros can't be static. Packed relocations make the image smaller by
    # a fifteenth.
    printf '[build]\ntarget = "%s"\n[target.%s]\nlinker = "%s"\nrustflags = ["-Ctarget-feature=+crt-static", "-Clink-arg=-Wl,-z,pack-relative-relocs"]\n' \
        "$target" "$target" "$compiler" >/config.toml; \
    echo "$target $compiler" >/target
# Compiles the dependencies in a layer of its own. The builder reuses this layer until a Cargo.toml or Cargo.lock changes. Cargo reads the
# manifest of every member of the workspace, and wants the source file of each target. The last command removes what was compiled from these
# empty files, because Cargo would take it for newer than the sources.
COPY Cargo.toml Cargo.lock ./
COPY shared/api/Cargo.toml shared/api/
COPY shared/model/Cargo.toml shared/model/
COPY shared/engine/Cargo.toml shared/engine/
COPY shared/runtime/Cargo.toml shared/runtime/
COPY webhook/Cargo.toml webhook/
COPY reconciler/Cargo.toml reconciler/
COPY cli/Cargo.toml cli/
COPY certs-dev/Cargo.toml certs-dev/
COPY tests/Cargo.toml tests/
COPY tests/node/Cargo.toml tests/node/
COPY bench/Cargo.toml bench/
RUN set -eu; read -r target compiler </target; \
    for member in shared/* webhook reconciler cli certs-dev tests tests/node bench; do \
        mkdir "$member/src"; touch "$member/src/lib.rs"; echo 'fn main() {}' >"$member/src/main.rs"; \
    done; \
    mkdir tests/node/tests; touch tests/node/tests/e2e.rs; \
    cargo build --config /config.toml --locked --release -p mimeo-webhook -p mimeo-reconciler; \
    cargo clean --config /config.toml --locked --release --target "$target" -p mimeo-webhook -p mimeo-reconciler \
        -p mimeo-api -p mimeo-model -p mimeo-engine -p mimeo-runtime; \
    find . -path ./target -prune -o -name '*.rs' -exec rm {} +
COPY . .
RUN set -eu; read -r target compiler </target; \
    cargo build --config /config.toml --locked --release -p mimeo-webhook -p mimeo-reconciler; \
    ./licenses.sh "$target" "$compiler" >/licenses.txt; \
    # Compressed, the file has a twentieth of its size. Without name and time in it, each build gives the same file.
    gzip --best --no-name /licenses.txt; \
    cd "target/$target/release"; mv mimeo-webhook mimeo-reconciler /

# The image has no shell and no CA certificates. The programs call only the API server, and its CA comes with the service account.
FROM scratch
# The builder of a release says which version and revision the image has: --build-arg REVISION=$(git rev-parse HEAD), and so on. Without
# a time of creation the same sources give the same image.
ARG VERSION=0.1.0
ARG REVISION=unknown
ARG CREATED=1970-01-01T00:00:00Z
LABEL org.opencontainers.image.title="Mimeo" \
      org.opencontainers.image.description="Keeps copies of Kubernetes objects where they are needed" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.authors="Mimeo maintainers" \
      org.opencontainers.image.vendor="Mimeo" \
      org.opencontainers.image.url="https://mimeo.dev" \
      org.opencontainers.image.source="https://mimeo.dev" \
      org.opencontainers.image.documentation="https://mimeo.dev/docs/README.md" \
      org.opencontainers.image.version="$VERSION" \
      org.opencontainers.image.ref.name="$VERSION" \
      org.opencontainers.image.revision="$REVISION" \
      org.opencontainers.image.created="$CREATED" \
      org.opencontainers.image.base.name="scratch"
COPY --from=build /mimeo-webhook /mimeo-reconciler /licenses.txt.gz /
USER 65532:65532
# The chart names the program of each container itself. This one is for clients that name none.
ENTRYPOINT ["/mimeo-webhook"]
