//! All sequences of a length, in pieces that can be done one after the other and on other days.
//!
//! A piece takes sequences from everywhere, so that a run which ends early has seen some of each
//! kind. A file has a line for each piece that is done, which the next run leaves out, and one for
//! each sequence that lost more than the kernel keeps.

use crate::kernel::Kernel;
use crate::{Tally, WIDTH, common, compare, words};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::Write;
use std::time::{Duration, Instant};

/// Sequences of one piece.
const PIECE: usize = 20 * WIDTH;

/// The file of what is done.
struct Record {
    file: File,
    done: BTreeSet<usize>,
}

impl Record {
    fn open(path: &str, pieces: usize) -> Record {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let number = |line: &str| -> Option<usize> {
            let (piece, of) = line.strip_prefix("piece ")?.split(' ').next()?.split_once('/')?;
            assert_eq!(of, pieces.to_string(), "{path} is of another set of sequences");
            piece.parse().ok()
        };
        let done = text.lines().filter_map(number).collect();
        let file = File::options().append(true).create(true).open(path);
        Record { file: file.expect("open the record"), done }
    }

    fn write(&mut self, lines: &str) {
        self.file.write_all(lines.as_bytes()).expect("write the record");
    }
}

/// Every `pieces`th sequence from `piece` on.
fn piece(cases: &[String], piece: usize, pieces: usize) -> Vec<String> {
    cases.iter().skip(piece).step_by(pieces).cloned().collect()
}

/// All of `len` operations, as far as the time reaches; the tally of this run.
pub fn run(len: usize, kernel: &Kernel) -> Tally {
    let start = Instant::now();
    let cases = words::all(len, "fsync");
    let pieces = cases.len().div_ceil(PIECE);
    let limit = Duration::from_secs(common::number("SPINNEY_KEPT_SECONDS", u64::MAX));
    println!("{} sequences of {len} operations, in {pieces} pieces", cases.len());
    let path = std::env::var("SPINNEY_KEPT_FILE").ok();
    let mut record = path.map(|path| Record::open(&path, pieces));
    let mut tally = Tally::default();
    for number in 0..pieces {
        let is_done = record.as_ref().is_some_and(|record| record.done.contains(&number));
        if is_done || start.elapsed() >= limit {
            continue;
        }
        let (some, lost) = (piece(&cases, number, pieces), tally.lost.len());
        compare(kernel, &some, &mut tally);
        let lost = tally.lost[lost..].iter().map(|text| format!("lost {text}\n"));
        let lines = lost.collect::<String>();
        let all = some.len();
        let line = format!("piece {number}/{pieces} {all} sequences, {:?}\n", start.elapsed());
        print!("{line}");
        if let Some(record) = record.as_mut() {
            record.write(&(lines + &line));
        }
    }
    tally
}
