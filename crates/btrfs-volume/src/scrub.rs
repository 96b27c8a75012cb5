//! Reading every copy of what is stored, not the first good one: what is bad is counted, and
//! written anew from a copy that is good. It is the medium that is read (`BlockDevice::read_medium`), also for the
//! looks behind a repair: what the machine has in its memory tells nothing of that.
//!
//! Errors are counted as `btrfs scrub` counts them: by sector and copy, those of a node for each
//! sector that it has.
//!
//! What it does not know: what is stored where. The caller sees to it that nothing of what he
//! names is freed meanwhile.

use crate::Volume;
use crate::ahead::Ahead;
use crate::counters::add;
use crate::read::Source::Medium;
use crate::superblock::{self, super_copies};
use btrfs_disk::{
    Corrupt, DamageKind, Error, Expect, Logical, Node, Physical, Result, buffers, check,
};

/// Sectors that are read at once.
/// Chosen, not measured.
const BATCH: usize = 256;

macro_rules! scrubbed {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// What was read, and what was wrong with it.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
        pub struct Scrubbed { $($(#[$doc])* pub $name: u64),* }

        impl Scrubbed {
            /// Each number with the name that `btrfs scrub -R` gives it, always in this order.
            pub fn list(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name)),*]
            }

            /// From the numbers of `list`; those that are missing are 0.
            pub fn from_numbers(mut numbers: impl Iterator<Item = u64>) -> Scrubbed {
                Scrubbed { $($name: numbers.next().unwrap_or(0)),* }
            }

            /// These, too.
            pub fn add(&mut self, more: &Scrubbed) {
                $(self.$name = self.$name.saturating_add(more.$name);)*
            }
        }
    };
}

scrubbed! {
    /// Extents of file content, once for each copy and each stripe of 64 KiB that they lie in.
    data_extents_scrubbed,
    /// Nodes, once for each copy.
    tree_extents_scrubbed,
    /// Bytes of file content that were read.
    data_bytes_scrubbed,
    /// Bytes of nodes that were read.
    tree_bytes_scrubbed,
    /// Sectors that the device refused to read.
    read_errors,
    /// Sectors of content that fail their checksum.
    csum_errors,
    /// Sectors of nodes that are not what their pointer promises.
    verify_errors,
    /// Sectors of content that have no checksum.
    no_csum,
    /// Superblocks that are damaged.
    super_errors,
    /// Sectors that are bad and that no other copy has.
    uncorrectable_errors,
    /// Sectors that are bad and that another copy has: written anew, unless nothing is.
    corrected_errors,
}

impl Scrubbed {
    /// Bytes that were read.
    pub fn bytes(&self) -> u64 {
        self.data_bytes_scrubbed.saturating_add(self.tree_bytes_scrubbed)
    }

    /// Whether something was wrong.
    pub fn has_errors(&self) -> bool {
        let errors = [self.read_errors, self.csum_errors, self.verify_errors, self.super_errors];
        errors.iter().any(|count| *count > 0) || self.uncorrectable_errors > 0
    }
}

/// Of a sector of one copy.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SectorState {
    Good,
    Unread,
    Wrong,
}

impl Volume {
    /// Reads all copies of the node that `expect` promises; with `repair` bad ones are written
    /// anew. An error is of the address alone, or `ReadOnly`: a bad copy stays for now.
    pub fn scrub_node(&self, expect: &Expect, repair: bool, ahead: &mut Ahead) -> Result<Scrubbed> {
        let size = u64::from(self.geometry.node_size);
        let sectors = (size / u64::from(self.geometry.sector_size)).max(1);
        let mapping = self.map(expect.logical, size)?;
        let mut done = Scrubbed::default();
        let mut bad = Vec::new();
        let mut good = None;
        for (copy, at) in mapping.copies().iter().enumerate() {
            done.tree_extents_scrubbed += 1;
            done.tree_bytes_scrubbed += size;
            match self.node_ahead(expect, (copy, *at), ahead) {
                Ok(_) => good = good.or(Some(*at)),
                Err(error) => {
                    match &error {
                        Error::Io { .. } => done.read_errors += sectors,
                        _ => done.verify_errors += sectors,
                    }
                    self.count_generation(&error);
                    self.complain(expect.logical, *at, &error);
                    bad.push(*at);
                }
            }
        }
        for at in bad {
            let corrected = match good {
                Some(good) if repair => {
                    self.repair_node(Medium, expect, (at, good));
                    self.is_mended(self.node_copy(Medium, expect, at).is_ok())?
                }
                good => good.is_some(),
            };
            done.ended(corrected, sectors);
        }
        Ok(done)
    }

    /// Of a bad copy of which there is a good one, and which is `good` itself by now, or not. An error where nothing
    /// could be tried, since nothing may be written: that it cannot be corrected nobody knows.
    fn is_mended(&self, good: bool) -> Result<bool> {
        match good || self.repairs() {
            true => Ok(good),
            false => Err(Error::ReadOnly("a bad copy is to be written anew".into())),
        }
    }

    fn node_ahead(
        &self,
        expect: &Expect,
        of: (usize, Physical),
        ahead: &mut Ahead,
    ) -> Result<Node> {
        let bytes = ahead.read(self, of, self.geometry.node_size as usize)?;
        Ok(check::node(buffers::of(bytes), &self.geometry, expect)?)
    }

