//! Each field of each sort of item, node header and superblock of small volumes is changed, with
//! valid checksums, and judged by `btrfs check --readonly` and by ours. Where the verdicts
//! differ, docs/CHECK.md has to say so, and why it may be; the test holds that table.
//!
//! The ordinary run judges a sample for half a minute (`SPINNEY_SEED` chooses it); the whole is
//! `cargo test -p spinney-btrfs-check --test mutate -- whole --ignored --nocapture`, which also
//! demands that each line of the table is of use, and prints what differs. `SPINNEY_MUTATE=text`
//! takes the classes with this text alone, and shows what was said.

#[path = "../common/mod.rs"]
mod common;
mod fields;
mod images;
mod nodes;
mod table;

use btrfs_check::{CheckOptions, Report, Severity, check};
use btrfs_disk::key::kind_name;
use btrfs_volume::{OpenOptions, Volume};
use common::{Scratch, ready};
use nodes::{FieldAt, Image};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};
use table::{Side, Table};
use testkit::oracle::newer_btrfs;

/// What is done to a field.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    /// One more (of a number), or another first byte (of bytes).
    More,
    Zero,
    /// The highest bit.
    High,
}

impl Change {
    /// False if the field is the same afterwards.
    fn apply(self, field: &mut [u8]) -> bool {
        let before = field.to_vec();
        match self {
            Change::More if field.len() <= 8 => {
                for byte in field.iter_mut() {
                    *byte = byte.wrapping_add(1);
                    if *byte != 0 {
                        break;
                    }
                }
            }
            Change::More => field[0] ^= 1,
            Change::Zero => field.fill(0),
            Change::High => *field.last_mut().expect("not empty") ^= 0x80,
        }
        before != field
    }
}

/// Worse than a note, or it could not even be opened; and why.
fn ours(image: &Path) -> Option<String> {
    let judged = catch_unwind(AssertUnwindSafe(|| -> Result<Report, String> {
        let device = blockdev::FileDevice::open(image, true, true).map_err(|e| e.to_string())?;
        let options = OpenOptions { read_only: true, ignore_log: true, ..OpenOptions::default() };
        let volume = Volume::open(Arc::new(device), options).map_err(|e| e.to_string())?;
        check(Arc::new(volume), &CheckOptions::default()).map_err(|e| e.to_string())
    }));
    match judged.expect("our check does not panic") {
        Err(why) => Some(format!("refused: {why}")),
        Ok(report) => {
            let bad = report.findings.iter().find(|f| f.severity > Severity::Note);
            bad.map(|f| format!("{}: {f}", f.kind.code()))
        }
    }
}

/// Whether `btrfs check` complains, by its end or by its words; and what it says.
fn theirs(image: &Path) -> Option<String> {
    let program = match image.ends_with(images::GROUP_TREE) {
        true => newer_btrfs().expect("it made the image"),
        false => "btrfs".into(),
    };
    let output = Command::new("timeout")
        .arg("60")
        .arg(program)
        .args(["check", "--readonly", "--force"])
        .arg(image)
        .output()
        .expect("btrfs check runs");
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    let complaint = |line: &&str| {
        let line = line.to_lowercase();
        let words = ["error", "mismatch", "warning", "bad ", "invalid", "corrupt", "wrong"];
        words.iter().any(|word| line.contains(word))
            && !line.contains("no error found")
            && !line.contains("filesystem mounted, continuing")
    };
    if std::env::var_os("SPINNEY_MUTATE").is_some() {
        println!("{said}");
    }
    let line = said.lines().find(complaint).map(str::to_owned);
    match (output.status.code(), line) {
        (Some(0), line) => line,
        (code, line) => Some(line.unwrap_or_else(|| format!("ends with {code:?}"))),
    }
}

/// All that can be done to the images: classes in random order, of each `each` places.
fn cases(images: &[Image], each: usize, seed: u64) -> Vec<(usize, FieldAt, Change)> {
    let mut state = seed | 1;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let mut all = Vec::new();
    for (index, image) in images.iter().enumerate() {
        let mut places: Vec<_> = image.places.iter().map(|place| (random(), place)).collect();
        places.sort_by_key(|(order, _)| *order);
        let mut taken: HashMap<&str, usize> = HashMap::new();
        for (_, place) in places {
            let count = taken.entry(&place.class).or_default();
            *count += 1;
            if *count > each {
                continue;
            }
            let changes = [Change::More, Change::Zero, Change::High];
            let changes = if place.len == 0 { &changes[..1] } else { &changes[..] };
            all.extend(changes.iter().map(|change| (random(), (index, place.clone(), *change))));
        }
    }
    all.sort_by_key(|(order, _)| *order);
    all.into_iter().map(|(_, case)| case).collect()
}

