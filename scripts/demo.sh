#!/usr/bin/env bash
# A volume, used through Spinney and then judged by others: `btrfs check`, the kernel's
# mount, a comparison of everything that one can see, scrub, and the way back.
#
#   scripts/demo.sh [--no-setup]
#
# Installs what is missing (Debian, Ubuntu) unless told not to, and builds the release unless
# SPINNEY names a program. Ends with 0 if everybody agrees, 1 if somebody does not, 77 if this
# machine cannot tell (no FUSE, no btrfs, not root).
set -euo pipefail
cd "$(dirname "$0")/.."
ROOT=$PWD
# Where other users than root have mkfs.btrfs, and where rustup puts cargo.
PATH=$PATH:/usr/sbin:/sbin:${HOME:-/root}/.cargo/bin
PROGRAMS=(mkfs.btrfs btrfs setfattr getfattr)

say() { printf '\n== %s\n' "$*"; }
note() { printf '   %s\n' "$*"; }
fail() { printf '\nFAILED: %s\n' "$*" >&2; exit 1; }
skip() { echo "SKIPPED: $*"; exit 77; }

# Where did it fail: better than a silent end of `set -e`.
trap 'echo "FAILED: line $LINENO: $BASH_COMMAND" >&2' ERR

missing() {
    local program
    for program in "$@"; do
        command -v "$program" >/dev/null || { echo "$program"; return; }
    done
}

prepare() {
    local needed=("${PROGRAMS[@]}")
    [ -n "${SPINNEY:-}" ] || needed+=(cargo cc)
    if [ -n "$(missing "${needed[@]}")" ]; then
        say "Installing what the demo needs"
        scripts/setup.sh --demo || note "not everything could be installed"
    fi
}

become_root() {
    # The kernel mounts as root only. The build is done: it belongs to who called.
    if [ "$(id -u)" -ne 0 ]; then
        command -v sudo >/dev/null || skip "the kernel's part needs root, and there is no sudo"
        exec sudo SPINNEY="$SPINNEY" scripts/demo.sh --no-setup
    fi
}

check_machine() {
    local program
    program=$(missing "${PROGRAMS[@]}")
    [ -z "$program" ] || skip "$program is missing; run scripts/setup.sh"
    modprobe -q fuse 2>/dev/null || true
    modprobe -q btrfs 2>/dev/null || true
    [ -e /dev/fuse ] || skip "no /dev/fuse"
    grep -qw btrfs /proc/filesystems || skip "this kernel has no btrfs, so it cannot judge"
    [ -e /dev/loop-control ] || skip "no loop devices for the kernel's mount"
}

build() {
    if [ -n "${SPINNEY:-}" ]; then
        SPINNEY=$(realpath "$SPINNEY")
    else
        command -v cargo >/dev/null || fail "no cargo; install Rust with rustup (https://rustup.rs)"
        say "Building the release (the first time takes a few minutes)"
        cargo build --quiet --release --package spinney-cli
        SPINNEY=$(realpath "${CARGO_TARGET_DIR:-target}/release/spinney")
    fi
    [ -x "$SPINNEY" ] || fail "no program $SPINNEY"
}

case ${1:-} in
    '') prepare ;;
    --no-setup) ;;
    *) echo "usage: scripts/demo.sh [--no-setup]" >&2; exit 2 ;;
esac
build
become_root
check_machine

WORK=$(mktemp -d "${TMPDIR:-/tmp}/spinney-demo.XXXXXX")
IMAGE=$WORK/volume.img
MNT=$WORK/mnt
mkdir "$MNT"
MOUNTED=

cleanup() {
    local status=$?
    trap - ERR EXIT
    cd /
    case $MOUNTED in
        spinney) timeout 60 "$SPINNEY" umount "$MNT" || umount -l "$MNT" || true ;;
        kernel) umount "$MNT" || umount -l "$MNT" || true ;;
    esac
    if mountpoint -q "$MNT"; then
        echo "left mounted, look at $WORK" >&2
    else
        rm -rf "$WORK"
    fi
    exit $status
}
trap cleanup EXIT
trap 'exit 130' INT TERM

