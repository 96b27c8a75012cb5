//! `spinney tar`, both ways.

#[path = "../common/mod.rs"]
mod common;

mod acls;
mod forms;
mod strange;
mod tar;
mod twice;
