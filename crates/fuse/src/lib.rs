//! The FUSE server: requests of the Linux kernel become calls of `vfs::FileSystem`.
//!
//! Two transports, io_uring and `/dev/fuse`, stand under one dispatcher. Knows no
//! on-disk format and no command line; `session` is the way in.
//!
//! A process must not map files of a mount that it serves itself: munmap(2) waits for
//! writeback with the lock of the address space held, and the server's threads need that
//! lock when they touch new memory. Nothing but unmounting with force ends that.
//!
//! Nothing here changes what is the machine's: no parameter of a module or a device, nothing
//! that other mounts or programs notice.
#![deny(unsafe_code)]
#![cfg_attr(not(test), deny(unreachable_pub))]
#![deny(missing_docs)]

mod abi;
mod callers;
mod classic;
mod config;
mod device;
mod dispatch;
mod gather;
mod mount;
mod mount_table;
mod nodeid;
mod notify;
mod owners;
mod polling;
mod session;
#[allow(unsafe_code)]
mod sys;
mod tidying;
#[allow(unsafe_code)]
mod uring;

pub use callers::{Call, Callers, Credentials, Proc};
pub use config::{Config, Controls, Source, Transport};
pub use notify::Notifier;
pub use owners::{Map, Owners};
pub use session::{Session, Unmounter};
pub use sys::LoopDevice;
pub use tidying::{Tidy, Tidying};
