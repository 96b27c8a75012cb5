//! A recovered tree against the demands.

use std::collections::{BTreeMap, HashMap};

use vfs::{FileKind, Ino};

use super::demands::Demands;
use super::history::{Inode, Rename, Slot, Version};
use crate::compare::{Content, NodeView, TreeSnapshot};
use crate::ops::Path;

const BLOCK: u64 = 4096;

/// What is let pass.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Rules {
    /// A file that moved to another directory may have kept its old name as well. The logs that
    /// the kernel writes say so when only the new directory was synced.
    pub old_name_stays: bool,
}

impl Rules {
    pub const KERNEL_LOG: Rules = Rules { old_name_stays: true };
}

/// The recovered tree by names and by inodes.
struct Seen<'t> {
    slots: HashMap<Slot, Ino>,
    inodes: BTreeMap<Ino, (&'t Path, &'t NodeView)>,
}

impl<'t> Seen<'t> {
    fn of(tree: &'t TreeSnapshot) -> Seen<'t> {
        let mut seen = Seen { slots: HashMap::new(), inodes: BTreeMap::new() };
        for (path, node) in &tree.nodes {
            seen.inodes.entry(node.attr.ino).or_insert((path, node));
            let (dir, name) = path.split();
            if *path != Path::default()
                && let Some(dir) = tree.nodes.get(&dir)
            {
                seen.slots.insert((dir.attr.ino, name.to_vec()), node.attr.ino);
            }
        }
        seen
    }
}

/// How a name looks from a rename: as before it, as after it, both if it can be either.
#[derive(Default)]
struct Sides {
    old: bool,
    new: bool,
    /// What the rename put there.
    became: Option<Ino>,
}

impl Sides {
    /// It is as it never was, which is told elsewhere.
    fn unknown(&self) -> bool {
        !self.old && !self.new
    }
}

impl Demands<'_> {
    /// What is wrong with `tree`, in words; nothing if all is well.
    pub fn judge(&self, tree: &TreeSnapshot, rules: Rules) -> Vec<String> {
        let mut wrong = tree.contradictions();
        let seen = Seen::of(tree);
        self.judge_names(&seen, &mut wrong);
        for rename in self.history.renames.iter().filter(|rename| rename.at <= self.crash) {
            self.judge_rename(rename, &seen, rules, &mut wrong);
        }
        for (ino, (path, node)) in &seen.inodes {
            match self.history.inodes.get(ino) {
                Some(inode) => self.judge_inode(*ino, inode, path, node, &mut wrong),
                None => wrong.push(format!("{path:?} is inode {}, which never was", ino.0)),
            }
        }
        let missing = |ino: &&Ino| self.must_exist(**ino) && !seen.inodes.contains_key(ino);
        for ino in self.history.inodes.keys().filter(missing) {
            wrong.push(format!("inode {} was durable, always had a name, and is lost", ino.0));
        }
        wrong
    }

    fn judge_names(&self, seen: &Seen<'_>, wrong: &mut Vec<String>) {
        for (slot, ino) in &seen.slots {
            if !self.history.slots.contains_key(slot) {
                wrong.push(format!("{} is inode {}: a name that never was", show(slot), ino.0));
            }
        }
        for slot in self.history.slots.keys() {
            if self.matching(slot, seen).next().is_none() {
                let found = show_ino(seen.slots.get(slot).copied());
                let allowed: Vec<String> = self.allowed(slot).map(|v| show_ino(v.value)).collect();
                wrong.push(format!("{} is {found}, may be {allowed:?}", show(slot)));
            }
        }
    }

    fn allowed(&self, slot: &Slot) -> impl Iterator<Item = &Version<Option<Ino>>> {
        let versions = self.history.slots.get(slot).into_iter().flatten();
        versions.filter(move |version| self.slot_counts(slot, version))
    }

    /// Values in the slot's history that what is found may be.
    fn matching(
        &self,
        slot: &Slot,
        seen: &Seen<'_>,
    ) -> impl Iterator<Item = &Version<Option<Ino>>> {
        let found = seen.slots.get(slot).copied();
        self.allowed(slot).filter(move |version| version.value == found)
    }

