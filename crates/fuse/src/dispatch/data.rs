//! File contents: reading, writing, allocating, copying, and making them durable.

use super::Dispatcher;
use super::caller::killing_unasked;
use super::failure::{Answer, Failure};
use super::reply::Out;
use super::request::Request;
use crate::abi::record::*;
use crate::abi::{FSYNC_FDATASYNC, read_flags, write_flags};
use vfs::{Errno, FallocateMode, Ino, SeekWhence, WriteFlags};

/// One COPY_FILE_RANGE keeps its caller (who cannot be killed meanwhile) no longer
/// than this many bytes take; callers go on where it stopped.
/// Chosen, not measured.
const COPY_AT_ONCE: u64 = 1 << 30;
/// The reply of the older operation counts in 32 bits; stay at a block boundary.
const COPY_32_BITS: u64 = 0xffff_f000;

impl Dispatcher {
    pub(super) fn read(&self, request: &Request<'_>, out: &mut Out<'_>) -> Answer<()> {
        let arg: ReadIn = request.arg()?;
        let size = arg.size as usize;
        let ino = self.ino(request);
        let cached = arg.read_flags & read_flags::LOCKOWNER == 0;
        if cached {
            self.pages.note(ino, arg.offset, u64::from(arg.size));
            self.read.note(ino);
        }
        self.about_to_read(ino);
        let filled = self.fs.read(ino, arg.offset, out.space(size)?)?;
        if cached && filled < size {
            self.end_is_read(ino, arg.offset + filled as u64);
        }
        out.advance(filled.min(size));
        self.accessed(request, arg.flags);
        Ok(())
    }

    pub(super) fn write(&self, request: &Request<'_>, out: &mut Out<'_>) -> Answer<()> {
        let arg: WriteIn = request.arg()?;
        let data = request.payload.get(..arg.size as usize).ok_or(Errno::EINVAL)?;
        let kill_priv = arg.write_flags & write_flags::KILL_SUIDGID != 0;
        // Whoever asked for O_SYNC is served by the FSYNC that the kernel sends afterwards.
        let cached = arg.write_flags & write_flags::CACHE != 0;
        let flags = WriteFlags { kill_priv, sync: false, direct: is_direct(&arg), cached };
        let (cx, ino, len) = (request.context(0), self.ino(request), u64::from(arg.size));
        let past_cache = is_past_cache(&arg);
        // What was written stays with the kernel, too.
        self.about_to_read(ino);
        if !past_cache {
            self.pages.note(ino, arg.offset, len);
        }
        let end = if cached { None } else { self.known_end(ino) };
        let result = self.fs.write(&cx, ino, arg.offset, data, flags);
        if let Ok(written) = result
            && written > 0
        {
            self.grown(request, ino, end, arg.offset, arg.offset + written as u64);
        }
        // Also after a failure: a part may have been written.
        if past_cache && let Some(ticket) = self.pages.end(ino, arg.offset, len, &self.notifier) {
            self.waiters.wait(request.origin, ticket, &self.notifier);
        }
        let refused = result
            .as_ref()
            .is_err_and(|error| [libc::EPERM, libc::ETXTBSY].contains(&error.errno()));
        if refused && cached {
            // Through a map, of a file that nobody changes: the kernel still shows it so.
            self.notifier.data_changed(ino, arg.offset, len);
        }
        let written = result?;
        if cached && written < data.len() {
            // The kernel takes any count for all of them, and drops the pages.
            return Err(Errno::ENOSPC.into());
        }
        out.put(&WriteOut { size: written as u32, padding: 0 })
    }

    /// FALLOCATE and COPY_FILE_RANGE change data, but carry no flag that says whether
    /// the caller may keep the special mode bits (see `dispatch/mod.rs`). Before the change, as in the kernel: where
    /// this fails nothing is changed, and an error behind a change would leave the kernel its old pages.
    fn kill_priv_unasked(&self, request: &Request<'_>, ino: Ino) -> Answer<()> {
        let attr = self.owners.show(&self.fs.getattr(ino)?);
        let Some(set) = killing_unasked(&*self.callers, request, &attr) else { return Ok(()) };
        self.fs.setattr(&request.context(0), ino, &set)?;
        self.notifier.attributes_changed_now(ino);
        Ok(())
    }

    pub(super) fn fsync(&self, request: &Request<'_>) -> Answer<()> {
        let arg: FsyncIn = request.arg()?;
        let (ino, datasync) = (self.ino(request), arg.fsync_flags & FSYNC_FDATASYNC != 0);
        self.fs.fsync_opened(ino, arg.fh, datasync)?;
        if self.writeback
            && let Some(last) = self.notifier.last(ino)
        {
            // The count of blocks has settled: the kernel, which keeps the attributes, is about to hear it.
            self.waiters.wait(request.origin, last, &self.notifier);
        }
        Ok(())
    }

