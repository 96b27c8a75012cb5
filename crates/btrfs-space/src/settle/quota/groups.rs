//! The quota tree: which groups there are, what they count, who is in whom.
//!
//! What it does not know: what changes, and who writes it.

use super::account::GroupId;
use crate::items::Items;
use btrfs_disk::items::{QGROUP_LEVEL_SHIFT, QgroupInfo, QgroupStatus, simple_quotas_since};
use btrfs_disk::key::kind;
use btrfs_disk::{FixedSize, Key, Result, TreeId};

pub(crate) const STATUS: Key = Key::new(0, kind::QGROUP_STATUS, 0);

pub(crate) fn info_key(group: GroupId) -> Key {
    Key::new(0, kind::QGROUP_INFO, group)
}

pub(crate) fn limit_key(group: GroupId) -> Key {
    Key::new(0, kind::QGROUP_LIMIT, group)
}

/// The status, with what newer formats have behind it.
#[derive(Clone, Debug)]
pub(crate) struct Status {
    pub item: QgroupStatus,
    data: Vec<u8>,
}

impl Status {
    pub(crate) fn read(items: &mut dyn Items) -> Result<Option<Status>> {
        let Some(data) = items.get(&STATUS)? else { return Ok(None) };
        let item = QgroupStatus::read(&data).map_err(|c| c.key(STATUS))?;
        Ok(Some(Status { item, data }))
    }

    /// The generation that simple quotas began in; `None`: they are not simple.
    pub(crate) fn simple_since(&self) -> Option<u64> {
        simple_quotas_since(&self.data)
    }

    /// Simple quotas begin with `generation`.
    pub(crate) fn begin_simple(&mut self, generation: u64) {
        self.data.truncate(QgroupStatus::SIZE);
        self.data.extend_from_slice(&generation.to_le_bytes());
    }

    pub(crate) fn into_data(mut self) -> Box<[u8]> {
        self.item.write(&mut self.data);
        self.data.into()
    }
}

pub(crate) fn info(items: &mut dyn Items, group: GroupId) -> Result<Option<QgroupInfo>> {
    let key = info_key(group);
    let Some(data) = items.get(&key)? else { return Ok(None) };
    Ok(Some(QgroupInfo::read(&data).map_err(|c| c.key(key))?))
}

/// Groups that `group` is a member of, directly.
pub(crate) fn parents(items: &mut dyn Items, group: GroupId) -> Result<Vec<GroupId>> {
    let mut found = Vec::new();
    let from = Key::new(group, kind::QGROUP_RELATION, 0);
    let to = Key::new(group, kind::QGROUP_RELATION, u64::MAX);
    items.scan(from, to, &mut |key, _| {
        if level(key.offset) > level(group) {
            found.push(key.offset);
        }
        Ok(())
    })?;
    Ok(found)
}

/// The group of a subvolume and all above it, ascending. It ends, since levels ascend.
pub(crate) fn with_ancestors(items: &mut dyn Items, tree: TreeId) -> Result<Vec<GroupId>> {
    let mut all = vec![tree.0];
    let mut next = 0;
    while let Some(group) = all.get(next).copied() {
        next += 1;
        for parent in parents(items, group)? {
            if !all.contains(&parent) {
                all.push(parent);
            }
        }
    }
    all.sort_unstable();
    Ok(all)
}

pub(crate) fn level(group: GroupId) -> u64 {
    group >> QGROUP_LEVEL_SHIFT
}
