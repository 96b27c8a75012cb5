//! Reading, writing, and everything else that acts on a file's content.

use vfs::{Errno, FallocateMode, Ino, Result, SeekWhence, WriteFlags};

use super::attrs::{drop_capability, kill_suid_sgid};
use super::bits::NOCOW;
use super::content::BLOCK;
use super::state::State;

/// Where a copy or clone comes from and goes to.
#[derive(Clone, Copy)]
pub(super) struct Span {
    pub from: Ino,
    pub from_offset: u64,
    pub to: Ino,
    pub to_offset: u64,
    pub len: u64,
}

impl Span {
    fn aligned(&self) -> bool {
        self.from_offset.is_multiple_of(BLOCK) && self.to_offset.is_multiple_of(BLOCK)
    }

    fn overlaps(&self) -> bool {
        self.from == self.to
            && self.from_offset < self.to_offset.saturating_add(self.len)
            && self.to_offset < self.from_offset.saturating_add(self.len)
    }
}

fn end_of(offset: u64, len: u64) -> Result<u64> {
    match offset.checked_add(len) {
        Some(end) if end <= i64::MAX as u64 => Ok(end),
        _ => Err(Errno::EFBIG.into()),
    }
}

impl State {
    /// `ino` may be written at `offset`: append-only files grow and do nothing else.
    fn check_writable(&self, ino: Ino, offset: u64) -> Result<()> {
        let size = self.file(ino)?.size;
        let inode = self.get(ino)?;
        if inode.immutable() || (inode.append_only() && offset != size) {
            return Err(Errno::EPERM.into());
        }
        Ok(())
    }

    /// Copies and clones never append, so that append-only files take none.
    fn check_replaceable(&self, ino: Ino) -> Result<()> {
        self.file(ino)?;
        let inode = self.get(ino)?;
        let frozen = inode.immutable() || inode.append_only();
        if frozen { Err(Errno::EPERM.into()) } else { Ok(()) }
    }

    fn modified(&mut self, ino: Ino) -> Result<()> {
        let now = self.now();
        let inode = self.get_mut(ino)?;
        inode.touch(now);
        drop_capability(inode);
        Ok(())
    }

    pub(super) fn write(
        &mut self,
        ino: Ino,
        offset: u64,
        data: &[u8],
        flags: WriteFlags,
    ) -> Result<usize> {
        self.check_writable(ino, offset)?;
        if data.is_empty() {
            return Ok(0);
        }
        end_of(offset, data.len() as u64)?;
        self.file_mut(ino)?.write(offset, data);
        self.modified(ino)?;
        if flags.kill_priv {
            kill_suid_sgid(self.get_mut(ino)?, false);
        }
        Ok(data.len())
    }

    pub(super) fn fallocate(
        &mut self,
        ino: Ino,
        mode: FallocateMode,
        offset: u64,
        len: u64,
    ) -> Result<()> {
        let size = self.file(ino)?.size;
        let inode = self.get(ino)?;
        if inode.immutable() {
            return Err(Errno::EPERM.into());
        }
        if len == 0 {
            return Err(Errno::EINVAL.into());
        }
        let end = end_of(offset, len)?;
        let adds = matches!(mode, FallocateMode::Allocate | FallocateMode::KeepSize);
        if inode.append_only() && !adds {
            return Err(Errno::EPERM.into());
        }
        let file = self.file_mut(ino)?;
        let grows = match mode {
            FallocateMode::Allocate | FallocateMode::ZeroRange { keep_size: false } => end > size,
            _ => false,
        };
        if mode == FallocateMode::PunchHole {
            // Nothing to free: not even the times change. (In the kernel it depends on
            // what it has cached.)
            if offset >= size.next_multiple_of(BLOCK) || file.is_hole(offset, end) {
                return Ok(());
            }
        }
        if end > size && mode != FallocateMode::PunchHole {
            file.settle_end();
        }
        match mode {
            FallocateMode::Allocate | FallocateMode::KeepSize => file.allocate(offset, end),
            FallocateMode::ZeroRange { .. } => file.zero(offset, end),
            FallocateMode::PunchHole => file.punch(offset, end),
            _ => return Err(Errno::EOPNOTSUPP.into()),
        }
        if grows {
            file.size = end;
        }
        self.modified(ino)
    }

    pub(super) fn seek(&self, ino: Ino, offset: u64, whence: SeekWhence) -> Result<u64> {
        let (file, zeros) = (self.file(ino)?, self.profile.zeros_are_data);
        if offset >= file.size {
            return Err(Errno::ENXIO.into());
        }
        match whence {
            SeekWhence::Data => file.next_data(offset, zeros).ok_or_else(|| Errno::ENXIO.into()),
            SeekWhence::Hole => Ok(file.next_hole(offset, zeros)),
        }
    }

    /// Whole blocks are cloned where alignment allows, the rest is copied.
    pub(super) fn copy_range(&mut self, mut span: Span) -> Result<u64> {
        let source = self.file(span.from)?.size;
        self.check_replaceable(span.to)?;
        end_of(span.from_offset, span.len)?;
        end_of(span.to_offset, span.len)?;
        span.len = span.len.min(source.saturating_sub(span.from_offset));
        if span.overlaps() {
            return Err(Errno::EINVAL.into());
        }
        let total = span.len;
        if total == 0 {
            return Ok(0);
        }
        if span.aligned() && self.same_checksumming(span)? {
            let cloned = self.clonable(span)?;
            self.share(Span { len: cloned, ..span })?;
            span.from_offset += cloned;
            span.to_offset += cloned;
            span.len -= cloned;
        }
        let mut bytes = vec![0; span.len as usize];
        self.file(span.from)?.read(span.from_offset, &mut bytes);
        self.file_mut(span.to)?.write(span.to_offset, &bytes);
        self.modified(span.to)?;
        Ok(total)
    }

    /// How much of the span, from its start, consists of blocks that can be shared: a
    /// partial last block only if it becomes the last of the target as well.
    fn clonable(&self, span: Span) -> Result<u64> {
        let at_end = span.from_offset + span.len == self.file(span.from)?.size;
        let becomes_end = span.to_offset + span.len >= self.file(span.to)?.size;
        Ok(if at_end && becomes_end { span.len } else { span.len / BLOCK * BLOCK })
    }

    /// Extents with and without checksums cannot be shared.
    fn same_checksumming(&self, span: Span) -> Result<bool> {
        Ok((self.get(span.from)?.flags ^ self.get(span.to)?.flags) & NOCOW == 0)
    }

    fn share(&mut self, span: Span) -> Result<()> {
        // First, because source and target may be one file.
        self.file_mut(span.to)?.grow(span.to_offset);
        let source = self.file(span.from)?.clone();
        let target = self.file_mut(span.to)?;
        target.clone_blocks(&source, span.from_offset, span.to_offset, span.len);
        Ok(())
    }

    pub(super) fn clone_range(&mut self, mut span: Span) -> Result<()> {
        let source = self.file(span.from)?.size;
        self.check_replaceable(span.to)?;
        if !self.same_checksumming(span)? {
            return Err(Errno::EINVAL.into());
        }
        if span.len == 0 {
            span.len = source.checked_sub(span.from_offset).ok_or(Errno::EINVAL)?;
            if span.len == 0 {
                return Ok(());
            }
        }
        end_of(span.to_offset, span.len)?;
        let inside = end_of(span.from_offset, span.len)? <= source;
        let whole = inside && self.clonable(span)? == span.len;
        if !whole || !span.aligned() || span.overlaps() {
            return Err(Errno::EINVAL.into());
        }
        self.share(span)?;
        self.modified(span.to)
    }
}
