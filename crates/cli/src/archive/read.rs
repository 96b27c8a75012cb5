//! Members of an archive one after the other: POSIX, GNU and old headers, sparse files of every
//! form that GNU tar has written.
//!
//! Every byte is a stranger's: numbers are checked before they are believed, names and maps are
//! limited in length.

use super::pax::{self, Records};
use super::{BLOCK, padding};
use crate::error::{Error, Result, io_text};
use std::io::{ErrorKind, Read};
use tar::{EntryType, GnuExtSparseHeader, GnuSparseHeader, Header};

/// The longest name, record or map that is taken.
const LONGEST: u64 = 64 << 20;

pub struct Reader<R: Read> {
    from: R,
    /// Of the member at hand: bytes not yet read, and what pads them.
    left: u64,
    pad: u64,
    anything: bool,
}

pub struct Member {
    pub name: Vec<u8>,
    pub link: Vec<u8>,
    pub header: Header,
    pub kind: EntryType,
    pub records: Records,
    /// The file's length.
    pub size: u64,
    /// Offsets and lengths of what is in the archive.
    pub pieces: Vec<(u64, u64)>,
}

/// What is behind a member.
enum Next {
    Header(Box<Header>),
    /// A block of zeros.
    End,
    /// Not even that: some writers leave it out, and tools that take archives apart.
    Nothing,
}

impl<R: Read> Reader<R> {
    pub fn new(from: R) -> Reader<R> {
        Reader { from, left: 0, pad: 0, anything: false }
    }

    /// The next member; `None` at the end of the archive.
    pub fn next(&mut self) -> Result<Option<Member>> {
        let (mut records, mut name, mut link) = (Records::new(), None, None);
        loop {
            self.pass_over()?;
            let header = match self.header()? {
                Next::Header(header) => *header,
                Next::End => return self.end().map(|()| None),
                Next::Nothing => {
                    let is_told_of = !records.is_empty() || name.is_some() || link.is_some();
                    return ends_without_marker(is_told_of).map(|()| None);
                }
            };
            let kind = header.entry_type();
            let special = matches!(
                kind,
                EntryType::XHeader | EntryType::GNULongName | EntryType::GNULongLink
            );
            let size = match pax::number(&records, "size").filter(|_| !special) {
                Some(told) => told,
                None if has_no_content(kind) => 0,
                None => header.entry_size().map_err(|e| damaged(&e.to_string()))?,
            };
            (self.left, self.pad) = (size, padding_of(size)?);
            match kind {
                EntryType::XHeader => {
                    let bytes = self.short(size)?;
                    let parsed = pax::parse(&bytes);
                    let senseless = "a pax header is no list of records, or has too many";
                    records = parsed.ok_or_else(|| damaged(senseless))?;
                }
                EntryType::XGlobalHeader => {}
                EntryType::GNULongName => name = Some(text_of(self.short(size)?)),
                EntryType::GNULongLink => link = Some(text_of(self.short(size)?)),
                _ => return self.member(header, records, name, link, size).map(Some),
            }
        }
    }

    fn member(
        &mut self,
        header: Header,
        records: Records,
        name: Option<Vec<u8>>,
        link: Option<Vec<u8>>,
        size: u64,
    ) -> Result<Member> {
        let of_records = |key: &str| pax::get(&records, key).map(<[u8]>::to_vec);
        let name = of_records("GNU.sparse.name").or_else(|| of_records("path")).or(name);
        let link = of_records("linkpath").or(link);
        let mut member = Member {
            name: name.unwrap_or_else(|| header.path_bytes().into_owned()),
            link: link
                .or_else(|| header.link_name_bytes().map(|l| l.into_owned()))
                .unwrap_or_default(),
            kind: header.entry_type(),
            pieces: if size > 0 { vec![(0, size)] } else { Vec::new() },
            size,
            records,
            header,
        };
        self.sparse(&mut member)?;
        // Before POSIX a directory was a file whose name ends so.
        let is_old = member.kind == EntryType::Regular && member.name.ends_with(b"/");
        if is_old || is_listed(member.kind) {
            member.kind = EntryType::Directory;
        }
        Ok(member)
    }

