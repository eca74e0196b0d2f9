#!/bin/bash
# Installs what `make` needs and this Debian machine lacks.
#
#   deps.sh path          print PATH with a usable Go in front
#   deps.sh build         Go and what it downloads with
#   deps.sh test          also what the tests run; with ACCEL_LONG=1 the long ones
#   deps.sh bench         also what the benchmark runs
#
# Everything comes from the machine's own Debian source. It installs nothing
# when nothing is missing, and needs no root then.
set -euo pipefail

build_packages=(ca-certificates)
test_packages=(
	# style, race detector, package
	gcc libc6-dev lintian man-db mandoc shellcheck systemd zsh
	# namespaces and virtual machines: go run ./test/vm/cmd/vm packages
	debian-archive-keyring e2fsprogs gpg gpg-agent gpgconf iproute2 kmod mmdebstrap
	ovmf procps
)
# In qemu 7.2 every second boot of Linux 6.12 ends in an oops.
qemu_packages=(
	qemu-system-arm qemu-system-x86 qemu-utils
)
qemu_least=1:10
# What only the long tests run: the report opened in a browser.
if [[ -n ${ACCEL_LONG:-} ]]; then
	test_packages+=(chromium)
fi
bench_packages=(iperf3 procps)

# usable GO: Go 1.21 and later fetch the toolchain that go.mod asks for.
usable() {
	local version
	version=$(GOTOOLCHAIN=local "$1" version 2>/dev/null) || return 1
	[[ $version =~ go1\.([0-9]+) ]] && ((BASH_REMATCH[1] >= 21))
}

# find_go prints the first usable Go; nothing if there is none.
find_go() {
	local go
	for go in "$(type -P go)" /usr/local/go/bin/go /usr/bin/go; do
		if [[ -n $go ]] && usable "$go"; then
			echo "$go"
			return
		fi
	done
}

# apt_get ARGUMENT...: apt-get that never asks and waits for another one to finish.
apt_get() {
	DEBIAN_FRONTEND=noninteractive apt-get -q -y -o Dpkg::Use-Pty=0 \
		-o DPkg::Lock::Timeout=300 -o Acquire::Retries=3 "$@" </dev/null
}

need_root() {
	if ((EUID != 0)); then
		echo "Missing on this machine: $*. Install that, or run make as root." >&2
		exit 1
	fi
	if ! type -P apt-get >/dev/null; then
		echo "Missing on this machine, which has no apt: $*." >&2
		exit 1
	fi
}

updated=
update() {
	[[ -n $updated ]] && return
	# A dead third-party source must not stop this; a missing package will.
	apt_get update || echo "apt-get update failed in part; going on." >&2
	updated=1
}

# install_missing PACKAGE...: those that are missing.
install_missing() {
	local name missing=()
	for name; do
		if [[ $(dpkg-query -W -f '${db:Status-Status}' "$name" 2>/dev/null) != installed ]]; then
			missing+=("$name")
		fi
	done
	((${#missing[@]} == 0)) && return
	need_root "${missing[@]}"
	update
	apt_get install --no-install-recommends "${missing[@]}"
}

# candidate PACKAGE: the version that the machine's own sources have.
candidate() {
	LC_ALL=C apt-cache policy "$1" | awk '$1 == "Candidate:" {print $2}'
}

# install_go: Debian's own Go, from backports where that of the release is too
# old.
install_go() {
	[[ -n $(find_go) ]] && return
	need_root golang-go
	update
	if dpkg --compare-versions "$(candidate golang-go)" ge 2:1.21; then
		apt_get install --no-install-recommends golang-go
	else
		install_from_backports golang-go
	fi
	if [[ -z $(find_go) ]]; then
		echo "No Go 1.21 or later: neither here nor in Debian's sources." >&2
		exit 1
	fi
}

# install_qemu: the same for the emulators.
install_qemu() {
	local name version missing=()
	for name in "${qemu_packages[@]}"; do
		# shellcheck disable=SC2016 # dpkg-query expands it
		version=$(dpkg-query -W -f '${db:Status-Status} ${Version}' "$name" 2>/dev/null) || true
		if [[ $version != installed\ * ]] || dpkg --compare-versions "${version#* }" lt "$qemu_least"; then
			missing+=("$name")
		fi
	done
	((${#missing[@]} == 0)) && return
	need_root "${missing[@]}"
	update
	if dpkg --compare-versions "$(candidate qemu-system-x86)" ge "$qemu_least"; then
		apt_get install --no-install-recommends "${qemu_packages[@]}"
	else
		install_from_backports "${qemu_packages[@]}"
	fi
}

# install_from_backports PACKAGE...: backports are added for this one command,
# from the mirror the machine uses; its sources stay as they are.
install_from_backports() {
	local codename mirror signed='' dir part
	# shellcheck disable=SC1091 # the machine's own
	codename=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
	# shellcheck disable=SC2016 # apt expands it
	mirror=$(apt-get indextargets --format '$(REPO_URI)' \
		"Created-By: Packages" "Origin: Debian" "Codename: $codename" | head -n 1)
	if [[ -z $codename || -z $mirror ]]; then
		echo "No Debian source for this release is configured, so no backports either." >&2
		exit 1
	fi
	if [[ -e /usr/share/keyrings/debian-archive-keyring.gpg ]]; then
		signed='[signed-by=/usr/share/keyrings/debian-archive-keyring.gpg]'
	fi

	dir=$(mktemp -d)
	# shellcheck disable=SC2064 # the directory of now
	trap "rm -rf '$dir'" EXIT
	chmod 755 "$dir"
	mkdir "$dir/parts"
	for part in /etc/apt/sources.list.d/*; do
		[[ -e $part ]] && ln -s "$part" "$dir/parts/"
	done
	echo "deb $signed $mirror $codename-backports main" >"$dir/parts/accel-backports.list"

	apt_get update -o Dir::Etc::SourceList="$dir/parts/accel-backports.list" \
		-o Dir::Etc::SourceParts=/dev/null -o APT::Get::List-Cleanup=0
	apt_get install --no-install-recommends -o Dir::Etc::SourceParts="$dir/parts" \
		-t "$codename-backports" "$@"
	rm -r "$dir"
}

case "${1:-}" in
path)
	go=$(find_go)
	echo "$(dirname "${go:-/usr/bin/go}"):$PATH"
	;;
build)
	install_missing "${build_packages[@]}"
	install_go
	;;
test)
	install_missing "${build_packages[@]}" "${test_packages[@]}"
	install_qemu
	install_go
	;;
bench)
	install_missing "${build_packages[@]}" "${bench_packages[@]}"
	install_go
	;;
*)
	echo "usage: deps.sh path|build|test|bench" >&2
	exit 2
	;;
esac
