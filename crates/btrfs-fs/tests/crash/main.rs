//! Crash images of a simulated device: whatever was synced is there with its content, nothing
//! is there that never was, and the volume is sound.
//!
//! `SPINNEY_CRASH=<name>` with the test `one_case` runs one workload again; `soak` is the long
//! run (docs/TESTING.md).

#[path = "../common/mod.rs"]
mod common;
#[path = "../harness/mod.rs"]
mod harness;

mod ace;
mod broken;
mod durable_writes;
mod inside;
mod kernel_logs;
mod named;
mod random;
mod regrown;
mod removed;
mod rig;
mod shared;
mod told;

use blocksim::Lie;
use btrfs_fs::Defect;
use harness::{base, hold, ops, outside, state};
use named::NAMED;
use rig::{Broken, Case, Effort, Rig, case};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// For CI: few states of each flush, a few dozen for the outside judges.
const BRIEF: Effort = Effort { per_flush: 3, outside: 100, again: 20, empty: 10 };

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

fn start_seed() -> u64 {
    let seed = number("SPINNEY_SEED", 1);
    println!("SPINNEY_SEED={seed}");
    seed
}

fn run_all(rig: &Rig, cases: impl Iterator<Item = Case>) {
    if let Some(why) = outside::lacking() {
        testkit::oracle::record_skip("crash states before the outside judges", why);
    }
    for case in cases {
        if let Err(why) = rig.run(&case) {
            panic!("{why}");
        }
    }
    println!("{}", rig.tally);
}

fn named(number: usize) -> Case {
    case(format!("named:{number}"), NAMED[number].1())
}

#[test]
fn known_bugs_of_fsync() {
    let rig = Rig::new(Effort { per_flush: 4, ..BRIEF });
    let cases = (0..NAMED.len()).map(|number| {
        let case = named(number);
        assert!(rig::all_succeed(&case.threads[0]), "{}: an operation fails", NAMED[number].0);
        case
    });
    for case in cases {
        if let Err(why) = rig.run(&case) {
            let number: usize = case.name[6..].parse().unwrap_or(0);
            panic!("\"{}\": {why}", NAMED[number].0);
        }
    }
    println!("{}", rig.tally);
}

/// The log must say one length of an extent, whoever was logged when: both replays judge
/// each state.
#[test]
fn extents_that_would_grow_under_the_log() {
    let rig = Rig::new(Effort { per_flush: 3, outside: 6, ..BRIEF });
    let grow = (0..NAMED.len()).filter(|number| NAMED[*number].0.contains("grows and is "));
    run_all(&rig, grow.map(named));
    assert_eq!(rig.tally.cases.load(Ordering::Relaxed), 3);
}

/// The log must say that nothing is where something was: both replays judge each state.
#[test]
fn holes_over_what_the_commit_has() {
    let rig = Rig::new(Effort { per_flush: 3, outside: 2, ..BRIEF });
    let over = (0..NAMED.len()).filter(|number| NAMED[*number].0.contains("hole over old"));
    run_all(&rig, over.map(named));
    assert_eq!(rig.tally.cases.load(Ordering::Relaxed), 3);
}

#[test]
fn one_operation() {
    let rig = Rig::new(Effort { per_flush: 4, ..BRIEF });
    run_all(&rig, ace::all(1));
    let count = |counter: &AtomicUsize| counter.load(Ordering::Relaxed);
    let (states, logs) = (count(&rig.tally.states), count(&rig.tally.logs));
    assert!(states >= 2000 && logs * 5 > states, "this shows little: {}", rig.tally);
}

#[test]
fn two_and_three_operations() {
    let rig = Rig::new(BRIEF);
    let seed = start_seed();
    run_all(&rig, ace::sample(2, seed).take(40));
    run_all(&rig, ace::sample(3, seed).take(25));
}

#[test]
fn removed_directories() {
    let rig = Rig::new(Effort { outside: number("SPINNEY_OUTSIDE", 50), ..BRIEF });
    run_all(&rig, removed_cases(start_seed()).take(number("SPINNEY_REMOVED", 40) as usize));
}

#[test]
fn files_that_are_cut_and_grow_again() {
    let rig = Rig::new(Effort { outside: number("SPINNEY_OUTSIDE", 50), ..BRIEF });
    run_all(&rig, regrown_cases(start_seed()).take(number("SPINNEY_REGROWN", 60) as usize));
}

