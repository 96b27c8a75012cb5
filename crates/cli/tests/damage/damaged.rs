//! What the program says of what is no volume, of damaged volumes and of cut ones: what it is,
//! and nothing that leads back to the same words.

use crate::common;
use common::mount::Mount;
use common::{Image, MIB, failing, fine, text};
use std::os::unix::fs::FileExt;
use testkit::oracle::{LoopDevice, TempDir};
use testkit::require;

/// Verbs that open a volume, with the word for the image at `IMAGE`.
const OPENERS: &[&[&str]] = &[
    &["check", "IMAGE"],
    &["info", "IMAGE"],
    &["df", "IMAGE"],
    &["ls", "IMAGE:/"],
    &["stat", "IMAGE:/x"],
    &["cat", "IMAGE:/x"],
    &["cp", "-r", "IMAGE:/", "OUT"],
    &["mkdir", "IMAGE:/x"],
    &["mount", "IMAGE", "DIR"],
    &["balance", "start", "--full-balance", "IMAGE"],
    &["filesystem", "resize", "max", "IMAGE"],
    &["scrub", "start", "IMAGE"],
    &["trim", "IMAGE"],
];

fn words(verb: &[&str], image: &str, dir: &str) -> Vec<String> {
    let word = |w: &&str| w.replace("IMAGE", image).replace("OUT", &format!("{dir}/out"));
    verb.iter().map(|w| word(w).replace("DIR", dir)).collect()
}

#[test]
fn what_is_no_volume_is_not_damaged() {
    let scratch = TempDir::new("no-volume").expect("scratch");
    let dir = scratch.join("dir");
    std::fs::create_dir(&dir).expect("directory");
    for (name, len) in [("short", 100), ("zeros", 64 * MIB)] {
        let path = scratch.join(name);
        let file = std::fs::File::create(&path).expect("made");
        file.set_len(len).expect("length");
        file.write_all_at(b"#!/bin/sh", 0).expect("written");
        for verb in OPENERS {
            let words = words(verb, &path.display().to_string(), &dir.display().to_string());
            let (code, said) = failing(&words);
            assert_eq!(code, if verb[0] == "mount" { code } else { 1 }, "{words:?}: {said}");
            assert!(said.contains("not a btrfs volume"), "{words:?}: {said}");
            assert!(
                !said.contains("damaged") && !said.contains("spinney check"),
                "{words:?}: {said}"
            );
            let named = path.display().to_string();
            let first = said.lines().next().unwrap_or_default();
            assert_eq!(first.matches(&named).count(), 1, "{words:?}: named once: {said}");
        }
    }
}

/// The chunk tree is gone: nothing opens, and nobody is sent to what opens it in the same way.
#[test]
fn advice_is_not_circular() {
    let image = Image::new("circular");
    let device =
        std::fs::OpenOptions::new().read(true).write(true).open(&image.path).expect("open");
    let mut sb = [0; 4096];
    device.read_exact_at(&mut sb, 64 << 10).expect("superblock");
    // The system chunk array's first chunk item: its stripes (DUP).
    let item = 811 + 17;
    let stripes = u16::from_le_bytes([sb[item + 44], sb[item + 45]]) as usize;
    for stripe in 0..stripes {
        let at = item + 48 + stripe * 32 + 8;
        let at = u64::from_le_bytes(sb[at..at + 8].try_into().expect("8"));
        device.write_all_at(&vec![0xff; 1 << 20], at).expect("written");
    }
    let dir = image.dir.join("dir");
    std::fs::create_dir(&dir).expect("directory");
    for verb in OPENERS {
        let words = words(verb, &image.word(), &dir.display().to_string());
        let (_, said) = failing(&words);
        assert!(said.contains("damaged volume"), "{words:?}: {said}");
        let circular = ["spinney check", "spinney cp", "spinney ls", "spinney info"];
        assert!(!circular.iter().any(|w| said.contains(w)), "{words:?}: {said}");
        let helps = ["dump-super --all", "btrfs rescue chunk-recover"];
        assert!(helps.iter().any(|w| said.contains(w)), "{words:?}: {said}");
        // Tried: it opens nothing without a chunk tree.
        assert!(!said.contains("may get content"), "{words:?}: {said}");
    }
    let shown = common::spinney(&["dump-super", "--all", &image.word()]);
    assert!(shown.status.success(), "what is left is shown: {}", text(&shown.stderr));
}

