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

/// Whether the kernel has room for what the first frame's header asks for, as the format of
/// zstd frames (RFC 8878, 3.1.1.1) lays that out.
pub(super) fn has_short_window(frame: &[u8]) -> bool {
    const MAGIC: &[u8] = &[0x28, 0xb5, 0x2f, 0xfd];
    let Some([descriptor, rest @ ..]) = frame.strip_prefix(MAGIC) else { return false };
    let window = match descriptor & 0x20 != 0 {
        true => content_size(*descriptor, rest),
        false => rest.first().map(|byte| {
            let base = 1_u64 << (10 + (byte >> 3));
            base + base / 8 * u64::from(byte & 7)
        }),
    };
    window.is_some_and(|window| window <= 1 << ZSTD_WINDOW_LOG)
}

/// Of a frame that has its content for a window.
fn content_size(descriptor: u8, behind: &[u8]) -> Option<u64> {
    let dictionary = [0, 1, 2, 4][usize::from(descriptor & 3)];
    let (len, plus) = [(1, 0), (2, 256), (4, 0), (8, 0)][usize::from(descriptor >> 6)];
    let mut bytes = [0; 8];
    bytes[..len].copy_from_slice(behind.get(dictionary..dictionary + len)?);
    u64::from_le_bytes(bytes).checked_add(plus)
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
