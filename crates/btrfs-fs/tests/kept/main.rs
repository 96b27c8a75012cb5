//! What an fsync takes along: at least what the kernel's does.
//!
//! The same sequence of operations and one sync on both sides, a crash, each side's replay:
//! what the kernel keeps, we keep. Where the kernel commits, all but content is demanded:
//! a commit that an fsync turned into writes nobody else's content back.
//!
//!     cargo test -p spinney-btrfs-fs --test kept -- all_sequences --ignored --nocapture
//!
//! takes all of one and two operations; `SPINNEY_KEPT_LEN=3` all of three (hours; `every.rs` says
//! how to take them bit by bit), with `SPINNEY_KEPT_SAMPLE=20000` so many of them (`SPINNEY_SEED`), and
//! `SPINNEY_KEPT='mkdir D; create D/f; fsync .'` one sequence. `SPINNEY_KEPT_SYNCED=1` puts a
//! second fsync into the middle.

#[path = "../common/mod.rs"]
mod common;
mod every;
mod facts;
#[path = "../harness/mod.rs"]
mod harness;
mod kernel;
mod ours;
mod words;

use facts::Facts;
use harness::ops;
use kernel::{Kernel, Verdict};
use ours::Left;
use testkit::oracle::TempDir;

/// Subvolumes of a volume, and so sequences in one transaction of the kernel's.
const WIDTH: usize = 200;

/// The samples of a run without `SPINNEY_SEED` are always the same: a new sequence that fails is
/// for the soak (scripts/soak.sh) to find, not for somebody's change that has nothing to do with it.
fn seed() -> u64 {
    let seed = common::number("SPINNEY_SEED", 1);
    println!("SPINNEY_SEED={seed}");
    seed
}

/// What became of a list of cases.
#[derive(Default)]
struct Tally {
    logs: usize,
    commits: usize,
    ours_commit: usize,
    /// The kernel cannot mount what it left.
    broken: Vec<String>,
    lost: Vec<String>,
}

impl Tally {
    /// What we lost of what the kernel keeps.
    fn judge(&mut self, case: &str, verdict: &Verdict, left: &Left) -> Vec<String> {
        let demanded: Facts = match verdict {
            Verdict::Broken => {
                self.broken.push(case.to_owned());
                return Vec::new();
            }
            Verdict::Commit => {
                let all = left.all.iter().filter(|fact| !fact.starts_with("content"));
                all.cloned().collect()
            }
            Verdict::Log(facts) => facts.clone(),
        };
        let lost: Vec<String> = demanded.difference(&left.kept).cloned().collect();
        if lost.is_empty() {
            self.ours_commit += usize::from(left.committed);
            self.logs += usize::from(*verdict != Verdict::Commit);
            self.commits += usize::from(*verdict == Verdict::Commit);
        }
        lost
    }
}

/// What we keep of each, while the kernel is at work on the same.
fn both(kernel: &Kernel, cases: &[String]) -> (Vec<Left>, Vec<Verdict>) {
    let parsed: Vec<Vec<String>> = cases.iter().map(|case| words::parse(case)).collect();
    std::thread::scope(|scope| {
        let ours = scope.spawn(|| parsed.iter().map(|case| ours::run(case)).collect());
        let verdicts = kernel.judge(&parsed);
        (ours.join().expect("ours"), verdicts)
    })
}

/// Where we lost something, it may have been that somebody on this machine called `sync` just
/// then, or that the kernel committed for want of room: it must do so each time.
fn compare(kernel: &Kernel, cases: &[String], tally: &mut Tally) {
    let mut todo = cases.to_vec();
    for last in [false, false, true] {
        let (left, verdicts) = both(kernel, &todo);
        let mut again = Vec::new();
        for ((case, verdict), left) in todo.iter().zip(&verdicts).zip(&left) {
            let lost = tally.judge(case, verdict, left);
            if !lost.is_empty() && last {
                let how = if *verdict == Verdict::Commit { "commit" } else { "log" };
                tally.lost.push(format!("{case}: the kernel keeps by its {how} {lost:?}"));
            } else if !lost.is_empty() {
                again.push(case.clone());
            }
        }
        todo = again;
    }
    println!(
        "{} sequences that the kernel logs, {} that it commits, {} that we commit; {} lost more",
        tally.logs,
        tally.commits,
        tally.ours_commit,
        tally.lost.len()
    );
}

fn finish(tally: &Tally) {
    println!("the kernel cannot mount its own log of {:?}", tally.broken);
    let some = &tally.lost[..tally.lost.len().min(40)];
    assert!(some.is_empty(), "{} sequences lost more than the kernel: {some:#?}", tally.lost.len());
    assert!(tally.logs + tally.commits > tally.broken.len() * 100, "hardly anything was compared");
}

