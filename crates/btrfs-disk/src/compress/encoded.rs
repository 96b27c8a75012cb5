//! A stream that somebody else compressed, with what comes out of it: who has an [`Encoded`]
//! knows that it can be read, and as what.
//!
//! Our decoders forgive more than the kernel's do (longer windows, bytes behind the end), and a
//! volume must hold nothing that the kernel cannot read. What it may hold says
//! [`Encoded::for_extent`] and [`Encoded::for_item`].
//!
//! What it does not know: extents, and what rules a file has beside these.

use super::{MAX_UNCOMPRESSED, fill, lzo, zstd};
use crate::error::Corrupt;
use crate::items::Compression;
use std::ops::Range;

/// How a zlib stream begins whose window is as long as any (RFC 1950, 2.2).
const ZLIB_LONG_WINDOW: u8 = 0x78;

/// Content that a file is to have, and the stream that it is a part of.
#[derive(Clone, Copy, Debug)]
pub struct Encoded<'a> {
    compression: Compression,
    sector_size: usize,
    /// Without what stands behind its end, where that is known.
    stream: &'a [u8],
    whole: &'a [u8],
    /// The rest of `whole` is zeros that are not in the stream.
    made: usize,
    within: usize,
    len: usize,
}

impl<'a> Encoded<'a> {
    /// Decompresses `stream`, in which are `whole_len` bytes; the file gets `part` of them.
    /// `room` is a buffer to be used again.
    pub fn decode(
        compression: Compression,
        sector_size: usize,
        stream: &'a [u8],
        (whole_len, part): (u64, Range<u64>),
        room: &'a mut Vec<u8>,
    ) -> Result<Encoded<'a>, Corrupt> {
        let most = MAX_UNCOMPRESSED as u64;
        if whole_len > most {
            return Err(Corrupt::new("it is longer than any extent's"));
        }
        if part.start > part.end || part.end > whole_len {
            return Err(Corrupt::new("the file gets more than there is"));
        }
        room.clear();
        room.resize(whole_len as usize, 0);
        let made = fill(compression, sector_size, stream, room)?;
        let stream = match compression {
            Compression::Lzo => lzo::whole(stream)?,
            _ => stream,
        };
        let (within, len) = (part.start as usize, (part.end - part.start) as usize);
        Ok(Encoded { compression, sector_size, stream, whole: room, made, within, len })
    }

    /// What the file gets.
    pub fn content(&self) -> &'a [u8] {
        &self.whole[self.within..self.within + self.len]
    }

    /// By what the stream was made.
    pub fn compression(&self) -> Compression {
        self.compression
    }

    /// Where in what comes out of the stream the file's content begins.
    pub fn within(&self) -> u64 {
        self.within as u64
    }

    /// How much comes out of the stream.
    pub fn whole_len(&self) -> u64 {
        self.whole.len() as u64
    }

    /// The stream, if it may be an extent where sectors are so long: the kernel can read it, it
    /// saves a sector, and what is left out in front of the content is whole sectors.
    pub fn for_extent(&self, sector_size: usize) -> Option<&'a [u8]> {
        let sectors = |len: usize| len.div_ceil(sector_size);
        let saves = sectors(self.stream.len()) < sectors(self.whole.len());
        let fits = saves && self.within.is_multiple_of(sector_size) && self.len > 0;
        (fits && self.is_readable(sector_size)).then_some(self.stream)
    }

    /// The stream, if it may be all of a file's item: of one sector, nothing left out, and
    /// without zeros that it does not say.
    pub fn for_item(&self, sector_size: usize) -> Option<&'a [u8]> {
        let all = self.len == self.whole.len() && self.made == self.len;
        let short = self.len <= sector_size && self.stream.len() < self.len;
        let single = self.compression != Compression::Lzo || lzo::is_one_segment(self.stream);
        (all && short && single && self.is_readable(sector_size)).then_some(self.stream)
    }

    /// By the kernel, where sectors are so long.
    fn is_readable(&self, sector_size: usize) -> bool {
        match self.compression {
            Compression::None => false,
            // With another window the kernel takes it at its word, and ours does not.
            Compression::Zlib => self.stream.first() == Some(&ZLIB_LONG_WINDOW),
            Compression::Lzo => self.sector_size == sector_size,
            Compression::Zstd => zstd::has_short_window(self.stream),
        }
    }
}
