//! What the fuzz targets do with a fuzzer's bytes, one function each. `fuzz/` gives them to
//! libFuzzer; `tests/mutated.rs` gives them damaged seeds on every machine.
//!
//! A function panics where the code under test does and where its answer cannot be right,
//! and tells whether the bytes got past the first gate. It takes any bytes.
//!
//! Beside them what tests of other crates damage volumes with: [`hostile`] for whole images at
//! random, [`patch`] for one item.

mod compressed;
pub mod hostile;
mod image;
mod item;
mod node;
mod operations;
pub mod patch;
mod stream;
mod superblock;

pub use compressed::compressed;
pub use image::{base, image};
pub use item::item;
pub use node::node;
pub use operations::operations;
pub use stream::stream;
pub use superblock::superblock;

/// A target's body.
pub type Body = fn(&[u8]) -> bool;

/// Every target by its name in `fuzz/`.
pub const TARGETS: [(&str, Body); 7] = [
    ("superblock", superblock),
    ("node", node),
    ("item", item),
    ("compressed", compressed),
    ("stream", stream),
    ("image", image),
    ("operations", operations),
];
