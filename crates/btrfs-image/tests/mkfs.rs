//! Volumes by our mkfs before the judges: btrfs check, the kernel, btrfs-progs' dump,
//! and our own reader.

mod common;

use blockdev::{BlockDevice, FileDevice, MemDevice};
use btrfs_disk::ChecksumType;
use btrfs_disk::items::Timespec;
use btrfs_image::mkfs::{self, Features, MkfsError, MkfsOptions, Profile, Quotas};
use btrfs_volume::{OpenOptions, Volume};
use common::*;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

fn make(path: &Path, len: u64, options: &MkfsOptions) -> mkfs::MkfsReport {
    let dev = FileDevice::create(path, len).expect("image");
    mkfs::make(&dev, options).unwrap_or_else(|e| panic!("{options:?}: {e}"))
}

fn tested(options: MkfsOptions) -> MkfsOptions {
    let time = Some(Timespec { sec: 1_700_000_000, nsec: 0 });
    MkfsOptions { seed: Some(7), time, ..options }
}

const CSUMS: [ChecksumType; 4] =
    [ChecksumType::Crc32c, ChecksumType::Xxhash64, ChecksumType::Sha256, ChecksumType::Blake2b];

/// Every combination of options that makes sense.
fn combinations() -> Vec<MkfsOptions> {
    let mut out = Vec::new();
    for csum in CSUMS {
        for profile in [Profile::Single, Profile::Dup] {
            for node_size in [4096, 8192, 16384, 32768, 65536] {
                for (no_holes, free_space_tree, block_group_tree) in [
                    (true, true, false),
                    (true, true, true),
                    (false, true, false),
                    (true, false, false),
                    (false, false, false),
                ] {
                    let features = Features { no_holes, free_space_tree, block_group_tree };
                    for mixed in [false, true] {
                        if mixed && node_size != 4096 {
                            continue;
                        }
                        out.push(MkfsOptions {
                            csum,
                            metadata_profile: Some(profile),
                            node_size: Some(node_size),
                            features,
                            mixed,
                            ..MkfsOptions::default()
                        });
                    }
                }
            }
        }
    }
    out
}

#[test]
fn btrfs_check_is_content_with_every_combination() {
    if !have("btrfs") {
        return;
    }
    let scratch = Scratch::new();
    let image = scratch.path("image");
    for options in combinations() {
        let report = make(&image, mkfs::minimum_size(&options).expect("minimum"), &options);
        let dev = Arc::new(FileDevice::open(&image, true, false).expect("opens"));
        let read_only = OpenOptions { read_only: true, ..OpenOptions::default() };
        let volume = Volume::open(dev, read_only).unwrap_or_else(|e| panic!("{options:?}: {e}"));
        assert_eq!(volume.chunks().len(), report.chunks.len());
        assert_eq!(volume.read_only_reason(), None);
        assert_eq!(volume.has_free_space_tree(), options.features.free_space_tree);
        if options.features.block_group_tree {
            // Builds of btrfs-progs without it refuse the volume by name.
            let (ok, text) =
                try_run(Command::new("btrfs").args(["check", "--readonly"]).arg(&image));
            assert!(ok || text.contains("unsupported"), "{options:?}: {text}");
            if !ok {
                continue;
            }
        }
        check(&image);
    }
}

