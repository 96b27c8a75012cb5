//! A device in memory, for tests and for the library's benchmarks.
//!
//! Sparse: chunks that were never written read as zeros and cost nothing.

use crate::BlockDevice;
use parking_lot::RwLock;
use std::io;

/// What is allocated at once: an image of a few GB has some thousand, and one with little in it
/// takes little.
/// Chosen, not measured.
const CHUNK: u64 = 1 << 20;

/// A device in memory; what was never written is zeros and takes nothing.
pub struct MemDevice {
    chunks: Vec<RwLock<Option<Box<[u8]>>>>,
    len: u64,
}

impl MemDevice {
    /// Of `len` bytes, all of them zeros.
    pub fn new(len: u64) -> MemDevice {
        let count = len.div_ceil(CHUNK);
        MemDevice { chunks: (0..count).map(|_| RwLock::new(None)).collect(), len }
    }

    /// A device with the content of `image`.
    pub fn from_bytes(image: &[u8]) -> MemDevice {
        let dev = MemDevice::new(image.len() as u64);
        for (i, part) in image.chunks(CHUNK as usize).enumerate() {
            if part.iter().any(|b| *b != 0) {
                let mut chunk = vec![0; CHUNK as usize].into_boxed_slice();
                chunk[..part.len()].copy_from_slice(part);
                *dev.chunks[i].write() = Some(chunk);
            }
        }
        dev
    }

    /// The whole content.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = vec![0; self.len as usize];
        self.read_at(0, &mut out).expect("in range");
        out
    }

    fn check_range(&self, offset: u64, len: usize) -> io::Result<()> {
        match offset.checked_add(len as u64) {
            Some(end) if end <= self.len => Ok(()),
            _ => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "range behind the end")),
        }
    }
}

/// Splits a range into (chunk, offset in it, range of the buffer).
fn pieces(offset: u64, len: usize) -> impl Iterator<Item = (usize, usize, std::ops::Range<usize>)> {
    let mut done = 0usize;
    std::iter::from_fn(move || {
        if done == len {
            return None;
        }
        let at = offset + done as u64;
        let within = (at % CHUNK) as usize;
        let take = (len - done).min(CHUNK as usize - within);
        done += take;
        Some(((at / CHUNK) as usize, within, done - take..done))
    })
}

impl BlockDevice for MemDevice {
    fn len(&self) -> u64 {
        self.len
    }

    fn read_only(&self) -> bool {
        false
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.check_range(offset, buf.len())?;
        for (chunk, within, range) in pieces(offset, buf.len()) {
            let part = &mut buf[range];
            match &*self.chunks[chunk].read() {
                Some(bytes) => part.copy_from_slice(&bytes[within..within + part.len()]),
                None => part.fill(0),
            }
        }
        Ok(())
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
        self.check_range(offset, buf.len())?;
        for (chunk, within, range) in pieces(offset, buf.len()) {
            let part = &buf[range];
            let mut slot = self.chunks[chunk].write();
            let bytes = slot.get_or_insert_with(|| vec![0; CHUNK as usize].into_boxed_slice());
            bytes[within..within + part.len()].copy_from_slice(part);
        }
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.check_range(offset, len as usize)?;
        for (chunk, within, range) in pieces(offset, len as usize) {
            if within == 0 && range.len() as u64 == CHUNK {
                *self.chunks[chunk].write() = None;
            }
        }
        Ok(())
    }

    fn name(&self) -> String {
        "memory".into()
    }
}
