# bufwise: `make run` shows it, `make test` checks it. Both install what is missing (Debian 12, as root).
.DEFAULT_GOAL := help
SHELL := /bin/bash

PACKAGES := iproute2 iperf3 clang libelf-dev zlib1g-dev pkg-config
# Programs that tests run: FTP clients, strace (which makes system calls fail), chromium (for the page of `bufwise web`), and Python
# with a YAML parser (for packaging/kubernetes). scripts/install-peers adds servers. The tests of a missing program are skipped.
PEERS := aria2 chromium curl lftp ncftp python3 python3-yaml rclone strace tnftp wget
# Packages for the virtual machines that run Debian's kernels.
VM := qemu-system-x86 busybox-static binutils cpio kmod procps xz-utils zstd
# Packages that build the portable binary and the image; zig comes from PyPI, into target/.
PORTABLE := binutils debian-archive-keyring make python3-venv
CARGO ?= cargo
ARGS ?=
# Cargo's output directory.
BUILT := $(or $(CARGO_TARGET_DIR),target)
# Debian suites to test instead of all: make kernels KERNELS=bookworm
KERNELS ?=

.PHONY: help deps peers build run test kernels kernels-short lint bench fuzz mutants spelling deny msrv rustdoc docs portable \
    portable-aarch64 portable-try image

help: ## List the targets
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 18

deps: ## Install the packages that are missing
	@scripts/install-packages $(PACKAGES)

peers: ## Install the programs that are tested with
	@scripts/install-peers $(PEERS)

build: deps ## Build bufwise (target/release/bufwise)
	$(CARGO) build --release --locked

run: build ## Build and run the demo: an emulated wide-area path, stock and tuned (ARGS=--quick)
	"$(BUILT)/release/bufwise" demo $(ARGS)

test: deps peers ## Run the whole suite, tests that need root included when root
	scripts/test

kernels: deps ## Run the engine's tests on Linux 5.10, 6.1, 6.12 and the newest, and write docs/kernels.md
	@scripts/install-packages $(VM)
	@CARGO=$(CARGO) scripts/kernels $(KERNELS)

kernels-short: deps ## Run some of these tests on Linux 6.1 and the newest: load, tune, give back
	@scripts/install-packages $(VM)
	@CARGO=$(CARGO) scripts/kernels --short

.PHONY: kernels-fetch
kernels-fetch: deps ## Fetch the kernels of kernels-short, if they are not there
	@scripts/install-packages $(VM)
	@scripts/kernels --fetch

lint: deps ## Check formatting and lints, also of shell scripts
	@scripts/install-packages git shellcheck
	git grep -lE '^#!.*(bash|/sh)$$' | xargs shellcheck --severity=error
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings

bench: deps ## Measure the cost of the algorithms and of the link
	$(CARGO) bench --workspace --locked

# Programs that scripts/programs measures.
PROGRAMS := curl git nginx-light openssh-client openssh-server postgresql-15 postgresql-client-15 python3 rsync
.PHONY: programs top-cost
programs: build ## Measure nginx, rsync, PostgreSQL and git over emulated paths with and without fit (as root, half an hour)
	@scripts/install-packages $(PROGRAMS)
	scripts/programs $(ARGS) "$(BUILT)/release/bufwise"

top-cost: build ## Measure the processor time of top beside 10,000 connections (as root, three minutes; ARGS="COUNT SECONDS")
	@scripts/install-packages python3
	scripts/top-cost "$(BUILT)/release/bufwise" $(ARGS)

# Programs that scripts/scale runs.
SCALE := iperf3 iproute2 nginx-light python3 redis-server redis-tools wrk
.PHONY: scale
scale: build ## Measure what bufwise costs a busy server, up to 100,000 connections (as root, over an hour; ARGS=--quick: two minutes)
	@scripts/install-packages $(SCALE)
	scripts/scale $(ARGS) "$(BUILT)/release/bufwise"

PACKAGERS := binutils dpkg-dev lintian mandoc man-db rpm xz-utils
# The binary that is packaged: `portable`, or `release` (with this machine's libraries).
PACKAGED ?= portable
# The kernel of `make packages-test`; see scripts/vm/kernel.
SUITE ?= trixie

.PHONY: packages packages-test
packages: $(if $(filter portable,$(PACKAGED)),portable,build) ## Build the .deb, the .rpm and the tarball (target/packages)
	@scripts/install-packages $(PACKAGERS)
	scripts/packages "$(BUILT)/$(PACKAGED)/bufwise"
	scripts/check-packages

packages-test: packages ## Install, upgrade and purge the .deb in a virtual machine with systemd (SUITE=trixie)
	@scripts/install-packages cpio debian-archive-keyring kmod mmdebstrap qemu-system-x86 xz-utils zstd
	scripts/packages-test $(SUITE)

.PHONY: papers
papers: build ## Run the papers' experiments that docs/results/papers lacks, in full, and write their report (as root, six hours; ARGS="--budget 2h")
	@scripts/install-packages iperf3 iproute2 nginx-light python3
	scripts/papers "$(BUILT)/release/bufwise" docs/results/papers $(ARGS)

