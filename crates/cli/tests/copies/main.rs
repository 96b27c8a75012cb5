//! `spinney cp` and its relatives, beside GNU's tools.

#[path = "../common/mod.rs"]
mod common;

mod beside;
mod copies;
mod interrupted;
mod kept;
mod odd_words;
mod outputs;
mod replaced;
mod targets;
