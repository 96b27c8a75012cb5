//! Volumes that are looked at without being mounted: opening them, and the words for
//! what is in them that several commands share.

use crate::error::{Error, Result};
use crate::image::{self, Access, Medium};
use crate::partitions;
use btrfs_disk::check;
use btrfs_disk::ids::{block_group, compat_ro, incompat};
use btrfs_disk::items::RootItem;
use btrfs_disk::key::kind;
use btrfs_disk::node::HEADER_SIZE;
use btrfs_disk::{Expect, FixedSize, Header, Key, Logical, Superblock, TreeId};
use btrfs_tree::{Cursor, NodeStore, TreeRoot};
use btrfs_volume::{Start, Volume, chunk_trees};
use std::path::Path;
use std::sync::Arc;

/// Bytes of memory for nodes: each is looked at once, in the order of its tree.
const CACHE: usize = 32 << 20;

/// An open volume and the nodes read from it.
pub struct Offline {
    pub medium: Medium,
    pub volume: Arc<Volume>,
    pub store: NodeStore,
}

impl Offline {
    /// Opens a volume to be read, as of its last commit.
    pub fn open(path: &Path, access: Access) -> Result<Offline> {
        Offline::open_at(path, access, &Start::default())
    }

    /// The same, beginning where `start` says.
    pub fn open_at(path: &Path, access: Access, start: &Start) -> Result<Offline> {
        let medium = image::open(path, access)?;
        let volume = Volume::look(medium.device(), start).map_err(|e| {
            let damaged = matches!(e, btrfs_disk::Error::Corrupt(_));
            let remedy = damaged.then(|| older_chunks(&medium, start)).flatten();
            disk_error(path, &e).remedy(remedy.unwrap_or_else(|| opening_remedy(path, &e)))
        })?;
        let volume = Arc::new(volume);
        let store = NodeStore::new(volume.clone(), CACHE);
        Ok(Offline { medium, volume, store })
    }

    /// Where a tree begins; `None` if the volume has no such tree.
    pub fn root(&self, tree: TreeId) -> Result<Option<TreeRoot>> {
        let sb = self.volume.superblock().fields;
        let (logical, generation, level) = match tree {
            TreeId::ROOT => (sb.root, self.volume.root_generation(), sb.root_level),
            TreeId::CHUNK => (sb.chunk_root, sb.chunk_root_generation, sb.chunk_root_level),
            TreeId::LOG if sb.log_root.0 != 0 => {
                let generation = btrfs_disk::Generation(sb.generation.0 + 1);
                (sb.log_root, generation, sb.log_root_level)
            }
            TreeId::LOG => return Ok(None),
            _ => return Ok(self.roots()?.into_iter().find(|root| root.id == tree)),
        };
        Ok(Some(TreeRoot { id: tree, logical, generation, level }))
    }

    /// All trees of the root tree.
    pub fn roots(&self) -> Result<Vec<TreeRoot>> {
        Ok(self.root_items()?.into_iter().map(|(root, _)| root).collect())
    }

    pub fn root_items(&self) -> Result<Vec<(TreeRoot, RootItem)>> {
        let root = self.root(TreeId::ROOT)?.expect("the superblock names it");
        let mut cursor = Cursor::new(&self.store, &root);
        let mut roots = Vec::new();
        self.explain(cursor.seek(&Key::MIN))?;
        while let Some((key, data)) = cursor.item() {
            if key.kind == kind::ROOT_ITEM {
                let item = self.explain(RootItem::parse(data).map_err(|c| c.key(key).into()))?;
                let id = TreeId(key.objectid);
                let (logical, generation) = (item.bytenr, item.generation);
                roots.push((TreeRoot { id, logical, generation, level: item.level }, item));
            }
            self.explain(cursor.next())?;
        }
        Ok(roots)
    }

    /// The tree of log roots, and the log trees of subvolumes with their subvolume.
    pub fn logs(&self) -> Result<Vec<(TreeRoot, TreeId)>> {
        let Some(top) = self.root(TreeId::LOG)? else { return Ok(Vec::new()) };
        let mut logs = Vec::new();
        let mut cursor = Cursor::new(&self.store, &top);
        self.explain(cursor.first())?;
        while let Some((key, data)) = cursor.item() {
            if key.kind == kind::ROOT_ITEM {
                let item = self.explain(RootItem::parse(data).map_err(|c| c.key(key).into()))?;
                let (logical, generation) = (item.bytenr, item.generation);
                let root = TreeRoot { id: TreeId::LOG, logical, generation, level: item.level };
                logs.push((root, TreeId(key.offset)));
            }
            self.explain(cursor.next())?;
        }
        Ok(logs)
    }

