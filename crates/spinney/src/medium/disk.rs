//! A whole disk: what its partition table says lies where.
//!
//! Reads an MBR with its logical partitions, numbered as Linux does, and a GPT (UEFI specification
//! 2.10, 5.2.1 and 5.3) with sectors of 512 or 4096 bytes. A GPT is believed if its checksums are right, or
//! those of its copy at the end of the disk are.
//!
//! Invariant: what is given to be written meets no other partition, no table, and ends on the disk,
//! whatever the table says. It does not know what is in partitions, nor disks with an MBR of other
//! sectors than 512 bytes.

use super::image_at;
use crate::error::{Error, Result};
use blockdev::Span;
use std::collections::HashSet;
use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

const SECTOR: u64 = 512;
/// Linux numbers no more partitions of a disk.
const MOST: u32 = 255;
/// Bytes of entries that a GPT may have: those that programs make have 16 KiB.
const ENTRIES: u64 = 1 << 20;
/// The first number of logical partitions.
const LOGICAL: u32 = 5;

/// One partition of a disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Partition {
    /// As Linux numbers it.
    pub number: u32,
    /// Where it lies, as the table says: that may be behind the end of the disk.
    pub span: Span,
    /// It has other partitions in it, and nothing else.
    pub is_extended: bool,
}

/// The partitions of a disk, in the order of their numbers.
#[derive(Clone, Debug)]
pub struct Disk {
    path: PathBuf,
    len: u64,
    partitions: Vec<Partition>,
    /// Where the tables themselves lie.
    tables: Vec<Span>,
}

impl Disk {
    /// Reads the partition table of an image or a block device.
    pub fn open(path: impl AsRef<Path>) -> Result<Disk> {
        let path = path.as_ref();
        let mut file = open_to_read(path)?;
        let len = file.seek(SeekFrom::End(0)).map_err(|e| Error::host(path, e))?;
        let mut disk =
            Disk { path: path.to_owned(), len, partitions: Vec::new(), tables: Vec::new() };
        match disk.read(&file) {
            Ok(()) => Ok(disk),
            Err(why) => Err(Error::refused(path.display(), why)),
        }
    }

    /// All of them.
    pub fn partitions(&self) -> &[Partition] {
        &self.partitions
    }

    /// The bytes of partition `number`. To be read only, it may meet others, and is cut where the disk ends.
    pub fn span(&self, number: u32, write: bool) -> Result<Span> {
        let refused = |why: String| Error::refused(self.path.display(), why);
        let Some(found) = self.partitions.iter().find(|found| found.number == number) else {
            return Err(refused(self.has_no(number)));
        };
        if found.is_extended {
            return Err(refused(format!(
                "partition {number} is an extended one, which holds others"
            )));
        }
        let Span { start, len } = found.span;
        if start >= self.len {
            return Err(refused(format!("partition {number} lies behind the end of the disk")));
        }
        if write {
            self.alone(found).map_err(refused)?;
        }
        Ok(Span { start, len: len.min(self.len - start) })
    }

    fn has_no(&self, number: u32) -> String {
        let usable = self.partitions.iter().filter(|there| !there.is_extended);
        let numbers: Vec<String> = usable.map(|there| there.number.to_string()).collect();
        match numbers.as_slice() {
            [] => "its partition table is empty".into(),
            [one] => format!("has no partition {number}, only {one}"),
            all => format!("has no partition {number}; it has {}", all.join(", ")),
        }
    }

    /// Why it must not be written, if so.
    fn alone(&self, found: &Partition) -> std::result::Result<(), String> {
        let number = found.number;
        if found.span.end() > self.len {
            return Err(format!(
                "partition {number} ends behind the end of the disk, and can only be read"
            ));
        }
        if self.tables.iter().any(|table| table.overlaps(found.span)) {
            return Err(format!(
                "partition {number} overlaps the partition table, and can only be read"
            ));
        }
        let meets = |other: &&Partition| {
            other.number != number && other.span.overlaps(found.span)
                // The extended one that it is in.
                && !(other.is_extended && number >= LOGICAL && other.span.contains(found.span))
        };
        match self.partitions.iter().find(meets) {
            Some(Partition { number: other, .. }) => {
                Err(format!("partition {number} overlaps partition {other}, and can only be read"))
            }
            None => Ok(()),
        }
    }

