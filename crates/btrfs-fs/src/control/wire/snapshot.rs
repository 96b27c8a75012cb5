//! Those of snapshots, whose source is what the caller has open.
//!
//! A descriptor of the caller's does not reach a server. So the source is asked first, which the
//! caller must have come to, and answers a word that the snapshot is asked for with.

use super::{FLAG_READ_ONLY, OURS, READ, WRITE, command, number, text, with_name};
use vfs::Ino;

/// Leave to make a snapshot of the subvolume of this directory: a word that the server knows by.
pub const SNAPSHOT_SOURCE: u32 = command(READ, OURS, 90, 16);
/// Makes a snapshot: the source, flags, the name.
pub const SNAPSHOT: u32 = command(WRITE, OURS, 7, 4096);

/// The record names the source by its number.
const FLAG_BY_NUMBER: u64 = 1 << 4;
/// Where the flags and the name stand.
const FLAGS: usize = 16;
const NAME: usize = 24;

/// What is snapshotted.
// Exhaustive: a record has one bit for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// What `SNAPSHOT_SOURCE` of its root directory answered.
    Word([u8; 16]),
    /// Its root directory, as a mount numbers it; for administrators alone, who come to all of them.
    Number(Ino),
}

impl Source {
    /// Its bytes, and the flag that says what they are.
    pub(super) fn parts(self) -> ([u8; 16], u64) {
        match self {
            Source::Word(word) => (word, 0),
            Source::Number(ino) => (u128::from(ino.0).to_le_bytes(), FLAG_BY_NUMBER),
        }
    }

    /// As they stand at `at`; also what flags there are beside.
    pub(super) fn read(record: &[u8], at: usize, flags: u64) -> Option<(Source, u64)> {
        let word = record.get(at..at.checked_add(16)?)?.try_into().ok()?;
        let source = match flags & FLAG_BY_NUMBER {
            0 => Source::Word(word),
            _ => Source::Number(Ino(number(record, at)?)),
        };
        Some((source, flags & !FLAG_BY_NUMBER))
    }
}

/// The record of `SNAPSHOT`.
pub struct SnapshotArgs<'a> {
    /// What is snapshotted.
    pub source: Source,
    /// Nothing in the snapshot can be changed.
    pub read_only: bool,
    /// Of the snapshot, in the directory that it is asked of.
    pub name: &'a [u8],
}

impl<'a> SnapshotArgs<'a> {
    /// `None`: too short, or flags that are none.
    pub fn parse(record: &'a [u8]) -> Option<SnapshotArgs<'a>> {
        let (source, flags) = Source::read(record, 0, number(record, FLAGS)?)?;
        let read_only = flags & FLAG_READ_ONLY != 0;
        let name = text(record, NAME)?;
        (flags & !FLAG_READ_ONLY == 0).then_some(SnapshotArgs { source, read_only, name })
    }

    /// `None`: the name is too long for the record.
    pub fn write(&self) -> Option<Vec<u8>> {
        let mut record = with_name(4096, NAME, self.name)?;
        let (source, flag) = self.source.parts();
        record[..16].copy_from_slice(&source);
        let flags = flag | if self.read_only { FLAG_READ_ONLY } else { 0 };
        record[FLAGS..FLAGS + 8].copy_from_slice(&flags.to_le_bytes());
        Some(record)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_pass_as_they_are() {
        for source in [Source::Word([7; 16]), Source::Number(Ino(1 << 40 | 256))] {
            for read_only in [false, true] {
                let record = SnapshotArgs { source, read_only, name: b"x" }.write().unwrap();
                let read = SnapshotArgs::parse(&record).unwrap();
                assert_eq!(
                    (read.source, read.read_only, read.name),
                    (source, read_only, &b"x"[..])
                );
                for cut in 0..NAME {
                    assert!(SnapshotArgs::parse(&record[..cut]).is_none(), "{cut}");
                }
            }
        }
        assert!(SnapshotArgs::parse(&[0xff; 4096]).is_none());
    }
}
