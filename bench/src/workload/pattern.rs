//! Data that tells where it belongs: each 4 KiB block begins with its own number, so
//! that a read of the wrong block, or of zeros, cannot pass for a fast one.

use crate::rng::Rng;
use std::io;

pub const BLOCK: usize = 4096;
pub const MIB: usize = 1 << 20;

/// `len` bytes that do not compress, to be stamped before they are written.
pub fn buffer(len: usize) -> Vec<u8> {
    let mut buf = vec![0; len];
    Rng::new(0x5eed_0002).fill(&mut buf);
    buf
}

/// Marks every block of `buf`, which belongs at `offset`.
pub fn stamp(buf: &mut [u8], offset: u64) {
    for (i, block) in buf.chunks_exact_mut(BLOCK).enumerate() {
        block[..8].copy_from_slice(&mark(offset, i));
    }
}

/// Fails if the first or the last block of `buf` does not belong at `offset`.
pub fn verify(buf: &[u8], offset: u64) -> io::Result<()> {
    let last = (buf.len() / BLOCK).saturating_sub(1);
    for i in [0, last] {
        if buf.get(i * BLOCK..i * BLOCK + 8) != Some(&mark(offset, i)) {
            return Err(io::Error::other(format!(
                "wrong data read at offset {}",
                offset + (i * BLOCK) as u64
            )));
        }
    }
    Ok(())
}

fn mark(offset: u64, block: usize) -> [u8; 8] {
    (offset / BLOCK as u64 + block as u64 + 1).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stamp_is_good_for_its_place_only() {
        let mut buf = buffer(3 * BLOCK);
        assert!(verify(&buf, 0).is_err());
        stamp(&mut buf, 8192);
        assert!(verify(&buf, 8192).is_ok());
        assert!(verify(&buf, 4096).is_err());
        buf[2 * BLOCK] ^= 1;
        assert!(verify(&buf, 8192).is_err(), "the last block counts");
        assert!(verify(&[0; BLOCK], 0).is_err(), "zeros are no data");
    }
}