    fn read(&mut self, file: &File) -> std::result::Result<(), String> {
        let disk = Reader { file, len: self.len };
        let sector: Option<[u8; 512]> = disk.read(0);
        let Some(mbr) = sector.filter(|sector| sector[510..] == [0x55, 0xaa]) else {
            return Err("has no partition table".into());
        };
        let entries = mbr_entries(&mbr);
        self.tables.push(Span { start: 0, len: SECTOR });
        let Some(gpt) = entries.iter().any(|entry| entry.kind == PROTECTIVE).then(|| gpt(&disk))
        else {
            self.mbr(&disk, &entries);
            return Ok(());
        };
        let Some(gpt) = gpt else { return Err("its GPT is damaged, and the copy, too".into()) };
        self.partitions = gpt.partitions;
        self.tables.extend(gpt.tables);
        Ok(())
    }

    fn mbr(&mut self, disk: &Reader<'_>, entries: &[Entry; 4]) {
        for (number, entry) in (1..).zip(entries) {
            if let Some(span) = entry.span(0) {
                let is_extended = entry.is_extended();
                self.partitions.push(Partition { number, span, is_extended });
            }
        }
        // Linux as well takes the first one alone.
        let extended =
            self.partitions.iter().find(|there| there.is_extended).map(|there| there.span);
        if let Some(extended) = extended {
            self.logical(disk, extended);
        }
    }

    /// Follows the chain of tables in an extended partition: each has one logical partition, and leads to
    /// the next table. It ends where one leads back, or out.
    fn logical(&mut self, disk: &Reader<'_>, extended: Span) {
        let (mut at, mut seen, mut number) = (extended.start, HashSet::new(), LOGICAL);
        while number <= MOST && seen.insert(at) {
            let Some(table) = disk.read(at).filter(|t: &[u8; 512]| t[510..] == [0x55, 0xaa]) else {
                break;
            };
            self.tables.push(Span { start: at, len: SECTOR });
            let entries = mbr_entries(&table);
            // The two behind them are not in use.
            let here = entries.iter().take(2).filter(|entry| !entry.is_extended());
            for span in here.filter_map(|entry| entry.span(at)) {
                if number <= MOST {
                    self.partitions.push(Partition { number, span, is_extended: false });
                    number += 1;
                }
            }
            let next = entries.iter().filter(|entry| entry.is_extended());
            let Some(next) = next.filter_map(|entry| entry.span(extended.start)).next() else {
                break;
            };
            if !extended.contains(Span { start: next.start, len: SECTOR }) {
                break;
            }
            at = next.start;
        }
    }
}

/// What begins at `start` in an image or a block device, to its end or `most` bytes of it.
pub fn part_of(path: impl AsRef<Path>, start: u64, most: Option<u64>) -> Result<Span> {
    let path = path.as_ref();
    let mut file = open_to_read(path)?;
    let end = file.seek(SeekFrom::End(0)).map_err(|e| Error::host(path, e))?;
    if !start.is_multiple_of(SECTOR) {
        let why = format!("a part cannot begin at {start}, which is within a sector");
        return Err(Error::refused(path.display(), why));
    }
    match end.checked_sub(start).filter(|rest| *rest > 0) {
        Some(rest) => Ok(Span { start, len: most.unwrap_or(rest).min(rest) }),
        None => {
            let why = format!("has {end} bytes, and nothing at {start}");
            Err(Error::refused(path.display(), why))
        }
    }
}

fn open_to_read(path: &Path) -> Result<File> {
    image_at(path)?;
    File::open(path).map_err(|e| Error::host(path, e))
}

struct Reader<'f> {
    file: &'f File,
    len: u64,
}

