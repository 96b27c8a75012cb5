//! `spinney inspect-internal`: on an image and on a mount what btrfs-progs tell of the same volume on
//! the kernel's mount.

use crate::common;
use common::mount::Mount;
use common::streams::{ready, shell};
use common::{Image, PROGRAM, copies, failing, fine, json, sh, text, told_behind};
use std::collections::BTreeSet;
use std::path::Path;
use testkit::oracle::KernelMount;
use testkit::require;

/// A volume with subvolumes in directories, hard links, reflinks and a snapshot.
fn made(name: &str) -> Image {
    let image = Image::with(name, &["-n", "4096"]);
    let mount = KernelMount::new(&image.path, "noatime").unwrap();
    shell(&format!(
        "cd {}; btrfs -q subvolume create a; mkdir -p a/d/e; btrfs -q subvolume create a/d/b
        head -c 300000 /dev/urandom > a/d/file; ln a/d/file a/hard; cp --reflink a/d/file a/d/e/copy
        for i in $(seq 600); do echo $i > a/d/e/$i; ln a/hard a/d/b-$i; done
        dd if=/dev/urandom of=a/d/e/copy bs=4k seek=10 count=2 conv=notrunc status=none
        btrfs -q subvolume snapshot a snap; rm -r a/d/e",
        mount.path().display()
    ));
    mount.unmount().unwrap();
    image
}

fn lines(text: &str) -> BTreeSet<String> {
    text.lines().map(str::to_owned).collect()
}

#[test]
fn what_is_told_is_what_btrfs_progs_tell() {
    if !ready("what_is_told_is_what_btrfs_progs_tell") {
        return;
    }
    let image = made("inspect");
    let kernel = KernelMount::new(&image.path, "ro").unwrap();
    let top = kernel.path().display().to_string();
    let theirs = |words: &str| shell(&format!("btrfs inspect-internal {words}"));
    let ids = |name: &str| theirs(&format!("rootid {top}/{name}")).trim().to_owned();
    let (a, b, snap) = (ids("a"), ids("a/d/b"), ids("snap"));
    let path = theirs(&format!("subvolid-resolve {b} {top}"));
    let inode = shell(&format!("stat -c %i {top}/a/hard")).trim().to_owned();
    let names = theirs(&format!("inode-resolve {inode} {top}/a"));
    let names = lines(&names.replace(&format!("{top}/"), ""));
    // Theirs has room for some of them.
    assert!(names.len() > 100);
    let extents =
        shell(&format!("filefrag -v {top}/snap/d/e/copy | awk '/^ *[0-9]+:/ {{print $4 * 4096}}'"));
    let resolve =
        |words: &str, at: &str| lines(&theirs(&format!("logical-resolve {words} {at} {top}")));
    let resolved: Vec<_> = extents
        .lines()
        .map(|at| (at.to_owned(), resolve("-P", at), resolve("-P -o", at)))
        .collect();
    assert!(resolved.len() >= 3 && resolved.iter().any(|(_, some, all)| some != all));
    kernel.unmount().unwrap();

    let judge = |place: &dyn Fn(&str) -> String| {
        let ours = |words: &[&str]| fine(&[&["inspect-internal"][..], words].concat());
        for (name, id) in [("a", &a), ("a/d/b", &b), ("snap", &snap), ("a/hard", &a)] {
            assert_eq!(ours(&["rootid", &place(name)]).trim(), id);
        }
        assert_eq!(ours(&["subvolid-resolve", &b, &place("")]), path);
        assert_eq!(ours(&["subvolid-resolve", "5", &place("")]), "\n");
        let found = ours(&["inode-resolve", &inode, &place("a")]);
        let found = lines(&found.replace(&place("a"), "a"));
        assert!(found.len() == 602 && names.is_subset(&found), "{found:?}");
        for (at, some, all) in &resolved {
            assert_eq!(&lines(&ours(&["logical-resolve", "-P", at, &place("")])), some, "{at}");
            let told = lines(&ours(&["logical-resolve", "-Po", at, &place("")]));
            assert_eq!(&told, all, "{at}");
            let paths = ours(&["logical-resolve", at, &place("")]);
            assert!(paths.contains("snap/d/e/copy\n"), "{paths}");
            if Path::new(&place("")).is_dir() {
                let reached =
                    |path: &str| path.starts_with(&place("")) && Path::new(path).is_file();
                assert!(paths.lines().all(reached), "{paths}");
            }
        }
        for (words, why) in [
            (["subvolid-resolve", "4000", ""], "no subvolume 4000"),
            (["inode-resolve", "999999", "a"], "no path leads to"),
            (["logical-resolve", "4096", ""], "nothing lies at"),
        ] {
            let (code, said) = failing(&["inspect-internal", words[0], words[1], &place(words[2])]);
            assert!(code == 1 && said.contains(why), "{words:?}: {code} {said}");
        }
        let chunks = json(&ours(&["list-chunks", "--json", &place("")]));
        let nodes = json(&ours(&["tree-stats", "--json", "-t", "root", &place("")]));
        (chunks, nodes)
    };
    let (chunks, nodes) = judge(&|path| image.at(&format!("/{path}")));
    let dump =
        shell(&format!("btrfs inspect-internal dump-tree -t chunk {}", image.path.display()));
    let stripes = dump.matches("devid 1 offset").count();
    assert_eq!(chunks["chunks"].as_array().unwrap().len(), stripes, "{chunks}");
    let root = shell(&format!("btrfs inspect-internal dump-tree -t root {}", image.path.display()));
    let leaves =
        root.lines().filter(|line| line.starts_with("leaf ") && line.contains(" items ")).count();
    assert_eq!(nodes["trees"][0]["nodes_by_level"][0], leaves, "{nodes}");
    let mount = Mount::new(&image, "");
    judge(&|path| mount.join(path).display().to_string());
    mount.umount();
}