    /// Finds the map of a sparse file, wherever it is.
    fn sparse(&mut self, member: &mut Member) -> Result<()> {
        let records = &member.records;
        let number = |key: &str| pax::number(records, key);
        let real = number("GNU.sparse.realsize").or_else(|| number("GNU.sparse.size"));
        if member.kind == EntryType::GNUSparse {
            (member.size, member.pieces) = self.old_map(&member.header)?;
            member.kind = EntryType::Regular;
        } else if let Some(real) = real {
            member.size = real;
            member.pieces = match number("GNU.sparse.major") {
                Some(1) => self.leading_map()?,
                Some(_) => return Err(damaged("a sparse file of an unknown format")),
                None => map_of(records).ok_or_else(|| damaged("a sparse file without a map"))?,
            };
        } else {
            return Ok(());
        }
        let mut covered = 0;
        for (start, len) in &member.pieces {
            let end = start.checked_add(*len).filter(|end| *end <= member.size);
            match end {
                Some(end) if *start >= covered => covered = end,
                _ => return Err(damaged("the map of a sparse file makes no sense")),
            }
        }
        let stored: u64 = member.pieces.iter().map(|(_, len)| len).sum();
        match stored > self.left {
            true => Err(damaged("a sparse file is shorter than its map")),
            false => Ok(()),
        }
    }

    fn old_map(&mut self, header: &Header) -> Result<(u64, Vec<(u64, u64)>)> {
        let gnu = header.as_gnu().ok_or_else(|| damaged("a sparse file without a GNU header"))?;
        let wrong = |e: std::io::Error| damaged(&e.to_string());
        let mut pieces = Vec::new();
        let mut take = |entries: &[GnuSparseHeader]| -> Result<()> {
            for entry in entries.iter().filter(|entry| !entry.is_empty()) {
                pieces.push((entry.offset().map_err(wrong)?, entry.length().map_err(wrong)?));
            }
            Ok(())
        };
        take(&gnu.sparse)?;
        let mut more = gnu.is_extended();
        let mut blocks = 0;
        while more {
            let mut next = GnuExtSparseHeader::new();
            self.exact(next.as_mut_bytes())?;
            take(next.sparse())?;
            more = next.is_extended();
            blocks += BLOCK;
            if blocks > LONGEST {
                return Err(damaged("the map of a sparse file has no end"));
            }
        }
        Ok((gnu.real_size().map_err(wrong)?, pieces))
    }

    /// Format 1.0: numbers, a line each, in the blocks before the content.
    fn leading_map(&mut self) -> Result<Vec<(u64, u64)>> {
        let mut map = LeadingMap::default();
        let mut taken = 0;
        loop {
            if self.left == 0 || taken >= LONGEST {
                return Err(damaged("the map of a sparse file has no end"));
            }
            let mut block = [0; BLOCK as usize];
            let got = self.read(&mut block)?;
            taken += got as u64;
            if map.take(&block[..got])? {
                return Ok(map.pieces);
            }
        }
    }

    /// Content of the member at hand; fewer bytes than asked for only at its end.
    pub fn read(&mut self, buffer: &mut [u8]) -> Result<usize> {
        let want = buffer.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        self.exact(&mut buffer[..want])?;
        self.left -= want as u64;
        Ok(want)
    }

    fn short(&mut self, len: u64) -> Result<Vec<u8>> {
        if len > LONGEST {
            return Err(damaged("a header is too long to be one"));
        }
        let mut bytes = vec![0; len as usize];
        self.read(&mut bytes)?;
        Ok(bytes)
    }

    fn exact(&mut self, bytes: &mut [u8]) -> Result<()> {
        self.from.read_exact(bytes).map_err(|e| match e.kind() {
            ErrorKind::UnexpectedEof => damaged("it ends in the middle of a member"),
            _ => Error::about("the archive", io_text(&e)),
        })
    }

    fn pass_over(&mut self) -> Result<()> {
        let left = std::mem::take(&mut self.left) + std::mem::take(&mut self.pad);
        let passed = std::io::copy(&mut (&mut self.from).take(left), &mut std::io::sink());
        match passed.map_err(|e| Error::about("the archive", io_text(&e)))? {
            passed if passed == left => Ok(()),
            _ => Err(damaged("it ends in the middle of a member")),
        }
    }

    /// Behind the last member there is nothing, but for zeros; a file that begins with zeros
    /// and goes on otherwise is something else. All is read, so that a writer is not cut off.
    fn end(&mut self) -> Result<()> {
        let mut block = vec![0; 1 << 16];
        loop {
            let got =
                self.from.read(&mut block).map_err(|e| Error::about("the archive", io_text(&e)))?;
            match got {
                0 => return Ok(()),
                got if !self.anything && block[..got].iter().any(|b| *b != 0) => {
                    return Err(no_archive());
                }
                _ => {}
            }
        }
    }

