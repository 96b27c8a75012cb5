//! Content that no extent holds yet: delayed allocation.
//!
//! Invariants: pieces are sector-aligned, do not overlap and are not empty; every byte of
//! a piece is meaningful (a partly written sector was filled from the file first; behind
//! the end of the file it is zeros); the memory of a piece is at most twice as long as it is, since what is counted
//! are the bytes of pieces.
//! Does not know where content will go, nor what the file looks like on the volume.

use super::covered::Covered;
use locks::{Mutex, Rank};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Longest piece; a longer run is several pieces, so that growing one copies little.
/// Chosen, not measured.
const PIECE_MAX: usize = 1 << 20;

#[cfg(test)]
thread_local! {
    /// Pieces that this thread came by or looked for.
    pub(crate) static PIECES_SEEN: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

fn looked() {
    #[cfg(test)]
    PIECES_SEEN.set(PIECES_SEEN.get() + 1);
}

pub(crate) struct Dirty {
    sector: u64,
    pieces: BTreeMap<u64, Vec<u8>>,
    bytes: u64,
    count: Arc<Pieces>,
    covered: Mutex<Covered>,
}

/// Pieces of all files together.
#[derive(Default)]
pub(crate) struct Pieces {
    all: AtomicU64,
    /// Those that begin a file: all of a file that may become an inline item.
    first: AtomicU64,
}

impl Pieces {
    pub(crate) fn all(&self) -> u64 {
        self.all.load(Ordering::Relaxed)
    }

    pub(crate) fn first(&self) -> u64 {
        self.first.load(Ordering::Relaxed)
    }

    /// Those that a piece counts as.
    fn of(&self, start: u64) -> impl Iterator<Item = &AtomicU64> {
        let first = (start == 0).then_some(&self.first);
        std::iter::once(&self.all).chain(first)
    }
}

impl Drop for Dirty {
    fn drop(&mut self) {
        self.pieces.keys().for_each(|start| self.goes(*start));
    }
}

impl Dirty {
    pub(crate) fn new(sector: u32, count: Arc<Pieces>) -> Dirty {
        let (pieces, covered) = (BTreeMap::new(), Mutex::new(Rank::Covered, Covered::default()));
        Dirty { sector: u64::from(sector), pieces, bytes: 0, count, covered }
    }

    fn comes(&self, start: u64) {
        self.count.of(start).for_each(|n| _ = n.fetch_add(1, Ordering::Relaxed));
    }

    /// Who finds that it is gone finds in the delta what became of it.
    fn goes(&self, start: u64) {
        self.count.of(start).for_each(|n| _ = n.fetch_sub(1, Ordering::Release));
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes that lie over extents; `extents` tells, of a range, where there are any. It is asked
    /// about each range once.
    pub(crate) fn covered(&self, extents: impl Fn(Range<u64>) -> Vec<Range<u64>>) -> u64 {
        let mut covered = self.covered.lock();
        for fresh in covered.take_fresh() {
            let mut at = fresh.start;
            while let Some(start) = self.first_from(at).filter(|start| *start < fresh.end) {
                at = self.run_end_until(start, fresh.end);
                for extent in extents(start..at) {
                    let part = extent.start.max(start)..extent.end.min(at);
                    if part.start < part.end {
                        covered.insert(part);
                    }
                }
            }
        }
        covered.bytes()
    }

    /// Extents came or went below: `covered` asks anew.
    pub(crate) fn ground_changed(&mut self) {
        let mut covered = Covered::default();
        covered.note(0..u64::MAX);
        self.covered = Mutex::new(Rank::Covered, covered);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Where the last dirty place ends.
    pub(crate) fn end(&self) -> u64 {
        self.pieces.last_key_value().map_or(0, |(start, piece)| start + piece.len() as u64)
    }

    /// Offset of the first dirty byte at or behind `from`.
    pub(crate) fn first_from(&self, from: u64) -> Option<u64> {
        if self.piece_at(from).is_some() {
            return Some(from);
        }
        self.pieces.range(from..).next().map(|(start, _)| *start)
    }

    /// The first dirty place at or behind `from` that is not in `range`: what is there is about to land.
    pub(crate) fn first_beside(&self, from: u64, range: Range<u64>) -> Option<u64> {
        let first = self.first_from(from)?;
        if range.contains(&first) { self.first_from(range.end) } else { Some(first) }
    }

    /// End of the dirty run that covers `from`, or `limit` where it goes on until there; `from` itself if it is not
    /// dirty. Nothing behind `limit` is looked at: of a run that was written in any order each sector is a piece.
    pub(crate) fn run_end_until(&self, from: u64, limit: u64) -> u64 {
        let mut end = from;
        for (start, piece) in self.pieces_from(from) {
            if start > end || end >= limit {
                break;
            }
            end = start + piece.len() as u64;
        }
        end.min(limit).max(from)
    }

    /// The parts of [from, end) that are not dirty.
    pub(crate) fn gaps(&self, from: u64, end: u64) -> Vec<Range<u64>> {
        let (mut gaps, mut at) = (Vec::new(), from);
        while at < end {
            let next = self.first_from(at).map_or(end, |next| next.min(end));
            if at < next {
                gaps.push(at..next);
            }
            at = self.run_end_until(next, end);
        }
        gaps
    }

    /// The pieces, from the one that covers `offset` on; none if it is not dirty.
    fn pieces_from(&self, offset: u64) -> impl Iterator<Item = (u64, &Vec<u8>)> {
        let first = self.piece_at(offset).map(|(start, _)| start);
        let all = first.into_iter().flat_map(move |first| self.pieces.range(first..));
        all.inspect(|_| looked()).map(|(start, piece)| (*start, piece))
    }

    fn piece_at(&self, offset: u64) -> Option<(u64, &Vec<u8>)> {
        looked();
        let (start, piece) = self.pieces.range(..=offset).next_back()?;
        (start + piece.len() as u64 > offset).then_some((*start, piece))
    }

    pub(crate) fn covers(&self, offset: u64) -> bool {
        self.piece_at(offset).is_some()
    }

    /// New sectors that `write` of this range would add, in bytes.
    #[cfg(test)]
    fn missing(&self, start: u64, end: u64) -> u64 {
        let (mut at, end) = (start / self.sector * self.sector, end.next_multiple_of(self.sector));
        let mut missing = 0;
        while at < end {
            if let Some((piece_start, piece)) = self.piece_at(at) {
                at = piece_start + piece.len() as u64;
                continue;
            }
            let next = self.pieces.range(at..).next().map_or(end, |(s, _)| (*s).min(end));
            missing += next - at;
            at = next;
        }
        missing
    }

    /// Stores `data`. Sectors that it covers partly are dirty already (the caller filled
    /// them) or new, then the rest of them is zeros.
    pub(crate) fn write(&mut self, offset: u64, data: &[u8]) {
        let mut done = 0;
        while done < data.len() {
            let at = offset + done as u64;
            done += self.write_some(at, &data[done..]);
        }
    }

    fn write_some(&mut self, at: u64, data: &[u8]) -> usize {
        if let Some((&start, piece)) = self.pieces.range_mut(..=at).next_back() {
            let within = (at - start) as usize;
            if within < piece.len() {
                let take = data.len().min(piece.len() - within);
                piece[within..within + take].copy_from_slice(&data[..take]);
                return take;
            }
        }
        let sector_start = at / self.sector * self.sector;
        let gap_end = self.pieces.range(at..).next().map_or(u64::MAX, |(s, _)| *s);
        let head = (at - sector_start) as usize;
        let room = (gap_end - at).min((PIECE_MAX - head) as u64) as usize;
        let take = data.len().min(room);
        self.append(sector_start, head, &data[..take]);
        take
    }

    /// Adds `head` zeros, `data`, and zeros up to the sector's end at `start`, to the piece
    /// that ends there if it has room, else as a new one.
    fn append(&mut self, start: u64, head: usize, data: &[u8]) {
        let len = (head + data.len()).next_multiple_of(self.sector as usize);
        self.bytes += len as u64;
        self.covered.get_mut().note(start..start + len as u64);
        if let Some((&before, piece)) = self.pieces.range_mut(..start).next_back()
            && before + piece.len() as u64 == start
            && piece.len() + len <= PIECE_MAX
        {
            let old = piece.len();
            piece.resize(old + head, 0);
            piece.extend_from_slice(data);
            piece.resize(old + len, 0);
            return;
        }
        let mut piece = Vec::with_capacity(len);
        piece.resize(head, 0);
        piece.extend_from_slice(data);
        piece.resize(len, 0);
        self.insert(start, piece);
    }

    fn insert(&mut self, start: u64, piece: Vec<u8>) {
        if self.pieces.insert(start, piece).is_none() {
            self.comes(start);
        }
    }

    /// Copies what is dirty of the range over `buf`.
    pub(crate) fn overlay(&self, offset: u64, buf: &mut [u8]) {
        let end = offset + buf.len() as u64;
        let first = self.piece_at(offset).map_or(offset, |(start, _)| start);
        for (&start, piece) in self.pieces.range(first..end) {
            let piece_end = start + piece.len() as u64;
            let (from, to) = (start.max(offset), piece_end.min(end));
            if from < to {
                buf[(from - offset) as usize..(to - offset) as usize]
                    .copy_from_slice(&piece[(from - start) as usize..(to - start) as usize]);
            }
        }
    }

    /// The slices that make up the dirty run [start, end).
    pub(crate) fn slices(&self, start: u64, end: u64) -> Vec<&[u8]> {
        let mut out = Vec::new();
        let mut at = start;
        for (piece_start, piece) in self.pieces_from(start).take_while(|(start, _)| *start < end) {
            let to = (piece_start + piece.len() as u64).min(end);
            assert!(piece_start <= at, "the run is dirty");
            out.push(&piece[(at - piece_start) as usize..(to - piece_start) as usize]);
            at = to;
        }
        assert!(at >= end, "the run is dirty");
        out
    }

    /// Forgets the sectors of [start, end); both are aligned.
    pub(crate) fn remove(&mut self, start: u64, end: u64) {
        debug_assert!(
            start.is_multiple_of(self.sector)
                && (end.is_multiple_of(self.sector) || end == u64::MAX)
        );
        if let Some((piece_start, _)) = self.piece_at(start)
            && piece_start < start
        {
            self.split(piece_start, start);
        }
        if let Some((piece_start, _)) = self.piece_at(end)
            && piece_start < end
        {
            self.split(piece_start, end);
        }
        self.covered.get_mut().remove(start..end);
        let gone: Vec<u64> = self.pieces.range(start..end).map(|(s, _)| *s).collect();
        for key in gone {
            let piece = self.pieces.remove(&key).expect("just listed");
            self.bytes -= piece.len() as u64;
            self.goes(key);
        }
    }

    fn split(&mut self, piece_start: u64, at: u64) {
        let piece = self.pieces.get_mut(&piece_start).expect("a piece starts here");
        let tail = piece.split_off((at - piece_start) as usize);
        // What is split off gets memory of its own, and the head keeps all that it had.
        if piece.capacity() / 2 > piece.len() {
            piece.shrink_to_fit();
        }
        self.insert(at, tail);
    }

    /// Cuts at a new end of file: sectors behind vanish, the last one ends in zeros.
    pub(crate) fn truncate(&mut self, size: u64) {
        self.remove(size.next_multiple_of(self.sector), u64::MAX);
        if !size.is_multiple_of(self.sector)
            && let Some((&start, piece)) = self.pieces.range_mut(..=size).next_back()
            && start + piece.len() as u64 > size
        {
            piece[(size - start) as usize..].fill(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 4096;

    /// A tiny model: what is dirty, byte by byte.
    fn check(dirty: &Dirty, model: &BTreeMap<u64, u8>) {
        assert_eq!(dirty.bytes(), model.len() as u64);
        for (offset, byte) in model {
            let mut buf = [0xEE];
            dirty.overlay(*offset, &mut buf);
            assert_eq!(buf[0], *byte, "at {offset}");
        }
    }

    #[test]
    fn random_writes_removals_and_cuts_match_a_model() {
        let mut seed = 42u64;
        let mut random = move |n: u64| {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (seed >> 33) % n
        };
        for _ in 0..50 {
            let count = Arc::new(Pieces::default());
            let mut dirty = Dirty::new(S as u32, count.clone());
            let mut model = BTreeMap::new();
            for step in 0..40u64 {
                let (a, len) = (random(20 * S), 1 + random(3 * S));
                match random(4) {
                    0 => {
                        let (from, to) = (a / S * S, (a + len).next_multiple_of(S));
                        dirty.remove(from, to);
                        model.retain(|k, _| *k < from || *k >= to);
                    }
                    1 if step % 5 == 0 => {
                        dirty.truncate(a);
                        model.retain(|k, _| *k < a.next_multiple_of(S));
                        model.range_mut(a..).for_each(|(_, v)| *v = 0);
                    }
                    _ => {
                        let missing = dirty.missing(a, a + len);
                        let before = dirty.bytes();
                        dirty.write(a, &vec![step as u8 + 1; len as usize]);
                        assert_eq!(dirty.bytes() - before, missing);
                        for k in a / S * S..(a + len).next_multiple_of(S) {
                            model.entry(k).or_insert(0);
                        }
                        (a..a + len).for_each(|k| {
                            model.insert(k, step as u8 + 1);
                        });
                    }
                }
            }
            check(&dirty, &model);
            assert_eq!(count.all(), dirty.pieces.len() as u64);
            assert_eq!(count.first(), u64::from(dirty.covers(0)));
            drop(dirty);
            assert_eq!((count.all(), count.first()), (0, 0));
        }
    }

    /// What is cut off gives its memory back: by writes and cuts by turns anybody could have all of it otherwise.
    #[test]
    fn pieces_have_no_memory_that_nobody_counts() {
        let memory = |dirty: &Dirty| dirty.pieces.values().map(Vec::capacity).sum::<usize>();
        let mut dirty = Dirty::new(S as u32, Arc::default());
        dirty.write(0, &vec![1; PIECE_MAX]);
        dirty.truncate(1);
        assert_eq!(dirty.bytes(), S);
        assert!(memory(&dirty) <= 2 * S as usize, "{} bytes", memory(&dirty));
        dirty.write(0, &vec![1; PIECE_MAX]);
        for at in (S..PIECE_MAX as u64).step_by(2 * S as usize) {
            dirty.remove(at, at + S);
        }
        assert_eq!(dirty.bytes(), PIECE_MAX as u64 / 2);
        assert!(memory(&dirty) <= PIECE_MAX, "{} bytes", memory(&dirty));
        dirty.truncate(0);
        for at in 0..100 {
            dirty.write(at * S, &[1]);
            assert!(memory(&dirty) as u64 <= 2 * dirty.bytes(), "{} bytes", memory(&dirty));
        }
    }

    #[test]
    fn runs_are_found() {
        let mut dirty = Dirty::new(S as u32, Arc::default());
        dirty.write(0, &vec![1; 3 << 20]);
        dirty.write(8 << 20, &[1]);
        assert_eq!(dirty.run_end_until(0, u64::MAX), 3 << 20);
        assert_eq!(dirty.run_end_until(S, 5000), 5000);
        assert_eq!(dirty.run_end_until(4 << 20, 5 << 20), 4 << 20);
        assert_eq!(dirty.first_from(3 << 20), Some(8 << 20));
        assert_eq!(
            dirty.slices(S, 2 << 20).iter().map(|s| s.len()).sum::<usize>(),
            (2 << 20) - 4096
        );
    }
}
