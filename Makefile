# The commands a developer needs; scripts/ does the work.
.PHONY: bench test check sanitize lab unlab
.NOTPARALLEL:

bench:
	cargo run --release -p dioxide-cli -- bench

# Everything; as root on real file systems too.
test:
	scripts/with-lab cargo test --workspace

# The library's tests under AddressSanitizer, ThreadSanitizer and valgrind, each of which first finds planted faults.
sanitize:
	scripts/with-lab scripts/sanitize

check:
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings

lab:
	scripts/lab up

unlab:
	scripts/lab down
