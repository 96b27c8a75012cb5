//! The file system's state and how an operation enters an epoch.
//!
//! It ties the rooms together (volume, node store, space, inode table, layers) and offers
//! `View` for reading and `Op` for changing; what operations mean stands in `ops/`.
//!
//! Lock order: inode (ascending id) -> delta shard -> space. An `Op` is entered with its
//! inode locks held and left before they are released.

use crate::commit::Committer;
use crate::data::Pieces;
use crate::delta::{Active, Base, Delta, Level, ObjectEdit, Pending};
use crate::error::IntoFs;
use crate::extents::map_range;
use crate::ino::InodeId;
use crate::inode::{DirtyQueue, Inode, InodeTable, State};
use crate::log::Group;
use crate::ops::label::Label;
use crate::options::Options;
use crate::refusals::Refusals;
use crate::reserve::Promises;
use crate::roots::Roots;
use crate::stats::Stats;
use crate::subvol::Subvols;
use crate::sync::relax;
use crate::untold::Untold;
use crate::view::{Snapshot, View};
use arc_swap::ArcSwap;
use btrfs_disk::items::InodeItem;
use btrfs_disk::key::kind;
use btrfs_disk::{FixedSize, Generation, Geometry, Key, Logical, TreeId};
use btrfs_space::{Extent, RefOwner, Space, TreeItems};
use btrfs_tree::NodeStore;
use btrfs_volume::Volume;
use parking_lot::Mutex;
use std::cell::Cell;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use vfs::{Errno, FsError, Ino, Result};

/// Places that a run of keys is, see [`Op::run`].
pub const RUN_PLACES: u32 = 3;

pub struct Engine {
    pub volume: Arc<Volume>,
    pub store: NodeStore,
    pub space: Arc<Space>,
    pub geometry: Geometry,
    /// Shared with the allocator's prover (`open.rs`).
    pub layers: Arc<ArcSwap<Snapshot>>,
    pub inodes: InodeTable,
    pub subvols: Subvols,
    pub committer: Committer,
    pub log: Group,
    pub options: Options,
    pub stats: Stats,
    pub root: Ino,
    pub promises: Promises,
    pub untold: Untold,
    /// Held by renames across directories; see `ops/rename.rs`.
    pub rename_lock: Mutex<()>,
    /// The volume has the NO_HOLES feature: gaps need no items.
    pub no_holes: bool,
    /// The volume has the EXTENDED_IREF feature: may have INODE_EXTREF items.
    pub extended_refs: bool,
    /// Why nothing may be written, if so from the start.
    pub read_only: Option<String>,
    /// Why nothing may be written any more.
    pub poisoned: OnceLock<String>,
    /// Remounted read-only: no operation may begin to change anything.
    pub no_changes: AtomicBool,
    /// And all that was changed is durable: nothing is written.
    pub still: AtomicBool,
    /// The volume's label from the next commit on, if that changes it.
    pub new_label: Mutex<Option<Box<Label>>>,
    /// Inodes with unwritten content or times.
    pub dirty_inodes: DirtyQueue,
    pub dirty_bytes: AtomicU64,
    /// Pieces that unwritten content is in.
    pub dirty_pieces: Arc<Pieces>,
    /// Inodes without names that a full volume had no room to erase.
    pub unerased: Mutex<Vec<Arc<Inode>>>,
    pub refusals: Refusals,
    pub closed: AtomicBool,
    /// By a call that is made for that: see `ops/shutdown.rs`.
    pub shut_down: AtomicBool,
    /// Who remembers attributes that we told.
    pub observer: OnceLock<Arc<dyn vfs::Observer>>,
}

