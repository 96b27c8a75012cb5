//! The device that a file system runs on: content in memory, and a record of what came.
//!
//! Invariants: events are in the order in which the device took them. A flush is recorded
//! when it is called, so it covers only writes that had returned by then. A write that
//! failed may have arrived (the record has it) or not: see `SimDevice::failing`.

use crate::crash::{Forgotten, Recording, WriteFate, apply};
use crate::event::Event;
use crate::faults::{Access, Counter, Counts, Fault};
use crate::image::{BLOCK, Block, Blocks, Image, check_range, pieces, put};
use blockdev::BlockDevice;
use parking_lot::{Mutex, RwLock};
use std::collections::HashMap;
use std::io;
use std::sync::Arc;

/// What a device says it did and did not do, for tests of the tests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lie {
    /// Every flush is dropped.
    AllFlushes,
    /// Of each `every` flushes, the one with this number is dropped.
    FlushOf { every: u64, number: u64 },
}

impl Lie {
    fn drops(self, flush: u64) -> bool {
        match self {
            Lie::AllFlushes => true,
            Lie::FlushOf { every, number } => flush % every == number,
        }
    }
}

/// Runs before each read, write and flush takes effect (with the offset), on the thread that
/// makes it, with no lock held: it may wait, and let others use the device meanwhile.
pub type Hook = Arc<dyn Fn(Access, u64) + Send + Sync>;

/// What came, but for what was forgotten: that is `durable`, over the device's base.
#[derive(Default)]
struct Record {
    durable: Blocks,
    forgotten: Forgotten,
    events: Vec<Event>,
    /// What the writes among the events hold.
    bytes: usize,
    recent: Recent,
}

impl Record {
    /// Up to the last flush among the first `before` events everything arrived, whichever way.
    fn forget(&mut self, base: &Image, now: &Blocks, before: usize) {
        let Record { durable, forgotten, events, bytes, .. } = self;
        let flushed = events[..before].iter().rposition(|event| matches!(event, Event::Flush));
        for event in events.drain(..flushed.map_or(0, |flush| flush + 1)) {
            forgotten.events += 1;
            forgotten.flushes += usize::from(matches!(event, Event::Flush));
            apply(durable, base, &event, WriteFate::Arrived);
            if let Event::Write { offset, data } = &event {
                *bytes -= data.len();
                share(durable, now, *offset, data.len());
            }
        }
    }
}

pub struct SimDevice {
    base: Image,
    blocks: RwLock<Blocks>,
    record: Mutex<Record>,
    lie: Option<Lie>,
    /// Bytes of writes that are kept in the order in which they came, if that is bounded.
    most: Option<usize>,
    faults: Mutex<Vec<Fault>>,
    counter: Counter,
    hook: Option<Hook>,
    /// What a discarded range reads as afterwards.
    discarded: u8,
}

impl SimDevice {
    pub fn new(base: Image) -> SimDevice {
        SimDevice {
            base,
            blocks: RwLock::default(),
            record: Mutex::default(),
            lie: None,
            most: None,
            faults: Mutex::default(),
            counter: Counter::default(),
            hook: None,
            discarded: 0xd5,
        }
    }

    pub fn lying(mut self, lie: Option<Lie>) -> SimDevice {
        self.lie = lie;
        self
    }

    pub fn hooked(mut self, hook: Option<Hook>) -> SimDevice {
        self.hook = hook;
        self
    }

    /// Remembers `most` bytes of writes, and what came since the last flush. At a flush with more of
    /// them the record is forgotten: one call may write many times what the volume holds.
    pub fn keeping(mut self, most: usize) -> SimDevice {
        self.most = Some(most);
        self
    }

    /// A failing write arrives in part: its first half.
    pub fn failing(self, faults: &[Fault]) -> SimDevice {
        self.set_faults(faults);
        self
    }

    /// Counting goes on: `nth` counts from the device's start.
    pub fn set_faults(&self, faults: &[Fault]) {
        *self.faults.lock() = faults.to_vec();
    }

    pub fn counts(&self) -> Counts {
        self.counter.counts()
    }

    /// Events so far: a place in the record.
    pub fn position(&self) -> usize {
        let record = self.record.lock();
        record.forgotten.events + record.events.len()
    }

