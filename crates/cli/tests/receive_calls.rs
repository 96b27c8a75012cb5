//! Streams that the caller plays into a mount by system calls of his own, where its server does not receive: what is there
//! then is what was sent.

mod common;

use btrfs_disk::items::inode_flags;
use btrfs_send::{Command, Encoder, Origin, Protocol};
use common::mount::Mount;
use common::{Image, assert_clean, fine, sh, text};
use std::fs;
use testkit::require;

const ORIGIN: Origin = Origin { uuid: [7; 16], ctransid: 9 };

/// Of a subvolume `snap`; a file in the image's directory.
fn stream(image: &Image, commands: &[Command<'_>]) -> String {
    let mut encoder = Encoder::new(Vec::new(), Protocol::V3).unwrap();
    encoder.put(&Command::Subvol { path: b"snap", origin: ORIGIN }).unwrap();
    commands.iter().chain([&Command::End]).for_each(|one| encoder.put(one).unwrap());
    let file = image.dir.join("stream");
    fs::write(&file, encoder.into_inner()).unwrap();
    file.display().to_string()
}

fn compression<'c>(path: &'c [u8], value: &'c [u8]) -> Command<'c> {
    Command::SetXattr { path, name: b"btrfs.compression", value }
}

#[test]
fn flags_leave_how_content_is_compressed() {
    require!(fuse);
    require!(btrfs_progs);
    require!(sh("command -v getfattr lsattr").status.success(), "no getfattr, or no lsattr");
    let image = Image::new("calls-compressed");
    let flags = inode_flags::NODUMP | inode_flags::DIRSYNC;
    let file = stream(
        &image,
        &[
            Command::MkDir { path: b"dir", ino: 257 },
            compression(b"dir", b"zstd"),
            Command::FileAttr { path: b"dir", flags },
            Command::MkFile { path: b"packed", ino: 258 },
            compression(b"packed", b"lzo"),
            Command::FileAttr { path: b"packed", flags },
            Command::MkFile { path: b"plain", ino: 259 },
            compression(b"plain", b"none"),
            Command::FileAttr { path: b"plain", flags },
        ],
    );
    let mount = Mount::new(&image, "writeback");
    fine(&["receive", "-q", "-f", &file, &mount.word()]);
    for (name, property) in [("dir", "zstd"), ("packed", "lzo"), ("plain", "none")] {
        let path = mount.join("snap").join(name).display().to_string();
        let told = sh(&format!("getfattr -n btrfs.compression --only-values {path}"));
        assert_eq!(text(&told.stdout), property, "{name}: {}", text(&told.stderr));
        let told = text(&sh(&format!("lsattr -d {path}")).stdout);
        assert!(told.split(' ').next().unwrap().contains('d'), "{told}");
    }
    mount.umount();
    assert_clean(&image.path);
}
