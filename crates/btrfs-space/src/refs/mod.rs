//! References to extents: their changes in an epoch, their items in the extent tree.

mod deltas;
mod drain;
mod lookup;
mod merge;
mod owner;
mod separate;

pub use deltas::{AddressHasher, ExtentDelta, RefDeltas};
pub use drain::{Drained, drain};
pub use lookup::{ExtentRefs, current_refs, stored_refs};
pub use merge::Format;
pub use owner::{ExtentKind, RefOwner};
