//! What stands between everybody and the engine: a volume that is closed or given up, and an
//! open transaction.
//!
//! Invariants:
//! * while a transaction is open, nobody makes anything durable: `sync`, `fsync` and what else
//!   commits are refused with EBUSY, the engine holds its own commits back
//!   (`BtrfsFs::hold_commits`), and changes end before they take more memory than they may;
//! * a volume whose transaction was given up answers nothing any more and writes nothing;
//! * a change that was done is in the last commit, or was refused, or closing says that it is lost, since the
//!   transaction that it fell into was given up: closing waits for those under way, and lets none begin; nor anything
//!   else that writes, so nothing is written behind its end.
//!
//! It does not know what the changes are, nor paths.

mod quotas;
mod subvolumes;

use btrfs_fs::BtrfsFs;
use locks::{Mutex, Rank, RwLock, RwLockReadGuard};
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use vfs::{
    Attr, Context, DirEntry, Durable, Entry, Errno, FallocateMode, FileKind, FileSystem, FsError,
    Ino, RenameMode, Result, SeekWhence, SetAttr, Stat, StatFs, WriteFlags, XattrMode,
};

/// What one change may add at once: the engine's own bound is a little higher than the guard's.
/// Chosen, not measured.
pub(crate) const HEADROOM: u64 = 64 << 20;

pub(crate) struct Guard {
    pub btrfs: Arc<BtrfsFs>,
    /// Bytes of changes that one transaction may have.
    limit: u64,
    /// A transaction is open. Who makes things durable holds it for reading.
    in_transaction: RwLock<bool>,
    /// The same, for those who only change something.
    counts: AtomicBool,
    given_up: AtomicBool,
    /// Why the medium could not be written before that, if so.
    failed: OnceLock<String>,
    closed: AtomicBool,
    /// The same, for who changes something, and holds it for reading meanwhile.
    ends: RwLock<bool>,
    /// How it was closed, or the errno. Held meanwhile: who closes it, too, waits, and hears the same.
    closing: Mutex<Option<std::result::Result<(), i32>>>,
}

impl Guard {
    pub(crate) fn new(btrfs: Arc<BtrfsFs>, limit: u64) -> Guard {
        Guard {
            btrfs,
            limit,
            in_transaction: RwLock::new(Rank::Transaction, false),
            counts: AtomicBool::new(false),
            given_up: AtomicBool::new(false),
            failed: OnceLock::new(),
            closed: AtomicBool::new(false),
            ends: RwLock::new(Rank::Ending, false),
            closing: Mutex::new(Rank::Closing, None),
        }
    }

    /// From here on nothing becomes durable; what came before is.
    pub(crate) fn begin(&self) -> Result<()> {
        let mut open = self.in_transaction.write();
        if *open {
            return Err(Errno::EBUSY.into());
        }
        self.there()?.hold_commits()?;
        *open = true;
        self.counts.store(true, Ordering::Release);
        Ok(())
    }

    /// Everything since `begin` is durable when this returns; or all of it is given up, and nothing of
    /// it on the medium, unless that failed when the superblock was written (`failed`).
    pub(crate) fn commit(&self) -> Result<()> {
        let mut open = self.in_transaction.write();
        let done = self.there()?.commit_held();
        if done.is_err() {
            // What came first is to be told.
            let _stopped = self.stop();
        }
        self.end(&mut open);
        done
    }

    /// All content has its place on the medium, or nothing is written any more.
    pub(crate) fn land_or_give_up(&self) -> Result<()> {
        let _durable = self.durable()?;
        self.change()?.land_or_give_up()
    }

    /// Nothing is written any more, nor answered.
    pub(crate) fn give_up(&self) -> Result<()> {
        let mut open = self.in_transaction.write();
        self.end(&mut open);
        self.stop()
    }

    /// Whoever is inside of the engine writes nothing any more when this returns.
    fn stop(&self) -> Result<()> {
        if let Some(why) = self.btrfs.read_only_reason() {
            let _ = self.failed.set(why);
        }
        self.given_up.store(true, Ordering::Release);
        self.btrfs.shut_down(Durable::Synced)
    }

    /// And nobody inside of the engine writes any more.
    pub(crate) fn is_given_up(&self) -> bool {
        let _ended = self.in_transaction.read();
        self.given_up.load(Ordering::Acquire)
    }

    /// Why the volume had to be given up, and is no better when it is opened anew.
    pub(crate) fn failed(&self) -> Option<&str> {
        self.failed.get().map(String::as_str)
    }