/// What differs: by class and side, an example for each.
#[derive(Default)]
struct Outcome {
    judged: usize,
    found: usize,
    differ: BTreeMap<(String, Side), (usize, String)>,
    classes: BTreeSet<String>,
}

fn run(each: usize, limit: Duration, wanted: &dyn Fn(&str) -> bool) -> Outcome {
    let scratch = Scratch::new("mutate");
    let paths = images::make(&scratch);
    let images: Vec<Image> = paths.iter().map(|path| Image::read(path)).collect();
    let missing = |wanted: &[u8], there: fn(&Image) -> &BTreeSet<u8>| {
        let missing = wanted.iter().filter(|k| !images.iter().any(|i| there(i).contains(k)));
        let missing: Vec<_> = missing.map(|kind| kind_name(*kind)).collect();
        assert!(missing.is_empty(), "no image has {missing:?}");
    };
    missing(images::KINDS, |image| &image.kinds);
    missing(images::INLINE, |image| &image.inline);
    let seed = std::env::var("SPINNEY_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(20261123);
    let told = std::env::var_os("SPINNEY_MUTATE").is_some();
    let begun = Instant::now();
    let mut outcome = Outcome::default();
    for (index, place, change) in cases(&images, each, seed) {
        if begun.elapsed() > limit {
            break;
        }
        if !wanted(&place.class) {
            continue;
        }
        let path = &paths[index];
        let verdicts = images[index].changed(&place, change, || (ours(path), theirs(path)));
        let Some(verdicts) = verdicts else { continue };
        outcome.judged += 1;
        if told {
            println!("{index} {} {change:?}: {verdicts:?}", place.class);
        }
        outcome.classes.insert(place.class.clone());
        let (side, said) = match verdicts {
            (Some(_), Some(_)) => {
                outcome.found += 1;
                continue;
            }
            (None, None) => continue,
            (Some(said), None) => (Side::Ours, said),
            (None, Some(said)) => (Side::Theirs, said),
        };
        let entry = outcome.differ.entry((place.class.clone(), side)).or_default();
        entry.0 += 1;
        if entry.1.is_empty() {
            entry.1 = format!("image {index}, {change:?}: {said}");
        }
    }
    for path in &paths {
        assert_eq!((ours(path), theirs(path)), (None, None), "the image is as it was");
    }
    outcome
}

/// Of the classes that `SPINNEY_MUTATE` names.
fn asked(class: &str) -> bool {
    class.contains(&std::env::var("SPINNEY_MUTATE").unwrap_or_default())
}

/// The differences that the table does not know.
fn unknown(outcome: &Outcome, table: &Table) -> Vec<String> {
    let lines = outcome.differ.iter().filter(|((class, side), _)| !table.knows(class, *side));
    lines
        .map(|((class, side), (n, said))| format!("{} | {class} | {n} | {said}", side.name()))
        .collect()
}

#[test]
fn a_sample_differs_only_where_the_table_says() {
    if !ready() {
        return;
    }
    let outcome = run(1, Duration::from_secs(30), &asked);
    println!("{} changes judged, {} found by both", outcome.judged, outcome.found);
    let unknown = unknown(&outcome, &Table::read());
    assert!(unknown.is_empty(), "not in docs/CHECK.md:\n{}", unknown.join("\n"));
    assert!(outcome.found * 5 > outcome.judged, "few changes are found: {}", outcome.found);
}

#[test]
#[ignore = "minutes"]
fn whole() {
    assert!(ready());
    let each = std::env::var("SPINNEY_EACH").ok().and_then(|s| s.parse().ok()).unwrap_or(2);
    let outcome = run(each, Duration::MAX, &asked);
    println!("{} changes judged, {} found by both", outcome.judged, outcome.found);
    let table = Table::read();
    let unknown = unknown(&outcome, &table);
    for line in &unknown {
        println!("{line}");
    }
    // Few places of a class may all be such as do not differ: then more of them are asked.
    let mut unused = table.unused(outcome.differ.keys());
    if !unused.listing().is_empty() {
        let more = run(10 * each, Duration::MAX, &|class| unused.has(class));
        unused = unused.unused(more.differ.keys());
    }
    let unused = unused.listing();
    assert!(unused.is_empty(), "lines of docs/CHECK.md that nothing needs:\n{}", unused.join("\n"));
    assert!(unknown.is_empty(), "{} are not in docs/CHECK.md", unknown.len());
}
