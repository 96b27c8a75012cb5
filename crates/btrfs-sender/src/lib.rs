//! Makes the stream of a subvolume: all of it, or what differs from another that the receiver
//! has.
//!
//! Works on published trees, which never change; who asks keeps them from being freed. Two
//! passes over what differs (`btrfs_tree::compare`): the first collects names that went or
//! moved and plays them in an order that a receiver can follow (`moves`); then all names that
//! stay are where they belong, and the second sends the rest, inode by inode (`inodes`).
//! Memory goes by what moved and what was removed, not by what is there.
//!
//! It does not know how trees and content are read (that is the [`Source`]), where the stream
//! goes, nor what a receiver is.
#![deny(missing_docs)]
#![cfg_attr(not(test), deny(unreachable_pub))]
#![forbid(unsafe_code)]

mod changes;
mod clones;
mod content;
mod error;
mod inherited;
mod inodes;
mod metadata;
mod moves;
mod namespace;
mod out;
mod plan;
mod sender;
mod source;
mod take_back;
mod tree;

pub use error::{Error, Result};
pub use out::Options;
pub use sender::{Has, Sender};
pub use source::{ExtentBase, File, Source, Subvolume};
