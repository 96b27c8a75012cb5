//! File trees: every inode, every name, every file extent of one subvolume.
//!
//! Items arrive in key order, so all of one inode come together ([`inode::Inode`]);
//! names are the exception, told by three items in two places ([`links::Links`]).

mod extents;
mod file_state;
mod inode;
mod links;
mod verity;

use crate::csums::Csums;
use crate::source::Context;
use crate::verity::Sealed;
use crate::walk::Leaf;
use crate::{Finding, FindingKind};
use btrfs_disk::ids::{FIRST_FREE_OBJECTID, LAST_FREE_OBJECTID, ORPHAN_OBJECTID};
use btrfs_disk::key::kind;
use btrfs_disk::{Key, TreeId};
use inode::Inode;
use links::Links;
use std::collections::HashSet;

/// A directory entry that leads to another subvolume.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct SubvolumeEntry {
    pub parent: TreeId,
    pub dir: u64,
    pub index: u64,
    pub name: Box<[u8]>,
    pub child: TreeId,
}

/// Checksums found on an extent that this inode holds as preallocated.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unwritten {
    pub tree: TreeId,
    pub ino: u64,
    pub extent: u64,
}

/// What is the same for all trees.
pub(crate) struct Shared {
    pub csums: Csums,
    pub no_holes: bool,
    /// References between subvolumes whose entry was found: parent and child.
    pub named: HashSet<(TreeId, TreeId)>,
    /// No tree before this one has the leaf at hand.
    pub fresh: bool,
    /// Each once for all trees that share it.
    pub unwritten: Vec<Unwritten>,
    /// Files with fs-verity, each once for all trees that share it; where content is read.
    pub sealed: Vec<(TreeId, Sealed)>,
}

/// The check of one tree.
pub(crate) struct Inodes<'s> {
    tree: TreeId,
    shared: &'s mut Shared,
    current: Option<Inode>,
    links: Links,
    orphans: HashSet<u64>,
    nameless: Vec<u64>,
    /// Findings that hold only if the whole tree was seen.
    derived: Vec<Finding>,
    root_seen: bool,
}

impl<'s> Inodes<'s> {
    pub(crate) fn new(tree: TreeId, shared: &'s mut Shared) -> Inodes<'s> {
        Inodes {
            tree,
            shared,
            current: None,
            links: Links::default(),
            orphans: HashSet::new(),
            nameless: Vec::new(),
            derived: Vec::new(),
            root_seen: false,
        }
    }

    pub(crate) fn leaf(&mut self, cx: &mut Context<'_>, leaf: &Leaf<'_>) {
        self.shared.fresh = leaf.fresh;
        for (key, data) in leaf.node.items() {
            if let Err(kind) = self.item(cx, key, data) {
                cx.add(Finding::new(kind).tree(self.tree).key(key));
            }
            if let Some(inode) = &mut self.current {
                inode.fresh |= leaf.fresh;
            }
        }
    }

    fn item(&mut self, cx: &mut Context<'_>, key: Key, data: &[u8]) -> Result<(), FindingKind> {
        if !(FIRST_FREE_OBJECTID..=LAST_FREE_OBJECTID).contains(&key.objectid) {
            return self.special(key);
        }
        if self.current.as_ref().is_none_or(|inode| inode.ino != key.objectid) {
            self.finish_inode(cx);
            self.current = Some(Inode::new(key.objectid));
        }
        let inode = self.current.as_mut().expect("made above");
        match key.kind {
            kind::INODE_ITEM => inode.set_item(data),
            kind::INODE_REF => inode.names(key, data, &mut self.links),
            kind::INODE_EXTREF => inode.extended_names(data, &mut self.links),
            kind::DIR_ITEM => inode.dir_item(data, &mut self.links),
            kind::DIR_INDEX => inode.dir_index(key, data, &mut self.links),
            kind::EXTENT_DATA => inode.file_extent(cx, self.tree, key, data, self.shared),
            kind::VERITY_DESC_ITEM | kind::VERITY_MERKLE_ITEM => {
                inode.verity.item(key, data);
                Ok(())
            }
            kind::XATTR_ITEM => Ok(()),
            _ => Err(FindingKind::ItemUnknown),
        }
    }

    fn special(&mut self, key: Key) -> Result<(), FindingKind> {
        match (key.objectid, key.kind) {
            (ORPHAN_OBJECTID, kind::ORPHAN_ITEM) => {
                self.orphans.insert(key.offset);
                Ok(())
            }
            // The free-inode cache of old kernels, ignored by new ones.
            (objectid, _) if objectid == btrfs_disk::ids::FREE_INO_OBJECTID => Ok(()),
            (objectid, 0) if objectid == btrfs_disk::ids::FREE_SPACE_OBJECTID => Ok(()),
            _ => Err(FindingKind::ItemUnknown),
        }
    }

    fn finish_inode(&mut self, cx: &mut Context<'_>) {
        let Some(inode) = self.current.take() else { return };
        let totals = &mut cx.report.totals;
        totals.inodes += 1;
        totals.names += inode.name_count();
        totals.directories += u64::from(inode.is_dir());
        self.root_seen |= inode.ino == FIRST_FREE_OBJECTID && inode.is_dir();
        if inode.is_nameless() {
            self.nameless.push(inode.ino);
        }
        let file = file_state::Rules {
            no_holes: self.shared.no_holes,
            relocation: self.tree == TreeId::DATA_RELOC,
            sector: u64::from(cx.geometry.sector_size),
        };
        if cx.verify_data() && inode.fresh {
            self.shared.sealed.extend(inode.sealed().map(|sealed| (self.tree, sealed)));
        }
        for kind in inode.judge(&file) {
            let key = Key::new(inode.ino, kind::INODE_ITEM, 0);
            self.derived.push(Finding::new(kind).tree(self.tree).key(key));
        }
    }

    /// `complete`: every leaf of the tree was seen. Its entries of other subvolumes.
    pub(crate) fn finish(mut self, cx: &mut Context<'_>, complete: bool) -> Vec<SubvolumeEntry> {
        self.finish_inode(cx);
        cx.report.totals.orphans += self.nameless.len() as u64;
        if !self.root_seen {
            let what = format!("root directory in tree {}", self.tree.0 as i64);
            self.derived.push(Finding::new(FindingKind::TreeMissing { what }).tree(self.tree));
        }
        for ino in &self.nameless {
            if !self.orphans.contains(ino) {
                let finding = Finding::new(FindingKind::OrphanItemMissing { ino: *ino });
                self.derived.push(finding.tree(self.tree));
            }
        }
        let mut entries = Vec::new();
        let links = self.links.finish(self.tree, &mut entries);
        if !complete {
            return entries;
        }
        for finding in self.derived {
            cx.add(finding);
        }
        for kind in links {
            cx.add(Finding::new(kind).tree(self.tree));
        }
        entries
    }
}