    /// Where the two names are not of one side of it, what it moved is not at both of them,
    /// nor (if it was durable) at none.
    fn judge_rename(
        &self,
        rename: &Rename,
        seen: &Seen<'_>,
        rules: Rules,
        wrong: &mut Vec<String>,
    ) {
        let (from, to) =
            (self.sides(&rename.from, rename, seen), self.sides(&rename.to, rename, seen));
        if from.unknown() || to.unknown() || from.old && to.old || from.new && to.new {
            return;
        }
        let found = |slot| seen.slots.get(slot).copied();
        let (a, b) = (found(&rename.from), found(&rename.to));
        let is_dir = |ino| self.history.inodes.get(&ino).is_some_and(|i| i.kind == FileKind::Dir);
        let twice =
            |ino| (a, b) == (Some(ino), Some(ino)) && (is_dir(ino) || !rules.old_name_stays);
        let lost = |ino| a != Some(ino) && b != Some(ino) && self.must_exist(ino);
        // With an exchange, the other one as well.
        let moved = [from.became, to.became].into_iter().flatten();
        if moved.into_iter().any(|ino| twice(ino) || lost(ino)) {
            let (from, to) = (show(&rename.from), show(&rename.to));
            let (a, b) = (show_ino(a), show_ino(b));
            wrong.push(format!("half a rename of {from} to {to}: they are {a} and {b}"));
        }
    }

    /// What a name is like, seen from a rename that changed it.
    fn sides(&self, slot: &Slot, rename: &Rename, seen: &Seen<'_>) -> Sides {
        let mut sides = Sides::default();
        // A name that came and went is as before it came, even if its absence is durable.
        let (found, all) = (seen.slots.get(slot).copied(), self.history.slots.get(slot));
        let happened = |v: &&Version<_>| v.begin.at <= self.crash && v.value == found;
        for version in all.into_iter().flatten().filter(happened) {
            let new = version.begin.tick >= rename.tick;
            sides.new |= new;
            sides.old |= !new;
        }
        let mut versions = self.history.slots.get(slot).into_iter().flatten();
        let made = versions.find(|version| version.begin.tick == rename.tick);
        sides.became = made.and_then(|version| version.value);
        sides
    }

    fn judge_inode(
        &self,
        ino: Ino,
        inode: &Inode,
        path: &Path,
        node: &NodeView,
        wrong: &mut Vec<String>,
    ) {
        let attr = &node.attr;
        if (attr.kind, &node.target) != (inode.kind, &inode.target) {
            let (kind, target) = (attr.kind, &node.target);
            wrong.push(format!("{path:?} is {kind:?} {target:?}, was {:?}", inode.kind));
            return;
        }
        if attr.kind != FileKind::Symlink
            && !inode.meta.iter().any(|v| {
                let m = &v.value;
                let flags = m.flags.is_none() || node.flags.is_none() || m.flags == node.flags;
                let owner = (m.perm, m.uid, m.gid, m.rdev);
                let same = owner == (attr.perm, attr.uid, attr.gid, attr.rdev) && flags;
                same && self.meta_counts(ino, v)
            })
        {
            let found = (attr.perm, attr.uid, attr.gid, attr.rdev, node.flags);
            wrong.push(format!("{path:?}: attributes {found:?} are none that it had"));
        }
        if !inode.xattrs.iter().any(|v| v.value == node.xattrs && self.meta_counts(ino, v)) {
            let names: Vec<_> =
                node.xattrs.keys().map(|name| String::from_utf8_lossy(name)).collect();
            wrong.push(format!("{path:?}: xattrs {names:?} are none that it had"));
        }
        if let Some(content) = &node.content {
            self.judge_content(ino, inode, path, content, wrong);
        }
    }

    /// Each block is as it was at some moment, and so is the length; of what was being
    /// appended the end may be missing. Where the last change is synced only one moment counts.
    fn judge_content(
        &self,
        ino: Ino,
        inode: &Inode,
        path: &Path,
        found: &Content,
        wrong: &mut Vec<String>,
    ) {
        let counting = inode.content.iter().filter(|version| self.content_counts(ino, version));
        let allowed: Vec<&Content> =
            counting.filter_map(|version| version.value.as_ref()).collect();
        let lens: Vec<u64> = allowed.iter().map(|content| content.len).collect();
        let cut = found.len.is_multiple_of(BLOCK)
            && lens.iter().any(|len| *len <= found.len)
            && lens.iter().any(|len| *len >= found.len);
        let fits = |(number, block): (usize, &u64)| {
            allowed.iter().any(|content| content.blocks.get(number) == Some(block))
        };
        let blocks = found.blocks.iter().enumerate().all(fits);
        if blocks && (cut || lens.contains(&found.len)) {
            return;
        }
        let at: Vec<_> = allowed.iter().map(|content| content.first_difference(found)).collect();
        wrong.push(format!(
            "{path:?}: content of {} bytes is none of the {} that it may be: lengths {lens:?}, \
             first differences at {at:?}",
            found.len,
            lens.len(),
        ));
    }
}

fn show((dir, name): &Slot) -> String {
    format!("{:?} in directory {}", String::from_utf8_lossy(name), dir.0)
}

fn show_ino(ino: Option<Ino>) -> String {
    ino.map_or("nothing".to_owned(), |ino| format!("inode {}", ino.0))
}
