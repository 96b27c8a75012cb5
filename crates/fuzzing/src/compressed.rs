//! Extents as they lie on disk, and contents to be compressed.

use btrfs_disk::compress::{compress, decompress};
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
    sound
}
