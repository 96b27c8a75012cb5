//! Trees of a volume into an archive: pax records for what a header cannot say, files with holes
//! as GNU tar's sparse format 1.0, further names of a file as links to its first.
//!
//! A member whose content cannot be read keeps its length, with zeros in the place of what is
//! lost, and each such range is told: the members behind it are where the reader looks for them.

use super::pax::{time_text, xattr_key};
use super::{BLOCK, LONGEST_NAME, padding};
use crate::error::{Error, Result, io_text, say_error};
use crate::inside::fill::FileAt;
use crate::inside::volumes::At;
use crate::inside::{Failures, Node, walk};
use crate::show::device_numbers;
use spinney::Volume;
use std::collections::HashMap;
use std::io::Write;
use tar::{Builder, EntryType, Header};
use vfs::{Errno, FileKind, FsError, Ino, SeekWhence};

/// The longest name that a header holds.
const NAME: usize = 100;
/// What fits the octal digits of a header.
const MOST_ID: u32 = 0o777_7777;
const MOST_SIZE: u64 = 0o777_7777_7777;

pub struct Packer<'f, W: Write> {
    out: Builder<W>,
    failures: &'f Failures,
    /// First names of files that have several, by volume and number.
    links: HashMap<(usize, Ino), Vec<u8>>,
    pub exclude: Vec<Vec<u8>>,
    pub verbose: bool,
}

/// One member on its way.
struct Member {
    header: Header,
    records: Vec<(String, Vec<u8>)>,
}

impl Member {
    fn record(&mut self, key: &str, value: impl Into<Vec<u8>>) {
        self.records.push((key.to_owned(), value.into()));
    }

    /// In the header, and if that is too short in a record as well.
    fn name(&mut self, name: &[u8]) {
        put(&mut self.header.as_old_mut().name, name);
        if name.len() > NAME {
            self.record("path", name);
        }
    }

    /// In the place of what a symbolic link's own may have been.
    fn link(&mut self, to: &[u8]) {
        self.records.retain(|(key, _)| key != "linkpath");
        put(&mut self.header.as_old_mut().linkname, to);
        if to.len() > NAME {
            self.record("linkpath", to);
        }
    }
}

/// It is in the archive; others may take it.
fn warn_of_length(name: &[u8]) {
    if name.len() > LONGEST_NAME {
        let (begins, len) = (String::from_utf8_lossy(&name[..100]), name.len());
        say_error(&format!(
            "spinney: {begins}: a name of {len} bytes that begins so, which `spinney tar -x` refuses"
        ));
    }
}

fn put(field: &mut [u8; NAME], name: &[u8]) {
    let len = name.len().min(NAME);
    field.fill(0);
    field[..len].copy_from_slice(&name[..len]);
}

