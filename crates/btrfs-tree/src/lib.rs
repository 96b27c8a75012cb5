//! Copy-on-write trees of immutable nodes: reading them, and editing them in bulk.
//!
//! Readers walk `Arc<Node>`s through a [`NodeReader`] and take no lock but the node
//! cache's short shard lock. Edits never change a node: [`apply`] merges a sorted batch
//! into new nodes, kept in [`DirtyNodes`] until they are written.
//!
//! Invariant: every node reached through a pointer has the level, generation, first
//! key and kind of owner that the pointer promises, and its keys end below the next
//! pointer's key. So no walk meets a loop, or a key twice.
//!
//! What it does not know: what items mean, where free space is, who else refers to a
//! node (that is the [`NodeSink`]'s side).
#![deny(missing_docs)]
#![cfg_attr(not(test), deny(unreachable_pub))]
#![forbid(unsafe_code)]

mod cache;
mod compare;
mod cursor;
mod dirty;
mod edit;
mod reader;
mod scan;
mod store;
mod verify;
mod walk;

pub use cache::CacheCounters;
pub use compare::{Difference, compare};
pub use cursor::Cursor;
pub use dirty::{DirtyNodes, Overlay};
pub use edit::{
    Edit, EditRef, NodeSink, apply, apply_borrowed, copy_root, new_tree, refresh_root, validate,
    with_borrowed,
};
pub use reader::{Blank, Item, NodeReader, TreeRoot, behind_lost, get, keeps};
pub use scan::{Scan, scan};
pub use store::NodeStore;
pub use verify::{TreeShape, verify};
pub use walk::{NodePosition, Step, Visitor, walk};
