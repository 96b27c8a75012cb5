//! The system calls that the standard library lacks, each behind a safe function. All
//! `unsafe` of this program is below here.

mod files;
mod memory;
mod names;
mod process;
mod time;

pub use files::{get_xattr, set_times, umount};
pub use memory::{give_back_memory, keep_freed_memory};
pub use names::{group_id, group_name, user_id_and_group, user_name};
pub use process::{
    Fork, block_signals, close_others, favour_session, fork, is_root, new_session, null_stdio,
    umask, user_and_group, wait_for, wait_for_signal,
};
pub use time::{CivilTime, from_local, to_local};
