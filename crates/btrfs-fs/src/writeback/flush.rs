//! Writeback: dirty content to extents, or inline into the tree where it is short.
//!
//! Invariants: what was dirty when a flush of an inode was begun has landed when it ends, however fast others
//! write: it goes through the file once ([`Pass`]), and what comes behind it, or above, is for the next;
//! after `flush_to_extents` the inode has nothing dirty and its item is in the delta;
//! inodes that were taken out of the queue of dirty ones have landed, or are in it again, when the
//! turn ends with which they were taken (inode/queue.rs); whoever panics meanwhile has content in his hands that is in
//! no list any more, and poisons the volume, so that nobody claims that it is durable.

use super::Writeback;
use super::land::flush_run;
use super::pack::{Ahead, Packed, pack};
use super::packed::flush_packed;
use super::store::WriteMode;
use crate::error::IntoFs;
use crate::extents::{map_range, read_extents};
use crate::ino::InodeId;
use crate::inode::{Dirty, Inode, State, put_inode};
use crate::reserve::Left;
use btrfs_txn::budget;
use btrfs_txn::{BATCH, Place, Throttle, Urgency};
use inode_index::Ref;
use std::sync::atomic::{AtomicUsize, Ordering};
use vfs::{FsError, Result};

/// Content is in nobody's list, or out of the inode.
const PANICKED: &str = "writing content back panicked";

/// What of the content that was to land did.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Flushed {
    All,
    /// Some found no room.
    NoRoom,
    /// Some was refused by the device, or what it must be written beside could not be read.
    Refused,
}

/// How far a flush of an inode is.
#[derive(Default)]
pub(super) struct Pass {
    /// What was dirty in front of it at the beginning has landed.
    at: u64,
    /// Where that ended which was dirty at the beginning; `None`: nobody has looked.
    until: Option<u64>,
}

impl Pass {
    /// Where it goes on in what is dirty now; `None`: it has ended.
    fn next(&mut self, dirty: &Dirty) -> Option<u64> {
        let until = *self.until.get_or_insert_with(|| dirty.end());
        self.at = dirty.first_from(self.at).unwrap_or(u64::MAX);
        Some(self.at).filter(|at| *at < until)
    }
}

/// How many are at work on what they took out of the queue.
#[derive(Default)]
pub(super) struct Landing(AtomicUsize);

/// One of them, until this is dropped.
struct Lands<'l>(&'l AtomicUsize);

impl Landing {
    fn begin(&self) -> Lands<'_> {
        self.0.fetch_add(1, Ordering::AcqRel);
        Lands(&self.0)
    }
}

impl Drop for Lands<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Writeback {
    /// Writes back everything that was dirty when called, also what others are at work on.
    /// Inodes without names keep their content in memory while there is room, there and of
    /// metadata, which is held for it, and nobody would be refused by a limit for it: most of them vanish before it
    /// would land. For who has the turn to commit, or where there is none: what another has taken is not among it.
    /// No inode is locked by the caller.
    ///
    /// What does not land stays in memory, to be read and tried again; an error means that
    /// nothing may be written any more.
    pub(crate) fn flush_all(&self, urgency: Urgency) -> Result<Flushed> {
        let _landing = self.landing.begin();
        self.forget_early();
        let mut left = Left::new();
        let flushed = self.flush_queue(self.queue.take_all(), urgency, &mut left)?;
        self.reservations.limits.leave(left);
        Ok(flushed)
    }

    /// Writes back what nobody else is at work on: to make room in memory. `None`: there is nothing of the kind.
    pub(crate) fn flush_some(&self) -> Result<Option<Flushed>> {
        let _landing = self.landing.begin();
        let (_turn, queue) = self.queue.take_some();
        match queue.is_empty() {
            true => Ok(None),
            false => self.flush_queue(queue, Urgency::Awaited, &mut Left::new()).map(Some),
        }
    }

    /// Whether anybody is at work on what he took out of the queue, or about to take it. He ends, and waits for nobody
    /// who has a reservation.
    pub(crate) fn is_landing(&self) -> bool {
        self.landing.0.load(Ordering::Acquire) > 0
    }

