# Tandem: what there is to make. `make help` lists it.
SHELL = /bin/bash
CARGO ?= cargo
PREFIX ?= /usr/local
# Where cargo puts what it builds.
export CARGO_TARGET_DIR ?= $(CURDIR)/target
TANDEM = $(CARGO_TARGET_DIR)/release/tandem
# Only root may make network namespaces: others do it through sudo; without it tests that need one skip, and say so.
AS_ROOT := $(shell [ "$$(id -u)" -eq 0 ] || command -v sudo)

# The programs of the tests' profile. The commands of the README and the kernels are tried with them:
# a build for release would take as long as all tests, and has no assertions and no overflow checks.
TESTED = $(CARGO_TARGET_DIR)/debug
# What of the tests needs neither root nor a network: unit tests of all crates, and the test programs
# of these names (property tests and tables of the pure crates, fuzz targets, the source tree).
PURE = control detect replay sim streams theory tree
# How many seconds each fuzz target runs with new inputs.
export TANDEM_FUZZ_SECONDS ?= 2

.PHONY: help setup demo check sources test oldest deny kernels packages bench lint docs install build clean book reference

help: ## lists the targets
	@sed -n 's/^\([a-z]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 18

setup: ## installs what the other targets need and this machine lacks, each package with its reason
	@scripts/setup test
	@scripts/setup bench
	@scripts/setup kernels
	@scripts/setup packages

demo: ## builds Tandem, sends files over a satellite link in a box, split and not, and shows them side by side
	@scripts/setup demo
	@$(MAKE) --no-print-directory build
	@$(AS_ROOT) $(TANDEM) demo --page out/demo.html

build:
	$(CARGO) build --release --locked

check: ## what every commit should pass, without root: format, lints, docs and their links, unit and property tests, import circles
	@$(MAKE) --no-print-directory sources deny
	$(CARGO) test --workspace --locked --quiet --lib --bins $(PURE:%=--test %)

# What the compiler and its tools say of the sources.
sources:
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	RUSTDOCFLAGS='-D warnings' $(CARGO) doc --workspace --no-deps --locked

test: ## runs every test: what `make check` does, oldest Rust, namespace tests, every command in the README, three kernels
	@scripts/setup test
	@scripts/setup kernels
	@$(MAKE) --no-print-directory sources deny oldest
	@skips=$$(mktemp); \
	TANDEM_AS_ROOT='$(AS_ROOT)' TANDEM_SKIPS=$$skips scripts/test-programs --locked; status=$$?; \
	echo "skipped tests: $$(wc -l < $$skips)"; cat $$skips; rm -f $$skips; exit $$status
	@$(AS_ROOT) scripts/readme-commands $(TESTED)
	tools/kernels/run --short --program $(TESTED)/tandem

deny: ## licences, duplicate crates and known vulnerabilities of the dependencies (deny.toml), where cargo-deny is installed
	@if cargo deny --version > /dev/null 2>&1; then cargo deny --log-level error --locked --workspace check; \
	else echo "skipped: licences and vulnerabilities: no cargo-deny here (cargo install --locked cargo-deny)"; fi

# The oldest Rust that will do, as Cargo.toml says. Without optimisation: that is of the C libraries
# alone, and nothing is run.
OLDEST := $(shell sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
oldest: ## checks the sources with the oldest Rust that will do, where rustup can fetch it
	@if rustup toolchain install --profile minimal $(OLDEST) > /dev/null 2>&1; then \
	CARGO_PROFILE_DEV_OPT_LEVEL=0 CARGO_TARGET_DIR=$(CARGO_TARGET_DIR)/oldest cargo +$(OLDEST) check --workspace --locked; \
	else echo "skipped: no Rust $(OLDEST) here, and rustup cannot fetch it"; fi

kernels: ## tries every feature on Debian's kernels from 5.10 to the newest, in virtual machines; writes the table in docs/kernels.md
	@scripts/setup demo
	@scripts/setup kernels
	@$(MAKE) --no-print-directory build
	tools/kernels/run --docs docs/kernels.md

packages: ## builds static programs, Debian packages and a feed for OpenWrt into out/packages; tools/packages/try tries them
	@scripts/setup packages
	tools/packages/build

bench: ## measures emulator, proxy, bond, controllers, equations, simulator, detector; prints tables of docs/benchmarks.md
	@scripts/setup bench
	$(CARGO) build --release --locked -p tandem -p tandem-bench
	@$(AS_ROOT) env CARGO_TARGET_DIR=$(CARGO_TARGET_DIR) scripts/bench

lint: ## format and lints, mended where they can be
	$(CARGO) fmt --all
	$(CARGO) clippy --workspace --all-targets --fix --allow-dirty --allow-staged

docs: ## the API's documentation, in target/doc
	$(CARGO) doc --workspace --no-deps --locked

reference: ## writes the pages of docs/reference, which are made of the code
	$(CARGO) run --locked -p tandem -- reference docs/reference

book: ## the documentation as a site, in out/book
	@scripts/setup book
	@scripts/book

install: build ## installs program, manual pages, completions and the services below PREFIX (default /usr/local)
	install -Dm755 $(TANDEM) $(DESTDIR)$(PREFIX)/bin/tandem
	install -d $(DESTDIR)$(PREFIX)/share/man/man1
	$(TANDEM) man $(DESTDIR)$(PREFIX)/share/man/man1
	install -d $(DESTDIR)$(PREFIX)/share/bash-completion/completions
	$(TANDEM) completions bash > $(DESTDIR)$(PREFIX)/share/bash-completion/completions/tandem
	install -Dm644 -t $(DESTDIR)$(PREFIX)/share/doc/tandem docs/operation.md docs/link-capacity.md docs/bond.md docs/cache.md
	install -Dm644 -t $(DESTDIR)$(PREFIX)/share/doc/tandem/examples packaging/capacity.conf
	install -d $(DESTDIR)/etc/systemd/system
	for unit in tandem tandem-cache tandem-controllers; do \
	sed 's|/usr/|$(PREFIX)/|g' packaging/$$unit.service > $(DESTDIR)/etc/systemd/system/$$unit.service; done
	install -d $(DESTDIR)/etc/tandem
	for file in proxy.toml cache.conf controllers.conf; do \
	[ -e $(DESTDIR)/etc/tandem/$$file ] || install -m644 packaging/$$file $(DESTDIR)/etc/tandem/$$file; done

clean: ## removes what was built
	$(CARGO) clean
	rm -rf out
