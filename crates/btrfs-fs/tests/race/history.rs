//! What was done to files by several threads, and whether what was read of them can be.
//!
//! A file is cells of 1 KiB, each a register: every change of it took a time, from its call to its return, and
//! gave it one value or that of another cell at some moment of that time. A read may see a value if
//! some change that began before the read's end gave it, and no other change that began after that
//! one's end was done before the read began. What is behind the end of a file is zeros.
//!
//! It does not know what cells of one read have to do with each other.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

pub const CELL: u64 = 1024;
/// Cells that a file may have.
pub const CELLS: u32 = 1024;

/// Of a file, for good; a number is never used again.
pub type File = u32;

#[derive(Clone, Debug)]
pub enum What {
    /// `stamp` and the cell's number; zeros where the stamp is 0.
    Put { file: File, cells: Range<u32>, stamp: u64 },
    /// From (file, first cell) to (file, first cell).
    Copy { from: (File, u32), to: (File, u32), count: u32 },
    /// Nothing that can be read is another, but where it lies may be.
    Beside { file: File, cells: Range<u32> },
    /// Values seen from the cell on.
    Read { file: File, first: u32, values: Vec<u64> },
}

#[derive(Clone, Debug)]
pub struct Event {
    pub name: &'static str,
    pub start: u64,
    pub end: u64,
    pub what: What,
    /// False: perhaps it was not done, or in part.
    pub sure: bool,
}

/// What a cell has that was written with the stamp.
pub fn value(stamp: u64, cell: u32) -> u64 {
    if stamp == 0 { 0 } else { stamp << 16 | u64::from(cell) }
}

/// The content of cells.
pub fn content(stamp: u64, cells: Range<u32>) -> Vec<u8> {
    let words = CELL as usize / 8;
    cells.flat_map(|cell| value(stamp, cell).to_le_bytes().repeat(words)).collect()
}

/// Cells' values. Answers in which cell there are two.
pub fn values(content: &[u8]) -> Result<Vec<u64>, usize> {
    let cells = content.chunks(CELL as usize).enumerate();
    let one = |(at, cell): (usize, &[u8])| {
        let mut words =
            cell.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap()));
        let first = words.next().ok_or(at)?;
        if words.all(|word| word == first) { Ok(first) } else { Err(at) }
    };
    cells.map(one).collect()
}

/// Which events change a cell, by the event's place.
pub struct History<'e> {
    events: &'e [Event],
    changes: HashMap<(File, u32), Vec<u32>>,
    /// Whether a copy may have given a cell a value.
    known: HashMap<(u32, u32, u64), bool>,
}

