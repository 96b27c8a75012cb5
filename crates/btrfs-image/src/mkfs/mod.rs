//! A fresh volume, equal in structure to what `mkfs.btrfs` makes.
//!
//! The whole volume is planned first, as plain values: where chunks lie, which items
//! each tree has, which nodes they make. Then it is written: nodes, flush, superblocks,
//! flush. Nothing is read back; the old contents only matter for being wiped.
//!
//! Invariant: the same options (with `seed` and `time` set) on a device of the same
//! length make the same bytes wherever this code writes.

mod error;
mod ids;
mod layout;
mod options;
mod pack;
mod trees;
mod write;

pub use error::{MkfsError, Result};
pub use options::{Features, MkfsOptions, Profile, Quotas};

use blockdev::BlockDevice;
use ids::Identities;
use layout::Layout;
use options::Settled;

/// What was made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MkfsReport {
    /// The volume's.
    pub uuid: [u8; 16],
    /// Length of the volume in bytes: the device's, in whole sectors.
    pub total_bytes: u64,
    /// Logical bytes that the trees occupy.
    pub bytes_used: u64,
    /// Bytes of a node.
    pub node_size: u32,
    /// In the order of their addresses.
    pub chunks: Vec<ChunkReport>,
}

/// A chunk of the new volume.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ChunkReport {
    /// Where it begins, in bytes.
    pub logical: u64,
    /// Its bytes, once for all copies.
    pub len: u64,
    /// `btrfs_disk::ids::block_group` flags.
    pub flags: u64,
    /// How often the device has its content.
    pub copies: usize,
}

/// The fewest bytes that a volume with these options needs.
pub fn minimum_size(options: &MkfsOptions) -> Result<u64> {
    Ok(layout::minimum(&options.settle()?))
}

/// Makes a volume on `dev`. Whatever was there is lost.
pub fn make(dev: &dyn BlockDevice, options: &MkfsOptions) -> Result<MkfsReport> {
    let settled: Settled = options.settle()?;
    let layout = Layout::plan(&settled, dev.len())?;
    let ids = Identities::choose(options)?;
    let volume = trees::plan(&settled, &layout, &ids)?;
    write::all(dev, &settled, &layout, &ids, &volume)?;
    Ok(MkfsReport {
        uuid: ids.fsid,
        total_bytes: layout.total_bytes,
        bytes_used: volume.bytes_used(settled.node_size),
        node_size: settled.node_size,
        chunks: layout
            .chunks
            .iter()
            .map(|c| ChunkReport {
                logical: c.logical,
                len: c.len,
                flags: c.flags,
                copies: c.stripes.len(),
            })
            .collect(),
    })
}
