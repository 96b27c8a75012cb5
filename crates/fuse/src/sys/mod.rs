//! The system calls that the standard library lacks, each behind a safe function.
//!
//! This and `uring` are the crate's only modules with `unsafe`.

mod cpu;
mod fd_passing;
mod loop_device;
mod mount;

pub(crate) use cpu::{
    block_signals, mark_io_flusher, may_leave_idle_class, pin_to, possible_cpus, set_idle_class,
    thread_id, unpin,
};
pub(crate) use fd_passing::{mark_inheritable, receive_fd};
pub use loop_device::LoopDevice;
pub(crate) use mount::{
    How, clone_fuse_connection, is_root, mount, unmount, user_and_group, wait_readable,
};