/// To be written a volume needs its extent tree, to be read it does not.
#[test]
fn what_can_be_read_is_said_to_be() {
    require!(kernel_btrfs);
    let (image, _) = with_lost_content("unwritable");
    let dump = common::sh(&format!("btrfs inspect-internal dump-tree -t extent {}", image.word()));
    let root = common::told_behind(&text(&dump.stdout), "leaf ")[0];
    let device = std::fs::OpenOptions::new().write(true).open(&image.path).expect("open");
    for at in common::copies(&image.path, root) {
        device.write_all_at(&[0xff; 16384], at).expect("written");
    }
    let point = Mount::directory(&image).display().to_string();
    for words in [
        &["mkdir", &image.at("/x")][..],
        &["mount", &image.word(), &point],
        &["balance", "start", "--full-balance", &image.word()],
        &["filesystem", "resize", "max", &image.word()],
    ] {
        let (_, said) = failing(words);
        assert!(said.contains("damaged volume"), "{words:?}: {said}");
        assert!(said.contains("`-o ro`") && said.contains("spinney cp -r"), "{words:?}: {said}");
    }
    let copy = image.dir.join("copy").display().to_string();
    fine(&["cp", "-r", &image.at("/dir/z"), &copy]);
    assert_eq!(std::fs::read(&copy).unwrap(), b"behind");
}

/// A volume with content that fails its checksum: /dir/bad has lost two places, its neighbours
/// none. Gives what /dir/bad was.
fn with_lost_content(name: &str) -> (Image, Vec<u8>) {
    let image = Image::with(name, &["-d", "single"]);
    let mut content = vec![0u8; 300 * 4096 + 77];
    for (i, block) in content.chunks_mut(4096).enumerate() {
        let words = block.chunks_mut(8).enumerate();
        words.for_each(|(j, word)| word.fill((i * 31 + j * 7 + 1) as u8));
        let mark = format!("block {i:5} of what will be lost");
        let len = mark.len().min(block.len());
        block[..len].copy_from_slice(&mark.as_bytes()[..len]);
    }
    let mount = common::KernelMount::new(&image.path, "noatime").expect("mounted");
    std::fs::create_dir(mount.join("dir")).expect("made");
    for (file, bytes) in [("a", &b"before"[..]), ("bad", &content), ("z", b"behind")] {
        std::fs::write(mount.join("dir").join(file), bytes).expect("written");
    }
    mount.unmount().expect("unmounted");
    let disk = std::fs::read(&image.path).expect("read");
    let device = std::fs::OpenOptions::new().write(true).open(&image.path).expect("open");
    for block in [5, 6, 290] {
        let mark = &content[block * 4096..block * 4096 + 30];
        let places = (0..disk.len()).step_by(4096).filter(|at| disk[*at..].starts_with(mark));
        let places: Vec<_> = places.collect();
        assert_eq!(places.len(), 1, "block {block}");
        device.write_all_at(b"damage", places[0] as u64 + 100).expect("written");
    }
    (image, content)
}

/// A stream cannot leave content out: it ends, and says at which file.
#[test]
fn a_stream_that_ends_at_damage_names_the_file() {
    require!(kernel_btrfs);
    let (image, _) = with_lost_content("send-lost");
    fine(&["subvolume", "snapshot", "-r", &image.at("/"), &image.at("/snap")]);
    let stream = image.dir.join("stream").display().to_string();
    let (code, said) = failing(&["send", "-q", "-f", &stream, &image.at("/snap")]);
    assert!(code == 1 && said.contains(&image.at("/snap/dir/bad: ")), "{said}");
    let mount = Mount::new(&image, "ro");
    let (code, said) = failing(&["send", "-q", "-f", &stream, &format!("{}/snap", mount.word())]);
    assert!(code == 1 && said.contains("dir/bad: "), "{said}");
}

/// All but blocks 5, 6 and 290, which are zeros.
fn without_lost(content: &[u8]) -> Vec<u8> {
    let mut content = content.to_vec();
    for block in [5, 6, 290] {
        content[block * 4096..(block + 1) * 4096].fill(0);
    }
    content
}

