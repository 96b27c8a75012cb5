//! Opens, where they are messages, and reads where access times are kept.
//!
//! An opening of a file has a number by which its fsyncs are known (`FileSystem::fsync_opened`): it
//! is the handle that the kernel sends with them, and with those of all descriptors that were made
//! from it. It would be worth no message to most: six microseconds against one, and three times as
//! long to read a short file that is cached. So opens are messages only where access times are kept,
//! some files refuse writers, or somebody asked for it.
//!
//! The kernel leaves access times to the server, and a read of what it has cached is no message.
//! So an open for reading, of a file whose time a read would change, has the kernel drop what it
//! has cached: the first read then comes here. While the time is as it should be, which with
//! `relatime` is mostly, what is cached stays. (With write-back caching the kernel alone knows
//! when a file was changed, so each open drops it.)
//!
//! Does not see: reads through an open file of what was written through it meanwhile, and reads
//! of nothing (an empty file).

use super::Dispatcher;
use super::failure::Answer;
use super::reply::Out;
use super::request::Request;
use crate::abi::record::{OpenIn, OpenOut};
use crate::abi::{Opcode, fopen};

impl Dispatcher {
    pub(super) fn open(&self, request: &Request<'_>, out: &mut Out<'_>) -> Answer<()> {
        let arg: OpenIn = request.arg()?;
        let flags = arg.flags as i32;
        let reads = flags & libc::O_ACCMODE != libc::O_WRONLY && flags & libc::O_NOATIME == 0;
        let due = || self.writeback || self.fs.access_due(self.ino(request));
        let keep = !(self.keeps_atime && reads && due());
        let of_dir = request.header.opcode == Opcode::Opendir.number();
        let writes = flags & libc::O_ACCMODE != libc::O_RDONLY || flags & libc::O_TRUNC != 0;
        if writes && !of_dir {
            self.fs.may_write(self.ino(request))?;
        }
        let open_flags = match (keep, of_dir) {
            (false, _) => 0,
            (true, false) => fopen::KEEP_CACHE,
            (true, true) => fopen::KEEP_CACHE | fopen::CACHE_DIR,
        };
        if of_dir {
            return out.put(&OpenOut { open_flags, ..Default::default() });
        }
        out.put(&self.opened(open_flags))
    }

    /// Whether the kernel tells of opens.
    pub(super) fn sees_opens(&self) -> bool {
        self.keeps_atime || self.open_errors || self.refuses_writers
    }

    /// A file was opened.
    pub(super) fn opened(&self, open_flags: u32) -> OpenOut {
        let fh = if self.sees_opens() { self.fs.opened() } else { 0 };
        OpenOut { fh, open_flags: open_flags | fopen::NOFLUSH, ..Default::default() }
    }

    /// Something was read through a file that was opened with `flags`.
    pub(super) fn accessed(&self, request: &Request<'_>, flags: u32) {
        if self.keeps_atime && flags as i32 & libc::O_NOATIME == 0 {
            self.fs.accessed(self.ino(request));
        }
    }
}
