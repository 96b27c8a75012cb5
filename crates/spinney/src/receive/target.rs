//! A volume as the target of a stream.
//!
//! Invariant: what a path leads to is looked up name by name, and each name but the last must be
//! a directory of the subvolume that is being received: no symbolic link is followed, no other
//! subvolume entered.
//!
//! The directory and the file that were used last are kept, since streams go on with them; they
//! are let go when names change.

use crate::guard::Guard;
use crate::tree::Node;
use btrfs_disk::compress::Encoded;
use btrfs_fs::{
    Beginning, Caller, NewSubvolume, ReceivedFrom, Receiving, SubvolId, SubvolumeInfo, VerityWish,
};
use btrfs_receiver::{CloneFrom, Made, New, Received, RelPath, Target, Times};
use btrfs_send::{Origin, Special, Verity};
use std::sync::Arc;
use vfs::{
    Context, Entry, Errno, FallocateMode, FileKind, FileSystem, FsError, RenameMode, Result,
    SeekWhence, SetAttr, SetTime, WriteFlags, XattrMode,
};

/// Whose things are made.
const CX: Context = Context { uid: 0, gid: 0, pid: 0, umask: 0 };
/// A copy of what cannot be shared.
/// Chosen, not measured.
const COPY: usize = 1 << 17;
/// What of it becomes a hole where it is zeros.
const BLOCK: usize = 4096;
/// Subvolumes that are cloned from, and remembered.
/// Chosen, not measured.
const ORIGINS: usize = 64;

/// Below a directory of a volume.
pub(super) struct InVolume<'v> {
    guard: &'v Guard,
    fs: &'v Arc<dyn FileSystem>,
    dir: Node,
    open: Option<Open>,
    last_dir: Option<(Vec<u8>, Node)>,
    last_file: Option<(Vec<u8>, Node)>,
    /// Root directories of what the subvolume was cloned from: to look for one means a look at all
    /// subvolumes, and a commit. The last one is the one that was used last.
    origins: Vec<(Origin, Node)>,
    /// Who sends the stream is gone: looked at within commands that take long.
    gone: &'v dyn Fn() -> bool,
}

/// The subvolume that is being received.
struct Open {
    id: SubvolId,
    root: Node,
    /// Nobody is to remember anything of it.
    _unsettled: Receiving,
}