#[test]
fn the_kernel_mounts_writes_and_scrubs() {
    let scratch = Scratch::new();
    let image = scratch.path("image");
    let features = |no_holes, free_space_tree, block_group_tree| Features {
        no_holes,
        free_space_tree,
        block_group_tree,
    };
    let plain = MkfsOptions::default();
    let cases = [
        plain.clone(),
        MkfsOptions { node_size: Some(4096), csum: ChecksumType::Sha256, ..plain.clone() },
        MkfsOptions { node_size: Some(65536), csum: ChecksumType::Xxhash64, ..plain.clone() },
        MkfsOptions { metadata_profile: Some(Profile::Single), ..plain.clone() },
        MkfsOptions { mixed: true, csum: ChecksumType::Blake2b, ..plain.clone() },
        MkfsOptions { mixed: true, metadata_profile: Some(Profile::Dup), ..plain.clone() },
        MkfsOptions { features: features(true, true, true), ..plain.clone() },
        MkfsOptions { features: features(false, true, false), ..plain.clone() },
        MkfsOptions { features: features(true, false, false), ..plain.clone() },
        MkfsOptions { root_uid: 1234, root_gid: 4321, root_perm: 0o1770, ..plain.clone() },
    ];
    for options in cases {
        let options = MkfsOptions { label: b"spinney".to_vec(), ..options };
        make(&image, mkfs::minimum_size(&options).expect("minimum") + 64 * MIB, &options);
        let Some(mount) = Mount::new(&image) else { return };
        let shown = run(Command::new("stat").args(["-c", "%u %g %a"]).arg(&mount.dir));
        let wanted = format!("{} {} {:o}", options.root_uid, options.root_gid, options.root_perm);
        assert_eq!(shown.trim(), wanted);
        let label = run(Command::new("btrfs").args(["filesystem", "label"]).arg(&mount.dir));
        assert_eq!(label.trim(), "spinney");
        let content: Vec<u8> = (0..5 * MIB).map(|i| ((i * 31) >> 7) as u8).collect();
        std::fs::write(mount.dir.join("file"), &content).expect("write");
        for i in 0..300 {
            std::fs::write(mount.dir.join(format!("small-{i}")), [i as u8; 100]).expect("write");
        }
        run(Command::new("btrfs")
            .args(["subvolume", "snapshot"])
            .arg(&mount.dir)
            .arg(mount.dir.join("snap")));
        run(Command::new("btrfs").args(["filesystem", "sync"]).arg(&mount.dir));
        let words = format!("{} start -B {}", testkit::oracle::SCRUB, mount.dir.display());
        let scrub = run(Command::new("sh").args(["-c", &words]));
        assert!(scrub.contains("no errors found"), "{scrub}");
        mount.done();
        let Some(mount) = Mount::new(&image) else { return };
        assert!(std::fs::read(mount.dir.join("snap/file")).expect("read") == content);
        mount.done();
        if have("btrfs") && !options.features.block_group_tree {
            check(&image);
        }
    }
}

/// What `btrfs check` says of it: the machine's, if it can open the volume, and the newer one.
fn judge_quotas(image: &Path, quotas: Quotas) {
    if quotas == Quotas::Full && have("btrfs") {
        check(image);
        let report = run(Command::new("btrfs").args(["check", "-Q"]).arg(image));
        assert!(report.contains("0/5") && !report.contains("different"), "{report}");
    }
    match testkit::oracle::newer_btrfs() {
        Ok(_) => testkit::oracle::newer_btrfs_check(image).expect("a sound volume"),
        Err(why) => println!("SKIPPED: {why}"),
    }
}

#[test]
fn quotas_are_there_from_the_start() {
    let scratch = Scratch::new();
    let image = scratch.path("image");
    for (quotas, node_size, mixed) in [
        (Quotas::Full, 16384, false),
        (Quotas::Full, 4096, true),
        (Quotas::Simple, 16384, false),
        (Quotas::Simple, 65536, false),
        (Quotas::Simple, 4096, true),
    ] {
        let node = Some(node_size);
        let options =
            MkfsOptions { quotas: Some(quotas), node_size: node, mixed, ..Default::default() };
        make(&image, mkfs::minimum_size(&options).expect("minimum") + 64 * MIB, &options);
        judge_quotas(&image, quotas);
        let Some(mount) = Mount::new(&image) else { return };
        let show = |flags: &[&str]| {
            run(Command::new("btrfs").args(["qgroup", "show", "--raw"]).args(flags).arg(&mount.dir))
        };
        let line = |text: &str, group: &str| {
            let mut lines = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
            let found = lines.find(|words| words.first() == Some(&group)).expect("a group");
            (found[1].parse::<u64>().expect("bytes"), found[2].parse::<u64>().expect("bytes"))
        };
        let fresh = show(&[]);
        let node_size = u64::from(node_size);
        assert_eq!(line(&fresh, "0/5"), (node_size, node_size), "{fresh}");
        assert!(!fresh.contains("inconsistent"), "{fresh}");
        std::fs::write(mount.dir.join("file"), vec![7; MIB as usize]).expect("write");
        let sub = mount.dir.join("sub");
        run(Command::new("btrfs").args(["subvolume", "create"]).arg(&sub));
        std::fs::write(sub.join("file"), vec![7; 2 * MIB as usize]).expect("write");
        let later = show(&["--sync"]);
        assert!(line(&later, "0/5").0 >= MIB && line(&later, "0/256").0 >= 2 * MIB, "{later}");
        mount.done();
        judge_quotas(&image, quotas);
    }
}

