//! What differs between subvolumes that have grown apart from each other, and what a receiver would give new
//! inodes by itself: copies are what was sent.

use btrfs_send::{Command, Encoder, Protocol};
use spinney::vfs::{Context, FileKind, Ino, WriteFlags};
use spinney::{
    FileOptions, FormatOptions, MemDevice, ReceiveOptions, SendOptions, SnapshotOptions,
    VerityWish, Volume, VolumeOptions,
};
use std::io::{self, Write};
use std::sync::Arc;

const NOCOW: u32 = 0x80_0000;
const COMPRESS: u32 = 0x4;

fn volume() -> Volume {
    let device = Arc::new(MemDevice::new(768 << 20));
    FormatOptions::new().format(&*device).unwrap();
    VolumeOptions::new().write(true).open_device(device).unwrap()
}

fn freeze(volume: &Volume, source: &str, name: &str) {
    volume.snapshot(source, name, &SnapshotOptions::new().read_only(true)).unwrap();
}

/// Sends, and receives at the top of another volume.
fn pass(from: &Volume, to: &Volume, name: &str, options: &SendOptions) {
    let mut stream = Vec::new();
    from.send(&[name], options, &mut stream).unwrap();
    let received = to.receive("/", &mut &*stream, &ReceiveOptions::new(), |_| {});
    received.unwrap_or_else(|error| panic!("{name}: {error}"));
}

fn ino(volume: &Volume, path: &str) -> Ino {
    let (fs, cx) = (volume.fs(), Context::default());
    path.split('/').fold(fs.root(), |dir, name| {
        fs.lookup(&cx, dir, name.as_bytes()).unwrap_or_else(|e| panic!("{path}: {e}")).attr.ino
    })
}

fn set_flags(volume: &Volume, path: &str, flags: u32) {
    volume.fs().set_flags(volume.context(), ino(volume, path), flags).unwrap();
}

fn flags(volume: &Volume, path: &str) -> u32 {
    volume.fs().flags(ino(volume, path)).unwrap()
}

fn is_clean(volume: &Volume) {
    volume.sync().unwrap();
    assert!(volume.check(true).unwrap().is_clean());
}

/// Made by the same commit they have the same number and generation.
#[test]
fn links_of_siblings_lead_where_each_of_them_leads() {
    let (one, other) = (volume(), volume());
    one.create_subvolume("base").unwrap();
    one.write("base/file", b"content").unwrap();
    for name in ["a", "b"] {
        one.snapshot("base", name, &SnapshotOptions::new()).unwrap();
    }
    one.symlink("red", "a/link").unwrap();
    one.symlink("tin", "b/link").unwrap();
    one.sync().unwrap();
    for name in ["a", "b"] {
        one.set_subvolume_read_only(name, true).unwrap();
    }
    pass(&one, &other, "a", &SendOptions::new());
    pass(&one, &other, "b", &SendOptions::new().parent("a"));
    let leads = |path: &str| other.read_link(path).unwrap();
    assert_eq!((leads("a/link"), leads("b/link")), ("red".into(), "tin".into()));
}

/// Made by the same commit as well; who took them for the same would write to what is verified.
#[test]
fn files_of_siblings_are_verified_where_each_of_them_is() {
    let (one, other) = (volume(), volume());
    one.create_subvolume("base").unwrap();
    for name in ["a", "b", "c", "d"] {
        one.snapshot("base", name, &SnapshotOptions::new()).unwrap();
    }
    let content = [("a", 1), ("b", 2), ("c", 1), ("d", 3)];
    for (name, byte) in content {
        one.write(format!("{name}/file"), &[byte; 70_000]).unwrap();
    }
    let wish = VerityWish::of(1, 4096, b"salt", b"").unwrap();
    for name in ["a", "c", "d"] {
        one.enable_verity(format!("{name}/file"), &wish).unwrap();
    }
    one.sync().unwrap();
    let options = SendOptions::new().protocol_3(true);
    for (name, parent) in [("a", None), ("b", Some("a")), ("c", Some("a")), ("d", Some("b"))] {
        one.set_subvolume_read_only(name, true).unwrap();
        let options = parent.map_or(options.clone(), |parent| options.clone().parent(parent));
        pass(&one, &other, name, &options);
    }
    for (name, byte) in content {
        let path = format!("{name}/file");
        assert!(other.read(&path).unwrap() == [byte; 70_000], "{name}");
        assert_eq!(other.measure_verity(&path).is_ok(), name != "b", "{name}");
    }
    is_clean(&other);
}

