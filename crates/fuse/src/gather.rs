//! What comes through `/dev/fuse` while rings serve the rest: FORGET and INTERRUPT. Anything
//! else that might come is served too.
//!
//! Nobody waits for an answer to a FORGET, so they gather for a moment. To be woken for
//! each took a sixth of the time of an unlink: on the processor of whoever unlinks, who
//! has to wake us, and on ours. What tells how much is free (STATFS) or makes it so
//! (SYNCFS) fetches what has gathered first, and so sees what its caller removed; so does who would
//! hear that there is no room.
//!
//! Invariant: no lock is held while something is served. A FORGET may take long (it erases, and a full
//! volume first looks for room for that), and others look here meanwhile.

use crate::classic::{answer, buffers};
use crate::device::{Device, Received};
use crate::dispatch::{Beside, Dispatcher};
use parking_lot::{Condvar, Mutex};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How long FORGETs gather. A thousand wake-ups a second are few.
/// Chosen, not measured.
const MOMENT: Duration = Duration::from_millis(1);
/// Messages that `fetch` reads: what its caller caused is among the first.
/// Chosen, not measured.
const ENOUGH: usize = 8;
/// How long `fetch` waits for what others have read before: mostly that is done sooner, and what
/// is not its caller hears of later.
/// Chosen, not measured.
const PATIENCE: Duration = Duration::from_millis(20);

/// For a request and its reply.
type Buffers = (Vec<u8>, Vec<u8>);

pub(crate) struct Gathered {
    device: Device,
    payload_len: usize,
    desk: Mutex<Desk>,
    ended: Condvar,
    served: AtomicU64,
}

#[derive(Default)]
struct Desk {
    /// Of who read last; one reader at a time is the rule.
    spare: Option<Buffers>,
    /// How many have begun to read, and the numbers of those that are not done.
    readers: u64,
    at_work: Vec<u64>,
}

/// One who reads a message and serves it; done when this is dropped.
struct Reader<'g> {
    gathered: &'g Gathered,
    number: u64,
    buffers: Buffers,
}

impl Gathered {
    pub(crate) fn new(device: &Device, payload_len: usize) -> io::Result<Gathered> {
        let device = device.another_that_never_waits()?;
        let (desk, ended, served) = Default::default();
        Ok(Gathered { device, payload_len, desk, ended, served })
    }

    /// Serves until the mount ends.
    pub(crate) fn run(&self, dispatcher: &Dispatcher) -> io::Result<()> {
        loop {
            self.device.wait()?;
            if self.read_one(dispatcher)? == Received::End {
                return Ok(());
            }
            dispatcher.tidying().before_a_wait(|| {});
            std::thread::sleep(MOMENT);
        }
    }

    /// Until all is served that was read before, or for as long as patience lasts.
    fn wait_for_others(&self) {
        let until = Instant::now() + PATIENCE;
        let mut desk = self.desk.lock();
        let behind = desk.readers;
        while desk.at_work.iter().any(|number| *number < behind)
            && !self.ended.wait_until(&mut desk, until).timed_out()
        {}
    }

    /// Serves one message. All FORGETs that wait come as one (up to tens of thousands),
    /// so who looks again at once only meets the next single one.
    fn read_one(&self, dispatcher: &Dispatcher) -> io::Result<Received> {
        let mut reader = self.reader();
        let (input, output) = &mut reader.buffers;
        let received = self.device.receive_now(input)?;
        let Received::Request(len) = received else { return Ok(received) };
        answer(&self.device, dispatcher, &input[..len], output)?;
        self.served.fetch_add(1, Ordering::Relaxed);
        Ok(received)
    }

    /// From before it reads on others know of it.
    fn reader(&self) -> Reader<'_> {
        let mut desk = self.desk.lock();
        let number = desk.readers;
        desk.readers += 1;
        desk.at_work.push(number);
        let spare = desk.spare.take();
        drop(desk);
        let buffers = spare.unwrap_or_else(|| buffers(self.payload_len));
        Reader { gathered: self, number, buffers }
    }
}

impl Beside for Gathered {
    /// Not to be called by a handler of what is served here.
    fn fetch(&self, dispatcher: &Dispatcher) -> io::Result<()> {
        for _ in 0..ENOUGH {
            if !matches!(self.read_one(dispatcher)?, Received::Request(_)) {
                break;
            }
        }
        self.wait_for_others();
        Ok(())
    }

    fn served(&self) -> u64 {
        self.served.load(Ordering::Relaxed)
    }
}

impl Drop for Reader<'_> {
    fn drop(&mut self) {
        let mut desk = self.gathered.desk.lock();
        desk.at_work.retain(|number| *number != self.number);
        desk.spare = Some(std::mem::take(&mut self.buffers));
        drop(desk);
        self.gathered.ended.notify_all();
    }
}