/// Lines that must be the same in both dumps as they stand.
fn wanted(line: &str) -> bool {
    let starts =
        ["tree block backref", "location key", "block group used", "length ", "num_stripes"];
    line.ends_with("tree")
        || line.contains("tree key (")
        || line.contains("name: ")
        || starts.iter().any(|s| line.starts_with(s))
}

/// A dump without what may differ: addresses, times, UUIDs, generations, free space.
fn structure(image: &Path) -> Vec<String> {
    let text = run(Command::new("btrfs").args(["inspect-internal", "dump-tree"]).arg(image));
    let mut out = Vec::new();
    for line in text.lines() {
        let line = line.trim();
        if line.contains(" key (") && line.starts_with("item ") {
            let key = &line[line.find('(').expect("key")..line.find(')').expect("key")];
            let mut words = key[1..].split(' ');
            let (object, kind) = (words.next().expect("object"), words.next().expect("kind"));
            let size = line.split_whitespace().last().expect("size");
            // Addresses are numbers above 256; everything else has a name or is small.
            let object = match object.parse::<u64>() {
                Ok(n) if n > 256 => "address",
                _ if object.starts_with("0x") => "uuid",
                _ => object,
            };
            if kind.starts_with("FREE_SPACE") {
                continue; // mkfs.btrfs leaves some of deleted block groups behind
            }
            out.push(format!("{object} {kind} {size}"));
        } else if wanted(line) {
            out.push(line.to_owned());
        }
    }
    out.sort();
    out
}

#[test]
fn the_structure_is_that_of_mkfs_btrfs() {
    if !have("mkfs.btrfs") {
        return;
    }
    let scratch = Scratch::new();
    let (ours, theirs) = (scratch.path("ours"), scratch.path("theirs"));
    let profile = |p| MkfsOptions { metadata_profile: Some(p), ..MkfsOptions::default() };
    let quotas = MkfsOptions { quotas: Some(Quotas::Full), ..MkfsOptions::default() };
    let cases: [(&[&str], MkfsOptions, u64); 6] = [
        (&[], MkfsOptions::default(), 256),
        (&[], MkfsOptions::default(), 1000),
        (&["-R", "quota"], quotas, 1000),
        (&[], MkfsOptions::default(), 4000),
        (&["-n", "65536"], MkfsOptions { node_size: Some(65536), ..profile(Profile::Dup) }, 20_000),
        (&["-n", "32768"], MkfsOptions { node_size: Some(32768), ..profile(Profile::Dup) }, 60_000),
    ];
    for (args, options, mib) in cases {
        make(&ours, mib * MIB, &options);
        let file = std::fs::File::create(&theirs).expect("image");
        file.set_len(mib * MIB).expect("length");
        run(Command::new("mkfs.btrfs").arg("-q").args(args).arg(&theirs));
        assert_eq!(structure(&ours), structure(&theirs), "{args:?} {mib} MiB");
    }
}

