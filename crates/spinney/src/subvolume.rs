//! Subvolumes and snapshots of a volume that is open.
//!
//! Nobody is asked for rights here, as nowhere in this crate: who may open the image may do
//! everything in it. It does not know what subvolumes are made of (`btrfs_fs::subvolumes`).

use crate::error::{Error, Result};
use crate::volume::{At, Volume, bytes};
use btrfs_fs::{Caller, Delete, NewExtent, NewSubvolume, QgroupId, SubvolId, SubvolumeInfo};
use std::path::Path;
use std::time::Duration;
use vfs::{Errno, FsError};

/// How [`Volume::snapshot`] makes one.
#[derive(Clone, Debug, Default)]
pub struct SnapshotOptions {
    read_only: bool,
    qgroups: Vec<QgroupId>,
}

impl SnapshotOptions {
    /// A snapshot that can be changed.
    pub fn new() -> SnapshotOptions {
        SnapshotOptions::default()
    }

    /// Nothing in the snapshot can be changed, until
    /// [`set_subvolume_read_only`](Volume::set_subvolume_read_only) allows it.
    pub fn read_only(mut self, yes: bool) -> SnapshotOptions {
        self.read_only = yes;
        self
    }

    /// Puts the snapshot into these quota groups, if the volume keeps quotas.
    pub fn qgroups(mut self, groups: &[QgroupId]) -> SnapshotOptions {
        self.qgroups = groups.to_vec();
        self
    }
}

/// # Subvolumes
///
/// A subvolume is a directory that is a tree of its own: it can be snapshotted, made read-only,
/// and deleted whole. A snapshot is a subvolume that shares everything with its source until one
/// of them changes.
///
/// ```
/// # fn main() -> spinney::Result<()> {
/// # use spinney::{FormatOptions, MemDevice, VolumeOptions};
/// # let device = std::sync::Arc::new(MemDevice::new(256 << 20));
/// # FormatOptions::new().format(&*device)?;
/// # let volume = VolumeOptions::new().write(true).open_device(device)?;
/// use spinney::SnapshotOptions;
///
/// volume.create_subvolume("home")?;
/// volume.write("home/letter", b"Dear all,\n")?;
/// volume.snapshot("home", "home.old", &SnapshotOptions::new().read_only(true))?;
/// volume.write("home/letter", b"Dear nobody,\n")?;
///
/// assert_eq!(volume.read("home.old/letter")?, b"Dear all,\n");
/// assert!(volume.subvolume("home.old")?.read_only);
/// for subvolume in volume.subvolumes()? {
///     println!("{:?} {:?}", subvolume.id, subvolume.path);
/// }
/// volume.delete_subvolume("home.old")?;
/// # volume.close() }
/// ```
impl Volume {
    /// All subvolumes by number: the top level is among them, and those that have lost their
    /// names and are still being deleted.
    pub fn subvolumes(&self) -> Result<Vec<SubvolumeInfo>> {
        self.guard().subvolumes().at(self, b"")
    }

    /// The subvolume whose root directory `path` is; an error if it is another directory.
    pub fn subvolume(&self, path: impl AsRef<Path>) -> Result<SubvolumeInfo> {
        match self.subvolume_of(bytes(&path))? {
            (info, true) => Ok(info),
            _ => Err(Error::refused(self.show(bytes(&path)), "is not a subvolume")),
        }
    }

    /// The subvolume that `path` lies in.
    pub fn subvolume_around(&self, path: impl AsRef<Path>) -> Result<SubvolumeInfo> {
        Ok(self.subvolume_of(bytes(&path))?.0)
    }

    /// The subvolume of this number.
    pub fn subvolume_by_id(&self, id: SubvolId) -> Result<SubvolumeInfo> {
        match self.guard().subvolume_info(id) {
            Err(FsError::Posix(Errno::ENOENT)) => {
                let (name, id) = (self.name().display(), id.0);
                Err(Error::refused(name, format!("there is no subvolume with the number {id}")))
            }
            found => found.at(self, b""),
        }
    }

    fn subvolume_of(&self, path: &[u8]) -> Result<(SubvolumeInfo, bool)> {
        let node = self.find(path, true).at(self, path)?;
        let (id, is_root) = self.guard().subvolume_of(node.ino()).at(self, path)?;
        Ok((self.guard().subvolume_info(id).at(self, path)?, is_root))
    }