    /// A node that nothing leads to, believed as far as a header goes: that of its first copy
    /// which is sound, or of the first one where none is.
    pub fn by_its_header(&self, logical: Logical) -> btrfs_disk::Result<(Header, Expect)> {
        let copies = 0..self.volume.mirrors(logical).unwrap_or(0);
        match copies.into_iter().find_map(|copy| self.sound_copy(logical, copy).ok()) {
            Some(found) => Ok(found),
            None => self.header_of_copy(logical, 0),
        }
    }

    fn header_of_copy(
        &self,
        logical: Logical,
        copy: usize,
    ) -> btrfs_disk::Result<(Header, Expect)> {
        let mut bytes = [0; HEADER_SIZE];
        self.volume.read_mirror(logical, copy, &mut bytes)?;
        let header = Header::read(&bytes)?;
        let level = header.level;
        let expect = Expect { logical, level, generation: None, owner: None, first_key: None };
        Ok((header, expect))
    }

    /// As the copy's own header says, if that and all behind it is as a node's must be.
    fn sound_copy(&self, logical: Logical, copy: usize) -> btrfs_disk::Result<(Header, Expect)> {
        let found = self.header_of_copy(logical, copy)?;
        let geometry = self.volume.geometry();
        let mut bytes = vec![0; geometry.node_size as usize].into_boxed_slice();
        self.volume.read_mirror(logical, copy, &mut bytes)?;
        check::node(bytes, geometry, &found.1)?;
        Ok(found)
    }

    /// An engine's error as one about this file.
    pub fn explain<T>(&self, result: btrfs_disk::Result<T>) -> Result<T> {
        result.map_err(|e| self.error(&e))
    }

    pub fn error(&self, error: &btrfs_disk::Error) -> Error {
        let path = self.medium.path();
        let told = disk_error(path, error);
        match error {
            btrfs_disk::Error::Corrupt(_) => {
                told.remedy(format!("`spinney check {}` tells all that is damaged", path.display()))
            }
            _ => told,
        }
    }
}

pub fn disk_error(path: &Path, error: &btrfs_disk::Error) -> Error {
    Error::about(path.display(), error)
}

/// The chunk tree is lost, and one of an earlier commit is left.
fn older_chunks(medium: &Medium, start: &Start) -> Option<String> {
    let device = medium.device();
    let opens = |at: &Logical| {
        Volume::look(device.clone(), &Start { chunk_root: Some(*at), ..*start }).is_ok()
    };
    let at = chunk_trees(&*device).ok()?.into_iter().find(opens)?;
    let name = medium.path().display();
    Some(format!(
        "its chunk tree cannot be read; one of an earlier commit can: `btrfs check --chunk-root {at} \
         {name}` looks by it, `spinney cp -r --rescue usebackuproot {name}:/ DIR` gives out what is found"
    ))
}

fn opening_remedy(path: &Path, error: &btrfs_disk::Error) -> String {
    match error {
        btrfs_disk::Error::Corrupt(_) => {
            format!("`spinney dump-super --all {}` shows what is left of it", path.display())
        }
        btrfs_disk::Error::NotBtrfs(_) => partitions::remedy(path),
        btrfs_disk::Error::Unsupported(_) => {
            "the kernel's btrfs may be able to use it; nothing was changed".into()
        }
        _ => "look at `dmesg` for what the device below has to say".into(),
    }
}

const TREES: &[(&str, TreeId)] = &[
    ("root", TreeId::ROOT),
    ("extent", TreeId::EXTENT),
    ("chunk", TreeId::CHUNK),
    ("dev", TreeId::DEV),
    ("fs", TreeId::FS),
    ("csum", TreeId::CSUM),
    ("quota", TreeId::QUOTA),
    ("uuid", TreeId::UUID),
    ("free-space", TreeId::FREE_SPACE),
    ("block-group", TreeId::BLOCK_GROUP),
    ("log", TreeId::LOG),
    ("reloc", TreeId::RELOC),
    ("data-reloc", TreeId::DATA_RELOC),
];