#[test]
fn a_copy_out_of_a_damaged_file_goes_on() {
    let (image, content) = with_lost_content("goes-on");
    let left = without_lost(&content);
    let out = image.dir.join("out");
    let to = out.display().to_string();
    // New, over what is there, without attributes, one file alone.
    let cases: [&[&str]; 4] =
        [&["-r", "/dir"], &["-r", "/dir/."], &["-r", "--no-preserve", "/dir/."], &["/dir/bad"]];
    for words in cases {
        let (path, options) = words.split_last().expect("words");
        let target = if *path == "/dir/bad" { format!("{to}/bad") } else { to.clone() };
        let mut line = vec!["cp".to_owned()];
        line.extend(options.iter().map(|w| w.to_string()));
        line.extend([image.at(path), target]);
        let (code, said) = failing(&line);
        assert_eq!(code, 1, "{line:?}");
        let named = image.at("/dir/bad").replace("/dir/./", "/dir/");
        let said = said.replace("/dir/./", "/dir/");
        for range in ["8192 bytes from 20480 on", "4096 bytes from 1187840 on"] {
            assert!(said.contains(&format!("{named}: {range} are lost: ")), "{line:?}: {said}");
        }
        assert!(said.contains("12288 bytes in 2 places"), "{line:?}: {said}");
        assert!(!said.contains(&to), "the target is not to blame: {line:?}: {said}");
        assert_eq!(std::fs::read(out.join("bad")).expect("copied"), left, "{line:?}");
        for (file, whole) in [("a", &b"before"[..]), ("z", b"behind")] {
            assert_eq!(std::fs::read(out.join(file)).expect("copied"), whole, "{line:?}");
        }
    }
}

/// Whatever kind of target content goes to: it gets all that is left, in its place.
#[test]
fn streams_out_of_a_damaged_file_go_on() {
    let (image, content) = with_lost_content("streams");
    let (left, dir) = (without_lost(&content), image.dir.path().display());
    std::fs::write(image.dir.join("blank"), vec![9; 2 * MIB as usize]).expect("made");
    let device = LoopDevice::attach(&image.dir.join("blank"), false).expect("attached");
    let (bad, disk, program) = (image.at("/dir/bad"), device.path().display(), common::PROGRAM);
    for script in [
        format!("{program} cp {bad} - > {dir}/got"),
        format!("mkfifo {dir}/fifo; cat {dir}/fifo > {dir}/got & {program} cp {bad} {dir}/fifo"),
        format!(
            "{program} cp {bad} {disk}; code=$?; head -c {} {disk} > {dir}/got; exit $code",
            left.len()
        ),
        format!(
            "{program} tar -cf {dir}/tar {}; code=$?; tar -xOf {dir}/tar dir/bad > {dir}/got; \
             test $(tar -xOf {dir}/tar dir/z) = behind || exit 9; exit $code",
            image.at("/dir")
        ),
    ] {
        let output = common::sh(&script);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{script}: {said}");
        for range in ["8192 bytes from 20480 on", "4096 bytes from 1187840 on"] {
            assert!(said.contains(&format!("{bad}: {range} are lost: ")), "{script}: {said}");
        }
        assert!(said.contains("12288 bytes in 2 places"), "{script}: {said}");
        let got = || std::fs::read(image.dir.join("got")).expect("there");
        common::eventually("all has come", || got().len() >= left.len());
        assert!(got() == left, "{script}");
    }
    device.detach().expect("detached");
    // What is piped on must not hold zeros that the file does not have.
    let cat = common::spinney(&["cat", &bad]);
    assert_eq!(cat.status.code(), Some(1));
    assert!(cat.stdout == content[..5 * 4096], "all in front of the first bad block, and no more");
    assert!(
        text(&cat.stderr).contains("`spinney cp --rescue ignoredatacsums`"),
        "cat has no such option"
    );
}

