//! `btrfs rescue` under that name.
//!
//! Judge: btrfs-progs 6.14 on a copy of the image; then `btrfs check`, and the kernel, which finds what
//! was in it.

use crate::common;
use btrfs_disk::Superblock;
use btrfs_disk::checksum::ChecksumType;
use btrfs_disk::superblock::{COPIES, SUPER_SIZE};
use common::mount::Mount;
use common::streams::shell;
use common::{Image, KernelMount, PROGRAM, assert_clean, copies, sh, text};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use testkit::damage::{grow_device, shorten_free_extent};
use testkit::oracle::newer_btrfs;
use testkit::require;

macro_rules! newer {
    () => {{
        require!(kernel_btrfs);
        match newer_btrfs() {
            Ok(newer) => newer,
            Err(why) => testkit::skip!("{why}"),
        }
    }};
}

fn filled(name: &str, options: &[&str]) -> Image {
    let image = Image::with(name, options);
    let mount = KernelMount::new(&image.path, "noatime").expect("mount");
    shell(&format!(
        "cd {}; btrfs -q subvolume create sub; head -c 3000000 /dev/urandom > sub/f
        for i in $(seq 200); do echo $i > sub/small-$i; done; btrfs -q subvolume snapshot sub snap
        sync -f .; head -c 70000 /dev/urandom > snap/own",
        mount.path().display()
    ));
    mount.unmount().expect("unmount");
    image
}

fn copy_of(image: &Image, name: &str) -> PathBuf {
    let path = image.dir.join(name);
    shell(&format!("cp --sparse=always {} {}", image.word(), path.display()));
    path
}

/// Exit code and standard output, in which the image is `@`.
fn told(program: &[&Path], line: &str, image: &Path) -> (Option<i32>, String) {
    let mut command = Command::new(program[0]);
    command.args(&program[1..]).arg("rescue").args(line.split(' ')).arg(image);
    let output = command.stdin(Stdio::null()).output().expect("it starts");
    let out = text(&output.stdout).replace(&image.display().to_string(), "@");
    (output.status.code(), out)
}

fn ours() -> [&'static Path; 2] {
    [Path::new(PROGRAM), Path::new("btrfs")]
}

/// Sums of all files, by the kernel.
fn content(image: &Path) -> String {
    let mount = KernelMount::new(image, "noatime").expect("the kernel mounts it");
    let sums = format!("cd {}; find . -type f | sort | xargs sha256sum", mount.path().display());
    let sums = text(&sh(&sums).stdout);
    mount.unmount().expect("unmount");
    sums
}

/// Both do the same, on copies; ours is whole then. How they end.
fn both(newer: &Path, image: &Image, line: &str) -> (i32, String) {
    let (theirs, here) = (copy_of(image, "theirs.img"), copy_of(image, "ours.img"));
    let expected = told(&[newer], line, &theirs);
    let found = told(&ours(), line, &here);
    assert_eq!(found, expected, "{line}");
    assert_clean(&here);
    assert_eq!(content(&here), content(&theirs), "{line}");
    assert_clean(&here);
    (found.0.expect("an exit code"), found.1)
}

fn write(image: &Path, at: u64, bytes: &[u8]) {
    let file = OpenOptions::new().write(true).open(image).expect("open");
    file.write_all_at(bytes, at).expect("write");
}

fn read(image: &Path, at: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    File::open(image).expect("open").read_exact_at(&mut bytes, at).expect("read");
    bytes
}

/// Changes each copy of the superblock.
fn change(image: &Path, what: impl Fn(&mut Superblock)) {
    for at in &COPIES[..2] {
        let bytes = read(image, *at, SUPER_SIZE);
        let bytes: &[u8; SUPER_SIZE] = bytes[..].try_into().expect("whole");
        let mut sb = Superblock::parse(bytes, *at).expect("a superblock");
        what(&mut sb);
        write(image, *at, &sb.to_bytes(*at).expect("a superblock"));
    }
}

/// As a power cut behind an fsync leaves it.
fn leave_log(image: &Image) {
    let mount = KernelMount::new(&image.path, "noatime,commit=300").expect("mount");
    shell(&format!("cd {}; echo logged > after; sync after", mount.path().display()));
    let logged = copy_of(image, "logged.img");
    mount.unmount().expect("unmount");
    std::fs::rename(&logged, &image.path).expect("rename");
}

