//! What was given out of damaged volumes although no checksum vouches for it, until somebody asks.
//!
//! Invariants: ranges of a file are in the order in which they were read, and touch nowhere. There are no more
//! than `MOST` of them: where nobody asks (a mount) they are not gathered without end.
//!
//! What it does not know: what is wrong with it, and who may have it.

use crate::ObjectId;
use locks::{Mutex, Rank};
use std::collections::BTreeMap;

/// Chosen, not measured.
const MOST: usize = 1 << 16;

/// See above.
pub struct Unverified(Mutex<Files>);

#[derive(Default)]
struct Files {
    ranges: BTreeMap<ObjectId, Vec<(u64, u64)>>,
    count: usize,
}

impl Default for Unverified {
    fn default() -> Unverified {
        Unverified(Mutex::new(Rank::Leaf, Files::default()))
    }
}

impl Unverified {
    /// `len` bytes of a file from `at` on were given out.
    pub fn add(&self, file: ObjectId, at: u64, len: u64) {
        let mut files = self.0.lock();
        let full = files.count >= MOST;
        let last = files.ranges.get_mut(&file).and_then(|ranges| ranges.last_mut());
        match last {
            Some((start, had)) if (*start..=*start + *had).contains(&at) => {
                *had = (*had).max(at + len - *start);
            }
            _ if full => {}
            _ => {
                files.ranges.entry(file).or_default().push((at, len));
                files.count += 1;
            }
        }
    }

    /// Offsets and lengths of what was given out of a file since the last call.
    pub fn take(&self, file: ObjectId) -> Vec<(u64, u64)> {
        let mut files = self.0.lock();
        let ranges = files.ranges.remove(&file).unwrap_or_default();
        files.count -= ranges.len();
        ranges
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use btrfs_disk::TreeId;

    #[test]
    fn ranges_that_touch_are_one() {
        let (all, file) = (Unverified::default(), ObjectId::new(TreeId::FS, 257));
        for (at, len) in [(4096, 4096), (8192, 4096), (4096, 4096), (20480, 1)] {
            all.add(file, at, len);
        }
        assert_eq!(all.take(file), [(4096, 8192), (20480, 1)]);
        assert_eq!(all.take(file), []);
    }

    #[test]
    fn they_are_not_gathered_without_end() {
        let (all, file) = (Unverified::default(), ObjectId::new(TreeId::FS, 257));
        (0..MOST as u64 + 9).for_each(|n| all.add(file, n * 8192, 4096));
        assert_eq!(all.take(file).len(), MOST);
    }
}
