//! Times with a second and more beside the second, which `stat` shows of a mount as the last nanosecond of that second:
//! the verbs that hand a file on hand that on, and no other time.

use super::loops::{edit_items, edit_leaves};
use crate::common;
use btrfs_disk::items::{InodeItem, Timespec};
use btrfs_disk::key::kind;
use btrfs_disk::{FixedSize, TreeId};
use common::{Image, fine};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;
use testkit::require;

/// As `utimensat` has it for "leave it as it is".
const OMIT: u32 = 1_073_741_822;

fn set_times(image: &Path, mtime: Timespec) {
    edit_leaves(image, TreeId(256), |leaf| {
        edit_items(leaf, |leaf, _, key, data| {
            let is_it = (key.objectid, key.kind) == (257, kind::INODE_ITEM);
            if is_it {
                let mut item = InodeItem::read(&leaf[data.clone()]).expect("an inode");
                item.mtime = mtime;
                item.write(&mut leaf[data]);
            }
            is_it
        })
    });
}

#[test]
fn files_with_such_times_are_packed_sent_and_copied() {
    require!(kernel_btrfs);
    let (image, other) = (Image::new("odd-times"), Image::new("odd-times-received"));
    fine(&["subvolume", "create", &image.at("/v")]);
    let [from, to, packed, stream] = ["from", "to", "packed.tar", "stream"]
        .map(|name| image.dir.join(name).display().to_string());
    std::fs::write(&from, b"content\n").unwrap();
    fine(&["cp", &from, &image.at("/v/f")]);
    fine(&["property", "set", &image.at("/v"), "ro", "true"]);
    for (n, mtime) in [Timespec { sec: -5, nsec: 1_000_000_001 }, Timespec { sec: 5, nsec: OMIT }]
        .into_iter()
        .enumerate()
    {
        set_times(&image.path, mtime);
        let told = (mtime.sec, 999_999_999);
        let of = |path: &str| std::fs::metadata(path).map(|m| (m.mtime(), m.mtime_nsec())).unwrap();
        fine(&["cp", "-p", &image.at("/v/f"), &to]);
        assert_eq!(of(&to), told, "copied");
        fine(&["tar", "-c", "-f", &packed, &image.at("/v")]);
        let dir = image.dir.join(&format!("unpacked-{n}")).display().to_string();
        std::fs::create_dir(&dir).unwrap();
        let unpacked = Command::new("tar").args(["-xf", &packed, "-C", &dir]).status().unwrap();
        assert!(unpacked.success());
        let found = Command::new("find").args([&dir, "-name", "f"]).output().unwrap().stdout;
        assert_eq!(of(String::from_utf8(found).unwrap().trim()), told, "packed");
        fine(&["send", "-q", "-f", &stream, &image.at("/v")]);
        let place = other.at(&format!("/{n}"));
        fine(&["mkdir", &place]);
        fine(&["receive", "-q", "-f", &stream, &place]);
        fine(&["cp", "-p", &format!("{place}/v/f"), &to]);
        assert_eq!(of(&to), told, "received");
    }
    common::assert_clean(&other.path);
}