/// Each third one with commits held.
fn regrown_cases(seed: u64) -> impl Iterator<Item = Case> + Send {
    regrown::sample(seed).zip(seed..).filter_map(|(case, number)| match number % 3 {
        0 => inside::around(case, number),
        _ => Some(case),
    })
}

/// Each third one with commits held.
fn removed_cases(seed: u64) -> impl Iterator<Item = Case> + Send {
    removed::sample(seed).zip(seed..).filter_map(|(case, number)| match number % 3 {
        0 => inside::around(case, number),
        _ => Some(case),
    })
}

#[test]
fn long_random_workloads() {
    let rig = Rig::new(BRIEF);
    let seed = start_seed();
    run_all(&rig, (seed..seed + 2).map(|seed| random::single(seed, 300)));
}

#[test]
fn several_threads() {
    let rig = Rig::new(BRIEF);
    let seed = start_seed();
    run_all(&rig, (seed..seed + 2).map(|seed| random::threads(seed, 80)));
}

/// Also while commits are held: what is told must be in neither of two deltas nor in their logs.
#[test]
fn content_that_no_commit_ever_had_is_told() {
    let rig = Rig::new(BRIEF);
    // A case around another has a seed of its own.
    let inside = (0..16).filter_map(|seed| inside::around(told::case(seed % 2), seed));
    run_all(&rig, (0..2).map(told::case).chain(inside.filter(|case| case.seed & 2 != 0)));
}

/// Parts of other workloads while a commit is held between its seal and its end.
#[test]
fn inside_a_commit() {
    let rig = Rig::new(BRIEF);
    run_all(&rig, inside_cases(start_seed(), 20));
    assert!(rig.tally.held.load(Ordering::Relaxed) > 20, "hardly a commit was held: {}", rig.tally);
    let inside = rig.tally.inside.load(Ordering::Relaxed);
    assert!(inside > 10, "fsyncs wait for the commit: {}", rig.tally);
}

/// A commit that takes nothing along tore the superblock while the copies that led to the
/// log of an fsync inside it were on their way.
#[test]
fn a_torn_superblock_after_an_fsync_inside_a_commit() {
    let rig = Rig::new(Effort { per_flush: 64, ..BRIEF });
    for number in [115, 136] {
        run_all(&rig, (0..3).map(|_| by_name(&format!("inside:31337:ace1:{number}"))));
    }
}

/// The rare case, each time: no log on top of a commit can say what was synced meanwhile.
#[test]
fn two_commits_as_one() {
    let doubled = Broken { engine: Some(Defect::DoubledCommits), ..Broken::default() };
    let rig = Rig::new(BRIEF).breaking(doubled);
    run_all(&rig, inside_cases(start_seed(), 10));
    let inside = rig.tally.inside.load(Ordering::Relaxed);
    assert!(inside > 5, "fsyncs wait for the commit: {}", rig.tally);
}

/// Named ones, some of length two and three each, and a long one.
fn inside_cases(seed: u64, some: usize) -> impl Iterator<Item = Case> + Send {
    let named = (0..NAMED.len()).map(named).skip(seed as usize % 3).step_by(3);
    let named = named.filter_map(move |case| inside::around(case, seed));
    named.chain(inside_samples(seed).take(some)).chain(inside_long(seed))
}

fn inside_samples(seed: u64) -> impl Iterator<Item = Case> + Send {
    let both = ace::sample(2, seed).zip(ace::sample(3, seed));
    both.flat_map(|(two, three)| [two, three]).filter_map(move |case| inside::around(case, seed))
}

fn inside_long(seed: u64) -> Option<Case> {
    inside::around(random::single(seed, 80), seed)
}

/// Where nodes and extents are shared with a snapshot, which stays as it is.
#[test]
fn in_snapshots() {
    testkit::require!(kernel_btrfs);
    let rig = Rig::new(BRIEF);
    run_all(&rig, shared_samples(start_seed()).take(24));
}

/// Of all lengths, each second one with commits held.
fn shared_samples(seed: u64) -> impl Iterator<Item = Case> + Send {
    let named = (seed..).step_by(7).map(|n| named(n as usize % NAMED.len()));
    let mixed = named.zip(ace::sample(1, seed)).zip(ace::sample(2, seed));
    let mixed = mixed.flat_map(|((named, one), two)| [named, one, two]);
    mixed.zip(seed..).filter_map(|(case, number)| {
        let case = shared::over(case, number);
        if number % 4 < 2 { Some(case) } else { inside::around(case, number) }
    })
}

#[test]
fn several_threads_beside_commits() {
    let rig = Rig::new(BRIEF);
    let seed = start_seed();
    run_all(&rig, (seed..seed + 6).map(|seed| random::commits(seed, 80)));
}

