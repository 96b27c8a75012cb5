//! Random operations as plain data: made from a seed, applied to anything that is a
//! `FileSystem`, compared step by step, shrunk when they tell two file systems apart.
//!
//! A system under test: `check_against_model(seed, steps, &Config::all(),
//! &Tolerance::default(), || fresh_file_system())`.

mod check;
mod concurrent;
mod config;
mod generate;
mod lockstep;
mod op;
mod outcome;
mod session;
mod shrink;

pub use blocksim::Rng;
pub use check::{check_against_model, explain};
pub use concurrent::{check_private_trees, check_shared_tree};
pub use config::{Config, OpKind};
pub use generate::{Generator, generate};
pub use lockstep::{Divergence, Subject, Tolerance, lockstep, lockstep_answers, lockstep_below};
pub use op::{Fill, FillKind, Name, Op, Path, Target};
pub use outcome::{Bytes, Code, Moved, Outcome, StatView, Step, TimeView, hash};
pub use session::Session;
pub use shrink::{listing, minimise};