/// Who asks for content whatever its checksum says gets it, and hears which of it may be wrong.
#[test]
fn content_that_nothing_vouches_for_is_named() {
    let (image, mut content) = with_lost_content("doubtful");
    [5, 6, 290]
        .iter()
        .for_each(|block| content[block * 4096 + 100..][..6].copy_from_slice(b"damage"));
    let (dir, bad, program) = (image.dir.path().display(), image.at("/dir/bad"), common::PROGRAM);
    let rescue = "--rescue ignoredatacsums";
    for script in [
        format!(
            "{program} cp -r {rescue} {} {dir}/out; code=$?; mv {dir}/out/bad {dir}/got",
            image.at("/dir")
        ),
        format!("{program} cp {rescue} {bad} - > {dir}/got; code=$?"),
        format!(
            "{program} tar -c {rescue} {} > {dir}/tar; code=$?; tar -xOf {dir}/tar dir/bad > {dir}/got",
            image.at("/dir")
        ),
    ] {
        let output = common::sh(&format!("{script}; exit $code"));
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "the copy may be wrong: {script}: {said}");
        for range in ["8192 bytes from 20480 on", "4096 bytes from 1187840 on"] {
            let told = format!("{bad}: {range} are copied as they are, and may be wrong");
            assert_eq!(said.matches(&told).count(), 1, "{script}: {said}");
        }
        assert!(said.contains("12288 bytes in the copies may be wrong"), "{script}: {said}");
        assert!(!said.contains("are lost"), "{script}: {said}");
        assert!(std::fs::read(image.dir.join("got")).expect("copied") == content, "{script}");
    }
    let listed = fine(&["ls", "--rescue", "ignoredatacsums", &image.at("/dir")]);
    assert!(listed.contains("bad"), "who reads no content hears nothing");
}

/// One good copy is enough, and better than another that is not, for who does not mind either.
#[test]
fn a_good_copy_is_given_out_before_a_bad_one() {
    let image = Image::with("one-good-copy", &["-d", "dup"]);
    let content: Vec<u8> =
        (0..400_000).map(|i: u32| (i.wrapping_mul(2654435761) >> 13) as u8).collect();
    let mount = common::KernelMount::new(&image.path, "noatime").expect("mounted");
    std::fs::write(mount.join("file"), &content).expect("written");
    mount.unmount().expect("unmounted");
    let disk = std::fs::read(&image.path).expect("read");
    let device = std::fs::OpenOptions::new().write(true).open(&image.path).expect("open");
    for (block, copy) in [(3, 0), (50, 1)] {
        let mark = &content[block * 4096..(block + 1) * 4096];
        let places = (0..disk.len()).step_by(4096).filter(|at| disk[*at..].starts_with(mark));
        let found: Vec<_> = places.collect();
        assert_eq!(found.len(), 2, "block {block}");
        device.write_all_at(b"damage", found[copy] as u64 + 100).expect("written");
    }
    let copy = image.dir.join("copy").display().to_string();
    fine(&["cp", "--rescue", "ignoredatacsums", &image.at("/file"), &copy]);
    assert!(std::fs::read(&copy).expect("copied") == content);
}

#[test]
fn a_copy_between_volumes_goes_on() {
    let (image, content) = with_lost_content("between");
    let other = Image::new("between-other");
    let (code, said) = failing(&["cp", "-r", &image.at("/dir"), &other.at("/")]);
    assert!(code == 1 && said.contains("8192 bytes from 20480 on are lost"), "{said}");
    assert!(!said.contains(&other.word()), "the target is not to blame: {said}");
    common::assert_clean(&other.path);
    let back = other.dir.join("back");
    common::fine(&["cp", &other.at("/dir/bad"), &back.display().to_string()]);
    assert_eq!(std::fs::read(&back).expect("copied"), without_lost(&content));
    assert_eq!(common::fine(&["cat", &other.at("/dir/z")]), "behind");
}

