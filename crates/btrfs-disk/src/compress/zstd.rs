//! zstd: one frame. Its window is bounded, as is the kernel's, so that a frame header
//! cannot ask for memory.

use super::ZSTD_WINDOW_LOG;
use crate::error::Corrupt;
use std::cell::RefCell;
use zstd::zstd_safe::{
    CCtx, CParameter, DCtx, DParameter, InBuffer, OutBuffer, ResetDirective, get_error_name,
};

/// Frames of other writers may have a somewhat larger window than the kernel's.
const READ_WINDOW_LOG: u32 = 20;

thread_local! {
    static DECODER: RefCell<Option<DCtx<'static>>> = const { RefCell::new(None) };
    static ENCODER: RefCell<Option<CCtx<'static>>> = const { RefCell::new(None) };
}

fn corrupt(code: usize) -> Corrupt {
    Corrupt::new(format!("zstd frame: {}", get_error_name(code)))
}

/// How many bytes of `out` the frame fills.
pub(super) fn decompress(input: &[u8], out: &mut [u8]) -> Result<usize, Corrupt> {
    DECODER.with_borrow_mut(|slot| {
        let decoder = slot.get_or_insert_with(DCtx::create);
        decoder.reset(ResetDirective::SessionAndParameters).map_err(corrupt)?;
        decoder.set_parameter(DParameter::WindowLogMax(READ_WINDOW_LOG)).map_err(corrupt)?;
        let mut source = InBuffer::around(input);
        let mut target = OutBuffer::around(out);
        loop {
            if target.pos() == target.capacity() {
                return Ok(target.pos());
            }
            let before = (source.pos(), target.pos());
            let hint = decoder.decompress_stream(&mut target, &mut source).map_err(corrupt)?;
            if hint == 0 {
                return Ok(target.pos());
            }
            if before == (source.pos(), target.pos()) {
                return Err(Corrupt::new("zstd frame is cut short"));
            }
        }
    })
}

pub(super) fn compress(level: i32, input: &[u8], limit: usize) -> Option<Vec<u8>> {
    ENCODER.with_borrow_mut(|slot| {
        let encoder = slot.get_or_insert_with(CCtx::create);
        encoder.reset(ResetDirective::SessionAndParameters).ok()?;
        encoder.set_parameter(CParameter::CompressionLevel(level)).ok()?;
        encoder.set_parameter(CParameter::WindowLog(ZSTD_WINDOW_LOG)).ok()?;
        encoder.set_parameter(CParameter::ChecksumFlag(false)).ok()?;
        let mut out = Vec::with_capacity(limit);
        encoder.compress2(&mut out, input).ok()?;
        Some(out)
    })
}
