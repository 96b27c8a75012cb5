//! What a regular file holds: pieces of 64 KiB that files share until one is written to.
//!
//! Invariants: a piece holds at most `PIECE` bytes, and what it lacks of them is zeros; a piece
//! that is absent is a hole; no piece holds anything behind `size`.

use std::sync::Arc;

/// A copy shares whole pieces, and a file that grows is moved within one at most.
pub(super) const PIECE: usize = 64 << 10;
/// Nobody writes behind this: the list of pieces would be a gigabyte.
pub(super) const MOST: u64 = 1 << 43;
/// What blocks are counted in.
const BLOCK: usize = 4096;

#[derive(Default)]
pub(super) struct Content {
    pieces: Vec<Option<Arc<Vec<u8>>>>,
    size: u64,
    blocks: u64,
}

/// The parts of `offset..offset + len` within one piece each: which, from where, how many bytes.
fn parts(offset: u64, len: usize) -> impl Iterator<Item = (usize, usize, usize)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let at = (offset + done as u64) as usize;
        let take = (PIECE - at % PIECE).min(len - done);
        done += take;
        (take > 0).then_some((at / PIECE, at % PIECE, take))
    })
}

fn blocks_of(piece: Option<&Arc<Vec<u8>>>) -> u64 {
    piece.map_or(0, |piece| piece.len().div_ceil(BLOCK) as u64)
}

impl Content {
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Of 512 bytes, as `stat` counts them.
    pub fn sectors(&self) -> u64 {
        self.blocks * (BLOCK as u64 / 512)
    }

    pub fn read(&self, offset: u64, buf: &mut [u8]) -> usize {
        let len = buf.len().min(self.size.saturating_sub(offset) as usize);
        let mut rest = &mut buf[..len];
        for (index, from, take) in parts(offset, len) {
            let (into, behind) = rest.split_at_mut(take);
            let held = self.piece(index).and_then(|piece| piece.get(from..)).unwrap_or_default();
            let held = &held[..held.len().min(take)];
            into[..held.len()].copy_from_slice(held);
            into[held.len()..].fill(0);
            rest = behind;
        }
        len
    }

    fn piece(&self, index: usize) -> Option<&[u8]> {
        self.pieces.get(index)?.as_deref().map(Vec::as_slice)
    }

    /// Changes a piece, and counts its blocks anew.
    fn change(&mut self, index: usize, change: impl FnOnce(&mut Vec<u8>)) {
        if self.pieces.len() <= index {
            self.pieces.resize(index + 1, None);
        }
        let piece = &mut self.pieces[index];
        let before = blocks_of(piece.as_ref());
        change(Arc::make_mut(piece.get_or_insert_default()));
        self.blocks = self.blocks + blocks_of(piece.as_ref()) - before;
    }

    fn set(&mut self, index: usize, new: Option<Arc<Vec<u8>>>) {
        if self.pieces.len() <= index {
            self.pieces.resize(index + 1, None);
        }
        let old = std::mem::replace(&mut self.pieces[index], new);
        self.blocks =
            self.blocks + blocks_of(self.pieces[index].as_ref()) - blocks_of(old.as_ref());
    }

    pub fn write(&mut self, offset: u64, mut data: &[u8]) {
        for (index, from, take) in parts(offset, data.len()) {
            let (now, behind) = data.split_at(take);
            self.change(index, |piece| {
                if piece.len() < from {
                    piece.resize(from, 0);
                }
                let over = take.min(piece.len() - from);
                piece[from..from + over].copy_from_slice(&now[..over]);
                piece.extend_from_slice(&now[over..]);
            });
            data = behind;
        }
    }

    /// `write`, and the size with it.
    pub fn put(&mut self, offset: u64, data: &[u8]) {
        self.write(offset, data);
        self.grow(offset + data.len() as u64);
    }

    pub fn grow(&mut self, size: u64) {
        self.size = self.size.max(size);
    }

    pub fn truncate(&mut self, size: u64) {
        if size < self.size {
            let keep = (size as usize).div_ceil(PIECE);
            for index in keep..self.pieces.len() {
                self.set(index, None);
            }
            self.pieces.truncate(keep);
            let within = size as usize % PIECE;
            if within > 0 && self.pieces.get(keep - 1).is_some_and(Option::is_some) {
                self.change(keep - 1, |piece| piece.truncate(within));
            }
        }
        self.size = size;
    }

    /// Zeros from here on, in whole pieces by a hole. The size stays.
    pub fn zero(&mut self, offset: u64, len: u64) {
        let held = (self.pieces.len() * PIECE) as u64;
        let len = len.min(self.size.min(held).saturating_sub(offset)) as usize;
        for (index, from, take) in parts(offset, len) {
            if self.piece(index).is_none() {
                continue;
            }
            if take == PIECE {
                self.set(index, None);
                continue;
            }
            self.change(index, |piece| {
                let end = (from + take).min(piece.len());
                if from < end {
                    piece[from..end].fill(0);
                }
            });
        }
    }