#[test]
fn a_log_is_given_up() {
    let newer = newer!();
    let image = filled("rescue-log", &[]);
    leave_log(&image);
    let (end, said) = both(&newer, &image, "zero-log");
    assert_eq!(end, 0);
    assert!(!said.contains("log_root 0,"), "there was one: {said}");
}

#[test]
fn bad_copies_of_the_superblock_are_written_over() {
    let newer = newer!();
    let image = filled("rescue-super", &[]);
    assert_eq!(both(&newer, &image, "super-recover -v").0, 0);
    let older = read(&image.path, COPIES[1], SUPER_SIZE);
    let mount = KernelMount::new(&image.path, "noatime").expect("mount");
    shell(&format!("cd {}; echo more > more; sync -f .", mount.path().display()));
    mount.unmount().expect("unmount");
    let good: Vec<_> = COPIES[..2].iter().map(|at| read(&image.path, *at, SUPER_SIZE)).collect();
    let damage = [(0, vec![0; SUPER_SIZE]), (1, vec![0xa5; SUPER_SIZE]), (1, older)];
    for (copy, bytes) in damage {
        write(&image.path, COPIES[copy], &bytes);
        assert_eq!(both(&newer, &image, "super-recover -v -y").0, 2);
        let here = image.dir.join("ours.img");
        assert_eq!(told(&ours(), "super-recover", &here).0, Some(0), "all are good now");
        // Who does not say yes changes nothing.
        let end = told(&ours(), "super-recover", &image.path);
        assert_eq!((end.0, end.1.contains("Aborted to recover bad superblocks")), (Some(4), true));
        assert!(read(&image.path, COPIES[copy], SUPER_SIZE) == bytes);
        write(&image.path, COPIES[copy], &good[copy]);
    }
    for at in &COPIES[..2] {
        write(&image.path, *at, &[0; SUPER_SIZE]);
    }
    assert_eq!(told(&ours(), "super-recover -y", &image.path).0, Some(1));
    assert_eq!(told(&[&newer], "super-recover -y", &image.path).0, Some(1));
}

#[test]
fn what_is_mounted_is_not_written() {
    require!(kernel_btrfs);
    let image = filled("rescue-mounted", &[]);
    let mount = KernelMount::new(&image.path, "noatime").expect("mount");
    let verbs = [
        "zero-log",
        "super-recover -y",
        "fix-device-size",
        "clear-space-cache v2",
        "clear-uuid-tree",
    ];
    for line in verbs {
        assert_eq!(told(&ours(), line, &image.path).0, Some(1), "{line}");
        assert_eq!(told(&ours(), line, mount.device()).0, Some(1), "{line}");
    }
    mount.unmount().expect("unmount");
    assert_clean(&image.path);
}

/// Also of one that is too small to be made any smaller.
#[test]
fn sizes_of_the_device_are_put_right() {
    let newer = newer!();
    put_sizes_right(&newer, "rescue-size", 512 << 20);
    put_sizes_right(&newer, "rescue-size-small", 128 << 20);
}

fn put_sizes_right(newer: &Path, name: &str, bytes: u64) {
    let image = filled(name, &["-b", &bytes.to_string()]);
    assert_eq!(both(newer, &image, "fix-device-size").0, 0);
    change(&image.path, |sb| sb.fields.total_bytes += 100);
    let said = both(newer, &image, "fix-device-size").1;
    let fixed = |what, old| format!("Fixed {what}, old size: {old} new size: {bytes}\n");
    assert!(said.contains(&fixed("super total bytes", bytes + 100)), "{said}");
    // So far off that the volume cannot be opened.
    change(&image.path, |sb| sb.fields.total_bytes += 100 << 20);
    assert_eq!(told(&ours(), "zero-log", &image.path).0, Some(1));
    let said = both(newer, &image, "fix-device-size").1;
    let old = bytes + (100 << 20) + 100;
    assert!(said.contains(&fixed("super total bytes", old)), "{said}");
    change(&image.path, |sb| sb.fields.total_bytes -= 100 << 20);
    // The device's own, in the chunk tree as well.
    File::options().write(true).open(&image.path).and_then(|f| f.set_len(bytes + 4096)).unwrap();
    let root = std::cell::Cell::new((0, 0));
    change(&image.path, |sb| {
        sb.fields.dev_item.total_bytes += 100;
        root.set((sb.fields.chunk_root.0, sb.fields.nodesize));
    });
    let (logical, size) = root.get();
    for at in copies(&image.path, logical) {
        let mut node = read(&image.path, at, size as usize);
        assert_eq!(grow_device(&mut node, 100), bytes, "the DEV_ITEM");
        ChecksumType::Crc32c.seal(&mut node);
        write(&image.path, at, &node);
    }
    let said = both(newer, &image, "fix-device-size").1;
    assert!(said.contains(&fixed("device size for devid 1", bytes + 100)), "{said}");
}

