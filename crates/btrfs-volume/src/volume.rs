//! The volume: what stands behind every read and write of the engine.
//!
//! Invariants: a volume with a read-only reason, opened read-only or on a read-only
//! device is never written, not even for repairs. `superblock` is the last one that is
//! durable on the device; copies that say something else when the volume is opened are
//! mended before anything else is written, or on request. Behind `stop_writing` nothing
//! is written. Lock order: `commit` before `superblock`; `chunks` and `repair` alone.

use crate::chunk_map::{ChunkInfo, ChunkMap, DeviceId, Mapping};
use crate::counters::{Counters, VolumeCounters};
use crate::start::{self, Start};
use crate::superblock::{Copies, Stale};
use crate::{features, load, rival, superblock};
use blockdev::BlockDevice;
use btrfs_disk::ids::compat_ro;
use btrfs_disk::items::Chunk;
use btrfs_disk::node::{HEADER_SIZE, MAX_LEVEL};
use btrfs_disk::{
    Corrupt, Error, Expect, FixedSize, Generation, Geometry, Header, Logical, Result, Superblock,
    buffers, check,
};
use locks::{Mutex, Rank, RwLock};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// How a volume is opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct OpenOptions {
    /// Nothing is written, not even repairs.
    pub read_only: bool,
    /// Read-only volumes only: look at the last commit although fsyncs came after it.
    pub ignore_log: bool,
    /// The caller replays a pending log tree before anything else is written, so that
    /// one is no reason to stay read-only.
    pub replays_log: bool,
    /// The caller mends the superblock's sizes, so that such as do not agree are no reason to refuse
    /// the volume, and chunks lie on the device, whatever the superblock says of its size.
    pub mends_sizes: bool,
    /// The caller's first commit makes another free-space tree: the one that is there counts as not valid,
    /// in memory alone.
    pub renews_free_space: bool,
}

/// An open volume: the device, the superblock, the chunks.
pub struct Volume {
    pub(crate) dev: Arc<dyn BlockDevice>,
    pub(crate) geometry: Geometry,
    pub(crate) chunks: RwLock<ChunkMap>,
    pub(crate) superblock: RwLock<Arc<Superblock>>,
    /// What the copies on the device say: that of the last commit, with the log that it leads to by now. Changed
    /// with `commit` held.
    pub(crate) written: RwLock<Arc<Superblock>>,
    /// Held while superblock copies are written.
    pub(crate) commit: Mutex<Copies>,
    /// Some are to be mended yet.
    pub(crate) copies_differ: AtomicBool,
    /// Incompat bits that every superblock has from now on.
    pub(crate) announced: AtomicU64,
    pub(crate) announced_ro: AtomicU64,
    /// Writers share it, a repair holds it alone: it never puts old bytes over new ones.
    pub(crate) repair: RwLock<()>,
    pub(crate) counters: Counters,
    pub(crate) read_only: bool,
    /// Bad copies stay as they are for now.
    repairs_held: AtomicBool,
    /// Nothing is written any more.
    stopped: AtomicBool,
    read_only_reason: Option<String>,
    /// Bytes of the device by its item in the chunk tree, when the volume was opened.
    device_item: Option<u64>,
    /// The root tree's generation, if it is not looked at by its newest superblock.
    elsewhere: Option<Generation>,
    /// Addresses of chunks that may be elsewhere, ascending.
    doubted: OnceLock<Vec<Range<u64>>>,
}

/// The superblock as the volume goes on with it.
fn current(found: &Superblock, options: &OpenOptions) -> Superblock {
    let mut superblock = found.clone();
    if options.renews_free_space {
        superblock.fields.compat_ro_flags &= !compat_ro::FREE_SPACE_TREE_VALID;
    }
    superblock
}

impl Volume {
    /// Opens the volume on `dev`: superblock, feature gate, chunk map.
    pub fn open(dev: Arc<dyn BlockDevice>, options: OpenOptions) -> Result<Volume> {
        let chosen = rival::choose(&*dev)?;
        Volume::of(dev, options, chosen, None)
    }

