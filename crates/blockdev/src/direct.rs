//! Writes that are with the device, or refused by it, when they return: past the page cache where
//! the file allows that (`O_DIRECT`), else through it and waited for. And reads past it, of what the medium has.
//!
//! Invariant: a refused write past the cache is told here alone, so who flushes later does not
//! hear of it. One that went through the cache is told again by the flush of the other
//! descriptor: the kernel cannot say which of the two ways of it was lost.
//!
//! The cache stays right: the kernel writes back and drops what it has of a range before and
//! after a write past it. That nobody dirties what it drops then is the caller's (`turns.rs`). Before a read past it
//! the kernel writes back what it has, and drops nothing.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

/// What devices and file systems want of offsets, lengths and memory, at most.
const ALIGN: usize = 4096;
/// Bytes of one request past the cache that goes by memory of our own.
/// Chosen, not measured.
const CHUNK: usize = 1 << 20;

pub(crate) struct Direct {
    /// Past the cache.
    past: Option<File>,
    /// Through it: errors that this descriptor tells are its own.
    through: Option<File>,
}

impl Direct {
    /// Second descriptors of a file, which is open for writing unless it is `read_only`; what cannot be had is done
    /// without.
    pub(crate) fn of(file: &File, read_only: bool) -> Direct {
        let through = if read_only { None } else { again(file, Some(0), true) };
        Direct { past: again(file, o_direct(), !read_only), through }
    }

    /// What is asked for goes past the cache.
    pub(crate) fn is_past(&self) -> bool {
        self.past.is_some()
    }

    /// Writes back what the cache has of a range, if anything goes past it. Nobody hears by this that a write was
    /// lost: the descriptor is one that tells nobody.
    pub(crate) fn write_back(&self, offset: u64, len: u64) {
        if let Some(file) = &self.past {
            drop(wait(file, offset, len));
        }
    }

    /// None: this file system does not take it past the cache after all, or not of this alignment.
    pub(crate) fn write_past(&self, offset: u64, bufs: &[&[u8]]) -> Option<io::Result<()>> {
        match write_past(self.past.as_ref()?, offset, bufs) {
            Err(e) if matches!(e.raw_os_error(), Some(libc::EINVAL | libc::EOPNOTSUPP)) => None,
            written => Some(written),
        }
    }

    /// None: this file system does not give it past the cache after all, or not of this alignment; or what lies
    /// around the range, which only the alignment wants, cannot be read.
    pub(crate) fn read_past(&self, offset: u64, buf: &mut [u8]) -> Option<io::Result<()>> {
        let refused = [libc::EINVAL, libc::EOPNOTSUPP].map(Some);
        match read_past(self.past.as_ref()?, offset, buf) {
            Err(e) if refused.contains(&e.raw_os_error()) || !is_aligned(offset, buf.len()) => None,
            read => Some(read),
        }
    }

    /// Through the cache of `file`, and waited for.
    pub(crate) fn write_through(&self, file: &File, offset: u64, bufs: &[&[u8]]) -> io::Result<()> {
        let file = self.through.as_ref().unwrap_or(file);
        let mut at = offset;
        for buf in bufs {
            file.write_all_at(buf, at)?;
            at += buf.len() as u64;
        }
        wait(file, offset, at - offset)
    }
}

fn again(file: &File, flags: Option<i32>, write: bool) -> Option<File> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let mut options = OpenOptions::new();
    std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, flags?);
    options.read(true).write(write).open(path).ok()
}

fn is_aligned(offset: u64, len: usize) -> bool {
    offset.is_multiple_of(ALIGN as u64) && len.is_multiple_of(ALIGN)
}

/// By way of aligned memory where the range or `buf` does not lie as it must.
fn read_past(file: &File, offset: u64, buf: &mut [u8]) -> io::Result<()> {
    if is_aligned(offset, buf.len()) && buf.as_ptr().align_offset(ALIGN) == 0 {
        return file.read_exact_at(buf, offset);
    }
    let mut before = (offset % ALIGN as u64) as usize;
    let room = (before + buf.len()).next_multiple_of(ALIGN).min(CHUNK);
    let mut room = vec![0; ALIGN + room];
    let pad = room.as_ptr().align_offset(ALIGN);
    let (mut at, room) = (offset - before as u64, &mut room[pad..]);
    let most = room.len() / ALIGN * ALIGN;
    let mut rest = buf;
    while !rest.is_empty() {
        let needed = (before + rest.len()).min(most);
        read_at_least(file, &mut room[..needed.next_multiple_of(ALIGN)], at, needed)?;
        let (now, later) = rest.split_at_mut(needed - before);
        now.copy_from_slice(&room[before..needed]);
        (rest, before) = (later, 0);
        at += needed as u64;
    }
    Ok(())
}

