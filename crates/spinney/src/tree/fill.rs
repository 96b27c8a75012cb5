//! The content of files: out of a volume, into it, and from one file to another.
//!
//! Holes stay holes. A file that grows or shrinks on the host while it is copied gives
//! what was read; one that grows in the volume gives what it had when that began, and one that is cut there while it
//! is copied to the host has the length that it has then.

use super::node::Node;
use crate::error::{Error, Result};
use crate::volume::{At, Volume};
use btrfs_image::copy::BUFFER;
use btrfs_image::{Piece, read_around, settled, unverified};
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::Path;
use vfs::{Context, Errno, FsError, Ino, SeekWhence, SetAttr, WriteFlags};

/// What fails in one read is read so.
const SECTOR: usize = btrfs_disk::ids::SECTOR_SIZE as usize;

/// Whether copies inside a volume share the data.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum Reflink {
    /// Where that is possible.
    #[default]
    Auto,
    /// Or fail.
    Always,
    /// Every copy has data of its own.
    Never,
}

/// A file in a volume, and its path for messages.
#[derive(Clone, Copy, Debug)]
pub struct FileAt<'a> {
    /// The volume.
    pub volume: &'a Volume,
    /// Its number.
    pub ino: Ino,
    /// For messages.
    pub path: &'a [u8],
}

impl<'a> FileAt<'a> {
    /// The file of `node`, which must live as long as this is used.
    pub fn of(volume: &'a Volume, node: &Node, path: &'a [u8]) -> FileAt<'a> {
        FileAt { volume, ino: node.ino(), path }
    }

    /// Cuts it, or makes it longer by a hole.
    pub fn set_size(&self, size: u64) -> Result<()> {
        let set = SetAttr { size: Some(size), ..SetAttr::default() };
        let fs = self.volume.fs();
        fs.setattr(self.volume.context(), self.ino, &set).at(self.volume, self.path).map(drop)
    }

    fn size(&self) -> Result<u64> {
        Ok(self.volume.fs().getattr(self.ino).at(self.volume, self.path)?.size)
    }

    /// Writes as much of `bytes`, which are not none, as there is room for, and answers how much that is.
    pub fn write_some(&self, offset: u64, bytes: &[u8]) -> Result<usize> {
        let (cx, flags) = (Context::default(), WriteFlags::default());
        let written = self.volume.fs().write(&cx, self.ino, offset, bytes, flags);
        match written.at(self.volume, self.path)? {
            0 => Err(FsError::from(Errno::ENOSPC)).at(self.volume, self.path),
            n => Ok(n),
        }
    }

    /// Writes all of `bytes`; where that fails the file may have a part of them.
    pub fn write(&self, mut offset: u64, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            let written = self.write_some(offset, bytes)?;
            offset += written as u64;
            bytes = &bytes[written..];
        }
        Ok(())
    }

    /// Hands the data over in order, without the holes and what cannot be read, which is told. What is appended
    /// meanwhile is left out: who appends for ever would be read for ever.
    pub fn data(&self, sink: &mut dyn FnMut(u64, &[u8]) -> Result<()>) -> Result<()> {
        let fs = self.volume.fs();
        let seek = |from: u64, whence: SeekWhence| match fs.seek(self.ino, from, whence) {
            Ok(at) => Ok(Some(at)),
            Err(FsError::Posix(Errno::ENXIO)) => Ok(None),
            Err(error) => Err(error).at(self.volume, self.path),
        };
        let size = self.size()?;
        let mut buffer = vec![0; BUFFER.min(size.max(1) as usize)];
        let mut at = 0;
        while at < size
            && let Some(start) = seek(at, SeekWhence::Data)?
            && start < size
        {
            let end = seek(start, SeekWhence::Hole)?.unwrap_or(size).min(size);
            read_around(
                &**fs,
                self.ino,
                (start, end),
                &mut buffer,
                &mut |at, piece| match piece {
                    Piece::Good(bytes) => sink(at, bytes),
                    Piece::Lost(len, why) => self.volume.lost(self.path, Some((at, len)), why),
                    Piece::Unverified(len) => self.doubted(at, len),
                },
            )?;
            at = end.max(start + 1);
        }
        Ok(())
    }

    /// The copy has what nothing vouches for.
    fn doubted(&self, at: u64, len: u64) -> Result<()> {
        self.volume.tell_loss(self.path, Some((at, len)), &unverified(), true);
        Ok(())
    }

    /// All bytes in order, holes as zeros, up to the first that cannot be read.
    pub fn bytes<E: From<Error>>(
        &self,
        sink: &mut dyn FnMut(&[u8]) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        let fs = self.volume.fs();
        let mut buffer = vec![0; BUFFER];
        let (mut at, mut want) = (0, BUFFER);
        loop {
            let got = match fs.read(self.ino, at, &mut buffer[..want]) {
                // What lies in front of the bad sector comes out first.
                Err(_) if want > SECTOR => {
                    want = SECTOR;
                    continue;
                }
                read => read.at(self.volume, self.path)?,
            };
            if got == 0 {
                return Ok(());
            }
            sink(&buffer[..got])?;
            at += got as u64;
        }
    }

    /// All bytes in order; holes, and what cannot be read, which is told, as zeros.
    pub fn bytes_around<E: From<Error>>(
        &self,
        sink: &mut dyn FnMut(&[u8]) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        self.bytes_of((0, self.size()?), sink)
    }

    /// The same of a part of it, which keeps its length.
    pub fn bytes_of<E: From<Error>>(
        &self,
        (start, end): (u64, u64),
        sink: &mut dyn FnMut(&[u8]) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        let mut buffer = vec![0; BUFFER.min((end - start).max(1) as usize)];
        let (fs, mut done) = (self.volume.fs(), start);
        read_around(&**fs, self.ino, (start, end), &mut buffer, &mut |at, piece| match piece {
            Piece::Good(bytes) => {
                done = at + bytes.len() as u64;
                sink(bytes)
            }
            Piece::Lost(len, why) => {
                done = at + len;
                self.volume.lost(self.path, Some((at, len)), why)?;
                zeros(len, sink)
            }
            Piece::Unverified(len) => Ok(self.doubted(at, len)?),
        })?;
        zeros(end - done, sink)
    }
}

