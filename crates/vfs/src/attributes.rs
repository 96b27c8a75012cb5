//! What `statx` tells of a file beside its mode: the `STATX_ATTR_*` bits that an engine here can
//! report, with Linux's numbers on all systems.

pub const COMPRESSED: u64 = 0x4;
pub const IMMUTABLE: u64 = 0x10;
pub const APPEND: u64 = 0x20;
pub const NODUMP: u64 = 0x40;

/// All of them: what is not set of these is known not to be.
pub const ALL: u64 = COMPRESSED | IMMUTABLE | APPEND | NODUMP;
