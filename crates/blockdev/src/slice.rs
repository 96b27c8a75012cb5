//! A part of a device as a device of its own: a partition in the image of a whole disk.
//!
//! Invariant: no read, write or discard leaves the part, which stays as long as it is; all of a device grows with
//! that. What concerns the device as a whole (a
//! flush) is passed on as it is.

use crate::BlockDevice;
use std::io;

/// Bytes of a device that lie together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Span {
    /// Where they begin.
    pub start: u64,
    /// How many they are.
    pub len: u64,
}

impl Span {
    /// The offset behind the last one.
    pub fn end(self) -> u64 {
        self.start.saturating_add(self.len)
    }

    /// Both have a byte in common.
    pub fn overlaps(self, other: Span) -> bool {
        self.start < other.end() && other.start < self.end()
    }

    /// Whether all of `other` is among them.
    pub fn contains(self, other: Span) -> bool {
        self.start <= other.start && other.end() <= self.end()
    }
}

/// Part of a device: see the module.
pub struct Slice<D> {
    device: D,
    span: Span,
    /// How the part is called, where it is not all of the device.
    name: Option<String>,
}

impl<D: BlockDevice> Slice<D> {
    /// All of `device`.
    pub fn whole(device: D) -> Slice<D> {
        let span = Span { start: 0, len: device.len() };
        Slice { device, span, name: None }
    }

    /// The bytes of `span`, called `name`; `UnexpectedEof` where the device ends before.
    pub fn new(device: D, span: Span, name: String) -> io::Result<Slice<D>> {
        match span.start.checked_add(span.len) {
            Some(end) if end <= device.len() => Ok(Slice { device, span, name: Some(name) }),
            _ => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "a part behind the end")),
        }
    }

    /// The same part of `other`; all of that, where this is all of its device.
    pub fn of_another<E: BlockDevice>(&self, other: E) -> io::Result<Slice<E>> {
        match &self.name {
            None => Ok(Slice::whole(other)),
            Some(name) => Slice::new(other, self.span, name.clone()),
        }
    }

    /// Which part of its device it is; `None` for all.
    pub fn part(&self) -> Option<Span> {
        self.name.is_some().then_some(self.span)
    }

    /// The device that it is a part of, or all.
    pub fn device(&self) -> &D {
        &self.device
    }

    /// Where `len` bytes at `offset` of the part lie on the device, if they are in it.
    fn place(&self, offset: u64, len: u64) -> io::Result<u64> {
        match offset.checked_add(len) {
            Some(end) if end <= self.len() => Ok(self.span.start + offset),
            _ => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "range behind the end")),
        }
    }
}

fn sum(bufs: &[&[u8]]) -> u64 {
    bufs.iter().map(|buf| buf.len() as u64).fold(0, u64::saturating_add)
}

impl<D: BlockDevice> BlockDevice for Slice<D> {
    fn len(&self) -> u64 {
        match &self.name {
            None => self.device.len(),
            Some(_) => self.span.len,
        }
    }

    fn grow_to_now(&self) -> io::Result<()> {
        match &self.name {
            None => self.device.grow_to_now(),
            Some(_) => Ok(()),
        }
    }

    fn read_only(&self) -> bool {
        self.device.read_only()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.device.read_at(self.place(offset, buf.len() as u64)?, buf)
    }

    fn read_medium(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.device.read_medium(self.place(offset, buf.len() as u64)?, buf)
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
        self.device.write_at(self.place(offset, buf.len() as u64)?, buf)
    }

    fn write_vectored_at(&self, offset: u64, bufs: &[&[u8]]) -> io::Result<()> {
        self.device.write_vectored_at(self.place(offset, sum(bufs))?, bufs)
    }

    fn write_apart(&self, offset: u64, bufs: &[&[u8]], through: bool) -> io::Result<()> {
        self.device.write_apart(self.place(offset, sum(bufs))?, bufs, through)
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

    fn uncache(&self, offset: u64, len: u64) {
        if let Ok(place) = self.place(offset, len) {
            self.device.uncache(place, len);
        }
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.device.discard(self.place(offset, len)?, len)
    }

    fn name(&self) -> String {
        self.name.clone().unwrap_or_else(|| self.device.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemDevice;

    #[test]
    fn nothing_leaves_the_part() {
        let device = MemDevice::new(4096);
        device.write_at(0, &[7; 4096]).unwrap();
        let span = Span { start: 1024, len: 2048 };
        let part = Slice::new(device, span, "disk@1".into()).unwrap();
        assert_eq!((part.len(), part.name().as_str()), (2048, "disk@1"));
        part.write_at(0, &[1; 512]).unwrap();
        part.write_vectored_at(512, &[&[2; 256], &[3; 256]]).unwrap();
        part.write_apart(1536, &[&[4; 512]], true).unwrap();
        part.discard(1024, 512).unwrap();
        let beyond = [
            part.write_at(2047, &[9; 2]),
            part.write_at(u64::MAX, &[9]),
            part.write_at(u64::MAX - 1023, &[9]),
            part.write_vectored_at(2048, &[&[9], &[9]]),
            part.write_apart(1537, &[&[9; 256], &[9; 256]], false),
            part.discard(2048, 1),
            part.discard(1, u64::MAX),
            part.read_at(2048, &mut [0]),
        ];
        for refused in beyond {
            assert_eq!(refused.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        }
        let mut all = vec![0; 4096];
        part.device.read_at(0, &mut all).unwrap();
        assert!(all[..1024].iter().chain(&all[3072..]).all(|byte| *byte == 7));
        assert_eq!((all[1024], all[1536], all[1792], all[3071]), (1, 2, 3, 4));
        let mut end = [0; 2];
        part.read_at(2046, &mut end).unwrap();
        assert_eq!(end, [4, 4]);
    }

    #[test]
    fn a_part_ends_within_its_device() {
        let part = |start, len| {
            Slice::new(MemDevice::new(4096), Span { start, len }, String::new())
                .map(|part| part.len())
        };
        assert_eq!(part(4096, 0).unwrap(), 0);
        assert!(part(0, 4097).is_err() && part(4097, 0).is_err() && part(1, u64::MAX).is_err());
        assert_eq!(Slice::whole(MemDevice::new(512)).len(), 512);
    }
}
