#!/usr/bin/env bash
# All kinds of operations fill volumes of all shapes (crates/btrfs-fs/tests/fill.rs, `everything`):
# optimized, and with the engine's assertions.
#
#   scripts/fill-matrix.sh RESULTS
#
# RESULTS gets a line for each combination. What has passed in it is not run again, so that the
# command goes on where another one ended; a failed one is run again.
#
# SPINNEY_FILL=KIND:SHAPE asks for some alone (`*` for any, several with commas),
# SPINNEY_FILL_SECONDS ends it, SPINNEY_SEED makes the order and the steps.
set -euo pipefail
SPINNEY_FILL_RESULTS=$(realpath "$1")
export SPINNEY_FILL_RESULTS
cd "$(dirname "$0")/.."
# Commits wait for flushes, which cost nothing in memory.
export SPINNEY_TMP=${SPINNEY_TMP:-/dev/shm/spinney-fill}
mkdir -p "$SPINNEY_TMP"

export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-target}/asserted
export CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS=true CARGO_PROFILE_RELEASE_OVERFLOW_CHECKS=true
export CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16
cargo test --release --quiet --package spinney-btrfs-fs --test fill -- \
    --ignored --exact everything --nocapture
