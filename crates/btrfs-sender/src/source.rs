//! Where trees and content come from.

use btrfs_disk::items::{FileExtentFields, RootItem};
use btrfs_disk::{Logical, TreeId};
use btrfs_send::Origin;
use btrfs_tree::{NodeReader, TreeRoot};

/// One state of a volume.
pub trait Source {
    /// Reads nodes of all trees.
    fn reader(&self) -> &dyn NodeReader;
    /// Files that have something of an extent, whatever subvolume they are of; not all of them
    /// where they are many, and none where only one has it.
    fn references(&self, extent: Logical) -> vfs::Result<Vec<ExtentBase>>;
    /// Fills `buf` with content of a file of the subvolume that is sent from `offset` on,
    /// checksums verified.
    fn read(&self, file: &File<'_>, offset: u64, buf: &mut [u8]) -> vfs::Result<()>;
    /// Fills `buf` with the first bytes of an extent of the file, whose item stands at `offset`, as
    /// they are stored, checksums verified; whole sectors.
    fn read_stored(
        &self,
        file: &File<'_>,
        offset: u64,
        extent: &FileExtentFields,
        buf: &mut [u8],
    ) -> vfs::Result<()>;
    /// Whether a subvolume is as it was found, and still read-only.
    fn is_unchanged(&self, subvolume: &Subvolume) -> vfs::Result<bool>;
}

/// Where an extent's first byte would stand in a file.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct ExtentBase {
    /// The file's number in a subvolume.
    pub ino: u64,
    /// The extent's first byte; may be before the file's, wrapped around.
    pub base: u64,
}

/// A file whose content is asked for, by all that a source may go by.
#[derive(Clone, Copy, Debug)]
pub struct File<'f> {
    /// The subvolume's tree.
    pub tree: TreeId,
    /// The file's number in it.
    pub ino: u64,
    /// The inode's flags.
    pub flags: u64,
    /// From the subvolume's root directory.
    pub path: &'f [u8],
}

/// A subvolume that is sent, or that the receiver has.
#[derive(Clone, Debug)]
pub struct Subvolume {
    /// The last part of its path.
    pub name: Vec<u8>,
    /// Its tree.
    pub root: TreeRoot,
    /// What the root tree says of it.
    pub item: RootItem,
}

impl Subvolume {
    /// What the receiver knows it by: where it was received itself, the first sender's UUID.
    pub fn origin(&self) -> Origin {
        let received = self.item.received_uuid;
        let uuid = if received == [0; 16] { self.item.uuid } else { received };
        Origin { uuid, ctransid: self.item.ctransid }
    }
}