/// What superblock and chunk tree say of sizes, less what the device has.
struct Sizes {
    what: &'static str,
    total: i64,
    own: i64,
    /// The kernel mounts it as it is, and Spinney writes it.
    mounts: [bool; 2],
    /// btrfs-progs says the same; of the superblock's device item it knows nothing.
    alike: bool,
}

const SIZES: [Sizes; 7] = [
    Sizes {
        what: "the item alone",
        total: 0,
        own: -(64 << 20),
        mounts: [true, false],
        alike: false,
    },
    Sizes {
        what: "the superblock alone",
        total: -(64 << 20),
        own: -(64 << 20),
        mounts: [false, false],
        alike: true,
    },
    Sizes { what: "an odd item", total: 0, own: 100, mounts: [true, true], alike: false },
    Sizes { what: "an odd superblock", total: 100, own: 100, mounts: [true, true], alike: true },
    Sizes { what: "one less", total: 0, own: -100, mounts: [true, true], alike: false },
    // More than the device has, as if that had been cut.
    Sizes {
        what: "a long item alone",
        total: 0,
        own: 64 << 20,
        mounts: [true, false],
        alike: false,
    },
    Sizes {
        what: "a long superblock",
        total: 64 << 20,
        own: 64 << 20,
        mounts: [true, false],
        alike: true,
    },
];

/// The kernel goes by the chunk tree, and so does who mends.
#[test]
fn the_chunk_tree_tells_how_large_the_device_is() {
    let newer = newer!();
    let bytes: u64 = 512 << 20;
    for Sizes { what, total, own, mounts, alike } in SIZES {
        let image = filled("rescue-tree-size", &["-b", &bytes.to_string()]);
        let before = content(&image.path);
        let file = File::options().write(true).open(&image.path).expect("open");
        file.set_len(bytes + 4096).expect("longer");
        change(&image.path, |sb| {
            sb.fields.total_bytes = sb.fields.total_bytes.wrapping_add_signed(total);
            let item = &mut sb.fields.dev_item;
            item.total_bytes = item.total_bytes.wrapping_add_signed(own);
        });
        assert_eq!(taken_as_it_is(&image, bytes), mounts, "{what}");
        let theirs = copy_of(&image, "theirs.img");
        let expected = told(&[&newer], "fix-device-size", &theirs);
        let found = told(&ours(), "fix-device-size", &image.path);
        assert_eq!(found == expected, alike, "{what}: {found:?}, {expected:?}");
        assert!(found.0 == Some(0) && found.1.contains("Fixed"), "{what}: {found:?}");
        for at in &COPIES[..2] {
            let fields = super_at(&image.path, *at).fields;
            assert_eq!([fields.total_bytes, fields.dev_item.total_bytes], [bytes; 2], "{what}");
        }
        assert_clean(&image.path);
        assert_eq!(content(&image.path), before, "{what}");
        common::fine(&["touch", &format!("{}:/new", image.word())]);
        let (_, said) = told(&ours(), "fix-device-size", &image.path);
        assert_eq!(said, "No device size related problem found\n", "{what}");
    }
}

/// Whether the kernel mounts it, and whether Spinney writes it: the chunk tree's size is the superblock's then.
fn taken_as_it_is(image: &Image, bytes: u64) -> [bool; 2] {
    let copy = copy_of(image, "tried.img");
    let kernel = KernelMount::new(&copy, "noatime").and_then(KernelMount::unmount).is_ok();
    let copy = copy_of(image, "written.img");
    let put = common::spinney(&["touch", &format!("{}:/new", copy.display())]);
    let written = put.status.success();
    if written {
        assert_eq!(super_of(&copy).fields.dev_item.total_bytes, bytes);
        content(&copy);
    }
    [kernel, written]
}

