//! Trees: written, compared, shared, and hostile ones.

#[path = "../common/mod.rs"]
mod common;

mod compare;
mod fill;
mod height;
mod hostile;
mod images;
mod model;
mod shared;