impl<'e> History<'e> {
    pub fn new(events: &'e [Event]) -> History<'e> {
        let mut changes: HashMap<(File, u32), Vec<u32>> = HashMap::new();
        for (at, event) in events.iter().enumerate() {
            let (file, cells) = match &event.what {
                What::Put { file, cells, .. } => (*file, cells.clone()),
                What::Copy { to, count, .. } => (to.0, to.1..to.1 + count),
                What::Read { .. } | What::Beside { .. } => continue,
            };
            for cell in cells {
                changes.entry((file, cell)).or_default().push(at as u32);
            }
        }
        History { events, changes, known: HashMap::new() }
    }

    /// The first reads that cannot be.
    pub fn impossible(&mut self, most: usize) -> Vec<String> {
        let mut bad = Vec::new();
        for event in self.events {
            let What::Read { file, first, values } = &event.what else { continue };
            for (cell, value) in (*first..).zip(values) {
                if bad.len() < most && !self.may_be((*file, cell), *value, event.start..event.end) {
                    bad.push(self.tell((*file, cell), *value, event));
                }
            }
        }
        bad
    }

    /// Whether a cell may have had `seen` at a moment of the time.
    fn may_be(&mut self, cell: (File, u32), seen: u64, time: Range<u64>) -> bool {
        let mut passed = HashSet::new();
        let may = self.search(cell, seen, time, &mut passed);
        if !may {
            self.known.extend(passed.into_iter().map(|(at, cell)| ((at, cell, seen), false)));
        }
        may
    }

    /// By changes that are not `passed`: copies may have led in a circle.
    fn search(
        &mut self,
        cell: (File, u32),
        seen: u64,
        time: Range<u64>,
        passed: &mut HashSet<(u32, u32)>,
    ) -> bool {
        let all = self.changes.get(&cell).cloned().unwrap_or_default();
        let events = self.events;
        let done = all.iter().map(|at| &events[*at as usize]);
        let newest = done.filter(|e| e.sure && e.end < time.start).map(|e| e.start).max();
        if newest.is_none() && seen == 0 {
            return true;
        }
        let newest = newest.unwrap_or(0);
        all.iter().any(|at| {
            let event = &events[*at as usize];
            let fresh = event.start < time.end && event.end >= newest;
            fresh && self.gives((*at, event), cell.1, seen, passed)
        })
    }

    /// Whether the change may have given the cell `seen`.
    fn gives(
        &mut self,
        (at, event): (u32, &Event),
        cell: u32,
        seen: u64,
        passed: &mut HashSet<(u32, u32)>,
    ) -> bool {
        match &event.what {
            What::Put { stamp, .. } => value(*stamp, cell) == seen,
            What::Copy { from, to, .. } => {
                if let Some(known) = self.known.get(&(at, cell, seen)) {
                    return *known;
                }
                if !passed.insert((at, cell)) {
                    return false;
                }
                let source = (from.0, from.1 + (cell - to.1));
                let may = self.search(source, seen, event.start..event.end, passed);
                if may {
                    self.known.insert((at, cell, seen), true);
                }
                may
            }
            What::Read { .. } | What::Beside { .. } => false,
        }
    }

    fn tell(&self, cell: (File, u32), seen: u64, read: &Event) -> String {
        let (start, end) = (read.start, read.end);
        let seen_as = name(seen);
        let mut told = format!("{} {start}..{end} sees {seen_as} in {cell:?}; changes:", read.name);
        self.tell_changes(&mut told, cell, start..end, 1);
        let writes = |event: &&Event| match &event.what {
            What::Put { stamp, .. } => *stamp == seen >> 16 && seen != 0,
            _ => false,
        };
        told += &format!("\n   written by {:?}\n   beside:", self.events.iter().find(writes));
        for event in self.events.iter().filter(|e| e.start < end && e.end + 300 > start) {
            if let What::Beside { file, cells } = &event.what
                && *file == cell.0
                && cells.contains(&cell.1)
            {
                told += &format!("\n   {} {}..{} {cells:?}", event.name, event.start, event.end);
            }
        }
        told
    }

    /// What may have given the cell its value then, with where copies had theirs from.
    fn tell_changes(&self, told: &mut String, cell: (File, u32), time: Range<u64>, depth: usize) {
        let all = self.changes.get(&cell).cloned().unwrap_or_default();
        let mut all: Vec<_> = all.iter().map(|at| &self.events[*at as usize]).collect();
        all.retain(|e| e.start < time.end);
        all.sort_by_key(|e| e.end);
        for event in all.iter().rev().take(6) {
            let what = match &event.what {
                What::Put { stamp, cells, .. } => {
                    format!("{} {cells:?}", name(value(*stamp, cell.1)))
                }
                other => format!("{other:?}"),
            };
            let sure = if event.sure { "" } else { " perhaps" };
            let indent = " ".repeat(3 * depth);
            *told +=
                &format!("\n{indent}{} {}..{}{sure} {what}", event.name, event.start, event.end);
            if let What::Copy { from, to, .. } = &event.what
                && depth < 4
            {
                let source = (from.0, from.1 + (cell.1 - to.1));
                self.tell_changes(told, source, event.start..event.end, depth + 1);
            }
        }
    }
}

fn name(value: u64) -> String {
    format!("{}:{}", value >> 16, value & 0xffff)
}
