//! One method per POSIX operation.
//!
//! Contract for every implementation:
//! * methods may be called from any number of threads at once;
//! * permission checks are the caller's business (the kernel does them for a
//!   mount, an offline tool owns its image); implementations enforce only what
//!   the format itself says (immutable, append-only, read-only subvolume);
//! * every method that returns an `Entry` or accepts a `readdir_plus` entry hands
//!   one lookup reference to the caller, who gives it back with `forget`. An inode
//!   with references stays readable and writable after its last name is gone;
//! * changes are durable after `fsync`, `sync` or `destroy` returned `Ok`, and in
//!   the order of the volume's commits otherwise;
//! * names are 1 to 255 bytes without `/` and NUL; longer ones are ENAMETOOLONG,
//!   `.` and `..` are refused with EINVAL where a name is made or removed.

use crate::{Attr, DirEntry, Entry, Errno, FileKind, Ino, Result, SetAttr, StatFs};
use std::sync::Arc;

/// Who asks: new inodes belong to `uid` and `gid`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Context {
    /// Owner of what is made.
    pub uid: u32,
    /// Group of what is made, unless the parent hands its own on.
    pub gid: u32,
    /// The process, or 0 where none is known.
    pub pid: u32,
    /// Applied by the implementation where the parent has no default ACL.
    pub umask: u16,
}

/// What becomes of the two names of a `rename`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
// Exhaustive: renameat2(2) has no other; one that an implementation passed over it would take for
// a plain rename.
pub enum RenameMode {
    /// Replace what the new name stands for.
    Replace,
    /// EEXIST if the new name stands for something.
    NoReplace,
    /// Swap the two names.
    Exchange,
    /// Leave a whiteout (character device 0:0) at the old name.
    Whiteout,
    /// `RENAME_NOREPLACE | RENAME_WHITEOUT`.
    NoReplaceWhiteout,
}

/// What becomes of a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum FallocateMode {
    /// Allocate; the size grows to cover the range.
    Allocate,
    /// Allocate; the size stays.
    KeepSize,
    /// Free the range; the size stays.
    PunchHole,
    /// The range reads as zeros and stays allocated.
    ZeroRange {
        /// The size stays, also where the range ends behind it.
        keep_size: bool,
    },
}

/// What is looked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
// Exhaustive: lseek(2) has no other for holes, and whoever serves it answers both.
pub enum SeekWhence {
    /// `SEEK_DATA`: the next byte that is not in a hole.
    Data,
    /// `SEEK_HOLE`: the next byte of a hole; the end of the file counts as one.
    Hole,
}

/// Whether the attribute may, must or must not exist.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
// Exhaustive: setxattr(2) has no other; each is another promise about what was there.
pub enum XattrMode {
    /// Either.
    Set,
    /// EEXIST if it exists.
    Create,
    /// ENODATA if it does not.
    Replace,
}

/// How a write is done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct WriteFlags {
    /// Clear set-user-ID and set-group-ID as a write by an ordinary user must.
    pub kill_priv: bool,
    /// Return only after the data and what is needed to read it are durable.
    pub sync: bool,
    /// `O_DIRECT`: return only when the device has taken the data, or fail. It need not be
    /// durable; a write that failed has changed nothing.
    pub direct: bool,
    /// The kernel sends what it had in its cache. Who stored it through a map keeps file capabilities, and who
    /// wrote it has taken them away then. It begins with a page, so with what may be there already, and several
    /// parts are under way at once, in any order. What is refused is lost.
    pub cached: bool,
}

/// What `FileSystem::shut_down` makes durable before it stops.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
// Exhaustive: what is made durable hangs on each.
pub enum Durable {
    /// All that was done before the call, content included.
    Everything,
    /// What is named; of content what has been written back.
    Changes,
    /// Nothing more than what somebody has synced.
    Synced,
}

/// One counter of `FileSystem::stats`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stat {
    /// Dotted name, e.g. `commit.count`; the unit is its last part where it has one
    /// (`_ns`, `_bytes`).
    pub name: &'static str,
    /// Since the start, or now where the name says a state.
    pub value: u64,
}