    /// The first byte of data (or of a hole) at `offset` or behind it; `None` at the end.
    pub fn seek(&self, offset: u64, data: bool) -> Option<u64> {
        let left = usize::try_from(self.size.checked_sub(offset)?).ok()?;
        // An absent piece is one step however long: a file may be of a size that nobody walks.
        let behind = (self.pieces.len() * PIECE) as u64;
        let walked = left.min(behind.saturating_sub(offset) as usize);
        let found = parts(offset, walked).find_map(|(index, from, take)| {
            // A block that holds anything is data.
            let held = self.piece(index).map_or(0, <[u8]>::len).next_multiple_of(BLOCK);
            let at = if data { from } else { from.max(held) };
            let is_it = if data { from < held } else { at < from + take };
            is_it.then_some((index * PIECE + at) as u64)
        });
        let found = match found {
            Some(at) => Some(at),
            None if data => None,
            None => Some(behind.max(offset)),
        };
        found.map(|at| at.min(self.size))
    }

    /// What is at `offset`, to be given to `take`: at most a piece, and shared where that is whole.
    pub fn give(&self, offset: u64, len: usize) -> Given {
        let (index, from) = (offset as usize / PIECE, offset as usize % PIECE);
        let len = len.min(self.size.saturating_sub(offset) as usize).min(PIECE - from);
        let last = offset + len as u64 == self.size;
        if from == 0 && (len == PIECE || last) {
            return Given { len, what: What::Piece(self.pieces.get(index).cloned().flatten()) };
        }
        let mut bytes = vec![0; len];
        self.read(offset, &mut bytes);
        Given { len, what: What::Bytes(bytes) }
    }

    pub fn take(&mut self, offset: u64, given: Given) {
        let end = offset + given.len as u64;
        match given.what {
            What::Bytes(bytes) => self.write(offset, &bytes),
            What::Piece(piece) => {
                let whole = given.len == PIECE || end >= self.size;
                match offset as usize % PIECE {
                    0 if whole => self.set(offset as usize / PIECE, piece),
                    _ => {
                        let mut bytes = piece.as_deref().cloned().unwrap_or_default();
                        bytes.resize(given.len, 0);
                        self.write(offset, &bytes);
                    }
                }
            }
        }
        self.grow(end);
    }
}

/// On its way from one file to another.
pub(super) struct Given {
    pub len: usize,
    what: What,
}

enum What {
    Piece(Option<Arc<Vec<u8>>>),
    Bytes(Vec<u8>),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(content: &Content) -> Vec<u8> {
        let mut bytes = vec![1; content.size() as usize + 9];
        let len = content.read(0, &mut bytes);
        bytes.truncate(len);
        bytes
    }

    #[test]
    fn what_was_written_is_read() {
        let mut content = Content::default();
        content.put(PIECE as u64 - 3, b"across two");
        let mut expected = vec![0; PIECE - 3];
        expected.extend_from_slice(b"across two");
        assert_eq!(all(&content), expected);
        content.put(2, b"ab");
        expected[2..4].copy_from_slice(b"ab");
        assert_eq!((all(&content), content.sectors()), (expected.clone(), 8 * 17));
        content.truncate(3);
        content.truncate(6);
        assert_eq!(all(&content), b"\0\0a\0\0\0", "what was cut off is gone");
        assert_eq!(content.sectors(), 8);
    }

    #[test]
    fn holes_are_found_and_made() {
        let (mut content, piece) = (Content::default(), PIECE as u64);
        content.put(piece + 5, b"x");
        content.grow(1 << 60);
        assert_eq!((content.seek(0, true), content.seek(0, false)), (Some(piece), Some(0)));
        assert_eq!(content.seek(piece + 1, false), Some(piece + BLOCK as u64));
        assert_eq!((content.seek(2 * piece, true), content.seek(1 << 60, true)), (None, None));
        content.truncate(piece * 2);
        content.zero(piece, piece);
        assert_eq!((content.seek(0, true), content.sectors()), (None, 0));
        content.put(0, &[7; PIECE]);
        content.zero(1, 2);
        assert_eq!(all(&content)[..4], [7, 0, 0, 7]);
    }

    #[test]
    fn copies_share_and_part_when_one_is_written() {
        let (mut from, mut to) = (Content::default(), Content::default());
        from.put(0, b"0123456789");
        to.take(0, from.give(0, 100));
        assert!(Arc::ptr_eq(from.pieces[0].as_ref().unwrap(), to.pieces[0].as_ref().unwrap()));
        to.put(0, b"x");
        assert_eq!((all(&from), all(&to)), (b"0123456789".to_vec(), b"x123456789".to_vec()));
        to.put(10, b"behind");
        to.take(0, from.give(0, 100));
        assert_eq!(all(&to), b"0123456789behind", "more than it gets stays");
        to.take(3, from.give(8, 9));
        assert_eq!(all(&to), b"0128956789behind");
        to.take(20, from.give(0, 4));
        assert_eq!(all(&to), b"0128956789behind\0\0\0\x000123");
    }
}
