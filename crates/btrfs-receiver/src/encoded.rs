//! Compressed content of a stream.

use crate::error::Wrong;
use btrfs_disk::compress::{MAX_UNCOMPRESSED, decompress};
use btrfs_disk::items::Compression;
use btrfs_send::CompressedPiece;

/// What the file gets. `room` is a buffer to be used again.
pub(crate) fn decode<'r>(
    piece: &CompressedPiece<'_>,
    room: &'r mut Vec<u8>,
) -> Result<&'r [u8], Wrong> {
    let wrong = |why: &str| Wrong::Encoded(why.into());
    let whole = usize::try_from(piece.unencoded_len).unwrap_or(usize::MAX);
    if whole > MAX_UNCOMPRESSED {
        return Err(wrong("it is longer than any extent's"));
    }
    let part = piece.unencoded_offset.checked_add(piece.file_len);
    if part.is_none_or(|end| end > piece.unencoded_len) {
        return Err(wrong("the file gets more than there is"));
    }
    let (compression, sector) = match piece.compression {
        0 => (Compression::None, 4096),
        1 => (Compression::Zlib, 4096),
        2 => (Compression::Zstd, 4096),
        lzo @ 3..=7 => (Compression::Lzo, 4096 << (lzo - 3)),
        _ => return Err(wrong("nobody knows how it is compressed")),
    };
    room.clear();
    room.resize(whole, 0);
    decompress(compression, sector, piece.data, room).map_err(|c| Wrong::Encoded(c.to_string()))?;
    let start = piece.unencoded_offset as usize;
    Ok(&room[start..start + piece.file_len as usize])
}
