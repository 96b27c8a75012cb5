//! The engine's lock-free code under loom: every interleaving of a few threads, and every value
//! that the memory model lets a load see. The modules are the real ones, with loom's atomics and
//! locks behind them (`sync`, in the place of src/sync.rs).
//!
//! What it does not know: what the engine does between their calls (tests/commits/threads.rs).

mod index;
mod inode;
mod inodes;
mod joins;
mod numbers;
mod sync;

/// As src/ino.rs: the table asks for no more.
mod ino {
    pub type InodeId = btrfs_txn::ObjectId;

    pub fn number(id: InodeId) -> vfs::Result<vfs::Ino> {
        Ok(vfs::Ino(id.objectid))
    }
}

/// More preemptions find nothing more here and take minutes.
fn bounded(preemptions: usize) -> loom::model::Builder {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(preemptions);
    model
}
