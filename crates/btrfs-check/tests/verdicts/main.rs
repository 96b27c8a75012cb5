//! Verdicts on volumes, sound and not.

#[path = "../common/mod.rs"]
mod common;

mod claims;
mod hostile;
mod inode_cache;
mod interrupted;
mod named_again;
mod notes;
mod quota_tree;
mod sound;
