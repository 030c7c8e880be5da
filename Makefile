# Every target does its own set-up: a Debian or Ubuntu machine with Rust needs nothing else.

WORLD ?= host:4
LAYER ?= 0
TEXT ?= The tiles that are ready go first, and nobody waits for the whole tensor.
export TEXT

.DEFAULT_GOAL := help
.PHONY: help demo demo-model test mutants bless bench bundle device-test

help:
	@echo 'make demo          a tensor-parallel MLP block over four ranks of this machine   WORLD=host:8, WORLD=gpu:4, WORLD=devices:0,1'
	@echo 'make demo-model    the same on a real layer and real text    LAYER=0 TEXT="…" WORLD=…'
	@echo 'make test          all checks and tests that need no GPU; device tests run where there is one'
	@echo 'make mutants       the mutation score of the checker, all kernels and schedules    WORDS="gemm_rs sm_90a"'
	@echo 'make bless         rewrites the golden files; read the diff before you commit it'
	@echo 'make bench         the benchmarks'
	@echo 'make bundle        a folder that runs the device tests where there is no cargo: .carry/bundle'
	@echo 'make device-test   builds that folder and runs it here'

demo:
	@scripts/setup
	cargo run --release --example tp_mlp -- --world $(WORLD)

demo-model:
	@scripts/setup
	weights=$$(scripts/fetch-model) && \
	cargo run --release --example tp_mlp -- --world $(WORLD) --weights "$$weights" --layer $(LAYER) --text "$$TEXT"

test:
	@scripts/setup --tools
	@scripts/fetch-model >/dev/null
	@scripts/test

mutants:
	@scripts/setup
	cargo run --release -p flux-sim --example mutants -- $(WORDS)

bless:
	@scripts/setup --tools
	FLUX_BLESS=1 TRYBUILD=overwrite cargo test --workspace --no-fail-fast
	@git status --short

bench:
	@scripts/setup
	cargo bench --workspace

bundle:
	@scripts/setup
	scripts/bundle

device-test: bundle
	.carry/bundle/run
