//! Verified reads: the first good copy answers, bad ones are counted and rewritten.
//!
//! A repair happens only where a verified copy is at hand (of content without a checksum, one that can be read where
//! another cannot), holds every writer off, and
//! looks again before it writes: an address that was freed and written anew between
//! the failed read and the repair is left alone.

use crate::Volume;
use crate::counters::add;
use crate::write::touches_superblock;
use btrfs_disk::{
    Corrupt, DamageKind, Error, Expect, Logical, Node, Physical, Result, buffers, check,
};
use std::io;
use tracing::warn;

/// Bytes of nodes that are read at once: few enough to be in the processor's cache still when they are judged.
/// Chosen, not measured.
const TOGETHER: usize = 256 << 10;

/// Where bytes are read from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Source {
    /// Wherever the machine has them.
    Cache,
    /// `BlockDevice::read_medium`.
    Medium,
}

impl Volume {
    /// The verified node that `expect` promises.
    pub fn read_node(&self, expect: &Expect) -> Result<Node> {
        let size = self.geometry.node_size as usize;
        let mapping = self.map(expect.logical, size as u64)?;
        let mut failure: Option<Error> = None;
        for (mirror, at) in mapping.copies().iter().enumerate() {
            match self.node_copy(Source::Cache, expect, *at) {
                Ok(node) => {
                    for bad in &mapping.copies()[..mirror] {
                        self.repair_node(Source::Cache, expect, (*bad, *at));
                    }
                    return Ok(node);
                }
                Err(error) => {
                    self.complain(expect.logical, *at, &error);
                    // What the first copy says is wrong tells more than a later one.
                    failure.get_or_insert(error.in_copy(mirror));
                }
            }
        }
        add(&self.counters.unrecoverable, 1);
        Err(failure.unwrap_or_else(|| Error::corrupt("chunk without copies")))
    }

    /// The same of nodes whose addresses ascend: adjacent ones are read together.
    pub fn read_nodes(&self, expects: &[Expect]) -> Result<Vec<Node>> {
        let size = self.geometry.node_size as usize;
        let (mut nodes, mut bytes) = (Vec::with_capacity(expects.len()), Vec::new());
        // Pointers may lead anywhere, also to the end of all addresses.
        let behind = |a: &Expect| a.logical.0.checked_add(size as u64);
        let adjacent = |a: &Expect, b: &Expect| behind(a) == Some(b.logical.0);
        let runs = expects.chunk_by(adjacent).flat_map(|run| run.chunks((TOGETHER / size).max(1)));
        for run in runs {
            bytes.resize(run.len() * size, 0);
            let is_read = self.read_first_copy(run[0].logical, &mut bytes);
            for (expect, bytes) in run.iter().zip(bytes.chunks(size)) {
                let node = is_read.then(|| check::node(buffers::of(bytes), &self.geometry, expect));
                // Of one that is bad by itself the other copy is asked.
                nodes.push(
                    node.and_then(|node| node.ok()).map_or_else(|| self.read_node(expect), Ok)?,
                );
            }
        }
        Ok(nodes)
    }

    /// False: there are not so many bytes behind one another that can be read.
    fn read_first_copy(&self, logical: Logical, buf: &mut [u8]) -> bool {
        let mapping = self.map(logical, buf.len() as u64);
        let first = mapping.ok().and_then(|mapping| mapping.copies().first().copied());
        first.is_some_and(|at| self.read_physical(Source::Cache, at, buf).is_ok())
    }

    /// File content at `logical`. With `sums`, one checksum a sector, every byte that is
    /// returned has been verified; without, the first copy that can be read answers, where it is known
    /// that the chunk is there.
    pub fn read_data(&self, logical: Logical, buf: &mut [u8], sums: Option<&[u8]>) -> Result<()> {
        match sums {
            Some(sums) => self.read_verified(logical, buf, sums),
            None if self.is_doubted(logical) => {
                let what =
                    "content without a checksum, in a chunk that only an older chunk tree tells of";
                Err(Corrupt::new(what).kind(DamageKind::Content).at(logical).into())
            }
            None => self.read_any(logical, buf),
        }
    }