/// Hears what changed without a call that changes it, for callers who remember answers.
pub trait Observer: Send + Sync {
    /// What the last answer said of `ino` is no longer so. After `write`, `fallocate`,
    /// `copy_range` and `clone_range` a caller forgets by himself what is known of the file
    /// written to; nothing is said of changes that came before he asked again. Of what comes out of a cache
    /// ([`WriteFlags::cached`]) he may forget nothing, and of a `setattr` with [`SetAttr::of_content`] take no answer.
    ///
    /// Called under the implementation's locks: must neither block nor call back.
    fn attributes_changed(&self, ino: Ino);
    /// Content of the file is not what it was. To be told where answers do not last
    /// ([`FileSystem::lasts`]).
    fn content_changed(&self, _ino: Ino) {}
    /// The same, of a directory in which `name` came or went.
    fn listing_changed(&self, _dir: Ino, _name: &[u8]) {}
    /// `name` in the directory is not what it was, where answers last.
    fn name_changed(&self, _dir: Ino, _name: &[u8]) {}
    /// All answers last again: nothing that was read before is told of any more. Must not call back.
    fn all_settled(&self) {}
    /// Returns when what was told before has been acted upon, or after a while. The one call here
    /// that may block.
    fn caught_up(&self) {}
}

/// What a listed `name` of `dir` stands for, and whether that is a reference to be forgotten. Where the name
/// cannot be looked up for damage, it is what the listing says: `ino`.
pub fn lookup_listed(fs: &dyn FileSystem, dir: Ino, name: &[u8], ino: Ino) -> Result<(Attr, bool)> {
    match fs.lookup(&Context::default(), dir, name) {
        Ok(entry) => Ok((entry.attr, true)),
        Err(error) if error.is_of_medium() => {
            fs.getattr(ino).map(|attr| (attr, false)).map_err(|_| error)
        }
        Err(error) => Err(error),
    }
}

/// A file system: what a mount, the command line and the library call. See the contract above.
pub trait FileSystem: Send + Sync {
    /// The top directory; always there, and never forgotten.
    fn root(&self) -> Ino;

    /// ENOENT if `parent` has no such name, ENOTDIR if it is no directory.
    fn lookup(&self, cx: &Context, parent: Ino, name: &[u8]) -> Result<Entry>;
    /// Gives `count` lookup references back.
    fn forget(&self, ino: Ino, count: u64);
    /// Whether there are lookup references on it still, or again: those of `forget` may be some of many, and may come
    /// behind a lookup of the same inode. False where nobody counts them.
    fn is_held(&self, _ino: Ino) -> bool {
        false
    }
    /// What is so now, unwritten content included.
    fn getattr(&self, ino: Ino) -> Result<Attr>;
    /// True if reads may change access times. None of the calls here does by itself: who
    /// serves programs tells of their reads by `accessed`.
    fn keeps_atime(&self) -> bool {
        false
    }
    /// True if some files cannot be written whoever may: who serves programs asks by
    /// `may_write` when one is opened. As it is at the beginning.
    fn refuses_writers(&self) -> bool {
        false
    }
    /// EPERM: nobody opens it to write.
    fn may_write(&self, _ino: Ino) -> Result<()> {
        Ok(())
    }
    /// True if a read now would change the access time.
    fn access_due(&self, _ino: Ino) -> bool {
        false
    }
    /// A program read the file, directory or link.
    fn accessed(&self, _ino: Ino) {}
    /// To be asked before an answer that is to be remembered, for `lasts`.
    fn moment(&self) -> u64 {
        0
    }
    /// Whether names and attributes of `ino` that were answered since `moment` change by calls
    /// alone. False while something else is at work there that no call shows: then nothing of them
    /// is remembered, and of content and listings the observer is told.
    fn lasts(&self, _ino: Ino, _moment: u64) -> bool {
        true
    }
    /// Changes what `set` names, and answers what is so then; where it fails nothing is changed, unless a size was to: a
    /// file that is cut may have become shorter. EFBIG, ENOSPC and EDQUOT where a size grows.
    fn setattr(&self, cx: &Context, ino: Ino, set: &SetAttr) -> Result<Attr>;
    /// The target; EINVAL if it is no symbolic link.
    fn readlink(&self, ino: Ino) -> Result<Vec<u8>>;