#[test]
fn what_is_free_is_counted_anew() {
    let newer = newer!();
    let image = filled("rescue-free", &[]);
    assert_eq!(both(&newer, &image, "clear-space-cache v2").0, 0);
    assert_eq!(both(&newer, &image, "clear-space-cache v1").0, 0);
    assert_eq!(both(&newer, &image, "clear-ino-cache").0, 0);
    assert_eq!(told(&ours(), "clear-space-cache v3", &image.path).0, Some(1));
    let old = Image::with("rescue-free-v1", &["-R", "^free-space-tree"]);
    assert_eq!(both(&newer, &old, "clear-space-cache v2").1, "no free space cache v2 to clear\n");
}

/// A free-space tree that says too little is made anew.
#[test]
fn a_free_space_tree_that_is_wrong_is_made_anew() {
    require!(kernel_btrfs);
    let image = filled("rescue-wrong-free", &[]);
    let before = content(&image.path);
    let dump = sh(&format!("btrfs inspect-internal dump-tree -t 10 {}", image.word()));
    let dump = text(&dump.stdout);
    let leaf = dump.lines().find_map(|line| line.strip_prefix("leaf ")).expect("one leaf");
    let logical: u64 = leaf.split(' ').next().unwrap().parse().expect("a number");
    for at in copies(&image.path, logical) {
        let mut node = read(&image.path, at, 16384);
        shorten_free_extent(&mut node);
        ChecksumType::Crc32c.seal(&mut node);
        write(&image.path, at, &node);
    }
    let damaged = common::spinney(&["check", &image.word()]);
    assert_eq!(damaged.status.code(), Some(1));
    assert_eq!(told(&ours(), "clear-space-cache v2", &image.path).0, Some(0));
    assert_clean(&image.path);
    assert_eq!(content(&image.path), before);
}

/// Neither the kernel nor btrfs-progs has a way out where the free-space tree cannot be read, and no mount writes.
#[test]
fn a_free_space_tree_that_cannot_be_read_is_made_anew() {
    require!(kernel_btrfs);
    let image = filled("rescue-lost-free", &["-n", "4096"]);
    let (before, used) = (content(&image.path), super_of(&image.path).fields.bytes_used);
    lose_free_space(&image);
    let found = text(&common::spinney(&["check", &image.word()]).stdout);
    assert!(found.contains("spinney rescue clear-space-cache"), "{found}");
    let (_, said) = common::failing(&["touch", &format!("{}:/x", image.word())]);
    assert!(said.contains("spinney check"), "{said}");
    let said = common::fine(&["rescue", "clear-space-cache", "--json", &image.word()]);
    assert!(said.contains("\"had_free_space_tree\":true"), "{said}");
    assert_eq!(super_of(&image.path).fields.bytes_used, used, "all nodes are free");
    assert_clean(&image.path);
    assert_eq!(content(&image.path), before);
}

#[test]
fn and_what_was_fsynced_is_there() {
    require!(kernel_btrfs);
    let image = filled("rescue-lost-free-log", &["-n", "4096"]);
    leave_log(&image);
    lose_free_space(&image);
    assert_ne!(super_of(&image.path).fields.log_root.0, 0);
    common::fine(&["rescue", "clear-space-cache", &image.word()]);
    assert_clean(&image.path);
    assert_eq!(common::fine(&["cat", &format!("{}:/after", image.word())]), "logged\n");
}

/// The extents of which the tree would be made cannot all be read: the old one is good, and the volume can
/// be written as before.
#[test]
fn a_free_space_tree_stays_where_none_can_be_made() {
    require!(kernel_btrfs);
    let image = filled("rescue-lost-extents", &["-n", "4096"]);
    lose_node(&image, "extent", "leaf", 0);
    let before = std::fs::read(&image.path).expect("the image");
    let (code, said) = common::failing(&["rescue", "clear-space-cache", &image.word()]);
    assert!(code == 1 && said.contains("damaged volume"), "{said}");
    assert!(std::fs::read(&image.path).expect("the image") == before, "something was changed");
}

