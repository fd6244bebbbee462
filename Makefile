# Two commands do everything on a Debian 12 with a Rust toolchain: `make demo` and `make test`.
# Both use private instances of Postfix on loopback; the system's own mail is not touched.

.DEFAULT_GOAL := help
.PHONY: help demo demo-pkcs11 test check build packages memory numbers bench bench-peers peers bench-postfix
.PHONY: bench-tokens token-leak
.PHONY: instructions instructions-store gungraun-runner
SHELL := /bin/bash
export PATH := $(PATH):$(or $(CARGO_HOME),$(HOME)/.cargo)/bin
# Postfix starts as root; only what needs it runs as root.
SUDO := $(shell [ "$$(id -u)" = 0 ] || echo sudo)
CARGO_DENY := 0.20.2
# The version that Cargo.toml has of gungraun.
GUNGRAUN := 0.20.0

help: ## this list
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 24

demo: packages build ## a message signed by one private Postfix, verified by another; shows it and the verdicts
	$(SUDO) tests/demo.py

demo-pkcs11: packages build ## the same with a key made in a token of SoftHSM, which signs; and by dkim-sign
	$(SUDO) tests/demo_pkcs11.py

test: packages build gungraun-runner ## everything: unit and property tests, instruction counts, Postfix, Sendmail, cross-checks, memory
	tests/run

check: packages ## what needs no running: format, lints, each engine alone, licences
	cargo fmt --all --check
	cargo clippy --release --workspace --all-targets -- -D warnings
	cargo clippy --release --package dkim-core --all-targets --no-default-features --features aws-lc -- -D warnings
	cargo clippy --release --package dkim-core --all-targets --no-default-features --features rustcrypto -- -D warnings
	cargo deny --version > /dev/null 2>&1 || cargo install --quiet --locked cargo-deny@$(CARGO_DENY)
	cargo deny check bans licenses sources

build: ## the programs, in target/release
	cargo build --release --workspace

packages: ## the Debian packages that are missing, for building and testing
	@tests/install

# Without optimization, since it only starts valgrind and reads what that says: half the time to build.
gungraun-runner:
	@[ "$$(gungraun-runner --version 2> /dev/null)" = "gungraun-runner $(GUNGRAUN)" ] || \
		CARGO_PROFILE_DEV_DEBUG=0 cargo install --quiet --locked --debug gungraun-runner@$(GUNGRAUN)

instructions: packages gungraun-runner ## instruction counts of the hot paths, compared with those stored
	cargo run --quiet --release --package dkim-benches --bin instruction-counts

instructions-store: packages gungraun-runner ## stores the instruction counts of this tree; benches/README.md says when
	cargo run --quiet --release --package dkim-benches --bin instruction-counts -- --store

memory: packages build ## peak memory of the daemon with 200 messages of 25 MB at once
	$(SUDO) tests/memory.py

numbers: packages build ## latency through Postfix, beside OpenDKIM's
	$(SUDO) tests/latency.py

bench: packages build peers ## each ratio that is to be reached, and what it is: about five minutes
	$(SUDO) benches/table.py $(BENCH)

bench-peers: build peers ## signing and verifying beside libopendkim, mail-auth, Mail::DKIM, dkimpy and the primitives
	benches/peers/run.py $(PEERS)

peers:
	@tests/install libopendkim-dev
	mkdir -p target/peers
	$(CC) -O2 -Wall -Wextra -o target/peers/opendkim benches/peers/opendkim.c -lopendkim
	cd benches/peers/mail-auth && CARGO_TARGET_DIR=$(CURDIR)/target/peers/mail-auth \
		cargo build --release --locked --ignore-rust-version

bench-postfix: packages build ## what a milter costs a mail server: through Postfix, beside OpenDKIM's and none
	$(SUDO) benches/postfix.py

bench-tokens: build token-packages ## keys in tokens beside keys in files: sign, verify and digest; three minutes
	benches/tokens/run.py $(TOKENS)

token-leak: build token-packages ## what 100,000 signatures by SoftHSM cost in memory
	benches/tokens/run.py --leak

.PHONY: token-packages
token-packages:
	@tests/install softhsm2 libnss3 libnss3-tools
