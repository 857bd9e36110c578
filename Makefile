# SPDX-License-Identifier: Apache-2.0
# The front door. Each command installs the Debian packages it lacks (PACKAGES=skip leaves that out), then
# configures and builds with CMake presets and Ninja. `make help` lists them.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help build demo test test-rdma test-rdma-long test-vllm soak coverage bench bundle gpu-check format lint clean packages-build packages-test release

help:  ## list these commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: release  ## the library and the command line: build/bin/peerlane

demo: packages-build  ## move real data between two processes, and prove that every byte arrived
	@cmake --preset release --log-level=WARNING >/dev/null
	@cmake --build --preset release --target peerlane_command
	@build/bin/peerlane demo

test:  ## every check and every test (stages by name: scripts/test.sh STAGE...)
	@PACKAGES=$(PACKAGES) scripts/test.sh

test-rdma:  ## real RDMA verbs in an emulated machine, in minutes; a part of make test (docs/guest.md)
	@PACKAGES=$(PACKAGES) scripts/test.sh packages rdma

test-rdma-long:  ## the same with faults on the wire, and between two machines; up to 30 minutes
	@PACKAGES=$(PACKAGES) scripts/test.sh packages rdma-long

test-vllm: release  ## two vLLM servers whose KV cache moves through Peerlane; takes 6 GB of disk and of memory
	@scripts/test_vllm.sh

soak: packages-test  ## the long versions of the tests, about two hours (parts by name: scripts/soak.sh PART...)
	@scripts/soak.sh

coverage: packages-test  ## how much of the library the tests execute, line by line
	@scripts/test.sh coverage

bench: release  ## the library against the raw limit of this machine, in the same run
	@scripts/bench.sh

bundle: packages-build  ## build/bundle-bench and build/bundle-test: programs and tests for another machine
	@scripts/bundle.sh

gpu-check:  ## compute-sanitizer over some GPU tests, from build/bundle-test, on a machine with GPUs
	@build/bundle-test/run_gpu_check.sh

format: packages-test  ## rewrite every source in the house format
	@scripts/format.sh --fix

lint: packages-test  ## format, layers, sizes, headers alone, clang-tidy
	@scripts/test.sh format layers shape configure headers tidy

clean:  ## remove everything that was built
	rm -rf build build-*/

packages-build:
	@[ "$(PACKAGES)" = skip ] || scripts/install_packages.sh build

packages-test:
	@[ "$(PACKAGES)" = skip ] || scripts/install_packages.sh build test

release: packages-build
	@cmake --preset release --log-level=WARNING >/dev/null
	@cmake --build --preset release --target command_line
