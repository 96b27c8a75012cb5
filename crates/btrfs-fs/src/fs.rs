//! The face: `vfs::FileSystem` over the engine. Nothing is decided here.

use crate::beside::Beside;
use crate::cleaner::Sweeper;
use crate::commit::Background;
use crate::engine::Engine;
use crate::extents::{self, Stored};
use crate::ino::{id_of, is_stand_in};
use crate::ops::create::New;
use crate::ops::remove::What;
use crate::ops::{
    access, attr, copy, create, fallocate, flags, io, label, link, lookup, readdir, remove, rename,
    seek, shutdown, statfs, sync, trim, xattr,
};
use crate::orphan::Eraser;
use crate::unsettled::Beginning;
use btrfs_disk::Error;
use locks::Mutex;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use vfs::{
    Attr, Context, DirEntry, Durable, Entry, Errno, FallocateMode, FileKind, FileSystem, FsError,
    Ino, RenameMode, Result, SeekWhence, SetAttr, Stat, StatFs, WriteFlags, XattrMode,
};

/// An open btrfs volume.
pub struct BtrfsFs {
    pub(crate) engine: Arc<Engine>,
    /// Held by who makes the mount still, or writable again, shuts it down, or closes the volume: one at a time.
    pub(crate) background: Mutex<Option<Box<(Eraser, Sweeper, Background)>>>,
    /// Balances and scrubs.
    pub(crate) beside: Beside,
}

fn closed() -> FsError {
    FsError::ReadOnly("the volume is closed".into())
}

impl BtrfsFs {
    /// The engine is open: after `destroy` nothing works any more.
    pub(crate) fn open(&self) -> Result<&Engine> {
        if self.engine.closed.get().is_some() {
            return Err(closed());
        }
        if self.engine.core.health.is_shut_down() {
            return Err(shutdown::error());
        }
        Ok(&self.engine)
    }

    /// Changes something. Who ends when the last commit has begun hears that he failed: what he did may not be
    /// in it. One who panics may leave inodes half changed, which the next commit would have.
    pub(crate) fn change<T>(&self, work: impl FnOnce(&Engine) -> Result<T>) -> Result<T> {
        let engine = self.open()?;
        let health = &engine.core.health;
        let changed = health.poisoned_by_panics("a change panicked", || work(engine))?;
        match engine.last_commit.load(Ordering::SeqCst) {
            true => Err(FsError::ReadOnly("the volume is being closed".into())),
            false => Ok(changed),
        }
    }

    /// What the mount compresses by itself from here on, as [`crate::Options::compress`] says it
    /// at the beginning: of content that waits to be written back, too.
    pub fn set_compression(&self, compress: Option<crate::Compress>) {
        self.engine.writeback.set_compression(compress);
    }

    /// Writes nothing any more, for good: what is not committed is lost.
    pub fn give_up(&self, why: &str) {
        self.engine.core.health.poison(why);
        self.engine.core.volume.stop_writing();
    }

    /// Before `destroy`, for who wants all that came after the last commit, or nothing: where the device
    /// refuses content this is an error, and nothing is written any more.
    pub fn land_or_give_up(&self) -> Result<()> {
        crate::close::land(self.open()?)
    }

    /// Everything done before is durable when this returns; from here on nothing is, until
    /// `commit_held`. What asks for a commit is refused with EBUSY, and what only a commit
    /// would make room for with ENOSPC. The caller ends changes before they take more memory than
    /// they may ([`uncommitted_bytes`](BtrfsFs::uncommitted_bytes)).
    pub fn hold_commits(&self) -> Result<()> {
        let engine = self.open()?;
        sync::sync(engine, 0)?;
        engine.committer.hold();
        Ok(())
    }

    /// Makes all that was held back durable, in one commit. After an error nothing of it is; it
    /// is in memory, and held.
    pub fn commit_held(&self) -> Result<()> {
        self.open()?.committer.commit_held()
    }

    /// No change is under way, and none waits for a commit.
    pub fn is_still(&self) -> bool {
        self.engine.core.health.is_still()
    }

    /// An fsync that asked in the epoch of the last commit, and has its turn only now.
    #[cfg(feature = "fault-injection")]
    pub fn fsync_late(&self, ino: Ino) -> Result<()> {
        sync::fsync_late(self.open()?, ino)
    }