    fn header(&mut self) -> Result<Next> {
        let mut block = Vec::with_capacity(BLOCK as usize);
        let got = (&mut self.from).take(BLOCK).read_to_end(&mut block);
        match got.map_err(|e| Error::about("the archive", io_text(&e)))? as u64 {
            BLOCK => {}
            0 if self.anything => return Ok(Next::Nothing),
            _ if self.anything => return Err(damaged("it ends in the middle of a member")),
            _ => return Err(damaged("it is shorter than a header")),
        }
        let header = Header::from_byte_slice(&block).clone();
        if header.as_bytes().iter().all(|b| *b == 0) {
            return Ok(Next::End);
        }
        let mut sum: u32 = header.as_bytes().iter().map(|b| u32::from(*b)).sum();
        sum = sum - header.as_bytes()[148..156].iter().map(|b| u32::from(*b)).sum::<u32>() + 8 * 32;
        if header.cksum().ok() == Some(sum) {
            self.anything = true;
            return Ok(Next::Header(Box::new(header)));
        }
        Err(match self.anything {
            true => damaged("a header has a wrong checksum"),
            false => no_archive(),
        })
    }
}

/// Whatever its header says of a size: older tars tell that of a link's file, and nothing of it follows. Where it
/// does a pax header says so.
fn has_no_content(kind: EntryType) -> bool {
    use EntryType::{Block, Char, Directory, Fifo, Link, Symlink};
    matches!(kind, Link | Symlink | Char | Block | Directory | Fifo) || is_label(kind)
}

/// `is_told_of`: a header in front of the next member is there.
fn ends_without_marker(is_told_of: bool) -> Result<()> {
    if is_told_of {
        return Err(damaged("it ends in the middle of a member"));
    }
    damaged("has no end marker; what is behind the last member may be lost").print();
    Ok(())
}

/// A directory of an incremental backup of GNU tar's: its content is a list of the names that it had.
fn is_listed(kind: EntryType) -> bool {
    kind.as_byte() == b'D'
}

/// The archive's own name (`tar -V`), in a header that GNU tar leaves without any size.
pub fn is_label(kind: EntryType) -> bool {
    kind.as_byte() == b'V'
}

fn no_archive() -> Error {
    Error::new("what is read is no tar archive")
        .remedy("if it is compressed, unpack it first: zcat FILE | spinney tar -x ...")
}

fn damaged(what: &str) -> Error {
    Error::about("the archive", what)
}

fn padding_of(size: u64) -> Result<u64> {
    match size > u64::MAX / 2 {
        true => Err(damaged("a member is longer than anything")),
        false => Ok(padding(size)),
    }
}

/// A name as GNU tar's headers of their own have it.
fn text_of(mut bytes: Vec<u8>) -> Vec<u8> {
    while bytes.last() == Some(&0) {
        bytes.pop();
    }
    bytes
}

/// How many pieces there are, then offset and length of each, a number a line.
#[derive(Default)]
struct LeadingMap {
    /// As much of it as was there.
    line: Vec<u8>,
    count: Option<u64>,
    start: Option<u64>,
    pieces: Vec<(u64, u64)>,
}

impl LeadingMap {
    /// No number has more digits.
    const DIGITS: usize = 20;

    /// The next bytes; true if it is whole, and the rest of them pads it.
    fn take(&mut self, bytes: &[u8]) -> Result<bool> {
        let senseless = || damaged("the map of a sparse file makes no sense");
        for byte in bytes {
            if *byte != b'\n' {
                self.line.push(*byte);
                if self.line.len() > LeadingMap::DIGITS {
                    return Err(senseless());
                }
                continue;
            }
            let number = std::str::from_utf8(&self.line).ok().and_then(|text| text.parse().ok());
            let number = number.ok_or_else(senseless)?;
            self.line.clear();
            match (self.count, self.start.take()) {
                (None, _) => self.count = Some(number),
                (_, None) => self.start = Some(number),
                (_, Some(start)) => self.pieces.push((start, number)),
            }
            if self.start.is_none() && self.count == Some(self.pieces.len() as u64) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// Formats 0.0 and 0.1: in the records.
fn map_of(records: &Records) -> Option<Vec<(u64, u64)>> {
    match pax::get(records, "GNU.sparse.map") {
        Some(map) => pairs(map.split(|b| *b == b',')),
        None => {
            let keys = [&b"GNU.sparse.offset"[..], b"GNU.sparse.numbytes"];
            let mapped = records.iter().filter(|(key, _)| keys.contains(&key.as_slice()));
            pairs(mapped.map(|(_, value)| value.as_slice()))
        }
    }
}

/// Two numbers each.
fn pairs<'m>(mut words: impl Iterator<Item = &'m [u8]>) -> Option<Vec<(u64, u64)>> {
    let of = |word: &[u8]| std::str::from_utf8(word).ok()?.parse::<u64>().ok();
    let mut pairs = Vec::new();
    while let Some(start) = words.next() {
        pairs.push((of(start)?, of(words.next()?)?));
    }
    Some(pairs)
}
