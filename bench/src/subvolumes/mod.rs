//! `spinney-bench subvolumes`: many snapshots, what quotas cost, and how long operations take beside snapshots and balances, by
//! the kernel's btrfs and by Spinney in turn, on mounts.
//!
//! Invariants: each measurement has an image of its own, which `btrfs check` finds clean behind it; the sides take turns, in the
//! opposite order in every second round; a cell is the median of its rounds.
//!
//! What it does not know: what the sides do inside.

mod beside;
mod place;
mod quotas;
mod report;
mod snapshots;

use crate::balance::base::Scratch;
use crate::cli::verb::{self, Common};
use place::Side;
use std::io;
use std::process::ExitCode;

pub const USAGE: &str = "\
usage: spinney-bench subvolumes --spinney PROGRAM [--dir DIR] [--rounds N] [--snapshots N]
                                [--files N] [--seconds N] [--markdown FILE]

N snapshots of one subvolume with a write in each (default 10,000): made, listed, deleted. N small files (20,000)
made, written and removed with and without quotas. Creations and fsyncs for N seconds (10) alone, beside snapshots
of their subvolume, and beside a balance. On images in DIR (/dev/shm), the kernel's btrfs and Spinney in turn. Needs root.
";

struct Options {
    common: Common,
    snapshots: u64,
    files: u64,
    seconds: u64,
}

/// Begins with the word behind `subvolumes`.
pub fn main(words: &[String]) -> ExitCode {
    verb::main("subvolumes", USAGE, parse(words), |options| measure(&options))
}

fn parse(words: &[String]) -> Result<Options, String> {
    let (mut snapshots, mut files, mut seconds) = (10_000, 20_000, 10);
    let common = Common::parse(words, |given| {
        match given.option {
            "--snapshots" => snapshots = given.at_least(1)?,
            "--files" => files = given.at_least(1)?,
            "--seconds" => seconds = given.at_least(1)?,
            _ => return given.is_unknown(),
        }
        Ok(())
    })?;
    Ok(Options { common, snapshots, files, seconds })
}

fn measure(options: &Options) -> io::Result<()> {
    let scratch = Scratch::make(&options.common.dir, "subvolumes", &["image"])?;
    let many = turns(options, |side| snapshots::run(&scratch, side, options.snapshots))?;
    let costs = turns(options, |side| quotas::run(&scratch, side, options.files))?;
    let beside = turns(options, |side| beside::run(&scratch, side, options.seconds))?;
    let mut markdown = report::head();
    report::snapshots(&mut markdown, options.snapshots, &many);
    report::quotas(&mut markdown, options.files, &costs);
    report::beside(&mut markdown, options.seconds, &beside);
    print!("{markdown}");
    match &options.common.markdown {
        Some(path) => std::fs::write(path, &markdown),
        None => Ok(()),
    }
}

/// What each round measured, the kernel's and Spinney's.
struct Rounds<T>([Vec<T>; 2]);

impl<T> Rounds<T> {
    fn sides(&self) -> [(&'static str, &[T]); 2] {
        [("kernel", &self.0[0]), ("Spinney", &self.0[1])]
    }
}

fn turns<T: std::fmt::Debug>(
    options: &Options,
    run: impl Fn(Side<'_>) -> io::Result<T>,
) -> io::Result<Rounds<T>> {
    let mut found = Rounds([Vec::new(), Vec::new()]);
    for round in 0..options.common.rounds {
        let mut turns = [0, 1];
        turns.rotate_left(round % 2);
        for turn in turns {
            let side = [Side::Kernel, Side::Spinney(&options.common.spinney)][turn];
            let seen = run(side)?;
            eprintln!("{side:?}: {seen:?}");
            found.0[turn].push(seen);
        }
    }
    Ok(found)
}

/// Of the rounds' numbers.
fn median(all: Vec<f64>) -> f64 {
    crate::stats::median(&all).unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_what_the_line_says() {
        let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let options = parse(&words("--spinney a --files 7 --rounds 1")).expect("options");
        let seen = (options.snapshots, options.files, options.seconds, options.common.rounds);
        assert_eq!(seen, (10_000, 7, 10, 1));
        assert!(parse(&words("--spinney a --files none")).is_err());
        assert!(parse(&words("--spinney a --what 1")).is_err());
    }

    #[test]
    fn the_median_is_the_middle_one() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert!(median(Vec::new()).is_nan());
    }
}