    pub(crate) fn has_transaction(&self) -> bool {
        self.counts.load(Ordering::Acquire)
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    fn end(&self, open: &mut bool) {
        self.counts.store(false, Ordering::Release);
        *open = false;
    }

    fn there(&self) -> Result<&BtrfsFs> {
        if self.given_up.load(Ordering::Acquire) {
            return Err(FsError::ReadOnly(
                "a transaction was given up; the volume is to be opened again".into(),
            ));
        }
        Ok(&self.btrfs)
    }

    /// For those who change something.
    fn change(&self) -> Result<Change<'_>> {
        if self.counts.load(Ordering::Acquire) && self.btrfs.uncommitted_bytes() > self.limit {
            let limit = self.limit;
            return Err(FsError::Unsupported(format!(
                "a transaction with more than {limit} bytes of changes"
            )));
        }
        let ends = self.ends.read();
        if *ends {
            return Err(FsError::ReadOnly("the volume is closed".into()));
        }
        Ok(Change { fs: self.there()?, _under_way: ends })
    }

    /// For those who make something durable; no transaction begins meanwhile.
    fn durable(&self) -> Result<RwLockReadGuard<'_, bool>> {
        self.there()?;
        let open = self.in_transaction.read();
        if *open { Err(Errno::EBUSY.into()) } else { Ok(open) }
    }
}

/// A change under way, for which closing waits.
struct Change<'g> {
    fs: &'g BtrfsFs,
    _under_way: RwLockReadGuard<'g, bool>,
}

impl Deref for Change<'_> {
    type Target = BtrfsFs;

    fn deref(&self) -> &BtrfsFs {
        self.fs
    }
}

impl FileSystem for Guard {
    fn root(&self) -> Ino {
        self.btrfs.root()
    }

    fn lookup(&self, cx: &Context, parent: Ino, name: &[u8]) -> Result<Entry> {
        self.there()?.lookup(cx, parent, name)
    }

    fn forget(&self, ino: Ino, count: u64) {
        self.btrfs.forget(ino, count);
    }

    fn is_held(&self, ino: Ino) -> bool {
        self.btrfs.is_held(ino)
    }

    fn getattr(&self, ino: Ino) -> Result<Attr> {
        self.there()?.getattr(ino)
    }

    fn refuses_writers(&self) -> bool {
        self.there().is_ok_and(|fs| fs.refuses_writers())
    }

    fn may_write(&self, ino: Ino) -> Result<()> {
        self.there()?.may_write(ino)
    }

    fn keeps_atime(&self) -> bool {
        self.btrfs.keeps_atime()
    }

    fn access_due(&self, ino: Ino) -> bool {
        self.btrfs.access_due(ino)
    }

    fn accessed(&self, ino: Ino) {
        self.btrfs.accessed(ino);
    }

    fn moment(&self) -> u64 {
        self.btrfs.moment()
    }

    fn lasts(&self, ino: Ino, moment: u64) -> bool {
        self.btrfs.lasts(ino, moment)
    }

    fn setattr(&self, cx: &Context, ino: Ino, set: &SetAttr) -> Result<Attr> {
        self.change()?.setattr(cx, ino, set)
    }

    fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        self.there()?.readlink(ino)
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
        self.change()?.mknod(cx, parent, name, kind, perm, rdev)
    }

    fn mkdir(&self, cx: &Context, parent: Ino, name: &[u8], perm: u16) -> Result<Entry> {
        self.change()?.mkdir(cx, parent, name, perm)
    }

    fn symlink(&self, cx: &Context, parent: Ino, name: &[u8], target: &[u8]) -> Result<Entry> {
        self.change()?.symlink(cx, parent, name, target)
    }

    fn link(&self, cx: &Context, ino: Ino, parent: Ino, name: &[u8]) -> Result<Entry> {
        self.change()?.link(cx, ino, parent, name)
    }

    fn tmpfile(&self, cx: &Context, parent: Ino, perm: u16) -> Result<Entry> {
        self.change()?.tmpfile(cx, parent, perm)
    }

    fn unlink(&self, cx: &Context, parent: Ino, name: &[u8]) -> Result<()> {
        self.change()?.unlink(cx, parent, name)
    }

    fn rmdir(&self, cx: &Context, parent: Ino, name: &[u8]) -> Result<()> {
        self.change()?.rmdir(cx, parent, name)
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
        self.change()?.rename(cx, parent, name, new_parent, new_name, mode)
    }

    fn read(&self, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.there()?.read(ino, offset, buf)
    }

    fn write(
        &self,
        cx: &Context,
        ino: Ino,
        offset: u64,
        data: &[u8],
        flags: WriteFlags,
    ) -> Result<usize> {
        let _durable = if flags.sync { Some(self.durable()?) } else { None };
        self.change()?.write(cx, ino, offset, data, flags)
    }

    fn fallocate(
        &self,
        cx: &Context,
        ino: Ino,
        mode: FallocateMode,
        offset: u64,
        len: u64,
    ) -> Result<()> {
        self.change()?.fallocate(cx, ino, mode, offset, len)
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
        self.change()?.copy_range(cx, from, from_offset, to, to_offset, len)
    }

    fn clone_range(
        &self,
        cx: &Context,
        from: Ino,
        from_offset: u64,
        to: Ino,
        to_offset: u64,
        len: u64,
    ) -> Result<()> {
        if !self.counts.load(Ordering::Acquire) {
            return self.change()?.clone_range(cx, from, from_offset, to, to_offset, len);
        }
        // All at once could be more than a transaction may have.
        let rest =
            || Ok::<_, FsError>(self.there()?.getattr(from)?.size.saturating_sub(from_offset));
        let len = if len == 0 { rest()? } else { len };
        let mut done = 0;
        while done < len {
            let (from, to) = ((from, from_offset + done), (to, to_offset + done));
            done += self.change()?.clone_some(from, to, len - done)?;
        }
        Ok(())
    }

    fn seek(&self, ino: Ino, offset: u64, whence: SeekWhence) -> Result<u64> {
        self.there()?.seek(ino, offset, whence)
    }

    fn fsync(&self, ino: Ino, datasync: bool) -> Result<()> {
        let _durable = self.durable()?;
        self.change()?.fsync(ino, datasync)
    }

    fn opened(&self) -> u64 {
        self.btrfs.opened()
    }

    fn fsync_opened(&self, ino: Ino, opened: u64, datasync: bool) -> Result<()> {
        let _durable = self.durable()?;
        self.change()?.fsync_opened(ino, opened, datasync)
    }

    fn sync(&self) -> Result<()> {
        let _durable = self.durable()?;
        self.change()?.sync()
    }

    fn sync_by(&self, thread: u32) -> Result<()> {
        let _durable = self.durable()?;
        self.change()?.sync_by(thread)
    }

    fn readdir(
        &self,
        dir: Ino,
        offset: u64,
        emit: &mut dyn FnMut(&DirEntry<'_>) -> bool,
    ) -> Result<()> {
        self.there()?.readdir(dir, offset, emit)
    }

    fn readdir_plus(
        &self,
        dir: Ino,
        offset: u64,
        emit: &mut dyn FnMut(&DirEntry<'_>, Option<&Entry>) -> bool,
    ) -> Result<()> {
        self.there()?.readdir_plus(dir, offset, emit)
    }

    fn dir_end(&self, dir: Ino) -> Result<u64> {
        self.there()?.dir_end(dir)
    }

    fn listing_ended(&self, dir: Ino, end: u64) -> Result<()> {
        self.there()?.listing_ended(dir, end)
    }

    fn take_unverified(&self, ino: Ino) -> Vec<(u64, u64)> {
        self.there().map_or_else(|_| Vec::new(), |fs| fs.take_unverified(ino))
    }

    fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        self.there()?.getxattr(ino, name)
    }

    fn listxattr(&self, ino: Ino) -> Result<Vec<Vec<u8>>> {
        self.there()?.listxattr(ino)
    }

    fn setxattr(
        &self,
        cx: &Context,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<()> {
        self.change()?.setxattr(cx, ino, name, value, mode)
    }

    fn removexattr(&self, cx: &Context, ino: Ino, name: &[u8]) -> Result<()> {
        self.change()?.removexattr(cx, ino, name)
    }

    fn flags(&self, ino: Ino) -> Result<u32> {
        self.there()?.flags(ino)
    }

    fn set_flags(&self, cx: &Context, ino: Ino, flags: u32) -> Result<()> {
        self.change()?.set_flags(cx, ino, flags)
    }

    fn set_common_flags(&self, cx: &Context, ino: Ino, flags: u32) -> Result<()> {
        self.change()?.set_common_flags(cx, ino, flags)
    }

    fn trim(&self, cx: &Context, start: u64, len: u64, least: u64) -> Result<u64> {
        let _durable = self.durable()?;
        self.there()?.trim(cx, start, len, least)
    }

    fn observe(&self, observer: Arc<dyn vfs::Observer>) {
        self.btrfs.observe(observer);
    }

    fn statfs(&self) -> Result<StatFs> {
        self.there()?.statfs()
    }

    fn label(&self) -> Result<Vec<u8>> {
        self.there()?.label()
    }

    fn set_label(&self, cx: &Context, label: &[u8]) -> Result<()> {
        let _durable = self.durable()?;
        self.change()?.set_label(cx, label)
    }

    fn shut_down(&self, first: Durable) -> Result<()> {
        let _durable = self.durable()?;
        self.change()?.shut_down(first)
    }

    fn stats(&self) -> Vec<Stat> {
        self.btrfs.stats()
    }

    /// A volume that was given up has nothing to commit, and who changed something in it hears that this is lost.
    fn destroy(&self) -> Result<()> {
        let open = self.in_transaction.read();
        if *open {
            return Err(Errno::EBUSY.into());
        }
        let mut closing = self.closing.lock();
        if let Some(how) = *closing {
            self.there()?;
            let context = "closing the volume failed".to_owned();
            let source = std::io::Error::from_raw_os_error;
            return how.map_err(|errno| FsError::Io { context, source: source(errno) });
        }
        self.closed.store(true, Ordering::Release);
        *self.ends.write() = true;
        let done = self.btrfs.destroy().and_then(|()| self.there().map(drop));
        *closing = Some(done.as_ref().copied().map_err(FsError::errno));
        done
    }
}