    fn flush_queue(
        &self,
        queue: Vec<Ref<Inode>>,
        urgency: Urgency,
        left: &mut Left,
    ) -> Result<Flushed> {
        let health = &self.core.health;
        health.poisoned_by_panics(PANICKED, || self.flush_each(queue, urgency, left))
    }

    /// Whether content takes so much that it has to land, name or not.
    fn is_pressed(&self) -> bool {
        self.core.memory.dirty() > self.core.memory.most_dirty() / 2
            || self.reservations.content_holds_most()
            || self.reservations.content_would_outgrow()
    }

    /// The inode's content stays in memory, where limits count it still.
    fn leave(&self, inode: &Inode, left: &mut Left) {
        if self.reservations.limits.are_any() {
            let bytes = inode.read().map_or(0, |state| unwritten(&state));
            *left.entry(inode.id.tree).or_default() += bytes;
        }
    }

    fn flush_each(
        &self,
        queue: Vec<Ref<Inode>>,
        urgency: Urgency,
        left: &mut Left,
    ) -> Result<Flushed> {
        let pressed = self.is_pressed();
        let mut throttle = Throttle::new(&self.core, urgency);
        let (mut landed, mut fatal, mut full) = (Flushed::All, None, None);
        let mut ahead = Ahead::new(self, queue);
        while let Some((inode, packed)) = ahead.next(full.is_none() && fatal.is_none()) {
            // Also for those that are gone, of which there can be 100,000.
            throttle.pause();
            // Where one finds no room the others need not try before the next commit.
            if full.is_some() || fatal.is_some() {
                self.leave(&inode, left);
                self.queue.put_back(inode);
                continue;
            }
            self.queue.begin(&inode);
            let unnamed = inode.read().is_ok_and(|s| s.item.nlink == 0);
            if unnamed && !pressed && !self.reservations.limits.is_pressed(inode.id.tree) {
                self.leave(&inode, left);
                self.queue.add(&inode);
                continue;
            }
            let way = (WriteMode::Buffered, packed);
            if let Err(error) = self.flush_throttled(&inode, &mut throttle, way) {
                self.leave(&inode, left);
                if error.errno() == libc::ENOSPC {
                    landed = landed.max(Flushed::NoRoom);
                    full = Some(inode);
                    continue;
                }
                self.queue.add(&inode);
                match error {
                    FsError::Io { .. } if self.core.health.poisoned().is_none() => {
                        landed = Flushed::Refused;
                    }
                    error => fatal = Some(error),
                }
            }
            // Erasing is not for here: it may wait for the commit that waits for this.
            self.inodes.table().evict(inode);
        }
        // The last one now: it must not keep the others from landing.
        if let Some(inode) = full {
            self.queue.add(&inode);
        }
        self.errors.left(landed == Flushed::Refused);
        fatal.map_or(Ok(landed), Err)
    }

    /// Writes one inode back, letting others in between batches.
    pub(crate) fn flush_inode(&self, inode: &Ref<Inode>) -> Result<()> {
        self.flush_throttled(
            inode,
            &mut Throttle::new(&self.core, Urgency::Awaited),
            (WriteMode::Through, None),
        )
    }

    /// The same, for who holds the log: while content moves, nothing of it is written back.
    pub(crate) fn flush_if_still(&self, inode: &Ref<Inode>) -> Result<()> {
        let throttle = &mut Throttle::new(&self.core, Urgency::Awaited);
        let mut pass = Pass::default();
        loop {
            let packed = pack(self, inode, pass.at);
            let Some(_still) = self.core.addresses.try_hold_still() else { return Ok(()) };
            let how = (WriteMode::Through, packed.as_ref());
            if self.flush_one_batch(inode, throttle, how, &mut pass)?.1 {
                return Ok(());
            }
        }
    }

    /// The same, for who does not ask for it to be durable.
    pub(crate) fn flush_unasked(&self, inode: &Ref<Inode>) -> Result<()> {
        self.flush_throttled(
            inode,
            &mut Throttle::new(&self.core, Urgency::Awaited),
            (WriteMode::Buffered, None),
        )
    }

    /// What is to be compressed is written back, for who is about to lock the inode and write the
    /// rest back as it is. No inode is locked by the caller.
    pub(crate) fn flush_compressed(&self, inode: &Ref<Inode>) -> Result<()> {
        let waits = inode.read().is_ok_and(|s| s.dirty.is_some() && self.compresses(&s));
        if waits { self.flush_unasked(inode) } else { Ok(()) }
    }