impl<'v> InVolume<'v> {
    pub(super) fn new(
        guard: &'v Guard,
        fs: &'v Arc<dyn FileSystem>,
        dir: Node,
        gone: &'v dyn Fn() -> bool,
    ) -> InVolume<'v> {
        let (open, last_dir, last_file, origins) = Default::default();
        InVolume { guard, fs, dir, open, last_dir, last_file, origins, gone }
    }

    fn opened(&mut self, name: &[u8], beginning: Beginning, (id, entry): (SubvolId, Entry)) {
        let unsettled = beginning.is(id);
        let root = Node::held(self.fs, entry);
        self.open = Some(Open { id, root, _unsettled: unsettled });
        self.origins.clear();
        self.names_changed();
        self.tell(|observer| {
            observer.name_changed(self.dir.ino(), name);
            observer.caught_up();
        });
    }

    /// Callers of the engine, who remember answers, hear of what they cannot see.
    fn tell(&self, what: impl FnOnce(&dyn vfs::Observer)) {
        if let Some(observer) = self.guard.btrfs.observer() {
            what(observer);
        }
    }

    fn tell_of_name(&self, dir: vfs::Ino, name: &[u8]) {
        self.tell(|observer| observer.listing_changed(dir, name));
    }

    /// What was tried with a file's content is over; where it failed a part of it may have changed.
    fn tried(&self, ino: vfs::Ino, done: Result<()>) -> Result<()> {
        self.tell(|observer| observer.content_changed(ino));
        done
    }

    fn root(&self) -> Result<&Node> {
        self.open.as_ref().map(|open| &open.root).ok_or(Errno::EINVAL.into())
    }

    fn names_changed(&mut self) {
        (self.last_dir, self.last_file) = (None, None);
    }

    fn fs(&self) -> &'v dyn FileSystem {
        &**self.fs
    }

    /// Runs `work` on the directory of `path` and its last name.
    fn above<T>(
        &mut self,
        path: RelPath<'_>,
        work: impl FnOnce(vfs::Ino, &[u8]) -> Result<T>,
    ) -> Result<T> {
        let (dir, name) = path.split().ok_or(FsError::Posix(Errno::EINVAL))?;
        let known = self.last_dir.as_ref().filter(|(known, _)| known == dir.as_bytes());
        if known.is_none() {
            let found = walk(self.root()?, dir)?;
            self.last_dir = Some((dir.as_bytes().to_vec(), found));
        }
        let (_, node) = self.last_dir.as_ref().ok_or(FsError::Posix(Errno::EINVAL))?;
        work(node.ino(), name)
    }

    fn find(&mut self, path: RelPath<'_>) -> Result<vfs::Ino> {
        if path.split().is_none() {
            return Ok(self.root()?.ino());
        }
        if let Some((known, node)) = &self.last_file
            && known == path.as_bytes()
        {
            return Ok(node.ino());
        }
        let fs = self.fs;
        let entry = self.above(path, |dir, name| fs.lookup(&CX, dir, name))?;
        Ok(self.keep(path, entry))
    }

    fn keep(&mut self, path: RelPath<'_>, entry: Entry) -> vfs::Ino {
        let node = Node::held(self.fs, entry);
        let ino = node.ino();
        self.last_file = Some((path.as_bytes().to_vec(), node));
        ino
    }

    /// A regular file; nothing else has content that could be changed.
    fn file(&mut self, path: RelPath<'_>) -> Result<vfs::Ino> {
        let ino = self.find(path)?;
        let kind = match &self.last_file {
            Some((_, node)) if node.ino() == ino => node.attr.kind,
            _ => self.fs().getattr(ino)?.kind,
        };
        match kind {
            FileKind::File => Ok(ino),
            FileKind::Dir => Err(Errno::EISDIR.into()),
            FileKind::Symlink => Err(Errno::ELOOP.into()),
            _ => Err(Errno::EINVAL.into()),
        }
    }

    fn set(&mut self, path: RelPath<'_>, set: &SetAttr) -> Result<()> {
        let ino = self.find(path)?;
        self.fs().setattr(&CX, ino, set).map(drop)
    }

    /// A read-only subvolume that was received as `origin`, or is it.
    fn known_as(&self, origin: &Origin) -> Result<Option<SubvolumeInfo>> {
        let all = self.guard.subvolumes()?;
        Ok(btrfs_fs::known_as(all, origin.uuid, origin.ctransid))
    }

    fn root_of(&mut self, origin: &Origin) -> Result<&Node> {
        let known = match self.origins.iter().position(|(known, _)| known == origin) {
            Some(at) => self.origins.remove(at),
            None => {
                let info = self.known_as(origin)?.ok_or(FsError::Posix(Errno::ENOENT))?;
                if self.origins.len() >= ORIGINS {
                    self.origins.remove(0);
                }
                (*origin, Node::at(self.fs, info.root)?)
            }
        };
        self.origins.push(known);
        self.origins.last().map(|(_, root)| root).ok_or(Errno::ENOENT.into())
    }

    fn source(&mut self, from: &CloneFrom<'_>) -> Result<Node> {
        let root = match &from.origin {
            None => self.root()?,
            Some(origin) => self.root_of(origin)?,
        };
        let (dir, name) = from.path.split().ok_or(FsError::Posix(Errno::EINVAL))?;
        let node = walk(root, dir)?.child(name)?;
        match node.attr.kind {
            FileKind::File => Ok(node),
            _ => Err(Errno::EINVAL.into()),
        }
    }

    fn goes_on(&self) -> Result<()> {
        if (self.gone)() { Err(Errno::EINTR.into()) } else { Ok(()) }
    }

    /// Step by step, each of them whole.
    fn share(&self, from: &Node, offset: u64, to: vfs::Ino, at: u64, len: u64) -> Result<()> {
        let mut done = 0;
        while done < len {
            if done > 0 {
                self.goes_on()?;
            }
            let (source, target) = ((from.ino(), offset + done), (to, at + done));
            match self.guard.clone_some(source, target, len - done) {
                Err(FsError::Posix(Errno::EINVAL | Errno::EOPNOTSUPP)) => {
                    return self.copy(from, offset + done, to, at + done, len - done);
                }
                some => done += some?,
            }
        }
        Ok(())
    }

    /// Where sharing is impossible: content is written, and what the source has nothing for becomes a hole, however
    /// long it is.
    fn copy(&self, from: &Node, offset: u64, to: vfs::Ino, at: u64, len: u64) -> Result<()> {
        let end = offset.checked_add(len).ok_or(FsError::Posix(Errno::EINVAL))?;
        let mut buffer = vec![0; len.min(COPY as u64) as usize];
        let mut next = offset;
        while next < end {
            self.goes_on()?;
            let target = at + (next - offset);
            let data = self.next_data(from.ino(), next, end)?;
            if data > next {
                self.clear(to, target, data - next)?;
                next = data;
                continue;
            }
            let most = (end - next).min(COPY as u64) as usize;
            let got = self.fs().read(from.ino(), next, &mut buffer[..most])?;
            if got == 0 {
                return Err(Errno::EINVAL.into());
            }
            self.put(to, target, &buffer[..got])?;
            next += got as u64;
        }
        Ok(())
    }

    /// Writes it; blocks of zeros become holes. Where data ends in the source is not asked: that would be looked for
    /// through all extents that follow.
    fn put(&self, to: vfs::Ino, at: u64, content: &[u8]) -> Result<()> {
        let is_zero = |block: &[u8]| block.iter().all(|byte| *byte == 0);
        let mut done = at;
        let blocks: Vec<&[u8]> = content.chunks(BLOCK).collect();
        for run in blocks.chunk_by(|a, b| is_zero(a) == is_zero(b)) {
            let len: usize = run.iter().map(|block| block.len()).sum();
            let from = (done - at) as usize;
            match is_zero(run[0]) {
                true => self.clear(to, done, len as u64)?,
                false => write_all(self.fs(), to, done, &content[from..from + len])?,
            }
            done += len as u64;
        }
        Ok(())
    }

    /// Where content begins from `at` on, up to `end`. EINVAL: the file ends in front of that.
    fn next_data(&self, ino: vfs::Ino, at: u64, end: u64) -> Result<u64> {
        let data = match self.fs().seek(ino, at, SeekWhence::Data) {
            Err(FsError::Posix(Errno::ENXIO)) => match self.fs().getattr(ino)?.size {
                size if size <= at => return Err(Errno::EINVAL.into()),
                size => size,
            },
            found => found?,
        };
        Ok(data.min(end))
    }

    /// A hole; the file reaches up to its end, or further.
    fn clear(&self, ino: vfs::Ino, at: u64, len: u64) -> Result<()> {
        let end = at.checked_add(len).ok_or(FsError::Posix(Errno::EFBIG))?;
        let size = self.fs().getattr(ino)?.size;
        if at < size {
            let within = end.min(size) - at;
            self.fs().fallocate(&CX, ino, FallocateMode::PunchHole, at, within)?;
        }
        match end > size {
            true => {
                let set = SetAttr { size: Some(end), ..SetAttr::default() };
                self.fs().setattr(&CX, ino, &set).map(drop)
            }
            false => Ok(()),
        }
    }
}