#[test]
fn nothing_of_an_unrelated_parents_root_directory_stays() {
    let (one, other) = (volume(), volume());
    for (name, attribute) in [("p", "user.p"), ("q", "user.q")] {
        one.create_subvolume(name).unwrap();
        one.set_xattr(name, attribute, b"value").unwrap();
        one.write(format!("{name}/file"), name.as_bytes()).unwrap();
        one.create_dir(format!("{name}/only-{name}")).unwrap();
        one.sync().unwrap();
    }
    set_flags(&one, "p", NOCOW);
    one.set_xattr("q", "btrfs.compression", b"zstd").unwrap();
    for name in ["p", "q"] {
        one.set_subvolume_read_only(name, true).unwrap();
    }
    let options = SendOptions::new().protocol_2(true);
    pass(&one, &other, "p", &options);
    assert_eq!(flags(&other, "p") & NOCOW, NOCOW);
    pass(&one, &other, "q", &options.parent("p"));
    assert_eq!(other.xattrs("q").unwrap(), ["btrfs.compression", "user.q"]);
    assert_eq!(flags(&other, "q"), COMPRESS);
    assert_eq!(other.read("q/file").unwrap(), b"q");
    assert!(other.exists("q/only-q").unwrap() && !other.exists("q/only-p").unwrap());
    is_clean(&other);
}

/// In a directory whose files are written in place those that are not.
#[test]
fn a_directory_hands_no_flag_down_that_a_file_has_not() {
    let (one, other) = (volume(), volume());
    one.create_subvolume("v").unwrap();
    one.create_dir("v/d").unwrap();
    one.write("v/d/before", &[1; 9000]).unwrap();
    set_flags(&one, "v/d", NOCOW);
    one.write("v/d/behind", &[2; 9000]).unwrap();
    freeze(&one, "v", "s0");
    for path in ["v/d/new", "v/d/later"] {
        one.create(path).unwrap();
    }
    one.create_dir("v/d/in").unwrap();
    set_flags(&one, "v/d/new", 0);
    set_flags(&one, "v/d/in", 0);
    for path in ["v/d/new", "v/d/later", "v/d/in/below"] {
        one.write(path, &[3; 9000]).unwrap();
    }
    freeze(&one, "v", "s1");
    let options = SendOptions::new().protocol_2(true);
    pass(&one, &other, "s0", &options);
    pass(&one, &other, "s1", &options.parent("s0"));
    let expected = [
        ("d", true),
        ("d/before", false),
        ("d/behind", true),
        ("d/new", false),
        ("d/later", true),
        ("d/in", false),
        ("d/in/below", false),
    ];
    for (path, nocow) in expected {
        for (volume, snapshot) in [(&one, "s1"), (&other, "s1")] {
            let path = format!("{snapshot}/{path}");
            assert_eq!(flags(volume, &path) & NOCOW != 0, nocow, "{path}");
        }
    }
    assert_eq!(flags(&other, "s0/d/before") & NOCOW, 0);
    is_clean(&other);
}

/// Which only an empty file may do; the receiver's is not.
#[test]
fn files_that_begin_or_end_to_be_written_in_place() {
    let (one, other) = (volume(), volume());
    one.create_subvolume("v").unwrap();
    one.create_dir("v/d").unwrap();
    for (path, nocow) in [("v/plain", NOCOW), ("v/packed", NOCOW), ("v/d/in-place", 0)] {
        one.create(path).unwrap();
        set_flags(&one, path, nocow);
        one.write(path, &[1; 90_000]).unwrap();
    }
    one.hard_link("v/packed", "v/d/packed").unwrap();
    freeze(&one, "v", "s0");
    for path in ["v/plain", "v/packed", "v/d/in-place"] {
        one.create(path).unwrap();
        set_flags(&one, path, flags(&one, path) ^ NOCOW);
    }
    one.set_xattr("v/packed", "btrfs.compression", b"zstd").unwrap();
    for path in ["v/plain", "v/packed", "v/d/in-place"] {
        one.write(path, &[2; 90_000]).unwrap();
    }
    freeze(&one, "v", "s1");
    let options = SendOptions::new().protocol_2(true);
    pass(&one, &other, "s0", &options);
    pass(&one, &other, "s1", &options.parent("s0"));
    for (path, expected) in
        [("plain", 0), ("packed", COMPRESS), ("d/packed", COMPRESS), ("d/in-place", NOCOW)]
    {
        let path = format!("s1/{path}");
        assert_eq!(flags(&one, &path), expected, "{path}, as it was made");
        assert_eq!(flags(&other, &path), expected, "{path}");
        assert!(other.read(&path).unwrap() == [2; 90_000], "{path}");
    }
    assert_eq!(ino(&other, "s1/packed"), ino(&other, "s1/d/packed"));
    is_clean(&other);
}