/// The file may end amid what alignment alone wants.
fn read_at_least(file: &File, room: &mut [u8], at: u64, needed: usize) -> io::Result<()> {
    let mut done = 0;
    while done < needed {
        match file.read_at(&mut room[done..], at + done as u64) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(more) => done += more,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Copies what does not lie as it must.
fn write_past(file: &File, offset: u64, bufs: &[&[u8]]) -> io::Result<()> {
    if let [one] = bufs
        && one.as_ptr().align_offset(ALIGN) == 0
    {
        return file.write_all_at(one, offset);
    }
    let total: usize = bufs.iter().map(|buf| buf.len()).sum();
    let mut room: Vec<u8> = Vec::with_capacity(ALIGN + total.min(CHUNK));
    let pad = room.as_ptr().align_offset(ALIGN);
    room.resize(pad, 0);
    let mut at = offset;
    let mut flush = |room: &mut Vec<u8>| {
        let len = room.len() - pad;
        file.write_all_at(&room[pad..], at)?;
        at += len as u64;
        room.truncate(pad);
        io::Result::Ok(())
    };
    for mut buf in bufs.iter().copied() {
        while !buf.is_empty() {
            let (now, rest) = buf.split_at(buf.len().min(CHUNK - (room.len() - pad)));
            room.extend_from_slice(now);
            buf = rest;
            if room.len() - pad == CHUNK {
                flush(&mut room)?;
            }
        }
    }
    if room.len() > pad { flush(&mut room) } else { Ok(()) }
}

#[cfg(target_os = "linux")]
fn o_direct() -> Option<i32> {
    Some(libc::O_DIRECT)
}

#[cfg(not(target_os = "linux"))]
fn o_direct() -> Option<i32> {
    None
}

#[cfg(target_os = "linux")]
fn wait(file: &File, offset: u64, len: u64) -> io::Result<()> {
    let flags = libc::SYNC_FILE_RANGE_WAIT_BEFORE
        | libc::SYNC_FILE_RANGE_WRITE
        | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    let (offset, len) = (offset as libc::off64_t, len as libc::off64_t);
    // SAFETY: sync_file_range takes a descriptor and integers only.
    if unsafe { libc::sync_file_range(file.as_raw_fd(), offset, len, flags) } == 0 {
        return Ok(());
    }
    match io::Error::last_os_error() {
        e if matches!(e.raw_os_error(), Some(libc::EINVAL | libc::ESPIPE | libc::ENOSYS)) => {
            file.sync_data()
        }
        e => Err(e),
    }
}

#[cfg(not(target_os = "linux"))]
fn wait(file: &File, _: u64, _: u64) -> io::Result<()> {
    file.sync_data()
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Direct {
        fn write(&self, file: &File, offset: u64, bufs: &[&[u8]]) -> io::Result<()> {
            let past = self.write_past(offset, bufs);
            past.unwrap_or_else(|| self.write_through(file, offset, bufs))
        }
    }

    /// Pieces of any address and length are one write, past the cache or through it, and both
    /// descriptors see the same.
    #[test]
    fn what_is_written_past_the_cache_is_read_through_it() {
        let path = std::env::temp_dir().join(format!("blockdev-direct-{}", std::process::id()));
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        file.set_len(8 << 20).unwrap();
        let content: Vec<u8> = (0..3 << 20).map(|i: u32| (i % 251) as u8).collect();
        let both = Direct::of(&file, false);
        let past = both.past.is_some();
        let cached = Direct { past: None, through: again(&file, Some(0), true) };
        let none = Direct { past: None, through: None };
        for (number, direct) in [both, cached, none].iter().enumerate() {
            // The cache has other bytes of it, not written back.
            file.write_all_at(&vec![number as u8; 4 << 20], 0).unwrap();
            let pieces = [&content[..8192], &content[8192..8192 + 4096], &content[12288..]];
            direct.write(&file, 4096, &pieces).unwrap();
            let mut seen = vec![0; content.len()];
            file.read_exact_at(&mut seen, 4096).unwrap();
            assert!(seen == content, "way {number}, past the cache: {past}");
            assert_eq!(file_byte(&file, 4095), number as u8);
        }
        // Not aligned: through the cache.
        Direct::of(&file, false).write(&file, 5, &[b"odd"]).unwrap();
        assert_eq!(file_byte(&file, 7), b'd');
    }

    /// Of any place and length, into memory that lies anywhere, up to an end that is not aligned; what is only in
    /// the cache as well.
    #[test]
    fn what_is_read_past_the_cache_is_what_was_written_through_it() {
        let path = std::env::temp_dir().join(format!("blockdev-past-{}", std::process::id()));
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path).unwrap();
        let content: Vec<u8> = (0..(3 << 20) + 700).map(|i: u32| (i % 251) as u8).collect();
        file.write_all_at(&content, 0).unwrap();
        let (writer, reader) = (Direct::of(&file, false), Direct::of(&file, true));
        std::fs::remove_file(&path).unwrap();
        assert!(reader.through.is_none());
        let mut room = vec![0; content.len() + ALIGN + 1];
        let pad = room.as_ptr().align_offset(ALIGN);
        for (number, (offset, len)) in
            [(0, 8192), (0, 2 << 20), (4096, content.len() - 4096), (1, 2), (4095, 2 << 20)]
                .into_iter()
                .flat_map(|range| [(0, range), (1, range)])
        {
            file.write_all_at(&[number as u8], offset as u64).unwrap();
            for direct in [&writer, &reader].into_iter().filter(|direct| direct.is_past()) {
                let buf = &mut room[pad + number..][..len];
                direct.read_past(offset as u64, buf).expect("taken").unwrap();
                assert!(buf[0] == number as u8 && buf[1..] == content[offset + 1..][..len - 1]);
            }
            file.write_all_at(&content[offset..=offset], offset as u64).unwrap();
        }
        let behind = reader.read_past(content.len() as u64 - 1, &mut [0; 2]);
        assert!(behind.is_none_or(|read| read.is_err()), "nothing is there");
    }

    fn file_byte(file: &File, at: u64) -> u8 {
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).unwrap();
        byte[0]
    }
}
