//! Content of files: which ranges differ, and how they are said.

use crate::clones::Clones;
use crate::error::{Error, Result};
use crate::namespace::Namespace;
use crate::out::{Options, Out};
use crate::source::{File, Source};
use crate::tree::{Piece, PieceKind, Tree};
use btrfs_disk::TreeId;
use btrfs_disk::items::{Compression, InodeItem, inode_flags};
use btrfs_send::{Command, CompressedPiece, MAX_DATA, Protocol};

/// Read in one go: whole commands of either protocol.
const READ: u64 = 24 * MAX_DATA as u64;
/// In protocol 2.
const MAX_DATA_2: usize = 128 << 10;
/// As fallocate(2) has it: room is given back, and the size stays.
const PUNCH_HOLE: u32 = 3;

/// What compressed extents are at most; a longer one is sent as it reads.
const MAX_STORED: u64 = 128 << 10;
/// Extents of a file that are in memory at once.
/// Chosen, not measured.
const BATCH: usize = 4096;

/// A file that is being sent.
struct Target<'f> {
    file: File<'f>,
    item: &'f InodeItem,
}

pub(crate) struct Content<'s> {
    source: &'s dyn Source,
    options: Options,
    clones: Clones<'s>,
    buffer: Vec<u8>,
    tree: TreeId,
}

impl<'s> Content<'s> {
    pub(crate) fn new(source: &'s dyn Source, options: Options, clones: Clones<'s>) -> Self {
        let tree = clones.sent();
        Content { source, options, clones, buffer: Vec::new(), tree }
    }

    /// Makes the file's size, and what `ranges` have, the new ones.
    pub(crate) fn send(
        &mut self,
        space: &mut Namespace<'s>,
        ino: u64,
        path: &[u8],
        (old, new): (Option<&InodeItem>, &InodeItem),
        ranges: &[(u64, u64)],
        out: &mut Out<'_>,
    ) -> Result<()> {
        let file = File { tree: self.tree, ino, flags: new.flags, path };
        let target = Target { file, item: new };
        if old.is_some_and(|old| old.size != new.size) {
            out.put(&Command::Truncate { path, size: new.size })?;
        }
        let mut last = 0;
        for (start, end) in ranges.iter().map(|(start, end)| (*start, (*end).min(new.size))) {
            let mut at = start;
            while at < end {
                let (is, was, upto) = batch(space, (ino, old), at, end)?;
                // What a piece has in front of it was sent with those before.
                let from = if at == start { 0 } else { at };
                for piece in spans(is, at, upto) {
                    if !matches!(piece.kind, PieceKind::Zeros) {
                        last = last.max(piece.end);
                    }
                    self.send_piece(space, &target, (from, &piece), &was, out)?;
                }
                at = upto;
            }
        }
        if old.is_none() && last < new.size {
            out.put(&Command::Truncate { path, size: new.size })?;
        }
        Ok(())
    }

    fn send_piece(
        &mut self,
        space: &mut Namespace<'s>,
        target: &Target<'_>,
        (from, piece): (u64, &Piece),
        was: &[Piece],
        out: &mut Out<'_>,
    ) -> Result<()> {
        let is_zeros = matches!(piece.kind, PieceKind::Zeros);
        // Where the parent has what has to be written over, or not what is to be there.
        let mut at = piece.start.max(from);
        let was = &was[was.partition_point(|old| old.end <= at)..];
        for old in was.iter().take_while(|old| old.start < piece.end) {
            let (start, end) = (old.start.max(at), old.end.min(piece.end));
            if is_zeros && !matches!(old.kind, PieceKind::Zeros) {
                self.send_zeros(target, start, end, out)?;
            }
            if !is_zeros && is_same(old, piece) {
                self.send_data(space, target, piece, (at, start), out)?;
                at = end;
            }
        }
        match is_zeros {
            true => Ok(()),
            false => self.send_data(space, target, piece, (at, piece.end), out),
        }
    }

    fn send_zeros(
        &mut self,
        target: &Target<'_>,
        start: u64,
        end: u64,
        out: &mut Out<'_>,
    ) -> Result<()> {
        let (path, len) = (target.file.path, end - start);
        if self.options.without_content {
            return out.put(&Command::UpdateExtent { path, offset: start, len });
        }
        if self.options.protocol >= Protocol::V2 {
            return out.put(&Command::Fallocate { path, mode: PUNCH_HOLE, offset: start, len });
        }
        let mut at = start;
        while at < end {
            let data = &[0; MAX_DATA][..(end - at).min(MAX_DATA as u64) as usize];
            out.put(&Command::Write { path, offset: at, data })?;
            at += data.len() as u64;
        }
        Ok(())
    }

    fn send_data(
        &mut self,
        space: &mut Namespace<'s>,
        target: &Target<'_>,
        piece: &Piece,
        (start, end): (u64, u64),
        out: &mut Out<'_>,
    ) -> Result<()> {
        if self.options.without_content {
            return match start < end {
                true => {
                    let (path, len) = (target.file.path, end - start);
                    out.put(&Command::UpdateExtent { path, offset: start, len })
                }
                false => Ok(()),
            };
        }
        let mut at = start;
        while at < end {
            let cloned =
                self.clones.send(space, (target.file.ino, target.item), piece, at, end, out)?;
            at += cloned.len;
            let to = cloned.next.min(end);
            if at < to {
                self.write(target, piece, (at, to), out)?;
                at = to;
            }
        }
        Ok(())
    }

