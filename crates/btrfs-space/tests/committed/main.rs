//! What commits make of space: chunks, references, quotas, subvolumes that are dropped, groups of several profiles.

#[path = "../common/mod.rs"]
mod common;

mod chunks;
mod commits;
mod dropped_trees;
mod group_tree;
mod moves;
mod moves_half_dropped;
mod profiles;
mod quotas;
