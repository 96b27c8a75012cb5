//! A directory of a mount as the target of a stream.
//!
//! Invariant: everything is reached from the open root directory of the subvolume that is being
//! received, through directories of that subvolume alone; no symbolic link is followed. So what
//! others do meanwhile in the mount leads no change elsewhere. Nothing but regular files and directories is ever opened: a
//! stream may make nodes of devices.
//!
//! Some directories and the file that were used last stay open, since streams go on with them; they
//! are let go when their names change.

use crate::door::{Door, enable_verity};
use crate::error::{Error, Result as ServerMessage, io_text};
use crate::mounts;
use crate::sys::{self, DirFd, open_beneath, open_of_kind};
use btrfs_fs::control::wire::{self, SnapshotArgs, Source, VolArgs2};
use btrfs_fs::{ReceivedFrom, SubvolumeInfo, VerityWish, known_as, same_subvolume};
use btrfs_receiver::{CloneFrom, Made, New, Received, RelPath, Target, Times};
use btrfs_send::{Origin, Special, Verity};
use std::ffi::{CStr, OsStr};
use std::fs::{File, Permissions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};
use vfs::{Errno, FallocateMode, FsError, Ino, Result};

/// Directories that stay open.
const DIRS: usize = 64;
const READ_DIR: i32 = libc::O_RDONLY | libc::O_DIRECTORY;
const SET_ID: u16 = 0o6000;
const OWNER_WRITES: u16 = 0o200;
const FILE: &[u32] = &[libc::S_IFREG];
const FILE_OR_DIR: &[u32] = &[libc::S_IFREG, libc::S_IFDIR];
/// How content of an inode is compressed.
const COMPRESSION: &CStr = c"btrfs.compression";

/// Below a directory of a mount.
pub(super) struct InMount {
    path: PathBuf,
    top: File,
    door: Door,
    /// Looked for when something outside of what is received is wanted.
    mounted: Option<Mounted>,
    open: Option<Open>,
    /// The one that was used last is the last one.
    dirs: Vec<(Vec<u8>, File)>,
    last_file: Option<(Vec<u8>, File)>,
    /// Root directories of what the subvolume was cloned from, as `dirs`: to look for one means a
    /// look at all subvolumes, and a commit.
    origins: Vec<(Origin, File)>,
}

/// The subvolume that is being received.
struct Open {
    root: File,
    ino: Ino,
    path: PathBuf,
}

/// The mount that the directory is in.
struct Mounted {
    top: File,
    /// Where in the volume that is.
    begins: Vec<u8>,
}

impl Mounted {
    fn at(point: &Path) -> ServerMessage<Mounted> {
        let (begins, _) = Door::open(point)?.around()?;
        let top = File::open(point).map_err(|e| Error::io(point, &e))?;
        Ok(Mounted { top, begins: begins.path.unwrap_or_default() })
    }

    fn around(path: &Path) -> ServerMessage<Mounted> {
        let mount = mounts::around(path).map_err(|e| Error::io(path, &e))?;
        let missing = || Error::about(path.display(), "no mount is around it");
        Mounted::at(&mount.ok_or_else(missing)?.point)
    }

    /// Where somebody says that it is.
    fn said(point: &Path, path: &Path) -> ServerMessage<Mounted> {
        let real = |path: &Path| path.canonicalize().map_err(|e| Error::io(path, &e));
        if !real(path)?.starts_with(real(point)?) {
            let what = format!("not below {}", point.display());
            return Err(Error::about(path.display(), what));
        }
        Mounted::at(point)
    }
}

fn fs(error: io::Error) -> FsError {
    match error.raw_os_error().and_then(Errno::from_code) {
        Some(errno) => errno.into(),
        None => FsError::Io { context: "in the mount".into(), source: error },
    }
}

trait ToFs<T> {
    fn fs(self) -> Result<T>;
}

impl<T> ToFs<T> for io::Result<T> {
    fn fs(self) -> Result<T> {
        self.map_err(fs)
    }
}

/// Of the server's answers only the text is left.
fn of_door(error: &Error) -> FsError {
    let (context, source) = ("asking the mount's server".into(), io::Error::other(error.text()));
    FsError::Io { context, source }
}