/// The mount that is the last in the list may have something else mounted over it.
#[test]
fn files_at_an_address_are_told_where_a_mount_of_theirs_is_hidden() {
    require!(fuse);
    let image = Image::new("inspect-hidden");
    let (dir, file) = (image.dir.path().display(), image.dir.join("file").display().to_string());
    std::fs::write(&file, vec![7; 300_000]).unwrap();
    fine(&["cp", &file, &image.at("/")]);
    let found = json(&fine(&["subvolume", "find-new", "--json", &image.at("/"), "0"]));
    let at = found["extents"][0]["disk_start"].as_u64().expect("an address");
    let mount = Mount::new(&image, "");
    let place = mount.word();
    let shown = format!("{place}/file\n");
    for (option, what) in [("-P", "inode 257 offset 0 root 5\n"), ("", &shown)] {
        let output = sh(&format!(
            "cd {dir}; mkdir -p other; unshare --mount --propagation private sh -ec 'mount --bind {place} other
            mount -t tmpfs none other; {PROGRAM} inspect-internal logical-resolve {option} {at} {place}'"
        ));
        assert!(output.status.success(), "{option}: {}", text(&output.stderr));
        assert_eq!(text(&output.stdout), what);
    }
    mount.umount();
}

/// Chunks in many orders: gaps, none, groups of two copies, the second superblock in a gap.
#[test]
fn the_least_size_is_that_of_btrfs_progs() {
    if !ready("the_least_size_is_that_of_btrfs_progs") {
        return;
    }
    for (name, mkfs, work) in [
        ("empty", &[][..], ":"),
        ("mixed", &["-M", "-n", "4k"], "head -c 60000000 /dev/zero > f"),
        ("single", &["-m", "single", "-n", "64k"], "head -c 9000000 /dev/zero > f"),
        (
            "gaps",
            &[],
            "for i in 1 2 3 4 5 6; do head -c 40000000 /dev/zero > f$i; sync -f .; done; rm f1 f2 f3
             sync -f .; btrfs balance start -dusage=50 . > /dev/null; btrfs balance start -m -f . > /dev/null",
        ),
    ] {
        let image = Image::with(&format!("least-{name}"), mkfs);
        let mount = KernelMount::new(&image.path, "noatime").unwrap();
        let top = mount.path().display().to_string();
        shell(&format!("cd {top}; {work}; sync -f ."));
        mount.unmount().unwrap();
        // What an unmount still does is seen by both.
        let mount = KernelMount::new(&image.path, "ro").unwrap();
        let theirs = shell(&format!("btrfs inspect-internal min-dev-size {}", mount.path().display()));
        let none = shell(&format!("btrfs inspect-internal min-dev-size --id 9 {}", mount.path().display()));
        mount.unmount().unwrap();
        println!("{name}: {theirs}");
        let ask = |words: &[&str], place: &str| {
            fine(&[&["inspect-internal", "min-dev-size"][..], words, &[place]].concat())
        };
        assert_eq!(ask(&[], &image.word()), theirs, "{name}");
        assert_eq!(ask(&["--id", "9"], &image.word()), none, "{name}");
        let bytes = json(&ask(&["--json"], &image.word()))["bytes"].as_u64().unwrap();
        assert!(theirs.starts_with(&format!("{bytes} bytes (")), "{name}");
        let mount = Mount::new(&image, "ro");
        assert_eq!(ask(&[], &mount.word()), theirs, "{name}");
        mount.umount();
    }
}

