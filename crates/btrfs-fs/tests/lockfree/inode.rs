//! src/inode with as much of an inode as the table and the queue touch.

#[allow(dead_code, reason = "the models need a part of it")]
#[path = "../../src/inode/queue.rs"]
mod queue;
#[allow(dead_code, reason = "the models need a part of it")]
#[path = "../../src/inode/table.rs"]
mod table;

pub use queue::DirtyQueue;
pub use table::InodeTable;

use crate::ino::InodeId;
use crate::sync::{AtomicBool, AtomicU64, Rank, RwLock};

pub struct Inode {
    pub id: InodeId,
    pub lookups: AtomicU64,
    pub queued: AtomicBool,
    pub state: RwLock<State>,
}

#[derive(Default)]
pub struct State {
    pub loaded: bool,
    /// What only memory has.
    pub unwritten: u64,
}

impl Inode {
    pub fn new(id: InodeId, _ino: vfs::Ino, state: State) -> Inode {
        let (lookups, queued) = (AtomicU64::new(0), AtomicBool::new(false));
        Inode { id, lookups, queued, state: RwLock::new(Rank::Inode, state) }
    }
}