impl InMount {
    /// `point`: where the volume is mounted, if somebody said so.
    pub(super) fn new(path: &Path, point: Option<&Path>) -> ServerMessage<InMount> {
        let door = Door::open(path)?;
        let top =
            open_beneath(&File::open(path).map_err(|e| Error::io(path, &e))?, b"", READ_DIR, 0);
        let top = top.map_err(|e| Error::io(path, &e))?;
        let (open, dirs, last_file, origins) = Default::default();
        let mounted = point.map(|point| Mounted::said(point, path)).transpose()?;
        Ok(InMount { path: path.to_owned(), top, door, mounted, open, dirs, last_file, origins })
    }

    /// The process has no other root directory from now on. What is built on is read all the same,
    /// through the mount's top, which is open.
    pub(super) fn confine(&mut self) -> ServerMessage<()> {
        if self.mounted.is_none() {
            self.mounted = Some(Mounted::around(&self.path)?);
        }
        sys::change_root(&self.path).map_err(|e| Error::about(self.path.display(), io_text(&e)))
    }

    fn opened(&mut self, name: &[u8]) -> Result<()> {
        self.let_go();
        self.origins.clear();
        let root = open_beneath(&self.top, name, READ_DIR, 0).fs()?;
        let ino = Ino(sys::stat(&root).fs()?.stx_ino);
        let path = self.path.join(OsStr::from_bytes(name));
        self.open = Some(Open { root, ino, path });
        Ok(())
    }

    fn let_go(&mut self) {
        self.dirs.clear();
        self.last_file = None;
    }

    /// What had this path has it no more, or something else has it now.
    fn moved(&mut self, path: RelPath<'_>) {
        self.dirs.retain(|(dir, _)| !path.leads_to(dir));
        self.last_file = self.last_file.take().filter(|(file, _)| !path.leads_to(file));
    }

    fn open(&self) -> Result<&Open> {
        self.open.as_ref().ok_or(Errno::EINVAL.into())
    }

    fn walk(&self, path: RelPath<'_>) -> Result<File> {
        let open = self.open()?;
        let dir = open_beneath(&open.root, path.as_bytes(), READ_DIR, 0).fs()?;
        match same_subvolume(Ino(sys::stat(&dir).fs()?.stx_ino), open.ino) {
            true => Ok(dir),
            false => Err(Errno::EXDEV.into()),
        }
    }

    /// A directory of the subvolume; it stays open.
    fn dir(&mut self, path: RelPath<'_>) -> Result<&File> {
        match self.dirs.iter().position(|(known, _)| known == path.as_bytes()) {
            Some(at) => {
                let known = self.dirs.remove(at);
                self.dirs.push(known);
            }
            None => {
                let dir = self.walk(path)?;
                if self.dirs.len() >= DIRS {
                    self.dirs.remove(0);
                }
                self.dirs.push((path.as_bytes().to_vec(), dir));
            }
        }
        self.dirs.last().map(|(_, dir)| dir).ok_or(Errno::EINVAL.into())
    }

