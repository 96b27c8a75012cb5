//! Compressing content ahead of its writeback: a copy of it is taken under the inode's lock and
//! compressed outside of all locks, on as many processors as have nothing else to compress.
//!
//! Invariants: what is made here is worth something only while the content is what was copied;
//! whoever stores it looks (`Packed::agrees`). What one caller has under way is [`MOST`] bytes, what all
//! have [`ALL`] and a group of pieces each ([`Room`]); copies and streams together are at most twice that.
//!
//! As the kernel does, content is cut in pieces of 128 KiB, and where one of [`GROUP`] does not get
//! smaller, those behind it in the group are not tried. What it does not know: extents.

use super::land::may_inline;
use super::{Writeback, compresses};
use crate::extents::sums;
use crate::inode::{Dirty, Inode, State};
use crate::options::compression::{PROPERTY, Plan, plan};
use crate::xattrs;
use btrfs_disk::compress::{MAX_UNCOMPRESSED, compress, looks_compressible};
use btrfs_txn::Place;
use inode_index::Ref;
use locks::{Mutex, Rank};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Content that is compressed ahead at a time, in bytes.
/// Chosen, not measured: as much as one operation stores at once (`btrfs_txn::BATCH`).
pub(super) const MOST: u64 = 8 << 20;
/// The same, by all callers together. Who comes when that is under way waits for nobody: he has one group at a time.
const ALL: u64 = 4 * MOST;
/// Inodes that are looked at for that.
/// Chosen, not measured.
const SEVERAL: usize = 256;
/// Pieces that are judged together.
/// Chosen, not measured.
const GROUP: usize = 4;
/// Bytes of content for which another thread is asked to help.
/// Chosen, not measured.
const WORTH_A_THREAD: u64 = 64 << 10;

/// One piece of content.
#[derive(Debug)]
pub(super) struct Piece {
    pub(super) start: u64,
    /// In whole sectors.
    pub(super) len: u64,
    /// `None`: it stays as it is.
    pub(super) stream: Option<Stream>,
    /// It is all of a file, and the stream fits into its item.
    pub(super) inline: bool,
}

#[derive(Debug)]
pub(super) struct Stream {
    /// In whole sectors, unless it is to be inline.
    pub(super) bytes: Vec<u8>,
    /// Of its sectors.
    pub(super) sums: Box<[u8]>,
}

/// What was compressed of one file, from its first dirty byte on.
pub(super) struct Packed {
    pub(super) plan: Plan,
    pub(super) pieces: Vec<Piece>,
    /// The file is one that does not get smaller.
    pub(super) incompressible: bool,
    size: u64,
    content: Vec<u8>,
    _room: Claim,
}

impl Packed {
    pub(super) fn start(&self) -> u64 {
        self.pieces[0].start
    }

    pub(super) fn end(&self) -> u64 {
        self.start() + self.content.len() as u64
    }

    /// True if the piece was compressed, and is still what it was then. Zeros behind the end of the
    /// file may have become content meanwhile: where the stream ends are zeros.
    pub(super) fn agrees(&self, piece: &Piece, dirty: &Dirty, size: u64) -> bool {
        let end = piece.start + piece.len;
        let other_end = piece.inline && size != self.size;
        let whole = || dirty.run_end_until(piece.start, end) == end;
        if piece.stream.is_none() || other_end || !whole() {
            return false;
        }
        let mut at = (piece.start - self.start()) as usize;
        dirty.slices(piece.start, end).iter().all(|slice| {
            let same = self.content[at..at + slice.len()] == **slice;
            at += slice.len();
            same
        })
    }
}

/// Compresses what is first in the dirty content of `inode` from `from` on, if it is to be.
pub(super) fn pack(writeback: &Writeback, inode: &Inode, from: u64) -> Option<Packed> {
    let mut copied = [copy(writeback, inode, from, MOST)?];
    Work::new(writeback, &mut copied).done(1);
    let [packed] = copied;
    Some(packed)
}

/// Inodes that are to be written back one after the other. Content of those that come next, up to
/// [`MOST`] bytes together, is compressed at a time, so that short files are compressed beside
/// each other, too.
pub(super) struct Ahead<'w> {
    writeback: &'w Writeback,
    queue: VecDeque<Ref<Inode>>,
    packed: VecDeque<Option<Packed>>,
    /// Of the threads that may be had, one of so many.
    share: usize,
}

