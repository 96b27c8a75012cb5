//! A device whose superblocks are kept back until its volume is whole: who is killed while he fills
//! one leaves nothing that looks like a volume.
//!
//! Invariant: what else is written goes to the device at once, and the superblocks behind all of it.
//! Zeros in the place of a superblock are none, and go there as well: they end an older volume.

use blockdev::BlockDevice;
use btrfs_disk::superblock::{COPIES, SUPER_SIZE};
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub struct Held {
    device: Arc<dyn BlockDevice>,
    /// By their offsets.
    copies: Mutex<BTreeMap<u64, Vec<u8>>>,
}

impl Held {
    pub fn new(device: Arc<dyn BlockDevice>) -> Held {
        Held { device, copies: Mutex::default() }
    }

    /// Makes the volume one: the first superblock last. All else must be there.
    pub fn release(&self) -> io::Result<()> {
        let copies = std::mem::take(&mut *self.copies());
        for (at, bytes) in copies.iter().rev() {
            if *at == COPIES[0] {
                self.device.flush()?;
            }
            self.device.write_at(*at, bytes)?;
        }
        self.device.flush()
    }

    fn copies(&self) -> MutexGuard<'_, BTreeMap<u64, Vec<u8>>> {
        self.copies.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Part of the superblock at `copy`.
    fn hold(&self, copy: u64, at: u64, part: &[u8]) -> io::Result<()> {
        let mut copies = self.copies();
        if part.len() == SUPER_SIZE && part.iter().all(|byte| *byte == 0) {
            copies.remove(&copy);
            return self.device.write_at(copy, part);
        }
        let mut bytes = copies.remove(&copy).map_or_else(|| self.there(copy), Ok)?;
        bytes[at as usize..at as usize + part.len()].copy_from_slice(part);
        copies.insert(copy, bytes);
        Ok(())
    }

    /// The first place of a superblock that ends behind `at`.
    fn next(&self, at: u64) -> Option<u64> {
        let ends = |copy: u64| copy + SUPER_SIZE as u64;
        COPIES.into_iter().find(|copy| ends(*copy) > at).filter(|copy| ends(*copy) <= self.len())
    }

    fn is_clear(&self, offset: u64, bufs: &[&[u8]]) -> bool {
        let len: usize = bufs.iter().map(|buf| buf.len()).sum();
        self.next(offset).is_none_or(|copy| copy >= offset + len as u64)
    }

    /// Puts what is held back of the superblocks over what the device has.
    fn show_held(&self, offset: u64, buf: &mut [u8]) {
        let end = offset + buf.len() as u64;
        for (copy, bytes) in &*self.copies() {
            let (from, to) = (offset.max(*copy), end.min(copy + bytes.len() as u64));
            if from < to {
                let part = &bytes[(from - copy) as usize..(to - copy) as usize];
                buf[(from - offset) as usize..(to - offset) as usize].copy_from_slice(part);
            }
        }
    }

    fn there(&self, copy: u64) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; SUPER_SIZE];
        self.device.read_at(copy, &mut bytes)?;
        Ok(bytes)
    }
}

impl BlockDevice for Held {
    fn len(&self) -> u64 {
        self.device.len()
    }

    fn grow_to_now(&self) -> io::Result<()> {
        self.device.grow_to_now()
    }

    fn read_only(&self) -> bool {
        self.device.read_only()
    }

    fn uncache(&self, offset: u64, len: u64) {
        self.device.uncache(offset, len);
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.device.read_at(offset, buf)?;
        self.show_held(offset, buf);
        Ok(())
    }

    fn read_medium(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.device.read_medium(offset, buf)?;
        self.show_held(offset, buf);
        Ok(())
    }

    fn write_at(&self, mut offset: u64, mut buf: &[u8]) -> io::Result<()> {
        while let Some(copy) =
            self.next(offset).filter(|_| !buf.is_empty() && !self.is_clear(offset, &[buf]))
        {
            let apart = copy.saturating_sub(offset) as usize;
            if apart > 0 {
                self.device.write_at(offset, &buf[..apart])?;
                (offset, buf) = (copy, &buf[apart..]);
            }
            let at = offset - copy;
            let len = buf.len().min(SUPER_SIZE - at as usize);
            self.hold(copy, at, &buf[..len])?;
            (offset, buf) = (offset + len as u64, &buf[len..]);
        }
        if buf.is_empty() { Ok(()) } else { self.device.write_at(offset, buf) }
    }

    fn write_vectored_at(&self, mut offset: u64, bufs: &[&[u8]]) -> io::Result<()> {
        if self.is_clear(offset, bufs) {
            return self.device.write_vectored_at(offset, bufs);
        }
        for buf in bufs {
            self.write_at(offset, buf)?;
            offset += buf.len() as u64;
        }
        Ok(())
    }

    fn write_apart(&self, offset: u64, bufs: &[&[u8]], through: bool) -> io::Result<()> {
        match self.is_clear(offset, bufs) {
            true => self.device.write_apart(offset, bufs, through),
            false => self.write_vectored_at(offset, bufs),
        }
    }

    fn tells_late(&self) -> bool {
        self.device.tells_late()
    }

    fn start_writing(&self) -> io::Result<()> {
        self.device.start_writing()
    }

    fn flush(&self) -> io::Result<()> {
        self.device.flush()
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.device.discard(offset, len)
    }

    fn name(&self) -> String {
        self.device.name()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use blockdev::MemDevice;

    #[test]
    fn superblocks_come_last_and_all_else_at_once() {
        let device = Arc::new(MemDevice::new(1 << 20));
        let held = Held::new(device.clone());
        let read = |device: &dyn BlockDevice, at: u64, len: usize| {
            let mut bytes = vec![9; len];
            device.read_at(at, &mut bytes).unwrap();
            bytes
        };
        // An older volume's superblock does not stay.
        device.write_at(COPIES[0], &[7; SUPER_SIZE]).unwrap();
        held.write_at(0, &vec![0; 1 << 20]).unwrap();
        assert_eq!(read(&*device, 0, 1 << 20), vec![0; 1 << 20]);
        let (start, len) = (COPIES[0] - 100, SUPER_SIZE + 200);
        let content: Vec<u8> = (0..len).map(|i| (i % 251) as u8 + 1).collect();
        held.write_vectored_at(start, &[&content[..1000], &content[1000..]]).unwrap();
        assert_eq!(read(&held, start, len), content);
        let mut without = content.clone();
        without[100..100 + SUPER_SIZE].fill(0);
        assert_eq!(read(&*device, start, len), without);
        held.write_at(COPIES[0] + 10, b"part").unwrap();
        assert_eq!(read(&*device, start, len), without);
        held.release().unwrap();
        let mut whole = content;
        whole[110..114].copy_from_slice(b"part");
        assert_eq!(read(&*device, start, len), whole);
    }
}