    /// Runs `work` on the directory of `path` and its last name; `.` in the root directory for that
    /// itself.
    fn above<T>(
        &mut self,
        path: RelPath<'_>,
        work: impl FnOnce(&DirFd<'_>, &[u8]) -> io::Result<T>,
    ) -> Result<T> {
        let Some((dir, name)) = path.split() else {
            return work(&DirFd(&self.open()?.root), b".").fs();
        };
        work(&DirFd(self.dir(dir)?), name).fs()
    }

    /// A regular file, to be read and written.
    fn file(&mut self, path: RelPath<'_>) -> Result<&File> {
        let known = self.last_file.as_ref().filter(|(known, _)| known == path.as_bytes());
        if known.is_none() {
            let opened = self.open_file(path, libc::O_RDWR, FILE)?;
            self.keep(path, opened);
        }
        self.last_file.as_ref().map(|(_, file)| file).ok_or(Errno::EINVAL.into())
    }

    /// The file that was used last, if it is this one: what is known of it the kernel answers by
    /// itself.
    fn used_last(&self, path: RelPath<'_>) -> Option<&File> {
        let known = self.last_file.as_ref().filter(|(known, _)| known == path.as_bytes());
        known.map(|(_, file)| file)
    }

    fn keep(&mut self, path: RelPath<'_>, file: File) {
        self.last_file = Some((path.as_bytes().to_vec(), file));
    }

    /// Of one of these kinds, and opens nothing else: the stream may have made it.
    fn open_file(&mut self, path: RelPath<'_>, flags: i32, kinds: &[u32]) -> Result<File> {
        self.above(path, |dir, name| open_of_kind(dir.0, name, flags, kinds))
    }

    fn known_as(&self, origin: &Origin) -> Result<Option<SubvolumeInfo>> {
        let all = self.door.all().map_err(|error| of_door(&error))?;
        let all = all.ok_or(FsError::Posix(Errno::EPERM))?;
        Ok(known_as(all, origin.uuid, origin.ctransid))
    }

    fn source(&mut self, from: &CloneFrom<'_>) -> Result<File> {
        let root = match &from.origin {
            None => &self.open()?.root,
            Some(origin) => self.origin(origin)?,
        };
        open_of_kind(root, from.path.as_bytes(), libc::O_RDONLY, FILE).fs()
    }

    /// The root directory of what is known as `origin`.
    fn origin(&mut self, origin: &Origin) -> Result<&File> {
        let known = match self.origins.iter().position(|(known, _)| known == origin) {
            Some(at) => self.origins.remove(at),
            None => {
                let info = self.known_as(origin)?.ok_or(FsError::Posix(Errno::ENOENT))?;
                let root = self.root_of(&info)?;
                if sys::stat(&root).fs()?.stx_ino != info.root.0 {
                    return Err(Errno::ENOENT.into());
                }
                if self.origins.len() >= DIRS {
                    self.origins.remove(0);
                }
                (*origin, root)
            }
        };
        self.origins.push(known);
        self.origins.last().map(|(_, root)| root).ok_or(Errno::ENOENT.into())
    }

    /// The root directory of a subvolume in the mount, which may begin below the top level.
    fn root_of(&mut self, info: &SubvolumeInfo) -> Result<File> {
        let missing = || FsError::Posix(Errno::ENOENT);
        let mounted = match self.mounted.take() {
            Some(mounted) => mounted,
            None => Mounted::around(&self.path).map_err(|error| of_door(&error))?,
        };
        let mounted = self.mounted.insert(mounted);
        let path = info.path.as_deref().ok_or_else(missing)?;
        let rest = path.strip_prefix(&mounted.begins[..]).ok_or_else(missing)?;
        let rest = rest.strip_prefix(b"/").unwrap_or(rest);
        open_beneath(&mounted.top, rest, READ_DIR, 0).fs()
    }
}

impl Target for InMount {
    fn begin(&mut self, name: &[u8]) -> Result<()> {
        let record = VolArgs2::named(name).ok_or(FsError::Posix(Errno::ENAMETOOLONG))?;
        self.door.ask_volume(wire::SUBVOL_CREATE_V2, record).fs()?;
        self.opened(name)
    }

    fn begin_from(&mut self, name: &[u8], parent: &Origin) -> Result<Made> {
        let Some(info) = self.known_as(parent)? else { return Ok(Made::UnknownParent) };
        let args = SnapshotArgs { source: Source::Number(info.root), read_only: false, name };
        let record = args.write().ok_or(FsError::Posix(Errno::ENAMETOOLONG))?;
        self.door.ask_volume(wire::SNAPSHOT, record).fs()?;
        self.opened(name)?;
        Ok(Made::Yes)
    }

    fn complete(&mut self, received: &Received) -> Result<()> {
        self.let_go();
        self.origins.clear();
        let Some(open) = self.open.take() else { return Err(Errno::EINVAL.into()) };
        // What the kernel keeps of the files goes to the server.
        sys::sync_file_system(&open.root).fs()?;
        let (uuid, stransid) = (received.origin.uuid, received.origin.ctransid);
        let from = ReceivedFrom { uuid, stransid, stime: (0, 0) };
        let door = Door::on(open.root, &open.path);
        door.ask_volume(wire::SET_RECEIVED_SUBVOL, wire::write_received(&from)).fs()?;
        let flags = wire::FLAG_READ_ONLY.to_le_bytes().to_vec();
        door.ask_volume(wire::SUBVOL_SETFLAGS, flags).fs().map(drop)
    }