/// Groups of 200 subvolumes, in several nodes of which the root is lost; and a log.
#[test]
fn quotas_that_cannot_be_read_end() {
    require!(kernel_btrfs);
    let image = Image::with("rescue-quotas", &["-n", "4096"]);
    let mount = KernelMount::new(&image.path, "noatime").expect("mount");
    shell(&format!(
        "cd {}; btrfs quota enable .; for i in $(seq 200); do btrfs -q subvolume create s$i; done
        head -c 300000 /dev/urandom > s7/f; btrfs qgroup limit 1M s7; btrfs quota rescan -w .; sync -f .",
        mount.path().display()
    ));
    mount.unmount().expect("unmount");
    let before = content(&image.path);
    leave_log(&image);
    let used = super_of(&image.path).fields.bytes_used;
    let quotas = || {
        let dump = sh(&format!("btrfs inspect-internal dump-tree -t quota {}", image.word()));
        text(&dump.stdout).matches("QGROUP_INFO").count()
    };
    assert!(quotas() > 200, "{} groups", quotas());
    lose_node(&image, "quota", "node", 0);
    let found = text(&common::spinney(&["check", &image.word()]).stdout);
    assert!(found.contains("spinney rescue clear-quotas"), "{found}");
    let (_, said) = common::failing(&["touch", &format!("{}:/x", image.word())]);
    assert!(said.contains("quota tree is damaged") && said.contains("clear-quotas"), "{said}");
    let said = common::fine(&["rescue", "clear-quotas", "--json", &image.word()]);
    assert!(said.contains("\"had_quotas\":true"), "{said}");
    assert!(super_of(&image.path).fields.bytes_used + 6 * 4096 <= used, "its nodes are free");
    assert_clean(&image.path);
    assert_eq!(common::fine(&["cat", &format!("{}:/after", image.word())]), "logged\n");
    common::fine(&["rm", &format!("{}:/after", image.word())]);
    assert_eq!(content(&image.path), before);
    let said = common::fine(&["rescue", "clear-quotas", &image.word()]);
    assert_eq!(said, "the volume has no quotas\n");
    // They can begin anew.
    common::fine(&["quota", "enable", &image.word()]);
    assert!(quotas() > 200, "{} groups", quotas());
    assert_clean(&image.path);
}

/// No copy of the first node of the free-space tree is whole.
fn lose_free_space(image: &Image) {
    let first = sh(&format!("btrfs inspect-internal dump-tree -t 10 {}", image.word()));
    let kind = if text(&first.stdout).contains("\nnode ") { "node" } else { "leaf" };
    lose_node(image, "10", kind, 0);
}

/// No copy of node `nth` of its kind of a tree is whole.
fn lose_node(image: &Image, tree: &str, kind: &str, nth: usize) {
    let dump = sh(&format!("btrfs inspect-internal dump-tree -t {tree} {}", image.word()));
    let dump = text(&dump.stdout);
    let node = dump.lines().filter_map(|line| line.strip_prefix(kind)?.strip_prefix(' ')).nth(nth);
    let logical: u64 =
        node.and_then(|line| line.split(' ').next()).unwrap().parse().expect("a number");
    for at in copies(&image.path, logical) {
        write(&image.path, at + 1000, &[0x5a; 100]);
    }
}

/// What the UUID tree has, as btrfs-progs prints it.
fn uuids(image: &Path) -> String {
    let dump = sh(&format!("btrfs inspect-internal dump-tree -t uuid {}", image.display()));
    let dump = text(&dump.stdout);
    let of_items = |line: &&str| line.contains(") itemoff") || line.contains("subvol_id");
    let lines = dump.lines().filter(of_items).map(|line| match line.split_once(") itemoff") {
        Some((key, _)) => key.split_once("key").expect("a key").1,
        None => line,
    });
    lines.collect::<Vec<_>>().join("\n")
}

fn super_of(image: &Path) -> Superblock {
    super_at(image, COPIES[0])
}

fn super_at(image: &Path, at: u64) -> Superblock {
    let bytes = read(image, at, SUPER_SIZE);
    Superblock::parse(bytes[..].try_into().expect("whole"), at).expect("a superblock")
}

/// What opens a volume to write gives it a free-space tree, and nobody asked for that.
#[test]
fn a_version_1_cache_that_goes_on_the_way_is_told() {
    require!(kernel_btrfs);
    let spinney = [Path::new(PROGRAM)];
    let verbs: [(&[&Path], &str); 3] =
        [(&spinney, "clear-uuid-tree"), (&ours(), "clear-uuid-tree"), (&spinney, "clear-quotas")];
    let image = filled("rescue-converts", &["-R", "^free-space-tree"]);
    for (program, verb) in verbs {
        let copy = copy_of(&image, "copy.img");
        for converts in [true, false] {
            let mut command = Command::new(program[0]);
            command.args(&program[1..]).args(["rescue", verb]).arg(&copy);
            let output = command.output().expect("it starts");
            let said = text(&output.stderr);
            assert!(output.status.success(), "{program:?} {verb}: {said}");
            let told = said.contains("the volume has a free-space tree from now on");
            assert_eq!(told, converts, "{program:?} {verb}: {said}");
        }
        assert_clean(&copy);
    }
}

