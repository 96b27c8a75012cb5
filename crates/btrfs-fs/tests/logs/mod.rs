//! What tests of log replay share: crashes of the kernel, and what it is asked to do before.
#![allow(dead_code)]

pub mod crash;
pub mod world;
