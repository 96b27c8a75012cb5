//! The medium: bytes at offsets, a flush, nothing more.
//!
//! Assumptions about the medium (the engine's durability rests on them): a write that
//! returned may be lost or torn at 512-byte granularity until a later `flush`
//! returned; a flush covers every write that returned before it was called; writes
//! between two flushes reach the medium in any order.
//!
//! What it does not know: file systems, mirrors, checksums.

#![deny(missing_docs)]
#![cfg_attr(not(test), deny(unreachable_pub))]
mod direct;
mod file;
mod lock;
mod made;
mod mem;
mod slice;
mod sticky;
mod turns;
mod writers;

use std::io;
use std::sync::Arc;

pub use file::FileDevice;
pub use lock::lock;
pub use made::Made;
pub use mem::MemDevice;
pub use slice::{Slice, Span};
pub use sticky::Sticky;
pub use writers::OwnWriter;

/// A device or image, whose length changes when it is asked for alone. All offsets and lengths are bytes.
pub trait BlockDevice: Send + Sync {
    /// Length in bytes.
    fn len(&self) -> u64;
    /// Whether it has no bytes at all.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Looks how long the medium is now. One that has become longer is so from now on; one that is shorter is what it
    /// was.
    fn grow_to_now(&self) -> io::Result<()> {
        Ok(())
    }
    /// Writes fail: the device or its file is open for reading alone.
    fn read_only(&self) -> bool;
    /// Fills `buf` wholly or fails (`UnexpectedEof` behind the end).
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()>;
    /// As `read_at`, but what the medium has, whatever of it the machine has cached: what was written and is not
    /// on its way yet goes to the medium first. Nothing is read ahead of it, so few and large reads are best.
    fn read_medium(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.uncache(offset, buf.len() as u64);
        self.read_at(offset, buf)
    }
    /// Writes `buf` wholly or fails.
    fn write_at(&self, offset: u64, buf: &[u8]) -> io::Result<()>;
    /// Writes several buffers one behind the other, starting at `offset`.
    fn write_vectored_at(&self, mut offset: u64, bufs: &[&[u8]]) -> io::Result<()> {
        for buf in bufs {
            self.write_at(offset, buf)?;
            offset += buf.len() as u64;
        }
        Ok(())
    }
    /// As `write_vectored_at`, of what its writer can do without: nothing refers to it yet, and a
    /// refusal is his alone. With `through` the device itself has taken it when this returns, or
    /// has refused it (it may be in the device's cache still).
    fn write_apart(&self, offset: u64, bufs: &[&[u8]], through: bool) -> io::Result<()> {
        let _ = through;
        self.write_vectored_at(offset, bufs)
    }
    /// A write that is not `through` can be refused after it has returned: the next flush tells,
    /// and nobody can say what it was about.
    fn tells_late(&self) -> bool {
        false
    }
    /// Asks for earlier writes to go to the medium now, and waits for those that an earlier call
    /// asked for: a hint, so that a later `flush` has little to do. Nothing is durable by it.
    fn start_writing(&self) -> io::Result<()> {
        Ok(())
    }
    /// Returns when every earlier write is durable.
    fn flush(&self) -> io::Result<()>;
    /// What the machine has cached of the range is read from the medium the next time, unless it is
    /// still to be written: behind a flush that failed the medium may have something else. A hint.
    fn uncache(&self, offset: u64, len: u64) {
        let _ = (offset, len);
    }
    /// The range's content is no longer needed; it may read as anything.
    fn discard(&self, offset: u64, len: u64) -> io::Result<()>;
    /// How the operator knows this device; used in error messages.
    fn name(&self) -> String;
}

/// A device that several hold.
impl<D: BlockDevice + ?Sized> BlockDevice for Arc<D> {
    fn len(&self) -> u64 {
        (**self).len()
    }
    fn grow_to_now(&self) -> io::Result<()> {
        (**self).grow_to_now()
    }
    fn read_only(&self) -> bool {
        (**self).read_only()
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        (**self).read_at(offset, buf)
    }
    fn read_medium(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        (**self).read_medium(offset, buf)
    }
    fn write_at(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
        (**self).write_at(offset, buf)
    }
    fn write_vectored_at(&self, offset: u64, bufs: &[&[u8]]) -> io::Result<()> {
        (**self).write_vectored_at(offset, bufs)
    }
    fn write_apart(&self, offset: u64, bufs: &[&[u8]], through: bool) -> io::Result<()> {
        (**self).write_apart(offset, bufs, through)
    }
    fn tells_late(&self) -> bool {
        (**self).tells_late()
    }
    fn start_writing(&self) -> io::Result<()> {
        (**self).start_writing()
    }
    fn flush(&self) -> io::Result<()> {
        (**self).flush()
    }
    fn uncache(&self, offset: u64, len: u64) {
        (**self).uncache(offset, len);
    }
    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        (**self).discard(offset, len)
    }
    fn name(&self) -> String {
        (**self).name()
    }
}
