//! CHUNK_ITEM, DEV_ITEM, DEV_EXTENT and BLOCK_GROUP_ITEM: where logical bytes lie.

use crate::error::Corrupt;
use crate::le::FixedSize;

le_struct! {
    /// A device of the volume.
    pub struct DevItem[98] {
        /// Its number, from 1 on; also its key's offset.
        devid: u64,
        /// Bytes of the device that the volume may use.
        total_bytes: u64,
        /// Bytes of the device that chunks occupy.
        bytes_used: u64,
        /// What its I/O is to be aligned to, in bytes; the sector size.
        io_align: u32,
        /// What its I/O is to be a multiple of, in bytes; the sector size.
        io_width: u32,
        /// Bytes of a sector, as in the superblock.
        sector_size: u32,
        /// Nobody's yet: 0.
        kind: u64,
        /// The commit that added it to a volume in use; 0 for what mkfs made.
        generation: u64,
        /// Nobody's yet: 0.
        start_offset: u64,
        /// Nobody's yet: 0.
        dev_group: u32,
        /// Nobody's yet: 0.
        seek_speed: u8,
        /// Nobody's yet: 0.
        bandwidth: u8,
        /// The device's own UUID.
        uuid: [u8; 16],
        /// The UUID that node headers carry.
        fsid: [u8; 16],
    }
}

le_struct! {
    /// Where one stripe of a chunk lies.
    pub struct Stripe[32] {
        /// The device that has it.
        devid: u64,
        /// Where on the device it begins, in bytes.
        offset: u64,
        /// UUID of the device.
        dev_uuid: [u8; 16],
    }
}

le_struct! {
    /// A chunk without its stripes; its key's offset is its logical start.
    pub struct ChunkFields[48] {
        /// Bytes of the logical space.
        length: u64,
        /// Always the extent tree (2).
        owner: u64,
        /// Bytes on one device before it is the next one's turn:
        /// [`STRIPE_LEN`](crate::ids::STRIPE_LEN).
        stripe_len: u64,
        /// `block_group` flags.
        kind: u64,
        /// What I/O is to be aligned to, in bytes; `stripe_len`, or the sector size in mkfs' first
        /// chunk.
        io_align: u32,
        /// What I/O is to be a multiple of, in bytes; as `io_align`.
        io_width: u32,
        /// Bytes of a sector, as in the superblock.
        sector_size: u32,
        /// Stripes that follow.
        num_stripes: u16,
        /// How many copies RAID10 has of each stripe: 2; other profiles have 0 or 1 here.
        sub_stripes: u16,
    }
}

/// A CHUNK_ITEM: a range of the logical space, and where it lies.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Chunk {
    /// What it has in front of its stripes; `num_stripes` is their number.
    pub fields: ChunkFields,
    /// Where its copies or parts lie; of DUP two on one device.
    pub stripes: Vec<Stripe>,
}

impl Chunk {
    /// Reads one chunk from the front of `data`; the caller knows whether more may follow.
    pub fn parse(data: &[u8]) -> Result<Chunk, Corrupt> {
        let fields = ChunkFields::read(data)?;
        if fields.num_stripes == 0 {
            return Err(Corrupt::new("chunk without stripes"));
        }
        let mut stripes = Vec::new();
        for i in 0..usize::from(fields.num_stripes) {
            let at = ChunkFields::SIZE + i * Stripe::SIZE;
            stripes.push(Stripe::read(data.get(at..).unwrap_or(&[]))?);
        }
        Ok(Chunk { fields, stripes })
    }

    /// Bytes of the item.
    pub fn size(&self) -> usize {
        ChunkFields::SIZE + self.stripes.len() * Stripe::SIZE
    }

    /// The data of its item.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut out = self.fields.to_vec();
        for stripe in &self.stripes {
            out.extend_from_slice(&stripe.to_vec());
        }
        out
    }
}

le_struct! {
    /// The part of a device that a chunk takes; its key has the device and where on it.
    pub struct DevExtent[48] {
        /// Always the chunk tree (3).
        chunk_tree: u64,
        /// Object id of the CHUNK_ITEM: 256.
        chunk_objectid: u64,
        /// Logical start of the chunk.
        chunk_offset: u64,
        /// Bytes of the device.
        length: u64,
        /// As in node headers.
        chunk_tree_uuid: [u8; 16],
    }
}

le_struct! {
    /// How far the replacement of a device is, under the key (0, DEV_REPLACE, 0) of the device tree. One of another
    /// size counts as none.
    pub struct DevReplace[72] {
        /// The device that is replaced.
        source: u64,
        /// Up to where on it both devices have the same.
        cursor_left: u64,
        /// Up to where it is being copied.
        cursor_right: u64,
        /// Whether the source is read only where nothing else has the content.
        read_mode: u64,
        /// One of [`dev_replace`].
        state: u64,
        /// Seconds since 1970 at which it was begun.
        started: u64,
        /// Seconds since 1970 at which it ended or was interrupted.
        stopped: u64,
        /// Writes to the new device that failed.
        write_errors: u64,
        /// Content that no copy had.
        read_errors: u64,
    }
}

/// States of the replacement of a device.
pub mod dev_replace {
    /// It is at work, or a crash cut it.
    pub const STARTED: u64 = 1;
    /// Interrupted by the end of a mount: the next one goes on with it.
    pub const SUSPENDED: u64 = 4;
}

le_struct! {
    /// A block group; its key has its logical start and its length.
    pub struct BlockGroupItem[24] {
        /// Bytes that trees refer to; copies are not counted.
        used: u64,
        /// Object id of its CHUNK_ITEM: 256.
        chunk_objectid: u64,
        /// `block_group` bits: the type and the profile of its chunk.
        flags: u64,
    }
}
