//! Space beside plain models, kernel images, and from many threads.

#[path = "../common/mod.rs"]
mod common;

mod kernel_images;
mod model_free_space;
mod model_refs;
mod room;
mod threads;