/// `check` and `cp` agree on what is behind the end of a cut image; `ls` says that it is cut.
#[test]
fn a_cut_image_tells_what_is_missing() {
    let image = Image::with("cut", &["-d", "single"]);
    let mount = common::KernelMount::new(&image.path, "noatime").expect("mounted");
    let block: Vec<u8> =
        (0..1 << 20).map(|i: u32| (i.wrapping_mul(2654435761) >> 13) as u8).collect();
    std::fs::write(mount.join("big"), block.repeat(40)).expect("written");
    std::fs::write(mount.join("small"), b"in front").expect("written");
    mount.unmount().expect("unmounted");
    // Behind all metadata, in the file's last piece.
    let disk = std::fs::read(&image.path).expect("read");
    let last = (0..disk.len()).step_by(4096).rfind(|at| disk[*at..].starts_with(&block[..4096]));
    let cut = last.expect("found") as u64 + 300_000;
    let file = std::fs::OpenOptions::new().write(true).open(&image.path).expect("open");
    file.set_len(cut).expect("cut");
    drop(file);

    let (code, _) = failing(&["check", &image.word()]);
    let said = text(&common::spinney(&["check", &image.word()]).stdout);
    let missing = 512 * MIB - cut;
    assert!(
        code == 1 && said.contains(&format!("ends {missing} bytes before the volume")),
        "{said}"
    );
    let line = said.lines().find(|line| line.contains("behind the end of the device"));
    let line = line.unwrap_or_else(|| panic!("no range: {said}"));
    let range = line.split(": ").last().expect("words").split(" lie").next().expect("words");
    assert!(range.ends_with(" on") && line.contains("inode 257"), "{line}");
    let out = image.dir.join("out");
    let (_, copied) = failing(&["cp", "-r", &image.at("/."), &out.display().to_string()]);
    assert!(copied.contains(&format!("/big: {range} are lost")), "{range}: {copied}");
    assert_eq!(std::fs::read(out.join("small")).expect("copied"), b"in front");
    let listed = common::spinney(&["ls", &image.at("/")]);
    let said = text(&listed.stderr);
    assert!(listed.status.success() && text(&listed.stdout).contains("big"), "{said}");
    assert!(said.contains("truncated: the volume has 536870912 bytes"), "{said}");
}

/// Who reads the mount's log finds the file by its path, in a subvolume, too.
#[test]
fn the_log_of_a_mount_names_the_file() {
    let (image, _) = with_lost_content("named");
    let mount = common::KernelMount::new(&image.path, "noatime").expect("mounted");
    let made = testkit::oracle::sh(
        "btrfs",
        &[
            "subvolume".as_ref(),
            "snapshot".as_ref(),
            mount.path().as_os_str(),
            mount.join("dir/snap").as_os_str(),
        ],
    );
    made.expect("snapshot");
    mount.unmount().expect("unmounted");
    let (point, log) = (image.dir.join("point"), image.dir.join("log"));
    std::fs::create_dir(&point).expect("directory");
    let option = format!("log={}", log.display());
    let words = ["mount", "-o", &option, &image.word(), &point.display().to_string()];
    assert!(common::spinney(&words).status.success());
    for file in ["dir/bad", "dir/snap/dir/bad"] {
        let read = std::fs::read(point.join(file)).expect_err("damaged");
        assert_eq!(read.raw_os_error(), Some(libc::EIO));
    }
    common::fine(&["umount", &point.display().to_string()]);
    let log = std::fs::read_to_string(&log).expect("log");
    for file in ["/dir/bad", "/dir/snap/dir/bad"] {
        let line = log.lines().find(|line| line.contains(&format!(" {file} (inode ")));
        assert!(line.is_some_and(|line| line.contains("unreadable")), "{file}: {log}");
    }
}