fn last_name<'p>(path: RelPath<'p>) -> &'p [u8] {
    path.split().map_or(b"", |(_, name)| name)
}

/// A directory of the same subvolume.
fn walk(root: &Node, path: RelPath<'_>) -> Result<Node> {
    let mut at = root.again()?;
    for name in path.names() {
        let next = at.child(name)?;
        match next.attr.kind {
            FileKind::Dir if btrfs_fs::same_subvolume(next.ino(), root.ino()) => at = next,
            FileKind::Dir => return Err(Errno::EXDEV.into()),
            FileKind::Symlink => return Err(Errno::ELOOP.into()),
            _ => return Err(Errno::ENOTDIR.into()),
        }
    }
    Ok(at)
}

fn write_all(fs: &dyn vfs::FileSystem, ino: vfs::Ino, at: u64, data: &[u8]) -> Result<()> {
    let mut done = 0;
    while done < data.len() {
        let flags = WriteFlags::default();
        match fs.write(&CX, ino, at + done as u64, &data[done..], flags)? {
            0 => return Err(Errno::ENOSPC.into()),
            some => done += some,
        }
    }
    Ok(())
}

fn make(fs: &dyn FileSystem, dir: vfs::Ino, name: &[u8], new: &New<'_>) -> Result<Entry> {
    let special = |kind: &Special, bits| match kind {
        Special::Fifo => Ok(FileKind::Fifo),
        Special::Socket => Ok(FileKind::Socket),
        Special::Node => FileKind::from_mode(bits).ok_or(FsError::Posix(Errno::EINVAL)),
    };
    match new {
        New::File => fs.mknod(&CX, dir, name, FileKind::File, 0o600, 0),
        New::Dir => fs.mkdir(&CX, dir, name, 0o700),
        New::Symlink(target) => fs.symlink(&CX, dir, name, target),
        New::Special { kind, mode, rdev } => {
            let rdev = u32::try_from(*rdev).map_err(|_| FsError::Posix(Errno::EINVAL))?;
            match special(kind, *mode)? {
                FileKind::File | FileKind::Dir | FileKind::Symlink => Err(Errno::EINVAL.into()),
                kind => fs.mknod(&CX, dir, name, kind, 0o600, rdev),
            }
        }
    }
}

