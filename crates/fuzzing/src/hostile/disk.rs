//! A device that shows a shared base image with changes of its own on top: each case costs
//! only what it writes.

use blockdev::{BlockDevice, MemDevice};
use parking_lot::RwLock;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const BLOCK: u64 = 4096;

pub struct Layered {
    base: Arc<MemDevice>,
    len: u64,
    own: RwLock<HashMap<u64, Box<[u8]>>>,
    writes: AtomicU64,
}

impl Layered {
    pub fn new(base: &Arc<MemDevice>) -> Layered {
        Layered::cut(base, base.len())
    }

    /// Only the first `len` bytes of the base.
    pub fn cut(base: &Arc<MemDevice>, len: u64) -> Layered {
        let own = RwLock::default();
        Layered { base: base.clone(), len, own, writes: AtomicU64::new(0) }
    }

    /// Writes since the start, or since `forget_writes`.
    pub fn writes(&self) -> u64 {
        self.writes.load(Ordering::SeqCst)
    }

    pub fn forget_writes(&self) {
        self.writes.store(0, Ordering::SeqCst);
    }

    /// What stands over the base: offsets and blocks.
    pub fn own(&self) -> Vec<(u64, Vec<u8>)> {
        let own = self.own.read();
        own.iter().map(|(number, block)| (number * BLOCK, block.to_vec())).collect()
    }

    fn check(&self, offset: u64, len: usize) -> io::Result<()> {
        match offset.checked_add(len as u64) {
            Some(end) if end <= self.len => Ok(()),
            _ => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "behind the end")),
        }
    }

    fn block(&self, number: u64) -> io::Result<Box<[u8]>> {
        let mut block = vec![0; BLOCK as usize].into_boxed_slice();
        let at = number * BLOCK;
        let len = BLOCK.min(self.base.len() - at) as usize;
        self.base.read_at(at, &mut block[..len])?;
        Ok(block)
    }
}

/// Block number, offset in it and length of each piece of a range.
fn pieces(mut offset: u64, len: usize) -> Vec<(u64, usize, usize)> {
    let end = offset + len as u64;
    let mut pieces = Vec::new();
    while offset < end {
        let within = offset % BLOCK;
        let take = (BLOCK - within).min(end - offset);
        pieces.push((offset / BLOCK, within as usize, take as usize));
        offset += take;
    }
    pieces
}

impl BlockDevice for Layered {
    fn len(&self) -> u64 {
        self.len
    }

    fn read_only(&self) -> bool {
        false
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.check(offset, buf.len())?;
        self.base.read_at(offset, buf)?;
        let own = self.own.read();
        let mut done = 0;
        for (number, within, take) in pieces(offset, buf.len()) {
            if let Some(block) = own.get(&number) {
                buf[done..done + take].copy_from_slice(&block[within..within + take]);
            }
            done += take;
        }
        Ok(())
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
        self.check(offset, buf.len())?;
        self.writes.fetch_add(1, Ordering::SeqCst);
        let mut own = self.own.write();
        let mut done = 0;
        for (number, within, take) in pieces(offset, buf.len()) {
            let block = match own.entry(number) {
                Entry::Occupied(slot) => slot.into_mut(),
                Entry::Vacant(slot) => slot.insert(self.block(number)?),
            };
            block[within..within + take].copy_from_slice(&buf[done..done + take]);
            done += take;
        }
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }

    /// What is discarded is lost: it reads as something else.
    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.check(offset, len as usize)?;
        self.writes.fetch_add(1, Ordering::SeqCst);
        let mut own = self.own.write();
        for (number, within, take) in pieces(offset, len as usize) {
            // Whole blocks at the most: nobody discards less.
            if (within, take) == (0, BLOCK as usize) {
                own.insert(number, vec![0xD5; take].into_boxed_slice());
            }
        }
        Ok(())
    }

    fn name(&self) -> String {
        "layered".into()
    }
}
