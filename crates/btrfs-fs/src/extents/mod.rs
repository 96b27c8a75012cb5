//! The extent items of a file: what lies where, and how ranges are replaced.

mod change;
mod map;
mod stored;

pub use change::{drop_range, hole_item, insert_regular, put_hole};
pub use map::{Mapped, MappedKind, map_near, map_range, next_extent};
pub use stored::{Stored, stored};
