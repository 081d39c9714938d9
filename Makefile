# Commands for developers. The scripts in scripts/ do the work.
.PHONY: bench pages test test-all integrations agreement check mutants fuzz simulate loom sanitize install deb deb-test rpm dist dist-test capi install-capi lab unlab
.NOTPARALLEL:

# A machine without the crates fetches hundreds.
export CARGO_NET_RETRY ?= 10

bench:
	cargo run --release -p dioxide-cli -- bench

# Every promise once; as root on ext4 and XFS.
test:
	scripts/with-lab scripts/test

# Everything: all file systems, models, sanitizers, fuzzing, the mutants that changed since SINCE.
test-all:
	scripts/with-lab scripts/test --all

# The crates for other projects (openraft, SlateDB, foyer, small adapters), and bench-peers.
integrations:
	scripts/test --integrations

# Compares the rates of the bench with those of fio and sysbench. On an idle machine.
agreement:
	scripts/with-lab cargo test --release --package dioxide-cli --test agreement

# The HTML pages in a real browser: console, width, network. Screenshots in target/pages.
pages:
	scripts/cli-pages

# The model and the simulated disk, for HOURS hours.
simulate:
	DIOXIDE_HOURS=$(or $(HOURS),1) cargo test --release --package dioxide-simulation --test simulation -- --nocapture acknowledged

# The locks and waits of the library, in every interleaving.
loom:
	scripts/loom

# The library's tests under AddressSanitizer, ThreadSanitizer and valgrind. Each of these must first
# find planted faults.
sanitize:
	scripts/with-lab scripts/sanitize

# The command, the preload library, the manual and completions: PREFIX=/usr/local DESTDIR=
install:
	scripts/cli install --prefix "$(or $(PREFIX),/usr/local)" --destdir "$(DESTDIR)"

# The same as a Debian package, in target/debian.
deb:
	scripts/cli deb

# Builds the package, and tests it on a temporary copy of this system. As root.
deb-test:
	scripts/cli deb-test --profile dev

# An RPM package, in target/rpm.
rpm:
	scripts/cli rpm

# A static build of the command as a tar.gz with its checksum, in target/dist.
dist:
	scripts/cli dist

# Builds it, and tries it in an empty root, a container and an RPM package. As root.
dist-test:
	scripts/cli dist-test --profile dev

# libdioxide.so and libdioxide.a, in target/release.
capi:
	scripts/capi build

# These, dioxide.h, dioxide.pc and the manual: PREFIX=/usr/local LIBDIR=PREFIX/lib DESTDIR=
install-capi:
	scripts/capi install --prefix "$(or $(PREFIX),/usr/local)" --libdir "$(LIBDIR)" --destdir "$(DESTDIR)"

check:
	cargo fmt --all --check
	cargo fmt --check --manifest-path fuzz/Cargo.toml
	cargo fmt --check --manifest-path crates/bench-peers/Cargo.toml
	cargo fmt --check --manifest-path crates/dioxide-raft/Cargo.toml
	cargo fmt --check --manifest-path crates/dioxide-slatedb/Cargo.toml
	cargo fmt --all --check --manifest-path crates/adapters/Cargo.toml
	cargo fmt --check --manifest-path crates/dioxide-foyer/Cargo.toml
	cargo clippy --workspace --all-targets -- -D warnings
	RUSTFLAGS='--cfg loom' cargo check --package dioxide-io --lib --profile test --target-dir target/loom
	RUSTFLAGS='--cfg fuzzing' cargo clippy --manifest-path fuzz/Cargo.toml --target-dir target/fuzz -- -D warnings
	RUSTDOCFLAGS='-D warnings' cargo doc --quiet --no-deps --all-features --package dioxide-io --package dioxide-diagnose --package dioxide-ext --package dioxide-log
	scripts/mutate --check
	scripts/prose --self-test
	scripts/test --self-test
	scripts/prose
	cargo package --quiet --allow-dirty --no-verify --package dioxide-io --package dioxide-diagnose --package dioxide-ext --package dioxide-log --package dioxide-cli

# Known bugs, one at a time: a test must fail for each.
mutants:
	scripts/with-lab scripts/mutate

# The parsers of untrusted input, for a minute each.
fuzz:
	scripts/fuzz

lab:
	scripts/lab up

unlab:
	scripts/lab down
