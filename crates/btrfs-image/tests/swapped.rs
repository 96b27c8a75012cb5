//! Whoever owns the directory that root copies into can put other things at the names of what was just made.

mod common;

use btrfs_image::copy::{CopyOptions, Event, export_tree, import_tree};
use common::*;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use testkit::RefFs;
use vfs::{Context, FileKind, FileSystem, XattrMode};

/// A directory can be swapped as well: neither what is in it nor its attributes go to another one.
#[test]
fn what_takes_the_place_of_a_directory_gets_nothing_of_it() {
    let can_list = have("getfattr");
    let (volume, cx) = (RefFs::new(), Context::default());
    let top = volume.mkdir(&cx, volume.root(), b"top", 0o755).expect("make").attr.ino;
    let dir = volume.mkdir(&cx, top, b"d", 0o777).expect("make").attr.ino;
    volume.setxattr(&cx, dir, b"user.x", b"1", XattrMode::Set).expect("set");
    let file = volume.mknod(&cx, dir, b"f", FileKind::File, 0o644, 0).expect("make").attr.ino;
    volume.write(&cx, file, 0, b"content", vfs::WriteFlags::default()).expect("write");
    volume.symlink(&cx, dir, b"l", b"f").expect("make");
    volume.mknod(&cx, dir, b"p", FileKind::Fifo, 0o644, 0).expect("make");
    volume.mkdir(&cx, dir, b"sub", 0o755).expect("make");
    for (ino, below) in [(dir, ""), (top, "d")] {
        for is_link in [true, false] {
            let scratch = Scratch::new();
            let (target, other) = (scratch.path("target"), scratch.path("other"));
            let (place, away) = (target.join(below), scratch.path("away"));
            let place = PathBuf::from(place.to_string_lossy().trim_end_matches('/'));
            fs::create_dir(&other).expect("mkdir");
            fs::set_permissions(&other, fs::Permissions::from_mode(0o700)).expect("chmod");
            let swap = |event: &Event<'_>| {
                let Event::Made { path, kind: FileKind::Dir, .. } = event else { return };
                if **path != *place || away.exists() {
                    return;
                }
                fs::rename(&place, &away).expect("rename");
                match is_link {
                    true => std::os::unix::fs::symlink(&other, &place).expect("link"),
                    false => fs::rename(&other, &place).expect("rename"),
                }
            };
            let options = CopyOptions { progress: Some(&swap), ..CopyOptions::default() };
            let report = export_tree(&volume, ino, &target, &options).expect("copied");
            assert_eq!((report.files, report.symlinks, report.specials), (1, 1, 1));
            let other = if is_link { &other } else { &place };
            assert_eq!(fs::metadata(other).expect("stat").mode() & 0o777, 0o700, "{below:?}");
            assert_eq!(fs::read_dir(other).expect("list").count(), 0, "{below:?}, {is_link}");
            if can_list {
                let xattrs = run(Command::new("getfattr").arg("-d").arg(other));
                assert!(!xattrs.contains("user.x"), "{xattrs}");
            }
            assert_eq!(fs::metadata(&away).expect("stat").mode() & 0o777, 0o777);
            assert_eq!(fs::read(away.join("f")).expect("read"), b"content");
            assert_eq!(fs::read_link(away.join("l")).expect("read"), Path::new("f"));
        }
    }
}

/// What has the inode number of a copied file is another one where it has one name only, or other content: the
/// names of one may go, and the next file that is made gets its number.
#[test]
fn what_has_the_number_of_a_copied_file_comes_with_its_own_content() {
    for names in [&["y"][..], &["y", "z"]] {
        let scratch = Scratch::new();
        let top = scratch.path("top");
        fs::create_dir(&top).expect("mkdir");
        fs::write(top.join("a"), "before").expect("write");
        names.iter().for_each(|name| fs::hard_link(top.join("a"), top.join(name)).expect("link"));
        fs::write(top.join("b"), "behind a").expect("write");
        let change = |event: &Event<'_>| {
            if matches!(event, Event::Made { path, .. } if path.ends_with("b")) {
                fs::remove_file(top.join("a")).expect("remove");
                fs::write(top.join("y"), "another one").expect("write");
            }
        };
        let options = CopyOptions { progress: Some(&change), ..CopyOptions::default() };
        let volume = RefFs::new();
        let report = import_tree(&volume, &top, volume.root(), b"top", &options).expect("copied");
        assert_eq!(report.hard_links, names.len() as u64 - 1);
        let found = |dir, name: &str| {
            volume.lookup(&Context::default(), dir, name.as_bytes()).expect(name).attr
        };
        let top = found(volume.root(), "top").ino;
        assert_eq!(found(top, "a").size, 6);
        for name in names {
            let attr = found(top, name);
            assert_eq!((attr.size, attr.nlink as usize), (11, names.len()), "{name}");
        }
    }
}
