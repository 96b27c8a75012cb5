//! Streams of subvolumes of a mount: the trees come from its server, node by node, the content from
//! the files.

use super::Wanted;
use crate::commands::subvolume::place::VolumePath;
use crate::commands::trees::MountTrees;
use crate::door::{CommittedTree, Door};
use crate::error::{Error, Result, io_text};
use crate::mount::control::Waiter;
use crate::mount::sending::{self, HELD, SENT};
use crate::mounts;
use crate::sys::open_beneath;
use btrfs_disk::items::{FileExtentFields, ROOT_SUBVOL_RDONLY};
use btrfs_disk::{Logical, TreeId};
use btrfs_fs::control::wire;
use btrfs_sender::{ExtentBase as At, Has, Sender, Source, Subvolume};
use btrfs_tree::NodeReader;
use std::cell::RefCell;
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::time::Duration;
use vfs::{Errno, FsError};

/// Content that is asked for by number: to open a file by its path costs more.
const SMALL: usize = 48 << 10;

/// A server that is busy may need it.
const PATIENCE: Duration = Duration::from_secs(30);

/// Writes the stream of subvolumes that are all of one mount.
pub(super) fn send(wanted: &Wanted, output: &mut dyn Write) -> Result<()> {
    let first = path_of(&wanted.subvolumes[0])?;
    let door = Door::open(first)?;
    door.sync_all()?;
    let all = wanted.subvolumes.iter().chain(&wanted.parent).chain(&wanted.clones);
    let _held: Vec<Held> = all.filter_map(Held::ask).collect();
    let mut mount = Mount::new(door, first)?;
    let parent = wanted.parent.as_ref().map(|place| mount.find(place)).transpose()?;
    let clones = wanted.clones.iter().map(|place| mount.find(place)).collect::<Result<_>>()?;
    let all =
        wanted.subvolumes.iter().map(|place| mount.find(place)).collect::<Result<Vec<_>>>()?;
    let about = |place: &VolumePath, error| Error::about(place.show(), told(error));
    let sender = Sender::new(output, wanted.stream, Has { parent, clones });
    let mut sender = sender.map_err(|error| about(&wanted.subvolumes[0], error))?;
    for (number, (subvolume, place)) in all.iter().zip(&wanted.subvolumes).enumerate() {
        let sent = sender.send(&mount, subvolume, number + 1 == all.len());
        sent.map_err(|error| about(place, error))?;
    }
    Ok(())
}

fn told(error: btrfs_sender::Error) -> String {
    match error {
        btrfs_sender::Error::Tree(btrfs_disk::Error::Io { source, .. }) => io_text(&source),
        other => other.to_string(),
    }
}

fn path_of(place: &VolumePath) -> Result<&Path> {
    match place {
        VolumePath::Mount(path) => Ok(path),
        VolumePath::Image(_) => {
            let what = "lies in another volume than the subvolume that is sent";
            Err(Error::about(place.show(), what))
        }
    }
}

/// A subvolume that its server neither deletes nor lets become writable.
struct Held(Waiter);

impl Held {
    /// `None`: it cannot be had, as of a server that is older. Then the stream has no end where it would be wrong.
    fn ask(place: &VolumePath) -> Option<Held> {
        let path = path_of(place).ok()?;
        let word = Door::open(path).ok()?.ask_volume(wire::SEND, Vec::new()).ok()?;
        let waiter = Waiter::of(&mounts::around(path).ok()??)?;
        (waiter.ask(&sending::line(&word), PATIENCE)? == HELD).then_some(Held(waiter))
    }
}

/// Whoever deletes it once this process has ended finds it free.
impl Drop for Held {
    fn drop(&mut self) {
        self.0.ask(SENT, PATIENCE);
    }
}

struct Mount {
    trees: MountTrees,
    device: u64,
    /// Root directories of what is sent, by the tree.
    roots: HashMap<u64, File>,
    /// The file that was read last: of which tree, by its number, and open if it can be.
    file: RefCell<Option<(u64, u64, Option<File>)>>,
}

impl Mount {
    fn new(door: Door, path: &Path) -> Result<Mount> {
        let device = std::fs::metadata(path).map_err(|e| Error::io(path, &e))?.dev();
        let (roots, file) = Default::default();
        Ok(Mount { trees: MountTrees::new(door, path)?, device, roots, file })
    }

