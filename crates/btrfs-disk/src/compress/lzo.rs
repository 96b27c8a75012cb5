//! The framing of LZO extents: a 4-byte length of the whole, itself included, then
//! segments, each a 4-byte length and an LZO1X stream of one sector's content. A length
//! never crosses a sector boundary (counted from the beginning of the extent): where
//! fewer than 4 bytes are left in a sector they are zeros and the length follows behind.
//! An inline extent is the same with one segment.

use super::lzo1x;
use crate::error::Corrupt;

/// Bytes of a length in front of the whole and of each segment.
const LENGTH: usize = 4;

/// A stream of incompressible content is a little longer than the content.
fn worst_case(sector_size: usize) -> usize {
    sector_size + sector_size / 16 + 64 + 3 + 2
}

/// Where the next length lies, `at` being the first unused byte.
fn next_length(at: usize, sector_size: usize) -> usize {
    let left = sector_size - at % sector_size;
    if left < LENGTH { at + left } else { at }
}

fn length_at(input: &[u8], at: usize) -> Result<usize, Corrupt> {
    let bytes =
        input.get(at..at + LENGTH).ok_or_else(|| Corrupt::new("LZO extent is cut short"))?;
    Ok(u32::from_le_bytes(bytes.try_into().expect("sized")) as usize)
}

/// The extent without what follows it.
pub(super) fn whole(input: &[u8]) -> Result<&[u8], Corrupt> {
    let total = length_at(input, 0)?;
    let whole = input.get(..total).filter(|whole| whole.len() >= LENGTH);
    whole.ok_or_else(|| Corrupt::new(format!("LZO extent of {total} bytes")))
}

/// Whether an extent without anything behind it is one segment, as inline ones are.
pub(super) fn is_one_segment(whole: &[u8]) -> bool {
    length_at(whole, LENGTH).is_ok_and(|len| len + 2 * LENGTH == whole.len())
}

/// How many bytes of `out` the segments fill.
pub(super) fn decompress(
    sector_size: usize,
    input: &[u8],
    out: &mut [u8],
) -> Result<usize, Corrupt> {
    let input = whole(input)?;
    let total = input.len();
    debug_assert!(sector_size >= LENGTH);
    let mut at = LENGTH;
    let mut made = 0;
    let mut sector = Vec::new();
    while made < out.len() && at < total {
        at = next_length(at, sector_size);
        if at >= total {
            break;
        }
        let len = length_at(input, at)?;
        at += LENGTH;
        let stream = input
            .get(at..at + len)
            .filter(|_| len <= worst_case(sector_size))
            .ok_or_else(|| Corrupt::new(format!("LZO segment of {len} bytes")))?;
        at += len;
        made += segment(sector_size, stream, &mut out[made..], &mut sector)?;
    }
    Ok(made)
}

/// Decodes one sector's content; through `sector` if less than a sector is wanted.
fn segment(
    sector_size: usize,
    stream: &[u8],
    out: &mut [u8],
    sector: &mut Vec<u8>,
) -> Result<usize, Corrupt> {
    if out.len() >= sector_size {
        return lzo1x::decompress(stream, &mut out[..sector_size]);
    }
    sector.resize(sector_size, 0);
    let made = lzo1x::decompress(stream, sector)?.min(out.len());
    out[..made].copy_from_slice(&sector[..made]);
    Ok(made)
}

pub(super) fn compress(sector_size: usize, input: &[u8], limit: usize) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(limit.min(input.len()) + worst_case(sector_size) + 64);
    out.extend_from_slice(&[0; LENGTH]);
    let mut encoder = lzo1x::Encoder::new();
    for content in input.chunks(sector_size) {
        out.resize(next_length(out.len(), sector_size), 0);
        let at = out.len();
        out.extend_from_slice(&[0; LENGTH]);
        encoder.compress(content, &mut out);
        if out.len() > limit {
            return None;
        }
        let len = (out.len() - at - LENGTH) as u32;
        out[at..at + LENGTH].copy_from_slice(&len.to_le_bytes());
    }
    let total = out.len() as u32;
    out[..LENGTH].copy_from_slice(&total.to_le_bytes());
    Some(out)
}
