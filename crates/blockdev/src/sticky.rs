//! Sticky failure: after one failed write or flush nothing is written any more.
//!
//! Invariant: once `failed` is set it stays set, and every later write, flush and
//! discard fails with the first reason. A flush never "succeeds" on a retry, since the
//! kernel may have dropped the dirty pages of the failed one. Reads go on.

use crate::BlockDevice;
use std::io;
use std::sync::OnceLock;

pub struct Sticky<D> {
    device: D,
    failed: OnceLock<(io::ErrorKind, String)>,
}

impl<D: BlockDevice> Sticky<D> {
    pub fn new(device: D) -> Sticky<D> {
        Sticky { device, failed: OnceLock::new() }
    }

    /// Why the device was given up, if it was.
    pub fn failure(&self) -> Option<&str> {
        self.failed.get().map(|(_, why)| why.as_str())
    }

    fn guard(&self, what: &str, run: impl FnOnce(&D) -> io::Result<()>) -> io::Result<()> {
        if let Some((kind, why)) = self.failed.get() {
            return Err(io::Error::new(*kind, format!("given up after an earlier failure: {why}")));
        }
        run(&self.device).inspect_err(|e| {
            let _ = self.failed.set((e.kind(), format!("{what}: {e}")));
        })
    }
}

impl<D: BlockDevice> BlockDevice for Sticky<D> {
    fn len(&self) -> u64 {
        self.device.len()
    }

    fn read_only(&self) -> bool {
        self.device.read_only()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.device.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
        self.guard("write", |d| d.write_at(offset, buf))
    }

    fn write_vectored_at(&self, offset: u64, bufs: &[&[u8]]) -> io::Result<()> {
        self.guard("write", |d| d.write_vectored_at(offset, bufs))
    }

    fn start_writing(&self) -> io::Result<()> {
        self.guard("write", |d| d.start_writing())
    }

    fn flush(&self) -> io::Result<()> {
        self.guard("flush", |d| d.flush())
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.guard("discard", |d| d.discard(offset, len))
    }

    fn name(&self) -> String {
        self.device.name()
    }
}
