#!/usr/bin/env bash
# Installs what building and testing need on Debian or Ubuntu, and nothing that is
# there already. Quiet when all is well; run it as often as you like.
#
#   scripts/setup.sh [--demo]
#
# With --demo only what scripts/demo.sh needs.
set -euo pipefail

# gcc links; the rest are judges (btrfs-progs, compsize, rsync, attr, acl, xfs_io), workloads (fio, dbench,
# sqlite3), shells that complete (zsh, fish) and the helper of ordinary users' mounts (fuse3). mold is
# for those who link often.
PACKAGES=(gcc libc6-dev git btrfs-progs btrfs-compsize fuse3 attr acl rsync xfsprogs sqlite3 fio dbench
    mold zsh fish)
DEMO=(gcc libc6-dev ca-certificates btrfs-progs fuse3 attr)
suites=yes
case ${1:-} in
    '') ;;
    --demo) PACKAGES=("${DEMO[@]}") suites=no ;;
    *) echo "usage: scripts/setup.sh [--demo]" >&2; exit 2 ;;
esac

as_root() {
    if [ "$(id -u)" -eq 0 ]; then
        "$@"
    elif command -v sudo >/dev/null; then
        sudo "$@"
    else
        echo "setup: neither root nor sudo; cannot run: $*" >&2
        return 1
    fi
}

missing_packages() {
    local package
    for package in "${PACKAGES[@]}"; do
        if ! dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed'; then
            echo "$package"
        fi
    done
}

install_packages() {
    local missing
    if ! command -v apt-get >/dev/null; then
        echo "setup: no apt-get here; install the like of: ${PACKAGES[*]}" >&2
        return 1
    fi
    mapfile -t missing < <(missing_packages)
    [ "${#missing[@]}" -gt 0 ] || return 0
    install_now "${missing[@]}"
}

install_now() {
    local log
    echo "setup: installing $*"
    log=$(mktemp)
    if ! { as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq update &&
        as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq install -y \
            --no-install-recommends "$@"; } >"$log" 2>&1 </dev/null; then
        tail -n 20 "$log" >&2
        rm -f "$log"
        return 1
    fi
    rm -f "$log"
}

# Best effort: a container may have the devices without the right to load modules.
prepare_kernel() {
    local module uring=/sys/module/fuse/parameters/enable_uring
    for module in fuse btrfs loop; do
        [ -e "/sys/module/$module" ] || as_root modprobe -q "$module" 2>/dev/null || true
    done
    # The faster transport is off on a fresh machine, and mounting does not switch it on by
    # itself; the kernel reads this at each mount.
    if [ -e "$uring" ] && [ "$(cat "$uring")" = N ]; then
        if as_root sh -c "echo Y > $uring" 2>/dev/null; then
            echo "setup: switched on FUSE over io_uring ($uring), until the machine starts anew"
        fi
    fi
}

# Test suites from crates.io that run over mounts; without them their tests are skipped.
install_suites() {
    local root=$(dirname "$0")/../target/tools suite log
    for suite in pjdfstest@0.2.2 fsx@0.3.2; do
        if [ -x "$root/bin/${suite%@*}" ] || command -v "${suite%@*}" >/dev/null; then
            continue
        fi
        echo "setup: building $suite (some minutes)"
        log=$(mktemp)
        if ! cargo install --quiet --locked --root "$root" --target-dir "$root/build" "$suite" \
            >"$log" 2>&1 </dev/null; then
            tail -n 20 "$log" >&2
            rm -f "$log"
            return 1
        fi
        rm -f "$log"
    done
}

# rustup brings the version that rust-toolchain.toml names. Newer Debians have it.
install_rust() {
    [ ! -d "${HOME:-/root}/.cargo/bin" ] || PATH=$PATH:${HOME:-/root}/.cargo/bin
    command -v cargo >/dev/null && return 0
    if ! command -v apt-get >/dev/null || ! install_now rustup; then
        echo "setup: no cargo; install Rust with rustup (https://rustup.rs)" >&2
        return 1
    fi
}

status=0
install_packages || status=1
prepare_kernel
if install_rust; then
    [ $suites = no ] || install_suites || status=1
else
    status=1
fi
exit $status
