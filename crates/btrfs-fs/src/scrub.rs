//! Scrubbing: every copy of what the last commit has is read and held against its checksum; what
//! is bad is written anew from a good copy.
//!
//! Invariants: it goes by the extent tree, in pieces; each looks at the commit that is the last one
//! when it begins, and nothing of that is written over meanwhile. What was freed or written
//! between two pieces is looked at or not, and never taken for damage; nothing is kept where it rests. One scrub at a time. How far
//! it came is in memory alone; who keeps it elsewhere begins from there (`begin_from`). Addresses of
//! which a lost node of the trees would have to tell are passed over, named, and make the whole a failure.
//!
//! What it does not know: whose content is bad. `inspect-internal logical-resolve` does.

use crate::error::IntoFs;
use crate::extents::sums;
use crate::runs::Runs;
use btrfs_disk::ids::STRIPE_LEN;
use btrfs_disk::items::{ExtentItem, extent_flags};
use btrfs_disk::key::kind::{EXTENT_ITEM, METADATA_ITEM};
use btrfs_disk::{Expect, Generation, Key, Logical, TreeId};
use btrfs_tree::{behind_lost, get, scan};
use btrfs_txn::{Core, Throttle, Urgency, View};
use btrfs_volume::{Ahead, Scrubbed};
use locks::{Mutex, Rank};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use vfs::{Errno, FsError, Result};

/// Bytes of extents that one step looks at, and of content that is read between two rests.
/// Chosen, not measured.
const STEP: u64 = 16 << 20;
/// Chosen, not measured.
const PIECE: u64 = 1 << 20;
/// How long a scrub that is to be slow sleeps before it looks whether it still is.
/// Chosen, not measured.
const NAP: Duration = Duration::from_millis(20);

/// Where a scrub is, or how the last one ended.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
// Exhaustive: each has a number in the records of the control door and a word in the commands; one
// without would be told as none.
pub enum ScrubState {
    /// There was none since the mount.
    #[default]
    None,
    /// At work.
    Running,
    /// It has looked at everything.
    Finished,
    /// It was cancelled, or the volume was closed.
    Cancelled,
    /// The trees could not be read, at least in part: not everything was looked at.
    Failed,
}

/// What there is to say of a scrub.
#[derive(Clone, Copy, Default, Debug)]
pub struct ScrubStatus {
    /// Where it is.
    pub state: ScrubState,
    /// Nothing is written.
    pub read_only: bool,
    /// When it began: seconds since 1970.
    pub started: i64,
    /// How long it has been at work.
    pub time: Duration,
    /// Bytes of all copies that there were when it began.
    pub total: u64,
    /// What it has done.
    pub done: Scrubbed,
    /// Logical addresses from here on are still to be read.
    pub next: u64,
    /// Why it failed: an errno.
    pub errno: i32,
    /// Bytes of addresses that it passed over, since a node that tells what lies there is lost.
    pub unseen: u64,
    /// Where the first of them are.
    pub unseen_from: u64,
}

pub(crate) struct Scrubber {
    core: Arc<Core>,
    status: Mutex<ScrubStatus>,
    /// Changed with the status held, as `runs`.
    cancelled: AtomicBool,
    runs: Runs,
    /// Bytes that are read in a second at most; 0: as many as there can be. Changed with the status held, as
    /// `later`.
    limit: AtomicU64,
    /// What that is when the scrub has ended.
    later: AtomicU64,
}

impl Scrubber {
    pub(crate) fn new(core: &Arc<Core>) -> Scrubber {
        let status = Mutex::new(Rank::Leaf, ScrubStatus::default());
        let (cancelled, runs, limit, later) = Default::default();
        Scrubber { core: core.clone(), status, cancelled, runs, limit, later }
    }

    pub(crate) fn status(&self) -> ScrubStatus {
        *self.status.lock()
    }

    /// Bytes that are read in a second at most, 0: as many as there can be.
    pub(crate) fn limit(&self) -> u64 {
        self.limit.load(Ordering::Acquire)
    }

