//! tar archives out of a volume and into it, in the format of POSIX (pax) as GNU tar writes it.
//!
//! The crate `tar` knows the fields of headers. What stands between headers is here: its own
//! reader cuts extended attributes at line feeds and knows no sparse files in pax.

mod acl;
mod pax;
mod read;
mod unpack;
mod write;

pub use unpack::Unpacker;
pub use write::Packer;

/// A longer name is refused where it is unpacked. What the kernel takes at once ends at 4 KiB, but trees are deeper, and
/// our own archives of them are to come back.
const LONGEST_NAME: usize = 64 << 10;
/// Linux has no longer attributes.
const LONGEST_XATTR: usize = 64 << 10;
/// What archives are made of.
const BLOCK: u64 = 512;

fn padding(len: u64) -> u64 {
    len.next_multiple_of(BLOCK) - len
}
