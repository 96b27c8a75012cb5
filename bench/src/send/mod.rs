//! `spinney-bench send`: streams of a snapshot, whole and as a difference, made and received by the
//! kernel and by Spinney in turn: on a mount, and on the image alone.
//!
//! Content is of this machine's /usr. Between the two snapshots every fiftieth file has grown, a
//! directory has moved, and another one is gone. A stream goes through a pipe to a program that
//! throws it away; what is received is durable when the clock stops. All sides receive the
//! kernel's streams.
//!
//! Invariants: the sides take turns, in the opposite order in every second round; a cell is the
//! median of its rounds; caches are dropped before each.

mod base;

use crate::balance::base::run;
use crate::cli::verb::{self, Common};
use base::Base;
use std::fmt::Write as _;
use std::io;
use std::process::ExitCode;

pub const USAGE: &str = "\
usage: spinney-bench send --spinney PROGRAM [--dir DIR] [--content BYTES] [--rounds N]
                          [--markdown FILE]

Makes and receives streams of snapshots in DIR (/dev/shm): the kernel's btrfs, Spinney's mount
and Spinney on the image, in turn. Needs root.
";

/// What is measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Work {
    Send { difference: bool },
    Receive { difference: bool },
}

impl Work {
    fn name(self) -> &'static str {
        match self {
            Work::Send { difference: false } => "send, whole",
            Work::Send { difference: true } => "send, difference",
            Work::Receive { difference: false } => "receive, whole",
            Work::Receive { difference: true } => "receive, difference",
        }
    }
}

/// Who does it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    Kernel,
    Mount,
    Image,
}

const SIDES: [Side; 3] = [Side::Kernel, Side::Mount, Side::Image];

/// Begins with the word behind `send`.
pub fn main(words: &[String]) -> ExitCode {
    let options = Common::parse(words, |given| given.is_unknown());
    verb::main("send", USAGE, options, |options| measure(&options))
}

fn measure(options: &Common) -> io::Result<()> {
    let base = Base::make(&options.dir, &options.spinney, options.content)?;
    let all = [
        Work::Send { difference: false },
        Work::Send { difference: true },
        Work::Receive { difference: false },
        Work::Receive { difference: true },
    ];
    // Seconds by work and side.
    let mut cells: [[Vec<f64>; SIDES.len()]; 4] = Default::default();
    for round in 0..options.rounds {
        for at in 0..SIDES.len() {
            let at = if round % 2 == 0 { at } else { SIDES.len() - 1 - at };
            let seconds = base.run(SIDES[at])?;
            eprintln!("round {round}, {:?}: {seconds:.2?}", SIDES[at]);
            seconds.into_iter().zip(&mut cells).for_each(|(one, row)| row[at].push(one));
        }
    }
    let rows = all.into_iter().zip(cells).map(|(work, row)| (work, row.map(median)));
    let markdown = table(&rows.collect::<Vec<_>>(), &base);
    print!("{markdown}");
    match &options.markdown {
        Some(path) => std::fs::write(path, &markdown),
        None => Ok(()),
    }
}

fn median(all: Vec<f64>) -> f64 {
    crate::stats::median(&all).unwrap_or(f64::NAN)
}

fn table(rows: &[(Work, [f64; 3])], base: &Base) -> String {
    let kernel = run("uname", &["-r"]).unwrap_or_default();
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let mut out = format!(
        "# Send and receive\n\nMade by `spinney-bench send`: Linux {}, {cpus} processors, images in memory. {} files of \
         /usr, {} MiB; the streams have {:.1} and {:.1} MB. Seconds, medians of the rounds; in brackets times as fast as \
         the kernel.\n\n| work | kernel | Spinney, mount | Spinney, image |\n|---|---|---|---|\n",
        kernel.trim(),
        base.files,
        base.bytes >> 20,
        base.streams[0] as f64 / 1e6,
        base.streams[1] as f64 / 1e6,
    );
    for (work, [kernel, mount, image]) in rows {
        let ratio = |own: &f64| format!("{own:.2} ({:.2})", kernel / own.max(1e-9));
        // Writing to a String cannot fail.
        let _ = writeln!(
            out,
            "| {} | {kernel:.2} | {} | {} |",
            work.name(),
            ratio(mount),
            ratio(image)
        );
    }
    out
}