/// As people send them in with reports: all metadata, and of content only what it should be.
#[test]
fn a_metadata_dump_can_be_looked_at() {
    testkit::require!(kernel_btrfs);
    testkit::require!(fuse);
    if !common::sh("command -v btrfs-image").status.success() {
        testkit::skip!("no btrfs-image");
    }
    let image = Image::new("dump");
    let mount = common::KernelMount::new(&image.path, "noatime").expect("mounted");
    let (root, dir) = (mount.path().display(), image.dir.path().display());
    let filled = common::sh(&format!(
        "set -e; cd {root}; mkdir d; for i in $(seq 300); do echo $i > d/small$i; done
        ln -s target d/a-link; head -c 200000 /dev/urandom > d/big; setfattr -n user.a -v value d/big
        btrfs -q subvolume snapshot . snap; ls d > {dir}/names"
    ));
    assert!(filled.status.success(), "{}", text(&filled.stderr));
    mount.unmount().expect("unmounted");
    let made = common::sh(&format!(
        "set -e; cd {dir}; btrfs-image disk.img dump; btrfs-image -r dump restored; \
         btrfs-image -r -o dump old || true"
    ));
    assert!(made.status.success(), "{}", text(&made.stderr));
    let names = std::fs::read_to_string(image.dir.join("names")).expect("names");
    let restored = image.dir.join("restored");
    let at = |path: &str| common::at(&restored, path);
    let word = restored.display().to_string();
    let quiet = |words: &[&str]| {
        let output = common::spinney(words);
        let said = text(&output.stderr);
        assert!(output.status.success(), "{words:?}: {said}");
        (text(&output.stdout), said)
    };
    for path in ["/d", "/snap/d"] {
        let (listed, said) = quiet(&["ls", &at(path)]);
        assert!(listed == names && said.contains("metadata dump by btrfs-image"), "{said}");
    }
    assert!(quiet(&["info", &word]).0.contains("subvolumes   2"));
    assert!(quiet(&["check", &word]).0.contains("no damage found"));
    assert_eq!(quiet(&["xattr", "get", &at("/d/big"), "user.a"]).0.trim_end(), "value");
    let out = image.dir.join("out");
    let (code, said) = failing(&["cp", "-r", &at("/d"), &out.display().to_string()]);
    let lost = format!("{}: 200000 bytes from 0 on are lost", at("/d/big"));
    assert!(code == 1 && said.contains(&lost), "{said}");
    // The link's path is not in it, and does not end the copy.
    assert!(said.contains(&format!("{}: could not be read", at("/d/a-link"))), "{said}");
    assert_eq!(std::fs::read_dir(&out).expect("copied").count(), names.lines().count() - 1);
    let before = std::fs::read(&restored).expect("read");
    for verb in [&["mkdir", &at("/x")][..], &["touch", &at("/x")], &["rm", "-r", &at("/d")]] {
        let (code, said) = failing(verb);
        assert!(code == 1 && said.contains("read-only: a metadata dump"), "{verb:?}: {said}");
    }
    let point = image.dir.join("point");
    std::fs::create_dir(&point).expect("directory");
    for option in ["ro", "rw"] {
        quiet(&["mount", "-o", option, &word, &point.display().to_string()]);
        assert_eq!(std::fs::read_dir(point.join("snap/d")).expect("listed").count(), 302);
        let written = std::fs::write(point.join("x"), "x").expect_err("read-only");
        assert_eq!(written.raw_os_error(), Some(libc::EROFS));
        common::fine(&["umount", &point.display().to_string()]);
    }
    assert!(std::fs::read(&restored).expect("read") == before, "it was written");
    // The tool's own superblock, which neither `btrfs check` nor the kernel takes.
    if image.dir.join("old").exists() {
        let (_, said) = failing(&["ls", &common::at(&image.dir.join("old"), "/")]);
        assert!(said.contains("restored without -o it can be read"), "{said}");
        assert!(!said.contains("damaged volume: truncated"), "{said}");
    }
}

const DIR_ITEM: u8 = 84;
const DIR_INDEX: u8 = 96;

/// Makes the first leaf unreadable that holds nothing but names by `kind`, and tells how many.
fn lose_names(image: &std::path::Path, kind: u8) -> usize {
    let mut disk = std::fs::read(image).expect("read");
    let number = |block: &[u8], at: usize| {
        u64::from_le_bytes(block[at..at + 8].try_into().expect("eight bytes"))
    };
    let names = |block: &[u8]| {
        let items = u32::from_le_bytes(block[96..100].try_into().expect("four bytes")) as usize;
        let leaf = number(block, 88) == 5 && block[100] == 0 && (20..150).contains(&items);
        (leaf && (0..items).all(|item| block[101 + item * 25 + 8] == kind)).then_some(items)
    };
    let (first, count) =
        disk.chunks(4096).find_map(|b| Some((number(b, 48), names(b)?))).expect("a leaf of names");
    for block in disk.chunks_mut(4096) {
        if names(block).is_some() && number(block, 48) == first {
            block[3000] ^= 1;
        }
    }
    std::fs::write(image, disk).expect("written");
    count
}

/// A volume with 400 files in /dir.
fn with_names(scratch: &TempDir) -> (std::path::PathBuf, String) {
    let (from, image) = (scratch.join("from"), scratch.join("image"));
    std::fs::create_dir_all(from.join("dir")).expect("made");
    for n in 0..400 {
        std::fs::write(from.join(format!("dir/name-of-a-file-{n}")), format!("{n}")).expect("made");
    }
    let word = image.display().to_string();
    let root = from.display().to_string();
    fine(&["mkfs", "-q", "-s", "128M", "-n", "4096", "--rootdir", &root, &word]);
    (image, word)
}