impl Reader<'_> {
    fn read<const N: usize>(&self, at: u64) -> Option<[u8; N]> {
        let mut bytes = [0; N];
        self.file.read_exact_at(&mut bytes, at).ok().map(|()| bytes)
    }

    fn bytes(&self, at: u64, len: u64) -> Option<Vec<u8>> {
        let mut bytes = vec![0; usize::try_from(len).ok()?];
        self.file.read_exact_at(&mut bytes, at).ok().map(|()| bytes)
    }
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

/// The disk has a GPT: what stands in its MBR is for who does not know that.
const PROTECTIVE: u8 = 0xee;

/// Of an MBR, or of a table in an extended partition.
#[derive(Clone, Copy)]
struct Entry {
    kind: u8,
    first: u64,
    sectors: u64,
}

impl Entry {
    fn is_extended(&self) -> bool {
        matches!(self.kind, 0x05 | 0x0f | 0x85)
    }

    /// `None`: it is not in use. Two numbers of 32 bits have a sum.
    fn span(&self, base: u64) -> Option<Span> {
        let span = Span { start: base + self.first * SECTOR, len: self.sectors * SECTOR };
        (self.sectors > 0).then_some(span)
    }
}

fn mbr_entries(sector: &[u8; 512]) -> [Entry; 4] {
    let number = |at| u32_at(sector, at).unwrap_or(0).into();
    [446, 462, 478, 494].map(|at| Entry {
        kind: sector[at + 4],
        first: number(at + 8),
        sectors: number(at + 12),
    })
}

struct Gpt {
    partitions: Vec<Partition>,
    tables: Vec<Span>,
}

fn gpt(disk: &Reader<'_>) -> Option<Gpt> {
    [512, 4096].into_iter().find_map(|sector| {
        let last = (disk.len / sector).checked_sub(1)?;
        gpt_at(disk, sector, 1).or_else(|| gpt_at(disk, sector, last))
    })
}

/// The table whose header is in sector `at`, with those bytes of the disk that it and its copy take.
fn gpt_at(disk: &Reader<'_>, sector: u64, at: u64) -> Option<Gpt> {
    let header = disk.bytes(at.checked_mul(sector)?, sector)?;
    let size = usize::try_from(u32_at(&header, 12)?).ok()?;
    if !header.starts_with(b"EFI PART") || !(92..=header.len()).contains(&size) {
        return None;
    }
    let mut summed = header[..size].to_vec();
    summed[16..20].fill(0);
    if crc32(&summed) != u32_at(&header, 16)? || u64_at(&header, 24)? != at {
        return None;
    }
    let place = |lba: u64| lba.checked_mul(sector);
    let (count, size) = (u64::from(u32_at(&header, 80)?), u64::from(u32_at(&header, 84)?));
    let len = count.checked_mul(size).filter(|len| size >= 128 && *len <= ENTRIES)?;
    let start = place(u64_at(&header, 72)?)?;
    let entries = disk.bytes(start, len)?;
    if crc32(&entries) != u32_at(&header, 88)? {
        return None;
    }
    let numbered = (1..=MOST).zip(entries.chunks_exact(usize::try_from(size).ok()?));
    let partitions =
        numbered.filter_map(|(number, entry)| gpt_entry(number, entry, sector)).collect();
    // Between these two are the partitions; tables are in front of the first and behind the second.
    let (first, last) =
        (place(u64_at(&header, 40)?)?, place(u64_at(&header, 48)?.checked_add(1)?)?);
    let behind = Span { start: last, len: disk.len.saturating_sub(last) };
    let front = Span { start: 0, len: first };
    Some(Gpt { partitions, tables: vec![front, behind, Span { start, len }] })
}

fn gpt_entry(number: u32, entry: &[u8], sector: u64) -> Option<Partition> {
    if entry[..16] == [0; 16] {
        return None;
    }
    let (first, last) = (u64_at(entry, 32)?, u64_at(entry, 40)?);
    let len = last.checked_sub(first)?.checked_add(1)?.checked_mul(sector)?;
    let span = Span { start: first.checked_mul(sector)?, len };
    span.start.checked_add(len)?;
    Some(Partition { number, span, is_extended: false })
}