    /// It is another one from now on: as long as the volume is open, or until the scrub ends that is at work
    /// (`once`; ENOTCONN: none is). What it was.
    pub(crate) fn set_limit(&self, new: u64, once: bool) -> Result<u64> {
        let status = self.status.lock();
        match once {
            true if status.state != ScrubState::Running => return Err(Errno::ENOTCONN.into()),
            true => {}
            false => self.later.store(new, Ordering::Release),
        }
        Ok(self.limit.swap(new, Ordering::AcqRel))
    }

    /// As `status`; before the first one, what there is to scrub.
    pub(crate) fn told(&self) -> ScrubStatus {
        let status = self.status();
        match status.state {
            ScrubState::None => ScrubStatus { total: self.total(), ..status },
            _ => status,
        }
    }

    /// From now on there is a scrub that `run` has to work off, with this `limit` as long as it is at work.
    /// EINPROGRESS: one is. EROFS: nothing can be written, and it was not said that nothing need be.
    pub(crate) fn begin(&self, read_only: bool, limit: Option<u64>) -> Result<()> {
        let started = self.core.now().sec;
        self.begin_from(ScrubStatus { read_only, started, ..ScrubStatus::default() }, limit)
    }

    /// The same, where one of an earlier mount ended: its `next`, `done`, `started` and `time`.
    pub(crate) fn begin_from(&self, earlier: ScrubStatus, limit: Option<u64>) -> Result<()> {
        let new = ScrubStatus { total: self.total(), errno: 0, unseen: 0, ..earlier };
        self.claim(limit, |_| Ok(new))
    }

    /// One that was cancelled is to go on. ESRCH: there is none. EINPROGRESS: it is at work. EROFS: as `begin`.
    pub(crate) fn begin_again(&self) -> Result<()> {
        self.claim(None, |status| match status.state {
            ScrubState::Cancelled => Ok(status),
            _ => Err(Errno::ESRCH.into()),
        })
    }

    fn claim(
        &self,
        limit: Option<u64>,
        next: impl FnOnce(ScrubStatus) -> Result<ScrubStatus>,
    ) -> Result<()> {
        let mut status = self.status.lock();
        if status.state == ScrubState::Running {
            return Err(Errno::EINPROGRESS.into());
        }
        let next = next(*status)?;
        // Who makes the mount still says so first, and looks for one at work then.
        if !next.read_only {
            self.core.health.changeable().fs()?;
        }
        *status = ScrubStatus { state: ScrubState::Running, ..next };
        // One that is refused changes nothing of the one that is at work.
        if let Some(limit) = limit {
            self.limit.store(limit, Ordering::Release);
        }
        self.cancelled.store(false, Ordering::Release);
        self.runs.begin();
        Ok(())
    }

    /// What was begun cannot be worked off now; it can be gone on with.
    pub(crate) fn not_started(&self) {
        let mut status = self.status.lock();
        status.state = ScrubState::Cancelled;
        self.limit.store(self.later.load(Ordering::Acquire), Ordering::Release);
    }

    /// Works off what was begun.
    pub(crate) fn run(&self) {
        let (before, since) = (self.status().time, Instant::now());
        let ended = self.work(|| before + since.elapsed());
        let mut status = self.status.lock();
        self.limit.store(self.later.load(Ordering::Acquire), Ordering::Release);
        status.time = before + since.elapsed();
        status.state = match ended {
            Ok(true) if status.errno != 0 => ScrubState::Failed,
            Ok(true) => ScrubState::Finished,
            Ok(false) => ScrubState::Cancelled,
            Err(error) => {
                tracing::error!(%error, "a scrub ends before its end");
                status.errno = error.errno();
                ScrubState::Failed
            }
        };
        tracing::info!(state = ?status.state, done = ?status.done, "scrub");
    }

    /// False: it was cancelled.
    fn work(&self, time: impl Fn() -> Duration) -> Result<bool> {
        let ScrubStatus { next, read_only, .. } = self.status();
        if next == 0 {
            let found = self.core.volume.scrub_superblocks(!read_only).fs()?;
            self.status.lock().done.add(&found);
        }
        let mut pace = Pace::of(self);
        let mut place = Place::at(next);
        let mut reader = Reader { repair: !read_only, saves: false, ahead: Ahead::default() };
        let mut more = true;
        while more {
            if self.cancelled.load(Ordering::Acquire) {
                return Ok(false);
            }
            let (mut done, before) = (Scrubbed::default(), place.key);
            let ended = self.step(&mut place, &mut reader, &mut pace, &mut done);
            self.status.lock().done.add(&done);
            more = match ended {
                Err(error) => self.pass_over(&mut place, before, error)?,
                Ok(more) => more,
            };
            let mut status = self.status.lock();
            status.next = if more { place.key.objectid } else { u64::MAX };
            status.time = time();
        }
        Ok(true)
    }

