//! Names: DIR_ITEM and DIR_INDEX of the directory and INODE_REF of the inode must tell
//! the same story.
//!
//! A name is kept only until all of its sides have been seen and agree, so what remains
//! at the end is what is wrong (and the entries that lead to other subvolumes, which
//! have no reference).

use super::SubvolumeEntry;
use crate::FindingKind;
use crate::kind::Name;
use btrfs_disk::items::{DirItem, dir_type};
use btrfs_disk::key::kind;
use btrfs_disk::{Key, TreeId};
use std::collections::HashMap;

/// What a directory's item says of a name: where it leads, and to what type.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Target {
    location: Key,
    kind: u8,
}

/// What an inode says of a name of its own.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Back {
    ino: u64,
    index: u64,
    /// Type by the inode's mode; `None` without an inode item.
    kind: Option<u8>,
}

#[derive(Default)]
struct Link {
    item: Option<Target>,
    index: Option<(u64, Target)>,
    back: Option<Back>,
}

#[derive(Default)]
pub(super) struct Links {
    by_dir: HashMap<u64, HashMap<Box<[u8]>, Link>>,
    /// Contradictions, found when a name's last side was seen.
    wrong: Vec<FindingKind>,
}

impl Links {
    /// Takes one side of a name; `set` is false if that side was there already.
    fn side(&mut self, dir: u64, name: &[u8], set: impl FnOnce(&mut Link) -> bool) {
        let names = self.by_dir.entry(dir).or_default();
        if !names.contains_key(name) {
            names.insert(name.into(), Link::default());
        }
        let link = names.get_mut(name).expect("inserted above");
        if !set(link) {
            self.wrong.push(FindingKind::NameDuplicate { dir, name: Name(name.into()) });
            return;
        }
        let Link { item: Some(item), index: Some((index, by_index)), back: Some(back) } = link
        else {
            return;
        };
        if let Err(why) = agree(item, *index, by_index, back) {
            self.wrong.push(FindingKind::DirEntryDiffers { dir, name: Name(name.into()), why });
        }
        names.remove(name);
        if names.is_empty() {
            self.by_dir.remove(&dir);
        }
    }

    pub(super) fn dir_item(&mut self, dir: u64, entry: &DirItem<'_>) {
        let target = Target { location: entry.location, kind: entry.kind };
        self.side(dir, entry.name, |link| link.item.replace(target).is_none());
    }

    pub(super) fn dir_index(&mut self, dir: u64, index: u64, entry: &DirItem<'_>) {
        let target = Target { location: entry.location, kind: entry.kind };
        self.side(dir, entry.name, |link| link.index.replace((index, target)).is_none());
    }

    pub(super) fn back(&mut self, dir: u64, name: &[u8], ino: u64, index: u64, kind: Option<u8>) {
        let back = Back { ino, index, kind };
        self.side(dir, name, |link| link.back.replace(back).is_none());
    }

    /// What is wrong; entries of other subvolumes go to `entries`.
    pub(super) fn finish(
        self,
        tree: TreeId,
        entries: &mut Vec<SubvolumeEntry>,
    ) -> Vec<FindingKind> {
        let mut wrong = self.wrong;
        let mut rest: Vec<_> = self.by_dir.into_iter().collect();
        rest.sort_unstable_by_key(|(dir, _)| *dir);
        for (dir, names) in rest {
            let mut names: Vec<_> = names.into_iter().collect();
            names.sort_unstable_by(|a, b| a.0.cmp(&b.0));
            for (name, link) in names {
                match subvolume(tree, dir, &name, &link) {
                    Some(Ok(entry)) => entries.push(entry),
                    Some(Err(kind)) => wrong.push(kind),
                    None => incomplete(dir, &name, &link, &mut wrong),
                }
            }
        }
        wrong
    }
}

fn agree(item: &Target, index: u64, by_index: &Target, back: &Back) -> Result<(), String> {
    if item != by_index {
        return Err(format!(
            "its hash entry leads to {} (type {}), its index entry to {} (type {})",
            item.location, item.kind, by_index.location, by_index.kind
        ));
    }
    if item.location.kind != kind::INODE_ITEM || item.location.objectid != back.ino {
        return Err(format!("it leads to {}, inode {} claims it", item.location, back.ino));
    }
    if index != back.index {
        return Err(format!(
            "its index is {index} in the directory and {} in inode {}",
            back.index, back.ino
        ));
    }
    match back.kind {
        Some(kind) if kind != item.kind => {
            Err(format!("its type is {}, that of inode {} is {kind}", item.kind, back.ino))
        }
        _ => Ok(()),
    }
}

/// An entry that leads to a subvolume: both of the directory's items, and no reference.
fn subvolume(
    parent: TreeId,
    dir: u64,
    name: &[u8],
    link: &Link,
) -> Option<Result<SubvolumeEntry, FindingKind>> {
    let (Some(item), Some((index, by_index)), None) = (link.item, link.index, link.back) else {
        return None;
    };
    if item.location.kind != kind::ROOT_ITEM {
        return None;
    }
    // Offsets of such locations differ by the kernel that wrote them.
    let (a, b) = (item.location, by_index.location);
    if (a.objectid, a.kind) != (b.objectid, b.kind) {
        let why = format!("its hash entry leads to {a}, its index entry to {b}");
        return Some(Err(FindingKind::DirEntryDiffers { dir, name: Name(name.into()), why }));
    }
    if let Some(odd) = [item.kind, by_index.kind].into_iter().find(|k| *k != dir_type::DIR) {
        let why = format!("its type is {odd}, that of a subvolume is {}", dir_type::DIR);
        return Some(Err(FindingKind::DirEntryDiffers { dir, name: Name(name.into()), why }));
    }
    let child = TreeId(a.objectid);
    Some(Ok(SubvolumeEntry { parent, dir, index, name: name.into(), child }))
}

fn incomplete(dir: u64, name: &[u8], link: &Link, wrong: &mut Vec<FindingKind>) {
    let target = link.item.or(link.index.map(|(_, target)| target));
    let ino = match (link.back, target) {
        (Some(back), _) => back.ino,
        (None, Some(target)) => target.location.objectid,
        (None, None) => return,
    };
    let name = || Name(name.into());
    if link.item.is_none() {
        wrong.push(FindingKind::DirItemMissing { dir, ino, name: name() });
    }
    if link.index.is_none() {
        wrong.push(FindingKind::DirIndexMissing { dir, ino, name: name() });
    }
    let leads_to_inode = target.is_some_and(|t| t.location.kind != kind::ROOT_ITEM);
    if link.back.is_none() && leads_to_inode {
        wrong.push(FindingKind::InodeRefMissing { dir, ino, name: name() });
    }
}
