//! Directory listings.
//!
//! Entries with attributes carry a lookup reference each. An error after the first
//! entry is therefore not reported at once: what was delivered goes out, and the
//! next request, which starts behind it, meets the error again.

use super::Dispatcher;
use super::failure::Answer;
use super::listings::{self, Asked, Number};
use super::reply::Out;
use super::request::Request;
use crate::abi::Wire;
use crate::abi::record::*;
use vfs::{DirEntry, Errno, FsError, Ino};

impl Dispatcher {
    pub(super) fn readdir(&self, request: &Request<'_>, out: &mut Out<'_>) -> Answer<()> {
        let arg: ReadIn = request.arg()?;
        let (dir, asked) = (self.ino(request), self.listings.asked(self.ino(request), arg.offset));
        let mut list = self.listing(dir, asked, out, arg.size as usize);
        self.about_to_read(dir);
        self.listed.note(dir);
        let result = self.fs.readdir(dir, asked.offset, &mut |entry| list.push(entry, None));
        let result = result.and_then(|()| self.ended(dir, &list));
        self.end_listing(dir, asked, &list, result.is_ok());
        self.accessed(request, arg.flags);
        list.finish(result)
    }

    fn listing<'o, 'b>(
        &self,
        dir: Ino,
        asked: Asked,
        out: &'o mut Out<'b>,
        size: usize,
    ) -> Listing<'o, 'b> {
        let (number, last) = asked.known.unwrap_or_else(|| (self.listings.begin(dir), u64::MAX));
        Listing { number, last, ..Listing::new(out, size) }
    }

    /// Where names have come behind a listing, it is at its end without having met the directory's.
    fn ended(&self, dir: Ino, list: &Listing<'_, '_>) -> vfs::Result<()> {
        match list.over && list.out.len() == 0 {
            true => self.fs.listing_ended(dir, list.last),
            false => Ok(()),
        }
    }

    /// A listing that just began ends with what it was given, or, if that did not fit or is not the
    /// whole, where the directory ends now. One that has nothing more is over.
    fn end_listing(&self, dir: Ino, asked: Asked, list: &Listing<'_, '_>, whole: bool) {
        if asked.known.is_none() {
            let now = || self.fs.dir_end(dir).unwrap_or(u64::MAX);
            let end = if list.full || !whole { now() } else { list.next };
            self.listings.ends(list.number, end);
        }
        if whole && !list.full && list.out.len() == 0 {
            self.listings.over(list.number);
        }
    }

    pub(super) fn readdir_plus(&self, request: &Request<'_>, out: &mut Out<'_>) -> Answer<()> {
        let arg: ReadIn = request.arg()?;
        let (dir, asked) = (self.ino(request), self.listings.asked(self.ino(request), arg.offset));
        let mut list = self.listing(dir, asked, out, arg.size as usize);
        let moment = self.about_to_read(dir);
        self.listed.note(dir);
        let result = self.fs.readdir_plus(dir, asked.offset, &mut |name, entry| {
            let record = match entry {
                Some(entry) => {
                    let lasts = self.fs.lasts(entry.attr.ino, moment);
                    self.entry_out(entry, lasts)
                }
                // `.` and `..`: node id 0 tells the kernel to take only the name.
                None => without_entry(name),
            };
            list.push(name, Some(&record))
        });
        let result = result.and_then(|()| self.ended(dir, &list));
        self.end_listing(dir, asked, &list, result.is_ok());
        self.accessed(request, arg.flags);
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
    number: Number,
    /// Entries that go on behind this are no longer its own.
    last: u64,
    /// Where it goes on.
    next: u64,
    /// Something did not fit.
    full: bool,
    /// Something came that is no longer its own.
    over: bool,
}

impl<'o, 'b> Listing<'o, 'b> {
    fn new(out: &'o mut Out<'b>, size: usize) -> Listing<'o, 'b> {
        let end = out.len() + size.min(out.remaining());
        Listing {
            out,
            end,
            number: Number::default(),
            last: u64::MAX,
            next: 0,
            full: false,
            over: false,
        }
    }

    /// Appends an entry, or nothing and false if it does not fit.
    fn push(&mut self, entry: &DirEntry<'_>, plus: Option<&EntryOut>) -> bool {
        if entry.next > self.last {
            self.over = true;
            return false;
        }
        self.full = !self.append(entry, plus);
        if !self.full {
            self.next = entry.next;
        }
        !self.full
    }

    fn append(&mut self, entry: &DirEntry<'_>, plus: Option<&EntryOut>) -> bool {
        let Some(off) = listings::told(self.number, entry.next) else { return false };
        let name_len = entry.name.len();
        let plain = (Dirent::SIZE + name_len).next_multiple_of(8);
        let need = plain + plus.map_or(0, |_| EntryOut::SIZE);
        if self.out.len() + need > self.end {
            return false;
        }
        let dirent = Dirent {
            ino: entry.ino.0,
            off,
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
    use vfs::FileKind;

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
