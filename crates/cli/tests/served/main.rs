//! What programs meet on a mount: system calls, maps, control operations, and content that is on its way.

#[path = "../common/mod.rs"]
mod common;

mod appended;
mod beside_maps;
mod calls;
mod closes;
mod ioctls;
mod ioctls_waiting;
mod killed;
mod large_files;
mod long_paths;
mod pages;
mod rights;
mod snapshot_sources;
mod unsent;
mod verity;