# The time for which clients come and go.
SOAK_MINUTES ?= 10
SOAK_HOURS ?=
.PHONY: soak hardness cross-check
soak: build ## Run daemon, serve and 1,000 clients, and fail if anything grows (as root; SOAK_MINUTES=10, SOAK_HOURS=4; target/soak)
	@scripts/install-packages iproute2 python3
	scripts/soak --minutes $(if $(SOAK_HOURS),$(shell echo $$(($(SOAK_HOURS) * 60))),$(SOAK_MINUTES)) $(ARGS) "$(BUILT)/release/bufwise"

cross-check: build ## Compare the laboratory's link emulator with rattan, which cargo installs (as root, six minutes; ARGS=--fit: fit over rattan, a quarter of an hour; target/cross-check)
	@scripts/install-packages iperf3 iproute2 python3
	[ -x target/rattan/bin/rattan ] || $(CARGO) install rattan --version 0.1.1 --locked --root target/rattan
	scripts/cross-check $(ARGS) "$(BUILT)/release/bufwise" target/rattan/bin/rattan

hardness: build ## Run the same attacks on bufwise, vsftpd, proftpd, pure-ftpd, curl and lftp (as root, half an hour; target/hardness)
	@scripts/install-packages curl iproute2 lftp python3
	-@scripts/install-ftp-servers
	scripts/hardness $(ARGS) "$(BUILT)/release/bufwise"

# Steps of each random experiment (0: 500). A seed repeats a run, CHAOS_STEP one step of it.
CHAOS_SEED ?= 1
CHAOS_RUNS ?= 0
CHAOS_STEP ?=
# One case of errno, as it is printed: "CALL ANSWER NUMBER".
CHAOS_CASE ?=
# A part of an experiment's name: kill, errno, disk, power, clock, vanish; all without it.
NAME ?=
.PHONY: chaos
chaos: deps ## Inject faults (as root; NAME=kill, CHAOS_SEED=1, CHAOS_RUNS=500) and check what must hold after each
	@scripts/install-packages strace
	umask 022 && CHAOS_SEED=$(CHAOS_SEED) CHAOS_RUNS=$(CHAOS_RUNS) CHAOS_STEP=$(CHAOS_STEP) CHAOS_CASE="$(CHAOS_CASE)" \
	    $(CARGO) test -p bufwise --locked --test chaos -- --nocapture --test-threads=1 $(NAME)

fuzz: deps ## Search for input that breaks a parser (FUZZ_SECONDS=600 for each)
	@scripts/install-packages xz-utils
	scripts/fuzz

.PHONY: sanitize
sanitize: deps ## Run unsafe code under sanitizers and Miri, and threads that share state in thousands of orders (ARGS=rules: that part)
	@scripts/install-packages gcc
	CARGO=$(CARGO) scripts/sanitize $(ARGS)

mutants: deps ## Delete or invert each clause of the rules once, and report which test notices (target/mutants.md)
	@scripts/install-packages python3
	scripts/mutants

spelling: ## Check the spelling
	@scripts/install-packages python3-venv
	scripts/install-tools
	target/tools/bin/typos

.PHONY: kubernetes kubernetes-api pictures
kubernetes: ## Check packaging/kubernetes against Kubernetes' own schema
	@scripts/install-packages python3-venv
	scripts/check-kubernetes

kubernetes-api: ## Check packaging/kubernetes by a real API server, built from its Go modules (as root; ten minutes the first time)
	scripts/check-kubernetes-api

pictures: deps ## Draw README's pictures of `top` and of the page of `web` (as root, a minute; docs/top.svg, docs/web.webp)
	@scripts/install-packages chromium iperf3
	BUFWISE_PICTURES="$(CURDIR)/docs" $(CARGO) test -p bufwise --locked --test cli -- --exact pictures::root_top_and_the_page_are_pictured

deny: ## Check licences, sources and advisories of the dependencies
	@scripts/install-packages python3-venv
	scripts/deny

msrv: deps ## Check that the oldest supported Rust builds everything
	scripts/msrv

rustdoc: deps ## Build the crates' documentation without a warning (target/doc)
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps --locked

docs: rustdoc ## Build all pages and the crates' documentation as one site, and check its links (target/book/site)
	@scripts/install-packages git python3
	CARGO=$(CARGO) scripts/docs

portable: deps ## Build target/portable/bufwise: glibc 2.28 or newer is all it needs
	@scripts/install-packages $(PORTABLE)
	scripts/portable/build

portable-try: portable ## Run the portable binary in a Debian 11 root (as root)
	@scripts/install-packages mmdebstrap
	scripts/portable/try

portable-aarch64: deps ## Build target/portable/bufwise-aarch64, for ARM servers
	@scripts/install-packages $(PORTABLE)
	scripts/portable/build aarch64

image: portable ## Build target/image/bufwise.tar, a container image (OCI)
	@scripts/install-packages buildah
	scripts/portable/image