    /// The same whatever it is.
    pub fn read_blindly(&self, logical: Logical, buf: &mut [u8]) -> Result<()> {
        self.read_any(logical, buf)
    }

    /// The bytes of one copy, unverified: for scrubbing and rescue.
    pub fn read_mirror(&self, logical: Logical, mirror: usize, buf: &mut [u8]) -> Result<()> {
        let mapping = self.map(logical, buf.len() as u64)?;
        let Some(at) = mapping.copies().get(mirror) else {
            return Err(Corrupt::new(format!("there is no copy {mirror}")).at(logical).into());
        };
        self.read_physical(Source::Cache, *at, buf)
    }

    pub(crate) fn read_physical(&self, from: Source, at: Physical, buf: &mut [u8]) -> Result<()> {
        let len = buf.len();
        let read = match from {
            Source::Cache => {
                self.count_read(len);
                self.dev.read_at(at.0, buf)
            }
            Source::Medium => self.try_medium(at, buf),
        };
        read.map_err(|source| {
            add(&self.counters.read_errors, 1);
            Error::io(format!("{}: read of {len} bytes at {at}", self.dev.name()), source)
        })
    }

    /// What nobody needs may fail.
    pub(crate) fn try_medium(&self, at: Physical, buf: &mut [u8]) -> io::Result<()> {
        self.count_read(buf.len());
        self.dev.read_medium(at.0, buf)
    }

    fn count_read(&self, len: usize) {
        add(&self.counters.reads, 1);
        add(&self.counters.read_bytes, len as u64);
    }

    pub(crate) fn complain(&self, logical: Logical, physical: Physical, error: &Error) {
        if matches!(error, Error::Corrupt(_)) {
            add(&self.counters.checksum_errors, 1);
        }
        let device = self.dev.name();
        warn!(%device, logical = logical.0, physical = physical.0, %error, "bad copy");
    }

    pub(crate) fn node_copy(&self, from: Source, expect: &Expect, at: Physical) -> Result<Node> {
        let mut bytes = buffers::zeroed(self.geometry.node_size as usize);
        self.read_physical(from, at, &mut bytes)?;
        Ok(check::node(bytes, &self.geometry, expect)?)
    }

    /// Who has found a copy bad looks again where he has looked before.
    pub(crate) fn repair_node(
        &self,
        from: Source,
        expect: &Expect,
        (bad, good): (Physical, Physical),
    ) {
        let _alone = self.repair.write();
        if !self.repairs() {
            return;
        }
        if self.node_copy(from, expect, bad).is_ok() {
            return;
        }
        if let Ok(node) = self.node_copy(from, expect, good) {
            self.rewrite(expect.logical, bad, node.bytes());
        }
    }

    /// Writes a verified copy over a bad one; the caller holds writers off.
    fn rewrite(&self, logical: Logical, bad: Physical, bytes: &[u8]) {
        let device = self.dev.name();
        if touches_superblock(bad, bytes.len() as u64) {
            warn!(%device, physical = bad.0, "no repair over a superblock copy");
            return;
        }
        match self.write_repair(bad, bytes) {
            Ok(()) => {
                add(&self.counters.repairs, 1);
                warn!(%device, logical = logical.0, physical = bad.0, "bad copy repaired");
            }
            Err(error) => {
                warn!(%device, logical = logical.0, physical = bad.0, %error, "repair failed");
            }
        }
    }

    /// All of it at once if the first copy can be read, else each sector from whichever copy can.
    fn read_any(&self, logical: Logical, buf: &mut [u8]) -> Result<()> {
        let mapping = self.map(logical, buf.len() as u64)?;
        let Some(first) = mapping.copies().first() else {
            return Err(Corrupt::new("chunk without copies").at(logical).into());
        };
        if self.read_physical(Source::Cache, *first, buf).is_ok() {
            return Ok(());
        }
        let sector = self.geometry.sector_size as usize;
        for (i, part) in buf.chunks_mut(sector).enumerate() {
            let offset = (i * sector) as u64;
            let copies: Vec<Physical> =
                mapping.copies().iter().map(|at| Physical(at.0 + offset)).collect();
            self.read_sector(logical.offset(offset), &copies, part, None)?;
        }
        Ok(())
    }

