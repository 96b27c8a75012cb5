//! Quota groups, kept right in every commit out of what the commit changed.
//!
//! The rule. A subvolume has a group of level 0 with its own id; a group may be a member of
//! groups of higher levels. An extent, data or tree block, with the length that it takes on the
//! volume, is *referenced* by a group if a subvolume of the group reaches it, and *exclusive* to it if no
//! subvolume outside of the group does. So what a commit changes of the numbers is a sum over the
//! extents that other subvolumes reach after it than before: that of `docs/ARCHITECTURE.md`,
//! "Quotas", which says why those are all among what [`crate::RefDeltas`] remembers.
//!
//! Simple quotas, where an extent counts for its first owner alone, are another function of the same commit:
//! [`simple`].
//!
//! Invariants: the numbers and the status are of the same commit as what they count. Where they
//! cannot be right (items that disagree), the status says INCONSISTENT, as the kernel's does, and
//! nothing else of the commit suffers.
//!
//! A module of this crate and not one of its own: it stands between the last edit and the drain
//! of a commit, and needs both states of every tree and reference there.
//!
//! What it does not know: limits and who is refused, who asks for a rescan.

mod account;
mod below;
mod groups;
mod regroup;
mod rescan;
mod settle;
mod simple;
mod states;

pub(crate) use below::MOST_BELOW;
pub(crate) use settle::QuotaCommit;