    fn flush_throttled(
        &self,
        inode: &Ref<Inode>,
        throttle: &mut Throttle<'_>,
        (way, mut ahead): (WriteMode, Option<Packed>),
    ) -> Result<()> {
        let mut pass = Pass::default();
        loop {
            let packed = ahead.take().or_else(|| pack(self, inode, pass.at));
            let how = (way, packed.as_ref());
            if self.flush_batch_throttled(inode, throttle, how, &mut pass)? {
                return Ok(());
            }
        }
    }

    /// Writes a batch of one inode back, and lets others in. True: nothing is left for the pass.
    pub(super) fn flush_batch_throttled(
        &self,
        inode: &Ref<Inode>,
        throttle: &mut Throttle<'_>,
        how: (WriteMode, Option<&Packed>),
        pass: &mut Pass,
    ) -> Result<bool> {
        let still = self.core.addresses.hold_still();
        let (written, done) = self.flush_one_batch(inode, throttle, how, pass)?;
        drop(still);
        throttle.rest(written).fs()?;
        Ok(done)
    }

    /// How much was written, and whether nothing is left for the pass. The caller holds addresses still.
    fn flush_one_batch(
        &self,
        inode: &Ref<Inode>,
        throttle: &Throttle<'_>,
        (way, packed): (WriteMode, Option<&Packed>),
        pass: &mut Pass,
    ) -> Result<(u64, bool)> {
        // Gone meanwhile: its content went with it.
        let Ok(mut state) = inode.write() else { return Ok((0, true)) };
        let before = unwritten(&state);
        let most = throttle.batch();
        let done = flush_batch(self, inode.id, &mut state, (most, way), packed, pass)?;
        Ok((before.saturating_sub(unwritten(&state)), done))
    }
}

/// Writes everything back under the caller's lock, and none of it inline: the caller is
/// about to share extents or to put some behind them. Nothing is compressed here: what is to be
/// was written back before the lock was taken (`flush_compressed`).
pub(crate) fn flush_to_extents(
    writeback: &Writeback,
    id: InodeId,
    state: &mut State,
) -> Result<()> {
    state.no_inline = true;
    let (how, mut pass) = ((BATCH, WriteMode::Through), Pass::default());
    let flushed = loop {
        match flush_batch(writeback, id, state, how, None, &mut pass) {
            Ok(false) => {}
            Ok(true) => break Ok(()),
            Err(error) => break Err(error),
        }
    };
    state.no_inline = false;
    flushed
}

pub(super) fn unwritten(state: &State) -> u64 {
    state.dirty.as_ref().map_or(0, |dirty| dirty.bytes())
}

/// One batch of `most` bytes, or what was compressed; true when nothing is left for the pass.
fn flush_batch(
    writeback: &Writeback,
    id: InodeId,
    state: &mut State,
    how: (u64, WriteMode),
    packed: Option<&Packed>,
    pass: &mut Pass,
) -> Result<bool> {
    let health = &writeback.core.health;
    let content = || flush_content(writeback, id, state, how, packed, pass);
    health.poisoned_by_panics(PANICKED, || budget::suspended(content))
}

fn flush_content(
    writeback: &Writeback,
    id: InodeId,
    state: &mut State,
    (most, way): (u64, WriteMode),
    packed: Option<&Packed>,
    pass: &mut Pass,
) -> Result<bool> {
    let Some(dirty) = state.dirty.take() else {
        if state.item_dirty {
            put_inode(&writeback.core.begin(), id, state);
        }
        // Long writes are nowhere gathered.
        writeback.blocks_settled(id, state);
        return Ok(true);
    };
    let mut dirty = dirty;
    writeback.core.injection.passes(Place::Flushes);
    // Compressed before the inode was locked: it may be a file by now that has no checksums.
    let packed = packed.filter(|_| writeback.compresses(state));
    let result = match (pass.next(&dirty), packed) {
        (None, _) => Ok(()),
        (Some(at), Some(packed)) if packed.start() <= at => {
            flush_packed(writeback, id, state, &mut dirty, packed, way)
        }
        (Some(at), packed) => {
            let most = most.min(room_before(packed, at));
            flush_run(writeback, id, state, &mut dirty, at, (most, way))
        }
    };
    let goes_on = pass.next(&dirty).is_some();
    if !dirty.is_empty() {
        state.dirty = Some(dirty);
    }
    result?;
    if goes_on {
        return Ok(false);
    }
    // The size on the volume was held back by what was dirty; say the final one.
    if state.landed_size != state.disk_size() || state.item_dirty {
        put_inode(&writeback.core.begin(), id, state);
    }
    if state.dirty.is_none() {
        writeback.blocks_settled(id, state);
    }
    Ok(true)
}

