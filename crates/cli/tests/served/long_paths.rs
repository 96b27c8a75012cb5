//! Subvolumes whose paths are longer than what a program can say at once, and than a record of the mount's door.

use crate::common;
use common::mount::{Mount, gone, place};
use common::{Image, fine, json};
use spinney::VolumeOptions;
use testkit::require;

/// Eight of 255 bytes each before every subvolume, ten of these: 20 KiB.
const DEPTH: usize = 10;

fn deep(image: &Image) -> Vec<String> {
    let volume = VolumeOptions::new().write(true).open(&image.path).unwrap();
    let (mut path, mut all) = (String::new(), Vec::new());
    for number in 0..DEPTH {
        for _ in 0..8 {
            path.push_str(&"d".repeat(250));
            volume.create_dir(&path).unwrap();
            path.push('/');
        }
        path.push_str(&format!("s{number}"));
        volume.create_subvolume(&path).unwrap();
        all.push(path.clone());
        path.push('/');
    }
    volume.close().unwrap();
    all
}

fn paths(place: &str) -> Vec<String> {
    let all = json(&fine(&["subvolume", "list", "--json", place]));
    let all = all.as_array().or_else(|| all["subvolume-list"].as_array()).unwrap();
    all.iter().map(|row| row["path"].as_str().unwrap().to_owned()).collect()
}

/// Only the name was told, as if they lay at the top: from 16 KiB on, and by a mount from 8 KiB on.
#[test]
fn long_paths_are_told_whole() {
    require!(fuse);
    require!(btrfs_progs);
    let image = Image::new("long-paths");
    let all = deep(&image);
    assert!(all[DEPTH - 1].len() > 20_000);
    assert_eq!(paths(&image.at("/")), all);
    let mount = Mount::new(&image, "");
    assert_eq!(paths(&mount.word()), all);
    mount.umount();
    gone(&image);
}

/// The way from the top of the volume was asked of the kernel in one piece.
#[test]
fn a_subvolume_behind_a_long_path_is_mounted() {
    require!(fuse);
    require!(btrfs_progs);
    let image = Image::new("long-paths-mounted");
    deep(&image);
    let all = json(&fine(&["subvolume", "list", "--json", &image.at("/")]));
    let all = all.as_array().or_else(|| all["subvolume-list"].as_array()).unwrap();
    let id = all[DEPTH - 1]["id"].to_string();
    for options in [format!("subvolid={id}"), "rw".into()] {
        let mount = Mount::new(&image, &options);
        std::fs::write(mount.join("file"), &options).unwrap();
        assert_eq!(std::fs::read(mount.join("file")).unwrap(), options.as_bytes());
        mount.umount();
        gone(&image);
        fine(&["subvolume", "set-default", &id, &image.at("/")]);
    }
}

/// So was the way from the top of a mount that is there.
#[test]
fn a_subvolume_behind_a_long_path_is_mounted_beside_another() {
    require!(fuse);
    require!(btrfs_progs);
    let image = Image::new("long-paths-beside");
    let all = deep(&image);
    let rows = json(&fine(&["subvolume", "list", "--json", &image.at("/")]));
    let rows = rows.as_array().or_else(|| rows["subvolume-list"].as_array()).unwrap();
    let mount = Mount::new(&image, "subvolid=5");
    for (number, path) in all.iter().enumerate() {
        let (second, word) = place(&image, &format!("second-{number}"));
        let id = format!("subvolid={}", rows[number]["id"]);
        fine(&["mount", "-o", &id, &image.word(), &word]);
        std::fs::write(second.join("file"), path).unwrap();
        fine(&["umount", &word]);
    }
    mount.umount();
    gone(&image);
    let last = Mount::new(&image, &format!("subvolid={}", rows[DEPTH - 1]["id"]));
    assert_eq!(std::fs::read_to_string(last.join("file")).unwrap(), all[DEPTH - 1]);
    last.umount();
    gone(&image);
}
