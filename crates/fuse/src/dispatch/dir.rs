//! Directory listings.
//!
//! Entries with attributes carry a lookup reference each. An error after the first
//! entry is therefore not reported at once: what was delivered goes out, and the
//! next request, which starts behind it, meets the error again.

use super::Dispatcher;
use super::failure::Answer;
use super::reply::{self, Out};
use super::request::Request;
use crate::abi::Wire;
use crate::abi::record::*;
use vfs::{DirEntry, Errno, FsError};

impl Dispatcher {
    pub(super) fn readdir(&self, request: &Request<'_>, out: &mut Out<'_>) -> Answer<()> {
        let arg: ReadIn = request.arg()?;
        let mut list = Listing::new(out, arg.size as usize);
        let result =
            self.fs.readdir(self.ino(request), arg.offset, &mut |entry| list.push(entry, None));
        list.finish(result)
    }

    pub(super) fn readdir_plus(&self, request: &Request<'_>, out: &mut Out<'_>) -> Answer<()> {
        let arg: ReadIn = request.arg()?;
        let mut list = Listing::new(out, arg.size as usize);
        let result = self.fs.readdir_plus(self.ino(request), arg.offset, &mut |name, entry| {
            let record = match entry {
                Some(entry) => reply::entry_out(entry, &self.nodes, &self.owners),
                // `.` and `..`: node id 0 tells the kernel to take only the name.
                None => without_entry(name),
            };
            list.push(name, Some(&record))
        });
        list.finish(result)
    }
}

fn without_entry(name: &DirEntry<'_>) -> EntryOut {
    let attr = Attr { ino: name.ino.0, mode: name.kind.mode_bits(), ..Default::default() };
    EntryOut { attr, ..Default::default() }
}

struct Listing<'o, 'b> {
    out: &'o mut Out<'b>,
    end: usize,
}

impl<'o, 'b> Listing<'o, 'b> {
    fn new(out: &'o mut Out<'b>, size: usize) -> Listing<'o, 'b> {
        let end = out.len() + size.min(out.remaining());
        Listing { out, end }
    }

    /// Appends an entry, or nothing and false if it does not fit.
    fn push(&mut self, entry: &DirEntry<'_>, plus: Option<&EntryOut>) -> bool {
        let name_len = entry.name.len();
        let plain = (Dirent::SIZE + name_len).next_multiple_of(8);
        let need = plain + plus.map_or(0, |_| EntryOut::SIZE);
        if self.out.len() + need > self.end {
            return false;
        }
        let dirent = Dirent {
            ino: entry.ino.0,
            off: entry.next,
            namelen: name_len as u32,
            kind: u32::from(entry.kind.dirent_type()),
        };
        let padding = [0u8; 8];
        let pad = &padding[..plain - Dirent::SIZE - name_len];
        let written = plus
            .map_or(Ok(()), |record| self.out.put(record))
            .and_then(|()| self.out.put(&dirent))
            .and_then(|()| self.out.bytes(entry.name))
            .and_then(|()| self.out.bytes(pad));
        written.is_ok()
    }

    fn finish(self, result: vfs::Result<()>) -> Answer<()> {
        match result {
            // `ls` asks again after this error, for ever.
            Err(FsError::Posix(Errno::EOVERFLOW)) if self.out.len() == 0 => Err(Errno::EIO.into()),
            Err(error) if self.out.len() == 0 => Err(error.into()),
            Err(error) => {
                tracing::warn!("listing stopped early: {error}");
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vfs::{FileKind, Ino};

    #[test]
    fn entries_are_aligned_and_bounded() {
        let mut buf = [0xffu8; 100];
        let mut out = Out::new(&mut buf);
        let mut list = Listing::new(&mut out, 72);
        let entry = |name| DirEntry { ino: Ino(5), kind: FileKind::File, name, next: 3 };
        assert!(list.push(&entry(b"abc"), None));
        assert!(list.push(&entry(b"12345678"), None));
        assert!(!list.push(&entry(b"x"), None));
        list.finish(Err(Errno::EOVERFLOW.into())).unwrap();
        assert_eq!(out.len(), 64);
        assert_eq!(Dirent::read(&buf).unwrap().namelen, 3);
        assert_eq!(&buf[24..32], b"abc\0\0\0\0\0");
        assert_eq!(Dirent::read(&buf[32..]).unwrap().namelen, 8);
        let mut out = Out::new(&mut buf);
        let empty = Listing::new(&mut out, 72).finish(Err(Errno::EOVERFLOW.into()));
        assert_eq!(empty.unwrap_err().errno(), libc::EIO, "ls goes on after EOVERFLOW");
    }
}
