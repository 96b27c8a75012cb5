//! The transaction's lock-free code under loom: every interleaving of a few threads, and every
//! value that the memory model lets a load see. The modules are the real ones, with loom's atomics
//! and locks behind them (`sync`, in the place of src/sync.rs).
//!
//! What it does not know: what is done between their calls.

mod commits;
mod gates;
mod sync;

/// More preemptions find nothing more here and take minutes.
fn bounded(preemptions: usize) -> loom::model::Builder {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(preemptions);
    model
}
