# The commands a developer needs; scripts/ does the work.
.PHONY: bench test loom check lab unlab
.NOTPARALLEL:

bench:
	cargo run --release -p dioxide-cli -- bench

# Everything; as root on real file systems too.
test:
	scripts/with-lab cargo test --workspace

# The locks and waits of the library, in every order of their steps.
loom:
	scripts/loom

check:
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings

lab:
	scripts/lab up

unlab:
	scripts/lab down
