//! A read-only check of a whole btrfs volume: what `btrfs check` (and, with
//! `verify_data`, `btrfs scrub`) would say, as typed findings.
//!
//! The trees are walked once; everything that one structure says of another (extents
//! and references, free space, block groups, checksums, link counts, sizes, names) is
//! computed anew from its source and compared, in both directions.
//!
//! Invariants: nothing is ever written; damage is a [`Finding`] and never an error or
//! a panic (errors are left for a device that cannot be read at all); a sound volume
//! has no findings; memory grows with the number of extents and links and is bounded
//! by what the volume really holds, however many subvolumes share it; only who asks for the sharing of one
//! ([`CheckOptions::sharing_of`]) is given each of its extents with all who share that.
//!
//! What it does not know: how to repair, and volumes of several devices.
#![cfg_attr(not(test), deny(unreachable_pub))]
#![deny(missing_docs)]
#![forbid(unsafe_code)]

mod chunks;
mod compare;
mod content;
mod csums;
mod data;
mod driver;
mod extents;
mod finding;
mod free_space;
mod inodes;
mod items;
mod kind;
mod log;
mod options;
mod qgroup_items;
mod qgroups;
mod reach;
mod refs;
mod roots;
mod source;
mod supers;
mod uuids;
mod verity;
mod walk;

pub use driver::check;
pub use finding::{Finding, QuotaBytes, QuotaCount, QuotaReport, Report, Sharing, Totals};
pub use kind::{FindingKind, Group, Name, Owner, Severity};
pub use options::{CheckOptions, Phase, Progress};
