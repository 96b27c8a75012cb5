//! A device whose requests pass somebody who may note, hold, refuse or swallow them.
//!
//! Invariants: each request passes the hook once, on the thread that makes it, with no lock held; what the hook
//! answers is the request's answer. The device below is asked exactly when the hook goes on.
//!
//! What it does not know: what is written, and why somebody looks.

use blockdev::BlockDevice;
use std::io;

/// What a device is asked.
#[derive(Clone, Copy, Debug)]
pub enum Request<'a> {
    /// `len` bytes at `offset`.
    Read {
        offset: u64,
        len: usize,
    },
    /// The pieces, one behind the other.
    Write {
        offset: u64,
        pieces: &'a [&'a [u8]],
    },
    /// `BlockDevice::start_writing`.
    StartWriting,
    Flush,
    Discard {
        offset: u64,
        len: u64,
    },
}

impl Request<'_> {
    /// It changes what the device holds.
    pub fn changes(&self) -> bool {
        matches!(self, Request::Write { .. } | Request::Discard { .. })
    }
}

/// Asks the device below.
pub type GoOn<'a> = &'a mut dyn FnMut() -> io::Result<()>;

/// Whom the requests pass.
pub trait RequestHook: Send + Sync {
    fn ask(&self, request: Request<'_>, go_on: GoOn<'_>) -> io::Result<()>;
}

/// Requests to `below` pass `hook`.
pub struct Hooked<D, H> {
    pub below: D,
    pub hook: H,
}

impl<D: BlockDevice, H: RequestHook> BlockDevice for Hooked<D, H> {
    fn len(&self) -> u64 {
        self.below.len()
    }
    fn grow_to_now(&self) -> io::Result<()> {
        self.below.grow_to_now()
    }
    fn read_only(&self) -> bool {
        self.below.read_only()
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let request = Request::Read { offset, len: buf.len() };
        self.hook.ask(request, &mut || self.below.read_at(offset, buf))
    }
    fn read_medium(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let request = Request::Read { offset, len: buf.len() };
        self.hook.ask(request, &mut || self.below.read_medium(offset, buf))
    }
    fn write_at(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
        let request = Request::Write { offset, pieces: &[buf] };
        self.hook.ask(request, &mut || self.below.write_at(offset, buf))
    }
    fn write_vectored_at(&self, offset: u64, pieces: &[&[u8]]) -> io::Result<()> {
        let request = Request::Write { offset, pieces };
        self.hook.ask(request, &mut || self.below.write_vectored_at(offset, pieces))
    }
    fn write_apart(&self, offset: u64, pieces: &[&[u8]], through: bool) -> io::Result<()> {
        let request = Request::Write { offset, pieces };
        self.hook.ask(request, &mut || self.below.write_apart(offset, pieces, through))
    }
    fn tells_late(&self) -> bool {
        self.below.tells_late()
    }
    fn start_writing(&self) -> io::Result<()> {
        self.hook.ask(Request::StartWriting, &mut || self.below.start_writing())
    }
    fn flush(&self) -> io::Result<()> {
        self.hook.ask(Request::Flush, &mut || self.below.flush())
    }
    fn uncache(&self, offset: u64, len: u64) {
        self.below.uncache(offset, len);
    }
    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.hook.ask(Request::Discard { offset, len }, &mut || self.below.discard(offset, len))
    }
    fn name(&self) -> String {
        self.below.name()
    }
}
