//! Damaged and contradictory volumes: what is lost is told by name, and nothing else is.

#[path = "../common/mod.rs"]
mod common;
#[path = "../lost/mod.rs"]
mod lost;
#[path = "../watch/mod.rs"]
mod watch;

mod copies;
mod gate;
mod hostile_quotas;
mod layout;
mod lost_cached;
mod lost_extents;
mod lost_leaves;
mod lost_quotas;
mod node_lost;
mod numbers;
mod rescue;
mod superblocks;
mod uuid_tree;
mod younger;