impl<'f, W: Write> Packer<'f, W> {
    pub fn new(out: W, failures: &'f Failures) -> Packer<'f, W> {
        let exclude = Vec::new();
        Packer { out: Builder::new(out), failures, links: HashMap::new(), exclude, verbose: false }
    }

    /// `top` and what is below it; its members begin with `name`.
    pub fn tree(&mut self, volume: &Volume, top: Node, path: &[u8], name: &[u8]) -> Result<()> {
        let failures = self.failures;
        let mut told = |error: Error| failures.tell(&error);
        walk::until(volume, top, path.to_vec(), &mut told, &mut |node, at, _| {
            let below = at[path.len()..].strip_prefix(b"/").unwrap_or(&at[path.len()..]);
            let joint: &[u8] = if name.ends_with(b"/") || below.is_empty() { b"" } else { b"/" };
            let member = [name, joint, below].concat();
            if self.is_excluded(&member) {
                return Ok(false);
            }
            if self.verbose {
                say_error(&String::from_utf8_lossy(&member));
            }
            self.member(volume, node, at, member)?;
            Ok(true)
        })
    }

    fn is_excluded(&self, name: &[u8]) -> bool {
        let starts = name.iter().enumerate().filter(|(at, _)| *at == 0 || name[at - 1] == b'/');
        let mut tails = starts.map(|(at, _)| &name[at..]);
        tails.any(|tail| self.exclude.iter().any(|p| spinney::tree::matches(p, tail, false)))
    }

    /// The end of the archive, and of what is under it.
    pub fn finish(mut self) -> Result<()> {
        self.out.finish().map_err(|e| failed(&e))?;
        self.out.get_mut().flush().map_err(|e| failed(&e))
    }

    /// Errors of the volume are told; one of the archive ends all.
    fn member(
        &mut self,
        volume: &Volume,
        node: &Node,
        path: &[u8],
        mut name: Vec<u8>,
    ) -> Result<()> {
        let attr = &node.attr;
        if attr.kind == FileKind::Socket {
            say_error(&format!("spinney: {}: a socket is left out", String::from_utf8_lossy(path)));
            return Ok(());
        }
        if node.is_dir() && !name.ends_with(b"/") {
            name.push(b'/');
        }
        warn_of_length(&name);
        let described = self.describe(volume, node, path);
        let Some(mut member) = self.failures.keep(described) else { return Ok(()) };
        let inode = (std::ptr::from_ref(volume) as usize, node.ino());
        // The same name once more, of another operand, is written whole: it is no link to itself.
        if let Some(first) = self.links.get(&inode).filter(|first| **first != name) {
            member.header.set_entry_type(EntryType::Link);
            member.link(&first.clone());
            member.name(&name);
            return self.head(member, 0);
        }
        if attr.nlink > 1 && !node.is_dir() {
            self.links.insert(inode, name.clone());
        }
        if attr.kind == FileKind::File {
            return self.file(volume, node, path, &name, member);
        }
        member.name(&name);
        self.head(member, 0)
    }

    fn describe(&self, volume: &Volume, node: &Node, path: &[u8]) -> Result<Member> {
        let (fs, attr) = (volume.fs(), &node.attr);
        let mut member = Member { header: Header::new_ustar(), records: Vec::new() };
        let header = &mut member.header;
        header.set_mode(attr.perm.into());
        header.set_uid(attr.uid.into());
        header.set_gid(attr.gid.into());
        header.set_mtime(u64::try_from(attr.mtime.secs).unwrap_or(0));
        header.set_entry_type(match attr.kind {
            FileKind::Dir => EntryType::Directory,
            FileKind::Symlink => EntryType::Symlink,
            FileKind::CharDevice => EntryType::Char,
            FileKind::BlockDevice => EntryType::Block,
            FileKind::Fifo => EntryType::Fifo,
            FileKind::File | FileKind::Socket => EntryType::Regular,
        });
        if matches!(attr.kind, FileKind::CharDevice | FileKind::BlockDevice)
            && let Some(ustar) = header.as_ustar_mut()
        {
            let (major, minor) = device_numbers(attr.rdev);
            ustar.set_device_major(major);
            ustar.set_device_minor(minor);
        }
        for (key, id) in [("uid", attr.uid), ("gid", attr.gid)] {
            if id > MOST_ID {
                member.record(key, id.to_string());
            }
        }
        member.record("mtime", time_text(attr.mtime));
        member.record("atime", time_text(attr.atime));
        if node.is_symlink() {
            member.link(&fs.readlink(node.ino()).at(volume, path)?);
        }
        for attribute in fs.listxattr(node.ino()).at(volume, path)? {
            let value = fs.getxattr(node.ino(), &attribute).at(volume, path)?;
            match std::str::from_utf8(&attribute) {
                Ok(text) if !text.contains('\0') => member.record(&xattr_key(text), value),
                _ => say_error(&format!(
                    "spinney: {}: attribute {} is left out",
                    String::from_utf8_lossy(path),
                    String::from_utf8_lossy(&attribute)
                )),
            }
        }
        Ok(member)
    }

    fn head(&mut self, mut member: Member, size: u64) -> Result<()> {
        if size > MOST_SIZE {
            member.record("size", size.to_string());
        }
        let records = member.records.iter().map(|(key, value)| (&**key, value.as_slice()));
        self.out.append_pax_extensions(records).map_err(|e| failed(&e))?;
        member.header.set_size(size);
        member.header.set_cksum();
        self.put(member.header.as_bytes())
    }

    fn put(&mut self, bytes: &[u8]) -> Result<()> {
        self.out.get_mut().write_all(bytes).map_err(|e| failed(&e))
    }

    fn pad(&mut self, len: u64) -> Result<()> {
        self.put(&[0; BLOCK as usize][..padding(len) as usize])
    }

    fn file(
        &mut self,
        volume: &Volume,
        node: &Node,
        path: &[u8],
        name: &[u8],
        mut member: Member,
    ) -> Result<()> {
        let size = node.attr.size;
        let Some(pieces) = self.failures.keep(pieces(volume, node, path)) else { return Ok(()) };
        let stored: u64 = pieces.iter().map(|(start, end)| end - start).sum();
        if stored == size {
            member.name(name);
            self.head(member, size)?;
        } else {
            let map = map(&pieces, size);
            member.record("GNU.sparse.major", "1");
            member.record("GNU.sparse.minor", "0");
            member.record("GNU.sparse.name", name);
            member.record("GNU.sparse.realsize", size.to_string());
            // For readers that know nothing of this.
            put(&mut member.header.as_old_mut().name, &[b"GNUSparseFile.0/", name].concat());
            let len = map.len() as u64;
            self.head(member, len + padding(len) + stored)?;
            self.put(&map)?;
            self.pad(len)?;
        }
        let file = FileAt::of(volume, node, path);
        for piece in pieces {
            file.bytes_of(piece, &mut |bytes| self.put(bytes))?;
        }
        self.pad(stored)
    }
}

/// Where a file has content.
fn pieces(volume: &Volume, node: &Node, path: &[u8]) -> Result<Vec<(u64, u64)>> {
    let seek = |from: u64, whence| match volume.fs().seek(node.ino(), from, whence) {
        Ok(at) => Ok(Some(at)),
        Err(FsError::Posix(Errno::ENXIO)) => Ok(None),
        Err(error) => Err(error).at(volume, path),
    };
    let (size, mut all, mut at) = (node.attr.size, Vec::new(), 0);
    while let Some(start) = seek(at, SeekWhence::Data)? {
        let end = seek(start, SeekWhence::Hole)?.unwrap_or(size).min(size);
        if end <= start {
            break;
        }
        all.push((start, end));
        at = end;
    }
    Ok(all)
}

/// Sparse format 1.0: how many pieces, and offset and length of each, a number a line.
fn map(pieces: &[(u64, u64)], size: u64) -> Vec<u8> {
    let mut pieces: Vec<(u64, u64)> = pieces.to_vec();
    if pieces.last().is_none_or(|(_, end)| *end < size) {
        pieces.push((size, size));
    }
    let mut text = format!("{}\n", pieces.len());
    for (start, end) in pieces {
        text.push_str(&format!("{start}\n{}\n", end - start));
    }
    text.into_bytes()
}

fn failed(error: &std::io::Error) -> Error {
    Error::about("the archive", io_text(error))
}
