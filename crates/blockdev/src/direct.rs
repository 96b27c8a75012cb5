//! Writes that are with the device, or refused by it, when they return: past the page cache where
//! the file allows that (`O_DIRECT`), else through it and waited for.
//!
//! Invariant: a refused write past the cache is told here alone, so who flushes later does not
//! hear of it. One that went through the cache is told again by the flush of the other
//! descriptor: the kernel cannot say which of the two ways of it was lost.
//!
//! The cache stays right: the kernel writes back and drops what it has of a range before and
//! after a write past it. That nobody dirties what it drops then is the caller's (`turns.rs`).

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

/// What devices and file systems want of offsets, lengths and memory, at most.
const ALIGN: usize = 4096;
/// Bytes of one write past the cache.
/// Chosen, not measured.
const CHUNK: usize = 1 << 20;

pub(crate) struct Direct {
    /// Past the cache.
    past: Option<File>,
    /// Through it: errors that this descriptor tells are its own.
    through: Option<File>,
}

impl Direct {
    /// Second descriptors of a file that is open for writing; what cannot be had is done without.
    pub(crate) fn of(file: &File) -> Direct {
        Direct { past: again(file, o_direct()), through: again(file, Some(0)) }
    }

    pub(crate) fn none() -> Direct {
        Direct { past: None, through: None }
    }

    /// Writes go past the cache.
    pub(crate) fn is_past(&self) -> bool {
        self.past.is_some()
    }

    /// None: this file system does not take it past the cache after all, or not of this alignment.
    pub(crate) fn write_past(&self, offset: u64, bufs: &[&[u8]]) -> Option<io::Result<()>> {
        match write_past(self.past.as_ref()?, offset, bufs) {
            Err(e) if matches!(e.raw_os_error(), Some(libc::EINVAL | libc::EOPNOTSUPP)) => None,
            written => Some(written),
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

fn again(file: &File, flags: Option<i32>) -> Option<File> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let mut options = OpenOptions::new();
    std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, flags?);
    options.read(true).write(true).open(path).ok()
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
        let both = Direct::of(&file);
        let past = both.past.is_some();
        let cached = Direct { past: None, through: again(&file, Some(0)) };
        for (number, direct) in [both, cached, Direct::none()].iter().enumerate() {
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
        Direct::of(&file).write(&file, 5, &[b"odd"]).unwrap();
        assert_eq!(file_byte(&file, 7), b'd');
    }

    fn file_byte(file: &File, at: u64) -> u8 {
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).unwrap();
        byte[0]
    }
}