fn zeros<E>(
    mut len: u64,
    sink: &mut dyn FnMut(&[u8]) -> std::result::Result<(), E>,
) -> std::result::Result<(), E> {
    let some = [0; 1 << 16];
    while len > 0 {
        let part = len.min(some.len() as u64);
        sink(&some[..part as usize])?;
        len -= part;
    }
    Ok(())
}

/// Gives the file `to` the content of `from`, sharing the data where that is possible.
pub fn copy(from: &FileAt<'_>, to: &FileAt<'_>, reflink: Reflink) -> Result<()> {
    let size = from.size()?;
    if size == 0 {
        return to.set_size(0);
    }
    if reflink != Reflink::Never {
        match share(from, to, size) {
            Ok(()) => return to.set_size(size),
            // What cannot be shared is copied.
            Err(FsError::Posix(Errno::EINVAL | Errno::EXDEV | Errno::EOPNOTSUPP))
                if reflink == Reflink::Auto => {}
            Err(error) => return Err(error).at(to.volume, to.path),
        }
    }
    let mut emptied = false;
    from.data(&mut |offset, bytes| {
        // What cannot be read at all takes nothing from what is there.
        if !std::mem::replace(&mut emptied, true) {
            to.set_size(0)?;
        }
        to.write(offset, bytes)
    })?;
    if !emptied {
        to.set_size(0)?;
    }
    to.set_size(size)
}

/// All of `from` becomes the beginning of `to`.
fn share(from: &FileAt<'_>, to: &FileAt<'_>, size: u64) -> vfs::Result<()> {
    if !from.volume.is(to.volume) {
        return Err(Errno::EXDEV.into());
    }
    let (fs, cx) = (from.volume.fs(), Context::default());
    let clone = |len| fs.clone_range(&cx, from.ino, 0, to.ino, 0, len);
    let tail = size % SECTOR as u64;
    if tail == 0 || fs.getattr(to.ino)?.size <= size {
        return clone(0);
    }
    // A part of a sector is shared only where both end. Before the old one is cut the rest tells whether they
    // can share at all.
    if size > tail {
        clone(size - tail)?;
    }
    let set = SetAttr { size: Some(size), ..SetAttr::default() };
    fs.setattr(to.volume.context(), to.ino, &set)?;
    clone(0)
}

/// Gives the file `to` what can be read from `from`, a file, pipe or device.
pub fn from_host(from: &mut File, path: &Path, to: &FileAt<'_>) -> Result<()> {
    let failed = |e: std::io::Error| Error::host(path, e);
    let mut buffer = vec![0; BUFFER];
    let (mut at, mut written, mut emptied) = (0, 0, false);
    loop {
        let got = match from.read(&mut buffer) {
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => continue,
            got => got.map_err(failed)?,
        };
        // What cannot be read at all takes nothing from what is there.
        if !std::mem::replace(&mut emptied, true) {
            to.set_size(0)?;
        }
        if got == 0 {
            break;
        }
        for (number, block) in buffer[..got].chunks(4096).enumerate() {
            // Blocks of zeros become holes.
            if block.iter().any(|b| *b != 0) {
                written = at + (number * 4096 + block.len()) as u64;
                to.write(at + (number * 4096) as u64, block)?;
            }
        }
        at += got as u64;
    }
    if written < at { to.set_size(at) } else { Ok(()) }
}

/// Gives the host's file `to` the content of `from`.
pub fn to_host(from: &FileAt<'_>, to: &File, path: &Path) -> Result<()> {
    let failed = |e: std::io::Error| Error::host(path, e);
    let (size, mut emptied) = (from.size()?, false);
    from.data(&mut |offset, bytes| {
        if !std::mem::replace(&mut emptied, true) {
            to.set_len(0).map_err(failed)?;
        }
        to.write_all_at(bytes, offset).map_err(failed)
    })?;
    if !emptied {
        to.set_len(0).map_err(failed)?;
    }
    // Zeros up to where a file ended that was cut meanwhile it never had.
    let size = size.min(from.size()?);
    to.set_len(size).and_then(|()| settled(to)).map_err(failed)
}