/// Subvolumes, some of them received, in a UUID tree of several nodes.
fn with_uuids(name: &str) -> Image {
    let image = Image::with(name, &["-n", "4096"]);
    let mount = KernelMount::new(&image.path, "noatime").expect("mount");
    shell(&format!(
        "cd {}; btrfs -q subvolume create sub; head -c 300000 /dev/urandom > sub/f
        btrfs -q subvolume snapshot -r sub ro; mkdir got; btrfs send -q ro | btrfs -q receive got
        for i in $(seq 150); do btrfs -q subvolume create s$i; done; sync -f .",
        mount.path().display()
    ));
    mount.unmount().expect("unmount");
    image
}

/// The next mount makes it anew, of the kernel and of Spinney, with all that was in it.
fn uuids_come_back(image: &Image, expected: &str) {
    assert_eq!(uuids(&image.path), "");
    assert_clean(&image.path);
    let by_kernel = copy_of(image, "kernel.img");
    content(&by_kernel);
    Mount::new(image, "rw").umount();
    for image in [&image.path, &by_kernel] {
        let found = uuids(image);
        assert!(found == expected, "{}: {found} and not {expected}", image.display());
        let fields = super_of(image).fields;
        assert_eq!(fields.uuid_tree_generation, fields.generation.0, "{}", image.display());
        assert_clean(image);
    }
}

#[test]
fn a_uuid_tree_goes_and_comes_back() {
    let newer = newer!();
    let image = with_uuids("rescue-uuid");
    let (before, used) = (uuids(&image.path), super_of(&image.path).fields.bytes_used);
    assert!(before.contains("UUID_KEY_RECEIVED_SUBVOL"), "{before}");
    let theirs = copy_of(&image, "theirs.img");
    assert_eq!(told(&[&newer], "clear-uuid-tree", &theirs), (Some(0), String::new()));
    assert_eq!(told(&ours(), "clear-uuid-tree", &image.path), (Some(0), String::new()));
    let fields = super_of(&image.path).fields;
    assert_eq!(fields.uuid_tree_generation, 0);
    assert!(fields.bytes_used + 3 * 4096 <= used, "two leaves and a root are free");
    // Again there is nothing to do, for both.
    for (program, image) in [(&[newer.as_path()][..], &theirs), (&ours()[..], &image.path)] {
        assert_eq!(told(program, "clear-uuid-tree", image), (Some(0), String::new()));
        assert_eq!(uuids(image), "");
    }
    uuids_come_back(&image, &before);
}

/// Nothing of it needs to be read: its root is damaged, so that nobody knows where the leaves are.
#[test]
fn a_uuid_tree_that_cannot_be_read_gives_its_space_back() {
    let newer = newer!();
    let image = with_uuids("rescue-uuid-damaged");
    let (before, used) = (uuids(&image.path), super_of(&image.path).fields.bytes_used);
    let dump = sh(&format!("btrfs inspect-internal dump-tree -t uuid {}", image.word()));
    let dump = text(&dump.stdout);
    let root = dump.lines().find_map(|line| line.strip_prefix("node ")).expect("several nodes");
    let logical: u64 = root.split(' ').next().unwrap().parse().expect("a number");
    for at in copies(&image.path, logical) {
        write(&image.path, at + 1000, &[0x5a; 100]);
    }
    assert!(KernelMount::new(&image.path, "noatime").is_err(), "the kernel refuses it");
    let theirs = copy_of(&image, "theirs.img");
    // That of btrfs-progs reads it, and says that all is well where it cannot.
    assert_eq!(told(&[&newer], "clear-uuid-tree", &theirs).0, Some(0));
    assert!(KernelMount::new(&theirs, "noatime").is_err(), "nothing was done");
    let said = common::fine(&["rescue", "clear-uuid-tree", "--json", &image.word()]);
    assert!(said.contains("\"had_uuid_tree\":true"), "{said}");
    assert!(super_of(&image.path).fields.bytes_used + 3 * 4096 <= used, "all nodes are free");
    uuids_come_back(&image, &before);
}