#[test]
fn the_same_seed_makes_the_same_bytes_and_none_makes_others() {
    let (a, b) = (MemDevice::new(128 * MIB), MemDevice::new(128 * MIB));
    b.write_at(100 * MIB, &[1; 4096]).expect("leftover");
    b.write_at(64 * MIB, &[1; 4096]).expect("leftover");
    b.write_at(127 * MIB, &[1; 4096]).expect("leftover");
    let options = tested(MkfsOptions { discard: false, ..MkfsOptions::default() });
    mkfs::make(&a, &options).expect("made");
    mkfs::make(&b, &options).expect("made");
    let mut bytes = b.to_bytes();
    bytes[100 << 20..][..4096].fill(0);
    assert!(a.to_bytes() == bytes, "but for what was never touched");
    let (x, y) = (MemDevice::new(128 * MIB), MemDevice::new(128 * MIB));
    let x = mkfs::make(&x, &MkfsOptions::default()).expect("made");
    let y = mkfs::make(&y, &MkfsOptions::default()).expect("made");
    assert_ne!(x.uuid, y.uuid);
    let wanted = [0x42; 16];
    let chosen = MkfsOptions { uuid: Some(wanted), ..MkfsOptions::default() };
    let dev = Arc::new(MemDevice::new(128 * MIB));
    assert_eq!(mkfs::make(&*dev, &chosen).expect("made").uuid, wanted);
    let volume = Volume::open(dev, OpenOptions::default()).expect("opens");
    assert_eq!(volume.superblock().fields.fsid, wanted);
}

#[test]
fn too_small_devices_are_refused_with_the_minimum() {
    for options in combinations() {
        let minimum = mkfs::minimum_size(&options).expect("minimum");
        let error = mkfs::make(&MemDevice::new(minimum - 1), &options).expect_err("too small");
        assert!(error.to_string().contains(&minimum.to_string()), "{error}");
        assert!(matches!(error, MkfsError::TooSmall { .. }));
        mkfs::make(&MemDevice::new(minimum), &options).expect("just enough");
    }
    let default = mkfs::minimum_size(&MkfsOptions::default()).expect("minimum");
    assert_eq!(default, 114_294_784, "as mkfs.btrfs says");
    assert!(mkfs::make(&MemDevice::new(0), &MkfsOptions::default()).is_err());
}

#[test]
fn contradictions_are_refused_before_anything_is_written() {
    let bgt_alone = Features { no_holes: false, free_space_tree: true, block_group_tree: true };
    let cases = [
        MkfsOptions { node_size: Some(2048), ..MkfsOptions::default() },
        MkfsOptions { node_size: Some(131072), ..MkfsOptions::default() },
        MkfsOptions { node_size: Some(12288), ..MkfsOptions::default() },
        MkfsOptions { node_size: Some(16384), mixed: true, ..MkfsOptions::default() },
        MkfsOptions { label: vec![b'x'; 256], ..MkfsOptions::default() },
        MkfsOptions { label: b"a\0b".to_vec(), ..MkfsOptions::default() },
        MkfsOptions { features: bgt_alone, ..MkfsOptions::default() },
    ];
    for options in cases {
        let dev = MemDevice::new(128 * MIB);
        dev.write_at(65536, &[9; 4096]).expect("old content");
        assert!(matches!(mkfs::make(&dev, &options), Err(MkfsError::Invalid(_))), "{options:?}");
        let mut old = [0; 4096];
        dev.read_at(65536, &mut old).expect("read");
        assert!(old == [9; 4096]);
    }
}

#[test]
fn a_later_superblock_copy_of_a_larger_old_volume_is_wiped() {
    let dev = Arc::new(MemDevice::new(300 * MIB));
    mkfs::make(&*dev, &MkfsOptions::default()).expect("made");
    let report = mkfs::make(&*dev, &tested(MkfsOptions::default())).expect("made again");
    dev.write_at(65536 + 64, &[0; 8]).expect("wipe");
    let volume = Volume::open(dev, OpenOptions::default()).expect("the second copy");
    assert_eq!(volume.superblock().fields.fsid, report.uuid);
}