impl<'w> Ahead<'w> {
    pub(super) fn new(writeback: &'w Writeback, queue: Vec<Ref<Inode>>) -> Ahead<'w> {
        Ahead { writeback, queue: queue.into(), packed: VecDeque::new(), share: 1 }
    }

    /// The same, for who has time: half of the processors are for others.
    pub(super) fn beside(writeback: &'w Writeback, queue: Vec<Ref<Inode>>) -> Ahead<'w> {
        Ahead { share: 2, ..Ahead::new(writeback, queue) }
    }

    /// The next one; where none is to be written nothing more is compressed.
    pub(super) fn next(&mut self, written: bool) -> Option<(Ref<Inode>, Option<Packed>)> {
        if self.packed.is_empty() && written {
            self.pack();
        }
        let inode = self.queue.pop_front()?;
        Some((inode, self.packed.pop_front().flatten()))
    }

    fn pack(&mut self) {
        let mut left = MOST;
        for inode in self.queue.iter().take(SEVERAL) {
            // What has no name is hardly written.
            let named = inode.read().is_ok_and(|state| state.item.nlink > 0);
            let packed = if named { copy(self.writeback, inode, 0, left) } else { None };
            left -= packed.as_ref().map_or(0, |packed| packed.content.len() as u64);
            self.packed.push_back(packed);
            if left == 0 || self.writeback.packing.is_full() {
                break;
            }
        }
        Work::new(self.writeback, self.packed.iter_mut().flatten()).done(self.share);
    }
}

/// What is to be compressed from `from` on, up to `most` bytes of it.
fn copy(writeback: &Writeback, inode: &Inode, from: u64, most: u64) -> Option<Packed> {
    // Gone meanwhile: its content went with it.
    let Ok(state) = inode.read() else { return None };
    let mount = writeback.compression();
    if !state.is_file() || !compresses(mount, &state) {
        return None;
    }
    let dirty = state.dirty.as_ref()?;
    let start = dirty.first_from(from)?;
    // What cannot be read is for who asks for it.
    let property = xattrs::get(&writeback.core.view(), inode.id, PROPERTY).unwrap_or_default();
    let plan = match state.compress_next {
        Some(method) => Plan { method, force: true, marks: false },
        None => plan(mount, property.as_deref()),
    };
    let room = writeback.packing.claim(dirty.run_end_until(start, start + most) - start);
    let end = start + room.bytes;
    let content = dirty.slices(start, end).concat();
    let size = state.item.size;
    let pieces = cut(writeback, &state, start, end);
    Some(Packed { plan, pieces, incompressible: false, size, content, _room: room })
}

/// Content that is compressed ahead at the moment, by all callers.
#[derive(Default)]
pub(super) struct Room(Arc<AtomicU64>);

/// So much of it, until this is dropped.
struct Claim {
    bytes: u64,
    all: Arc<AtomicU64>,
}

impl Room {
    fn is_full(&self) -> bool {
        self.0.load(Ordering::Relaxed) >= ALL
    }

    /// For `wanted` bytes, or for as many whole groups as there is room for: one in any case. With less, each
    /// piece that does not get smaller would be tried, and become an extent of its own.
    fn claim(&self, wanted: u64) -> Claim {
        let group = (GROUP * MAX_UNCOMPRESSED) as u64;
        let allowed = |used: u64| wanted.min((ALL.saturating_sub(used) / group * group).max(group));
        let take = |used: u64| Some(used + allowed(used));
        let used = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
        Claim { bytes: used.map_or_else(|used| used, allowed), all: self.0.clone() }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.all.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

fn cut(writeback: &Writeback, state: &State, start: u64, end: u64) -> Vec<Piece> {
    let sector = writeback.core.sector();
    let size = state.item.size;
    let piece = |at: u64| {
        let len = (end - at).min(MAX_UNCOMPRESSED as u64);
        let alone = at == 0 && len == sector && size > 0 && size <= sector;
        let inline = alone && may_inline(state);
        Piece { start: at, len, stream: None, inline }
    };
    (start..end).step_by(MAX_UNCOMPRESSED).map(piece).collect()
}

/// Groups of pieces that threads take one after the other.
struct Work<'a> {
    writeback: &'a Writeback,
    files: Vec<File<'a>>,
    groups: Vec<Mutex<Group<'a>>>,
    next: AtomicUsize,
}

struct File<'a> {
    plan: Plan,
    /// Behind the end of the file there is nothing to compress.
    size: u64,
    /// The first group of which a piece did not get smaller, if the file is to be marked for it.
    failed: AtomicUsize,
    incompressible: &'a mut bool,
}

struct Group<'a> {
    /// Which file, and which of its groups.
    file: usize,
    at: usize,
    pieces: Vec<(&'a mut Piece, &'a [u8])>,
}

impl<'a> Work<'a> {
    fn new(writeback: &'a Writeback, all: impl IntoIterator<Item = &'a mut Packed>) -> Work<'a> {
        let (mut files, mut groups) = (Vec::new(), Vec::new());
        for packed in all {
            let contents = packed.content.chunks(MAX_UNCOMPRESSED);
            let mut left: Vec<_> = packed.pieces.iter_mut().zip(contents).collect();
            for at in 0.. {
                let rest = left.split_off(GROUP.min(left.len()));
                let pieces = std::mem::replace(&mut left, rest);
                if pieces.is_empty() {
                    break;
                }
                groups.push(Mutex::new(Rank::Leaf, Group { file: files.len(), at, pieces }));
            }
            let (plan, size, failed) = (packed.plan, packed.size, AtomicUsize::new(usize::MAX));
            files.push(File { plan, size, failed, incompressible: &mut packed.incompressible });
        }
        Work { writeback, files, groups, next: AtomicUsize::new(0) }
    }