    /// Makes a file, device, FIFO or socket. EEXIST if the name is taken.
    fn mknod(
        &self,
        cx: &Context,
        parent: Ino,
        name: &[u8],
        kind: FileKind,
        perm: u16,
        rdev: u32,
    ) -> Result<Entry>;
    /// EEXIST if the name is taken.
    fn mkdir(&self, cx: &Context, parent: Ino, name: &[u8], perm: u16) -> Result<Entry>;
    /// EEXIST if the name is taken; ENAMETOOLONG if the target does not fit.
    fn symlink(&self, cx: &Context, parent: Ino, name: &[u8], target: &[u8]) -> Result<Entry>;
    /// Another name. EEXIST if it is taken, EMLINK if there are too many, EPERM for directories.
    fn link(&self, cx: &Context, ino: Ino, parent: Ino, name: &[u8]) -> Result<Entry>;
    /// An inode without a name (`O_TMPFILE`); `link` may name it later.
    fn tmpfile(&self, cx: &Context, parent: Ino, perm: u16) -> Result<Entry>;
    /// Takes a name away; EISDIR if it is a directory's.
    fn unlink(&self, cx: &Context, parent: Ino, name: &[u8]) -> Result<()>;
    /// Takes an empty directory away; ENOTEMPTY if it is not, ENOTDIR if it is none.
    fn rmdir(&self, cx: &Context, parent: Ino, name: &[u8]) -> Result<()>;
    /// Gives what has one name another, in one step: a crash knows before and after.
    fn rename(
        &self,
        cx: &Context,
        parent: Ino,
        name: &[u8],
        new_parent: Ino,
        new_name: &[u8],
        mode: RenameMode,
    ) -> Result<()>;

