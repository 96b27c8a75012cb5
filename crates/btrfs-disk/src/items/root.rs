//! ROOT_ITEM, ROOT_REF and ROOT_BACKREF.

use super::inode::{InodeItem, Timespec};
use crate::error::Corrupt;
use crate::key::Key;
use crate::le::len16;
use crate::{Generation, Logical};

pub const ROOT_SUBVOL_RDONLY: u64 = 1 << 0;
/// The subvolume is deleted, its tree is being dropped.
pub const ROOT_SUBVOL_DEAD: u64 = 1 << 48;

le_struct! {
    /// Older kernels wrote only the first 239 bytes; the rest reads as zero then.
    pub struct RootItem[439] {
        inode: InodeItem,
        generation: Generation,
        root_dirid: u64,
        bytenr: Logical,
        byte_limit: u64,
        bytes_used: u64,
        last_snapshot: Generation,
        flags: u64,
        refs: u32,
        drop_progress: Key,
        drop_level: u8,
        level: u8,
        generation_v2: u64,
        uuid: [u8; 16],
        parent_uuid: [u8; 16],
        received_uuid: [u8; 16],
        ctransid: u64,
        otransid: u64,
        stransid: u64,
        rtransid: u64,
        ctime: Timespec,
        otime: Timespec,
        stime: Timespec,
        rtime: Timespec,
        reserved: [u8; 64],
    }
}

impl RootItem {
    pub const LEGACY_SIZE: usize = 239;

    /// Accepts the short form of old kernels.
    pub fn parse(data: &[u8]) -> Result<RootItem, Corrupt> {
        use crate::le::FixedSize;
        if data.len() < Self::LEGACY_SIZE {
            return Err(Corrupt::new("root item is cut short"));
        }
        let mut whole = [0; 439];
        let len = data.len().min(439);
        whole[..len].copy_from_slice(&data[..len]);
        let mut item = RootItem::read(&whole)?;
        // A kernel that does not know the newer members leaves generation_v2 behind.
        if item.generation_v2 != item.generation.0 {
            let legacy = [0; 200];
            whole[Self::LEGACY_SIZE..].copy_from_slice(&legacy);
            item = RootItem::read(&whole)?;
        }
        Ok(item)
    }
}

/// ROOT_REF (parent -> child) and ROOT_BACKREF (child -> parent) share one form.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RootRef<'a> {
    pub dirid: u64,
    pub sequence: u64,
    pub name: &'a [u8],
}

impl<'a> RootRef<'a> {
    /// Bytes of one less its name.
    pub const FIXED: usize = 18;

    pub fn parse(data: &'a [u8]) -> Result<RootRef<'a>, Corrupt> {
        let fixed = data.get(..Self::FIXED).ok_or_else(|| Corrupt::new("root ref is cut short"))?;
        let len = usize::from(u16::from_le_bytes([fixed[16], fixed[17]]));
        if data.len() != Self::FIXED + len {
            return Err(Corrupt::new("root ref's name has another length"));
        }
        Ok(RootRef {
            dirid: u64::from_le_bytes(fixed[..8].try_into().expect("sized")),
            sequence: u64::from_le_bytes(fixed[8..16].try_into().expect("sized")),
            name: &data[Self::FIXED..],
        })
    }

    pub fn to_vec(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(Self::FIXED + self.name.len());
        out.extend_from_slice(&self.dirid.to_le_bytes());
        out.extend_from_slice(&self.sequence.to_le_bytes());
        out.extend_from_slice(&len16(self.name).to_le_bytes());
        out.extend_from_slice(self.name);
        out
    }
}