/// What the kernel (6.18) keeps of some, which asks for no kernel.
const RECORDED: &[(&str, &[&str])] = &[
    ("mkdir D; create D/f; fsync .", &["name /D", "name /D/f"]),
    ("mkdir D; mkdir D/E; create D/E/f; fsync .", &["name /D/E/f"]),
    ("mkdir D; fifo D/fifo; fdatasync .", &["name /D/fifo"]),
    ("mkdir A/C/D; rename A/C A/E; fsync A", &["name /A/E", "gone /A/C", "name /A/E/D"]),
    ("link A/foo A/link; create A/new; fsync A/foo", &["name /A/link", "name /A/new"]),
    ("link A/foo B/link; setxattr A; fsync B/link", &["xattrs /A"]),
    ("rename A/foo A/moved; unlink A/bar; fsync A/moved", &["gone /A/bar", "name /A/moved"]),
    ("rename A/C A/E; link A/foo B/link; fsync A/foo", &["name /A/E", "gone /A/C"]),
    ("exchange A/foo A/bar; mkdir A/D; fsync A/foo", &["name /A/D"]),
    ("create new; rename B/big A/foo; fsync B", &["name /new", "name /A/foo", "gone /B/big"]),
    ("rename A/foo B/foo; setxattr A/C; fsync B/foo", &["xattrs /A/C", "gone /A/foo"]),
    ("unlink A/C/in; rename A/C D; rmdir D; fsync .", &["gone /A/C", "gone /A/C/in"]),
    ("rename A/C D; fsync B/big; rename B/big A/foo; fsync B", &["name /D", "name /A/foo"]),
    (
        "fifo A/fifo; fsync A; rename A/C A/E; create A/new; fdatasync A/new",
        &["gone /A/C", "name /A/E"],
    ),
    ("create A/C/f; rename A B/A; fsync B/A", &["name /B/A/C/f", "name /B/A"]),
];

#[test]
fn what_the_kernel_was_seen_to_keep() {
    for (case, facts) in RECORDED {
        let kept = ours::run(&words::parse(case)).kept;
        for fact in *facts {
            assert!(kept.contains(*fact), "{case}: {fact} is lost of {kept:?}");
        }
    }
}

/// What else was done before an exchange in a directory spares that directory's fsync the commit.
#[test]
fn an_exchange_in_a_directory_is_logged_but_for_the_first_of_a_transaction() {
    for (case, committed) in [
        ("create new; exchange A/foo A/bar; fsync A", false),
        ("write A/foo; exchange A/foo A/bar; create B/new; fsync A", true),
        ("exchange A/foo A/bar; create new; fsync A", true),
    ] {
        let left = ours::run(&words::parse(case));
        assert_eq!(left.committed, committed, "{case}");
        let made = ["name /B/new", "name /new"].iter().any(|name| left.kept.contains(*name));
        assert!(made || !committed, "{case}: {:?}", left.kept);
    }
}

/// Who made a file and syncs it pays for that file alone, and so does who renames it.
#[test]
fn what_nobody_asked_for_is_not_logged() {
    let text = "create A/new; create A/other; rename A/new A/moved; fsync A/moved";
    let left = ours::run(&words::parse(text));
    assert!(!left.committed && left.kept.contains("name /A/moved"), "{:?}", left.kept);
    assert!(!left.kept.contains("name /A/other"), "{:?}", left.kept);
}

/// What was synced before it moved (a mail, say) takes no commit.
#[test]
fn a_synced_file_that_moves_is_logged() {
    for sync in ["fsync A", "fsync B", "fsync B/big"] {
        let text = format!("create A/new; fsync A/new; rename A/new B/big; {sync}");
        let left = ours::run(&words::parse(&text));
        assert!(!left.committed, "{text}");
        assert!(left.kept.contains("name /B/big"), "{text}: {:?}", left.kept);
    }
}

#[test]
fn short_sequences() {
    testkit::require!(kernel_btrfs);
    let (kernel, mut tally) = (Kernel::new(WIDTH), Tally::default());
    let recorded: Vec<Vec<String>> = RECORDED.iter().map(|(case, _)| words::parse(case)).collect();
    for ((case, facts), verdict) in RECORDED.iter().zip(kernel.judge(&recorded)) {
        let Verdict::Log(kept) = verdict else { continue };
        facts.iter().for_each(|fact| assert!(kept.contains(*fact), "the kernel: {case}: {fact}"));
    }
    compare(&kernel, &words::all(1, "fsync"), &mut tally);
    let seed = seed();
    for (len, synced) in [(2, false), (3, false), (2, true)] {
        compare(&kernel, &words::sample(len, seed, 1000, synced), &mut tally);
    }
    finish(&tally);
}

#[test]
fn the_kernel_replays_what_we_log() {
    testkit::require!(kernel_btrfs);
    let dir = TempDir::new("kept").expect("temp dir");
    let recorded = RECORDED.iter().map(|(case, _)| (*case).to_owned());
    let seed = seed();
    let mut logs = 0;
    for case in
        recorded.chain(words::sample(3, seed, common::number("SPINNEY_SEEDS", 30) as usize, false))
    {
        let (left, seen) = ours::run_with_kernel(&words::parse(&case), &dir);
        logs += u32::from(!left.committed);
        assert_eq!(left.kept, seen, "{case}: our replay and the kernel's");
    }
    assert!(logs > 20, "only {logs} logs");
}

#[test]
#[ignore = "minutes, of three operations hours"]
fn all_sequences() {
    testkit::require!(kernel_btrfs);
    let width = common::number("SPINNEY_KEPT_WIDTH", WIDTH as u64) as usize;
    let (kernel, mut tally) = (Kernel::new(width), Tally::default());
    let (len, sample) =
        (common::number("SPINNEY_KEPT_LEN", 0), common::number("SPINNEY_KEPT_SAMPLE", 0));
    let cases = match std::env::var("SPINNEY_KEPT") {
        Ok(text) => text.split('|').map(str::to_owned).collect(),
        Err(_) if len == 0 => [1, 2].into_iter().flat_map(|l| words::all(l, "fsync")).collect(),
        Err(_) if sample == 0 => return finish(&every::run(len as usize, &kernel)),
        Err(_) => {
            let synced = common::number("SPINNEY_KEPT_SYNCED", 0) > 0;
            words::sample(len as usize, common::number("SPINNEY_SEED", 1), sample as usize, synced)
        }
    };
    for some in cases.chunks(20 * WIDTH) {
        compare(&kernel, some, &mut tally);
    }
    finish(&tally);
}