/// A property says so, whatever flags come before it or behind.
#[test]
fn flags_leave_how_content_is_compressed() {
    const OTHERS: u32 = 0x40 | 0x80;
    let all = [("v", "lzo"), ("v/d", "zstd"), ("v/d/f", "zlib:9"), ("v/d/none", "none")];
    let (one, other) = (volume(), volume());
    one.create_subvolume("v").unwrap();
    one.create_dir("v/d").unwrap();
    for (path, method) in all {
        if !one.exists(path).unwrap() {
            one.write(path, &[1; 9000]).unwrap();
        }
        one.set_xattr(path, "btrfs.compression", method.as_bytes()).unwrap();
    }
    let snapshot = |name: &str, added: u32| {
        for (path, _) in all {
            let before = flags(&one, path);
            one.fs().set_common_flags(one.context(), ino(&one, path), before | added).unwrap();
        }
        freeze(&one, "v", name);
    };
    snapshot("s0", 0x40);
    snapshot("s1", 0x80);
    let options = SendOptions::new().protocol_2(true);
    pass(&one, &other, "s0", &options);
    pass(&one, &other, "s1", &options.clone().parent("s0"));
    for snapshot in ["s0", "s1"] {
        for (path, method) in all {
            let path = path.replacen('v', snapshot, 1);
            let property = other.xattr(&path, "btrfs.compression").unwrap();
            assert_eq!(property.as_deref(), Some(method.as_bytes()), "{path}");
            assert_eq!(flags(&other, &path), flags(&one, &path), "{path}");
        }
    }
    assert_eq!(flags(&other, "s1/d") & OTHERS, OTHERS);
    is_clean(&other);
}

/// A receiver looks in what it is making for what bears the UUID of that.
#[test]
fn nothing_is_cloned_from_what_bears_the_same_uuid() {
    let (one, other) = (volume(), volume());
    one.create_subvolume("p").unwrap();
    one.write("p/file", &[5; 300_000]).unwrap();
    one.set_subvolume_read_only("p", true).unwrap();
    pass(&one, &other, "p", &SendOptions::new());
    // Somebody's stream that makes another of it.
    let info = one.subvolume("p").unwrap();
    let origin = btrfs_send::Origin { uuid: info.uuid, ctransid: info.ctransid };
    let mut encoder = Encoder::new(Vec::new(), Protocol::V1).unwrap();
    let clone = Command::Clone {
        path: b"copy",
        offset: 0,
        len: 300_000,
        from: origin,
        from_path: b"file",
        from_offset: 0,
    };
    for command in [
        Command::Snapshot { path: b"twin", origin, parent: origin },
        Command::MkFile { path: b"copy", ino: 300 },
        clone,
        Command::Unlink { path: b"file" },
        Command::End,
    ] {
        encoder.put(&command).unwrap();
    }
    let stream = encoder.into_inner();
    one.receive("/", &mut &*stream, &ReceiveOptions::new(), |_| {}).unwrap();
    pass(&one, &other, "twin", &SendOptions::new().parent("p"));
    assert_eq!(other.read("twin/copy").unwrap(), [5; 300_000]);
}

/// What lies so deep is sent itself.
#[test]
fn nothing_is_cloned_from_where_no_path_leads() {
    let (one, other) = (volume(), volume());
    one.create_subvolume("deep").unwrap();
    one.create_subvolume("v").unwrap();
    freeze(&one, "v", "s0");
    let (fs, cx) = (one.fs(), Context::default());
    let bottom = (0..16).fold(ino(&one, "deep"), |dir, _| {
        fs.mkdir(&cx, dir, &[b'n'; 255], 0o755).unwrap().attr.ino
    });
    // With the slashes 4100 bytes.
    let file = fs.mknod(&cx, bottom, b"file", FileKind::File, 0o644, 0).unwrap().attr.ino;
    fs.write(&cx, file, 0, &[5; 300_000], WriteFlags::default()).unwrap();
    one.write("v/copy", b"").unwrap();
    fs.clone_range(&cx, file, 0, ino(&one, "v/copy"), 0, 0).unwrap();
    freeze(&one, "v", "s1");
    one.set_subvolume_read_only("deep", true).unwrap();
    pass(&one, &other, "s0", &SendOptions::new());
    pass(&one, &other, "s1", &SendOptions::new().parent("s0").clone_source("deep"));
    assert_eq!(other.read("s1/copy").unwrap(), [5; 300_000]);
}

