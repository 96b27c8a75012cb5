//! A device that does not read some of what it holds.

use blocksim::{GoOn, Request, RequestHook};
use std::io;
use std::ops::Range;
use std::sync::RwLock;

/// Ranges of the device that cannot be read, until it is mended.
pub struct Unreadable(RwLock<Vec<Range<u64>>>);

impl Unreadable {
    pub fn new(ranges: Vec<Range<u64>>) -> Unreadable {
        Unreadable(RwLock::new(ranges))
    }

    pub fn lose(&self, ranges: Vec<Range<u64>>) {
        *self.0.write().expect("lock") = ranges;
    }

    pub fn mend(&self) {
        self.lose(Vec::new());
    }
}

impl RequestHook for Unreadable {
    fn ask(&self, request: Request<'_>, go_on: GoOn<'_>) -> io::Result<()> {
        let (offset, len) = match request {
            Request::Read { offset, len } => (offset, len as u64),
            _ => return go_on(),
        };
        let meets = |range: &Range<u64>| offset < range.end && range.start < offset + len;
        if self.0.read().expect("lock").iter().any(meets) {
            return Err(io::Error::from_raw_os_error(libc::EIO));
        }
        go_on()
    }
}