spinney_mount() { timeout 60 "$SPINNEY" mount "$IMAGE" "$MNT" >"$WORK/mount.log"; MOUNTED=spinney; }
spinney_umount() { timeout 120 "$SPINNEY" umount "$MNT"; MOUNTED=; }
kernel_mount() { mount -o "loop,noatime${1:+,$1}" "$IMAGE" "$MNT"; MOUNTED=kernel; }
kernel_umount() { umount "$MNT"; MOUNTED=; }

# Everything one can see of a tree: type, mode, links, owner, size, time of change, link
# target, extended attributes and content of every file. One line per fact, sorted.
manifest() {
    (
        cd "$1"
        find . -mindepth 1 -printf 'node %P %y %m %n %U:%G %s %T@ %l\n'
        find . -type f -print0 | xargs -0 -r sha256sum | sed 's/^/data /'
        getfattr --recursive --physical --dump --match=- --encoding=hex . 2>/dev/null |
            awk '/^# file: /{file=$0; next} NF {print "xattr " file " " $0}'
    ) | LC_ALL=C sort
}

# check_volume: the official checker, every checksum of data included.
check_volume() {
    btrfs check --check-data-csum "$IMAGE" >"$WORK/check.log" 2>&1 || {
        cat "$WORK/check.log" >&2
        fail "btrfs check found errors"
    }
    ! grep -qiE '^(error|warning)' "$WORK/check.log" || {
        cat "$WORK/check.log" >&2
        fail "btrfs check has complaints"
    }
    note "btrfs check: no error found"
}

use_it() {
    cd "$MNT"
    echo "hello from userspace" >hello.txt
    mkdir -p a/b/c
    printf 'one\n' >a/one; printf 'two\n' >a/two
    note "a tree copy: the sources of this repository"
    mkdir sources
    tar -C "$ROOT" -cf - --exclude=target crates bench scripts README.md | tar -C sources -xf -
    note "$(find sources -type f | wc -l) files, $(du -sh --apparent-size sources | cut -f1)"
    note "a 64 MiB file, overwritten in places, with an fsync"
    dd if=/dev/urandom of=large.bin bs=1M count=64 conv=fsync status=none
    dd if=/dev/zero of=large.bin bs=4k count=100 seek=777 conv=notrunc,fsync status=none
    note "a sparse file, appends, a truncation"
    truncate -s 1G sparse.bin
    printf 'in the middle' | dd of=sparse.bin bs=1 seek=500000000 conv=notrunc status=none
    for i in $(seq 200); do echo "line $i" >>log.txt; done
    cp large.bin cut.bin; truncate -s 1000001 cut.bin
    note "renames, also over an existing name and across directories; links; attributes"
    mv a/one a/b/c/moved
    mv a/two hello.txt
    mv sources/scripts a/scripts
    ln large.bin hard-link.bin
    ln -s a/b/c/moved symbolic-link
    mkfifo pipe
    chmod 4750 log.txt; chown 1000:1001 cut.bin
    touch -d '2001-02-03 04:05:06.789' a/b
    setfattr -n user.origin -v "the demo" log.txt
    setfattr -n user.big -v "$(head -c 3000 /dev/zero | tr '\0' x)" a
    note "3,000 small files made, 2,000 of them removed"
    mkdir many
    for i in $(seq 3000); do echo "$i" >"many/$i"; done
    for i in $(seq 2000); do echo "many/$i"; done | xargs rm
    rm -rf sources/crates/vfs
    sync
    cd "$ROOT"
}

say "A new 2 GiB volume by mkfs.btrfs"
truncate -s 2G "$IMAGE"
mkfs.btrfs -q -L demo "$IMAGE" >"$WORK/mkfs.log" 2>&1 || { cat "$WORK/mkfs.log" >&2; fail "mkfs.btrfs"; }

say "Mounted by Spinney ($("$SPINNEY" --version 2>/dev/null | head -n 1 || true)) and used"
spinney_mount
use_it
manifest "$MNT" >"$WORK/ours"
note "$(grep -c ^node "$WORK/ours") names, $(grep -c ^xattr "$WORK/ours") extended attributes"
spinney_umount

say "Judged by btrfs-progs ($(btrfs --version | head -n 1))"
check_volume

