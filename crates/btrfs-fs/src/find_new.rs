//! What of a subvolume's content came after a commit: `btrfs subvolume find-new`.
//!
//! Of the last commit alone: who wants what is in memory commits first. Nodes that are older are
//! passed over with all that is below them, so it costs what changed and not what is there.

use crate::fs::BtrfsFs;
use crate::ino::InodeId;
use crate::names::{MAX_DEPTH, parent};
use crate::subvol::SubvolId;
use btrfs_disk::ids::FIRST_FREE_OBJECTID;
use btrfs_disk::items::{Compression, FileExtent, FileExtentKind};
use btrfs_disk::key::kind;
use btrfs_disk::{Error, Generation, Key, Node, TreeId};
use btrfs_tree::{NodePosition, Step, Visitor, walk};
use btrfs_txn::{Core, View};
use std::sync::Arc;
use vfs::{Errno, Result};

/// A piece of a file that is newer than a commit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NewExtent {
    /// The file's number in its subvolume.
    pub inode: u64,
    /// Where in the file it is.
    pub file_offset: u64,
    /// Bytes of the file.
    pub len: u64,
    /// The address of its extent; 0 for content among the structures, and for holes.
    pub disk_start: u64,
    /// Where in the extent it begins.
    pub offset: u64,
    /// The commit that it came with.
    pub generation: u64,
    /// It is stored compressed.
    pub compressed: bool,
    /// It has room and no content.
    pub preallocated: bool,
    /// It stands among the structures.
    pub inline: bool,
    /// The file, from the subvolume's root directory.
    pub path: Vec<u8>,
}

impl BtrfsFs {
    /// The last commit of the subvolume `id`, and of what came with commits from `since` on the
    /// first `most` pieces `behind` that offset of that inode. ENOENT: there is no such subvolume.
    pub fn find_new(
        &self,
        id: SubvolId,
        since: u64,
        behind: Option<(u64, u64)>,
        most: usize,
    ) -> Result<(u64, Vec<NewExtent>)> {
        let view = self.view()?;
        let tree = TreeId(id.0);
        // One that is deleted may be half dropped.
        let root = view.layers.roots.get(tree);
        let root = root.filter(|root| tree.is_subvolume() && !root.item.is_deleted());
        let root = root.ok_or(Errno::ENOENT)?;
        let start = match behind {
            None => Key::new(FIRST_FREE_OBJECTID, 0, 0),
            Some((inode, offset)) => {
                Key::new(inode, kind::EXTENT_DATA, offset).successor().ok_or(Errno::EINVAL)?
            }
        };
        let mut search =
            Search { since: Generation(since), start, most, found: Vec::new(), failed: None };
        walk(view.store, &root.root, &mut search);
        if let Some(error) = search.failed {
            return Err(crate::error::to_fs(error));
        }
        let mut found = search.found;
        let mut last = None;
        for extent in &mut found {
            let path = match last.take() {
                Some((inode, path)) if inode == extent.inode => path,
                _ => path_of(&self.engine.core, InodeId::new(tree, extent.inode))?,
            };
            extent.path.clone_from(&path);
            last = Some((extent.inode, path));
        }
        Ok((root.item.generation.0, found))
    }
}

/// From the subvolume's root directory; empty where none leads to it.
fn path_of(core: &Core, file: InodeId) -> Result<Vec<u8>> {
    let (mut at, mut names) = (file, Vec::new());
    while at.objectid != FIRST_FREE_OBJECTID && names.len() < MAX_DEPTH {
        let Some((dir, name)) = parent(core, at)? else { return Ok(Vec::new()) };
        names.push(name);
        at = InodeId::new(at.tree, dir);
    }
    names.reverse();
    Ok(names.join(&b'/'))
}

struct Search {
    since: Generation,
    start: Key,
    most: usize,
    found: Vec<NewExtent>,
    failed: Option<Error>,
}

impl Visitor for Search {
    fn node(&mut self, place: &NodePosition<'_>, node: &Arc<Node>) -> Step {
        let before = place.upper.is_some_and(|upper| upper <= self.start);
        if before || node.generation() < self.since {
            return Step::Over;
        }
        if !node.is_leaf() {
            return Step::Into;
        }
        for (key, data) in node.items().filter(|(key, _)| *key >= self.start) {
            if key.kind != kind::EXTENT_DATA {
                continue;
            }
            match new_extent(key, data, self.since) {
                Ok(Some(extent)) => self.found.push(extent),
                Ok(None) => {}
                Err(corrupt) => {
                    self.failed = Some(corrupt.key(key).into());
                    return Step::Stop;
                }
            }
            if self.found.len() >= self.most {
                return Step::Stop;
            }
        }
        Step::Over
    }

    fn broken(&mut self, _: &NodePosition<'_>, error: Error) -> Step {
        self.failed = Some(error);
        Step::Stop
    }
}

fn new_extent(
    key: Key,
    data: &[u8],
    since: Generation,
) -> std::result::Result<Option<NewExtent>, btrfs_disk::Corrupt> {
    let (inode, file_offset) = (key.objectid, key.offset);
    let extent = match FileExtent::parse(data)? {
        FileExtent::Inline { generation, ram_bytes, compression, .. } => NewExtent {
            inode,
            file_offset,
            len: ram_bytes,
            disk_start: 0,
            offset: 0,
            generation,
            compressed: compression != Compression::None,
            preallocated: false,
            inline: true,
            path: Vec::new(),
        },
        FileExtent::Extent { kind, compression, fields } => NewExtent {
            inode,
            file_offset,
            len: fields.num_bytes,
            disk_start: fields.disk_bytenr.0,
            offset: fields.offset,
            generation: fields.generation,
            compressed: compression != Compression::None,
            preallocated: kind == FileExtentKind::Prealloc,
            inline: false,
            path: Vec::new(),
        },
    };
    Ok((extent.generation >= since.0).then_some(extent))
}

impl BtrfsFs {
    fn view(&self) -> Result<View<'_>> {
        Ok(self.open()?.core.view())
    }
}
