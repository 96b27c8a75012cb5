//! fsync and the log: what is synced is there after a crash, as the kernel reads it, and as we do.

#[path = "../common/mod.rs"]
mod common;
#[path = "../harness/mod.rs"]
mod harness;
#[path = "../logs/mod.rs"]
mod logs;

mod fsync;
mod log;
mod replay;
