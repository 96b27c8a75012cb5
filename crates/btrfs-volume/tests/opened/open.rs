//! What can be opened and what is refused, with images by mkfs.btrfs.

use crate::common;
use btrfs_disk::ids::block_group;
use btrfs_disk::{Error, Expect, TreeId};
use btrfs_volume::{OpenOptions, Volume};
use common::*;
use std::path::Path;
use std::process::Command;

fn root(volume: &Volume) -> Expect {
    let sb = volume.superblock();
    Expect {
        logical: sb.fields.root,
        level: sb.fields.root_level,
        generation: Some(sb.fields.generation),
        owner: Some(TreeId::ROOT),
        first_key: None,
    }
}

/// The chunks as btrfs-progs sees them: (logical, length, flags as text, physical starts).
fn dumped_chunks(path: &Path) -> Vec<(u64, u64, String, Vec<u64>)> {
    let text =
        run(Command::new("btrfs").args(["inspect-internal", "dump-tree", "-t", "chunk"]).arg(path));
    let mut out: Vec<(u64, u64, String, Vec<u64>)> = Vec::new();
    let number = |line: &str, after: &str| -> u64 {
        let rest = &line[line.find(after).expect("field") + after.len()..];
        let digits: String = rest.trim().chars().take_while(char::is_ascii_digit).collect();
        digits.parse().expect("number")
    };
    for line in text.lines() {
        if line.contains("CHUNK_ITEM") {
            out.push((number(line, "CHUNK_ITEM "), 0, String::new(), Vec::new()));
        } else if line.trim().starts_with("length ") && line.contains("type ") {
            let chunk = out.last_mut().expect("in a chunk");
            chunk.1 = number(line, "length ");
            chunk.2 = line[line.find("type ").expect("type") + 5..].trim().to_owned();
        } else if line.trim().starts_with("stripe ") {
            out.last_mut().expect("in a chunk").3.push(number(line, "offset "));
        }
    }
    out
}

fn flags_text(flags: u64) -> String {
    let mut names = Vec::new();
    for (bit, name) in [
        (block_group::DATA, "DATA"),
        (block_group::SYSTEM, "SYSTEM"),
        (block_group::METADATA, "METADATA"),
    ] {
        if flags & bit != 0 {
            names.push(name);
        }
    }
    names.push(if flags & block_group::DUP != 0 { "DUP" } else { "single" });
    names.join("|")
}

/// Opens and holds what was learnt against btrfs-progs.
fn agrees(path: &Path) -> Volume {
    let volume = open(path).expect("opens");
    let ours: Vec<_> = volume
        .chunks()
        .iter()
        .map(|c| {
            let physical = c.stripes.iter().map(|(_, p)| p.0).collect();
            (c.logical.0, c.len, flags_text(c.flags), physical)
        })
        .collect();
    assert!(!ours.is_empty());
    assert_eq!(ours, dumped_chunks(path));
    let node = volume.read_node(&root(&volume)).expect("root tree's root");
    assert_eq!(node.owner(), TreeId::ROOT);
    assert_eq!(node.header().chunk_tree_uuid, volume.geometry().chunk_tree_uuid);
    assert_ne!(volume.geometry().chunk_tree_uuid, [0; 16]);
    volume
}

#[test]
fn every_checksum_node_size_and_profile_opens() {
    if !have_mkfs() {
        return;
    }
    let scratch = Scratch::new();
    for csum in ["crc32c", "xxhash", "sha256", "blake2"] {
        for node_size in ["4096", "8192", "16384", "32768", "65536"] {
            for profile in ["dup", "single"] {
                let args = ["--csum", csum, "-n", node_size, "-m", profile];
                let path = scratch.mkfs("image", 128 * MIB, &args);
                let volume = agrees(&path);
                assert_eq!(volume.read_only_reason(), None);
                assert_eq!(volume.geometry().node_size.to_string(), node_size);
                let mirrors = volume.mirrors(volume.superblock().fields.root).expect("mapped");
                assert_eq!(mirrors, if profile == "dup" { 2 } else { 1 });
                assert_eq!(volume.counters().checksum_errors, 0);
            }
        }
    }
}

#[test]
fn every_feature_that_is_known_opens_for_writing() {
    if !have_mkfs() {
        return;
    }
    let scratch = Scratch::new();
    for args in [
        &["--mixed"][..],
        &["--mixed", "-m", "dup", "-d", "dup"],
        &["-O", "^no-holes"],
        &["-d", "dup"],
        &["-R", "quota"],
    ] {
        let volume = agrees(&scratch.mkfs("image", 512 * MIB, args));
        assert_eq!(volume.read_only_reason(), None, "{args:?}");
        assert!(volume.writable());
    }
}

