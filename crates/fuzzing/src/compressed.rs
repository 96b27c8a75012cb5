//! Extents as they lie on disk, and contents to be compressed.

use btrfs_disk::compress::{Encoded, compress, decompress};
use btrfs_disk::items::Compression;

pub fn compressed(data: &[u8]) -> bool {
    let Some((&choice, input)) = data.split_first() else { return false };
    let Ok(compression) = Compression::from_disk(choice & 3) else { return false };
    let mut out = vec![0; usize::from(choice >> 2) * 300];
    let sound = decompress(compression, 4096, input, &mut out).is_ok();
    if let Some(stream) = compress(compression, 1, 4096, input, 2 * input.len() + 200) {
        let mut back = vec![0; input.len()];
        decompress(compression, 4096, &stream, &mut back).expect("our own stream");
        assert!(back == input);
    }
    let (len, mut room) = (out.len() as u64, Vec::new());
    let whole = (len, len / 3..len);
    let encoded = Encoded::decode(compression, 4096, input, whole, &mut room);
    assert_eq!(encoded.is_ok(), sound, "both ways of reading it");
    if let Ok(encoded) = encoded {
        assert_eq!(encoded.content(), &out[out.len() / 3..]);
        // What is stored is read again, from whole sectors.
        if let Some(stream) = encoded.for_extent(4096) {
            let mut stored = stream.to_vec();
            stored.resize(stored.len().next_multiple_of(4096), 0);
            let mut back = vec![0; out.len()];
            decompress(compression, 4096, &stored, &mut back).expect("what was stored");
            assert!(back == out);
        }
    }
    sound
}