pub fn tree_names() -> Vec<&'static str> {
    TREES.iter().map(|(name, _)| *name).collect()
}

/// A tree by name or number.
pub fn parse_tree(word: &str) -> Result<TreeId> {
    if let Some((_, tree)) = TREES.iter().find(|(name, _)| *name == word) {
        return Ok(*tree);
    }
    let number = word.parse::<u64>().or_else(|_| word.parse::<i64>().map(|n| n as u64));
    number.map(TreeId).map_err(|_| {
        let names = tree_names().join(", ");
        Error::usage(format!("no tree {word:?}; a subvolume's number, or {names}"))
    })
}

pub fn tree_name(tree: TreeId) -> String {
    match TREES.iter().find(|(_, id)| *id == tree) {
        Some((name, _)) => (*name).into(),
        None => (tree.0 as i64).to_string(),
    }
}

pub fn uuid(bytes: &[u8; 16]) -> String {
    let hex = crate::output::hex(bytes);
    let part = |from: usize, to: usize| &hex[from..to];
    format!("{}-{}-{}-{}-{}", part(0, 8), part(8, 12), part(12, 16), part(16, 20), part(20, 32))
}

/// Names of the set bits, `bit N` for those without one.
pub fn flag_names(flags: u64, names: &[(u64, &str)]) -> Vec<String> {
    let bits = (0..64).map(|bit| 1u64 << bit).filter(|bit| flags & bit != 0);
    bits.map(|bit| match names.iter().find(|(flag, _)| *flag == bit) {
        Some((_, name)) => (*name).to_string(),
        None => format!("bit {}", bit.trailing_zeros()),
    })
    .collect()
}

pub fn features(sb: &Superblock) -> Vec<String> {
    let mut all = flag_names(sb.fields.incompat_flags, incompat::NAMES);
    all.extend(flag_names(sb.fields.compat_ro_flags, compat_ro::NAMES));
    all
}

const GROUP_FLAGS: &[(u64, &str)] = &[
    (block_group::DATA, "data"),
    (block_group::SYSTEM, "system"),
    (block_group::METADATA, "metadata"),
    (block_group::RAID0, "raid0"),
    (block_group::RAID1, "raid1"),
    (block_group::DUP, "dup"),
    (block_group::RAID10, "raid10"),
    (block_group::RAID5, "raid5"),
    (block_group::RAID6, "raid6"),
    (block_group::RAID1C3, "raid1c3"),
    (block_group::RAID1C4, "raid1c4"),
];

/// What a chunk is for, as in `data` or `data+metadata`.
pub fn chunk_type(flags: u64) -> String {
    flag_names(flags & block_group::TYPE_MASK, GROUP_FLAGS).join("+")
}

/// How a chunk is stored: `single` where no bit says more.
pub fn chunk_profile(flags: u64) -> String {
    match flags & block_group::PROFILE_MASK {
        0 => "single".into(),
        profile => flag_names(profile, GROUP_FLAGS).join("+"),
    }
}

pub fn chunk_flags(flags: u64) -> String {
    format!("{}, {}", chunk_type(flags), chunk_profile(flags))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trees_have_names_and_numbers() {
        assert_eq!(parse_tree("extent").unwrap(), TreeId::EXTENT);
        assert_eq!(parse_tree("257").unwrap(), TreeId(257));
        assert_eq!(parse_tree("-9").unwrap(), TreeId::DATA_RELOC);
        assert!(parse_tree("tree").is_err());
        assert_eq!(tree_name(TreeId::DATA_RELOC), "data-reloc");
        assert_eq!(tree_name(TreeId(256)), "256");
    }

    #[test]
    fn flags_have_names() {
        assert_eq!(chunk_flags(block_group::METADATA | block_group::DUP), "metadata, dup");
        assert_eq!(chunk_flags(block_group::DATA), "data, single");
        assert_eq!(flag_names(1 << 40 | 1, GROUP_FLAGS), ["data", "bit 40"]);
        let uuid_text = uuid(&[0x12; 16]);
        assert_eq!(uuid_text, "12121212-1212-1212-1212-121212121212");
    }
}
