//! Compressed content of a stream.

use crate::error::Wrong;
use btrfs_disk::compress::Encoded;
use btrfs_disk::items::Compression;
use btrfs_send::CompressedPiece;

/// What the file gets. `room` is a buffer to be used again.
pub(crate) fn decode<'r>(
    piece: &CompressedPiece<'r>,
    room: &'r mut Vec<u8>,
) -> Result<Encoded<'r>, Wrong> {
    let wrong = |why: &str| Wrong::Encoded(why.into());
    let part = piece.unencoded_offset.checked_add(piece.file_len);
    let Some(end) = part.filter(|end| *end <= piece.unencoded_len) else {
        return Err(wrong("the file gets more than there is"));
    };
    let (compression, sector) = match piece.compression {
        0 => (Compression::None, 4096),
        1 => (Compression::Zlib, 4096),
        2 => (Compression::Zstd, 4096),
        lzo @ 3..=7 => (Compression::Lzo, 4096 << (lzo - 3)),
        _ => return Err(wrong("nobody knows how it is compressed")),
    };
    let lengths = (piece.unencoded_len, piece.unencoded_offset..end);
    Encoded::decode(compression, sector, piece.data, lengths, room)
        .map_err(|corrupt| Wrong::Encoded(corrupt.to_string()))
}
