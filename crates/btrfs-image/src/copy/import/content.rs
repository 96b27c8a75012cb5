//! The content of a file of this machine: what can be read, whatever size it tells.
//!
//! Invariant: it comes to an end, also of a file that becomes longer all the while.
//!
//! It does not know how the file was found, nor its name in the volume.

use super::super::error::{At, Result};
use super::super::host::{self, HostStat};
use super::{BUFFER, Import};
use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::path::Path;
use vfs::{Context, Errno, FsError, Ino, SetAttr, WriteFlags};

/// How far the content of a file is copied.
struct Copied {
    /// In front of it all is copied, holes among it.
    at: u64,
    /// Where the last of what was read ends.
    read: u64,
    /// Where the last of what was written ends.
    written: u64,
}

/// Behind the size that was told first, a file that becomes longer is looked at so often. A log may become longer
/// faster than it is copied.
const LOOKS: u32 = 8;

impl Import<'_> {
    /// What is read, whatever size was told: a file of proc tells none, one of sysfs a whole page, and another
    /// becomes longer or shorter while it is copied.
    pub(super) fn content(
        &mut self,
        path: &Path,
        file: &File,
        mut size: u64,
        ino: Ino,
    ) -> Result<()> {
        let size_now = || Ok(HostStat::of_file(file).at(path, "stat")?.size);
        let (mut done, mut left) = (Copied { at: 0, read: 0, written: 0 }, LOOKS);
        while left > 0 && self.ranges((path, file), ino, size, &mut done)? {
            size = size_now()?;
            if size <= done.at {
                if size == 0 {
                    self.range((path, file), ino, u64::MAX, &mut done)?;
                }
                break;
            }
            left -= 1;
        }
        if done.written < done.at {
            // The hole at its end, which may have become shorter.
            let size = Some(size_now()?.min(done.at).max(done.read));
            let set = SetAttr { size, ..SetAttr::default() };
            self.fs.setattr(&Context::default(), ino, &set).at(path, "set size")?;
        }
        Ok(())
    }

    /// Copies the data up to `size`; false where the file ends before.
    fn ranges(
        &mut self,
        (path, file): (&Path, &File),
        ino: Ino,
        size: u64,
        done: &mut Copied,
    ) -> Result<bool> {
        while done.at < size {
            let data = host::seek_data(file, done.at).at(path, "seek")?;
            let Some(start) = data.filter(|start| *start < size) else {
                done.at = size;
                break;
            };
            let end = host::seek_hole(file, start, size).at(path, "seek")?.max(start + 1);
            done.at = start;
            if !self.range((path, file), ino, end, done)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Copies what is in front of `end`; false where the file ends before. Of a file that does not tell where it ends
    /// zeros become holes: it may have them without end, and does not say where.
    fn range(
        &mut self,
        (path, file): (&Path, &File),
        ino: Ino,
        end: u64,
        done: &mut Copied,
    ) -> Result<bool> {
        while done.at < end {
            let want = (BUFFER as u64).min(end - done.at) as usize;
            let got = match file.read_at(&mut self.buffer[..want], done.at) {
                Err(e) if e.kind() == ErrorKind::Interrupted => continue,
                other => other.at(path, "read")?,
            };
            if got == 0 {
                return Ok(false);
            }
            let is_hole = end == u64::MAX && self.buffer[..got].iter().all(|byte| *byte == 0);
            if !is_hole {
                self.write(path, ino, done.at, got)?;
                done.written = done.at + got as u64;
                self.teller.data(path, got as u64);
            }
            done.at += got as u64;
            done.read = done.at;
        }
        Ok(true)
    }

    /// Writes the first `len` bytes of the buffer.
    fn write(&self, path: &Path, ino: Ino, at: u64, len: usize) -> Result<()> {
        let (cx, flags) = (Context::default(), WriteFlags::default());
        let mut done = 0;
        while done < len {
            let part = &self.buffer[done..len.min(done + self.piece)];
            match self.fs.write(&cx, ino, at + done as u64, part, flags).at(path, "write")? {
                0 => return Err(FsError::from(Errno::ENOSPC)).at(path, "write"),
                n => done += n,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::links::ImportLinks;
    use super::super::super::options::CopyOptions;
    use super::*;
    use vfs::{FileKind, FileSystem};

    /// As pagemap of a process is, which is 256 GiB long and does not tell.
    #[test]
    fn zeros_of_a_file_that_does_not_tell_its_size_are_holes() {
        let top = testkit::oracle::TempDir::new("zeros").unwrap();
        let path = top.join("f");
        let mut content = vec![0; 3 * BUFFER + 5];
        content[BUFFER..][..7].fill(7);
        std::fs::write(&path, &content).unwrap();
        let (volume, options) = (testkit::RefFs::new(), CopyOptions::default());
        let links = ImportLinks::new(&volume);
        let mut import = Import::new(&volume, &options, &links);
        let cx = Context::default();
        let made = volume.mknod(&cx, volume.root(), b"f", FileKind::File, 0o600, 0).unwrap();
        let (ino, mut done) = (made.attr.ino, Copied { at: 0, read: 0, written: 0 });
        let file = File::open(&path).unwrap();
        assert!(!import.range((&path, &file), ino, u64::MAX, &mut done).unwrap());
        let len = content.len() as u64;
        assert_eq!((done.at, done.read, done.written), (len, len, 2 * BUFFER as u64));
        assert_eq!(import.teller.report().bytes, BUFFER as u64);
        volume.forget(ino, 1);
    }
}