    fn make(&mut self, path: RelPath<'_>, new: &New<'_>) -> Result<()> {
        let flags = libc::O_RDWR | libc::O_CREAT | libc::O_EXCL;
        let invalid = || io::Error::from_raw_os_error(libc::EINVAL);
        let made = self.above(path, |dir, name| match new {
            New::File => open_beneath(dir.0, name, flags, 0o600).map(Some),
            New::Dir => dir.mkdir(name, 0o700).map(|()| None),
            New::Symlink(target) => dir.symlink(name, target).map(|()| None),
            New::Special { kind, mode, rdev } => {
                let mode = match kind {
                    Special::Fifo => libc::S_IFIFO,
                    Special::Socket => libc::S_IFSOCK,
                    Special::Node => mode & libc::S_IFMT,
                };
                match mode {
                    libc::S_IFIFO | libc::S_IFSOCK | libc::S_IFCHR | libc::S_IFBLK => {
                        dir.mknod(name, mode | 0o600, device(*rdev)).map(|()| None)
                    }
                    _ => Err(invalid()),
                }
            }
        })?;
        if let Some(file) = made {
            self.keep(path, file);
        }
        Ok(())
    }

    fn rename(&mut self, from: RelPath<'_>, to: RelPath<'_>) -> Result<()> {
        let (old_dir, old) = from.split().ok_or(FsError::Posix(Errno::EINVAL))?;
        let (new_dir, new) = to.split().ok_or(FsError::Posix(Errno::EINVAL))?;
        self.dir(old_dir)?;
        self.dir(new_dir)?;
        let open = |path: RelPath<'_>| {
            let known = self.dirs.iter().find(|(known, _)| known == path.as_bytes());
            known.map(|(_, dir)| dir).ok_or(FsError::Posix(Errno::EINVAL))
        };
        DirFd(open(old_dir)?).rename(old, &DirFd(open(new_dir)?), new).fs()?;
        let last = self.last_file.take_if(|(file, _)| file == from.as_bytes());
        self.moved(from);
        self.moved(to);
        if let Some((_, file)) = last {
            self.last_file = Some((to.as_bytes().to_vec(), file));
        }
        Ok(())
    }

    fn link(&mut self, old: RelPath<'_>, path: RelPath<'_>) -> Result<()> {
        let (old_dir, old) = old.split().ok_or(FsError::Posix(Errno::EINVAL))?;
        let old_dir = self.walk(old_dir)?;
        self.above(path, |dir, name| DirFd(&old_dir).link(old, dir, name))
    }

    fn unlink(&mut self, path: RelPath<'_>) -> Result<()> {
        self.moved(path);
        self.above(path, |dir, name| dir.unlink(name, false))
    }

    fn rmdir(&mut self, path: RelPath<'_>) -> Result<()> {
        // Nothing but directories of this subvolume: none is deleted in this way.
        self.walk(path)?;
        self.moved(path);
        self.above(path, |dir, name| dir.unlink(name, true))
    }

    fn write(&mut self, path: RelPath<'_>, offset: u64, data: &[u8]) -> Result<()> {
        self.file(path)?.write_all_at(data, offset).fs()
    }

    fn clone(&mut self, from: &CloneFrom<'_>, path: RelPath<'_>, at: u64, len: u64) -> Result<()> {
        let source = self.source(from)?;
        let file = self.file(path)?;
        let (stat, own) = (source.metadata().fs()?, file.metadata().fs()?);
        if (stat.dev(), stat.ino()) == (own.dev(), own.ino()) {
            from.check_within(stat.len(), at, len)?;
        }
        let mut done = 0;
        while done < len {
            let (source, target) = ((&source, from.offset + done), (file, at + done));
            match sys::copy_range(source, target, len - done).fs()? {
                0 => return Err(Errno::EINVAL.into()),
                some => done += some,
            }
        }
        Ok(())
    }

    fn truncate(&mut self, path: RelPath<'_>, size: u64) -> Result<()> {
        self.file(path)?.set_len(size).fs()
    }

    fn allocate(
        &mut self,
        path: RelPath<'_>,
        mode: FallocateMode,
        offset: u64,
        len: u64,
    ) -> Result<()> {
        let mode = match mode {
            FallocateMode::Allocate => 0,
            FallocateMode::KeepSize => libc::FALLOC_FL_KEEP_SIZE,
            FallocateMode::PunchHole => libc::FALLOC_FL_KEEP_SIZE | libc::FALLOC_FL_PUNCH_HOLE,
            FallocateMode::ZeroRange { keep_size } => {
                let keep = if keep_size { libc::FALLOC_FL_KEEP_SIZE } else { 0 };
                libc::FALLOC_FL_ZERO_RANGE | keep
            }
            _ => return Err(Errno::EOPNOTSUPP.into()),
        };
        sys::fallocate(self.file(path)?, mode, offset, len).fs()
    }

