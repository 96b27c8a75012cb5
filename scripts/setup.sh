#!/usr/bin/env bash
# Installs what building and testing need on Debian or Ubuntu, and nothing that is
# there already. Quiet when all is well; run it as often as you like.
#
#   scripts/setup.sh [--demo | --packages]
#
# With --demo only what scripts/demo.sh needs; with --packages only what is there in packages, with
# what compiles: the rest takes minutes, and can come while something else is built.
set -euo pipefail

# gcc links; the rest are judges (btrfs-progs, compsize, fsverity, rsync, attr, acl, xfs_io), workloads (fio, dbench,
# sqlite3), tools of btrfs users (btrbk, btrfsmaintenance, libbtrfsutil), programs that back up, of others' disks (e2fsprogs, fdisk), shells that complete (zsh, fish) and the helper of ordinary users' mounts (fuse3). mold is
# for those who link often.
PACKAGES=(gcc libc6-dev git btrfs-progs btrfs-compsize fsverity fuse3 attr acl rsync xfsprogs sqlite3 fio dbench
    mold zsh fish stress-ng btrbk btrfsmaintenance
    python3-btrfsutil borgbackup restic e2fsprogs fdisk)
DEMO=(gcc libc6-dev ca-certificates btrfs-progs fuse3 attr)
suites=yes
case ${1:-} in
    '') ;;
    --demo) PACKAGES=("${DEMO[@]}") suites=no ;;
    --packages) suites=no ;;
    *) echo "usage: scripts/setup.sh [--demo | --packages]" >&2; exit 2 ;;
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
        # They wait for the kernel; to optimize them wholly takes longer than they run.
        if ! CARGO_PROFILE_RELEASE_OPT_LEVEL=1 CARGO_PROFILE_RELEASE_LTO=off \
            cargo install --quiet --locked --root "$root" --target-dir "$root/build" "$suite" \
            >"$log" 2>&1 </dev/null; then
            tail -n 20 "$log" >&2
            rm -f "$log"
            return 1
        fi
        rm -f "$log"
    done
}

# What scripts/check-targets.sh compiles the library for, where rustup has the compiler. Without a network
# that check is left out, and says so.
install_targets() {
    local log
    command -v rustup >/dev/null || return 0
    log=$(mktemp)
    if ! timeout 120 rustup --quiet target add x86_64-apple-darwin x86_64-unknown-freebsd >"$log" 2>&1 </dev/null; then
        echo "setup: no standard library for macOS and FreeBSD, the check for them will be skipped:" >&2
        tail -n 3 "$log" >&2
    fi
    rm -f "$log"
}

# A newer btrfs-progs than a stable Debian has: a judge that knows simple quotas. It comes from Debian
# 13, by apt with an index of its own (so signatures and sums are apt's matter), is unpacked with the
# libraries it was built with, and starts by their loader: nothing on the machine changes. Without
# it the tests that need it are skipped.
install_newer_btrfs() {
    local tools place work log
    tools=$(cd "$(dirname "$0")/.." && pwd)/target/tools
    place=$tools/btrfs-new
    [ ! -x "$tools/bin/btrfs-new" ] || return 0
    echo "setup: fetching a newer btrfs-progs into target/tools"
    work=$(mktemp -d)
    log=$work/log
    if fetch_newer_btrfs "$work" >"$log" 2>&1 </dev/null; then
        mkdir -p "$tools/bin"
        rm -rf "$place"
        mv "$work/root" "$place"
        # Everything by where the script lies: a copy of target/tools works as well.
        cat >"$tools/bin/btrfs-new" <<'EOF'
#!/bin/sh
place=$(dirname "$(readlink -f "$0")")/../btrfs-new
libraries=$(dirname "$(ls "$place"/usr/lib/*/libc.so.6)")
exec "$(ls "$libraries"/ld-linux-*.so.*)" --library-path "$libraries" "$place/usr/bin/btrfs" "$@"
EOF
        chmod 755 "$tools/bin/btrfs-new"
    else
        echo "setup: no newer btrfs-progs, tests that need it will be skipped:" >&2
        tail -n 3 "$log" >&2
    fi
    rm -rf "$work"
}

# Into $1/root.
fetch_newer_btrfs() {
    local work=$1 keys=/usr/share/keyrings/debian-archive-keyring.gpg deb
    [ -e "$keys" ] || { echo "no $keys (package debian-archive-keyring)"; return 1; }
    mkdir -p "$work"/{root,debs,cache/archives/partial,state/lists/partial}
    echo "deb [signed-by=$keys] http://deb.debian.org/debian trixie main" >"$work/sources.list"
    local apt=(apt-get -q -o Dir::Etc::SourceList="$work/sources.list" -o Dir::Etc::SourceParts=/dev/null
        -o Dir::State="$work/state" -o Dir::Cache="$work/cache" -o APT::Sandbox::User=root
        -o Acquire::Languages=none -o Acquire::Retries=2)
    "${apt[@]}" update || return 1
    (cd "$work/debs" && "${apt[@]}" download btrfs-progs libc6 libblkid1 libuuid1 libzstd1 liblzo2-2 \
        zlib1g libudev1 libcap2) || return 1
    for deb in "$work"/debs/*.deb; do
        dpkg-deb -x "$deb" "$work/root" || return 1
    done
    rm -rf "$work/root/usr/share"
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
    [ $suites = no ] || install_newer_btrfs
    [ $suites = no ] || install_targets
else
    status=1
fi
exit $status
