//! What the tests and fuzzers of hostile images share: base images whose nodes are known,
//! mutations that keep the checksum right, and a driver that uses a volume hard.

pub mod base;
pub mod choices;
pub mod disk;
pub mod drive;
pub mod leaf;
pub mod mutate;
pub mod targeted;