    /// Nobody asks for a crash before `position` any more: what flushes had made durable by then is
    /// kept, and not how. A record grows with every write, a volume does not.
    pub fn forget(&self, position: usize) {
        let mut record = self.record.lock();
        let before = position.saturating_sub(record.forgotten.events).min(record.events.len());
        record.forget(&self.base, &self.blocks.read(), before);
    }

    /// What has come so far.
    pub fn recording(&self) -> Recording {
        let record = self.record.lock();
        let base = Image::over(&self.base, record.durable.clone());
        Recording { base, forgotten: record.forgotten, events: record.events.clone() }
    }

    /// The content if everything arrives.
    pub fn image(&self) -> Image {
        Image::over(&self.base, self.blocks.read().clone())
    }

    fn pass(&self, access: Access, offset: u64) -> io::Result<u64> {
        if let Some(hook) = &self.hook {
            hook(access, offset);
        }
        self.counter.pass(access, &self.faults.lock())
    }

    fn store(&self, offset: u64, data: Arc<[u8]>) {
        // Content and record change together, or two writes of one block could differ in order.
        let mut record = self.record.lock();
        let mut blocks = self.blocks.write();
        put(&mut blocks, &self.base, offset, &data);
        record.recent.share(&mut blocks, offset, &data);
        drop(blocks);
        record.bytes += data.len();
        record.events.push(Event::Write { offset, data });
    }

    fn take(&self, offset: u64, data: Arc<[u8]>) -> io::Result<()> {
        check_range(self.len(), offset, data.len() as u64)?;
        if let Err(error) = self.pass(Access::Write, offset) {
            self.store(offset, data[..data.len() / 2].into());
            return Err(error);
        }
        self.store(offset, data);
        Ok(())
    }
}

/// What is durable of a range and still there is held once.
fn share(durable: &mut Blocks, now: &Blocks, offset: u64, len: usize) {
    for piece in pieces(offset, len) {
        if let (Some(old), Some(new)) = (durable.get_mut(&piece.block), now.get(&piece.block)) {
            old.share(new);
        }
    }
}

/// Copies of a node are written one after the other: the blocks of the second one are those of the
/// first.
#[derive(Default)]
struct Recent(HashMap<u64, Block>);

impl Recent {
    /// Places, by a few bytes of a block.
    const PLACES: u64 = 4096;

    fn share(&mut self, blocks: &mut Blocks, offset: u64, data: &[u8]) {
        for piece in pieces(offset, data.len()) {
            let part = &data[piece.range];
            let (Some(block), true) = (blocks.get_mut(&piece.block), part.len() as u64 == BLOCK)
            else {
                continue;
            };
            let place = part.chunks(64).fold(0, |hash: u64, line| {
                let word = line.first_chunk().map_or(0, |word| u64::from_le_bytes(*word));
                (hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29)
            }) % Recent::PLACES;
            if let Some(recent) = self.0.get(&place) {
                block.share(recent);
            }
            self.0.insert(place, block.clone());
        }
    }
}

impl BlockDevice for SimDevice {
    fn len(&self) -> u64 {
        self.base.len()
    }

    fn read_only(&self) -> bool {
        false
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.pass(Access::Read, offset)?;
        check_range(self.len(), offset, buf.len() as u64)?;
        let blocks = self.blocks.read();
        for piece in pieces(offset, buf.len()) {
            let part = &mut buf[piece.range];
            match blocks.get(&piece.block).or_else(|| self.base.block(piece.block)) {
                Some(block) => block.read(piece.within, part),
                None => part.fill(0),
            }
        }
        Ok(())
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
        self.take(offset, buf.into())
    }

    fn write_vectored_at(&self, offset: u64, bufs: &[&[u8]]) -> io::Result<()> {
        self.take(offset, bufs.concat().into())
    }

    fn flush(&self) -> io::Result<()> {
        let number = self.pass(Access::Flush, 0)?;
        if !self.lie.is_some_and(|lie| lie.drops(number)) {
            let mut record = self.record.lock();
            record.events.push(Event::Flush);
            if self.most.is_some_and(|most| record.bytes > most) {
                let before = record.events.len();
                record.forget(&self.base, &self.blocks.read(), before);
            }
        }
        Ok(())
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        check_range(self.len(), offset, len)?;
        let mut record = self.record.lock();
        let garbage = vec![self.discarded; len as usize];
        put(&mut self.blocks.write(), &self.base, offset, &garbage);
        record.events.push(Event::Discard { offset, len });
        Ok(())
    }

    fn name(&self) -> String {
        "simulated".into()
    }
}