/// Files of each kind of compression, one preallocated, shared extents, in a subvolume as well.
fn compressed(name: &str) -> Image {
    let image = Image::new(name);
    let mount = KernelMount::new(&image.path, "noatime").unwrap();
    shell(&format!(
        "cd {}; mkdir d d/nothing; for how in none zlib lzo zstd; do
            mkdir d/$how; [ $how = none ] || btrfs property set d/$how compression $how
            seq 1 60000 > d/$how/numbers; seq 1 300 > d/$how/few; touch d/$how/empty; sync -f .
            cp --reflink d/$how/numbers d/$how/copy; truncate -s 100000 d/$how/copy
        done
        fallocate -l 1M d/kept; ln d/zstd/numbers d/again; truncate -s 8M d/hole; ln -s d link
        btrfs -q subvolume create d/sub; seq 9000 > d/sub/more",
        mount.path().display()
    ));
    mount.unmount().unwrap();
    image
}

#[test]
fn compsize_tells_what_compsize_does() {
    if !ready("compsize_tells_what_compsize_does") {
        return;
    }
    let image = compressed("compsize");
    let kernel = KernelMount::new(&image.path, "ro").unwrap();
    let top = kernel.path().display().to_string();
    let paths = ["d", "d/lzo", "d/zstd/numbers", "d/kept", "d/sub"];
    let words = [&["-b"][..], &[], &["-x"]];
    let told: Option<Vec<_>> = sh("command -v compsize").status.success().then(|| {
        let ask =
            |words: &[&str], path| shell(&format!("compsize {} {top}/{path}", words.join(" ")));
        words.iter().flat_map(|words| paths.map(|path| ask(words, path))).collect()
    });
    kernel.unmount().unwrap();
    if told.is_none() {
        testkit::oracle::record_skip("compsize", "compsize is not installed");
    }
    let judge = |place: &dyn Fn(&str) -> String| {
        let all = words.iter().flat_map(|words| {
            let ask = |path| fine(&[&["compsize"][..], words, &[&place(path)]].concat());
            paths.map(ask)
        });
        let all: Vec<_> = all.collect();
        told.iter().for_each(|told| assert_eq!(&all, told));
        let found = json(&fine(&["compsize", "--json", &place("d")]));
        // The file with two names counts twice.
        assert_eq!((&found["files"], &found["inline"]), (&20.into(), &4.into()), "{found}");
        assert_eq!(found["types"].as_array().unwrap().len(), 6, "{found}");
        let (code, said) = failing(&["compsize", &place("d/nothing")]);
        assert!(code == 1 && said.contains("no files"), "{said}");
    };
    judge(&|path| image.at(&format!("/{path}")));
    let mount = Mount::new(&image, "");
    judge(&|path| mount.join(path).display().to_string());
    mount.umount();
}

/// A snapshot has but the name of a subvolume in its source: no path leads through it.
#[test]
fn no_path_leads_through_the_name_of_a_subvolume_in_a_snapshot() {
    if !ready("no_path_leads_through_the_name_of_a_subvolume_in_a_snapshot") {
        return;
    }
    let image = Image::new("only-a-name");
    let kernel = KernelMount::new(&image.path, "noatime").unwrap();
    let top = kernel.path().display().to_string();
    shell(&format!(
        "cd {top}; btrfs -q sub create v; btrfs -q sub create v/n; btrfs -q sub create v/n/o
        head -c 100000 /dev/urandom > v/n/f; btrfs -q sub snap v snap; sync -f ."
    ));
    let number = |path| shell(&format!("btrfs inspect-internal rootid {top}/{path}"));
    let paths = ["v/n", "v/n/o", "snap"];
    let numbers = paths.map(number);
    kernel.unmount().unwrap();
    let judge = |place: &dyn Fn(&str) -> String| {
        for (path, number) in paths.iter().zip(&numbers) {
            assert_eq!(fine(&["inspect-internal", "rootid", &place(path)]), *number, "{path}");
        }
        assert_eq!(json(&fine(&["compsize", "--json", &place("v/n")]))["files"], 1);
        for path in ["snap/n/f", "snap/n/o"] {
            let (code, said) = failing(&["compsize", &place(path)]);
            assert!(code == 1 && said.contains("no such file"), "{said}");
        }
    };
    judge(&|path| image.at(&format!("/{path}")));
    let told = fine(&["compsize", "--json", &image.at("/snap/n")]);
    assert_eq!(json(&told)["files"], 0, "{told}");
    let mount = Mount::new(&image, "ro");
    judge(&|path| mount.join(path).display().to_string());
    mount.umount();
}

