//! FREE_SPACE_INFO; extents have no data, bitmaps are bare bits (one a sector, LSB first).

le_struct! {
    /// How the free space of one block group is written down.
    pub struct FreeSpaceInfo[8] {
        /// Free ranges of the group; in bitmaps a run of bits across items is one.
        extent_count: u32,
        /// 0 or [`FREE_SPACE_USING_BITMAPS`].
        flags: u32,
    }
}

/// Bit of [`FreeSpaceInfo::flags`]: the group has FREE_SPACE_BITMAPs, else FREE_SPACE_EXTENTs.
pub const FREE_SPACE_USING_BITMAPS: u32 = 1;