    /// What all of the process has in memory, for the statistics (`memory.process`). `settled`: what was free of
    /// it went back, so what is counted follows what is left.
    pub fn note_process_memory(&self, bytes: u64, settled: bool) {
        self.engine.note_process_memory(bytes, settled);
    }

    /// Where the content of a file is.
    pub fn stored(&self, ino: Ino) -> Result<Vec<Stored>> {
        let engine = self.open()?;
        extents::stored(&engine.core, &*engine.inodes.get(ino)?)
    }

    /// Whether opening it made a free-space tree for the volume, which had none that was valid: a
    /// lasting change, of which its owner is to be told.
    pub fn made_free_space_tree(&self) -> bool {
        self.engine.stats.free_space_trees.get() > 0
    }

    /// Whether there were quotas that opening it [gave up](crate::Options::give_up_quotas).
    pub fn gave_up_quotas(&self) -> bool {
        self.engine.stats.quotas_given_up.get() > 0
    }

    /// What errors the device had over its life, or since they were set to zero.
    pub fn device_errors(&self) -> Result<crate::DeviceErrors> {
        Ok(self.open()?.device_stats.errors())
    }

    /// They count from zero again, on the volume with the next `sync`; answers what they were.
    pub fn reset_device_errors(&self) -> Result<crate::DeviceErrors> {
        self.open()?.device_stats.reset()
    }

    /// Why the mount refuses writes, if it does.
    pub fn read_only_reason(&self) -> Option<String> {
        match self.engine.core.health.writable() {
            Err(Error::ReadOnly(why)) => Some(why),
            _ => None,
        }
    }

    /// Writes content of a file anew, so that it lies in fewer extents, or compressed; answers how many
    /// bytes that were. Nothing else of the file changes; it is durable as anything is that was
    /// written. EISDIR, EINVAL: it is no file.
    pub fn defragment(&self, ino: Ino, wish: &crate::Defragment) -> Result<u64> {
        self.defragment_while(ino, wish, &mut || Ok(()))
    }

    /// The same; `goes_on` is asked between its steps, and an error of it ends this. What is done by then stays.
    pub fn defragment_while(
        &self,
        ino: Ino,
        wish: &crate::Defragment,
        goes_on: &mut dyn FnMut() -> Result<()>,
    ) -> Result<u64> {
        crate::ops::defragment::defragment(self.open()?, ino, wish, goes_on)
    }

    /// Writes what the caller has compressed already, as it is: `encoded` becomes an extent of the file at
    /// `offset`, or its item. False: the format, the file or the free space does not allow that,
    /// and nothing was written. EISDIR, EINVAL: it is no file.
    pub fn write_encoded(
        &self,
        ino: Ino,
        offset: u64,
        encoded: &btrfs_disk::compress::Encoded<'_>,
    ) -> Result<bool> {
        self.change(|e| crate::ops::encoded::write_encoded(e, ino, offset, encoded))
    }

    /// The first part of a [`FileSystem::clone_range`], as much as takes no long time; answers how much.
    /// `len` is not 0. What is refused as a whole is refused here.
    pub fn clone_some(&self, from: (Ino, u64), to: (Ino, u64), len: u64) -> Result<u64> {
        self.change(|e| copy::clone_some(e, from, to, len))
    }

    /// The file's content stays as it is from now on, and each read of it is verified (fs-verity). The
    /// tree for that is made here, which takes as long as reading the file. EEXIST: it is verified
    /// already. EBUSY: somebody is at it. EPERM: it may only grow. EFBIG, EINVAL: not by these blocks.
    /// EACCES: the `caller` may not write it; without one nobody is asked.
    pub fn enable_verity(
        &self,
        caller: Option<&crate::Caller>,
        ino: Ino,
        wish: &crate::VerityWish,
    ) -> Result<()> {
        self.enable_verity_while(caller, ino, wish, &mut || Ok(()))
    }

    /// The same; `goes_on` is asked between its steps, and after an error of it the file is as before.
    pub fn enable_verity_while(
        &self,
        caller: Option<&crate::Caller>,
        ino: Ino,
        wish: &crate::VerityWish,
        goes_on: &mut dyn FnMut() -> Result<()>,
    ) -> Result<()> {
        crate::ops::verity::enable(self.open()?, caller, ino, wish, goes_on)
    }

