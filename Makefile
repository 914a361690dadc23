# The targets of Tandem: `make help` lists them.
SHELL = /bin/bash
CARGO ?= cargo
PREFIX ?= /usr/local
# Output directory of cargo.
export CARGO_TARGET_DIR ?= $(CURDIR)/target
TANDEM = $(CARGO_TARGET_DIR)/release/tandem
# Creating network namespaces needs root: other users run the tests through sudo. Without sudo,
# tests that need namespaces skip with a message.
AS_ROOT := $(shell [ "$$(id -u)" -eq 0 ] || command -v sudo)

# Programs of the test profile, used for the commands of the README and the kernel tests: a release
# build would take as long as all tests, and has no assertions and no overflow checks.
TESTED = $(CARGO_TARGET_DIR)/debug
# Test programs that need neither root nor a network (property tests and tables of the pure crates,
# fuzz targets, the source tree). `make check` runs these and the unit tests of all crates.
PURE = control detect document replay sim streams theory tree
# Seconds for which each fuzz target runs with new inputs.
export TANDEM_FUZZ_SECONDS ?= 2

.PHONY: help setup demo check lints test oldest deny readme-commands three-kernels kernels packages bench lint docs install build clean book reference papers-record papers-docs python

help: ## lists the targets
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 18

setup: ## installs what the other targets need and this machine lacks, each package with its reason
	@scripts/setup test
	@scripts/setup bench
	@scripts/setup kernels
	@scripts/setup packages

demo: ## builds Tandem, and compares transfers over an emulated satellite link with and without the proxy
	@scripts/setup demo
	@$(MAKE) --no-print-directory build
	@$(AS_ROOT) $(TANDEM) demo --page out/demo.html

build: ## builds the program, in target/release
	$(CARGO) build --release --locked

check: ## runs what every commit must pass, without root: format, lints, docs and their links, unit and property tests, import cycles
	@$(MAKE) --no-print-directory lints deny
	RUSTDOCFLAGS='-D warnings' $(CARGO) doc --workspace --no-deps --locked
	$(CARGO) test --workspace --locked --quiet --lib --bins $(PURE:%=--test %)

# Format and lints of the sources.
lints:
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings

test: ## runs every test: what `make check` does, oldest Rust, namespace tests, every command in the README, three kernels
	@scripts/setup test
	@scripts/setup kernels
	$(CARGO) fmt --all --check
	@$(MAKE) --no-print-directory deny
	@skips=$$(mktemp); \
	TANDEM_AS_ROOT='$(AS_ROOT)' TANDEM_SKIPS=$$skips scripts/test-programs --locked; status=$$?; \
	echo "skipped tests: $$(wc -l < $$skips)"; cat $$skips; rm -f $$skips; exit $$status
	@$(MAKE) --no-print-directory -j2 readme-commands three-kernels

readme-commands:
	@$(AS_ROOT) scripts/readme-commands $(TESTED)

three-kernels:
	@tools/kernels/run --short --program $(TESTED)/tandem

python: ## builds the wheel of the Python package into out/python, and tests it on each CPython from 3.10 on
	@scripts/setup python
	@scripts/python

deny: ## checks licences, duplicate crates and known vulnerabilities of the dependencies (deny.toml), where cargo-deny is installed
	@if ! cargo deny --version > /dev/null 2>&1; then \
	echo "skipped: licences and vulnerabilities: no cargo-deny here (cargo install --locked cargo-deny)"; exit; fi; \
	$(DENY) licenses bans sources || exit 1; log=$$(mktemp); $(DENY) advisories > $$log 2>&1; status=$$?; \
	if grep -q 'failed to fetch advisory database' $$log; then status=0; \
	echo "skipped: vulnerabilities: the database (github.com/RustSec/advisory-db) cannot be fetched"; else cat $$log; fi; \
	rm -f $$log; exit $$status
DENY = cargo deny --log-level error --locked --workspace check

