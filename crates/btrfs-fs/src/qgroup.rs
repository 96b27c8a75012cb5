//! Quota groups as programs see them.
//!
//! What it does not know: items but the status, and how numbers come about.

use btrfs_disk::items::{QGROUP_LEVEL_SHIFT, QgroupStatus, qgroup_limit, qgroup_status};
use btrfs_disk::key::kind;
use btrfs_disk::{Corrupt, FixedSize, Key, TreeId};
use btrfs_txn::View;
use std::fmt::{self, Display};
use std::str::FromStr;

/// A group's level and its number in it: `1/100`. That of a subvolume is of level 0 and has its number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct QgroupId(pub u64);

impl QgroupId {
    /// `None`: the number does not fit.
    pub fn new(level: u16, number: u64) -> Option<QgroupId> {
        (number >> QGROUP_LEVEL_SHIFT == 0)
            .then_some(QgroupId(u64::from(level) << QGROUP_LEVEL_SHIFT | number))
    }

    /// Groups of level 0 are those of subvolumes.
    pub fn level(self) -> u64 {
        self.0 >> QGROUP_LEVEL_SHIFT
    }

    /// The number in its level.
    pub fn number(self) -> u64 {
        self.0 & ((1 << QGROUP_LEVEL_SHIFT) - 1)
    }
}

impl Display for QgroupId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{}/{}", self.level(), self.number()))
    }
}

/// It is no `LEVEL/NUMBER`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NoQgroupId;

impl FromStr for QgroupId {
    type Err = NoQgroupId;

    fn from_str(text: &str) -> Result<QgroupId, NoQgroupId> {
        let plain = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
        let (level, number) = text.split_once('/').ok_or(NoQgroupId)?;
        if !plain(level) || !plain(number) {
            return Err(NoQgroupId);
        }
        let level = level.parse().map_err(|_| NoQgroupId)?;
        QgroupId::new(level, number.parse().map_err(|_| NoQgroupId)?).ok_or(NoQgroupId)
    }
}

/// One group.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Qgroup {
    /// Level and number.
    pub id: QgroupId,
    /// Bytes that its subvolumes reach, as of the last commit; those that they own, where quotas are simple.
    pub referenced: u64,
    /// Those of them that no other subvolume reaches; the same number, where quotas are simple.
    pub exclusive: u64,
    /// What it may reference at most, if that is limited.
    pub max_referenced: Option<u64>,
    /// What it may have for itself.
    pub max_exclusive: Option<u64>,
    /// Groups that it is a member of, ascending.
    pub parents: Vec<QgroupId>,
}

/// What becomes of the limits of a group.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct LimitChange {
    /// `Some(None)` takes the limit away.
    pub referenced: Option<Option<u64>>,
    /// The same of what the group has for itself.
    pub exclusive: Option<Option<u64>>,
}

impl LimitChange {
    /// Flags and numbers, as the kernel's call has them.
    pub(crate) fn of_call(flags: u64, referenced: u64, exclusive: u64) -> LimitChange {
        let one =
            |flag, value: u64| (flags & flag != 0).then_some((value != u64::MAX).then_some(value));
        LimitChange {
            referenced: one(qgroup_limit::MAX_REFERENCED, referenced),
            exclusive: one(qgroup_limit::MAX_EXCLUSIVE, exclusive),
        }
    }

    /// See [`LimitChange::of_call`].
    pub(crate) fn as_call(&self) -> (u64, u64, u64) {
        let flag = |flag, change: Option<Option<u64>>| if change.is_some() { flag } else { 0 };
        let value = |change: Option<Option<u64>>| change.flatten().unwrap_or(u64::MAX);
        let flags = flag(qgroup_limit::MAX_REFERENCED, self.referenced)
            | flag(qgroup_limit::MAX_EXCLUSIVE, self.exclusive);
        (flags, value(self.referenced), value(self.exclusive))
    }
}

/// What the status says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QuotaStatus {
    /// A rescan is under way: what lies at this address and behind is not counted yet.
    pub rescan: Option<u64>,
    /// The numbers are not to be trusted before a rescan.
    pub inconsistent: bool,
    /// Simple quotas: an extent counts for the subvolume that wrote it first, as long as anybody has it.
    pub simple: bool,
}

impl QuotaStatus {
    /// Where it is in the quota tree.
    pub(crate) const KEY: Key = Key::new(0, kind::QGROUP_STATUS, 0);

    /// As a view has it; `None`: there are no quotas.
    pub(crate) fn of(view: &View<'_>) -> btrfs_disk::Result<Option<QuotaStatus>> {
        let Some(data) = view.get(TreeId::QUOTA, &QuotaStatus::KEY)? else { return Ok(None) };
        Ok(QuotaStatus::of_item(&data)?)
    }

    /// What the item says; `None`: there are no quotas. Simple ones are never counted anew, whatever stands there.
    fn of_item(data: &[u8]) -> Result<Option<QuotaStatus>, Corrupt> {
        let item = QgroupStatus::read(data).map_err(|corrupt| corrupt.key(QuotaStatus::KEY))?;
        let has = |flag| item.flags & flag != 0;
        let simple = has(qgroup_status::SIMPLE);
        Ok(has(qgroup_status::ON).then(|| QuotaStatus {
            rescan: (has(qgroup_status::RESCAN) && !simple).then_some(item.rescan),
            inconsistent: has(qgroup_status::INCONSISTENT),
            simple,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_there_and_back() {
        let id: QgroupId = "1/100".parse().unwrap();
        assert_eq!((id.level(), id.number(), id.0), (1, 100, 1 << 48 | 100));
        assert_eq!(id.to_string(), "1/100");
        assert_eq!("0/5".parse(), Ok(QgroupId(5)));
        for wrong in ["", "5", "/5", "1/", "1/+5", "65536/1", "1/281474976710656", "1/2/3", "a/b"] {
            assert_eq!(wrong.parse::<QgroupId>(), Err(NoQgroupId), "{wrong}");
        }
        for change in [
            LimitChange::default(),
            LimitChange { referenced: Some(None), exclusive: Some(Some(7)) },
        ] {
            let (flags, referenced, exclusive) = change.as_call();
            assert_eq!(LimitChange::of_call(flags, referenced, exclusive), change);
        }
    }
}
