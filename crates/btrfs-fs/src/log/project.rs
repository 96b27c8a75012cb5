//! One inode as log items.

use super::TreeLog;
use super::committed::Committed;
use super::extents::Content;
use super::freeze::{Now, Work};
use super::state::LogState;
use super::sums::log_sums;
use crate::ino::InodeId;
use btrfs_disk::items::{Compression, FileExtent, FileExtentKind, InodeItem, inode_flags};
use btrfs_disk::key::kind;
use btrfs_disk::{Generation, Key, Result, TreeId};
use btrfs_tree::{Cursor, Edit};
use btrfs_txn::delta::{Frozen, Level};
use btrfs_txn::{Defect, View};
use std::collections::BTreeMap;

/// Changes of each subvolume's log.
pub(crate) type Edits = BTreeMap<TreeId, BTreeMap<Key, Edit>>;

pub(crate) struct Project<'a> {
    pub log: &'a TreeLog,
    pub view: &'a View<'a>,
    pub committed: &'a Committed<'a>,
    /// Of the log: the one behind the last commit's. While a commit is at work, items are
    /// of the one behind that, which no volume with this log may say.
    pub generation: Generation,
}

impl Project<'_> {
    /// Turns finished work into edits; what the log will have is noted in `state`.
    pub(crate) fn all(&self, work: &Work, state: &mut LogState) -> Result<Edits> {
        let mut edits = Edits::new();
        for id in &work.dropped {
            self.drop_inode(*id, state, &mut edits)?;
        }
        for (id, frozen) in &work.objects {
            let Some(Now::Here(item)) = work.now(self.committed, *id)? else { continue };
            let cut = work.cuts.range((*id, 0)..=(*id, u64::MAX)).next().is_some();
            let idle = frozen.slots.is_empty() && frozen.gaps.is_empty() && !cut;
            if frozen.whole && idle {
                // The commit has it as it is.
                continue;
            }
            self.inode(*id, &item, work, state, edits.entry(id.tree).or_default())?;
        }
        // Of a directory that is gone nothing is in the log.
        for (dir, index) in work.cuts.iter().filter(|(dir, _)| !work.dropped.contains(dir)) {
            let key = Key::new(dir.objectid, kind::DIR_LOG_INDEX, *index);
            let last = index.to_le_bytes().to_vec();
            edits.entry(dir.tree).or_default().insert(key, Edit::Put(last.into()));
        }
        edits.retain(|_, edits| !edits.is_empty());
        for (item, names) in &work.crowded {
            state.crowded.entry(*item).or_default().extend(names.iter().cloned());
        }
        Ok(edits)
    }

    fn inode(
        &self,
        id: InodeId,
        item: &InodeItem,
        work: &Work,
        state: &mut LogState,
        edits: &mut BTreeMap<Key, Edit>,
    ) -> Result<()> {
        let frozen = &work.objects[&id];
        let level = work.wanted.get(&id).copied().unwrap_or_default();
        self.log.stats.log_inodes.add(1);
        let renamed = frozen.has_refs();
        let names = renamed.then(|| work.names(self.committed, id)).transpose()?;
        if frozen.whole {
            self.log.stats.log_first.add(1);
            self.whole_inode(id, frozen, edits)?;
        }
        let own = (kind::INODE_ITEM, 0)..=(kind::XATTR_ITEM, u64::MAX);
        for (&(kind, offset), value) in frozen.slots.range(own) {
            let edit = value.as_ref().map_or(Edit::Delete, |bytes| Edit::Put(bytes.clone()));
            edits.insert(Key::new(id.objectid, kind, offset), edit);
        }
        let item_key = Key::new(id.objectid, kind::INODE_ITEM, 0);
        match frozen.item_changed {
            true => edits.insert(item_key, Edit::Put(self.of_log(item).to_boxed())),
            false => edits.remove(&item_key),
        };
        let member = state.members.entry(id).or_default();
        if let Some(names) = names {
            member.names = names;
        }
        member.entries |= level == Level::Entries;
        let content = Content {
            committed: self.committed,
            id,
            item,
            frozen,
            sector: self.log.core.sector(),
            generation: self.generation,
        };
        let mut extents = BTreeMap::new();
        content.edits(member, &mut extents)?;
        let left_out = self.log.core.injection.has(Defect::LogWithoutSums);
        if item.flags & inode_flags::NODATASUM == 0 && !left_out {
            self.sums(id.tree, &extents, state, edits)?;
        }
        edits.extend(extents);
        Ok(())
    }

    fn of_log(&self, item: &InodeItem) -> InodeItem {
        let mut item = *item;
        item.generation = item.generation.min(self.generation.0);
        item.transid = item.transid.min(self.generation.0);
        item
    }

    /// What the commit has of the inode and its names and attributes.
    fn whole_inode(
        &self,
        id: InodeId,
        frozen: &Frozen,
        edits: &mut BTreeMap<Key, Edit>,
    ) -> Result<()> {
        if frozen.born {
            return Ok(());
        }
        self.committed.scan(id, kind::INODE_ITEM..=kind::XATTR_ITEM, 0, |key, data| {
            edits.insert(key, Edit::Put(data.into()));
            Ok(true)
        })
    }

    fn sums(
        &self,
        tree: TreeId,
        extents: &BTreeMap<Key, Edit>,
        state: &mut LogState,
        edits: &mut BTreeMap<Key, Edit>,
    ) -> Result<()> {
        let log = state.trees.entry(tree).or_default();
        for (key, edit) in extents {
            let Edit::Put(bytes) = edit else { continue };
            let extent = FileExtent::parse(bytes).map_err(|c| c.key(*key))?;
            if let FileExtent::Extent { kind: FileExtentKind::Regular, compression, fields } =
                extent
                && fields.disk_bytenr.0 != 0
            {
                let compressed = compression != Compression::None;
                log_sums(&self.log.core, self.view, log, compressed, &fields, edits);
            }
        }
        Ok(())
    }

    /// An inode that is gone leaves the log. Rare, so looking its items up is no matter.
    fn drop_inode(&self, id: InodeId, state: &mut LogState, edits: &mut Edits) -> Result<()> {
        if state.members.remove(&id).is_none() {
            return Ok(());
        }
        self.log.stats.log_drops.add(1);
        let Some(root) = state.trees.get(&id.tree).and_then(|log| log.root) else {
            return Ok(());
        };
        let edits = edits.entry(id.tree).or_default();
        self.log.stats.log_tree_reads.add(1);
        let mut cursor = Cursor::new(&self.log.core.store, &root);
        cursor.seek(&Key::new(id.objectid, 0, 0))?;
        while let Some(key) = cursor.key().filter(|key| key.objectid == id.objectid) {
            edits.insert(key, Edit::Delete);
            cursor.next()?;
        }
        Ok(())
    }
}
