//! The root tree: which trees there are, and how subvolumes hang together.

use crate::inodes::SubvolumeEntry;
use crate::kind::Name;
use crate::refs::TreeStart;
use crate::source::Context;
use crate::walk::Leaf;
use crate::{Finding, FindingKind};
use btrfs_disk::ids::{FIRST_FREE_OBJECTID, FREE_SPACE_OBJECTID, ORPHAN_OBJECTID, compat_ro};
use btrfs_disk::items::{DirItem, ROOT_SUBVOL_RDONLY, RootItem, RootRef};
use btrfs_disk::key::kind;
use btrfs_disk::{Corrupt, Key, TreeId};
use std::collections::{BTreeMap, BTreeSet, HashSet};

/// The owned form of ROOT_REF and ROOT_BACKREF.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Link {
    dirid: u64,
    sequence: u64,
    name: Box<[u8]>,
}

#[derive(Default)]
pub(crate) struct Roots {
    /// By tree; relocation trees by the subvolume that they belong to.
    trees: BTreeMap<TreeId, RootItem>,
    relocations: Vec<(Key, RootItem)>,
    /// (parent, child), as the parent and as the child says it.
    down: BTreeMap<(TreeId, TreeId), Link>,
    up: BTreeMap<(TreeId, TreeId), Link>,
    orphans: HashSet<TreeId>,
    /// What is wrong with items that can be used all the same.
    wrong: Vec<Finding>,
    /// Where the entry `default` of the root directory leads.
    default: Option<Key>,
}

impl Roots {
    pub(crate) fn leaf(&mut self, cx: &mut Context<'_>, leaf: &Leaf<'_>) {
        for (key, data) in leaf.node.items() {
            if let Err(kind) = self.item(key, data) {
                cx.add(Finding::new(kind).tree(leaf.tree).key(key));
            }
        }
        for finding in self.wrong.drain(..) {
            cx.add(finding);
        }
    }

    fn item(&mut self, key: Key, data: &[u8]) -> Result<(), FindingKind> {
        let malformed = |c: Corrupt| FindingKind::ItemMalformed { why: c.what };
        match key.kind {
            kind::ROOT_ITEM => {
                let root = RootItem::parse(data).map_err(malformed)?;
                self.root(key, root)
            }
            kind::ROOT_REF | kind::ROOT_BACKREF => {
                let root_ref = RootRef::parse(data).map_err(malformed)?;
                self.root_ref(key, &root_ref)
            }
            kind::ORPHAN_ITEM if key.objectid == ORPHAN_OBJECTID => {
                self.orphans.insert(TreeId(key.offset));
                Ok(())
            }
            kind::DIR_ITEM if key.objectid == TreeId::ROOT_DIR.0 => {
                for entry in DirItem::iter(data) {
                    let entry = entry.map_err(malformed)?;
                    if entry.name == b"default" {
                        self.default = Some(entry.location);
                    }
                }
                Ok(())
            }
            // The inodes of version 1 free-space caches and the root directory.
            kind::INODE_ITEM | kind::INODE_REF | kind::EXTENT_DATA | kind::DIR_INDEX => Ok(()),
            kind::ORPHAN_ITEM | kind::XATTR_ITEM => Ok(()),
            // An interrupted balance, and properties of the same kind.
            kind::TEMPORARY_ITEM | kind::PERSISTENT_ITEM => Ok(()),
            0 if key.objectid == FREE_SPACE_OBJECTID => Ok(()),
            _ => Err(FindingKind::ItemUnknown),
        }
    }

    fn root(&mut self, key: Key, root: RootItem) -> Result<(), FindingKind> {
        let id = TreeId(key.objectid);
        if id.holds_files() && root.root_dirid != FIRST_FREE_OBJECTID {
            let why = format!("its root directory is said to be {}", root.root_dirid);
            self.wrong.push(Finding::new(FindingKind::RootBad { why }).tree(id));
        }
        // `btrfs-convert` makes the data relocation tree as it does a subvolume.
        let may = id.holds_files() || id == TreeId::RELOC;
        if !may && key.offset != 0 {
            let why = format!("offset {} in the key of tree {}", key.offset, id.0 as i64);
            self.wrong.push(Finding::new(FindingKind::RootBad { why }).tree(TreeId::ROOT).key(key));
        }
        if id == TreeId::RELOC {
            self.relocations.push((key, root));
        } else if self.trees.insert(TreeId(key.objectid), root).is_some() {
            return Err(FindingKind::RootBad { why: "a second one of the same tree".into() });
        }
        Ok(())
    }