/// The CRC-32 of a GPT (that of ISO 3309). There is little of it, so no table.
fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            let odd = crc & 1 != 0;
            crc >> 1 ^ if odd { 0xedb8_8320 } else { 0 }
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A sparse disk of 64 MiB, gone with the value.
    struct Made(PathBuf);

    impl Made {
        fn new(name: &str) -> Made {
            let name = format!("spinney-disk-{name}-{}", std::process::id());
            let path = std::env::temp_dir().join(name);
            File::create(&path).unwrap().set_len(64 << 20).unwrap();
            Made(path)
        }

        fn put(&self, at: u64, bytes: &[u8]) -> &Made {
            File::options().write(true).open(&self.0).unwrap().write_all_at(bytes, at).unwrap();
            self
        }

        /// Entries of a kind, a first sector, a number of sectors.
        fn table(&self, at: u64, entries: &[(u8, u32, u32)]) -> &Made {
            let mut sector = [0; 512];
            for (entry, (kind, first, sectors)) in sector[446..].chunks_mut(16).zip(entries) {
                entry[4] = *kind;
                entry[8..12].copy_from_slice(&first.to_le_bytes());
                entry[12..16].copy_from_slice(&sectors.to_le_bytes());
            }
            sector[510..].copy_from_slice(&[0x55, 0xaa]);
            self.put(at * SECTOR, &sector)
        }

        fn disk(&self) -> Disk {
            Disk::open(&self.0).unwrap()
        }

        fn refused(&self, number: u32, write: bool) -> String {
            self.disk().span(number, write).unwrap_err().to_string()
        }
    }

    impl Drop for Made {
        fn drop(&mut self) {
            let _ = std::fs::remove_file(&self.0);
        }
    }

    #[test]
    fn the_sum_is_that_of_the_standard() {
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
    }

    #[test]
    fn logical_partitions_have_linuxs_numbers_and_loops_end() {
        let made = Made::new("logical");
        made.table(0, &[(0x83, 64, 64), (0x05, 2048, 8192), (0, 0, 0), (0x83, 20480, 64)]);
        made.table(2048, &[(0x83, 63, 100), (0x05, 1024, 512)]);
        // The next one leads back to the first.
        made.table(3072, &[(0x83, 1, 200), (0x05, 0, 8192)]);
        let numbers: Vec<_> = made.disk().partitions().iter().map(|p| p.number).collect();
        assert_eq!(numbers, [1, 2, 4, 5, 6]);
        let span = |number| made.disk().span(number, true).unwrap();
        assert_eq!(span(5), Span { start: (2048 + 63) * SECTOR, len: 100 * SECTOR });
        assert_eq!(span(6), Span { start: 3073 * SECTOR, len: 200 * SECTOR });
        assert!(made.refused(2, false).contains("extended"));
        assert!(made.refused(3, false).contains("has no partition 3; it has 1, 4, 5, 6"));
    }

    #[test]
    fn what_meets_others_or_a_table_is_only_read() {
        let made = Made::new("overlaps");
        made.table(
            0,
            &[(0x83, 64, 1000), (0x83, 1000, 1000), (0x83, 4096, u32::MAX), (0x83, 0, 8)],
        );
        assert!(made.refused(1, true).contains("overlaps partition 2"));
        assert!(made.refused(2, true).contains("overlaps partition 1"));
        assert!(made.refused(3, true).contains("ends behind the end of the disk"));
        assert!(made.refused(4, true).contains("overlaps the partition table"));
        let read = |number| made.disk().span(number, false).unwrap();
        assert_eq!(read(1).len, 1000 * SECTOR);
        assert_eq!(read(3).end(), 64 << 20, "cut at the end");
        made.table(0, &[(0x83, u32::MAX, u32::MAX)]);
        assert!(made.refused(1, false).contains("behind the end"));
        // A logical partition over the table of the next, and one that leaves the extended one.
        made.table(0, &[(0x0f, 2048, 2048), (0x83, 8192, 64)]);
        made.table(2048, &[(0x83, 1, 1500), (0x05, 1024, 512)]);
        made.table(3072, &[(0x83, 1, 6000), (0x05, 60_000, 1)]);
        assert!(made.refused(5, true).contains("overlaps the partition table"));
        assert!(made.refused(6, true).contains("overlaps partition 1"));
        assert_eq!(made.disk().partitions().len(), 4);
    }

    #[test]
    fn endless_chains_end() {
        let made = Made::new("chain");
        made.table(0, &[(0x05, 1, 100_000)]);
        for at in 0..1000 {
            made.table(1 + at, &[(0x83, 1, 1), (0x05, at as u32 + 1, 1)]);
        }
        assert_eq!(made.disk().partitions().last().unwrap().number, MOST);
        // A partition that says that it begins at its own table.
        made.table(1, &[(0x83, 0, 1), (0x05, 0, 1)]);
        assert_eq!(made.disk().partitions().len(), 2);
        assert!(made.refused(5, true).contains("overlaps the partition table"));
    }

    /// Small numbers, so that entries meet often; large ones now and then.
    fn chance(state: &mut u64) -> u32 {
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        let number = (*state >> 32) as u32;
        if number.is_multiple_of(16) { number } else { number % 20_000 }
    }

    /// Whatever a table says: what may be written is on the disk, and nothing else is there.
    #[test]
    fn no_table_leads_out_of_a_partition() {
        let made = Made::new("chance");
        let (mut state, mut given) = (0x9e37_79b9_7f4a_7c15, 0);
        for _ in 0..3000 {
            let kinds = [0x83, 0x83, 0x05, 0];
            for at in [0, 64, 128, 192, 256] {
                let entries = [0; 4].map(|_: u32| {
                    let kind = kinds[chance(&mut state) as usize % 4];
                    // The chain's tables are found now and then.
                    let first = chance(&mut state) / if kind == 5 { 64 } else { 1 };
                    (kind, if kind == 5 { first / 64 * 64 } else { first }, chance(&mut state))
                });
                made.table(at, &entries);
            }
            let disk = made.disk();
            for partition in disk.partitions() {
                let Ok(span) = disk.span(partition.number, true) else { continue };
                given += 1;
                assert!(span == partition.span && span.end() <= 64 << 20 && !partition.is_extended);
                assert!(disk.tables.iter().all(|table| !table.overlaps(span)));
                let others = disk.partitions().iter().filter(|p| p.number != partition.number);
                let meets = |p: &&Partition| p.span.overlaps(span) && !p.span.contains(span);
                assert_eq!(
                    others.filter(|p| !p.is_extended || meets(p)).find(|p| p.span.overlaps(span)),
                    None
                );
            }
        }
        assert!(given > 500, "{given}");
    }

    #[test]
    fn what_is_no_disk_is_none() {
        let nothing = Disk::open("/dev/null").unwrap_err().to_string();
        assert!(nothing.contains("neither an image nor a block device"), "{nothing}");
        let made = Made::new("none");
        assert!(Disk::open(&made.0).unwrap_err().to_string().contains("has no partition table"));
        made.table(0, &[(PROTECTIVE, 1, u32::MAX)]);
        assert!(Disk::open(&made.0).unwrap_err().to_string().contains("GPT is damaged"));
        // Headers that say what nobody should believe.
        for (at, size) in
            [(16, 0), (80, u32::MAX), (84, u32::MAX), (84, 0), (12, u32::MAX), (12, 0)]
        {
            let mut header = [0xff; 512];
            header[..8].copy_from_slice(b"EFI PART");
            header[12..16].copy_from_slice(&92u32.to_le_bytes());
            header[at..at + 4].copy_from_slice(&u32::to_le_bytes(size));
            header[16..20].fill(0);
            let sum = crc32(&header[..92]);
            header[16..20].copy_from_slice(&sum.to_le_bytes());
            made.put(512, &header);
            assert!(Disk::open(&made.0).is_err());
        }
    }
}
