//! Items of the quota tree. A relation (QGROUP_RELATION) is its key alone, there twice:
//! group and parent, parent and group.

use crate::le::FixedSize;

/// Bits of [`QgroupStatus::flags`].
pub mod qgroup_status {
    /// Quotas are kept.
    pub const ON: u64 = 1 << 0;
    /// A rescan is under way: what lies at `rescan` and behind is not counted yet.
    pub const RESCAN: u64 = 1 << 1;
    /// The numbers are not to be trusted before a rescan is through.
    pub const INCONSISTENT: u64 = 1 << 2;
    /// Simple quotas: an extent counts for its first owner alone.
    pub const SIMPLE: u64 = 1 << 3;
    /// All of them.
    pub const KNOWN: u64 = ON | RESCAN | INCONSISTENT | SIMPLE;
}

/// Bits of [`QgroupLimit::flags`].
pub mod qgroup_limit {
    /// `max_referenced` is a limit.
    pub const MAX_REFERENCED: u64 = 1 << 0;
    /// `max_exclusive` is a limit.
    pub const MAX_EXCLUSIVE: u64 = 1 << 1;
}

/// A group's level stands in the highest 16 bits of its id.
pub const QGROUP_LEVEL_SHIFT: u32 = 48;

le_struct! {
    /// With simple quotas another number follows: [`simple_quotas_since`].
    pub struct QgroupStatus[32] {
        /// Of the quota tree's form: 1.
        version: u64,
        /// The last commit that kept account.
        generation: u64,
        /// Bits of [`qgroup_status`].
        flags: u64,
        /// Logical address that a rescan goes on from.
        rescan: u64,
    }
}

/// The generation that simple quotas began in, out of the data of a QGROUP_STATUS: what is older does not
/// count. `None`: quotas are not simple.
pub fn simple_quotas_since(status: &[u8]) -> Option<u64> {
    let (fixed, more) = status.split_at_checked(QgroupStatus::SIZE)?;
    let flags = QgroupStatus::read(fixed).ok()?.flags;
    let since = more.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
    (flags & qgroup_status::SIMPLE != 0).then_some(since)
}

le_struct! {
    /// Bytes of a quota group: of content and nodes, as they take room on disk.
    pub struct QgroupInfo[40] {
        /// The commit that last changed it.
        generation: u64,
        /// Bytes that the group's subvolumes reach.
        referenced: u64,
        /// As `referenced`: nobody counts it apart.
        referenced_compressed: u64,
        /// Bytes that no subvolume outside the group reaches.
        exclusive: u64,
        /// As `exclusive`: nobody counts it apart.
        exclusive_compressed: u64,
    }
}

le_struct! {
    /// Bytes that a quota group may have.
    pub struct QgroupLimit[40] {
        /// Bits of [`qgroup_limit`]: which members are limits.
        flags: u64,
        /// Most bytes of [`QgroupInfo::referenced`].
        max_referenced: u64,
        /// Most bytes of [`QgroupInfo::exclusive`].
        max_exclusive: u64,
        /// Nobody goes by it.
        reserved_referenced: u64,
        /// Nobody goes by it.
        reserved_exclusive: u64,
    }
}
