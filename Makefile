# accel: everything a person types to build, test and package it.
# Works as root without sudo, and without root where nothing is missing.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.NOTPARALLEL:
MAKEFLAGS += --no-print-directory

export PATH := $(shell packaging/deps.sh path)
export GOTOOLCHAIN := auto
export CGO_ENABLED := 0
ifeq ($(HOME),)
export HOME := $(shell getent passwd $$(id -u) | cut -d: -f6)
endif

# The changelog's newest entry is the one source of the version and of the time
# stamped on everything in a package.
VERSION := $(shell sed -n '1s/.*(\(.*\)).*/\1/p' packaging/changelog)
export SOURCE_DATE_EPOCH := $(shell date +%s -d "$$(sed -n 's/^ -- .*>  //p' packaging/changelog | head -n 1)")
ARCHES := amd64 arm64
HOST_ARCH := $(shell dpkg --print-architecture)
TOOL := go tool -modfile=packaging/tools/go.mod
# accel writes its man page itself, so the library's generator stays out.
BUILD := go build -tags urfave_cli_no_docs -trimpath -buildvcs=false -ldflags "-s -w -X main.version=$(VERSION)"
# Packages whose tests are groups of their own below.
OTHERS := '^accel/(packaging|test)(/|$$)'

.PHONY: help run test test-long build deb deb-host bench bench-path bench-boost clean
help:
	@echo 'make run        build the package, install it here, accel enable bbr, accel status'
	@echo 'make test       every test, the long ones in a short form'
	@echo 'make test-long  every test in full'
	@echo 'make build      dist/linux_ARCH/accel for this machine'
	@echo 'make deb        dist/accel_$(VERSION)_ARCH.deb for $(ARCHES)'
	@echo 'make bench      speed and size on this machine, beside sysctl and tuned'
	@echo 'make bench-path compare algorithms over emulated paths, for an hour; results in docs/results'
	@echo 'make bench-boost compare the profile boost with others, for some hours; likewise'
	@echo 'make clean      remove dist/'

run:
	packaging/deps.sh build
	$(MAKE) deb-host
	DEBIAN_FRONTEND=noninteractive apt-get install -q -y --reinstall --allow-downgrades -o Dpkg::Use-Pty=0 \
		-o APT::Sandbox::User=root -o DPkg::Lock::Timeout=300 \
		./dist/accel_$(VERSION)_$(HOST_ARCH).deb </dev/null
	accel enable bbr
	accel status

build:
	packaging/deps.sh build
	$(MAKE) dist/linux_$(HOST_ARCH)/accel

deb:
	packaging/deps.sh build
	$(MAKE) $(ARCHES:%=deb-%)

deb-host:
	$(MAKE) deb-$(HOST_ARCH)

# Go's build cache knows better than make what has changed.
.PHONY: dist/linux_amd64/accel dist/linux_arm64/accel
dist/linux_amd64/accel dist/linux_arm64/accel: dist/linux_%/accel:
	GOOS=linux GOARCH=$* $(BUILD) $(BUILDFLAGS) -o $@ ./cmd/accel

# The program writes its own man page and completions, in English wherever it
# is built.
.PHONY: generated
generated: dist/linux_$(HOST_ARCH)/accel
	mkdir -p dist/generated
	for what in man bash zsh; do env -i LC_ALL=C $< gen $$what >dist/generated/$$what; done
	cd dist/generated && mv bash accel.bash && mv zsh _accel
	gzip -9n <dist/generated/man >dist/generated/accel.8.gz
	gzip -9n <packaging/changelog >dist/generated/changelog.gz

.PHONY: deb-amd64 deb-arm64
deb-amd64 deb-arm64: deb-%: dist/linux_%/accel generated
	ARCH=$* VERSION=$(VERSION) $(TOOL) nfpm package -f packaging/nfpm.yaml -p deb \
		-t dist/accel_$(VERSION)_$*.deb

test test-long:
	ACCEL_LONG=$(if $(filter test-long,$@),1) packaging/deps.sh test
	$(MAKE) test-style test-unit test-race test-fuzz test-package test-system \
		ACCEL_LONG=$(if $(filter test-long,$@),1)

# The groups of `make test`, each of use alone. ACCEL_LONG=1 asks for the full
# counts; tests read it from the environment.
export ACCEL_LONG
FUZZ = $(if $(ACCEL_LONG),1000000,20000)
HEADING = printf '\n==== %s\n'

.PHONY: test-style test-unit test-race test-fuzz test-package test-system
test-style:
	@$(HEADING) 'style: gofmt, vet, staticcheck'
	unformatted=$$("$$(go env GOROOT)/bin/gofmt" -l $$(find . -name '*.go' -not -path './dist/*')); \
	if [[ -n $$unformatted ]]; then printf 'not formatted:\n%s\n' "$$unformatted"; exit 1; fi
	go vet ./...
	$(TOOL) staticcheck ./...

test-unit:
	@$(HEADING) 'unit: tables, properties, fake hosts'
	go test -timeout 30m $$(go list ./... | grep -vE $(OTHERS))

# Where goroutines meet; elsewhere there are none worth the time.
test-race:
	@$(HEADING) 'race detector'
	CGO_ENABLED=1 go test -race $$(go list ./pkg/agent ./pkg/probe ./pkg/socket)

test-fuzz:
	@$(HEADING) 'fuzzing, $(FUZZ) inputs a target'
	test/fuzz.sh $(FUZZ)

test-package:
	@$(HEADING) 'the package'
	go test -v -count=1 -timeout 30m ./packaging

test-system:
	@$(HEADING) 'command line, namespaces, virtual machines'
	go test -count=1 ./test/cli ./test/house
	go test -v -count=1 -p 1 -timeout $(if $(ACCEL_LONG),12h,60m) $$(go list ./test/... | grep -vE '/(cli|house)$$')

bench:
	packaging/deps.sh bench
	$(MAKE) deb-host
	go run ./test/bench -accel dist/linux_$(HOST_ARCH)/accel -deb dist/accel_$(VERSION)_$(HOST_ARCH).deb
	@$(HEADING) 'the sender of compare beside iperf3, processor time over loopback'
	go test ./pkg/lab -run '^$$' -bench Sender -benchtime 1x

bench-path:
	packaging/deps.sh test
	go run ./test/lab/bench path

bench-boost:
	packaging/deps.sh test
	go run ./test/lab/bench boost
	go run ./test/lab/bench -summary

clean:
	rm -rf dist