/// What is shared in each way, nested subvolumes, and a snapshot that has but the name of one.
#[test]
fn du_is_that_of_btrfs_progs() {
    if !ready("du_is_that_of_btrfs_progs") {
        return;
    }
    let image = Image::new("du");
    let kernel = KernelMount::new(&image.path, "noatime").unwrap();
    let top = kernel.path().display().to_string();
    shell(&format!(
        "cd {top}; btrfs -q sub create v; mkdir -p v/d/e; btrfs -q sub create v/d/inner
        for i in 1 2 3; do head -c 200000 /dev/urandom > v/d/f$i; done; cp --reflink v/d/f1 v/d/e/copy
        echo hi > v/inline; head -c 300000 /dev/urandom > v/kept; head -c 50000 /dev/urandom > v/d/inner/f
        ln v/kept v/link; btrfs -q sub snap -r v snap; head -c 400000 /dev/urandom > v/new
        head -c 100000 /dev/urandom > v/d/f4; cp --reflink v/d/f4 v/d/f5; ln -s x v/symlink; sync -f .
        dd if=/dev/urandom of=v/new bs=4k count=3 seek=20 conv=notrunc status=none
        fallocate -l 1M v/preallocated; truncate -s 5M v/hole; mkfifo v/fifo; sync -f ."
    ));
    let lists =
        ["v", "-s v snap", "--raw v/d/f1 v/d/e", "-s --kbytes v/d", "--si v/new", "snap/d", "-s ."];
    let with = |words: &str, prefix: &str| -> Vec<String> {
        let path = |word: &str| match word.starts_with('-') {
            true => word.to_owned(),
            false => format!("{prefix}/{word}"),
        };
        words.split(' ').map(path).collect()
    };
    let plain = |text: &str, prefix: &str| text.replace(&format!("{prefix}/"), "@");
    let theirs: Vec<String> = lists
        .map(|words| {
            let command = format!("btrfs filesystem du {}", with(words, &top).join(" "));
            plain(&shell(&command), &top)
        })
        .into();
    kernel.unmount().unwrap();
    let judge = |prefix: &str| {
        for (words, theirs) in lists.iter().zip(&theirs) {
            let words = with(words, prefix);
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            let told = fine(&[&["filesystem", "du"], &words[..]].concat());
            assert_eq!(plain(&told, prefix), *theirs, "{words:?}");
        }
    };
    judge(&format!("{}:", image.path.display()));
    let mount = Mount::new(&image, "ro");
    judge(&mount.word());
    mount.umount();
}

/// btrfs-progs 6.14 has numbers where 6.2 has strings of digits.
fn as_numbers(mut told: serde_json::Value) -> serde_json::Value {
    for device in told["device-stats"].as_array_mut().expect("devices") {
        for (_, value) in device.as_object_mut().expect("an object") {
            if let Some(number) = value.as_str().and_then(|text| text.parse::<u64>().ok()) {
                *value = number.into();
            }
        }
    }
    told
}

#[test]
fn device_stats_are_those_of_btrfs_progs() {
    if !ready("device_stats_are_those_of_btrfs_progs") {
        return;
    }
    let image = Image::new("device-stats");
    let kernel = KernelMount::new(&image.path, "noatime").unwrap();
    let top = kernel.path().display().to_string();
    shell(&format!("head -c 100000 /dev/urandom > {top}/file"));
    kernel.unmount().unwrap();
    let tree = shell(&format!("btrfs inspect-internal dump-tree -t 5 {}", image.path.display()));
    let at = copies(&image.path, told_behind(&tree, "extent data disk byte ")[0])[0];
    let file = std::fs::OpenOptions::new().write(true).open(&image.path).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &[0xa5; 16], at + 200).unwrap();
    let kernel = KernelMount::new(&image.path, "noatime").unwrap();
    let top = kernel.path().display().to_string();
    // What is counted is written down with the next commit.
    shell(&format!("! cat {top}/file > /dev/null 2>&1 || exit 1; touch {top}/more; sync -f {top}"));
    let (plain, as_json) = (
        shell(&format!("btrfs device stats {top}")),
        as_numbers(json(&shell(&format!("btrfs --format json device stats {top}")))),
    );
    kernel.unmount().unwrap();
    assert!(!plain.contains("corruption_errs  0"), "{plain}");
    // Not always the device that is mounted: the kernel tells one where it saw the volume once, and a
    // mount of ours may have the image, or a loop device of it.
    let device = |text: &str| text.split(['[', ']']).nth(1).expect("a device").to_owned();
    let judge = |place: &str| {
        let told = fine(&["device", "stats", place]);
        let (ours, theirs) = (device(&told), device(&plain));
        assert!(ours == image.word() || ours.starts_with("/dev/loop"), "{ours}");
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(words(&told.replace(&ours, &theirs)), words(&plain));
        let told = fine(&["device", "stats", "--json", place]);
        assert_eq!(json(&told.replace(&ours, &theirs)), as_json);
        let output = common::spinney(&["device", "stats", "-c", place]);
        assert_eq!(output.status.code(), Some(64));
    };
    judge(&image.path.display().to_string());
    let mount = Mount::new(&image, "");
    judge(&mount.word());
    mount.umount();
}
