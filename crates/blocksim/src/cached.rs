//! A cache of written bytes above a device, as a kernel's page cache is above a medium.
//!
//! Invariants: what a flush could not write counts as written all the same, and reads go on showing it; no later
//! flush tries again. What is dirty reaches the medium by a flush alone. A power cut leaves the medium.
//!
//! What it does not know: what is written.

use crate::device::SimDevice;
use crate::image::Image;
use blockdev::BlockDevice;
use parking_lot::Mutex;
use std::io;

/// What becomes of what is clean when somebody asks for the medium's own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Uncaching {
    /// It is read from the medium again.
    Works,
    /// It stays, as a page does that somebody has in use.
    DoesNothing,
}

pub struct Cached {
    medium: SimDevice,
    /// What reads show.
    shown: SimDevice,
    dirty: Mutex<Vec<(u64, Vec<u8>)>>,
    /// The next flush that is to write these bytes fails.
    fails_at: Mutex<Option<u64>>,
    uncaching: Uncaching,
}

impl Cached {
    /// A cache that holds what the medium holds.
    pub fn new(medium: Image, uncaching: Uncaching) -> Cached {
        let (shown, medium) = (SimDevice::new(medium.clone()), SimDevice::new(medium));
        let (dirty, fails_at) = (Mutex::default(), Mutex::default());
        Cached { medium, shown, dirty, fails_at, uncaching }
    }

    /// The next flush behind a write at `offset` fails, and what was to be written by it is lost.
    pub fn fail_flush_of(&self, offset: u64) {
        *self.fails_at.lock() = Some(offset);
    }

    /// That has happened.
    pub fn has_failed(&self) -> bool {
        self.fails_at.lock().is_none()
    }

    /// What a power cut leaves.
    pub fn medium(&self) -> Image {
        self.medium.image()
    }

    /// What it leaves where the cache has written back on its own before, all and in order.
    pub fn written_back(&self) -> Image {
        let dirty = self.dirty.lock();
        let device = SimDevice::new(self.medium.image());
        let written = dirty.iter().try_for_each(|(at, bytes)| device.write_at(*at, bytes));
        written.expect("within the device");
        device.image()
    }
}

impl BlockDevice for Cached {
    fn len(&self) -> u64 {
        self.medium.len()
    }
    fn read_only(&self) -> bool {
        false
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.shown.read_at(offset, buf)
    }
    /// As if what is dirty there had been written first.
    fn read_medium(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let dirty = self.dirty.lock();
        self.medium.read_at(offset, buf)?;
        let end = offset + buf.len() as u64;
        for (at, bytes) in &*dirty {
            let (from, to) = (offset.max(*at), end.min(at + bytes.len() as u64));
            if from < to {
                let part = &bytes[(from - at) as usize..(to - at) as usize];
                buf[(from - offset) as usize..(to - offset) as usize].copy_from_slice(part);
            }
        }
        Ok(())
    }
    fn write_at(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
        let mut dirty = self.dirty.lock();
        self.shown.write_at(offset, buf)?;
        dirty.push((offset, buf.to_vec()));
        Ok(())
    }
    fn flush(&self) -> io::Result<()> {
        let mut dirty = self.dirty.lock();
        let mut fails_at = self.fails_at.lock();
        if fails_at.is_some_and(|offset| dirty.iter().any(|(at, _)| *at == offset)) {
            (*fails_at, *dirty) = (None, Vec::new());
            return Err(io::Error::from_raw_os_error(5));
        }
        dirty.drain(..).try_for_each(|(at, bytes)| self.medium.write_at(at, &bytes))?;
        self.medium.flush()
    }
    fn uncache(&self, offset: u64, len: u64) {
        let dirty = self.dirty.lock();
        let end = (offset + len).min(self.len());
        let overlaps = |(at, bytes): &(u64, Vec<u8>)| *at < end && offset < at + bytes.len() as u64;
        if self.uncaching == Uncaching::DoesNothing || dirty.iter().any(overlaps) {
            return;
        }
        let mut bytes = vec![0; (end - offset) as usize];
        let again = self.medium.read_at(offset, &mut bytes);
        again.and_then(|()| self.shown.write_at(offset, &bytes)).expect("within the device");
    }
    /// A hint.
    fn discard(&self, _: u64, _: u64) -> io::Result<()> {
        Ok(())
    }
    fn name(&self) -> String {
        "cached".into()
    }
}
