//! Files and directories: what operations on them mean, and what they leave on the volume.

#[path = "../common/mod.rs"]
mod common;

mod appended;
mod copies_end;
mod dir_names;
mod erased_behind;
mod erasing;
mod fallocated;
mod grows;
mod holes;
mod in_place;
mod inodes;
mod limits;
mod listing;
mod long_items;
mod odd_bytes;
mod orphans;
mod reads;
mod sparse;
