//! The extents of a file: what lies where, how ranges are replaced, and their content.
//!
//! What it does not know: content that is still in memory, but for reading over it.

mod change;
mod compressed;
mod map;
mod read;
mod round;
mod stored;
pub(crate) mod sums;
mod trust;

pub(crate) use change::{drop_range, hole_item, put_extent, put_hole};
#[cfg(feature = "fault-injection")]
pub use map::most_mapped;
pub(crate) use map::{
    AT_A_TIME, Mapped, MappedKind, map_first, map_near, map_parts, map_range, map_step, map_stored,
    next_extent,
};
pub(crate) use read::{read, read_earlier, read_extents};
pub(crate) use round::{sectors_of, sectors_within};
pub use stored::Stored;
pub(crate) use stored::stored;
pub(crate) use trust::Trust;
