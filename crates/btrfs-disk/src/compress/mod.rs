//! The three compressions of file extents, with the kernel's framing of each.
//!
//! Output goes into the caller's buffer and never beyond it; damaged input is an error,
//! never a panic. An extent's bytes are padded to whole sectors on disk, so what follows
//! the stream is ignored; content that ends early is zeros from there on, as the kernel
//! reads it.
//!
//! Does not know extents, checksums or the mount's choice of algorithm.

#![allow(clippy::as_conversions, reason = "bits of compressed streams, cut on purpose")]

mod encoded;
mod lzo;
mod lzo1x;
mod sample;
mod zlib;
mod zstd;

use crate::error::Corrupt;
use crate::items::Compression;

pub use encoded::Encoded;
pub use sample::looks_compressible;

/// The most content that one compressed extent may hold.
pub const MAX_UNCOMPRESSED: usize = 128 << 10;
/// A length that a compressed extent says of its content, or of its stream, as the format allows it.
pub fn bounded(len: u64) -> Result<usize, Corrupt> {
    match usize::try_from(len) {
        Ok(len) if len <= MAX_UNCOMPRESSED => Ok(len),
        _ => Err(Corrupt::new(format!("compressed extent of {len} bytes"))),
    }
}

/// The largest window of a zstd frame that the kernel accepts, as a power of two.
const ZSTD_WINDOW_LOG: u32 = 17;

/// Fills `out` with the content of a compressed extent, from its first byte on; reads no
/// further once `out` is full, so a short `out` is a cheap look at the beginning.
/// `sector_size` rules the framing of LZO.
pub fn decompress(
    compression: Compression,
    sector_size: usize,
    input: &[u8],
    out: &mut [u8],
) -> Result<(), Corrupt> {
    fill(compression, sector_size, input, out).map(drop)
}

/// The same; answers how much of `out` the stream has, behind which are zeros.
fn fill(
    compression: Compression,
    sector_size: usize,
    input: &[u8],
    out: &mut [u8],
) -> Result<usize, Corrupt> {
    let made = match compression {
        Compression::None => {
            let len = input.len().min(out.len());
            out[..len].copy_from_slice(&input[..len]);
            len
        }
        Compression::Zlib => zlib::decompress(input, out)?,
        Compression::Lzo => lzo::decompress(sector_size, input, out)?,
        Compression::Zstd => zstd::decompress(input, out)?,
    };
    // Decoders may write further than they say.
    out[made..].fill(0);
    Ok(made)
}

/// The levels that `-o compress=ALGORITHM:LEVEL` takes, and the default.
pub fn levels(compression: Compression) -> (i32, i32, i32) {
    match compression {
        Compression::None | Compression::Lzo => (0, 0, 0),
        Compression::Zlib => (1, 3, 9),
        Compression::Zstd => (-15, 3, 15),
    }
}

/// The stream for `input` (at most [`MAX_UNCOMPRESSED`] bytes), if it is no longer than
/// `limit`. A level outside the range is moved into it. The caller pads with zeros to the
/// next whole sector and no further (the kernel refuses LZO extents that are longer).
pub fn compress(
    compression: Compression,
    level: i32,
    sector_size: usize,
    input: &[u8],
    limit: usize,
) -> Option<Vec<u8>> {
    let (low, _, high) = levels(compression);
    let level = level.clamp(low, high);
    if input.is_empty() || input.len() > MAX_UNCOMPRESSED {
        return None;
    }
    let made = match compression {
        Compression::None => None,
        Compression::Zlib => zlib::compress(level, input, limit),
        Compression::Lzo => lzo::compress(sector_size, input, limit),
        Compression::Zstd => zstd::compress(level, input, limit),
    };
    made.filter(|stream| stream.len() <= limit)
}

#[cfg(test)]
mod tests;
