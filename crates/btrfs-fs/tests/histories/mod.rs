//! What tests share in which the kernel and the engine take turns: the two sides, and what both are
//! asked to do.
#![allow(dead_code)]

pub mod side;
pub mod world;
