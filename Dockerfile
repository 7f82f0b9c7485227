# Both programs as static binaries, and nothing else. Builds with any builder that knows stages:
#
#     docker build -t mimeo:dev .        buildah build -t mimeo:dev .
#
# The tag is the toolchain of rust-toolchain.toml, which is left out of the context: rustup would fetch clippy for it. Another
# image with that toolchain and a C compiler will do: --build-arg BUILDER=...
ARG BUILDER=rust:1.95.0-slim-bookworm
FROM ${BUILDER} AS build
WORKDIR /src
COPY . .
# A static C library, so that the image needs none. The target is named, though it is the builder's own, because
# RUSTFLAGS would otherwise hold for build scripts and macros too, and macros can't be static. On every architecture
# that the base image has.
RUN host=$(rustc -vV | sed -n 's/^host: //p') \
 && RUSTFLAGS='-C target-feature=+crt-static' \
    cargo build --locked --release --target "$host" -p mimeo-webhook -p mimeo-reconciler \
 && mv "target/$host/release/mimeo-webhook" "target/$host/release/mimeo-reconciler" /

# No shell, no CA certificates: the only server that is called is the API server, whose CA comes with the service account.
FROM scratch
COPY --from=build /mimeo-webhook /mimeo-reconciler /
USER 65532:65532