/// A name that cannot be looked up is what the directory's order says.
#[test]
fn names_that_cannot_be_looked_up_are_listed_and_copied() {
    let scratch = TempDir::new("lost-hashes").expect("scratch");
    let (image, word) = with_names(&scratch);
    assert!(lose_names(&image, DIR_ITEM) > 20);
    let inside = format!("{word}:/dir");
    let path = |name: &str| scratch.join(name).display().to_string();
    for verb in [&["ls", "-l"][..], &["find"], &["du", "-a"]] {
        let told = fine(&[verb, &[inside.as_str()]].concat());
        assert_eq!(told.matches("name-of-a-file-").count(), 400, "{verb:?}");
    }
    fine(&["tar", "-c", "-f", &path("tar"), &inside]);
    let told = testkit::oracle::run("tar", &["-tf", &path("tar")]).stdout;
    assert_eq!(told.matches("name-of-a-file-").count(), 400);
    fine(&["mkfs", "-q", "-s", "128M", &path("other")]);
    std::fs::create_dir_all(scratch.join("there/dir")).expect("made");
    let into = format!("{}:/copy", path("other"));
    for target in [&path("new"), &path("there"), &into] {
        fine(&["cp", "-r", &inside, target]);
    }
    assert_eq!(fine(&["ls", &into]).lines().count(), 400);
    for dir in ["new", "there/dir"] {
        for n in 0..400 {
            let copied =
                std::fs::read_to_string(scratch.join(&format!("{dir}/name-of-a-file-{n}")));
            assert_eq!(copied.expect("copied"), n.to_string(), "{dir}");
        }
    }
}

/// Where a leaf with names of a directory is lost, all verbs go on with the other names, and say so.
#[test]
fn a_directory_that_lost_names_gives_the_others() {
    let scratch = TempDir::new("lost-names").expect("scratch");
    let (image, word) = with_names(&scratch);
    let left = 400 - lose_names(&image, DIR_INDEX);
    let inside = format!("{word}:/dir");
    for verb in [&["ls"][..], &["find"], &["du", "-a"], &["tar", "-c", "-f", "TAR"]] {
        let tar = scratch.join("tar");
        let mut line: Vec<_> =
            verb.iter().map(|w| w.replace("TAR", &tar.display().to_string())).collect();
        line.push(inside.clone());
        let output = common::spinney(&line);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{line:?}: {said}");
        assert!(said.contains(&format!("{inside}: ")), "{line:?} names the directory: {said}");
        let told = match verb[0] {
            "tar" => testkit::oracle::run("tar", &["-tf", &tar.display().to_string()]).stdout,
            _ => text(&output.stdout),
        };
        assert_eq!(told.matches("name-of-a-file-").count(), left, "{line:?}: {said}");
    }
    for verb in [&["chown", "-R", "7:8"][..], &["chmod", "-R", "711"]] {
        let (code, said) = failing(&[verb, &[inside.as_str()]].concat());
        assert!(code == 1 && said.contains(&format!("{inside}: ")), "{verb:?}: {said}");
    }
    let listed = text(&common::spinney(&["ls", "-ln", &inside]).stdout);
    let changed = listed.lines().filter(|l| l.starts_with("-rwx--x--x") && l.contains(" 7 "));
    assert_eq!(changed.count(), left, "what can be changed is: {listed}");
    std::fs::create_dir_all(scratch.join("there/dir/name-of-a-file-1")).expect("made");
    std::fs::remove_dir(scratch.join("there/dir/name-of-a-file-1")).expect("removed");
    std::fs::write(scratch.join("there/dir/name-of-a-file-1"), "old").expect("made");
    let other = scratch.join("other");
    fine(&["mkfs", "-q", "-s", "128M", &other.display().to_string()]);
    let targets =
        [scratch.join("new").display().to_string(), scratch.join("there").display().to_string()];
    for target in &targets {
        let (code, said) = failing(&["cp", "-r", &inside, target]);
        assert_eq!(code, 1, "{said}");
        assert!(said.contains(&format!("{inside}: could not be read: ")), "{said}");
    }
    let there = |dir: &str| std::fs::read_dir(dir).expect("copied").count();
    assert_eq!(there(&targets[0]), left);
    assert!([left, left + 1].contains(&there(&format!("{}/dir", targets[1]))));
    let into = format!("{}:/copy", other.display());
    let (code, said) = failing(&["cp", "-r", &inside, &into]);
    assert_eq!(code, 1, "{said}");
    assert_eq!(fine(&["ls", &into]).lines().count(), left);
}
