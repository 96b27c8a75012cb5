//! FREE_SPACE_INFO; extents have no data, bitmaps are bare bits (one a sector, LSB first).

le_struct! {
    pub struct FreeSpaceInfo[8] { extent_count: u32, flags: u32 }
}

pub const FREE_SPACE_USING_BITMAPS: u32 = 1;
