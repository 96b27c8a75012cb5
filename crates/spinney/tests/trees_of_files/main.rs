//! Trees of files that go in, out and across.

mod copied_in;
mod copied_out;
mod nul;
mod trees;
