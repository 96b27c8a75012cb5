//! The item of a balance that is not finished: what it is to do, as the kernel has it.

/// Bits of [`BalanceItem::flags`]; the types are those of block groups.
pub mod balance_flags {
    /// Data, system and metadata: which of the filters count.
    pub const TYPES: u64 = 7;
    /// Fewer copies are what is wanted.
    pub const FORCE: u64 = 1 << 3;
    /// It goes on where it stopped.
    pub const RESUME: u64 = 1 << 4;
    /// All that there are.
    pub const KNOWN: u64 = TYPES | FORCE | RESUME;
}

/// Bits of [`BalanceFilter::flags`]: which of its members count.
pub mod balance_filter {
    /// Chunks of one of `profiles`.
    pub const PROFILES: u64 = 1 << 0;
    /// Chunks that are filled to less than `usage` percent.
    pub const USAGE: u64 = 1 << 1;
    /// Chunks on one device.
    pub const DEVID: u64 = 1 << 2;
    /// Chunks with a stripe in a range of their device.
    pub const DRANGE: u64 = 1 << 3;
    /// Chunks in a range of logical addresses.
    pub const VRANGE: u64 = 1 << 4;
    /// So many at most.
    pub const LIMIT: u64 = 1 << 5;
    /// At least and at most so many: two halves of `limit`.
    pub const LIMIT_RANGE: u64 = 1 << 6;
    /// Chunks of so many stripes.
    pub const STRIPES_RANGE: u64 = 1 << 7;
    /// They get another profile.
    pub const CONVERT: u64 = 1 << 8;
    /// But those that have it.
    pub const SOFT: u64 = 1 << 9;
    /// As `USAGE`, from one to another: two halves of `usage`.
    pub const USAGE_RANGE: u64 = 1 << 10;
    /// All that there are.
    pub const KNOWN: u64 = (1 << 11) - 1;
    /// One copy, in `profiles` and `target`: no bit of a block group says so.
    pub const SINGLE: u64 = 1 << 48;
}

le_struct! {
    /// Which chunks of one type a balance moves.
    pub struct BalanceFilter[136] {
        /// Bits of profiles ([`balance_filter::PROFILES`]).
        profiles: u64,
        /// Percent of a chunk that is used ([`balance_filter::USAGE`],
        /// [`balance_filter::USAGE_RANGE`]).
        usage: u64,
        /// A device's number ([`balance_filter::DEVID`]).
        devid: u64,
        /// First byte on a device ([`balance_filter::DRANGE`]).
        pstart: u64,
        /// The byte behind the last on a device.
        pend: u64,
        /// First logical address ([`balance_filter::VRANGE`]).
        vstart: u64,
        /// The logical address behind the last.
        vend: u64,
        /// Bit of the profile that chunks get ([`balance_filter::CONVERT`]).
        target: u64,
        /// Bits of [`balance_filter`].
        flags: u64,
        /// Chunks ([`balance_filter::LIMIT`], [`balance_filter::LIMIT_RANGE`]).
        limit: u64,
        /// Fewest stripes of a chunk ([`balance_filter::STRIPES_RANGE`]).
        stripes_min: u32,
        /// Most stripes of a chunk.
        stripes_max: u32,
        /// Nobody's yet: zeros.
        spare: [u8; 48],
    }
}

le_struct! {
    /// Under the key (-4, TEMPORARY_ITEM, 0) of the root tree.
    pub struct BalanceItem[448] {
        /// Bits of [`balance_flags`].
        flags: u64,
        /// Which chunks for content, if the flags have that type.
        data: BalanceFilter,
        /// Which chunks for nodes, if the flags have that type.
        metadata: BalanceFilter,
        /// Which chunks for the chunk tree, if the flags have that type.
        system: BalanceFilter,
        /// Nobody's yet: zeros.
        spare: [u8; 32],
    }
}

impl BalanceFilter {
    /// Whether `flag` counts.
    pub fn has(&self, flag: u64) -> bool {
        self.flags & flag != 0
    }
}

impl BalanceItem {
    /// Its filters, with the type of each.
    pub fn filters(&self) -> [(u64, &BalanceFilter); 3] {
        use crate::ids::block_group::{DATA, METADATA, SYSTEM};
        [(DATA, &self.data), (METADATA, &self.metadata), (SYSTEM, &self.system)]
    }

    /// The same, to be changed.
    pub fn filters_mut(&mut self) -> [(u64, &mut BalanceFilter); 3] {
        use crate::ids::block_group::{DATA, METADATA, SYSTEM};
        [(DATA, &mut self.data), (METADATA, &mut self.metadata), (SYSTEM, &mut self.system)]
    }

    /// What of it nobody here knows, if anything.
    pub fn unknown(&self) -> Option<String> {
        if self.flags & !balance_flags::KNOWN != 0 {
            return Some(format!("flags {:#x}", self.flags));
        }
        let strange = |filter: &BalanceFilter| filter.flags & !balance_filter::KNOWN != 0;
        let found =
            self.filters().into_iter().find(|(kind, f)| self.flags & kind != 0 && strange(f));
        found.map(|(_, filter)| format!("filters {:#x}", filter.flags))
    }
}
