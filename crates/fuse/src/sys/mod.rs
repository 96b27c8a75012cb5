//! The system calls that the standard library lacks, each behind a safe function.
//!
//! This and `uring` are the crate's only modules with `unsafe`.

mod cpu;
mod fd_passing;
mod loop_device;
mod mount;
mod opened;

pub(crate) use cpu::{
    block_signals, lowest_priority, mark_io_flusher, page_size, pin_to, possible_cpus, this_cpu,
    unpin, usable_cpus,
};
pub(crate) use fd_passing::{mark_inheritable, receive_fd};
pub use loop_device::LoopDevice;
pub(crate) use mount::{
    How, clone_fuse_connection, control_files, is_root, mount, unmount, user_and_group,
    wait_readable,
};
pub(crate) use opened::{Opened, opened};
