//! The medium read ahead of who goes through a volume by ascending addresses. The machine reads ahead by its cache
//! alone, which such a reader passes by: without this each node would be a request of its own.
//!
//! Invariants: what was read for one commit is shown while its reader looks at that commit, and no longer: of what a
//! commit has nothing changes as long as it is the last one or somebody holds it, and what is free may be another's by
//! the next. Nothing but what was asked for counts as an error of the device. Behind bytes that could not be read
//! ahead the next requests are what they are.
//!
//! What it does not know: what is stored where, and what the bytes should be.

use crate::Volume;
use crate::read::Source;
use btrfs_disk::{Generation, Physical, Result};

/// Gaps that are read over by who may read what he likes: as many bytes as the kernel's scrub reads around a sector.
const NEAR: u64 = btrfs_disk::ids::STRIPE_LEN;

/// What lies where a read into memory of ours needs no copy.
const ALIGN: usize = 4096;

/// Bytes that were read ahead, of each copy.
#[derive(Default)]
pub struct Ahead {
    of: Option<Generation>,
    /// So much is read at once at most.
    most: usize,
    /// Gaps that are read over.
    near: u64,
    /// Bytes that were asked of the device.
    asked: u64,
    copies: Vec<Window>,
}

/// One copy's.
#[derive(Default)]
struct Window {
    room: Vec<u8>,
    /// Where the bytes begin in `room`.
    pad: usize,
    start: u64,
    len: usize,
    /// Behind the last bytes that were asked for.
    end: u64,
    /// Bytes of the last request.
    size: usize,
    /// Up to here nothing is read ahead.
    bad_until: u64,
}

impl Ahead {
    /// The reader looks at the commit of that `generation` from here on, and reads `most` bytes at once. Who `saves`
    /// bytes reads over no gap.
    pub fn look_at(&mut self, generation: Generation, most: u64, saves: bool) {
        if self.of != Some(generation) {
            self.of = Some(generation);
            self.copies.iter_mut().for_each(|window| window.len = 0);
        }
        self.most = usize::try_from(most).unwrap_or(usize::MAX);
        self.near = if saves { 0 } else { NEAR };
    }

    /// Bytes that were asked of the device, also such as nobody came to.
    pub fn asked(&self) -> u64 {
        self.asked
    }

    /// `len` bytes of a copy, whose number says nothing but that the last ones with it were near.
    pub(crate) fn read(
        &mut self,
        volume: &Volume,
        (copy, at): (usize, Physical),
        len: usize,
    ) -> Result<&[u8]> {
        if self.copies.len() <= copy {
            self.copies.resize_with(copy + 1, Window::default);
        }
        let window = &mut self.copies[copy];
        let near = at.0 >= window.end && at.0 - window.end <= self.near;
        window.end = at.0.saturating_add(len as u64);
        if !window.has(at.0, len) {
            let left = volume.device_len().saturating_sub(at.0);
            let ahead = match near && at.0 >= window.bad_until {
                true => window.size.saturating_mul(2).min(self.most),
                false => len,
            };
            let ahead = ahead.min(usize::try_from(left).unwrap_or(usize::MAX)).max(len);
            self.asked += ahead as u64;
            window.fill(volume, at, (len, ahead))?;
        }
        let from = window.pad + (at.0 - window.start) as usize;
        Ok(&window.room[from..from + len])
    }
}

impl Window {
    fn has(&self, at: u64, len: usize) -> bool {
        let within = at.checked_sub(self.start).and_then(|within| usize::try_from(within).ok());
        within.and_then(|within| within.checked_add(len)).is_some_and(|end| end <= self.len)
    }

    /// `len` bytes from `at` on, or as many as can be read `ahead`.
    fn fill(&mut self, volume: &Volume, at: Physical, (len, ahead): (usize, usize)) -> Result<()> {
        if self.room.len() < ahead + ALIGN {
            self.room = vec![0; ahead + ALIGN];
            self.pad = self.room.as_ptr().align_offset(ALIGN).min(ALIGN);
        }
        (self.len, self.size) = (0, ahead);
        if ahead > len {
            let room = &mut self.room[self.pad..][..ahead];
            if volume.try_medium(at, room).is_ok() {
                (self.start, self.len) = (at.0, ahead);
                return Ok(());
            }
            (self.size, self.bad_until) = (len, at.0 + ahead as u64);
        }
        volume.read_physical(Source::Medium, at, &mut self.room[self.pad..][..len])?;
        (self.start, self.len) = (at.0, len);
        Ok(())
    }
}