    fn root_ref(&mut self, key: Key, root_ref: &RootRef<'_>) -> Result<(), FindingKind> {
        let link =
            Link { dirid: root_ref.dirid, sequence: root_ref.sequence, name: root_ref.name.into() };
        let (from, to) = (TreeId(key.objectid), TreeId(key.offset));
        if key.kind == kind::ROOT_REF {
            self.down.insert((from, to), link);
        } else {
            self.up.insert((to, from), link);
        }
        Ok(())
    }

    pub(crate) fn start(&self, tree: TreeId) -> Option<TreeStart> {
        self.trees.get(&tree).map(|root| start(tree, root))
    }

    /// The trees that hold files and are alive, then those being deleted.
    pub(crate) fn subvolumes(&self) -> (Vec<TreeStart>, Vec<TreeStart>) {
        self.trees
            .iter()
            .filter(|(id, _)| id.is_subvolume())
            .map(|(id, root)| (!root.is_deleted(), start(*id, root)))
            .fold((Vec::new(), Vec::new()), |mut lists, (alive, start)| {
                if alive {
                    lists.0.push(start)
                } else {
                    lists.1.push(start)
                }
                lists
            })
    }

    pub(crate) fn relocations(&self) -> Vec<TreeStart> {
        self.relocations.iter().map(|(_, root)| start(TreeId::RELOC, root)).collect()
    }

