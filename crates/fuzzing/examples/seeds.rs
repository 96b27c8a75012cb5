//! Writes the nodes of an image with 4 KiB nodes into `fuzz/corpus/node`, as seeds. To be run in
//! the repository's root.

use btrfs_disk::{FixedSize, Header, Superblock};
use std::collections::HashSet;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1).ok_or("usage: seeds IMAGE")?;
    let image = std::fs::read(path)?;
    let superblock = Superblock::parse(&image[64 << 10..], 64 << 10)?;
    std::fs::create_dir_all("fuzz/corpus/node")?;
    let mut seen = HashSet::new();
    for block in image.chunks_exact(4096) {
        let header = Header::read(block)?;
        // A few of each kind are enough.
        let kind = (header.owner, header.level, header.nritems / 16);
        if header.fsid == superblock.header_uuid() && seen.insert(kind) {
            std::fs::write(format!("fuzz/corpus/node/seed-{}", seen.len()), block)?;
        }
    }
    println!("{} seeds", seen.len());
    Ok(())
}