    fn write(
        &mut self,
        target: &Target<'_>,
        piece: &Piece,
        (start, end): (u64, u64),
        out: &mut Out<'_>,
    ) -> Result<()> {
        // As it is stored it cannot be verified.
        let verified = target.file.flags & inode_flags::RO_VERITY != 0;
        if self.options.compressed
            && !verified
            && start == piece.start
            && end == piece.end
            && self.write_compressed(target, piece, out)?
        {
            return Ok(());
        }
        let most = match self.options.protocol {
            Protocol::V1 => MAX_DATA,
            // Room in all that came behind.
            _ => MAX_DATA_2,
        };
        let path = target.file.path;
        let mut at = start;
        while at < end {
            self.buffer.resize((end - at).min(READ) as usize, 0);
            let read = self.source.read(&target.file, at, &mut self.buffer);
            read.map_err(|error| Error::File(path.to_vec(), error))?;
            for data in self.buffer.chunks(most) {
                out.put(&Command::Write { path, offset: at, data })?;
                at += data.len() as u64;
            }
        }
        Ok(())
    }

    /// False: it is not compressed, or cannot be sent so.
    fn write_compressed(
        &mut self,
        target: &Target<'_>,
        piece: &Piece,
        out: &mut Out<'_>,
    ) -> Result<bool> {
        let file_len = piece.end - piece.start;
        let (compression, unencoded_len, unencoded_offset) = match &piece.kind {
            PieceKind::Inline { compression, ram_bytes, content } => {
                self.buffer.clear();
                self.buffer.extend_from_slice(content);
                (*compression, *ram_bytes, 0)
            }
            PieceKind::Extent { compression, fields }
                if *compression != Compression::None && fields.disk_num_bytes <= MAX_STORED =>
            {
                self.buffer.resize(fields.disk_num_bytes as usize, 0);
                let (file, buffer) = (&target.file, &mut self.buffer);
                let read = self.source.read_stored(file, piece.start, fields, buffer);
                read.map_err(|error| Error::File(file.path.to_vec(), error))?;
                (*compression, fields.ram_bytes, fields.offset)
            }
            _ => return Ok(false),
        };
        // Receivers take no piece that is longer than what comes out of it: a file may go on behind
        // content among the structures, in zeros.
        let there = unencoded_len.saturating_sub(unencoded_offset);
        if compression == Compression::None || file_len > there {
            return Ok(false);
        }
        let encoded = CompressedPiece {
            file_len,
            unencoded_len,
            unencoded_offset,
            compression: self.number_of(compression),
            says_plain: matches!(piece.kind, PieceKind::Extent { .. }),
            data: &self.buffer,
        };
        let (path, offset) = (target.file.path, piece.start);
        out.put(&Command::EncodedWrite { path, offset, piece: encoded })?;
        Ok(true)
    }

    /// As streams have it.
    fn number_of(&self, compression: Compression) -> u32 {
        let sector = self.source.reader().geometry().sector_size;
        match compression {
            Compression::None => 0,
            Compression::Zlib => 1,
            Compression::Zstd => 2,
            Compression::Lzo => 3 + sector.trailing_zeros().saturating_sub(12),
        }
    }
}

/// What is there, and what the parent has, up to where both say all.
fn batch(
    space: &Namespace<'_>,
    (ino, old): (u64, Option<&InodeItem>),
    at: u64,
    end: u64,
) -> Result<(Vec<Piece>, Vec<Piece>, u64)> {
    let is = space.right.pieces(ino, at, end, BATCH)?;
    let upto = whole_to(&is, end);
    let was = match (&space.left, old) {
        (Some(left), Some(old)) => before(left, ino, at, upto.min(old.size))?,
        _ => Vec::new(),
    };
    let upto = whole_to(&was, upto);
    Ok((is, was, upto))
}

/// To where pieces before `end` say all, of which no more than a batch was read.
fn whole_to(pieces: &[Piece], end: u64) -> u64 {
    let full = pieces.len() >= BATCH;
    pieces.last().filter(|_| full).map_or(end, |last| last.end.min(end))
}

/// A batch of what the parent has before `end`, which may be the end of its file.
fn before(left: &Tree<'_>, ino: u64, start: u64, end: u64) -> Result<Vec<Piece>> {
    if start >= end {
        return Ok(Vec::new());
    }
    let mut all = left.pieces(ino, start, end, BATCH)?;
    for piece in &mut all {
        piece.end = piece.end.min(end);
    }
    Ok(all)
}

/// The range without gaps: zeros where there is nothing.
fn spans(pieces: Vec<Piece>, start: u64, end: u64) -> Vec<Piece> {
    let (mut all, mut at) = (Vec::new(), start);
    for piece in pieces.into_iter().take_while(|piece| piece.start < end) {
        if piece.start > at {
            all.push(Piece { start: at, end: piece.start.min(end), kind: PieceKind::Zeros });
        }
        at = piece.end;
        all.push(Piece { end: piece.end.min(end), ..piece });
    }
    if at < end {
        all.push(Piece { start: at, end, kind: PieceKind::Zeros });
    }
    all
}

/// Both have the same bytes of the same extent wherever they overlap.
fn is_same(old: &Piece, new: &Piece) -> bool {
    match (&old.kind, &new.kind) {
        (PieceKind::Extent { fields: a, .. }, PieceKind::Extent { fields: b, .. }) => {
            a.disk_bytenr == b.disk_bytenr
                && a.offset.wrapping_sub(old.start) == b.offset.wrapping_sub(new.start)
        }
        (a, b) => a == b && old.start == new.start,
    }
}
