//! src/inode with as much of an inode as the table and the queue touch.

#[allow(dead_code, reason = "the models need a part of it")]
#[path = "../../src/inode/queue.rs"]
mod queue;
#[allow(dead_code, reason = "the models need a part of it")]
#[path = "../../src/inode/table.rs"]
mod table;

pub(crate) use queue::DirtyQueue;
pub(crate) use table::InodeTable;

use crate::ino::InodeId;
use crate::sync::{AtomicBool, Rank, RwLock};

pub struct Inode {
    pub id: InodeId,
    pub queued: AtomicBool,
    pub state: RwLock<State>,
}

#[derive(Default)]
pub struct State {
    pub loaded: bool,
    /// Of an inode that is gone from the volume.
    pub erased: bool,
    /// What only memory has.
    pub unwritten: u64,
}

impl Inode {
    pub fn new(id: InodeId, _ino: vfs::Ino, state: State) -> Inode {
        Inode { id, queued: AtomicBool::new(false), state: RwLock::new(Rank::Inode, state) }
    }

    /// Which one leaves is of no importance here.
    pub fn use_now(&self) {}

    pub fn was_used(&self) -> bool {
        false
    }

    pub fn leaves_by(&self, seal: &dyn Fn() -> bool) -> bool {
        self.state.try_read().is_some_and(|state| state.loaded && state.unwritten == 0 && seal())
    }
}