    /// What lies at `place`, which was `before` until a step began, or behind the leaf there, a node would have to
    /// tell that cannot be read: goes on behind that. False: it was the last one.
    fn pass_over(&self, place: &mut Place, before: Key, error: FsError) -> Result<bool> {
        let view = self.core.view();
        let root = view.layers.roots.get(TreeId::EXTENT).filter(|_| error.is_of_medium());
        let Some(root) = root else { return Err(error) };
        // Where nothing of the tree can be read it ends here.
        let Ok(behind) = behind_lost(view.store, &root.root, &place.key) else { return Err(error) };
        let in_front = place.key != before && get(view.store, &root.root, &place.key).is_ok();
        if !in_front || behind.is_none() {
            let groups = self.core.space.group_infos();
            let end = || groups.iter().map(|group| group.logical.0 + group.len).max().unwrap_or(0);
            let to = behind.map_or_else(end, |key| key.objectid);
            self.not_seen(place.seen.max(place.key.objectid), to, &error);
        }
        (place.key, place.within) = (behind.unwrap_or(Key::MAX), 0);
        Ok(behind.is_some())
    }

    /// What lies there is not looked at.
    fn not_seen(&self, from: u64, to: u64, error: &FsError) {
        tracing::error!(from, to, %error, "a scrub passes over these addresses");
        let mut status = self.status.lock();
        if status.errno == 0 {
            (status.errno, status.unseen_from) = (error.errno(), from);
        }
        status.unseen = status.unseen.saturating_add(to.saturating_sub(from));
    }

    /// Returns when nobody is at work. ENOTCONN: nobody was.
    pub(crate) fn cancel(&self) -> Result<()> {
        self.end(|status| status.state == ScrubState::Running)
    }

    /// Returns when none is at work that writes: changes are refused, and stay so. As in the kernel it is cancelled,
    /// and goes on for who says so once it may.
    pub(crate) fn rest_while_still(&self) {
        let _none_is_well =
            self.end(|status| status.state == ScrubState::Running && !status.read_only);
    }

    fn end(&self, running: impl Fn(&ScrubStatus) -> bool) -> Result<()> {
        let wish = || self.cancelled.store(true, Ordering::Release);
        self.runs.end(&self.status, running, wish, Errno::ENOTCONN)
    }

    /// Before the volume is closed.
    pub(crate) fn rest(&self) {
        let _none_is_well = self.cancel();
    }

    fn total(&self) -> u64 {
        let groups = self.core.space.group_infos();
        let of = |logical| self.core.volume.mirrors(logical).unwrap_or(0) as u64;
        groups.iter().map(|group| group.used * of(group.logical)).sum()
    }

    /// Some extents from `place` on, which is behind them then; whether there are more. Who rests between two pieces
    /// keeps no commit: what was freed in it would not come back for as long.
    fn step(
        &self,
        place: &mut Place,
        reader: &mut Reader,
        pace: &mut Pace<'_>,
        done: &mut Scrubbed,
    ) -> Result<bool> {
        // What is told of it is not to stand still for long.
        let most = if pace.limit == 0 { STEP } else { pace.limit.clamp(PIECE, STEP) };
        // Nor is it to read at once what it has a minute for.
        let piece = if pace.limit == 0 { PIECE } else { pace.limit.min(PIECE) };
        let mut bytes = 0;
        loop {
            reader.saves = pace.limit != 0;
            let more = self.piece(place, reader, done, (&mut bytes, piece))?;
            pace.keep(reader.ahead.asked());
            // Not amid an extent: where it goes on, that would be counted twice.
            let is_enough = bytes >= most || self.cancelled.load(Ordering::Acquire);
            if !more || is_enough && place.within == 0 {
                return Ok(more);
            }
        }
    }

