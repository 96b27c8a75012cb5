//! Which subvolume another is best sent as a difference from, where nobody says it.

use crate::source::Subvolume;

/// Of those that the receiver has the one that `subvolume` was made from, or another snapshot of
/// the same one; of several the nearest in time. `None`: they are not related.
pub(crate) fn good_parent<'s>(
    subvolume: &Subvolume,
    has: &'s [Subvolume],
) -> Option<&'s Subvolume> {
    let above = subvolume.item.parent_uuid;
    if above == [0; 16] {
        return None;
    }
    if let Some(itself) = has.iter().find(|other| other.item.uuid == above) {
        return Some(itself);
    }
    let siblings = has.iter().filter(|other| other.item.parent_uuid == above);
    siblings.min_by_key(|other| other.item.ctransid.abs_diff(subvolume.item.ctransid))
}