impl Target for InVolume<'_> {
    fn begin(&mut self, name: &[u8]) -> Result<()> {
        let new = NewSubvolume { parent: self.dir.ino(), name, groups: &[] };
        let beginning = self.guard.btrfs.receive_begins();
        let made = self.guard.create_subvolume(&Caller::root(), &new)?;
        self.opened(name, beginning, made);
        Ok(())
    }

    fn begin_from(&mut self, name: &[u8], parent: &Origin) -> Result<Made> {
        let Some(info) = self.known_as(parent)? else { return Ok(Made::UnknownParent) };
        let new = NewSubvolume { parent: self.dir.ino(), name, groups: &[] };
        let beginning = self.guard.btrfs.receive_begins();
        let made = self.guard.snapshot(&Caller::root(), info.root, &new, false)?;
        self.opened(name, beginning, made);
        Ok(Made::Yes)
    }

    fn complete(&mut self, received: &Received) -> Result<()> {
        self.names_changed();
        self.origins.clear();
        let Some(open) = self.open.take() else { return Err(Errno::EINVAL.into()) };
        let (uuid, stransid) = (received.origin.uuid, received.origin.ctransid);
        let from = ReceivedFrom { uuid, stransid, stime: (0, 0) };
        self.guard.complete_received(&Caller::root(), open.id, &from)
    }

    fn make(&mut self, path: RelPath<'_>, new: &New<'_>) -> Result<()> {
        let fs = self.fs();
        let (dir, entry) = self.above(path, |dir, name| {
            let entry = make(fs, dir, name, new)?;
            Ok((dir, entry))
        })?;
        self.tell_of_name(dir, last_name(path));
        self.keep(path, entry);
        Ok(())
    }

    fn rename(&mut self, from: RelPath<'_>, to: RelPath<'_>) -> Result<()> {
        let (old_dir, old) = from.split().ok_or(FsError::Posix(Errno::EINVAL))?;
        let (new_dir, new) = to.split().ok_or(FsError::Posix(Errno::EINVAL))?;
        let (old_dir, new_dir) = (walk(self.root()?, old_dir)?, walk(self.root()?, new_dir)?);
        self.names_changed();
        self.fs().rename(&CX, old_dir.ino(), old, new_dir.ino(), new, RenameMode::Replace)?;
        self.tell_of_name(old_dir.ino(), old);
        self.tell_of_name(new_dir.ino(), new);
        Ok(())
    }

    fn link(&mut self, old: RelPath<'_>, path: RelPath<'_>) -> Result<()> {
        let (fs, ino) = (self.fs, self.find(old)?);
        let (dir, entry) =
            self.above(path, |dir, name| Ok((dir, fs.link(&CX, ino, dir, name)?)))?;
        drop(Node::held(fs, entry));
        self.tell_of_name(dir, last_name(path));
        Ok(())
    }

    fn unlink(&mut self, path: RelPath<'_>) -> Result<()> {
        self.last_file = None;
        let fs = self.fs();
        let dir = self.above(path, |dir, name| fs.unlink(&CX, dir, name).map(|()| dir))?;
        self.tell_of_name(dir, last_name(path));
        Ok(())
    }

    fn rmdir(&mut self, path: RelPath<'_>) -> Result<()> {
        let (dir, name) = path.split().ok_or(FsError::Posix(Errno::EINVAL))?;
        self.names_changed();
        let dir = walk(self.root()?, dir)?;
        // Nothing but directories of this subvolume: none is deleted in this way.
        let node = dir.child(name)?;
        if !btrfs_fs::same_subvolume(node.ino(), dir.ino()) {
            return Err(Errno::EXDEV.into());
        }
        self.fs().rmdir(&CX, dir.ino(), name)?;
        self.tell_of_name(dir.ino(), name);
        Ok(())
    }

    fn write(&mut self, path: RelPath<'_>, offset: u64, data: &[u8]) -> Result<()> {
        let ino = self.file(path)?;
        self.tried(ino, write_all(self.fs(), ino, offset, data))
    }

    fn write_encoded(
        &mut self,
        path: RelPath<'_>,
        offset: u64,
        encoded: &Encoded<'_>,
    ) -> Result<()> {
        let ino = self.file(path)?;
        let done = self.guard.write_encoded(ino, offset, encoded).and_then(|stored| match stored {
            true => Ok(()),
            false => write_all(self.fs(), ino, offset, encoded.content()),
        });
        self.tried(ino, done)
    }

    fn clone(&mut self, from: &CloneFrom<'_>, path: RelPath<'_>, at: u64, len: u64) -> Result<()> {
        if len == 0 {
            return Ok(());
        }
        let (source, ino) = (self.source(from)?, self.file(path)?);
        if source.ino() == ino {
            from.check_within(source.attr.size, at, len)?;
        }
        let done = self.share(&source, from.offset, ino, at, len);
        self.tried(ino, done)
    }

    fn truncate(&mut self, path: RelPath<'_>, size: u64) -> Result<()> {
        let ino = self.file(path)?;
        let set = SetAttr { size: Some(size), ..SetAttr::default() };
        self.tried(ino, self.fs().setattr(&CX, ino, &set).map(drop))
    }

    fn allocate(
        &mut self,
        path: RelPath<'_>,
        mode: FallocateMode,
        offset: u64,
        len: u64,
    ) -> Result<()> {
        let ino = self.file(path)?;
        self.tried(ino, self.fs().fallocate(&CX, ino, mode, offset, len))
    }

    fn enable_verity(&mut self, path: RelPath<'_>, verity: &Verity<'_>) -> Result<()> {
        let Verity { algorithm, block_size, salt, signature } = *verity;
        let wish = VerityWish::of(algorithm.into(), block_size, salt, signature)?;
        let ino = self.file(path)?;
        self.guard.enable_verity_while(ino, &wish, &mut || self.goes_on())
    }

    fn xattrs(&mut self, path: RelPath<'_>) -> Result<Vec<Vec<u8>>> {
        let ino = self.find(path)?;
        self.fs().listxattr(ino)
    }

    fn set_xattr(&mut self, path: RelPath<'_>, name: &[u8], value: &[u8]) -> Result<()> {
        let ino = self.find(path)?;
        self.fs().setxattr(&CX, ino, name, value, XattrMode::Set)
    }

    fn remove_xattr(&mut self, path: RelPath<'_>, name: &[u8]) -> Result<()> {
        let ino = self.find(path)?;
        self.fs().removexattr(&CX, ino, name)
    }

    fn chmod(&mut self, path: RelPath<'_>, mode: u16) -> Result<()> {
        self.set(path, &SetAttr { perm: Some(mode), ..SetAttr::default() })
    }

    fn chown(&mut self, path: RelPath<'_>, uid: u32, gid: u32) -> Result<()> {
        self.set(path, &SetAttr { uid: Some(uid), gid: Some(gid), ..SetAttr::default() })
    }

    fn set_times(&mut self, path: RelPath<'_>, times: &Times) -> Result<()> {
        let (atime, mtime) = (Some(SetTime::At(times.atime)), Some(SetTime::At(times.mtime)));
        self.set(path, &SetAttr { atime, mtime, btime: times.otime, ..SetAttr::default() })
    }

    fn set_flags(&mut self, path: RelPath<'_>, which: u32, flags: u32) -> Result<()> {
        let ino = self.find(path)?;
        let before = self.fs().flags(ino)?;
        let after = before & !which | flags;
        if before == after {
            return Ok(());
        }
        // How it is compressed comes with its property, which stays.
        self.fs().set_common_flags(&CX, ino, after)
    }
}