# The minimum Rust version (rust-version in Cargo.toml). Without optimisation: it would only affect
# the C libraries, and nothing is run.
OLDEST := $(shell sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
oldest: ## checks the sources with the minimum Rust version, if rustup can install it
	@if rustup toolchain install --profile minimal $(OLDEST) > /dev/null 2>&1; then \
	CARGO_PROFILE_DEV_OPT_LEVEL=0 CARGO_TARGET_DIR=$(CARGO_TARGET_DIR)/oldest cargo +$(OLDEST) check --workspace --locked; \
	else echo "skipped: no Rust $(OLDEST) here, and rustup cannot fetch it"; fi

kernels: ## tests every feature on Debian's kernels from 5.10 to the newest, in virtual machines; writes the table in docs/kernels.md
	@scripts/setup demo
	@scripts/setup kernels
	@$(MAKE) --no-print-directory build
	tools/kernels/run --docs docs/kernels.md

packages: ## builds static programs, Debian packages and a feed for OpenWrt into out/packages; tools/packages/try tests them
	@scripts/setup packages
	tools/packages/build

bench: ## measures emulator, proxy, bond, controllers, equations, simulator, detector; ONLY=control measures one; makes docs/benchmarks.md
	@scripts/setup bench
	$(CARGO) build --release --locked -p tandem -p tandem-bench
	@$(AS_ROOT) env CARGO_TARGET_DIR=$(CARGO_TARGET_DIR) scripts/bench $(ONLY)

lint: ## fixes format and lints where possible
	$(CARGO) fmt --all
	$(CARGO) clippy --workspace --all-targets --fix --allow-dirty --allow-staged

docs: ## builds the API documentation, in target/doc
	$(CARGO) doc --workspace --no-deps --locked

reference: ## generates the pages of docs/reference from the code
	$(CARGO) run --locked -p tandem -- reference docs/reference

papers-record: build ## plays the papers' experiments and records the outcomes in papers/; ENTRY=li/fig-3 plays one, ON=lab the lab
	$(if $(filter lab,$(ON)),$(AS_ROOT)) $(TANDEM) paper $(or $(ENTRY),--all) $(if $(ON),--on $(ON)) --record papers

papers-docs: ## makes the tables of docs/papers.md and docs/papers/ of the recorded outcomes
	$(CARGO) run --locked -p tandem -- paper --render docs/papers.md $(addprefix --render ,$(wildcard docs/papers/*.md))

book: ## builds the documentation as a site, in out/book
	@scripts/setup book
	@scripts/book

install: ## installs what `make build` has built, documentation and services, below PREFIX (default /usr/local)
	@[ -x $(TANDEM) ] || { echo "$(TANDEM) is missing: build it first, as yourself: scripts/setup demo && make build" >&2; exit 1; }
	install -Dm755 $(TANDEM) $(DESTDIR)$(PREFIX)/bin/tandem
	install -d $(DESTDIR)$(PREFIX)/share/man/man1
	$(TANDEM) man $(DESTDIR)$(PREFIX)/share/man/man1
	for completion in bash:bash-completion/completions/tandem zsh:zsh/site-functions/_tandem fish:fish/vendor_completions.d/tandem.fish; do \
	file=$(DESTDIR)$(PREFIX)/share/$${completion#*:}; \
	install -d $$(dirname $$file) && $(TANDEM) completions $${completion%%:*} > $$file || exit 1; done
	install -Dm644 -t $(DESTDIR)$(PREFIX)/share/doc/tandem docs/*.md
	for part in how-to reference explanations tutorials; do \
	install -Dm644 -t $(DESTDIR)$(PREFIX)/share/doc/tandem/$$part docs/$$part/*.md || exit 1; done
	install -Dm644 -t $(DESTDIR)$(PREFIX)/share/doc/tandem/examples packaging/capacity.conf
	install -Dm644 -t $(DESTDIR)$(PREFIX)/share/tandem docs/reference/proxy.schema.json
	install -Dm644 -t $(DESTDIR)$(PREFIX)/share/tandem/grafana packaging/grafana/tandem.json
	install -Dm644 -t $(DESTDIR)$(PREFIX)/share/tandem/prometheus packaging/prometheus/tandem.rules.yml
	install -d $(DESTDIR)/etc/systemd/system
	for unit in tandem tandem-cache tandem-controllers; do \
	sed 's|/usr/|$(PREFIX)/|g' packaging/$$unit.service > $(DESTDIR)/etc/systemd/system/$$unit.service; done
	install -d $(DESTDIR)/etc/tandem
	for file in proxy.toml cache.conf controllers.conf; do \
	[ -e $(DESTDIR)/etc/tandem/$$file ] || { install -m644 packaging/$$file $(DESTDIR)/etc/tandem/$$file && \
	sed -i '1s|^#:schema /usr/|#:schema $(PREFIX)/|' $(DESTDIR)/etc/tandem/$$file; } || exit 1; done

clean: ## removes all build output
	$(CARGO) clean
	rm -rf out
