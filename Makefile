# Commands for developers and CI. `make help` lists them.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
CARGO := cargo

.PHONY: help build test e2e demo dist bench screenshots golden fmt lint docs deny sbom control-plane helm promtool
.DEFAULT_GOAL := help

help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

build: ## Build everything, for development
	$(CARGO) build --locked --workspace --all-targets

control-plane: ## Build kube-apiserver, kube-controller-manager, etcd and kubectl once, into the cache
	@tests/control-plane/build.sh

helm: ## Build Helm once, into the cache
	@tests/tools/build.sh helm

promtool: ## Build Prometheus' promtool once, into the cache
	@tests/tools/build.sh promtool

test: control-plane helm promtool ## Run every test, on a real control plane where one is needed; KUBERNETES=1.33 chooses its version
	@.ci/test

e2e: ## Install Mimeo on a real node made for it, run the end-to-end tests, remove all of it; takes Linux and root
	@tests/node/e2e.sh $(TESTS)

golden: ## Rewrite the generated and golden files that tests compare with
	MIMEO_UPDATE_GOLDEN=1 $(CARGO) test --locked -p mimeo-tests --test it golden
	MIMEO_UPDATE_GOLDEN=1 $(CARGO) test --locked -p mimeo-model --test golden
	MIMEO_UPDATE_GOLDEN=1 $(CARGO) test --locked -p mimeo-cli reference

fmt: ## Check the formatting
	$(CARGO) fmt --all --check

lint: ## Clippy, warnings denied
	$(CARGO) clippy --locked --workspace --all-targets -- -D warnings

docs: ## Build the API documentation, warnings denied
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --locked --workspace --no-deps --document-private-items

deny: ## Check licences, duplicates and sources of the dependencies
	@.ci/deny

sbom: ## Write the programs' bills of materials, target/sbom/*.cdx.json
	@.ci/sbom

demo: ## Show what Mimeo does on a control plane of its own; ONCE=1 ends after the story
	@tests/control-plane/build.sh >/dev/null
	@$(CARGO) build --locked --workspace --bins $(BESIDE)
	@"$${CARGO_TARGET_DIR:-target}/debug/mimeo-demo" $(if $(filter 1,$(ONCE)),--once)

dist: ## Pack a release into target/dist/; IMAGE=, PLATFORMS= and DOWNLOADS= as .ci/dist describes
	@.ci/dist

screenshots: control-plane ## Draw docs/images/page-*.png anew, by a real browser
	tests/browser.sh
	$(CARGO) build --locked -p mimeo-webhook -p mimeo-reconciler
	$(CARGO) test --locked -p mimeo-tests --test it -- --ignored screenshots

bench: control-plane ## Measure, as ratios to the floor of the same API server; writes bench/results.md and target/bench.json
	$(CARGO) build --locked --release -p mimeo-webhook -p mimeo-reconciler -p mimeo-bench
	target/release/mimeo-bench --json target/bench.json --markdown bench/results.md