    /// Reads all copies of `known.len()` sectors of content from `logical` on, which lie in one
    /// chunk; `sums` has a checksum for each that is `known` to have one.
    pub fn scrub_data(
        &self,
        logical: Logical,
        (sums, known): (&[u8], &[bool]),
        repair: bool,
        ahead: &mut Ahead,
    ) -> Result<Scrubbed> {
        let sector = u64::from(self.geometry.sector_size);
        let mut done = Scrubbed::default();
        let size = self.geometry.csum.size();
        for (at, known) in known.chunks(BATCH).enumerate() {
            let first = at * BATCH;
            let sums = sums.get(first * size..(first + known.len()) * size);
            let Some(sums) = sums else { return Err(Corrupt::new("checksums are missing").into()) };
            let at = logical.offset(first as u64 * sector);
            done.add(&self.scrub_batch(at, (sums, known), repair, ahead)?);
        }
        Ok(done)
    }

    fn scrub_batch(
        &self,
        logical: Logical,
        (sums, known): (&[u8], &[bool]),
        repair: bool,
        ahead: &mut Ahead,
    ) -> Result<Scrubbed> {
        let (size, sector) = (self.geometry.csum.size(), self.geometry.sector_size as usize);
        let mapping = self.map(logical, (known.len() * sector) as u64)?;
        let mut done = Scrubbed::default();
        let mut fates = Vec::new();
        for (copy, at) in mapping.copies().iter().enumerate() {
            done.data_bytes_scrubbed += (known.len() * sector) as u64;
            done.no_csum += known.iter().filter(|known| !**known).count() as u64;
            fates.push(self.fates((copy, *at), (sums, known), ahead));
        }
        for i in 0..known.len() {
            let at = |copy: usize| Physical(mapping.copies()[copy].0 + (i * sector) as u64);
            let good = fates.iter().position(|copy| copy[i] == SectorState::Good);
            for (copy, fate) in fates.iter().map(|copy| copy[i]).enumerate() {
                match fate {
                    SectorState::Good => continue,
                    SectorState::Unread => done.read_errors += 1,
                    SectorState::Wrong => done.csum_errors += 1,
                }
                let logical = logical.offset((i * sector) as u64);
                let what = Corrupt::new("content fails its checksum, or cannot be read");
                self.complain(logical, at(copy), &Error::Corrupt(what.at(logical)));
                let sum = known[i].then(|| &sums[i * size..][..size]);
                let corrected = match good {
                    Some(good) if repair => self.mend_sector(logical, (at(copy), at(good)), sum)?,
                    good => good.is_some(),
                };
                done.ended(corrected, 1);
            }
        }
        Ok(done)
    }

    /// Of all that can be wrong with a node the kernel's scrub puts this alone into the statistics of
    /// the device.
    fn count_generation(&self, error: &Error) {
        if matches!(error, Error::Corrupt(corrupt) if corrupt.kind == DamageKind::Generation) {
            add(&self.counters.generation_errors, 1);
        }
    }

    /// Without a checksum what can be read is good, as in the kernel: of copies that differ nothing says which is
    /// right, and none of them is bad.
    fn mend_sector(
        &self,
        logical: Logical,
        (bad, good): (Physical, Physical),
        sum: Option<&[u8]>,
    ) -> Result<bool> {
        self.repair_sector(Medium, logical, (bad, good), sum);
        let mut buf = vec![0; self.geometry.sector_size as usize];
        self.is_mended(self.sector_copy(Medium, bad, &mut buf, sum).is_ok())
    }

    /// What each sector of one copy is.
    fn fates(
        &self,
        (copy, at): (usize, Physical),
        (sums, known): (&[u8], &[bool]),
        ahead: &mut Ahead,
    ) -> Vec<SectorState> {
        let (size, sector) = (self.geometry.csum.size(), self.geometry.sector_size as usize);
        let whole = ahead.read(self, (copy, at), known.len() * sector).ok();
        let mut apart = vec![0; sector];
        let sectors = sums.chunks(size).zip(known).enumerate();
        sectors
            .map(|(i, (sum, known))| {
                let at = Physical(at.0 + (i * sector) as u64);
                let part = match whole {
                    Some(bytes) => &bytes[i * sector..][..sector],
                    None if self.read_physical(Medium, at, &mut apart).is_ok() => &apart,
                    None => return SectorState::Unread,
                };
                if *known && !self.matches(part, sum) {
                    add(&self.counters.corruption_errors, 1);
                    return SectorState::Wrong;
                }
                SectorState::Good
            })
            .collect()
    }

    /// Reads the superblock's copies; with `repair` damaged ones are written anew: as the others are, which may lead
    /// to a log that the last commit did not, and may be older than a commit that is not durable yet.
    pub fn scrub_superblocks(&self, repair: bool) -> Result<Scrubbed> {
        let mut known = self.commit.lock();
        let superblock = self.written.read().clone();
        let is_bad = |at: &u64| !superblock::is_on_medium(&*self.dev, *at, &superblock);
        let copies = super_copies(superblock.fields.dev_item.total_bytes);
        let bad: Vec<u64> = copies.filter(is_bad).collect();
        let done = Scrubbed { super_errors: bad.len() as u64, ..Scrubbed::default() };
        if repair && !bad.is_empty() && self.repairs() {
            let refused = &mut known.refused;
            superblock::may_be_refused(refused, &bad);
            self.write_copies(refused, &superblock, |at| bad.contains(&at))?;
            self.flush()?;
            let mended = bad.iter().filter(|at| !refused.contains(at)).count();
            add(&self.counters.superblock_repairs, mended as u64);
        }
        Ok(done)
    }
}

impl Scrubbed {
    fn ended(&mut self, corrected: bool, sectors: u64) {
        match corrected {
            true => self.corrected_errors += sectors,
            false => self.uncorrectable_errors += sectors,
        }
    }
}
