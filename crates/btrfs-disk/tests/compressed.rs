//! Compression against the kernel: what it compressed is read here, and what is
//! compressed here is read by it.

mod support;

use btrfs_disk::compress::{compress, decompress, levels};
use btrfs_disk::items::{Compression, FileExtent, InodeItem};
use btrfs_disk::key::kind;
use btrfs_disk::{FixedSize, Key, TreeId};
use std::collections::BTreeMap;
use std::path::Path;
use support::mount::{Image, Scratch, skipped};
use support::raw::Raw;

const SECTOR: usize = 4096;

type Files = BTreeMap<u64, Vec<u8>>;

/// The content of every regular file below `dir`, by inode number.
fn through_the_kernel(dir: &Path) -> Files {
    use std::os::unix::fs::MetadataExt;
    let mut files = Files::new();
    for entry in std::fs::read_dir(dir).expect("directory") {
        let entry = entry.expect("entry");
        let meta = entry.metadata().expect("metadata");
        if meta.is_file() {
            files.insert(meta.ino(), std::fs::read(entry.path()).expect("content"));
        }
    }
    files
}

/// How many extents of each kind were seen.
#[derive(Default, Debug)]
struct Seen {
    inline: usize,
    extents: usize,
    partial: usize,
}

fn items_of_top(raw: &Raw) -> Vec<(Key, Vec<u8>)> {
    let trees = raw.all_trees().expect("good trees");
    trees.into_iter().find(|(id, _)| *id == TreeId::FS).expect("the top level").1
}

/// Reads all files from the raw image.
fn through_this_crate(raw: &Raw) -> (Files, Seen) {
    let mut files = Files::new();
    let mut seen = Seen::default();
    for (key, data) in items_of_top(raw) {
        match key.kind {
            kind::INODE_ITEM => {
                let inode = InodeItem::read(&data).expect("checked");
                if inode.mode & 0o170_000 == 0o100_000 {
                    files.insert(key.objectid, vec![0; inode.size as usize]);
                }
            }
            kind::EXTENT_DATA => {
                let Some(file) = files.get_mut(&key.objectid) else { continue };
                place(raw, &data, &mut file[key.offset as usize..], &mut seen);
            }
            _ => {}
        }
    }
    (files, seen)
}

fn place(raw: &Raw, item: &[u8], file: &mut [u8], seen: &mut Seen) {
    match FileExtent::parse(item).expect("checked") {
        FileExtent::Inline { compression, ram_bytes, content, .. } => {
            let mut out = vec![0; ram_bytes as usize];
            decompress(compression, SECTOR, content, &mut out).expect("inline extent");
            seen.inline += usize::from(compression != Compression::None);
            let len = out.len().min(file.len());
            file[..len].copy_from_slice(&out[..len]);
        }
        FileExtent::Extent { fields, .. } if fields.disk_bytenr.0 == 0 => {}
        FileExtent::Extent { compression, fields, .. } => {
            let stored = raw.read(fields.disk_bytenr, fields.disk_num_bytes as usize);
            let mut whole = vec![0; fields.ram_bytes as usize];
            decompress(compression, SECTOR, &stored, &mut whole).expect("extent");
            if compression != Compression::None {
                seen.extents += 1;
                seen.partial += usize::from(fields.num_bytes != fields.ram_bytes);
            }
            let len = (fields.num_bytes as usize).min(file.len());
            let from = fields.offset as usize;
            file[..len].copy_from_slice(&whole[from..from + len]);
        }
    }
}

fn image_with(scratch: &Scratch, algorithm: &str) -> (Image, Files) {
    let image = Image::make(scratch, algorithm, "400m", "");
    let mount = image.mount(&format!("compress-force={algorithm}"));
    mount.run(
        "seq 400000 > text; (seq 30000; head -c 300000 /dev/urandom; seq 9000) > mixed
         head -c 3000000 /dev/zero > zeros; seq 100 > small; echo -n aaaaaaaaaaaaaaaaaaaaaaaaaaaa > tiny
         for i in $(seq 60); do seq $((i * 37)) > f$i; done
         cat /usr/bin/bash > binary; tar c -C /usr/include . 2>/dev/null | head -c 6000000 > tar || true
         sync -f .; xfs_io -c 'pwrite -S 7 50000 9000' -c 'fpunch 200k 100k' -c 'truncate 2000001' text > /dev/null
         cp --reflink=always tar clone; xfs_io -c 'reflink text 0 131072 65536' clone > /dev/null; sync -f .",
    );
    let files = through_the_kernel(&mount.dir);
    drop(mount);
    (image, files)
}

fn same(expected: &Files, found: &Files, what: &str) {
    assert_eq!(expected.len(), found.len());
    for (ino, content) in expected {
        assert!(found.get(ino) == Some(content), "{what}: inode {ino} of {} bytes", content.len());
    }
}

/// Replaces every compressed extent's bytes by what this crate makes of the content.
/// Returns (replaced, too long to fit).
fn recompress(raw: &Raw) -> (usize, usize) {
    let mut done = BTreeMap::new();
    for (key, data) in items_of_top(raw) {
        if key.kind != kind::EXTENT_DATA {
            continue;
        }
        let FileExtent::Extent { compression, fields, .. } = FileExtent::parse(&data).expect("ok")
        else {
            continue;
        };
        if compression == Compression::None || done.contains_key(&fields.disk_bytenr) {
            continue;
        }
        let room = fields.disk_num_bytes as usize;
        let mut content = vec![0; fields.ram_bytes as usize];
        let stored = raw.read(fields.disk_bytenr, room);
        decompress(compression, SECTOR, &stored, &mut content).expect("extent");
        let (_, _, best) = levels(compression);
        // The kernel refuses LZO whose length leaves a whole sector of the extent unused.
        let made = compress(compression, best, SECTOR, &content, room).filter(|stream| {
            compression != Compression::Lzo || stream.len().next_multiple_of(SECTOR) == room
        });
        if let Some(mut stream) = made.clone() {
            stream.resize(room, 0);
            raw.write(fields.disk_bytenr, &stream);
        }
        done.insert(fields.disk_bytenr, made.is_some());
    }
    let fit = done.values().filter(|fit| **fit).count();
    (fit, done.len() - fit)
}

fn both_ways(algorithm: &str) {
    if skipped() {
        return;
    }
    let scratch = Scratch::new(&format!("compressed-{algorithm}"));
    let (image, expected) = image_with(&scratch, algorithm);
    let raw = Raw::open(&image.path);
    let (found, seen) = through_this_crate(&raw);
    println!("{algorithm}: {} files, {seen:?}", found.len());
    same(&expected, &found, "read here");
    assert!(seen.inline > 5 && seen.extents > 50 && seen.partial > 2);

    let (replaced, too_long) = recompress(&raw);
    println!("{algorithm}: {replaced} extents made here, {too_long} did not fit");
    assert!(replaced > too_long, "{too_long} of our streams are longer than the kernel's");
    let (again, _) = through_this_crate(&raw);
    same(&expected, &again, "made and read here");
    drop(raw);
    let mount = image.mount("ro,rescue=ignoredatacsums");
    same(&expected, &through_the_kernel(&mount.dir), "made here, read by the kernel");
}

#[test]
fn zlib_both_ways() {
    both_ways("zlib");
}

#[test]
fn lzo_both_ways() {
    both_ways("lzo");
}

#[test]
fn zstd_both_ways() {
    both_ways("zstd");
}
