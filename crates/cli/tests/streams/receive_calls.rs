//! Streams that the caller plays into a mount by system calls of his own, where its server does not receive: what is there
//! then is what was sent, and nothing that a stream has made does anything by being looked at.

use crate::common;
use btrfs_disk::items::inode_flags;
use btrfs_send::{Command, Encoder, Origin, Protocol, Special, Verity};
use common::mount::Mount;
use common::streams::assert_same;
use common::{
    Image, KernelMount, OpenToAll, as_ordinary_user, assert_clean, failing, fine, sh, text,
};
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

/// Of numbers that nobody has a driver for: who opened them would hear that.
#[test]
fn nodes_that_a_stream_has_made_are_not_opened() {
    require!(root);
    require!(fuse);
    require!(btrfs_progs);
    let node = |path| {
        // Majors end at 511.
        let (mode, rdev) = (libc::S_IFCHR.into(), 999 << 8 | 1);
        Command::MkSpecial { kind: Special::Node, path, ino: 257, mode, rdev }
    };
    let from = Command::Clone {
        path: b"file",
        offset: 0,
        len: 4096,
        from: ORIGIN,
        from_path: b"node",
        from_offset: 0,
    };
    let verity = Verity { algorithm: 1, block_size: 4096, salt: b"", signature: b"" };
    for (what, last) in [
        ("writing to node", Command::Write { path: b"node", offset: 0, data: b"x" }),
        ("cloning to file", from),
        ("setting flags of node", Command::FileAttr { path: b"node", flags: inode_flags::NODUMP }),
        ("verified of node", Command::EnableVerity { path: b"node", verity }),
    ] {
        let image = Image::new("calls-nodes");
        let file =
            stream(&image, &[node(b"node"), Command::MkFile { path: b"file", ino: 258 }, last]);
        let mount = Mount::new(&image, "writeback");
        let (code, told) = failing(&["receive", "-q", "-f", &file, &mount.word()]);
        assert!(code == 1 && told.contains(what), "{told}");
        assert!(told.contains("invalid argument"), "{told}");
        assert!(sh(&format!("test -c {}/snap/node", mount.word())).status.success());
        mount.umount();
    }
}

/// Files of an ordinary user's with such bits: `s0`, and `s1`, for which they were written and given the bits again.
fn with_set_id_bits(source: &Image) {
    let kernels = KernelMount::new(&source.path, "noatime").unwrap();
    let made = sh(&format!(
        "set -e; cd {}; btrfs -q subvolume create v; head -c 100000 /dev/urandom > v/in-place
         cp v/in-place v/longer; chown -R 65534:65534 v; chmod 4755 v/in-place; chmod 6755 v/longer
         btrfs -q subvolume snapshot -r v s0; head -c 3000 /dev/urandom > new
         dd if=new of=v/in-place conv=notrunc; cat new >> v/longer; chmod 4755 v/in-place
         chmod 6755 v/longer; btrfs -q subvolume snapshot -r v s1",
        kernels.path().display()
    ));
    assert!(made.status.success(), "{}", text(&made.stderr));
    kernels.unmount().unwrap();
}

/// A write of who is no administrator takes the bits away: the stream must say them again.
#[test]
fn set_id_bits_stay_where_a_file_was_written_in_place() {
    require!(kernel_btrfs);
    require!(fuse);
    if let Some(why) = common::no_ordinary_users() {
        testkit::skip!("{why}");
    }
    let _open = OpenToAll::new();
    let (source, image) = (Image::new("set-id-source"), Image::new("set-id"));
    with_set_id_bits(&source);
    let [s0, s1] = ["/s0", "/s1"].map(|path| source.at(path));
    let [whole, more] = ["whole", "more"].map(|name| image.dir.join(name).display().to_string());
    fine(&["send", "-q", "-f", &whole, &s0]);
    fine(&["send", "-q", "-p", &s0, "-f", &more, &s1]);
    fine(&["chown", "65534:65534", &image.at("/")]);
    as_ordinary_user(
        &image,
        "./spinney mount --log log -o writeback disk.img mnt
         ./spinney receive -q -f whole mnt && ./spinney receive -q -f more mnt
         ./spinney umount mnt; if grep received log; then exit 1; fi",
    );
    let [from, to] = [&source, &image].map(|one| KernelMount::new(&one.path, "ro").unwrap());
    let modes =
        |one: &KernelMount| text(&sh(&format!("stat -c %a {}/s?/*", one.path().display())).stdout);
    assert_eq!(modes(&from), "4755\n6755\n4755\n6755\n");
    assert_eq!(modes(&to), modes(&from));
    assert_same(&from.join("s1"), &to.join("s1"), "s1");
    from.unmount().unwrap();
    to.unmount().unwrap();
    assert_clean(&image.path);
}

/// An ordinary user's own file that he may not write: its flags are his to set all the same.
#[test]
fn flags_of_a_read_only_file_leave_how_it_is_compressed() {
    require!(kernel_btrfs);
    require!(fuse);
    require!(sh("command -v getfattr lsattr").status.success(), "no getfattr, or no lsattr");
    if let Some(why) = common::no_ordinary_users() {
        testkit::skip!("{why}");
    }
    let _open = OpenToAll::new();
    let (source, image) = (Image::new("sealed-source"), Image::new("sealed"));
    let kernels = KernelMount::new(&source.path, "noatime").unwrap();
    let made = sh(&format!(
        "set -e; cd {}; btrfs -q subvolume create v; echo text > v/file
         setfattr -n btrfs.compression -v zstd v/file; chown -R 65534:65534 v; chmod 444 v/file
         btrfs -q subvolume snapshot -r v s0; chattr +d v/file
         setfattr -n btrfs.compression -v zstd v/file; btrfs -q subvolume snapshot -r v s1",
        kernels.path().display()
    ));
    assert!(made.status.success(), "{}", text(&made.stderr));
    kernels.unmount().unwrap();
    let [s0, s1] = ["/s0", "/s1"].map(|path| source.at(path));
    let [whole, more] = ["whole", "more"].map(|name| image.dir.join(name).display().to_string());
    fine(&["send", "-q", "--proto", "2", "-f", &whole, &s0]);
    fine(&["send", "-q", "--proto", "2", "-p", &s0, "-f", &more, &s1]);
    fine(&["chown", "65534:65534", &image.at("/")]);
    as_ordinary_user(
        &image,
        "./spinney mount --log log -o writeback disk.img mnt
         ./spinney receive -q -f whole mnt; ./spinney receive -q -f more mnt
         ./spinney umount mnt; if grep received log; then exit 1; fi",
    );
    let to = KernelMount::new(&image.path, "ro").unwrap();
    let path = to.join("s1/file").display().to_string();
    let asked = format!(
        "stat -c %a {path}; getfattr -n btrfs.compression --only-values {path}
         echo; lsattr -d {path} | cut -d ' ' -f 1 | tr -dc d"
    );
    assert_eq!(text(&sh(&asked).stdout), "444\nzstd\nd");
    to.unmount().unwrap();
    assert_clean(&image.path);
}