    /// Opens the volume on `dev` to be read, beginning where `start` says. Of its log nothing is
    /// known if that is another root tree.
    pub fn look(dev: Arc<dyn BlockDevice>, start: &Start) -> Result<Volume> {
        let chosen = match start.copy {
            Some(copy) => superblock::copy(&*dev, copy)?,
            None => rival::choose(&*dev)?,
        };
        let options = OpenOptions { read_only: true, ignore_log: true, ..OpenOptions::default() };
        let mut volume = Volume::of(dev, options, chosen, start.chunk_root)?;
        let root = match (start.backup, start.root) {
            (true, _) => Some(start::backup(&volume.superblock())?),
            (false, Some(at)) => Some(volume.root_at(at, start.root_generation)?),
            (false, None) => None,
        };
        volume.elsewhere = start.is_elsewhere().then_some(volume.superblock().generation());
        if let Some((logical, generation, level)) = root {
            features::goes_on(generation)?;
            let sb = Arc::make_mut(volume.superblock.get_mut());
            (sb.fields.root, sb.fields.root_level) = (logical, level);
            (sb.fields.log_root, sb.fields.log_root_level) = (Logical(0), 0);
            volume.elsewhere = Some(generation);
        }
        Ok(volume)
    }

    fn of(
        dev: Arc<dyn BlockDevice>,
        options: OpenOptions,
        chosen: superblock::Chosen,
        chunk_root: Option<Logical>,
    ) -> Result<Volume> {
        let sb = chosen.superblock;
        let cut = features::truncated(&sb, dev.len());
        let why = |error| features::unreadable_chunks(&sb, cut.as_deref(), error);
        features::refuse(&sb, options.mends_sizes)?;
        let own = read_only_reason(&sb, &*dev, &options, chosen.first_is_wiped);
        let mut map = ChunkMap::new(device_of(&sb, &*dev, &options));
        load::system_chunks(&sb, &mut map).map_err(why)?;
        let copies = chosen.differing;
        let stale = (!copies.is_empty()).then(|| Stale { opened: sb.clone(), copies });
        let mut volume = Volume {
            geometry: sb.geometry()?,
            chunks: RwLock::new(Rank::ChunkMap, map),
            copies_differ: AtomicBool::new(stale.is_some()),
            commit: Mutex::new(Rank::SuperblockCommit, Copies { stale, ..Copies::default() }),
            announced: AtomicU64::new(0),
            announced_ro: AtomicU64::new(0),
            repair: RwLock::new(Rank::Repair, ()),
            counters: Counters::default(),
            read_only: options.read_only || own.is_some() || cut.is_some(),
            read_only_reason: own.or_else(|| cut.clone()),
            device_item: None,
            repairs_held: AtomicBool::new(false),
            stopped: AtomicBool::new(false),
            superblock: RwLock::new(Rank::Superblock, Arc::new(current(&sb, &options))),
            written: RwLock::new(Rank::Superblock, Arc::new(Superblock::clone(&sb))),
            elsewhere: None,
            doubted: OnceLock::new(),
            dev,
        };
        volume.device_item = volume.load_chunks(chunk_root).map_err(why)?;
        volume.judge_cut(cut.as_ref(), &options);
        volume.count_devices();
        Ok(volume)
    }

    /// Where the device has what its item in the chunk tree says nothing of it is `cut` off: the superblock's copy
    /// of that alone is too large.
    fn judge_cut(&mut self, cut: Option<&String>, options: &OpenOptions) {
        let fits = self.device_item.is_some_and(|bytes| bytes <= self.dev.len());
        if fits && cut.is_some() && self.read_only_reason.as_ref() == cut {
            (self.read_only, self.read_only_reason) = (options.read_only, None);
        }
    }

    fn begin_chunks_at(&mut self, at: Logical) -> Result<()> {
        let (logical, generation, level) = self.root_at(at, None)?;
        let sb = Arc::make_mut(self.superblock.get_mut());
        sb.fields.chunk_root = logical;
        (sb.fields.chunk_root_generation, sb.fields.chunk_root_level) = (generation, level);
        Ok(())
    }

    /// A node as the best of its copies says, and of those that are as good the first: one that is whole and of the
    /// commit that is `meant`; of that commit; whole; else one that can be a node of `at`.
    fn root_at(&self, at: Logical, meant: Option<Generation>) -> Result<start::Root> {
        if !at.0.is_multiple_of(self.geometry.sector_size.into()) {
            return Err(Corrupt::new("no node begins there").at(at).into());
        }
        let (mut best, mut failure) = (None, None);
        for copy in 0..self.mirrors(at)? {
            match self.header_of(at, copy) {
                Ok(header) if header.bytenr == at && header.level < MAX_LEVEL => {
                    let is_meant = meant.is_none_or(|meant| header.generation == meant);
                    let is = (is_meant, self.is_whole(at, copy, &header));
                    if best.is_none_or(|(before, _)| is > before) {
                        best = Some((is, (at, header.generation, header.level)));
                    }
                }
                Ok(_) => {}
                // Another copy may answer.
                Err(error) => failure = failure.or(Some(error)),
            }
        }
        let none = || failure.unwrap_or_else(|| Corrupt::new("there is no node").at(at).into());
        best.map(|(_, root)| root).ok_or_else(none)
    }