    /// Subvolume UUIDs: (tree, own, received).
    pub(crate) fn uuids(&self) -> impl Iterator<Item = (TreeId, [u8; 16], [u8; 16])> + '_ {
        let trees = self.trees.iter().filter(|(id, root)| id.is_subvolume() && !root.is_deleted());
        trees.map(|(id, root)| (*id, root.uuid, root.received_uuid))
    }

    /// Trees without which there is no volume, and trees that have no place in one.
    pub(crate) fn mandatory(&self, cx: &mut Context<'_>) {
        let flags = cx.volume.superblock().fields.compat_ro_flags;
        let mut wanted = vec![
            (TreeId::EXTENT, "extent tree"),
            (TreeId::DEV, "device tree"),
            (TreeId::FS, "top-level subvolume"),
            (TreeId::CSUM, "checksum tree"),
            (TreeId::DATA_RELOC, "data relocation tree"),
        ];
        if flags & compat_ro::FREE_SPACE_TREE != 0 {
            wanted.push((TreeId::FREE_SPACE, "free-space tree"));
        }
        if flags & compat_ro::BLOCK_GROUP_TREE != 0 {
            wanted.push((TreeId::BLOCK_GROUP, "block group tree"));
        }
        for (tree, what) in wanted {
            if !self.trees.contains_key(&tree) {
                let kind = FindingKind::TreeMissing { what: what.into() };
                cx.add(Finding::new(kind).tree(tree));
            }
        }
    }

    /// The reference, parent and child, that has this entry; `None` if none has.
    pub(crate) fn named_by(&self, entry: &SubvolumeEntry) -> Option<(TreeId, TreeId)> {
        let pair = (entry.parent, entry.child);
        let link = self.down.get(&pair)?;
        let place = (link.dirid, link.sequence, &link.name);
        (place == (entry.dir, entry.index, &entry.name)).then_some(pair)
    }

    /// References between subvolumes. `named`: those whose entries are there; `unread`: trees whose
    /// directories are not known wholly.
    pub(crate) fn check(
        &self,
        cx: &mut Context<'_>,
        named: &HashSet<(TreeId, TreeId)>,
        unread: &HashSet<TreeId>,
    ) {
        for ((parent, child), link) in &self.down {
            let (parent, child) = (*parent, *child);
            match self.up.get(&(parent, child)) {
                None => add(cx, FindingKind::RootBackrefMissing { parent, child }),
                Some(up) if up != link => {
                    add(cx, FindingKind::RootRefDiffers { parent, child });
                }
                Some(_) => {}
            }
        }
        for (parent, child) in self.up.keys().filter(|pair| !self.down.contains_key(pair)) {
            add(cx, FindingKind::RootRefMissing { parent: *parent, child: *child });
        }
        for (id, root) in
            self.trees.iter().filter(|(id, root)| id.is_subvolume() && !root.is_deleted())
        {
            if root.received_uuid != [0; 16] && root.flags & ROOT_SUBVOL_RDONLY == 0 {
                add(cx, FindingKind::ReceivedWritable { subvolume: *id });
            }
        }
        self.entries(cx, named, unread);
        self.reachable(cx);
        self.default_subvolume(cx);
    }

    fn entries(
        &self,
        cx: &mut Context<'_>,
        named: &HashSet<(TreeId, TreeId)>,
        unread: &HashSet<TreeId>,
    ) {
        for ((parent, child), link) in &self.down {
            let alive = self.trees.get(parent).is_some_and(|root| !root.is_deleted());
            if alive && !unread.contains(parent) && !named.contains(&(*parent, *child)) {
                let (dir, child, name) = (link.dirid, *child, Name(link.name.to_vec()));
                let kind = FindingKind::RootEntryMissing { dir, child, name };
                cx.add(Finding::new(kind).tree(*parent));
            }
        }
    }

    fn reachable(&self, cx: &mut Context<'_>) {
        let mut reached = BTreeSet::from([TreeId::FS]);
        let mut queue = vec![TreeId::FS];
        while let Some(parent) = queue.pop() {
            let first = (parent, TreeId(0));
            let children = self.down.range(first..).take_while(|((p, _), _)| *p == parent);
            for ((_, child), _) in children {
                if reached.insert(*child) {
                    queue.push(*child);
                }
            }
        }
        for (id, root) in self.trees.iter().filter(|(id, _)| id.is_subvolume()) {
            let child = *id;
            if root.is_deleted() && !self.orphans.contains(id) {
                add(cx, FindingKind::RootOrphanMissing { child });
            }
            if !root.is_deleted() && !reached.contains(id) && !self.orphans.contains(id) {
                add(cx, FindingKind::SubvolumeUnreachable { child });
            }
        }
        for (parent, child) in self.down.keys() {
            if self.trees.get(child).is_none_or(|root| root.is_deleted()) {
                let why = format!("subvolume {parent} holds {child}, which does not exist");
                add(cx, FindingKind::RootBad { why });
            }
        }
    }

    fn default_subvolume(&self, cx: &mut Context<'_>) {
        let why = match self.default {
            None => "the root directory does not name one".into(),
            Some(key) if key.kind != kind::ROOT_ITEM => format!("it leads to {key}"),
            Some(key) => match self.trees.get(&TreeId(key.objectid)) {
                Some(root) if !root.is_deleted() => return,
                _ => format!("{} does not exist", key.objectid),
            },
        };
        add(cx, FindingKind::DefaultSubvolumeBad { why });
    }
}

fn add(cx: &mut Context<'_>, kind: FindingKind) {
    cx.add(Finding::new(kind).tree(TreeId::ROOT));
}

fn start(id: TreeId, root: &RootItem) -> TreeStart {
    let interrupted = root.is_deleted() && root.drop_progress.objectid != 0;
    TreeStart {
        id,
        logical: root.bytenr,
        generation: root.generation,
        level: root.level,
        drop: interrupted.then_some((root.drop_progress, root.drop_level)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// So memory goes with references, however many snapshots have the entry.
    #[test]
    fn an_entry_counts_where_a_reference_has_it() {
        let mut roots = Roots::default();
        let link = Link { dirid: 256, sequence: 7, name: b"sub"[..].into() };
        roots.down.insert((TreeId::FS, TreeId(257)), link);
        let entry = |parent, index, name: &[u8]| SubvolumeEntry {
            parent,
            dir: 256,
            index,
            name: name.into(),
            child: TreeId(257),
        };
        let found = roots.named_by(&entry(TreeId::FS, 7, b"sub"));
        assert_eq!(found, Some((TreeId::FS, TreeId(257))));
        for other in [
            entry(TreeId(300), 7, b"sub"),
            entry(TreeId::FS, 8, b"sub"),
            entry(TreeId::FS, 7, b"other"),
        ] {
            assert_eq!(roots.named_by(&other), None, "{other:?}");
        }
    }
}
