//! What comes through `/dev/fuse` while rings serve the rest: FORGET and INTERRUPT. Anything
//! else that might come is served too.
//!
//! Nobody waits for an answer to a FORGET, so they gather for a moment. To be woken for
//! each took a sixth of the time of an unlink: on the processor of whoever unlinks, who
//! has to wake us, and on ours. What tells how much is free (STATFS) or makes it so
//! (SYNCFS) fetches what has gathered first, and so sees what its caller removed.

use crate::classic::{answer, buffers};
use crate::device::{Device, Received};
use crate::dispatch::Dispatcher;
use parking_lot::Mutex;
use std::io;
use std::time::Duration;

/// How long FORGETs gather. A thousand wake-ups a second are few.
const MOMENT: Duration = Duration::from_millis(1);
/// Messages that `fetch` reads: what its caller caused is among the first.
const ENOUGH: usize = 8;

pub(crate) struct Gathered {
    device: Device,
    /// For a request and its reply. Held while what was read is served.
    buffers: Mutex<(Vec<u8>, Vec<u8>)>,
}

impl Gathered {
    pub(crate) fn new(device: &Device, payload_len: usize) -> io::Result<Gathered> {
        let device = device.another_that_never_waits()?;
        Ok(Gathered { device, buffers: Mutex::new(buffers(payload_len)) })
    }

    /// Serves until the mount ends.
    pub(crate) fn run(&self, dispatcher: &Dispatcher) -> io::Result<()> {
        loop {
            self.device.wait()?;
            if self.read_one(dispatcher)? == Received::End {
                return Ok(());
            }
            std::thread::sleep(MOMENT);
        }
    }

    /// Serves what is there. Not to be called by a handler of what is served here.
    pub(crate) fn fetch(&self, dispatcher: &Dispatcher) -> io::Result<()> {
        for _ in 0..ENOUGH {
            if !matches!(self.read_one(dispatcher)?, Received::Request(_)) {
                break;
            }
        }
        Ok(())
    }

    /// Serves one message. All FORGETs that wait come as one (up to tens of thousands),
    /// so who looks again at once only meets the next single one.
    fn read_one(&self, dispatcher: &Dispatcher) -> io::Result<Received> {
        let mut buffers = self.buffers.lock();
        let (input, output) = &mut *buffers;
        let received = self.device.receive_now(input)?;
        let Received::Request(len) = received else { return Ok(received) };
        answer(&self.device, dispatcher, &input[..len], output)?;
        Ok(received)
    }
}
