#!/usr/bin/env bash
# The suites of crates/suites for hours instead of seconds: fsx and the model, over both
# transports, and what of the engine's tests takes long, from new seeds each round, until the
# rounds are done or something fails.
#
# Once, before the rounds: each field of each sort of item judged by `btrfs check` and by ours
# (docs/CHECK.md), some twenty minutes.
#
#   scripts/soak.sh [ROUNDS]        default 1
#
# A round is SOAK_OPS operations of fsx (default 1000000) and SOAK_STEPS steps of the model
# (default 20000) from each of SOAK_SEEDS seeds (default 4), on each transport, and volumes
# filled with one kind of operation each for SOAK_FILL_SECONDS (default 1800), and what an
# fsync takes along after each two operations beside the kernel. SOAK_SEED sets the first seed; it
# is printed, so that a failure can be repeated. SOAK_FILL_RESULTS is a file of what has been
# filled (scripts/fill-matrix.sh): rounds and soaks with the same one go on in the same matrix.
#
# Databases want Debian's packages postgresql and rocksdb-tools, which nothing here installs.
set -euo pipefail
cd "$(dirname "$0")/.."

rounds=${1:-1}
seed=${SOAK_SEED:-$(date +%s)}

cargo build --release --quiet --package spinney-cli
SPINNEY=${SPINNEY:-${CARGO_TARGET_DIR:-target}/release/spinney}
SPINNEY=$(realpath "$SPINNEY")
export SPINNEY
export SPINNEY_SUITE_LIMIT=${SPINNEY_SUITE_LIMIT:-36000}
# Commits wait for flushes, which cost nothing in memory.
export SPINNEY_TMP=${SPINNEY_TMP:-/dev/shm/spinney-soak}
# A soak that skipped something is none.
SPINNEY_SKIPS=$(mktemp)
export SPINNEY_SKIPS
fills=$(mktemp)
trap 'rm -f "$SPINNEY_SKIPS" "$fills"*' EXIT

cargo test --release --quiet --package spinney-btrfs-check --test mutate -- whole --ignored
for round in $(seq "$rounds"); do
    echo "round $round of $rounds, seed $seed"
    FSX_OPS=${SOAK_OPS:-1000000} FSX_SEED=$seed \
        cargo test --release --quiet --package suites --test fsx -- --test-threads=1
    SPINNEY_SEED=$seed SPINNEY_STEPS=${SOAK_STEPS:-20000} SPINNEY_SEEDS=${SOAK_SEEDS:-4} \
        cargo test --release --quiet --package suites --test model -- --test-threads=1
    SPINNEY_ROUNDS=20 cargo test --release --quiet --package suites --test full -- --test-threads=1
    cargo test --release --quiet --package suites --test stress_ng -- --include-ignored --test-threads=1
    cargo test --release --quiet --package suites --test databases -- --ignored --test-threads=1
    # Of the engine itself, with its assertions.
    SPINNEY_SEED=$seed SPINNEY_FILL_SECONDS=${SOAK_FILL_SECONDS:-1800} \
        scripts/fill-matrix.sh "${SOAK_FILL_RESULTS:-$fills.$round}"
    SPINNEY_SEED=$seed cargo test --quiet --package spinney-btrfs-fs --test fill -- \
        --ignored --exact eight_threads_of_each_kind --test-threads=1
    SPINNEY_SEED=$seed SPINNEY_SEEDS=2 SPINNEY_ROUNDS=6 \
        cargo test --quiet --package spinney-btrfs-fs --test alternate --test turns
    SPINNEY_SEED=$seed SPINNEY_SEEDS=50 SPINNEY_STEPS=4000 \
        cargo test --quiet --package spinney-btrfs-fs --test race -- what_is_read_can_be
    SPINNEY_SEED=$seed SPINNEY_SECONDS=60 cargo test --quiet --package spinney-cli --test served pages::
    SPINNEY_SEED=$seed SPINNEY_SEEDS=10 SPINNEY_ROUNDS=3 SPINNEY_MILLIS=5000 \
        cargo test --quiet --package spinney-btrfs-fs --test balance_chaos
    SPINNEY_STEPS=20 SPINNEY_FITS_MIB=512 cargo test --quiet --package spinney-btrfs-fs --test enospc --test fits
    SPINNEY_LINKS=1 cargo test --quiet --package spinney-btrfs-fs --test files limits::
    SPINNEY_STATES=24 SPINNEY_OUTSIDE=8 \
        cargo test --quiet --package spinney-btrfs-fs --test kernel_relocation
    SPINNEY_SEED=$seed cargo test --quiet --package spinney-btrfs-fs --test kept
    cargo test --quiet --package spinney-btrfs-fs --test kept -- --ignored --exact all_sequences
    seed=$((seed + 1000))
done
if [ -s "$SPINNEY_SKIPS" ]; then
    echo "not soaked, skipped:" >&2
    cat "$SPINNEY_SKIPS" >&2
    exit 1
fi
echo "soaked: $rounds rounds"
