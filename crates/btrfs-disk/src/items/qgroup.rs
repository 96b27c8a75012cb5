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
    pub struct QgroupStatus[32] { version: u64, generation: u64, flags: u64, rescan: u64 }
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
    pub struct QgroupInfo[40] {
        generation: u64,
        referenced: u64,
        referenced_compressed: u64,
        exclusive: u64,
        exclusive_compressed: u64,
    }
}

le_struct! {
    pub struct QgroupLimit[40] {
        flags: u64,
        max_referenced: u64,
        max_exclusive: u64,
        reserved_referenced: u64,
        reserved_exclusive: u64,
    }
}