/// What came in front of what was compressed lands before that: a commit in between would have content behind the end
/// of the file.
fn room_before(packed: Option<&Packed>, at: u64) -> u64 {
    packed.map_or(u64::MAX, |packed| packed.start().saturating_sub(at))
}

/// Makes the sector at `sector_start` dirty with the content that it has. The caller owns
/// a reservation of one sector, which it keeps if this returns 0 (it was dirty already).
pub(crate) fn fill_sector(
    writeback: &Writeback,
    id: InodeId,
    state: &mut State,
    sector_start: u64,
) -> Result<u64> {
    let sector = writeback.core.sector();
    if state.dirty.as_ref().is_some_and(|d| d.covers(sector_start)) {
        return Ok(0);
    }
    let mut content = vec![0; sector as usize];
    let valid = state.item.size.saturating_sub(sector_start).min(sector) as usize;
    if valid > 0 {
        read_extents(&writeback.core, id, state.item.flags, sector_start, &mut content)?;
        content[valid..].fill(0);
    }
    dirty_of(writeback, state).write(sector_start, &content);
    Ok(sector)
}

/// The inode's dirty content, made if there is none.
pub(crate) fn dirty_of<'s>(writeback: &Writeback, state: &'s mut State) -> &'s mut Dirty {
    let sector = writeback.core.geometry.sector_size;
    state.dirty.get_or_insert_with(|| Box::new(Dirty::new(sector, writeback.pieces.clone())))
}

/// Moves inline content into dirty memory, so that ranges can be changed as those of any
/// file; the next writeback decides anew. Returns the bytes that became dirty, which are a sector at most, but for who
/// unfolds a longer item (ops/long_item.rs).
pub(crate) fn load_inline(writeback: &Writeback, id: InodeId, state: &mut State) -> Result<u64> {
    let sector = writeback.core.sector();
    let size = state.item.size;
    let end = inline_end(writeback, id, state)?.min(size.next_multiple_of(sector).max(sector));
    let is_dirty = |at: u64| state.dirty.as_ref().is_some_and(|dirty| dirty.covers(at));
    let missing: Vec<u64> = (0..end).step_by(sector as usize).filter(|at| !is_dirty(*at)).collect();
    if missing.is_empty() {
        return Ok(0);
    }
    let mut content = vec![0; end as usize];
    if size > 0 {
        read_extents(&writeback.core, id, state.item.flags, 0, &mut content)?;
    }
    content[size.min(end) as usize..].fill(0);
    let dirty = dirty_of(writeback, state);
    for at in &missing {
        dirty.write(*at, &content[*at as usize..(*at + sector) as usize]);
    }
    Ok(missing.len() as u64 * sector)
}

pub(crate) fn is_inline(writeback: &Writeback, id: InodeId, state: &mut State) -> Result<bool> {
    Ok(inline_end(writeback, id, state)? > 0)
}

/// Where an inline item of the content ends, in whole sectors; 0: there is none.
pub(crate) fn inline_end(writeback: &Writeback, id: InodeId, state: &mut State) -> Result<u64> {
    if let Some(known) = state.inline_end {
        return Ok(known);
    }
    let end = look_inline_end(writeback, id)?;
    state.inline_end = Some(end);
    Ok(end)
}

/// The same, for who cannot note it: the file's first item says.
pub(crate) fn look_inline_end(writeback: &Writeback, id: InodeId) -> Result<u64> {
    let mapped = map_range(&writeback.core.view(), id, writeback.core.sector(), 0, 1).fs()?;
    Ok(mapped.first().filter(|m| m.is_inline()).map_or(0, |m| m.end))
}