#[test]
fn what_cannot_be_maintained_is_read_only_with_a_reason() {
    if !have_mkfs() {
        return;
    }
    let scratch = Scratch::new();
    let v1 = scratch.mkfs("v1", 128 * MIB, &["-R", "^free-space-tree"]);
    let volume = agrees(&v1);
    assert!(!volume.has_free_space_tree() && volume.read_only_reason().is_none(), "it gets one");

    let fat = scratch.mkfs("fat", 128 * MIB, &["-O", "^skinny-metadata"]);
    assert_eq!(agrees(&fat).read_only_reason(), None);

    let path = scratch.mkfs("ro", 128 * MIB, &[]);
    edit_super(&path, 64 << 10, |sb| sb.fields.compat_ro_flags |= 1 << 40);
    let volume = open(&path).expect("opens");
    assert!(volume.read_only_reason().expect("reason").contains("unknown bit 40"));
    let refused = volume.commit_superblock((*volume.superblock()).clone());
    assert!(matches!(refused, Err(Error::ReadOnly(_))));
}

#[test]
fn a_pending_log_is_a_reason_unless_somebody_takes_care_of_it() {
    if !have_mkfs() {
        return;
    }
    let scratch = Scratch::new();
    let path = scratch.mkfs("log", 128 * MIB, &[]);
    edit_super(&path, 64 << 10, |sb| sb.fields.log_root = sb.fields.root);
    assert_eq!(open(&path).expect("opens").read_only_reason().as_deref(), Some("pending log tree"));
    let replays = OpenOptions { replays_log: true, ..OpenOptions::default() };
    let volume = Volume::open(device(&path), replays).expect("opens");
    assert_eq!(volume.read_only_reason(), None);
    drop(volume);
    let ignores = OpenOptions { read_only: true, ignore_log: true, ..OpenOptions::default() };
    let volume = Volume::open(device(&path), ignores).expect("opens");
    assert_eq!(volume.read_only_reason(), None);
    assert!(!volume.writable());
}

#[test]
fn a_changed_metadata_uuid_is_honoured() {
    if !have_mkfs() {
        return;
    }
    let scratch = Scratch::new();
    let path = scratch.mkfs("image", 128 * MIB, &[]);
    run(Command::new("btrfstune").arg("-m").arg(&path));
    let volume = agrees(&path);
    let sb = volume.superblock();
    assert_ne!(sb.fields.fsid, sb.fields.metadata_uuid);
    assert_eq!(volume.geometry().metadata_uuid, sb.fields.metadata_uuid);
}

fn refusal(path: &Path) -> Error {
    open(path).map(|_| ()).expect_err("refused")
}

#[test]
fn unknown_and_foreign_volumes_are_refused_by_name() {
    if !have_mkfs() {
        return;
    }
    type Edit = fn(&mut btrfs_disk::superblock::SuperFields);
    let cases: &[(Edit, &str)] = &[
        (|f| f.incompat_flags |= 1 << 50, "unknown bit 50"),
        (|f| f.incompat_flags |= 1 << 12, "zoned"),
        (|f| f.incompat_flags |= 1 << 13, "extent_tree_v2"),
        (|f| f.incompat_flags |= 1 << 14, "raid_stripe_tree"),
        (|f| f.incompat_flags |= 1 << 7, "raid56"),
        (|f| (f.num_devices, f.total_bytes) = (3, 3 * f.total_bytes), "3 devices"),
        (|f| f.sectorsize = 16384, "sector size 16384"),
        (|f| f.flags |= 1 << 36, "metadata UUID"),
        (|f| f.flags |= 1 << 60, "unknown bit 60"),
    ];
    let scratch = Scratch::new();
    let path = scratch.mkfs("image", 128 * MIB, &[]);
    let clean = read_bytes(&path, 64 << 10, 4096);
    for (edit, name) in cases {
        edit_super(&path, 64 << 10, |sb| edit(&mut sb.fields));
        let error = refusal(&path);
        assert!(matches!(error, Error::Unsupported(_)), "{error}");
        assert!(error.to_string().contains(name), "{error} does not name {name}");
        assert!(!error.to_string().contains("fix-device-size"), "{error}: that would not help");
        write_bytes(&path, 64 << 10, &clean);
    }
    open(&path).expect("clean again");
}

