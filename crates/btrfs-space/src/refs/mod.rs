//! References to extents: their changes in an epoch, their items in the extent tree.

mod deltas;
mod drain;
mod lookup;
mod merge;
mod owner;
mod separate;
mod touched;

pub use deltas::{AddressHasher, ExtentDelta, RefDeltas};
pub use drain::{Drained, Owned, drain};
pub(crate) use lookup::apply as apply_reference;
pub(crate) use lookup::held_by;
pub use lookup::{ExtentRefs, current_refs, held_by_alone, stored_refs};
pub use merge::Format;
pub(crate) use merge::find_item;
pub use owner::{ExtentKind, RefOwner};
