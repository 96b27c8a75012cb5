//! ROOT_ITEM, ROOT_REF and ROOT_BACKREF.

use super::inode::{InodeItem, Timespec};
use crate::error::Corrupt;
use crate::key::Key;
use crate::le::len16;
use crate::{Generation, Logical};

/// The subvolume is read-only.
pub const ROOT_SUBVOL_RDONLY: u64 = 1 << 0;
/// The subvolume is deleted, its tree is being dropped.
pub const ROOT_SUBVOL_DEAD: u64 = 1 << 48;

le_struct! {
    /// Older kernels wrote only the first 239 bytes; the rest reads as zero then.
    pub struct RootItem[439] {
        /// Stands for no file; what is looked at is ROOT_ITEM_INIT in its flags.
        inode: InodeItem,
        /// The commit that wrote the tree's root node.
        generation: Generation,
        /// Inode of the root directory: 256 in a tree that holds files, else 0.
        root_dirid: u64,
        /// The root node.
        bytenr: Logical,
        /// Nobody goes by it: 0.
        byte_limit: u64,
        /// Bytes of the nodes that the tree has, as its writers counted them.
        bytes_used: u64,
        /// The commit of the last snapshot of it: nodes that are newer are its own.
        last_snapshot: Generation,
        /// [`ROOT_SUBVOL_RDONLY`] and [`ROOT_SUBVOL_DEAD`].
        flags: u64,
        /// 1; 0 once a subvolume is deleted and its tree is being dropped.
        refs: u32,
        /// Where dropping the tree goes on: a key at `drop_level`; zero before it began.
        drop_progress: Key,
        /// Level of the node that `drop_progress` is of.
        drop_level: u8,
        /// Level of the root node.
        level: u8,
        /// As `generation`; if it is not, what follows was not kept.
        generation_v2: u64,
        /// The subvolume's UUID; zeros for other trees.
        uuid: [u8; 16],
        /// UUID of the subvolume that this is a snapshot of, else zeros.
        parent_uuid: [u8; 16],
        /// UUID that the subvolume had where it was sent from; zeros if it was not received.
        received_uuid: [u8; 16],
        /// The last commit that changed something in it.
        ctransid: u64,
        /// The commit that made it.
        otransid: u64,
        /// The sender's `ctransid` when it was sent.
        stransid: u64,
        /// The commit in which it had been received.
        rtransid: u64,
        /// When something in it last changed.
        ctime: Timespec,
        /// When it was made.
        otime: Timespec,
        /// When it was sent, if the receiver was told.
        stime: Timespec,
        /// When it had been received, and its `received_uuid` was set.
        rtime: Timespec,
        /// Nobody's yet: zeros.
        reserved: [u8; 64],
    }
}

impl RootItem {
    /// Bytes of the short form: up to and with `level`.
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

    /// The subvolume is deleted: nothing but what drops its tree may look into it, which can be half gone.
    pub fn is_deleted(&self) -> bool {
        self.refs == 0
    }
}

/// ROOT_REF (parent -> child) and ROOT_BACKREF (child -> parent) share one form.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RootRef<'a> {
    /// Inode of the directory in the parent that has the name.
    pub dirid: u64,
    /// Offset of the name's DIR_INDEX in that directory.
    pub sequence: u64,
    /// The subvolume's name there.
    pub name: &'a [u8],
}

impl<'a> RootRef<'a> {
    /// Bytes of one less its name.
    pub const FIXED: usize = 18;

    /// Reads an item; `Corrupt` if its length is not that of its name.
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

    /// The data of its item.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(Self::FIXED + self.name.len());
        out.extend_from_slice(&self.dirid.to_le_bytes());
        out.extend_from_slice(&self.sequence.to_le_bytes());
        out.extend_from_slice(&len16(self.name).to_le_bytes());
        out.extend_from_slice(self.name);
        out
    }
}
