//! Items that are plain numbers: quota groups, the balance state, device statistics.

use super::ensure;
use super::item::{Item, Verdict, sized};
use crate::ids::{BALANCE_OBJECTID, DEV_STATS_OBJECTID};
use crate::key::kind;

/// Status: version, generation, flags, progress, and since simple quotas the enabling
/// generation. Info and limit: five numbers. A relation is its key.
pub(super) fn qgroup(item: &Item<'_>) -> Verdict {
    match item.key.kind {
        kind::QGROUP_STATUS => {
            let len = item.data.len();
            ensure!(len == 32 || len == 40, "quota status of {len} bytes");
            let version = u64::from_le_bytes(item.data[..8].try_into().expect("sized"));
            ensure!(version == 1, "quota status of version {version}");
            Ok(())
        }
        kind::QGROUP_RELATION => sized(item, 0),
        _ => sized(item, 40),
    }
}

/// The state of a balance: flags, three filters of 136 bytes, 32 spare.
pub(super) fn temporary(item: &Item<'_>) -> Verdict {
    match item.key.objectid {
        BALANCE_OBJECTID => sized(item, 448),
        _ => Ok(()),
    }
}

/// A device's counters; newer kernels may append some.
pub(super) fn persistent(item: &Item<'_>) -> Verdict {
    let len = item.data.len();
    ensure!(
        item.key.objectid != DEV_STATS_OBJECTID || (len > 0 && len.is_multiple_of(8)),
        "{len} bytes of device counters"
    );
    Ok(())
}