    fn read_verified(&self, logical: Logical, buf: &mut [u8], sums: &[u8]) -> Result<()> {
        let sector = self.geometry.sector_size as usize;
        let size = self.geometry.csum.size();
        if !buf.len().is_multiple_of(sector) || sums.len() != buf.len() / sector * size {
            let what = format!("{} bytes with {} bytes of checksums", buf.len(), sums.len());
            return Err(Corrupt::new(what).at(logical).into());
        }
        let mapping = self.map(logical, buf.len() as u64)?;
        let Some(first) = mapping.copies().first() else {
            return Err(Corrupt::new("chunk without copies").at(logical).into());
        };
        let whole = self.read_physical(Source::Cache, *first, buf).is_ok();
        for (i, part) in buf.chunks_mut(sector).enumerate() {
            let sum = &sums[i * size..][..size];
            if whole && self.matches(part, sum) {
                continue;
            }
            let offset = (i * sector) as u64;
            let copies: Vec<Physical> =
                mapping.copies().iter().map(|at| Physical(at.0 + offset)).collect();
            self.read_sector(logical.offset(offset), &copies, part, Some(sum))?;
        }
        Ok(())
    }

    pub(crate) fn matches(&self, sector: &[u8], sum: &[u8]) -> bool {
        self.geometry.csum.digest(sector)[..sum.len()] == *sum
    }

    /// A sector as one copy has it; without a checksum it is good if it can be read.
    pub(crate) fn sector_copy(
        &self,
        from: Source,
        at: Physical,
        buf: &mut [u8],
        sum: Option<&[u8]>,
    ) -> Result<()> {
        self.read_physical(from, at, buf)?;
        if sum.is_none_or(|sum| self.matches(buf, sum)) {
            return Ok(());
        }
        Err(Corrupt::new("data fails its checksum").kind(DamageKind::Content).into())
    }

    /// One sector from whichever copy is good; repairs the others.
    fn read_sector(
        &self,
        logical: Logical,
        copies: &[Physical],
        buf: &mut [u8],
        sum: Option<&[u8]>,
    ) -> Result<()> {
        let mut failure: Option<Error> = None;
        for (mirror, at) in copies.iter().enumerate() {
            let error = match self.sector_copy(Source::Cache, *at, buf, sum) {
                Ok(()) => {
                    // Of less than a sector nothing is written.
                    let whole = buf.len() == self.geometry.sector_size as usize;
                    for bad in copies[..mirror].iter().filter(|_| whole) {
                        self.repair_sector(Source::Cache, logical, (*bad, *at), sum);
                    }
                    return Ok(());
                }
                Err(Error::Corrupt(corrupt)) => {
                    add(&self.counters.corruption_errors, 1);
                    Error::Corrupt(corrupt.at(logical))
                }
                Err(error) => error,
            };
            self.complain(logical, *at, &error);
            failure.get_or_insert(error.in_copy(mirror));
        }
        buf.fill(0);
        add(&self.counters.unrecoverable, 1);
        Err(failure.unwrap_or_else(|| Error::corrupt("chunk without copies")))
    }

    /// As `repair_node`.
    pub(crate) fn repair_sector(
        &self,
        from: Source,
        logical: Logical,
        (bad, good): (Physical, Physical),
        sum: Option<&[u8]>,
    ) {
        let _alone = self.repair.write();
        if !self.repairs() {
            return;
        }
        // Who writes does so in both copies, and is held off: they are of one time.
        let mut buf = vec![0; self.geometry.sector_size as usize];
        if self.sector_copy(from, bad, &mut buf, sum).is_ok() {
            return;
        }
        if self.sector_copy(from, good, &mut buf, sum).is_ok() {
            self.rewrite(logical, bad, &buf);
        }
    }
}