    fn enable_verity(&mut self, path: RelPath<'_>, verity: &Verity<'_>) -> Result<()> {
        let Verity { algorithm, block_size, salt, signature } = *verity;
        let wish = VerityWish::of(algorithm.into(), block_size, salt, signature)?;
        // Whoever has it open to write prevents it.
        self.last_file = None;
        let file = self.open_file(path, libc::O_RDONLY, FILE)?;
        enable_verity(&file, &wish).fs()
    }

    fn xattrs(&mut self, path: RelPath<'_>) -> Result<Vec<Vec<u8>>> {
        self.above(path, |dir, name| dir.xattrs(name))
    }

    fn set_xattr(&mut self, path: RelPath<'_>, name: &[u8], value: &[u8]) -> Result<()> {
        self.above(path, |dir, file| dir.set_xattr(file, name, value))
    }

    fn remove_xattr(&mut self, path: RelPath<'_>, name: &[u8]) -> Result<()> {
        self.above(path, |dir, file| dir.remove_xattr(file, name))
    }

    fn chmod(&mut self, path: RelPath<'_>, mode: u16) -> Result<()> {
        if let Some(file) = self.used_last(path) {
            let before = sys::stat(file).fs()?.stx_mode & 0o7777;
            // What a write has taken away the kernel may still remember.
            let same = before == mode && mode & SET_ID == 0;
            let mode = Permissions::from_mode(mode.into());
            return if same { Ok(()) } else { file.set_permissions(mode).fs() };
        }
        self.above(path, |dir, name| dir.chmod(name, mode.into()))
    }

    fn chown(&mut self, path: RelPath<'_>, uid: u32, gid: u32) -> Result<()> {
        if let Some(file) = self.used_last(path) {
            let before = sys::stat(file).fs()?;
            let same = (before.stx_uid, before.stx_gid) == (uid, gid);
            return if same { Ok(()) } else { fchown(file, Some(uid), Some(gid)).fs() };
        }
        self.above(path, |dir, name| dir.chown(name, uid, gid))
    }

    fn set_times(&mut self, path: RelPath<'_>, times: &Times) -> Result<()> {
        let times = [times.atime, times.mtime].map(|time| (time.secs, time.nanos));
        if let Some(file) = self.used_last(path) {
            return sys::set_file_times(file, times).fs();
        }
        self.above(path, |dir, name| dir.set_times(name, times))
    }

    fn set_flags(&mut self, path: RelPath<'_>, which: u32, flags: u32) -> Result<()> {
        let file = self.open_file(path, libc::O_RDONLY, FILE_OR_DIR)?;
        let before = sys::inode_flags(&file).fs()?;
        let after = before & !which | flags;
        if before == after {
            return Ok(());
        }
        // The call says of compression what the flags told, and by which method is not among these.
        let method = sys::xattr_of(&file, COMPRESSION).fs()?;
        sys::set_inode_flags(&file, after).fs()?;
        let Some(method) = method else { return Ok(()) };
        set_method(&file, &method).fs().inspect_err(|_| {
            let _ = sys::set_inode_flags(&file, before);
        })
    }
}

/// Flags are their owner's to set, but the property is for who may write: where the owner may not, he lets himself.
fn set_method(file: &File, method: &[u8]) -> io::Result<()> {
    match sys::set_xattr_of(file, COMPRESSION, method) {
        Err(error) if error.raw_os_error() == Some(libc::EACCES) => {}
        done => return done,
    }
    let mode = sys::stat(file)?.stx_mode & 0o7777;
    let give = |mode: u16| file.set_permissions(Permissions::from_mode(mode.into()));
    give(mode | OWNER_WRITES)?;
    let done = sys::set_xattr_of(file, COMPRESSION, method);
    give(mode)?;
    done
}

/// From the number that streams have, of 32 bits, to that of the C library.
fn device(rdev: u64) -> u64 {
    let (major, minor) = (rdev >> 8 & 0xfff, rdev & 0xff | rdev >> 12 & 0xf_ff00);
    libc::makedev(major as u32, minor as u32)
}