    /// A piece of an extent, or some that are small, as the last commit has them.
    fn piece(
        &self,
        place: &mut Place,
        reader: &mut Reader,
        done: &mut Scrubbed,
        (bytes, most): (&mut u64, u64),
    ) -> Result<bool> {
        let view = self.core.view();
        let Some(root) = view.layers.roots.get(TreeId::EXTENT) else { return Ok(false) };
        let end = bytes.saturating_add(most);
        reader.ahead.look_at(view.layers.roots.generation, most, reader.saves);
        for item in scan(view.store, &root.root, place.key..=Key::MAX) {
            let item = item.fs()?;
            let key = item.key();
            if !matches!(key.kind, EXTENT_ITEM | METADATA_ITEM) {
                continue;
            }
            // What was there may be gone.
            let within = if key == place.key { place.within } else { 0 };
            if *bytes >= end {
                (place.key, place.within) = (key, within);
                return Ok(true);
            }
            let len = match key.kind {
                METADATA_ITEM => u64::from(self.core.geometry.node_size),
                _ => key.offset,
            };
            let read = self.extent(&view, (&key, len, within), item.data(), reader, done)?;
            *bytes += read;
            let to = within + read;
            place.seen = key.objectid.saturating_add(to);
            if read > 0 && to < len {
                (place.key, place.within) = (key, to);
                return Ok(true);
            }
            (place.key, place.within) = (key.successor().unwrap_or(Key::MAX), 0);
        }
        Ok(false)
    }

    /// A node, or a piece of content from so many bytes `within` it on; how much that was. What cannot be looked at
    /// is passed over.
    fn extent(
        &self,
        view: &View<'_>,
        of: (&Key, u64, u64),
        data: &[u8],
        reader: &mut Reader,
        done: &mut Scrubbed,
    ) -> Result<u64> {
        let (key, len, within) = of;
        match self.look_at(view, of, data, reader, done) {
            Err(error) if error.is_of_medium() => {
                let from = key.objectid.saturating_add(within);
                self.not_seen(from, key.objectid.saturating_add(len), &error);
                Ok(len - within)
            }
            read => read,
        }
    }

    fn look_at(
        &self,
        view: &View<'_>,
        (key, len, within): (&Key, u64, u64),
        data: &[u8],
        reader: &mut Reader,
        done: &mut Scrubbed,
    ) -> Result<u64> {
        let extent = ExtentItem::parse(key.kind, data);
        let extent = extent.map_err(|corrupt| corrupt.key(*key)).fs()?;
        if extent.fields.flags & extent_flags::TREE_BLOCK == 0 {
            return self.content(view, (Logical(key.objectid), len, within), reader, done);
        }
        let (node, volume) = (node_at(key, &extent), &self.core.volume);
        done.add(&volume.scrub_node(&node, reader.repair, &mut reader.ahead).fs()?);
        Ok(len)
    }

    fn content(
        &self,
        view: &View<'_>,
        (extent, len, within): (Logical, u64, u64),
        reader: &mut Reader,
        done: &mut Scrubbed,
    ) -> Result<u64> {
        let (volume, sector) = (&self.core.volume, self.core.sector());
        if within == 0 {
            let copies = volume.mirrors(extent).fs()? as u64;
            let chunk = volume.chunk(extent).map_or(0, |chunk| chunk.logical.0);
            let stripe = |at: u64| (at - chunk) / STRIPE_LEN;
            let stripes = stripe(extent.0 + len - 1) - stripe(extent.0) + 1;
            done.data_extents_scrubbed += stripes * copies;
        }
        let sectors = ((len - within).min(PIECE) / sector) as usize;
        let mut sums = vec![0; sectors * self.core.geometry.csum.size()];
        let mut known = vec![false; sectors];
        let (from, read) = (extent.offset(within), sectors as u64 * sector);
        match sums::stored(&self.core, &view.layers.roots, from, &mut sums, &mut known) {
            Ok(()) => {
                let (repair, ahead) = (reader.repair, &mut reader.ahead);
                done.add(&volume.scrub_data(from, (&sums, &known), repair, ahead).fs()?);
            }
            // Nothing to hold it against; what comes has its checksums elsewhere.
            Err(error) if error.is_of_medium() => {
                self.not_seen(from.0, from.offset(read).0, &error);
            }
            Err(error) => return Err(error),
        }
        Ok(read)
    }
}