/// Runs something when the first bytes come.
struct Meanwhile<'f>(Option<Box<dyn FnOnce() + 'f>>);

impl Write for Meanwhile<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if let Some(work) = self.0.take() {
            work();
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// As the kernel refuses it: it was deleted, and the stream had no end.
#[test]
fn what_is_sent_is_neither_deleted_nor_made_writable() {
    let one = volume();
    one.create_subvolume("v").unwrap();
    for name in ["parent", "clone", "s"] {
        one.write("v/file", name.as_bytes()).unwrap();
        freeze(&one, "v", name);
    }
    let try_all = || {
        for name in ["parent", "clone", "s"] {
            let refused = one.delete_subvolume(name).expect_err("deleted");
            assert_eq!(refused.errno(), Some(libc::EPERM), "{name}: {refused}");
            let refused = one.set_subvolume_read_only(name, false).expect_err("writable");
            assert_eq!(refused.errno(), Some(libc::EPERM), "{name}: {refused}");
            one.set_subvolume_read_only(name, true).unwrap();
        }
        freeze(&one, "s", "copy");
        one.delete_subvolume("copy").unwrap();
    };
    let options = SendOptions::new().parent("parent").clone_source("clone");
    let tried = &mut Meanwhile(Some(Box::new(try_all)));
    one.send(&["s"], &options, tried).unwrap();
    assert!(tried.0.is_none());
    one.set_subvolume_read_only("parent", false).unwrap();
    for name in ["parent", "clone", "s"] {
        one.delete_subvolume(name).unwrap();
    }
}

/// More than are looked at in one go, on either side.
#[test]
fn files_of_many_pieces_over_files_of_few() {
    const PIECES: u64 = 9000;
    let (one, other) = (volume(), volume());
    one.create_subvolume("v").unwrap();
    let file = FileOptions::new().write(true).create(true).open(&one, "v/file").unwrap();
    // Next to each other in the file, and nowhere on disk.
    for first in [0, 1] {
        for piece in (first..PIECES).step_by(2) {
            file.write_at(piece * 4096, &[piece as u8 | 1; 4096]).unwrap();
        }
        one.sync().unwrap();
    }
    freeze(&one, "v", "many");
    file.set_len(0).unwrap();
    file.set_len(PIECES * 4096).unwrap();
    file.write_at(30_000_000, b"in the middle").unwrap();
    freeze(&one, "v", "holes");
    file.write_at(0, &vec![9; PIECES as usize * 4096]).unwrap();
    freeze(&one, "v", "whole");
    drop(file);
    for options in [SendOptions::new(), SendOptions::new().protocol_2(true).compressed(true)] {
        let mut parent: Option<&str> = None;
        for name in ["many", "holes", "whole"] {
            let options = match parent {
                Some(parent) => options.clone().parent(parent),
                None => options.clone(),
            };
            let mut stream = Vec::new();
            one.send(&[name], &options, &mut stream).unwrap();
            assert!(stream.len() < 40 << 20, "{name}: {} bytes, some of them twice", stream.len());
            other.receive("/", &mut &*stream, &ReceiveOptions::new(), |_| {}).unwrap();
            let [is, was] = [&other, &one].map(|v| v.read(format!("{name}/file")).unwrap());
            assert!(is == was, "{name}, from {parent:?}");
            parent = Some(name);
        }
        for (name, parent) in [("many", "whole"), ("many", "holes"), ("whole", "many")] {
            let mut stream = Vec::new();
            one.send(&[name], &options.clone().parent(parent), &mut stream).unwrap();
            assert!(stream.len() < 40 << 20, "{name}: {} bytes, some of them twice", stream.len());
            other.create_dir("again").unwrap();
            other.receive("again", &mut &*stream, &ReceiveOptions::new(), |_| {}).unwrap();
            let [is, was] =
                [(&other, format!("again/{name}/file")), (&one, format!("{name}/file"))]
                    .map(|(volume, path)| volume.read(path).unwrap());
            assert!(is == was, "{name}, from {parent}");
            other.delete_subvolume(format!("again/{name}")).unwrap();
            other.remove_dir("again").unwrap();
        }
        for name in ["many", "holes", "whole"] {
            other.delete_subvolume(name).unwrap();
        }
    }
}