fn kernel_logs(cases: impl Iterator<Item = Case>) {
    testkit::require!(kernel_btrfs);
    let (mut logs, mut replayed, mut all) = (0, 0, 0);
    for case in cases.filter(kernel_logs::fit) {
        let seen = kernel_logs::run(&case).unwrap_or_else(|why| {
            panic!("{}: {why}\n{}", case.name, testkit::ops::listing(&case.threads[0]))
        });
        all += 1;
        logs += seen.log as usize;
        replayed += (seen.log && seen.replayed) as usize;
    }
    println!("{all} workloads on the kernel's btrfs, {logs} left a log, we replayed {replayed}");
    if logs > replayed {
        testkit::oracle::record_skip("the kernel's logs before our mount", "no replay is built");
    }
}

/// What the kernel's btrfs keeps is enough for the judge, and what it left in its log for us.
#[test]
fn the_kernel_keeps_the_same_promises() {
    kernel_logs([9, 13, 14, 19, 21, 24, 30, 34, 38, 44].into_iter().map(named));
}

/// Each takes a second or two.
#[test]
#[ignore = "soak: see docs/TESTING.md"]
fn the_kernel_keeps_the_same_promises_in_all_workloads() {
    let pairs = number("SPINNEY_KERNEL_PAIRS", 50) as usize;
    let (two, three) = (ace::sample(2, start_seed()), ace::sample(3, start_seed()));
    kernel_logs(
        (0..NAMED.len())
            .map(named)
            .chain(ace::all(1))
            .chain(two.take(pairs))
            .chain(three.take(pairs)),
    );
}

/// The harness finds what is broken within a few seconds, or it proves nothing.
fn bites(broken: Broken, cases: impl Iterator<Item = Case>) {
    let effort = Effort { per_flush: 6, outside: 0, again: 0, empty: 0 };
    let rig = Rig::new(effort).breaking(broken);
    let start = Instant::now();
    for case in cases {
        if let Err(why) = rig.run(&case) {
            let first = why.lines().next().unwrap_or_default();
            println!("found after {:?}, {}: {first}", start.elapsed(), rig.tally);
            return;
        }
        assert!(start.elapsed() < Duration::from_secs(20), "nothing found: {}", rig.tally);
    }
    panic!("nothing found: {}", rig.tally);
}

fn sampled() -> impl Iterator<Item = Case> {
    ace::sample(2, 1).take(200)
}

#[test]
fn a_device_without_flushes_is_found() {
    bites(Broken { device: Some(Lie::AllFlushes), ..Broken::default() }, sampled());
}

/// Of the two flushes of a commit each one matters: the one before the superblock, and the
/// one after it.
#[test]
fn each_flush_that_is_left_out_is_found() {
    for number in [0, 1] {
        let lie = Lie::FlushOf { every: 2, number };
        bites(Broken { device: Some(lie), ..Broken::default() }, sampled());
    }
}

#[test]
fn an_fsync_that_does_nothing_is_found() {
    let broken = |breaker| Broken { file_system: Some(breaker), ..Broken::default() };
    bites(broken(broken::without_fsync), sampled());
    bites(broken(broken::without_directories), sampled());
    bites(broken(broken::every_second_sync), sampled());
}

#[test]
fn an_fsync_that_is_lost_inside_a_commit_is_found() {
    let lost = Broken { file_system: Some(broken::inside_commits), ..Broken::default() };
    bites(lost, inside_samples(1));
    let engine = Some(Defect::CommitForgetsSynced);
    bites(Broken { engine, ..Broken::default() }, inside_samples(1));
}

#[test]
fn a_log_replay_that_skips_names_is_found() {
    bites(Broken { engine: Some(Defect::ReplaySkipsNames), ..Broken::default() }, sampled());
}

#[test]
fn checksums_that_are_left_out_are_found() {
    for defect in [Defect::LogWithoutSums, Defect::CommitSkipsASum] {
        bites(Broken { engine: Some(defect), ..Broken::default() }, sampled());
    }
}