    fn done(mut self, share: usize) {
        if self.groups.is_empty() {
            return;
        }
        self.writeback.core.injection.passes(Place::Packs);
        let bytes = |group: &mut Mutex<Group<'_>>| {
            group.get_mut().pieces.iter().map(|(piece, _)| piece.len).sum::<u64>()
        };
        let bytes: u64 = self.groups.iter_mut().map(bytes).sum();
        // Another thread costs as much as some pages.
        let most = self.groups.len().saturating_sub(1).min((bytes / WORTH_A_THREAD) as usize);
        let helpers = self.writeback.helpers.take(most, share);
        std::thread::scope(|scope| {
            for _ in 0..helpers.0 {
                // A thread that cannot be had is done without.
                let _ = std::thread::Builder::new()
                    .name("compress".into())
                    .spawn_scoped(scope, || self.take_part());
            }
            self.take_part();
        });
        for group in &mut self.groups {
            let group = group.get_mut();
            // In the order of the file, what comes behind the mark is not tried.
            if group.at > *self.files[group.file].failed.get_mut() {
                group.pieces.iter_mut().for_each(|(piece, _)| piece.stream = None);
            }
        }
        for file in &mut self.files {
            *file.incompressible = *file.failed.get_mut() != usize::MAX;
        }
    }

    fn take_part(&self) {
        while let Some(group) = self.groups.get(self.next.fetch_add(1, Ordering::Relaxed)) {
            let group = &mut *group.lock();
            let file = &self.files[group.file];
            if group.at > file.failed.load(Ordering::Relaxed) {
                continue;
            }
            for (piece, content) in &mut group.pieces {
                match self.attempt(file, piece, content) {
                    Attempt::Smaller(stream) => piece.stream = Some(stream),
                    Attempt::Pointless => break,
                    Attempt::Failed => {
                        if file.plan.marks {
                            file.failed.fetch_min(group.at, Ordering::Relaxed);
                        }
                        break;
                    }
                }
            }
        }
    }

    fn attempt(&self, file: &File<'_>, piece: &Piece, content: &[u8]) -> Attempt {
        let sector = self.writeback.core.sector();
        let len = piece.len.min(file.size.saturating_sub(piece.start));
        let limit = match piece.inline {
            true => len.saturating_sub(1).min(self.writeback.core.geometry.max_inline() as u64),
            // A sector must be saved.
            false => piece.len - sector,
        };
        let content = &content[..len as usize];
        if limit == 0 || content.is_empty() || !file.plan.force && !looks_compressible(content) {
            return Attempt::Pointless;
        }
        let (method, sector) = (file.plan.method, sector as usize);
        match compress(method.kind, method.level, sector, content, limit as usize) {
            Some(mut bytes) if !piece.inline => {
                bytes.resize(bytes.len().next_multiple_of(sector), 0);
                let sums = sums::compute(&self.writeback.core, &[&bytes]);
                Attempt::Smaller(Stream { bytes, sums })
            }
            Some(bytes) => Attempt::Smaller(Stream { bytes, sums: Box::default() }),
            None => Attempt::Failed,
        }
    }
}

enum Attempt {
    Smaller(Stream),
    /// It was not tried.
    Pointless,
    Failed,
}

/// Threads that may be had beside those that compress for themselves.
pub(super) struct Helpers {
    all: usize,
    free: AtomicUsize,
}

impl Default for Helpers {
    fn default() -> Helpers {
        let all = std::thread::available_parallelism().map_or(1, usize::from);
        Helpers { all: all - 1, free: AtomicUsize::new(all - 1) }
    }
}

impl Helpers {
    /// Up to `most`, if that is not more than one of `share` of all.
    fn take(&self, most: usize, share: usize) -> Taken<'_> {
        let most = most.min(self.all / share);
        let mut taken = 0;
        let take = |free: usize| {
            taken = free.min(most);
            Some(free - taken)
        };
        let _ = self.free.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
        Taken(taken, self)
    }
}

/// So many of them; they come back when this is dropped.
struct Taken<'h>(usize, &'h Helpers);

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        self.1.free.fetch_add(self.0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_comes_when_all_room_is_taken_has_a_group_and_no_more() {
        let (room, group) = (Room::default(), (GROUP * MAX_UNCOMPRESSED) as u64);
        let mut claims: Vec<Claim> = (0..4).map(|_| room.claim(MOST)).collect();
        assert!(claims.iter().all(|claim| claim.bytes == MOST) && room.is_full());
        claims.extend([room.claim(MOST), room.claim(MOST)]);
        assert_eq!([claims[4].bytes, claims[5].bytes], [group; 2]);
        assert_eq!(room.claim(4096).bytes, 4096, "nobody has more than he wants");
        claims.clear();
        let most = room.claim(ALL - group - MAX_UNCOMPRESSED as u64);
        assert_eq!(room.claim(MOST).bytes, group, "no part of a second one");
        drop(most);
        assert_eq!(room.0.load(Ordering::Relaxed), 0);
    }
}