#[test]
fn a_second_device_is_refused_by_name() {
    if !have_mkfs() {
        return;
    }
    let scratch = Scratch::new();
    for profile in ["single", "raid1", "raid0"] {
        let second = scratch.file("second", 128 * MIB);
        let args = ["-d", profile, "-m", profile, second.to_str().expect("utf-8")];
        let first = scratch.mkfs("first", 128 * MIB, &args);
        // mkfs.btrfs is given the second one first.
        for (path, number) in [(&first, 2), (&second, 1)] {
            let error = refusal(path);
            assert!(matches!(error, Error::Unsupported(_)), "{error}");
            let said = error.to_string();
            let which = format!("2 devices, of which this is number {number}");
            assert!(said.contains(&which) && said.contains("degraded"), "{said}");
            assert!(!said.contains("damaged"), "nothing is wrong: {said}");
        }
        // The counter lies: the trees still tell.
        edit_super(&first, 64 << 10, |sb| {
            sb.fields.num_devices = 1;
            sb.fields.total_bytes = sb.fields.dev_item.total_bytes;
        });
        assert!(open(&first).is_err());
    }
}

#[test]
fn a_wrong_count_of_devices_is_taken_as_the_kernel_takes_it() {
    if !have_mkfs() {
        return;
    }
    let scratch = Scratch::new();
    let path = scratch.mkfs("image", 128 * MIB, &[]);
    edit_super(&path, 64 << 10, |sb| sb.fields.num_devices = 3);
    edit_super(&path, 64 << 20, |sb| sb.fields.num_devices = 3);
    let volume = open(&path).expect("one device is there, and no other is named");
    assert_eq!(volume.read_only_reason(), None);
    assert_eq!(volume.superblock().fields.num_devices, 1, "the next commit puts it right");
    drop(volume);
    edit_super(&path, 64 << 10, |sb| sb.fields.num_devices = 0);
    edit_super(&path, 64 << 20, |sb| sb.fields.num_devices = 0);
    assert!(refusal(&path).to_string().contains("no devices"));
}

#[test]
fn metadata_dumps_are_read_only() {
    if !have_mkfs() {
        return;
    }
    let scratch = Scratch::new();
    let path = scratch.mkfs("image", 128 * MIB, &[]);
    for bit in [33, 34] {
        edit_super(&path, 64 << 10, |sb| sb.fields.flags |= 1 << bit);
        let reason = open(&path).expect("opens").read_only_reason().expect("a reason");
        assert!(reason.contains("metadata dump"), "{reason}");
        edit_super(&path, 64 << 10, |sb| sb.fields.flags &= !(1 << bit));
    }
}

#[test]
fn truncated_images_open_read_only_with_what_is_there() {
    if !have_mkfs() {
        return;
    }
    let scratch = Scratch::new();
    let path = scratch.mkfs("image", 128 * MIB, &[]);
    let set_len = |len: u64| {
        let file = std::fs::OpenOptions::new().write(true).open(&path).expect("opens");
        file.set_len(len).expect("length");
    };
    for len in [128 * MIB - 1, 100 * MIB] {
        set_len(len);
        let volume = open(&path).expect("the trees are in front of the cut");
        let reason = volume.read_only_reason().expect("a reason");
        assert!(reason.contains("truncated"), "{len}: {reason}");
        assert!(!volume.writable(), "{len}");
    }
    for len in [5 * MIB, MIB, 69632] {
        set_len(len);
        let error = refusal(&path);
        assert!(error.to_string().contains("truncated"), "{len}: {error}");
    }
    for len in [69631, 65536, 4096, 0] {
        set_len(len);
        let error = refusal(&path);
        assert!(error.to_string().contains("not a btrfs volume"), "{len}: {error}");
    }
    let error = refusal(&scratch.file("zeros", 128 * MIB));
    assert!(matches!(error, Error::NotBtrfs(_)));
    assert!(error.to_string().contains("not a btrfs volume"), "{error}");
}

#[test]
fn a_block_group_tree_opens_for_writing() {
    if !have_mkfs() {
        return;
    }
    let newer = match testkit::oracle::newer_mkfs() {
        Ok(newer) => newer,
        Err(why) => testkit::skip!("{why}"),
    };
    let scratch = Scratch::new();
    let path = scratch.file("image", 128 * MIB);
    let make = format!("{newer} -q -O block-group-tree {}", path.display());
    run(Command::new("sh").args(["-c", &make]));
    let volume = agrees(&path);
    assert_eq!(volume.read_only_reason(), None);
    let flags = volume.superblock().fields.compat_ro_flags;
    assert_ne!(flags & btrfs_disk::ids::compat_ro::BLOCK_GROUP_TREE, 0);
}
