# One command each for what people do here. CI runs the same ones (.ci/run calls make test).
SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help setup demo dev examples test test-go test-ts lint fmt generate bench soak clean

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## install or build whatever is missing; does nothing twice
	@scripts/setup

demo: setup ## show an agent at work: deploy it, give it turns, kill helmr in the middle of one
	@scripts/demo

dev: setup ## leave a helmr running here with the example deployed (Ctrl-C stops it)
	@scripts/dev

examples: setup ## run the examples, each with its commands shown; make examples EXAMPLES="approval steering"
	@scripts/examples $(EXAMPLES)

test: setup ## everything that CI checks
	@scripts/test

test-go: ## the Go tests alone, on both databases; make test-go PKG=./internal/turn/...
	@scripts/test go $(PKG)

test-ts: ## the TypeScript tests alone
	@scripts/test ts

lint: ## format check, vet and linters
	@scripts/test lint

fmt: ## format the Go code
	@gofmt -w $$(git ls-files -co --exclude-standard '*.go')

generate: ## write generated code again (protocol buffers)
	@scripts/generate

bench: setup ## measure; prints a table and writes bench/results.json
	@scripts/bench

soak: setup ## the long tests: a large output, random histories, seeded kills for SOAK_MINUTES (default 30)
	@scripts/soak

clean: ## remove what setup built (Debian packages and the image store stay)
	@rm -rf build sdk/typescript/dist sdk/typescript/node_modules runtime/node/dist runtime/node/node_modules