    /// Fills `buf` from `offset`; returns less than asked only at the end of the file.
    fn read(&self, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize>;
    /// Writes all of `data` or fails; may be short only where space ran out part way, or the device refused the
    /// rest, and never of what is `cached`.
    fn write(
        &self,
        cx: &Context,
        ino: Ino,
        offset: u64,
        data: &[u8],
        flags: WriteFlags,
    ) -> Result<usize>;
    /// ENOSPC and EDQUOT before anything changes, EFBIG behind the largest size.
    fn fallocate(
        &self,
        cx: &Context,
        ino: Ino,
        mode: FallocateMode,
        offset: u64,
        len: u64,
    ) -> Result<()>;
    /// Copies within the volume, sharing extents where alignment allows. Returns the
    /// bytes copied, 0 at the end of the source; a long copy comes in parts, so that who waits
    /// for it can be interrupted between them.
    fn copy_range(
        &self,
        cx: &Context,
        from: Ino,
        from_offset: u64,
        to: Ino,
        to_offset: u64,
        len: u64,
    ) -> Result<u64>;
    /// Shares extents (`FICLONERANGE`); EINVAL where alignment forbids it. `len` 0
    /// means to the end of the source.
    fn clone_range(
        &self,
        cx: &Context,
        from: Ino,
        from_offset: u64,
        to: Ino,
        to_offset: u64,
        len: u64,
    ) -> Result<()>;
    /// ENXIO at or behind the end of the file.
    fn seek(&self, ino: Ino, offset: u64, whence: SeekWhence) -> Result<u64>;

    /// Durable when it returns: the file's data, and its metadata unless `datasync`
    /// and only times changed. On a directory: its entries.
    fn fsync(&self, ino: Ino, datasync: bool) -> Result<()>;
    /// A file was opened: the number that `fsync_opened` knows this opening by. Never 0, and
    /// larger than those before, where openings are told apart.
    fn opened(&self) -> u64 {
        0
    }
    /// As `fsync`, by one opening of the file. Each that was there when content of the file was
    /// refused is told so once; one that came later only if nobody had been told before it came.
    /// Those of whom nobody knows which one asks (0, and `fsync`) are told once all together.
    fn fsync_opened(&self, ino: Ino, _opened: u64, datasync: bool) -> Result<()> {
        self.fsync(ino, datasync)
    }
    /// Everything done before the call is durable when it returns.
    fn sync(&self) -> Result<()>;
    /// As `sync`, by one thread of the machine. Each is told once why a volume was given up:
    /// sync(2) of somebody else, who hears no errors, takes that from nobody. Those whom nobody
    /// knows (0, and `sync`) are told once all together.
    fn sync_by(&self, _thread: u32) -> Result<()> {
        self.sync()
    }

    /// Delivers entries behind `offset` (0 starts; `.` and `..` come first) until
    /// `emit` returns false. An entry for which it returned false is not consumed. Names
    /// that come meanwhile may be left out, and are if they would keep it from ending.
    fn readdir(
        &self,
        dir: Ino,
        offset: u64,
        emit: &mut dyn FnMut(&DirEntry<'_>) -> bool,
    ) -> Result<()>;
    /// As `readdir`, each with its `Entry`; no entry is given for `.` and `..`. Each
    /// consumed entry that came with an `Entry` carries one lookup reference.
    fn readdir_plus(
        &self,
        dir: Ino,
        offset: u64,
        emit: &mut dyn FnMut(&DirEntry<'_>, Option<&Entry>) -> bool,
    ) -> Result<()>;

    /// The offset behind what `dir` lists now. Names that come later are behind it, so a
    /// listing that stops at the first whose `next` is larger ends however many come.
    fn dir_end(&self, _dir: Ino) -> Result<u64> {
        Ok(u64::MAX)
    }

    /// For a listing that stopped at `end`, as above: an error where names in front of that could not be told.
    fn listing_ended(&self, _dir: Ino, _end: u64) -> Result<()> {
        Ok(())
    }

    /// Offsets and lengths of what `read` has given out of a file since the last call although it is not what its
    /// checksum says: nothing, where nobody has asked for such content.
    fn take_unverified(&self, _ino: Ino) -> Vec<(u64, u64)> {
        Vec::new()
    }

    /// ENODATA if there is none.
    fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>>;
    /// Names without values, in no order.
    fn listxattr(&self, ino: Ino) -> Result<Vec<Vec<u8>>>;
    /// ERANGE if name or value is too long, ENOSPC if the inode has no more room for it.
    fn setxattr(
        &self,
        cx: &Context,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<()>;
    /// ENODATA if there is none.
    fn removexattr(&self, cx: &Context, ino: Ino, name: &[u8]) -> Result<()>;

    /// `FS_IOC_GETFLAGS` bits.
    fn flags(&self, _ino: Ino) -> Result<u32> {
        Err(Errno::ENOTTY.into())
    }
    /// `FS_IOC_SETFLAGS` bits; EOPNOTSUPP for bits that the format cannot store.
    fn set_flags(&self, _cx: &Context, _ino: Ino, _flags: u32) -> Result<()> {
        Err(Errno::ENOTTY.into())
    }
    /// The same for who can say nothing of compression (`FS_IOC_FSSETXATTR`) and has left those
    /// bits as they were: how something is compressed stays.
    fn set_common_flags(&self, cx: &Context, ino: Ino, flags: u32) -> Result<()> {
        self.set_flags(cx, ino, flags)
    }

    /// Tells the device what is free from `start` on, in ranges of `least` bytes and more;
    /// answers how many bytes. `start` and `len` mean what the format makes of them. The
    /// caller has asked whether this user may.
    fn trim(&self, _cx: &Context, _start: u64, _len: u64, _least: u64) -> Result<u64> {
        Err(Errno::ENOTTY.into())
    }

    /// Names the one who is told of changes; at most one, before the first call.
    fn observe(&self, _observer: Arc<dyn Observer>) {}

    /// How large and how full; what is promised counts as in use.
    fn statfs(&self) -> Result<StatFs>;
    /// The volume's label.
    fn label(&self) -> Result<Vec<u8>> {
        Ok(Vec::new())
    }
    /// Durable when this returns. The caller has asked whether this user may, and cut it at
    /// its first NUL.
    fn set_label(&self, _cx: &Context, _label: &[u8]) -> Result<()> {
        Err(Errno::ENOTTY.into())
    }
    /// Stops for good, as if the power went: from when this returns nothing is written, and all
    /// calls but `forget`, `stats` and `destroy` answer EIO. The caller has asked whether this
    /// user may.
    fn shut_down(&self, _first: Durable) -> Result<()> {
        Err(Errno::ENOTTY.into())
    }
    /// Counters since the start; cheap.
    fn stats(&self) -> Vec<Stat> {
        Vec::new()
    }
    /// Commits and closes; every later call fails. Called once, at unmount.
    fn destroy(&self) -> Result<()>;
}