    fn header_of(&self, at: Logical, copy: usize) -> Result<Header> {
        let mut bytes = [0; HEADER_SIZE];
        self.read_mirror(at, copy, &mut bytes)?;
        Ok(Header::read(&bytes)?)
    }

    /// The copy is as its own header says.
    fn is_whole(&self, logical: Logical, copy: usize, header: &Header) -> bool {
        let mut bytes = buffers::zeroed(self.geometry.node_size as usize);
        let (level, generation) = (header.level, Some(header.generation));
        let expect = Expect { logical, level, generation, owner: None, first_key: None };
        let read = self.read_mirror(logical, copy, &mut bytes);
        read.is_ok() && check::node(bytes, &self.geometry, &expect).is_ok()
    }

    /// The chunk tree knows one device. Another count in the superblock is put right by the
    /// next commit, as the kernel does it.
    fn count_devices(&mut self) {
        let counted = self.superblock().fields.num_devices;
        if counted != 1 {
            tracing::warn!(counted, "the superblock counts wrong: the volume has one device");
            Arc::make_mut(self.superblock.get_mut()).fields.num_devices = 1;
        }
    }

    /// The chunk tree begins `at` another place than the superblock says. Answers what its item says how long the device is.
    fn load_chunks(&mut self, at: Option<Logical>) -> Result<Option<u64>> {
        if let Some(at) = at {
            self.begin_chunks_at(at)?;
        }
        let sb = self.superblock();
        let root = self.read_node(&load::chunk_root(&sb))?;
        self.geometry.chunk_tree_uuid = root.header().chunk_tree_uuid;
        let mut bytes = None;
        let mut walk = load::Walk {
            read: &|expect| self.read_node(expect),
            visit: &mut |key, data| {
                bytes = load::item(&mut self.chunks.write(), &sb, key, data)?.or(bytes);
                Ok(())
            },
            last: None,
        };
        walk.node(&root)?;
        Ok(bytes)
    }

    /// The sizes that rule it.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// The last committed superblock, shared: the next commit puts another in its place.
    pub fn superblock(&self) -> Arc<Superblock> {
        Arc::clone(&self.superblock.read())
    }

    /// Whether another superblock, or another root, was taken than the newest one.
    pub fn starts_elsewhere(&self) -> bool {
        self.elsewhere.is_some()
    }

    /// The commit that wrote the root node of the root tree.
    pub fn root_generation(&self) -> Generation {
        self.elsewhere.unwrap_or_else(|| self.superblock().generation())
    }

    /// Bytes of all devices, as the superblock in memory says.
    pub fn total_bytes(&self) -> u64 {
        self.superblock().fields.total_bytes
    }

    /// Whether a free-space tree says what is free, as of the last commit.
    pub fn has_free_space_tree(&self) -> bool {
        features::has_free_space_tree(&self.superblock())
    }

    /// The gate's verdict: why this volume must stay unwritten, whoever asks.
    pub fn read_only_reason(&self) -> Option<String> {
        self.read_only_reason.clone()
    }

    /// True if writes are accepted: opened for writing and nothing speaks against it.
    pub fn writable(&self) -> bool {
        !self.read_only
    }

    /// While `held`, bad copies are not repaired, and the device is told of nothing that is not needed any more.
    pub fn hold_repairs(&self, held: bool) {
        self.repairs_held.store(held, Ordering::SeqCst);
        // Who is at work ends first, also at copies of the superblock.
        drop(self.repair.write());
        drop(self.commit.lock());
    }

    /// When this returns not a byte is written any more, nor discarded, whoever was about to:
    /// what is under way ends first, what comes later fails.
    pub fn stop_writing(&self) {
        self.stopped.store(true, Ordering::SeqCst);
        // Who writes holds one of them, and has looked at `stopped` since.
        drop(self.repair.write());
        drop(self.commit.lock());
    }

    /// To be asked by who writes, with `repair` or `commit` held.
    pub(crate) fn check_going(&self) -> Result<()> {
        match self.stopped.load(Ordering::SeqCst) {
            true => Err(Error::io(
                format!("{}: writing was stopped", self.dev.name()),
                std::io::ErrorKind::Other.into(),
            )),
            false => Ok(()),
        }
    }

    pub(crate) fn is_held(&self) -> bool {
        self.repairs_held.load(Ordering::SeqCst)
    }