impl Engine {
    pub fn view(&self) -> View<'_> {
        View { store: &self.store, layers: self.layers.load() }
    }

    pub fn sector(&self) -> u64 {
        u64::from(self.geometry.sector_size)
    }

    /// EROFS with the reason, if nothing may be written.
    pub fn writable(&self) -> Result<()> {
        if let Some(why) = self.poisoned.get() {
            return Err(FsError::ReadOnly(why.clone()));
        }
        match &self.read_only {
            Some(why) => Err(FsError::ReadOnly(why.clone())),
            None => Ok(()),
        }
    }

    /// As `writable`, where an operation begins to change something.
    pub fn changeable(&self) -> Result<()> {
        self.writable()?;
        if self.no_changes.load(Ordering::SeqCst) {
            return Err(FsError::ReadOnly("remounted read-only".into()));
        }
        Ok(())
    }

    pub fn is_still(&self) -> bool {
        self.still.load(Ordering::SeqCst)
    }

    /// Turns the mount read-only for good.
    pub fn poison(&self, why: &str) {
        if self.poisoned.set(why.to_owned()).is_ok() {
            tracing::error!(why, "the volume turns read-only");
        }
    }

    /// Enters the current epoch.
    pub fn begin(&self) -> Op<'_> {
        let mut times = 0;
        loop {
            let view = self.view();
            if let Some(active) = view.layers.current.gate.enter() {
                self.stats.operations.add(1);
                let (changed, in_run) = (Cell::new(false), Cell::new(false));
                let run = Cell::new(0);
                return Op { engine: self, view, active: Some(active), changed, run, in_run };
            }
            // Sealed under our feet: the next epoch is being published, or a log write looks
            // at this one.
            times += 1;
            relax(times);
        }
    }

    /// Runs an operation of several steps that may fail in the current epoch. One that fails
    /// after its first change stands half done, and the volume is poisoned before a commit
    /// can seal that.
    pub fn change<T>(&self, work: impl FnOnce(&Op<'_>) -> Result<T>) -> Result<T> {
        let op = self.begin();
        let result = work(&op);
        if let Err(error) = &result
            && op.changed.get()
        {
            self.poison(&format!("an operation broke off half done: {error}"));
        }
        result
    }

    pub fn inode(&self, ino: Ino) -> Result<Arc<Inode>> {
        if crate::ino::is_stand_in(ino) {
            return Err(FsError::ReadOnly("the place of a nested subvolume".into()));
        }
        self.inode_by_id(InodeId::from_ino(ino), 0)
    }

    pub fn inode_by_id(&self, id: InodeId, lookups: u64) -> Result<Arc<Inode>> {
        self.inodes.get(id, lookups, || self.load_inode(id))
    }

    fn load_inode(&self, id: InodeId) -> Result<State> {
        let key = Key::new(id.objectid, kind::INODE_ITEM, 0);
        let Some(bytes) = self.view().get(id.tree, &key).fs()? else {
            return Err(Errno::ENOENT.into());
        };
        let item = InodeItem::read(&bytes).fs()?;
        Ok(State { item, landed_size: item.size, ..State::default() })
    }

    /// Bytes of the content in memory that no extent of the file lies under.
    pub fn pending(&self, id: InodeId, state: &State) -> u64 {
        let Some(dirty) = &state.dirty else { return 0 };
        if state.item.nbytes == 0 {
            return dirty.bytes();
        }
        let view = self.view();
        let extents = |range: Range<u64>| -> Vec<Range<u64>> {
            // What cannot be read is for who reads it.
            let mapped = map_range(&view, id, self.sector(), range.start, range.end);
            let held = mapped.unwrap_or_default().into_iter().filter(|m| !m.is_hole());
            held.map(|m| m.start..m.end).collect()
        };
        dirty.bytes() - dirty.covered(extents)
    }

    /// The kernel (say) may remember another block count than the inode has by now.
    pub fn blocks_settled(&self, id: InodeId, state: &State) {
        let blocks = || state.blocks(self.geometry.sector_size, self.pending(id, state));
        if state.told.is_outdated(blocks)
            && let (Some(observer), Ok(ino)) = (self.observer.get(), id.to_ino())
        {
            observer.attributes_changed(ino);
        }
    }

    pub fn roots(&self) -> Arc<Roots> {
        self.layers.load().roots.clone()
    }

    /// An extent that no commit knows can be used again.
    pub fn give_back(&self, extent: Extent) {
        match self.space.release(extent) {
            Ok(()) => self.untold.add(&extent),
            Err(error) => self.poison(&format!("giving back an extent: {error}")),
        }
    }

    /// True if nobody but `who` refers to the data extent, in any layer.
    pub fn only_referrer(&self, extent: Logical, who: (TreeId, u64, u64)) -> Result<bool> {
        let view = self.view();
        let layers = &view.layers;
        for delta in [Some(&layers.current), layers.sealed.as_ref()].into_iter().flatten() {
            let Some(change) = delta.extents.change(extent) else { continue };
            if change.counts.iter().any(|(r, n)| *r != who && *n > 0) {
                return Ok(false);
            }
            if change.fresh {
                return Ok(true);
            }
        }
        let Some(root) = layers.roots.get(TreeId::EXTENT) else { return Ok(false) };
        let mut items = TreeItems::new(&self.store, &root.root);
        let owner = RefOwner::Data { root: who.0, ino: who.1, offset: who.2 };
        let refs = btrfs_space::refs::current_refs(&mut items, &[], extent).fs()?;
        Ok(refs.is_some_and(|refs| refs.only_by(&owner)))
    }

    /// True if both addresses lie in one chunk.
    pub fn same_chunk(&self, a: Logical, b: Logical) -> bool {
        self.volume.chunk(a).is_some_and(|chunk| chunk.logical <= b && b.0 < chunk.end())
    }

    /// EROFS where the subvolume is a read-only snapshot, else as `writable`.
    pub fn subvol_writable(&self, tree: TreeId) -> Result<()> {
        // The kernel lets nobody change a mount that it has read-only: who comes all the same
        // comes right behind a `remount,rw`, of which we hear a moment later.
        let mut waits = 0;
        while self.no_changes.load(Ordering::SeqCst) && waits < 100 {
            std::thread::sleep(std::time::Duration::from_millis(5));
            waits += 1;
        }
        self.changeable()?;
        if self.subvols.is_read_only(tree) {
            return Err(FsError::ReadOnly(format!("subvolume {tree} is read-only")));
        }
        Ok(())
    }
}