fn by_name(name: &str) -> Case {
    let parts: Vec<&str> = name.split(':').collect();
    let n = |i: usize| parts.get(i).and_then(|text| text.parse::<u64>().ok()).unwrap_or(0);
    match parts[0] {
        "inside" => {
            let inner = by_name(&parts[2..].join(":"));
            inside::around(inner, n(1)).expect("a workload with an fsync")
        }
        "shared" => shared::over(by_name(&parts[2..].join(":")), n(1)),
        "named" => named(n(1) as usize),
        "told" => told::case(n(1)),
        "regrown" => regrown::nth(n(1)),
        "removed" => removed::nth(n(1)).expect("a workload that does something"),
        "random" => random::single(n(1), n(2) as usize),
        "threads" => random::threads(n(1), n(2) as usize),
        "commits" => random::commits(n(1), n(2) as usize),
        ace => {
            let len = ace.strip_prefix("ace").and_then(|len| len.parse().ok()).expect("a name");
            ace::nth(len, n(1)).expect("a workload that does something")
        }
    }
}

/// `SPINNEY_CRASH=name` as a failure printed it.
#[test]
#[ignore = "one that SPINNEY_CRASH names"]
fn one_case() {
    let name = std::env::var("SPINNEY_CRASH").expect("SPINNEY_CRASH=name, as a failure prints it");
    let case = by_name(&name);
    let together = case.threads.len() > 1;
    if outside::lacking().is_none() && !together && !case.shared {
        println!("the kernel's btrfs in our place: {:?}", kernel_logs::run(&case));
    }
    let tries = if together { 20 } else { 1 };
    let per_flush = number("SPINNEY_PER_FLUSH", 64) as usize;
    let effort = Effort { per_flush, outside: number("SPINNEY_OUTSIDE", 50), ..BRIEF };
    let rig = Rig::new(effort);
    run_all(&rig, std::iter::repeat_n(case, tries));
}

/// The long run: `SPINNEY_STATES` crash states (100,000), in parts of all kinds; or all
/// sequences of two operations (`SPINNEY_PAIRS`).
#[test]
#[ignore = "soak: see docs/TESTING.md"]
fn soak() {
    let wanted = number("SPINNEY_STATES", 100_000) as usize;
    let per_flush = number("SPINNEY_PER_FLUSH", 8) as usize;
    let effort = Effort { per_flush, outside: 500, again: 50, empty: 20 };
    let rig = Rig::new(effort);
    let seed = start_seed();
    let pairs = std::env::var_os("SPINNEY_PAIRS").is_some();
    let wanted = if pairs { usize::MAX } else { wanted };
    let mut cases: Box<dyn Iterator<Item = Case> + Send> =
        if pairs { Box::new(ace::all(2)) } else { Box::new(soak_cases(seed)) };
    let failed = AtomicUsize::new(0);
    let next = std::sync::Mutex::new(&mut cases);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..number("SPINNEY_JOBS", threads as u64) {
            scope.spawn(|| {
                while rig.tally.states.load(Ordering::Relaxed) < wanted {
                    let case = next.lock().expect("the list").next();
                    let Some(case) = case else { return };
                    if let Err(why) = rig.run(&case) {
                        println!("FAILED: {why}\n");
                        failed.fetch_add(1, Ordering::Relaxed);
                    }
                    let done = rig.tally.cases.load(Ordering::Relaxed);
                    if done.is_multiple_of(500) {
                        println!("{}", rig.tally);
                    }
                }
            });
        }
    });
    println!("{}", rig.tally);
    assert_eq!(failed.into_inner(), 0, "workloads failed");
}

/// Everything named, all of length one, these in four ways with commits held; then of each kind some, without end.
fn soak_cases(seed: u64) -> impl Iterator<Item = Case> + Send {
    let fixed = (0..NAMED.len()).map(named).chain(ace::all(1));
    let around =
        move |case| (0..4).filter_map(move |n| inside::around(Case::clone(&case), seed + n));
    let inside = (0..NAMED.len()).map(named).chain(ace::all(1)).flat_map(around);
    let (mut two, mut three) = (ace::sample(2, seed), ace::sample(3, seed));
    let mut held = inside_samples(seed);
    let mut shared = shared_samples(seed);
    let (mut removed, mut regrown) = (removed_cases(seed), regrown_cases(seed));
    let kernel = outside::lacking().is_none();
    let mut round = 0;
    let mixed = std::iter::from_fn(move || {
        round += 1;
        match round % 100 {
            0 => Some(random::threads(seed + round, 150)),
            25 | 85 => Some(random::commits(seed + round, 100)),
            49 => inside_long(seed + round),
            50 => Some(random::single(seed + round, 500)),
            1..25 => three.next(),
            26..30 => removed.next(),
            80..=84 | 86..90 => regrown.next(),
            60..80 => held.next(),
            30..45 if kernel => shared.next(),
            _ => two.next(),
        }
    });
    fixed.chain(inside).chain(mixed)
}
