//! Which chunks a balance moves: the filters, as the kernel reads them.
//!
//! What it does not know: what becomes of a chunk that is chosen, and how many were.

use btrfs_disk::ids::block_group::{DATA, DUP, METADATA, PROFILE_MASK, SYSTEM};
use btrfs_disk::items::{BalanceFilter, BalanceItem, balance_filter as f, balance_flags};
use btrfs_volume::ChunkInfo;

/// One copy has a bit of its own here.
fn extended(flags: u64) -> u64 {
    match flags & PROFILE_MASK {
        0 => f::SINGLE,
        profile => profile,
    }
}

/// The profile bits of a block group that `target` means; `None`: not one that we make.
pub(super) fn target(target: u64) -> Option<u64> {
    match target {
        f::SINGLE => Some(0),
        DUP => Some(DUP),
        _ => None,
    }
}

/// The filter for chunks of these flags, if the balance is about them.
pub(super) fn filter_of(item: &BalanceItem, flags: u64) -> Option<&BalanceFilter> {
    if item.flags & balance_flags::TYPES & flags == 0 {
        return None;
    }
    Some(match () {
        () if flags & DATA != 0 => &item.data,
        () if flags & SYSTEM != 0 => &item.system,
        () => &item.metadata,
    })
}

/// Whether all filters but the limits let a chunk through of which `used` bytes are in use.
pub(super) fn chooses(filter: &BalanceFilter, chunk: &ChunkInfo, used: u64) -> bool {
    let soft = filter.has(f::CONVERT) && filter.has(f::SOFT);
    in_profiles(filter, chunk)
        && in_usage(filter, chunk.len, used)
        && in_ranges(filter, chunk)
        && !(soft && filter.target == extended(chunk.flags))
}

/// Whether it converts what it lets through, and lets that through still when more has gone there.
pub(super) fn converts_all(filter: &BalanceFilter) -> bool {
    filter.has(f::CONVERT) && !filter.has(f::USAGE) && !filter.has(f::USAGE_RANGE)
}

fn in_profiles(filter: &BalanceFilter, chunk: &ChunkInfo) -> bool {
    !filter.has(f::PROFILES) || filter.profiles & extended(chunk.flags) != 0
}

fn in_usage(filter: &BalanceFilter, len: u64, used: u64) -> bool {
    let part = |percent: u64| (u128::from(len) * u128::from(percent) / 100) as u64;
    let below = |percent: u64| match percent {
        0 => used < 1,
        101.. => used < len,
        percent => used < part(percent),
    };
    let (low, high) = halves(filter.usage);
    (!filter.has(f::USAGE) || below(filter.usage))
        && (!filter.has(f::USAGE_RANGE) || (used >= part(low) && below(high)))
}

fn in_ranges(filter: &BalanceFilter, chunk: &ChunkInfo) -> bool {
    let on = |devid: u64| !filter.has(f::DEVID) || devid == filter.devid;
    let (first, end) = (chunk.logical.0, chunk.end());
    let in_vrange = !filter.has(f::VRANGE) || (first < filter.vend && end > filter.vstart);
    let in_drange =
        |at: u64| !filter.has(f::DRANGE) || (at < filter.pend && at + chunk.len > filter.pstart);
    let stripes = chunk.stripes.len() as u64;
    let (least, most) = (u64::from(filter.stripes_min), u64::from(filter.stripes_max));
    let in_stripes = !filter.has(f::STRIPES_RANGE) || (least..=most).contains(&stripes);
    in_vrange && in_stripes && chunk.stripes.iter().any(|(id, at)| on(*id) && in_drange(at.0))
}

/// The lower and the higher half: from, to.
fn halves(number: u64) -> (u64, u64) {
    (number & u64::from(u32::MAX), number >> 32)
}

/// How many chunks a filter lets through at least and at most.
pub(super) fn limits(filter: &BalanceFilter) -> (u64, u64) {
    match () {
        () if filter.has(f::LIMIT) => (0, filter.limit),
        () if filter.has(f::LIMIT_RANGE) => halves(filter.limit),
        () => (0, u64::MAX),
    }
}

/// Whether a balance can be begun. Fewer copies of nodes are for who insists. Where data and metadata share
/// their block groups (`mixed`) both are meant, with the same filters, or neither.
pub(super) fn is_sound(item: &BalanceItem, mixed: bool, now: impl Fn(u64) -> u64) -> bool {
    if item.unknown().is_some() || item.flags & balance_flags::TYPES == 0 {
        return false;
    }
    let of_both = item.flags & (DATA | METADATA);
    let alike = of_both == DATA | METADATA && item.data == item.metadata;
    if mixed && of_both != 0 && !alike {
        return false;
    }
    item.filters().into_iter().filter(|(kind, _)| item.flags & kind != 0).all(|(kind, filter)| {
        if filter.has(f::DRANGE) && !filter.has(f::DEVID) {
            return false;
        }
        if !filter.has(f::CONVERT) {
            return true;
        }
        let fewer = filter.target == f::SINGLE && now(kind) & DUP != 0;
        let insists = item.flags & balance_flags::FORCE != 0;
        let safe = insists || !fewer || kind & (METADATA | SYSTEM) == 0;
        target(filter.target).is_some() && safe
    })
}

/// Whether we can convert to what it converts to: the kernel makes profiles that we do not.
pub(super) fn can_be_made(item: &BalanceItem) -> bool {
    let wanted = item.filters().into_iter().filter(|(kind, _)| item.flags & kind != 0);
    let mut converts = wanted.filter(|(_, filter)| filter.has(f::CONVERT));
    converts.all(|(_, filter)| target(filter.target).is_some())
}

/// The same without filters of types that it is not about: the kernel, which may have to go on with it,
/// looks at them.
pub(super) fn cleared(item: &BalanceItem) -> BalanceItem {
    let (mut item, flags) = (*item, item.flags);
    for (kind, filter) in item.filters_mut() {
        if flags & kind == 0 {
            *filter = BalanceFilter::default();
        }
    }
    item
}

/// What goes on after an interruption: what was converted is not again, and what is nearly full was
/// moved before.
pub(super) fn resumed(item: &BalanceItem) -> BalanceItem {
    let mut item = *item;
    item.flags |= balance_flags::RESUME;
    for (_, filter) in item.filters_mut() {
        if filter.has(f::CONVERT) {
            filter.flags |= f::SOFT;
        }
        if !filter.has(f::USAGE) && !filter.has(f::USAGE_RANGE) && !filter.has(f::CONVERT) {
            filter.flags |= f::USAGE;
            filter.usage = 90;
        }
    }
    item
}
