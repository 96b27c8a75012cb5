//! The system calls that the standard library lacks, each behind a safe function. All
//! `unsafe` of this program is below here.

#[cfg(feature = "fault-injection")]
mod attempt;
mod beneath;
mod confine;
mod control;
mod files;
mod memory;
mod names;
mod process;
mod time;

#[cfg(feature = "fault-injection")]
pub use attempt::attempt;
pub use beneath::{
    DirFd, change_root, copy_range, fallocate, inode_flags, open_beneath, open_of_kind,
    set_file_times, set_inode_flags, set_xattr_of, stat, xattr_of,
};
pub use confine::{CAP_SYS_RESOURCE, keep_capabilities, name_thread};
pub(crate) use control::measure_verity;
pub use control::{control, is_kernels_btrfs, is_read_only, sync_file_system};
pub use files::{
    Umount, bind, get_xattr, mount_apart, place_mount, remount, set_xattr, top_of_fuse, umount,
};
pub use memory::{
    Resident, give_back_buffer, give_back_memory, keep_freed_memory, leave_memory_to_others,
    usual_budget,
};
pub use names::{group_id, group_name, user_id_and_group, user_name};
pub use process::{
    ENDING, Fork, allow_descriptors, block_signals, close_others, ended, fork, fork_apart,
    has_hung_up, has_user, ignore_stops, is_alive, is_root, kill, new_session, null_stdio,
    outlive_file_limit, peer, shut_down, signal_within, state, umask, user_and_group,
    wait_for_change, wait_for_signal, wait_readable, wake,
};
#[cfg(feature = "fault-injection")]
pub use process::{kill_myself, stop_myself};
pub use time::{CivilTime, from_local, of_kernel, to_local};
