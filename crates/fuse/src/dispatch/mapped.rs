//! Holes that are none any more: what programs stored through a shared map, and the kernel has not sent.
//!
//! Linux asks for SEEK_DATA, SEEK_HOLE and attributes without sending the pages that it holds. Where the file
//! has a hole those may be its only content, and who believes the hole (`cp`, or `tar -S`, which opens no
//! file without blocks) leaves that content away. So before a hole is told the kernel drops its pages, and
//! sends those that were written.
//!
//! Invariants: a page that can be written through a map was READ, or written through the page cache, so
//! `Pages` has its note; dropped, it must be READ again before the next store. Where the pages cannot be waited for, the answer is
//! data, which no reader takes for anything that it is not. A count of blocks that is none lasts only behind such a look: all
//! other replies that have it are asked again by `stat`.
//!
//! With `-o writeback` pages become dirty without a READ and behind the size that is known here, so no file
//! is told to have no block. Does not know what is in the files.

use super::Dispatcher;
use super::failure::Answer;
use super::request::Request;
use super::waits::Listening;
use std::ops::Range;
use std::time::{Duration, Instant};
use vfs::{Attr, Errno, FileKind, FsError, Ino, SeekWhence};

/// What is told of a file whose blocks are not known to be none.
const SOME_BLOCK: u64 = 1;

/// How long the pages of a whole file are waited for.
/// Chosen, not measured.
const LONGEST: Duration = Duration::from_secs(60);

/// What the file system says to a SEEK, and the hole that it so claims.
struct Claim {
    answer: vfs::Result<u64>,
    hole: Range<u64>,
}

impl Dispatcher {
    /// SEEK_DATA and SEEK_HOLE, the kernel's pages counted.
    pub(super) fn seek(
        &self,
        request: &Request<'_>,
        offset: u64,
        whence: SeekWhence,
    ) -> Answer<u64> {
        let ino = self.ino(request);
        let mut known = 0..0;
        loop {
            let claim = self.claim(ino, offset, whence)?;
            let Range { start, end } = claim.hole;
            let sent = start >= end || (known.start <= start && end <= known.end);
            if sent {
                return Ok(claim.answer?);
            }
            match self.fetch_pages(request, ino, start..end) {
                Fetched::Nothing => return Ok(claim.answer?),
                Fetched::Sent => known = start..end,
                Fetched::Unknown if whence == SeekWhence::Data => return Ok(offset),
                Fetched::Unknown => return Ok(self.fs.getattr(ino)?.size),
            }
        }
    }

    fn claim(&self, ino: Ino, offset: u64, whence: SeekWhence) -> Answer<Claim> {
        let answer = self.fs.seek(ino, offset, whence);
        let size = || self.fs.getattr(ino).map(|attr| attr.size);
        let hole = match (&answer, whence) {
            (Ok(data), SeekWhence::Data) => offset..*data,
            (Ok(hole), SeekWhence::Hole) => *hole..self.data_behind(ino, *hole)?,
            // Behind the end it is empty.
            (Err(FsError::Posix(Errno::ENXIO)), SeekWhence::Data) => offset..size()?,
            (Err(_), _) => 0..0,
        };
        Ok(Claim { answer, hole })
    }

    /// Where the hole at `hole` ends.
    fn data_behind(&self, ino: Ino, hole: u64) -> Answer<u64> {
        match self.fs.seek(ino, hole, SeekWhence::Data) {
            Ok(data) => Ok(data),
            Err(FsError::Posix(Errno::ENXIO)) => Ok(self.fs.getattr(ino)?.size),
            Err(error) => Err(error.into()),
        }
    }

    fn fetch_pages(&self, request: &Request<'_>, ino: Ino, range: Range<u64>) -> Fetched {
        let len = range.end - range.start;
        let Some(ticket) = self.pages.end(ino, range.start, len, &self.notifier) else {
            return Fetched::Nothing;
        };
        match self.waiters.wait(request.origin, ticket, &self.notifier) {
            true => Fetched::Sent,
            false => Fetched::Unknown,
        }
    }

    /// The kernel drops all pages of a file, and sends those that were written, one by one. It is waited for
    /// as long as threads can be spared, and comes later where none can; EINTR: the caller has got a signal.
    pub(super) fn fetch_all_pages(&self, request: &Request<'_>, ino: Ino) -> vfs::Result<()> {
        let listening = self.waits.listen(request.header.unique);
        self.pages_sent(&listening, request, ino).map(drop)
    }

    /// As `fetch_all_pages`, for who listens already. False: they have not come for long.
    pub(super) fn pages_sent(
        &self,
        listening: &Listening<'_>,
        request: &Request<'_>,
        ino: Ino,
    ) -> vfs::Result<bool> {
        let ticket = self.notifier.drop_pages(ino, 0, 0);
        let Some(_place) = self.waiters.enter_for_long(request.origin) else { return Ok(true) };
        let begun = Instant::now();
        let mut sent = false;
        listening.wait(&mut || {
            sent = self.notifier.wait(ticket);
            Ok(sent || begun.elapsed() > LONGEST)
        })?;
        Ok(sent)
    }

    /// The attributes, for an answer to `stat`.
    pub(super) fn attr_with_pages(&self, request: &Request<'_>, ino: Ino) -> Answer<Attr> {
        let attr = self.fs.getattr(ino)?;
        if !has_no_block(&attr) || self.writeback {
            return Ok(attr);
        }
        Ok(match self.fetch_pages(request, ino, 0..attr.size) {
            Fetched::Nothing => attr,
            Fetched::Sent => self.fs.getattr(ino)?,
            Fetched::Unknown => Attr { blocks: SOME_BLOCK, ..attr },
        })
    }

    /// As the mount shows it.
    pub(super) fn shown(&self, attr: &Attr) -> Attr {
        let mut shown = self.owners.show(attr);
        if self.writeback && attr.kind == FileKind::File && attr.blocks == 0 {
            shown.blocks = SOME_BLOCK;
        }
        shown
    }

    /// Whether attributes last that came without a look at the kernel's pages.
    pub(super) fn blocks_last(&self, attr: &Attr) -> bool {
        self.writeback || !has_no_block(attr)
    }
}

/// What becomes of the pages that the kernel has of a range.
enum Fetched {
    /// There are none.
    Nothing,
    /// What was in them is here.
    Sent,
    /// Nobody could wait for that.
    Unknown,
}

fn has_no_block(attr: &Attr) -> bool {
    attr.kind == FileKind::File && attr.blocks == 0 && attr.size > 0
}
