//! Subvolumes as mounts tell of them: a path that is too long for a record is asked for by itself, in pieces.

use super::{OURS, PAGE, READ, Record, WRITE, command, number};
use crate::subvol::SubvolumeInfo;

/// Part of a path: the subvolume's number, and from which byte on; how many bytes the whole has, and as many
/// as there is room for.
pub const PATH: u32 = command(READ | WRITE, OURS, 6, PAGE);

/// Where the record says what is known, and there that `PATH` has the path.
const KNOWN: usize = 16;
const IS_LONG: u64 = 8;

/// A subvolume.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Told {
    /// Without its path, where that is long.
    pub info: SubvolumeInfo,
    /// `PATH` has the path.
    pub is_long: bool,
}

impl Told {
    /// For a record in which a path may have so many bytes.
    pub fn within(mut info: SubvolumeInfo, most: usize) -> Told {
        let is_long = info.path.as_ref().is_some_and(|path| path.len() > most);
        info.path = info.path.take().filter(|_| !is_long);
        Told { info, is_long }
    }
}

impl Record for Told {
    fn write(&self, to: &mut Vec<u8>) {
        let start = to.len();
        self.info.write(to);
        if self.is_long {
            let known = number(to, start + KNOWN).unwrap_or(0) | IS_LONG;
            to[start + KNOWN..start + KNOWN + 8].copy_from_slice(&known.to_le_bytes());
        }
    }

    fn read(from: &mut &[u8]) -> Option<Told> {
        let is_long = number(from, KNOWN)? & IS_LONG != 0;
        Some(Told { info: SubvolumeInfo::read(from)?, is_long })
    }
}
