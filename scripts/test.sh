#!/usr/bin/env bash
# Everything that must hold before a change is taken: formatting, lints, layers, all
# tests, and the demo. The last line is `N passed, M failed, K skipped`; a gate counts
# like a test. Ends with 0 only if nothing failed.
#
#   scripts/test.sh [--no-setup] [--no-demo]
#
# TEST_TIMEOUT (seconds, default 4200) ends a test run that hangs. SPINNEY_TMP is where tests
# have their images.
set -uo pipefail
cd "$(dirname "$0")/.."

setup=yes demo=yes
for word in "$@"; do
    case $word in
        --no-setup) setup=no ;;
        --no-demo) demo=no ;;
        *) echo "usage: scripts/test.sh [--no-setup] [--no-demo]" >&2; exit 2 ;;
    esac
done

export CARGO_TERM_COLOR=never
# Images of tests are in memory if there is plenty: on a disk a third of the time is waiting for it.
room=$(df --output=avail --block-size=1G /dev/shm 2>/dev/null | tail -n 1)
programs_run=$(findmnt --noheadings --output OPTIONS /dev/shm | grep --invert-match noexec)
if [ -z "${SPINNEY_TMP:-}" ] && [ "${room:-0}" -ge 10 ] && [ -n "$programs_run" ]; then
    SPINNEY_TMP=$(mktemp -d /dev/shm/spinney-tests.XXXXXX)
    chmod 755 "$SPINNEY_TMP" # some tests are ordinary users
    export SPINNEY_TMP
    trap 'rm -rf --one-file-system "$SPINNEY_TMP"' EXIT
fi
TARGET=${CARGO_TARGET_DIR:-target}
OUT=$TARGET/ci
mkdir -p "$OUT"
OUT=$(cd "$OUT" && pwd)
LOG=$OUT/tests.log
# testkit appends a line here for each thing that this machine lacks.
export SPINNEY_SKIPS=$OUT/skips
: >"$LOG"
: >"$SPINNEY_SKIPS"
GATES=()
declare -A BESIDE=()

# gate NAME COMMAND...: runs it, shows its output only if it fails or says something to keep.
gate() {
    local name=$1 start=$SECONDS log=$OUT/$1.log
    shift
    "$@" >"$log" 2>&1 </dev/null
    judge "$name" $? "$((SECONDS - start)) s"
}

# beside NAME COMMAND...: the same beside what follows, for what has a target folder of its own (cargo
# builds in one at a time); `collect NAME` waits for it. A workspace compiles crate after crate, which
# keeps one processor busy.
beside() {
    local name=$1
    shift
    "$@" >"$OUT/$name.log" 2>&1 </dev/null &
    BESIDE[$name]=$!
}

collect() {
    wait "${BESIDE[$1]}"
    judge "$1" $? beside
}

judge() {
    if [ "$2" -eq 0 ]; then
        GATES+=(--gate-passed "$1")
        echo "ok      $1 ($3)"
    else
        GATES+=(--gate-failed "$1")
        echo "FAILED  $1 ($3):"
        tail -n 60 "$OUT/$1.log" | sed 's/^/        /'
    fi
}

run_tests() {
    if command -v cargo-nextest >/dev/null; then
        SPINNEY_BESIDE=1 cargo nextest run --workspace --no-fail-fast --success-output immediate &&
            cargo test --workspace --doc --no-fail-fast
    else
        # With the output of tests that pass: it has their SKIPPED lines.
        cargo xtask tests
        local status=$?
        cargo test --workspace --doc --no-fail-fast && return $status
    fi
}

# What others can have from the registry, as it would be sent there; the rest is for tests.
run_package() {
    local words=(--quiet --workspace --no-verify --allow-dirty)
    local left_out
    for left_out in blocksim testkit suites fuzzing spinney-bench xtask; do
        words+=(--exclude "$left_out")
    done
    # What a machine has never looked up it must ask the registry for.
    cargo package --offline "${words[@]}" || cargo package "${words[@]}"
}

# The fuzz targets, which are a workspace of their own: to compile needs no nightly compiler.
run_fuzz() {
    local words=(--quiet --locked --manifest-path fuzz/Cargo.toml --target-dir "$TARGET/fuzz")
    cargo check --offline "${words[@]}" || cargo check "${words[@]}"
}

# The proof that the kernel agrees, with the program that the tests used: to build that package alone would
# choose other features of what it stands on, and so compile half of the house again.
run_demo() {
    [ -x "$TARGET/debug/spinney" ] || cargo build --quiet --package spinney-cli || return 1
    SPINNEY=$TARGET/debug/spinney scripts/demo.sh --no-setup
    local status=$?
    if [ $status -eq 77 ]; then
        echo "scripts/demo.sh: see the reason in $OUT/demo.log" >>"$SPINNEY_SKIPS"
        return 0
    fi
    return $status
}

if [ $setup = yes ]; then
    # Not a gate: what is still missing shows up as skipped tests, each with its reason.
    scripts/setup.sh --packages || echo "setup is not complete; tests that need more will say so"
    scripts/setup.sh >"$OUT/setup.log" 2>&1 </dev/null &
    rest=$!
fi
gate fmt cargo fmt --all --check -- --color never
gate layers cargo xtask layers
gate licences cargo xtask licences
gate clippy cargo clippy --quiet --workspace --all-targets -- -D warnings
if [ $setup = yes ] && ! wait "$rest"; then
    echo "setup is not complete; tests that need more will say so:"
    tail -n 20 "$OUT/setup.log" | sed 's/^/        /'
fi
beside targets env CARGO_TARGET_DIR="$TARGET/targets" scripts/check-targets.sh
beside fuzz run_fuzz
# As it is released: without the switches that tests have, which the line above turns on.
gate released cargo xtask released
gate clippy-released cargo clippy --quiet --package spinney-cli --package spinney -- -D warnings
# What programs that embed the library read, and where they run.
gate doc env RUSTDOCFLAGS=-Dwarnings cargo doc --quiet --no-deps --workspace
collect targets
gate package run_package
collect fuzz
gate file-size cargo xtask file-size --strict
gate fn-length cargo xtask fn-length
gate lints cargo xtask lints

echo "tests (log: $LOG) ..."
start=$SECONDS
export -f run_tests
timeout --kill-after=20 "${TEST_TIMEOUT:-4200}" bash -c run_tests </dev/null 2>&1 | tee "$LOG" |
    grep -E --line-buffered '^ *(Running|Doc-tests|test result:|Summary|FAIL)|\.\.\. FAILED|^SKIPPED|panicked at|^error'
status=${PIPESTATUS[0]}
[ "$status" -eq 0 ] || echo "the test run ended with status $status"
echo "tests took $((SECONDS - start)) s"
[ $demo = no ] || gate demo run_demo

cargo xtask ci-summary --log "$LOG" --status "$status" --skips "$SPINNEY_SKIPS" "${GATES[@]}"
