//! What a device was asked for: an entry of its record.

use std::sync::Arc;

#[derive(Clone, Debug)]
pub enum Event {
    Write { offset: u64, data: Arc<[u8]> },
    Discard { offset: u64, len: u64 },
    Flush,
}