/// Poisons the volume unless it is forgotten: for a thread that panics halfway through what
/// others wait for.
pub struct PoisonUnlessDone<'e>(pub &'e Engine, pub &'static str);

impl Drop for PoisonUnlessDone<'_> {
    fn drop(&mut self) {
        self.0.poison(self.1);
    }
}

/// One operation inside an epoch. What it puts is committed wholly or not at all.
///
/// Its `view` has the operation's own delta on top, so it reads what it wrote.
pub struct Op<'e> {
    pub engine: &'e Engine,
    pub view: View<'e>,
    active: Option<Active>,
    /// An item was put or deleted; see `Engine::change`.
    changed: Cell<bool>,
    /// Within `run`: places that the changes may still count as.
    run: Cell<u32>,
    in_run: Cell<bool>,
}

impl Op<'_> {
    fn delta(&self) -> &Delta {
        &self.view.layers.current
    }

    pub fn generation(&self) -> Generation {
        self.delta().generation
    }

    pub fn edit<T>(&self, id: InodeId, edit: impl FnOnce(&mut ObjectEdit<'_>) -> T) -> T {
        self.changed.set(true);
        let run = self.in_run.get().then_some(&self.run);
        self.delta().items.edit_in_run(id.tree, id.objectid, run, edit)
    }

    /// What `work` puts and deletes is one run of keys: no other key stays between them. So it
    /// is few places in the tree, however many keys there are: where the run begins, where
    /// it ends, and what is put between.
    pub fn run<T>(&self, work: impl FnOnce() -> T) -> T {
        self.run.set(RUN_PLACES);
        let within = self.in_run.replace(true);
        assert!(!within, "runs do not nest");
        let result = work();
        self.in_run.set(false);
        result
    }

    pub fn put(&self, id: InodeId, kind: u8, offset: u64, value: Box<[u8]>) {
        self.edit(id, |o| o.put(kind, offset, value, Base::Possible));
    }

    /// As `put`, for a key that is in no layer.
    pub fn put_new(&self, id: InodeId, kind: u8, offset: u64, value: Box<[u8]>) {
        self.edit(id, |o| o.put(kind, offset, value, Base::Absent));
    }

    pub fn delete(&self, id: InodeId, kind: u8, offset: u64) {
        self.edit(id, |o| o.delete(kind, offset));
    }

    /// Puts the inode item as the volume may see it, stamped with this epoch.
    pub fn put_inode(&self, id: InodeId, state: &mut State) {
        state.item.transid = self.generation().0;
        state.item.sequence = state.item.sequence.wrapping_add(1);
        state.landed_size = if state.is_file() { state.disk_size() } else { 0 };
        state.item_dirty = false;
        self.put(id, kind::INODE_ITEM, 0, state.item_for_disk().to_boxed());
    }

    /// Changes how often `who` refers to a data extent. On damage the volume is poisoned,
    /// since the operation is half done.
    pub fn reference(
        &self,
        extent: Logical,
        len: u64,
        who: (TreeId, u64, u64),
        count: i64,
    ) -> Result<()> {
        match self.delta().extents.add(extent, len, who, count) {
            Some(true) => self.engine.give_back(Extent { logical: extent, len }),
            Some(false) => {}
            None => return Err(self.contradiction(extent, "one extent with two lengths")),
        }
        Ok(())
    }

    /// A newly allocated data extent enters the epoch with its first reference. On damage
    /// as `reference`.
    pub fn allocate(&self, extent: Extent, who: (TreeId, u64, u64)) -> Result<()> {
        match self.delta().extents.allocate(extent.logical, extent.len, who) {
            true => Ok(()),
            false => Err(self.contradiction(extent.logical, "an extent in use is called free")),
        }
    }

    fn contradiction(&self, extent: Logical, what: &str) -> FsError {
        let what = format!("logical {extent}: {what}");
        self.engine.poison(&what);
        FsError::Corrupt { what, data: false }
    }

    /// A rename took `child` out of `dir`. What the last commit has of the directory says
    /// so of older ones.
    fn leave(&self, dir: InodeId, child: InodeId) {
        let layers = &self.view.layers;
        let sealed = layers.sealed.as_deref();
        if (Pending { current: self.delta(), sealed }).is_born(child.tree, child.objectid) {
            self.edit(dir, |o| o.leave(child.objectid));
        }
    }

    /// A rename took `child` from `from` to `to`.
    pub fn moved(&self, from: InodeId, to: InodeId, child: InodeId) {
        self.leave(from, child);
        let logged = |id: InodeId| self.delta().items.logged(id.tree, id.objectid);
        if logged(from) == Level::Entries {
            self.delta().items.leaves_log(child.tree, child.objectid);
        }
        if from == to {
            return;
        }
        if logged(child) == Level::Nothing && logged(from) < Level::Entries {
            self.edit(from, |o| o.moved());
        }
        self.edit(child, |o| o.moved());
    }

    /// A directory is gone from `dir`: if it had been moved, so is that.
    pub fn moved_away(&self, dir: InodeId, gone: InodeId) {
        if self.delta().items.was_moved(gone.tree, gone.objectid) {
            self.edit(dir, |o| o.moved());
        }
    }

    pub fn extend(&self, extent: Logical, len: u64, by: u64, who: (TreeId, u64, u64)) -> bool {
        self.delta().extents.extend(extent, len, by, who)
    }

    /// The commit drops the checksums that the tree has of this range before it puts new ones.
    pub fn replace_sums(&self, at: Logical, len: u64) {
        self.delta().extents.replace_sums(Extent { logical: at, len });
    }

    pub fn put_sums(&self, extent: Logical, at: Logical, sums: Box<[u8]>) {
        self.delta().extents.put_sums(extent, at, sums);
    }

    /// [start, end) of a file may have become a hole. The tree log must say so: a volume
    /// with NO_HOLES has no item for it.
    pub fn note_gap(&self, id: InodeId, start: u64, end: u64) {
        if self.engine.no_holes {
            self.edit(id, |o| o.note_gap(start, end));
        }
    }
}

impl Drop for Op<'_> {
    fn drop(&mut self) {
        if let Some(active) = self.active.take() {
            self.delta().gate.leave(active);
        }
    }
}
