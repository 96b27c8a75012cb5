//! What `statx` tells of a file beside its mode: the `STATX_ATTR_*` bits that an engine here can
//! report, with Linux's numbers on all systems.

/// `STATX_ATTR_COMPRESSED`: new content is compressed.
pub const COMPRESSED: u64 = 0x4;
/// `STATX_ATTR_IMMUTABLE`: nothing of it may change.
pub const IMMUTABLE: u64 = 0x10;
/// `STATX_ATTR_APPEND`: content may only grow at the end.
pub const APPEND: u64 = 0x20;
/// `STATX_ATTR_NODUMP`: backups leave it out.
pub const NODUMP: u64 = 0x40;
/// `STATX_ATTR_VERITY`: content is verified as it is read, and stays as it is.
pub const VERITY: u64 = 0x10_0000;

/// All of them: what is not set of these is known not to be.
pub const ALL: u64 = COMPRESSED | IMMUTABLE | APPEND | NODUMP | VERITY;
