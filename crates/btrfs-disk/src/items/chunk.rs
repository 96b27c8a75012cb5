//! CHUNK_ITEM, DEV_ITEM, DEV_EXTENT and BLOCK_GROUP_ITEM: where logical bytes lie.

use crate::error::Corrupt;
use crate::le::FixedSize;

le_struct! {
    pub struct DevItem[98] {
        devid: u64,
        total_bytes: u64,
        /// Bytes of the device that chunks occupy.
        bytes_used: u64,
        io_align: u32,
        io_width: u32,
        sector_size: u32,
        kind: u64,
        generation: u64,
        start_offset: u64,
        dev_group: u32,
        seek_speed: u8,
        bandwidth: u8,
        uuid: [u8; 16],
        fsid: [u8; 16],
    }
}

le_struct! {
    pub struct Stripe[32] { devid: u64, offset: u64, dev_uuid: [u8; 16] }
}

le_struct! {
    /// A chunk without its stripes; its key's offset is its logical start.
    pub struct ChunkFields[48] {
        length: u64,
        /// Always the extent tree (2).
        owner: u64,
        stripe_len: u64,
        /// `block_group` flags.
        kind: u64,
        io_align: u32,
        io_width: u32,
        sector_size: u32,
        num_stripes: u16,
        sub_stripes: u16,
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Chunk {
    pub fields: ChunkFields,
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

    pub fn to_vec(&self) -> Vec<u8> {
        let mut out = self.fields.to_vec();
        for stripe in &self.stripes {
            out.extend_from_slice(&stripe.to_vec());
        }
        out
    }
}

le_struct! {
    pub struct DevExtent[48] {
        chunk_tree: u64,
        chunk_objectid: u64,
        chunk_offset: u64,
        length: u64,
        chunk_tree_uuid: [u8; 16],
    }
}

le_struct! {
    pub struct BlockGroupItem[24] { used: u64, chunk_objectid: u64, flags: u64 }
}
