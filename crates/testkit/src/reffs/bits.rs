//! The bits of `FS_IOC_GETFLAGS`.

pub(super) const COMPR: u32 = 0x0000_0004;
pub(super) const SYNC: u32 = 0x0000_0008;
pub(super) const IMMUTABLE: u32 = 0x0000_0010;
pub(super) const APPEND: u32 = 0x0000_0020;
pub(super) const NODUMP: u32 = 0x0000_0040;
pub(super) const NOATIME: u32 = 0x0000_0080;
pub(super) const NOCOMP: u32 = 0x0000_0400;
pub(super) const DIRSYNC: u32 = 0x0001_0000;
pub(super) const NOCOW: u32 = 0x0080_0000;

/// `STATX_ATTR_*` bits that follow from the flags.
pub(super) fn statx_attributes(flags: u32) -> u64 {
    // COMPRESSED, IMMUTABLE, APPEND and NODUMP have the same values in both worlds.
    u64::from(flags & (COMPR | IMMUTABLE | APPEND | NODUMP))
}
