//! Attributes with a NUL in their names, which volumes may have and no system call can say: what has one is copied
//! without it, and a stream of it is refused by the file's path.

use btrfs_disk::checksum::name_hash;
use btrfs_disk::items::{DirItem, dir_type};
use btrfs_disk::key::kind;
use btrfs_disk::{Key, TreeId};
use fuzzing::patch::Patch;
use spinney::tree::{CopyRules, Transfer, TransferEvent, TreeCopy};
use spinney::{FormatOptions, SendOptions, SnapshotOptions, Volume};
use std::cell::Cell;
use std::fs;
use testkit::oracle::TempDir;

const NAME: &[u8] = b"user.a\0b";

/// `d/f` has one, and an attribute that everybody takes.
fn volume(dir: &TempDir) -> Volume {
    let image = dir.join("disk.img");
    let volume = FormatOptions::new().create(&image, 256 << 20).unwrap();
    volume.create_dir("d").unwrap();
    volume.write("d/f", b"content").unwrap();
    volume.set_xattr("d/f", "user.k", b"v").unwrap();
    volume.close().unwrap();
    let patch = Patch::new(&image);
    let (location, kind, value) = (Key::new(0, 0, 0), dir_type::XATTR, &b"v"[..]);
    let item = DirItem { location, transid: 1, kind, name: NAME, value }.to_vec();
    let ino = patch.ino(TreeId::FS, "d/f");
    patch.insert(TreeId::FS, Key::new(ino, kind::XATTR_ITEM, name_hash(NAME)), &item);
    Volume::open_writable(&image).unwrap()
}

fn xattrs(volume: &Volume, path: &str) -> usize {
    let node = volume.find(path.as_bytes(), true).unwrap();
    volume.fs().listxattr(node.ino()).unwrap().len()
}

#[test]
fn what_has_one_is_copied_to_this_machine_without_it() {
    let dir = TempDir::new("nul-out").unwrap();
    let volume = volume(&dir);
    let host = dir.join("f");
    // What has more names is replaced, once what takes its place is whole.
    fs::write(&host, b"old").unwrap();
    fs::hard_link(&host, dir.join("g")).unwrap();
    let skipped = Cell::new(0);
    let transfer = Transfer::new(&volume, CopyRules::SAME).on_event(|event| {
        if let TransferEvent::SkippedXattr { name, .. } = event {
            assert_eq!(*name, NAME);
            skipped.set(skipped.get() + 1);
        }
    });
    for host in [&host, &dir.join("new")] {
        let node = volume.find(b"d/f", true).unwrap();
        transfer.export(&node, b"d/f", host).unwrap();
        assert_eq!(fs::read(host).unwrap(), b"content");
    }
    assert_eq!(skipped.get(), 2);
    drop(transfer);
    assert_eq!(volume.export("d", dir.join("d")).unwrap().skipped_xattrs, 1);
}

#[test]
fn what_has_one_is_copied_inside_of_a_volume_without_it() {
    let dir = TempDir::new("nul-in").unwrap();
    let volume = volume(&dir);
    assert_eq!(xattrs(&volume, "d/f"), 2);
    let skipped = Cell::new(0);
    let mut copy =
        TreeCopy::new(&volume, &volume, CopyRules::SAME).on_skipped_xattr(|path, name| {
            assert_eq!((path, name), (&b"/d/f"[..], NAME));
            skipped.set(skipped.get() + 1);
        });
    volume.write("linked", b"old").unwrap();
    volume.hard_link("linked", "link").unwrap();
    for to in ["copy", "link"] {
        let (node, top) = (volume.find(b"/d/f", true).unwrap(), volume.root().unwrap());
        copy.entry(node, b"/d/f", &top, to.as_bytes(), format!("/{to}").into_bytes()).unwrap();
        assert_eq!(volume.read(to).unwrap(), b"content");
        assert_eq!(xattrs(&volume, to), 1);
    }
    assert_eq!(skipped.get(), 2);
    drop(copy);
    volume.close().unwrap();
}

#[test]
fn a_stream_of_what_has_one_is_refused_by_its_path() {
    let dir = TempDir::new("nul-sent").unwrap();
    let volume = volume(&dir);
    let freeze = |name: &str| {
        volume.snapshot("/", name, &SnapshotOptions::new().read_only(true)).unwrap();
    };
    freeze("with");
    let sent = volume.send(&["with"], &SendOptions::new(), &mut Vec::new());
    let said = sent.unwrap_err().to_string();
    assert!(said.contains("with/d/f: ") && said.contains("NUL"), "{said}");
    let node = volume.find(b"d/f", true).unwrap();
    volume.fs().removexattr(volume.context(), node.ino(), NAME).unwrap();
    freeze("without");
    volume.send(&["without"], &SendOptions::new(), &mut Vec::new()).unwrap();
    // Who has the other has it without.
    let options = SendOptions::new().parent("with");
    volume.send(&["without"], &options, &mut Vec::new()).unwrap();
    volume.close().unwrap();
}
