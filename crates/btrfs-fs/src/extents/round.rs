//! Ranges of a file in whole sectors.
//!
//! What it does not know: what lies there.

use std::ops::Range;

/// All sectors of which [start, end) has something.
pub(crate) fn sectors_of(sector: u64, start: u64, end: u64) -> Range<u64> {
    start / sector * sector..end.next_multiple_of(sector)
}

/// Those that lie in it wholly. Where a sector of which it has a part alone is its only one, the end is in
/// front of the start.
pub(crate) fn sectors_within(sector: u64, start: u64, end: u64) -> Range<u64> {
    start.next_multiple_of(sector)..end / sector * sector
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_rounded_outwards_and_inwards() {
        let both = |start, end| (sectors_of(4096, start, end), sectors_within(4096, start, end));
        assert_eq!(both(0, 8192), (0..8192, 0..8192));
        assert_eq!(both(1, 8193), (0..12288, 4096..8192));
        assert_eq!(both(4095, 4097), (0..8192, 4096..4096));
        let (touched, whole) = both(5000, 6000);
        assert_eq!((touched, whole.start, whole.end), (4096..8192, 8192, 4096));
    }
}