    /// The error that `enable_verity` would have by now, where nothing is done yet.
    pub(crate) fn may_enable_verity(
        &self,
        caller: &crate::Caller,
        ino: Ino,
        wish: &crate::VerityWish,
    ) -> Result<()> {
        crate::ops::verity::may_enable(self.open()?, Some(caller), ino, wish).map(drop)
    }

    /// What it is verified by. ENODATA: it is not.
    pub fn measure_verity(&self, ino: Ino) -> Result<fs_verity::Descriptor> {
        crate::ops::verity::measure(self.open()?, ino)
    }

    /// A subvolume is about to be made that will change by what no caller sees ([`FileSystem::lasts`]).
    pub fn receive_begins(&self) -> Beginning {
        Beginning::of(&self.engine.unsettled)
    }

    /// The directory into which the bearer of this word may receive, or of which he may send: an administrator got
    /// it by the control operation `RECEIVE` or `SEND`, and it is good once.
    pub fn take_ticket(&self, word: &[u8]) -> Option<Ino> {
        self.engine.tickets.take(word)
    }

    /// One of them has ended: returns when who remembers answers has heard of all that changed.
    pub fn receive_ended(&self) {
        if let Some(observer) = self.observer() {
            self.engine.unsettled.if_none(|| observer.all_settled());
            observer.caught_up();
        }
    }

    /// Whom to tell of such changes.
    pub fn observer(&self) -> Option<&dyn vfs::Observer> {
        self.engine.writeback.observer()
    }

    /// The volume takes `total` bytes of its device from now on (rounded down to whole sectors);
    /// durable when this returns. What lies behind a nearer end moves elsewhere.
    ///
    /// EFBIG: the device has fewer. EINVAL: less than 256 MiB are left. ENOSPC: what there is does not
    /// fit.
    pub fn resize(&self, total: u64) -> Result<crate::BalanceReport> {
        self.open()?.balancer.resize(total)
    }

    /// How large device `devid` is for the volume, and what it would be by `size`. ENODEV: there is no
    /// such device.
    pub fn sizes(&self, devid: u64, size: crate::NewSize) -> Result<(u64, u64)> {
        self.open()?.balancer.sizes(devid, size)
    }

    /// Bytes of names and attributes that were changed since the last commit began.
    pub fn uncommitted_bytes(&self) -> u64 {
        self.engine.core.layers().current.bytes()
    }
}

/// What is not durable is lost; the device is let go of.
impl Drop for BtrfsFs {
    fn drop(&mut self) {
        // Of work that panicked nobody hears that it has ended.
        if !std::thread::panicking() {
            self.beside.end(&self.engine);
        }
    }
}

impl FileSystem for BtrfsFs {
    fn root(&self) -> Ino {
        self.engine.root
    }

    fn lookup(&self, _cx: &Context, parent: Ino, name: &[u8]) -> Result<Entry> {
        lookup::lookup(self.open()?, parent, name)
    }

    fn forget(&self, ino: Ino, count: u64) {
        if !is_stand_in(ino)
            && let Ok(engine) = self.open()
        {
            engine.orphans.forget(id_of(ino), count);
        }
    }

    fn is_held(&self, ino: Ino) -> bool {
        let claimed = |engine: &Engine| engine.inodes.table().is_claimed(id_of(ino));
        !is_stand_in(ino) && self.open().is_ok_and(claimed)
    }

    fn keeps_atime(&self) -> bool {
        self.open().is_ok_and(|engine| engine.options.atime != crate::Atime::Never)
    }

    fn refuses_writers(&self) -> bool {
        let flags = self.engine.core.volume.superblock().fields.compat_ro_flags;
        flags & btrfs_disk::ids::compat_ro::VERITY != 0
    }

    fn may_write(&self, ino: Ino) -> Result<()> {
        crate::ops::verity::may_write(self.open()?, ino)
    }

    fn access_due(&self, ino: Ino) -> bool {
        self.open().is_ok_and(|engine| access::due(engine, ino))
    }

    fn accessed(&self, ino: Ino) {
        if let Ok(engine) = self.open() {
            access::accessed(engine, ino);
        }
    }

    fn moment(&self) -> u64 {
        self.engine.unsettled.moment()
    }

    fn lasts(&self, ino: Ino, moment: u64) -> bool {
        self.engine.unsettled.lasts(id_of(ino).tree, moment)
    }

    fn getattr(&self, ino: Ino) -> Result<Attr> {
        attr::getattr(self.open()?, ino)
    }

