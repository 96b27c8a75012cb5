//! Our check, where it reads content, finds what a reader cannot have: content and trees that are not what
//! they were, each at its address.

use super::*;
use btrfs_check::{CheckOptions, Report};
use btrfs_fs::Caller;

fn check(path: &Path, verify_data: bool) -> Report {
    let device = Arc::new(common::open_device(path, true));
    let options = btrfs_volume::OpenOptions { read_only: true, ..Default::default() };
    let volume = btrfs_volume::Volume::open(device, options).expect("open the volume");
    let options = CheckOptions { verify_data, ..Default::default() };
    btrfs_check::check(Arc::new(volume), &options).expect("check")
}

fn found(report: &Report) -> Vec<String> {
    report.findings.iter().map(|finding| finding.kind.to_string()).collect()
}

/// Where the only copy of these bytes is.
fn place(path: &Path, content: &[u8]) -> u64 {
    let bytes = std::fs::read(path).expect("the image");
    let found: Vec<_> =
        (0..).zip(bytes.chunks(4096)).filter(|(_, part)| part.starts_with(content)).collect();
    assert_eq!(found.len(), 1, "it is stored once");
    found[0].0 * 4096
}

#[test]
fn changed_content_is_found_where_content_is_read() {
    let (_dir, path) = ours();
    let (ino, old) = unsummed(&path);
    assert_eq!(check(&path, true).totals.verity_bytes, 1_000_000);
    for at in [300_000, 304_000, 999_990] {
        let block = at / 4096 * 4096;
        let end = (block + 4096).min(old.len());
        let place = place(&path, &old[block..end]);
        Patch::new(&path).write_raw(place + at as u64 % 4096, &[old[at] ^ 1]);
    }
    assert!(check(&path, false).is_clean(), "nobody looked at content");
    let report = check(&path, true);
    assert!(report.findings.iter().all(|f| f.kind.code() == "verity-content"));
    let ino = ino.0;
    let says = |len: usize, at: usize| {
        format!("inode {ino}: {len} bytes from {at} on are not what fs-verity says")
    };
    let tail = old.len() / 4096 * 4096;
    assert_eq!(found(&report), [says(8192, 299_008), says(old.len() - tail, tail)]);
}

#[test]
fn a_damaged_tree_is_found_once_and_hides_no_other_damage() {
    let (_dir, path) = ours();
    let (ino, old) = unsummed(&path);
    let objectid = Patch::new(&path).ino(TOP, "file");
    // The second leaf of the tree, which is about content from 512 KiB on.
    let key = Key::new(objectid, kind::VERITY_MERKLE_ITEM, 8192);
    Patch::new(&path).edit(TOP, key, |data| data[5] ^= 0x10);
    let at = place(&path, &old[..4096]);
    Patch::new(&path).write_raw(at, &[old[0] ^ 1]);
    let report = check(&path, true);
    let ino = ino.0;
    let expected = [
        format!(
            "inode {ino}: its fs-verity tree is damaged at byte 8192: what that is about cannot be read"
        ),
        format!("inode {ino}: 4096 bytes from 0 on are not what fs-verity says"),
    ];
    let mut all = found(&report);
    all.sort();
    let mut expected = expected.to_vec();
    expected.sort();
    assert_eq!(all, expected);
    // The top: one finding, and nothing of what is below.
    let key = Key::new(objectid, kind::VERITY_MERKLE_ITEM, 0);
    Patch::new(&path).edit(TOP, key, |data| data[5] ^= 0x10);
    assert_eq!(found(&check(&path, true)).len(), 1);
}

/// Compressed extents, holes, preallocated parts, inline content, odd block sizes: what is whole has
/// no findings, and what two snapshots share is read once.
#[test]
fn whole_files_of_every_kind_have_no_findings() {
    let (_dir, path) = ours();
    let options = Options { background: false, ..Options::default() };
    let fs = common::open_image(&path, options);
    let dir = fs.root();
    fs.set_flags(&CX, dir, 0x4).expect("chattr +c");
    let text: Vec<u8> = (0..700_001u32).map(|i| (i / 1000) as u8).collect();
    let mut sizes = 0;
    for (at, wish) in [plain(), wish(HashAlgorithm::Sha512, 1024, b"s")].iter().enumerate() {
        for (name, content) in
            [("text", &text[..]), ("mixed", &content(300_000)), ("short", b"abc"), ("", b"")]
        {
            let ino = new_file(&fs, &format!("{name}-{at}"), content);
            if name == "mixed" {
                fs.write(&CX, ino, 2 << 20, content, WriteFlags::default()).expect("a hole");
                let keep = FallocateMode::Allocate;
                fs.fallocate(&CX, ino, keep, 1 << 20, 100_000).expect("preallocate");
            }
            fs.enable_verity(None, ino, wish).expect("enable");
            sizes += fs.getattr(ino).expect("attr").size;
        }
    }
    for name in [&b"a"[..], b"b"] {
        let made = fs.snapshot(&Caller::root(), dir, dir, name, true).expect("snapshot");
        fs.forget(made.1.attr.ino, 1);
    }
    fs.destroy().expect("close");
    drop(fs);
    let report = check(&path, true);
    assert_eq!(found(&report), Vec::<String>::new());
    let read = report.totals.verity_bytes;
    // A tree's own copy of a leaf that changed since is another place, and read again.
    assert!(read >= sizes && read < 2 * sizes, "{read} bytes for files of {sizes}");
}
