//! What tests of crashes and failing devices share: small volumes on a simulated device, words for
//! operations, who is let wait, and what is demanded of a state that is left.
#![allow(dead_code)]

pub mod base;
pub mod hold;
pub mod ops;
pub mod outside;
pub mod state;