    /// Makes an empty subvolume.
    pub fn create_subvolume(&self, path: impl AsRef<Path>) -> Result<SubvolId> {
        self.create_subvolume_in(path, &[])
    }

    /// The same, and puts it into these quota groups, if the volume keeps quotas.
    pub fn create_subvolume_in(
        &self,
        path: impl AsRef<Path>,
        groups: &[QgroupId],
    ) -> Result<SubvolId> {
        let path = bytes(&path);
        let (parent, name) = self.find_parent(path).at(self, path)?;
        let made = self.guard().create_subvolume(
            &self.caller(),
            &NewSubvolume { parent: parent.ino(), name: &name, groups },
        );
        let (id, entry) = made.at(self, path)?;
        drop(self.hold(entry));
        Ok(id)
    }

    /// Makes `target` a snapshot of the subvolume `source`. It has all that was done before the
    /// call, and is on the medium when this returns.
    pub fn snapshot(
        &self,
        source: impl AsRef<Path>,
        target: impl AsRef<Path>,
        options: &SnapshotOptions,
    ) -> Result<SubvolId> {
        let (from, to) = (bytes(&source), bytes(&target));
        self.subvolume(&source)?;
        let source = self.find(from, true).at(self, from)?;
        let (parent, name) = self.find_parent(to).at(self, to)?;
        let guard = self.guard();
        let new = NewSubvolume { parent: parent.ino(), name: &name, groups: &options.qgroups };
        let made = guard.snapshot(&self.caller(), source.ino(), &new, options.read_only);
        let (id, entry) = made.at(self, to)?;
        drop(self.hold(entry));
        Ok(id)
    }

    /// Deletes a subvolume with everything in it; refused where other subvolumes lie in it, and
    /// for the default one. Its room comes back by and by; who wants it at once calls
    /// [`wait_for_deleted`](Volume::wait_for_deleted).
    pub fn delete_subvolume(&self, path: impl AsRef<Path>) -> Result<SubvolId> {
        let path = bytes(&path);
        let (parent, name) = self.find_parent(path).at(self, path)?;
        let which = Delete::Name(parent.ino(), &name);
        self.guard().delete_subvolume(&self.caller(), which).at(self, path)
    }

    /// The same for the subvolume of this number, wherever it lies.
    pub fn delete_subvolume_by_id(&self, id: SubvolId) -> Result<()> {
        let info = self.subvolume_by_id(id)?;
        let path = info.path.unwrap_or_default();
        self.guard().delete_subvolume(&self.caller(), Delete::Id(id)).at(self, &path).map(drop)
    }

    /// Waits until these subvolumes (all that are being deleted, if none is named) are gone with
    /// all that they took; false if `limit` passed before.
    pub fn wait_for_deleted(&self, ids: &[SubvolId], limit: Option<Duration>) -> Result<bool> {
        self.guard().sync_deleted(ids, limit).at(self, b"")
    }

    /// Where a mount of the volume begins that asks for nothing else.
    pub fn default_subvolume(&self) -> Result<SubvolumeInfo> {
        let id = self.guard().default_subvolume().at(self, b"")?;
        self.subvolume_by_id(id)
    }

    /// Lets mounts begin at the subvolume of this number.
    pub fn set_default_subvolume(&self, id: SubvolId) -> Result<()> {
        self.subvolume_by_id(id)?;
        self.guard().set_default_subvolume(&self.caller(), id).at(self, b"")
    }

    /// Whether nothing in the subvolume `path` can be changed.
    pub fn set_subvolume_read_only(&self, path: impl AsRef<Path>, read_only: bool) -> Result<()> {
        let id = self.subvolume(&path)?.id;
        self.guard().set_read_only(&self.caller(), id, read_only).at(self, bytes(&path))
    }

    /// What content of the subvolume around `path` came with the commit `since` or later ones,
    /// and which commit its last was. What is in memory is committed before.
    pub fn find_new(&self, path: impl AsRef<Path>, since: u64) -> Result<(u64, Vec<NewExtent>)> {
        let path = bytes(&path);
        let (info, _) = self.subvolume_of(path)?;
        if self.read_only_reason().is_none() {
            self.sync()?;
        }
        self.guard().find_new(info.id, since).at(self, path)
    }

    fn caller(&self) -> Caller {
        let cx = self.context();
        Caller { uid: cx.uid, gid: cx.gid, umask: cx.umask, ..Caller::root() }
    }
}
