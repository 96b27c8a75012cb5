//! Whole trees as data, and what tells two of them apart.

mod diff;
mod snapshot;

pub use diff::{Difference, Rules, TimeRule, diff};
pub use snapshot::{Content, NodeView, TreeSnapshot, view, walk};
