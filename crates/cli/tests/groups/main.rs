//! The groups of commands that btrfs-progs have, under our name and under `btrfs`.

#[path = "../common/mod.rs"]
mod common;

mod balance;
mod balance_filters;
mod checks;
mod compress;
mod defragment;
mod device_stats;
mod dumps;
mod face;
mod filesystem;
mod inspect;
mod newer;
mod quota;
mod scrub;
mod subvolume;
mod tools;
mod tree_stats;
