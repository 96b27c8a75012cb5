//! `spinney-bench balance`: balances and a shrink on copies of one image, by the kernel and by
//! Spinney in turn.
//!
//! The volume has nodes of 4 KiB, so that its trees are large, content of this machine's /usr and
//! /lib, and snapshots in each of which three files have changed. Both sides get the same bytes. What is
//! measured is the balance alone, on a mount, with the processor time of all who take part:
//! the program and, where there is one, the server.
//!
//! Invariants: the sides take turns, in the opposite order in every second round; so do quotas on and off, since
//! how long a page of the machine's memory takes that nobody had for a while changes by the minute (a machine
//! that gives free memory back to its host pays for each). For the same reason each cell begins with a copy
//! that was made just now, also with quotas. A cell is the median of its rounds by wall time.

pub(crate) mod base;
mod report;
pub(crate) mod side;
mod trace;

use crate::cli::verb::{self, Common};
use side::{Side, Work};
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

pub const USAGE: &str = "\
usage: spinney-bench balance --spinney PROGRAM [--dir DIR] [--content BYTES] [--rounds N]
                             [--snapshots N,N] [--markdown FILE] [--plot FILE]

Balances metadata with and without quotas, balances data, and shrinks to half, on copies of
one image in DIR (/dev/shm), the kernel's btrfs and Spinney in turn. Needs root.
";

/// What is in the directory of a run.
const FILES: &[&str] = &["base.img", "quotas.img", "work.img"];

/// What the words ask for.
pub struct Options {
    common: Common,
    snapshots: Vec<u64>,
    plot: Option<PathBuf>,
}

/// One measurement.
#[derive(Clone, Debug, Default)]
pub struct Cell {
    pub wall: f64,
    pub user: f64,
    pub system: f64,
    /// Extents and nodes that moved, where the side tells.
    pub relocated: Option<u64>,
    /// Extents that quotas were counted anew for.
    pub quota_dirty: Option<u64>,
}

/// One line of the table.
pub struct Row {
    pub what: Work,
    pub snapshots: u64,
    pub quotas: bool,
    pub kernel: Cell,
    pub spinney: Cell,
}

/// Begins with the word behind `balance`.
pub fn main(words: &[String]) -> ExitCode {
    verb::main("balance", USAGE, parse(words), |options| measure(&options))
}

fn parse(words: &[String]) -> Result<Options, String> {
    let (mut snapshots, mut plot) = (vec![16, 64], None);
    let common = Common::parse(words, |given| {
        match given.option {
            "--plot" => plot = Some(given.path()),
            "--snapshots" => snapshots = given.numbers()?,
            _ => return given.is_unknown(),
        }
        Ok(())
    })?;
    Ok(Options { common, snapshots, plot })
}

fn measure(options: &Options) -> io::Result<()> {
    let scratch = base::Scratch::make(&options.common.dir, "balance", FILES)?;
    let mut rows = Vec::new();
    let base = base::Base::make(&scratch, options.common.content)?;
    let mut have = 0;
    for snapshots in &options.snapshots {
        base.add_snapshots(have, *snapshots)?;
        have = *snapshots;
        base.add_quotas()?;
        rows.extend(in_turn(options, &base, Work::Metadata, *snapshots, &[false, true])?);
    }
    for work in [Work::Data, Work::Shrink] {
        rows.extend(in_turn(options, &base, work, have, &[false])?);
    }
    let markdown = report::markdown(&rows, &base);
    print!("{markdown}");
    if let Some(path) = &options.common.markdown {
        std::fs::write(path, &markdown)?;
    }
    if let Some(path) = &options.plot {
        std::fs::write(path, report::svg(&rows))?;
    }
    Ok(())
}

/// A line for each of `quotas`.
fn in_turn(
    options: &Options,
    base: &base::Base,
    what: Work,
    snapshots: u64,
    quotas: &[bool],
) -> io::Result<Vec<Row>> {
    let mut cells = vec![<[Vec<Cell>; 2]>::default(); quotas.len()];
    for round in 0..options.common.rounds {
        for (line, turn) in turns(quotas.len(), round) {
            let side = [Side::Kernel, Side::Spinney(&options.common.spinney)][turn];
            let quotas = quotas[line];
            let cell = side.run(base, what, quotas)?;
            eprintln!("{what:?} {snapshots} snapshots, quotas {quotas}, {side:?}: {cell:?}");
            cells[line][turn].push(cell);
        }
    }
    let lines = cells.into_iter().zip(quotas);
    let row = |(cells, quotas): ([Vec<Cell>; 2], &bool)| {
        let [kernel, spinney] = cells.map(median);
        Row { what, snapshots, quotas: *quotas, kernel, spinney }
    };
    Ok(lines.map(row).collect())
}

/// Line and side of each measurement of a round, in their order.
fn turns(lines: usize, round: usize) -> Vec<(usize, usize)> {
    let mut turns: Vec<_> = (0..lines).flat_map(|line| [(line, 0), (line, 1)]).collect();
    if round % 2 == 1 {
        turns.reverse();
    }
    turns
}

fn median(mut cells: Vec<Cell>) -> Cell {
    cells.sort_by(|a, b| a.wall.total_cmp(&b.wall));
    cells.swap_remove(cells.len() / 2)
}

#[cfg(test)]
mod tests {
    use super::turns;

    /// Nothing is always measured behind the same.
    #[test]
    fn sides_and_lines_change_their_order() {
        assert_eq!(turns(2, 0), [(0, 0), (0, 1), (1, 0), (1, 1)]);
        assert_eq!(turns(2, 1), [(1, 1), (1, 0), (0, 1), (0, 0)]);
        assert_eq!(turns(1, 3), [(0, 1), (0, 0)]);
    }
}