/// When a scrub rests: where others want the processor, and as its limit says.
struct Pace<'a> {
    scrubber: &'a Scrubber,
    throttle: Throttle<'a>,
    limit: u64,
    /// Since when the limit holds, and the bytes that have been read since then.
    since: Instant,
    read: u64,
    /// Bytes of the scrub that were known of at the last rest.
    seen: u64,
}

impl Pace<'_> {
    fn of(scrubber: &Scrubber) -> Pace<'_> {
        let throttle = Throttle::new(&scrubber.core, Urgency::Background);
        let (limit, since) = (scrubber.limit(), Instant::now());
        Pace { scrubber, throttle, limit, since, read: 0, seen: 0 }
    }

    /// Between two pieces of a step: so many `bytes` have been read by the scrub so far.
    fn keep(&mut self, bytes: u64) {
        self.throttle.pause();
        self.read += bytes - self.seen;
        self.seen = bytes;
        while let Some(early) = self.early() {
            std::thread::sleep(early.min(NAP));
        }
    }

    /// How long until as much may have been read. Nobody waits for a limit that is another one now.
    fn early(&mut self) -> Option<Duration> {
        let limit = self.scrubber.limit();
        if limit != self.limit {
            (self.limit, self.since, self.read) = (limit, Instant::now(), 0);
        }
        if limit == 0 || self.scrubber.cancelled.load(Ordering::Acquire) {
            return None;
        }
        let due = Duration::try_from_secs_f64(self.read as f64 / limit as f64);
        due.unwrap_or(Duration::MAX).checked_sub(self.since.elapsed()).filter(|d| !d.is_zero())
    }
}

/// How the copies are read, and whether bad ones are written anew.
struct Reader {
    repair: bool,
    /// Nothing is read that is not to be looked at.
    saves: bool,
    ahead: Ahead,
}

/// How far the walk through the extent tree has come.
struct Place {
    /// Items from here on come next.
    key: Key,
    /// So much of the first of them is done.
    within: u64,
    /// Where the last extent ends that was looked at.
    seen: u64,
}

impl Place {
    fn at(next: u64) -> Place {
        Place { key: Key::new(next, 0, 0), within: 0, seen: next }
    }
}

fn node_at(key: &Key, extent: &ExtentItem) -> Expect {
    let level = extent.block_info.map_or(key.offset as u8, |(_, level)| level);
    let generation = Some(Generation(extent.fields.generation));
    let logical = Logical(key.objectid);
    Expect { logical, level, generation, owner: None, first_key: None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reserve::tests::volume;
    use btrfs_space::Kind;
    use vfs::{Context, FileKind, FileSystem};

    /// Bytes a second: behind its first piece a scrub rests for minutes.
    const SLOW: u64 = 4096;

    #[test]
    fn what_is_freed_while_a_scrub_rests_comes_back() {
        let fs = volume(512, 16384);
        let cx = Context::default();
        for (name, len) in [("large", 32 << 20), ("goes", 16 << 20)] {
            let made = fs.mknod(&cx, fs.root(), name.as_bytes(), FileKind::File, 0o644, 0);
            let ino = made.expect("create").attr.ino;
            fs.write(&cx, ino, 0, &vec![7; len], Default::default()).expect("write");
            fs.forget(ino, 1);
        }
        fs.sync().expect("commit");
        fs.limit_scrub(SLOW, false).expect("a limit");
        let (core, begun) = (&fs.open().expect("open").core, Instant::now());
        let soon = |what: &str| {
            assert!(begun.elapsed() < Duration::from_secs(60), "{what}");
            std::thread::sleep(Duration::from_millis(5));
        };
        let before = core.volume.counters().read_bytes;
        fs.start_scrub(true).expect("begins");
        while core.volume.counters().read_bytes < before + SLOW {
            soon("it was to read something");
        }
        fs.unlink(&cx, fs.root(), b"goes").expect("unlink");
        fs.sync().expect("commit");
        // What is erased behind an unlink may be in the one behind that.
        fs.sync().expect("commit");
        while core.space.pinned(Kind::Data) > 0 || core.space.totals().data.used > 40 << 20 {
            soon("what was freed stays pinned as long as the scrub rests");
        }
        assert_eq!(fs.scrub_status().expect("a status").state, ScrubState::Running);
        fs.cancel_scrub().expect("at work");
    }
}