    fn setattr(&self, _cx: &Context, ino: Ino, set: &SetAttr) -> Result<Attr> {
        self.change(|e| attr::setattr(e, ino, set))
    }

    fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        let engine = self.open()?;
        let inode = engine.inodes.get(ino)?;
        let state = inode.read()?;
        if state.item.mode & vfs::mode::S_IFMT != vfs::mode::S_IFLNK {
            return Err(Errno::EINVAL.into());
        }
        let mut target = vec![0; state.item.size.min(1 << 16) as usize];
        let len = extents::read(&engine.core, inode.id, &state, 0, &mut target)?;
        target.truncate(len);
        Ok(target)
    }

    fn mknod(
        &self,
        cx: &Context,
        parent: Ino,
        name: &[u8],
        kind: FileKind,
        perm: u16,
        rdev: u32,
    ) -> Result<Entry> {
        let rdev = match kind {
            FileKind::Dir | FileKind::Symlink => return Err(Errno::EINVAL.into()),
            FileKind::CharDevice | FileKind::BlockDevice => rdev,
            _ => 0,
        };
        self.change(|e| create::make(e, cx, parent, name, &New { kind, perm, rdev, target: &[] }))
    }

    fn mkdir(&self, cx: &Context, parent: Ino, name: &[u8], perm: u16) -> Result<Entry> {
        let new = New { kind: FileKind::Dir, perm, rdev: 0, target: &[] };
        self.change(|e| create::make(e, cx, parent, name, &new))
    }

    fn symlink(&self, cx: &Context, parent: Ino, name: &[u8], target: &[u8]) -> Result<Entry> {
        let new = New { kind: FileKind::Symlink, perm: 0o777, rdev: 0, target };
        self.change(|e| create::make(e, cx, parent, name, &new))
    }

    fn link(&self, _cx: &Context, ino: Ino, parent: Ino, name: &[u8]) -> Result<Entry> {
        self.change(|e| link::link(e, ino, parent, name))
    }

    fn tmpfile(&self, cx: &Context, parent: Ino, perm: u16) -> Result<Entry> {
        self.change(|e| create::tmpfile(e, cx, parent, perm))
    }

    fn unlink(&self, _cx: &Context, parent: Ino, name: &[u8]) -> Result<()> {
        self.change(|e| remove::remove(e, parent, name, What::File))
    }

    fn rmdir(&self, _cx: &Context, parent: Ino, name: &[u8]) -> Result<()> {
        self.change(|e| remove::remove(e, parent, name, What::Dir))
    }

    fn rename(
        &self,
        cx: &Context,
        parent: Ino,
        name: &[u8],
        new_parent: Ino,
        new_name: &[u8],
        mode: RenameMode,
    ) -> Result<()> {
        self.change(|e| rename::rename(e, cx, parent, name, new_parent, new_name, mode))
    }

    fn read(&self, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize> {
        io::read(self.open()?, ino, offset, buf)
    }

    fn write(
        &self,
        _cx: &Context,
        ino: Ino,
        offset: u64,
        data: &[u8],
        flags: WriteFlags,
    ) -> Result<usize> {
        self.change(|e| io::write(e, ino, offset, data, flags))
    }

    fn fallocate(
        &self,
        _cx: &Context,
        ino: Ino,
        mode: FallocateMode,
        offset: u64,
        len: u64,
    ) -> Result<()> {
        self.change(|e| fallocate::fallocate(e, ino, mode, offset, len))
    }

    fn copy_range(
        &self,
        cx: &Context,
        from: Ino,
        from_offset: u64,
        to: Ino,
        to_offset: u64,
        len: u64,
    ) -> Result<u64> {
        self.change(|e| copy::copy_range(e, cx, from, from_offset, to, to_offset, len))
    }

    fn clone_range(
        &self,
        _cx: &Context,
        from: Ino,
        from_offset: u64,
        to: Ino,
        to_offset: u64,
        len: u64,
    ) -> Result<()> {
        self.change(|e| copy::clone_range(e, (from, from_offset), (to, to_offset), len))
    }

    fn seek(&self, ino: Ino, offset: u64, whence: SeekWhence) -> Result<u64> {
        seek::seek(self.open()?, ino, offset, whence)
    }

    fn fsync(&self, ino: Ino, datasync: bool) -> Result<()> {
        sync::fsync(self.open()?, ino, 0, datasync)
    }

    fn opened(&self) -> u64 {
        self.engine.writeback.errors().opened()
    }

    fn fsync_opened(&self, ino: Ino, opened: u64, datasync: bool) -> Result<()> {
        sync::fsync(self.open()?, ino, opened, datasync)
    }

    fn sync(&self) -> Result<()> {
        self.sync_by(0)
    }

    fn sync_by(&self, thread: u32) -> Result<()> {
        sync::sync(self.open()?, thread)
    }

    fn readdir(
        &self,
        dir: Ino,
        offset: u64,
        emit: &mut dyn FnMut(&DirEntry<'_>) -> bool,
    ) -> Result<()> {
        readdir::readdir(self.open()?, dir, offset, false, &mut |entry, _| emit(entry))
    }

    fn dir_end(&self, dir: Ino) -> Result<u64> {
        readdir::dir_end(self.open()?, dir)
    }

    fn listing_ended(&self, dir: Ino, end: u64) -> Result<()> {
        readdir::listing_ended(self.open()?, dir, end)
    }

    fn take_unverified(&self, ino: Ino) -> Vec<(u64, u64)> {
        self.engine.core.unverified.take(crate::ino::id_of(ino))
    }

    fn readdir_plus(
        &self,
        dir: Ino,
        offset: u64,
        emit: &mut dyn FnMut(&DirEntry<'_>, Option<&Entry>) -> bool,
    ) -> Result<()> {
        readdir::readdir(self.open()?, dir, offset, true, emit)
    }

    fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        xattr::get(self.open()?, ino, name)
    }

    fn listxattr(&self, ino: Ino) -> Result<Vec<Vec<u8>>> {
        xattr::list(self.open()?, ino)
    }

    fn setxattr(
        &self,
        _cx: &Context,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<()> {
        self.change(|e| xattr::set(e, ino, name, value, mode))
    }

    fn removexattr(&self, _cx: &Context, ino: Ino, name: &[u8]) -> Result<()> {
        self.change(|e| xattr::remove(e, ino, name))
    }

    fn flags(&self, ino: Ino) -> Result<u32> {
        flags::get(self.open()?, ino)
    }

    fn set_flags(&self, _cx: &Context, ino: Ino, bits: u32) -> Result<()> {
        self.change(|e| flags::set(e, ino, bits, flags::Compression::AsTheBitsSay))
    }

    fn set_common_flags(&self, _cx: &Context, ino: Ino, bits: u32) -> Result<()> {
        self.change(|e| flags::set(e, ino, bits, flags::Compression::Stays))
    }

    fn trim(&self, _cx: &Context, start: u64, len: u64, least: u64) -> Result<u64> {
        trim::trim(self.open()?, start, len, least)
    }

    fn observe(&self, observer: Arc<dyn vfs::Observer>) {
        // A second one is refused: whoever was first may rely on being told.
        self.engine.writeback.observe(observer);
    }

    fn statfs(&self) -> Result<StatFs> {
        statfs::statfs(self.open()?)
    }

    fn label(&self) -> Result<Vec<u8>> {
        Ok(label::get(self.open()?))
    }

    fn set_label(&self, _cx: &Context, text: &[u8]) -> Result<()> {
        self.change(|e| label::set(e, text))
    }

    fn stats(&self) -> Vec<Stat> {
        self.engine.all_stats()
    }

    fn shut_down(&self, first: Durable) -> Result<()> {
        // While it is closed nothing else becomes of it.
        let _one = self.background.lock();
        shutdown::shut_down(self.open()?, first)
    }

    fn destroy(&self) -> Result<()> {
        // Not whether it is open: a shutdown beside this one ends no thread.
        if self.engine.closed.get().is_some() && !self.engine.core.health.is_shut_down() {
            return Err(closed());
        }
        self.beside.end(&self.engine);
        let mut background = self.background.lock();
        // Who came to close it beside somebody who did hears what that one heard.
        if let Some(how) = self.engine.closed.get() {
            return how.as_ref().copied().map_err(FsError::again);
        }
        drop(background.take());
        let result = crate::close::close(&self.engine);
        let _only_once = self.engine.closed.set(result.as_ref().copied().map_err(FsError::again));
        // Nor does who is inside still, be it that a read finds a bad copy.
        self.engine.core.volume.stop_writing();
        self.engine.committer.let_go();
        result
    }
}
