//! Devices that refuse: reads, writes, flushes and discards that fail, and who is told.

#[path = "../common/mod.rs"]
mod common;
#[path = "../harness/mod.rs"]
mod harness;

mod errors;
mod failed_flush;
mod faults;
mod faults_full;
mod owned_refused;
mod refused;
mod trim;
