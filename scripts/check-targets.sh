#!/usr/bin/env bash
# Whether the library compiles for systems other than this one, as far as `cargo check` can
# tell: macOS and FreeBSD. Targets that are not installed are left out, and said:
# `rustup target add TARGET` brings them. Nothing is linked, so the C parts of dependencies
# (zstd) are not compiled: a program that makes empty files stands in for the C compiler.
#
#   scripts/check-targets.sh [TARGET...]
#
# SPINNEY_SKIPS (a file) gets a line for each target that was left out.
set -euo pipefail
cd "$(dirname "$0")/.."

targets=("$@")
[ ${#targets[@]} -gt 0 ] || targets=(x86_64-apple-darwin x86_64-unknown-freebsd)
packages=(--package spinney-vfs --package spinney-blockdev --package spinney-btrfs-image --package spinney-btrfs-check
    --package spinney-btrfs-space --package spinney)

stub=$(mktemp -d)
trap 'rm -rf "$stub"' EXIT
cat >"$stub/cc" <<'CC'
#!/bin/sh
while [ $# -gt 0 ]; do
    if [ "$1" = -o ]; then : >"$2"; fi
    shift
done
CC
cat >"$stub/ar" <<'AR'
#!/bin/sh
for word; do case $word in *.a) : >"$word" ;; esac; done
AR
chmod +x "$stub/cc" "$stub/ar"

installed=$(rustc --print sysroot)/lib/rustlib
there=()
for target in "${targets[@]}"; do
    if [ ! -d "$installed/$target/lib" ]; then
        echo "SKIPPED: $target is not installed"
        [ -z "${SPINNEY_SKIPS:-}" ] || echo "check for $target: rustup target add $target" >>"$SPINNEY_SKIPS"
        continue
    fi
    name=${target//-/_}
    export "CC_$name=$stub/cc" "AR_$name=$stub/ar"
    there+=(--target "$target")
done
[ ${#there[@]} -gt 0 ] || exit 0
# One after the other they would leave a processor idle: a crate waits for those below it.
cargo check --quiet "${packages[@]}" "${there[@]}"
echo "ok: ${there[*]}"
