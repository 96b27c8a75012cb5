//! A device that does not read some of what it holds.

use blocksim::{GoOn, Request, RequestHook};
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

/// Ranges of the device that cannot be read, until it is mended.
pub struct Unreadable {
    pub ranges: Vec<Range<u64>>,
    pub mended: AtomicBool,
}

impl RequestHook for Unreadable {
    fn ask(&self, request: Request<'_>, go_on: GoOn<'_>) -> io::Result<()> {
        let (offset, len) = match request {
            Request::Read { offset, len } => (offset, len as u64),
            _ => return go_on(),
        };
        let meets = |range: &Range<u64>| offset < range.end && range.start < offset + len;
        if !self.mended.load(Ordering::Relaxed) && self.ranges.iter().any(meets) {
            return Err(io::Error::from_raw_os_error(libc::EIO));
        }
        go_on()
    }
}
