//! zlib: one stream with its header and Adler checksum.

use crate::error::Corrupt;
use flate2::{Compress, Decompress, FlushCompress, FlushDecompress, Status};
use std::cell::RefCell;

thread_local! {
    // Making a decoder costs more than most extents do.
    static DECODER: RefCell<Decompress> = RefCell::new(Decompress::new(true));
    static ENCODER: RefCell<Option<(i32, Compress)>> = const { RefCell::new(None) };
}

/// How many bytes of `out` the stream fills.
pub(super) fn decompress(input: &[u8], out: &mut [u8]) -> Result<usize, Corrupt> {
    DECODER.with_borrow_mut(|decoder| {
        decoder.reset(true);
        loop {
            let (taken, made) = (decoder.total_in() as usize, decoder.total_out() as usize);
            if made == out.len() {
                return Ok(made);
            }
            let status = decoder
                .decompress(&input[taken..], &mut out[made..], FlushDecompress::None)
                .map_err(|e| Corrupt::new(format!("zlib stream: {e}")))?;
            if status == Status::StreamEnd {
                return Ok(decoder.total_out() as usize);
            }
            let stuck =
                decoder.total_in() as usize == taken && decoder.total_out() as usize == made;
            if stuck {
                return Err(Corrupt::new("zlib stream is cut short"));
            }
        }
    })
}

pub(super) fn compress(level: i32, input: &[u8], limit: usize) -> Option<Vec<u8>> {
    ENCODER.with_borrow_mut(|slot| {
        if slot.as_ref().is_none_or(|(of, _)| *of != level) {
            let fresh = Compress::new(flate2::Compression::new(level as u32), true);
            *slot = Some((level, fresh));
        }
        let (_, encoder) = slot.as_mut()?;
        encoder.reset();
        let mut out = Vec::with_capacity(limit);
        match encoder.compress_vec(input, &mut out, FlushCompress::Finish) {
            Ok(Status::StreamEnd) => Some(out),
            _ => None,
        }
    })
}