    fn find(&mut self, place: &VolumePath) -> Result<Subvolume> {
        let path = path_of(place)?;
        let door = Door::open(path)?;
        let (info, is_root) = door.around()?;
        if !is_root {
            return Err(Error::about(place.show(), "is not a subvolume"));
        }
        let dir = File::open(path).map_err(|e| Error::io(path, &e))?;
        if dir.metadata().map_err(|e| Error::io(path, &e))?.dev() != self.device {
            let what = "lies in another volume than the subvolume that is sent";
            return Err(Error::about(place.show(), what));
        }
        let CommittedTree { root, item, .. } = tree(&self.trees, place, info.id.0)?;
        self.roots.insert(info.id.0, dir);
        Ok(Subvolume { name: info.name, root, item })
    }
}

impl Mount {
    /// By the number: the server looks at who asks alone.
    fn ask(&self, file: &btrfs_sender::File<'_>, offset: u64, buf: &mut [u8]) -> vfs::Result<()> {
        let (token, which) = (self.trees.token, (file.tree, file.ino));
        self.trees.door.committed_content(token, which, offset, buf).map_err(fs_error)
    }

    /// `None`: the caller may not, as of others' files in a mount of his own, or something is mounted over it.
    fn open(&self, file: &btrfs_sender::File<'_>) -> vfs::Result<Option<File>> {
        let root = self.roots.get(&file.tree.0).ok_or(FsError::Posix(Errno::ENOENT))?;
        match open_beneath(root, file.path, libc::O_RDONLY, 0) {
            Ok(open) => Ok(Some(open)),
            Err(error) => match error.raw_os_error() {
                Some(libc::EACCES | libc::EPERM | libc::EXDEV | libc::ELOOP) => Ok(None),
                _ => Err(fs_error(error)),
            },
        }
    }
}

fn tree(trees: &MountTrees, place: &VolumePath, id: u64) -> Result<CommittedTree> {
    trees.tree(TreeId(id)).map_err(|error| Error::about(place.show(), io_text(&error)))
}

fn fs_error(error: io::Error) -> FsError {
    match error.raw_os_error().and_then(Errno::from_code) {
        Some(errno) => errno.into(),
        None => FsError::Io { context: "reading from the mount".into(), source: error },
    }
}

impl Source for Mount {
    fn reader(&self) -> &dyn NodeReader {
        &self.trees
    }

    fn references(&self, extent: Logical) -> vfs::Result<Vec<At>> {
        let all =
            self.trees.door.committed_references(self.trees.token, extent).map_err(fs_error)?;
        Ok(all.into_iter().map(|(ino, base)| At { ino, base }).collect())
    }

    fn read(&self, file: &btrfs_sender::File<'_>, offset: u64, buf: &mut [u8]) -> vfs::Result<()> {
        if buf.len() <= SMALL {
            return self.ask(file, offset, buf);
        }
        let mut last = self.file.borrow_mut();
        let known =
            matches!(&*last, Some((tree, ino, _)) if (*tree, *ino) == (file.tree.0, file.ino));
        if !known {
            *last = Some((file.tree.0, file.ino, self.open(file)?));
        }
        match &*last {
            Some((.., Some(open))) => {
                open.read_exact_at(buf, offset).map_err(|error| match error.kind() {
                    io::ErrorKind::UnexpectedEof => Errno::EIO.into(),
                    _ => fs_error(error),
                })
            }
            _ => self.ask(file, offset, buf),
        }
    }

    fn read_stored(
        &self,
        file: &btrfs_sender::File<'_>,
        offset: u64,
        _: &FileExtentFields,
        buf: &mut [u8],
    ) -> vfs::Result<()> {
        let sector = self.trees.geometry().sector_size as usize;
        self.trees
            .door
            .committed_stored(self.trees.token, (file.tree, file.ino, offset), sector, buf)
            .map_err(fs_error)
    }

    fn is_unchanged(&self, subvolume: &Subvolume) -> vfs::Result<bool> {
        let now = match self.trees.tree(subvolume.root.id) {
            Ok(now) => now.item,
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => return Ok(false),
            Err(error) => return Err(fs_error(error)),
        };
        let read_only = !now.is_deleted() && now.flags & ROOT_SUBVOL_RDONLY != 0;
        Ok(read_only && now.ctransid == subvolume.item.ctransid)
    }
}