    pub(super) fn fallocate(&self, request: &Request<'_>) -> Answer<()> {
        let arg: FallocateIn = request.arg()?;
        let ino = self.ino(request);
        let mode = fallocate_mode(arg.mode as i32)?;
        self.kill_priv_unasked(request, ino)?;
        let end = self.known_end(ino);
        let done = self.fs.fallocate(&request.context(0), ino, mode, arg.offset, arg.length);
        done.inspect_err(|_| self.may_have_changed(ino, arg.offset, arg.length))?;
        if grows(mode) {
            let new = arg.offset.saturating_add(arg.length);
            self.grown(request, ino, end, new, new);
        }
        Ok(())
    }

    /// Of a change that failed the kernel believes that nothing came of it: its pages stay, and the size.
    pub(super) fn may_have_changed(&self, ino: Ino, offset: u64, len: u64) {
        self.notifier.data_changed(ino, offset, len);
    }

    pub(super) fn lseek(&self, request: &Request<'_>, out: &mut Out<'_>) -> Answer<()> {
        // The kernel asks without having sent what it holds: content there would be a hole. Never
        // asked again, it calls all of a file data.
        if self.writeback {
            return Err(Failure::NEVER_SEND);
        }
        let arg: LseekIn = request.arg()?;
        let whence = match arg.whence as i32 {
            libc::SEEK_DATA => SeekWhence::Data,
            libc::SEEK_HOLE => SeekWhence::Hole,
            _ => return Err(Errno::EINVAL.into()),
        };
        // In front of a file is its beginning, as in the kernel's btrfs.
        let offset = (arg.offset as i64).max(0) as u64;
        let offset = self.seek(request, offset, whence)?;
        out.put(&LseekOut { offset })
    }

    pub(super) fn copy_file_range(&self, request: &Request<'_>, out: &mut Out<'_>) -> Answer<()> {
        let copied = self.copy(request, COPY_AT_ONCE.min(COPY_32_BITS))?;
        out.put(&WriteOut { size: copied as u32, padding: 0 })
    }

    pub(super) fn copy_file_range_64(
        &self,
        request: &Request<'_>,
        out: &mut Out<'_>,
    ) -> Answer<()> {
        let bytes_copied = self.copy(request, COPY_AT_ONCE)?;
        out.put(&CopyFileRangeOut { bytes_copied })
    }

    fn copy(&self, request: &Request<'_>, most: u64) -> Answer<u64> {
        let arg: CopyFileRangeIn = request.arg()?;
        if arg.flags != 0 {
            return Err(Errno::EINVAL.into());
        }
        let (from, to) = (self.ino(request), self.nodes.to_ino(arg.nodeid_out));
        let cx = request.context(0);
        let len = arg.len.min(most);
        self.kill_priv_unasked(request, to)?;
        let end = self.known_end(to);
        let copied = self.fs.copy_range(&cx, from, arg.off_in, to, arg.off_out, len);
        let done = *copied.as_ref().unwrap_or(&0);
        if done > 0 {
            self.grown(request, to, end, arg.off_out, arg.off_out.saturating_add(done));
        }
        // What ends before its source does met an error, and may have done more.
        let ended = || self.fs.getattr(from).is_ok_and(|attr| arg.off_in + done >= attr.size);
        if copied.is_err() || done < len && !ended() {
            self.may_have_changed(to, arg.off_out + done, len - done);
        }
        Ok(copied?)
    }
}

/// Its writer has opened the file with O_DIRECT, and waits for this very write.
fn is_direct(arg: &WriteIn) -> bool {
    arg.flags & libc::O_DIRECT as u32 != 0 && arg.write_flags & write_flags::CACHE == 0
}

/// Not through the page cache. A write whose pages Linux could not drop goes through the cache
/// in spite of O_DIRECT, and holds those pages locked; only the other ones name an owner.
fn is_past_cache(arg: &WriteIn) -> bool {
    is_direct(arg) && arg.write_flags & write_flags::LOCKOWNER != 0
}

fn grows(mode: FallocateMode) -> bool {
    matches!(mode, FallocateMode::Allocate | FallocateMode::ZeroRange { keep_size: false })
}

fn fallocate_mode(mode: i32) -> Answer<FallocateMode> {
    const PUNCH: i32 = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    const ZERO_KEEP: i32 = libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE;
    Ok(match mode {
        0 => FallocateMode::Allocate,
        libc::FALLOC_FL_KEEP_SIZE => FallocateMode::KeepSize,
        PUNCH => FallocateMode::PunchHole,
        libc::FALLOC_FL_ZERO_RANGE => FallocateMode::ZeroRange { keep_size: false },
        ZERO_KEEP => FallocateMode::ZeroRange { keep_size: true },
        _ => return Err(Errno::EOPNOTSUPP.into()),
    })
}