    pub(crate) fn repairs(&self) -> bool {
        self.writable() && !self.is_held() && !self.stopped.load(Ordering::SeqCst)
    }

    /// What it is on.
    pub fn device(&self) -> &Arc<dyn BlockDevice> {
        &self.dev
    }

    /// All chunks by logical address.
    pub fn chunks(&self) -> Vec<ChunkInfo> {
        self.chunks.read().snapshot()
    }

    /// Nothing tells that these chunks are where the map has them; said once, before any content is read.
    pub fn doubt(&self, chunks: &[ChunkInfo]) {
        let range = |chunk: &ChunkInfo| chunk.logical.0..chunk.end();
        self.doubted.get_or_init(|| {
            let mut all: Vec<_> = chunks.iter().map(range).collect();
            all.sort_unstable_by_key(|range| range.start);
            all
        });
    }

    /// How many chunks there are of which that has been said.
    pub fn doubted_chunks(&self) -> usize {
        self.doubted.get().map_or(0, Vec::len)
    }

    pub(crate) fn is_doubted(&self, logical: Logical) -> bool {
        self.doubted.get().is_some_and(|all| {
            let last = all.partition_point(|range| range.start <= logical.0).checked_sub(1);
            last.is_some_and(|last| all[last].contains(&logical.0))
        })
    }

    /// The chunk that holds `logical`.
    pub fn chunk(&self, logical: Logical) -> Option<ChunkInfo> {
        self.chunks.read().find(logical).cloned()
    }

    /// Makes a new chunk known; judged as one from the disk is.
    pub fn add_chunk(&self, logical: Logical, chunk: &Chunk) -> Result<()> {
        self.chunks.write().insert(logical, chunk)
    }

    /// Forgets the chunk that starts at `logical`.
    pub fn remove_chunk(&self, logical: Logical) -> Result<()> {
        self.chunks.write().remove(logical)
    }

    /// The volume ends at `total_bytes` of its device from now on; the next commit says so. No
    /// chunk lies behind that, and the device has as much.
    pub fn resize(&self, total_bytes: u64) -> Result<()> {
        if total_bytes > self.dev.len() {
            let what = format!("{} has {} bytes", self.dev.name(), self.dev.len());
            return Err(Error::Unsupported(what));
        }
        self.chunks.write().resize(total_bytes)
    }

    /// A device that has become longer since it was opened, or this was called, is so from now on.
    pub fn grow_device(&self) -> Result<()> {
        let failed = |source| Error::Io { context: self.dev.name(), source };
        self.dev.grow_to_now().map_err(failed)
    }

    /// Bytes of the device as the kernel has it: by its item in the chunk tree when the volume was opened, whatever the
    /// superblock says. `None`: the device has no item.
    pub fn device_item_bytes(&self) -> Option<u64> {
        self.device_item
    }

    /// Bytes of the device, whatever the volume takes of it.
    pub fn device_len(&self) -> u64 {
        self.dev.len()
    }

    /// How many copies of the bytes at `logical` there are.
    pub fn mirrors(&self, logical: Logical) -> Result<usize> {
        Ok(self.map(logical, 1)?.copies().len())
    }

    /// As of now.
    pub fn counters(&self) -> VolumeCounters {
        self.counters.snapshot()
    }

    pub(crate) fn map(&self, logical: Logical, len: u64) -> Result<Mapping> {
        self.chunks.read().map(logical, len)
    }

    /// `Err` with the reason if nothing may be written.
    pub(crate) fn check_writable(&self) -> Result<()> {
        if !self.read_only {
            return Ok(());
        }
        let why = self.read_only_reason.as_deref().unwrap_or("opened read-only");
        Err(Error::ReadOnly(why.into()))
    }
}

/// The device that chunks are judged by.
fn device_of(sb: &Superblock, dev: &dyn BlockDevice, options: &OpenOptions) -> DeviceId {
    let mut device = DeviceId::of(sb);
    if options.mends_sizes {
        device.total_bytes = device.total_bytes.max(dev.len());
    }
    device
}

fn read_only_reason(
    sb: &Superblock,
    dev: &dyn BlockDevice,
    options: &OpenOptions,
    first_is_wiped: bool,
) -> Option<String> {
    if dev.read_only() && !options.read_only {
        return Some(format!("{} cannot be written", dev.name()));
    }
    if first_is_wiped {
        // Another file system, or the wish to have none, may stand there now.
        return Some("the first superblock copy is wiped; opened by a later one".into());
    }
    let replays = options.replays_log || options.read_only && options.ignore_log;
    features::read_only_reason(sb, replays)
}
