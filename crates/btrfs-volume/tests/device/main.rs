//! What is read of devices and written to them: ahead, again, and no more.

#[path = "../common/mod.rs"]
mod common;

mod ahead;
mod block_device;
mod repair;
mod rewritten;
mod stop;