say "Mounted again by Spinney: is everything still there?"
spinney_mount
manifest "$MNT" >"$WORK/again"
spinney_umount
diff -u "$WORK/ours" "$WORK/again" >"$WORK/diff" || {
    head -n 20 "$WORK/diff" >&2
    fail "after a remount Spinney sees something else than before"
}
note "yes: $(wc -l <"$WORK/ours") facts are the same"

say "Mounted by the kernel (Linux $(uname -r))"
kernel_mount
manifest "$MNT" >"$WORK/kernels"
diff -u "$WORK/ours" "$WORK/kernels" >"$WORK/diff" || {
    head -n 20 "$WORK/diff" >&2
    fail "the kernel sees something else than Spinney"
}
note "all $(wc -l <"$WORK/ours") facts agree: types, modes, owners, sizes, times, attributes, content"
btrfs scrub start -B "$MNT" >"$WORK/scrub.log" 2>&1 || { cat "$WORK/scrub.log" >&2; fail "scrub"; }
grep -q 'no errors found' "$WORK/scrub.log" || { cat "$WORK/scrub.log" >&2; fail "scrub"; }
note "scrub: every checksum verified, no errors found"

say "The way back: the kernel writes, Spinney reads"
cp -a "$MNT/a" "$MNT/written-by-the-kernel"
mv "$MNT/many" "$MNT/renamed-by-the-kernel"
rm "$MNT/cut.bin"
dd if=/dev/urandom of="$MNT/kernel.bin" bs=1M count=16 status=none
manifest "$MNT" >"$WORK/kernels"
kernel_umount
spinney_mount
manifest "$MNT" >"$WORK/ours"
diff -u "$WORK/kernels" "$WORK/ours" >"$WORK/diff" || {
    head -n 20 "$WORK/diff" >&2
    fail "Spinney sees something else than the kernel wrote"
}
echo "and written again" >"$MNT/hello.txt"
spinney_umount
check_volume
note "all $(wc -l <"$WORK/ours") facts agree"

say "Snapshots, compressed, and the difference sent to a second volume"
BACKUP=$WORK/backup.img
truncate -s 2G "$BACKUP"
mkfs.btrfs -q -L backup "$BACKUP" >"$WORK/mkfs.log" 2>&1 || { cat "$WORK/mkfs.log" >&2; fail "mkfs.btrfs"; }
timeout 60 "$SPINNEY" mount -o compress=zstd "$IMAGE" "$MNT" >"$WORK/mount.log"; MOUNTED=spinney
"$SPINNEY" subvolume create "$MNT/home" >/dev/null
tar -C "$ROOT" -cf - --exclude=target crates scripts README.md | tar -C "$MNT/home" -xf -
"$SPINNEY" subvolume snapshot -r "$MNT/home" "$MNT/monday" >/dev/null
mv "$MNT/home/crates/cli" "$MNT/home/cli"
rm -rf "$MNT/home/crates/fuse"
echo changed >>"$MNT/home/README.md"
cp --reflink=auto "$MNT/home/README.md" "$MNT/home/copy"
"$SPINNEY" subvolume snapshot -r "$MNT/home" "$MNT/tuesday" >/dev/null
"$SPINNEY" send -q "$MNT/monday" | "$SPINNEY" receive -q "$BACKUP:/"
spinney_umount
"$SPINNEY" send -q -p "$IMAGE:/monday" -f "$WORK/difference" "$IMAGE:/tuesday"
"$SPINNEY" receive -q -f "$WORK/difference" "$BACKUP:/"
note "the difference is $(stat -c %s "$WORK/difference") bytes of $(du -sb --apparent-size "$ROOT/crates" | cut -f1)"
for day in monday tuesday; do
    IMAGE=$WORK/volume.img; kernel_mount ro; manifest "$MNT/$day" >"$WORK/sent"; kernel_umount
    IMAGE=$BACKUP; kernel_mount ro; manifest "$MNT/$day" >"$WORK/received"; kernel_umount
    diff -u "$WORK/sent" "$WORK/received" >"$WORK/diff" || {
        head -n 20 "$WORK/diff" >&2
        fail "the kernel sees something else in the backup of $day"
    }
    note "$day: the kernel sees the same $(wc -l <"$WORK/sent") facts in both"
done
for IMAGE in "$WORK/volume.img" "$BACKUP"; do check_volume; done

say "The kernel, btrfs check and Spinney agree."
