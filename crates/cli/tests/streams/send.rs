//! `spinney send`: `btrfs receive` and `spinney receive` make of our streams what the kernel's volume
//! had, whole and in chains of differences between random states.

use crate::common;
use common::mount::{Mount, lacks_fuse};
use common::streams::{Chain, Sender, assert_same, chain, chains, history, ready, shell};
use common::{Image, KernelMount, OpenToAll, as_ordinary_user, failing, fine};
use std::path::Path;
use testkit::oracle::TempDir;

const PLAIN: Chain = Chain {
    name: "send-chain",
    rounds: 8,
    mkfs: &["-n", "4096"],
    mount: "noatime",
    sender: Sender::Ours(&[]),
    into_mount: None,
    confined: false,
};

#[test]
fn chains_of_random_changes_are_received() {
    chains(PLAIN, 3);
}

#[test]
fn chains_in_protocol_2_with_compressed_content() {
    let (name, mount) = ("send-2", "noatime,compress-force=zstd");
    let sender = Sender::Ours(&["--proto", "2", "--compressed-data"]);
    let kind = Chain { name, mount, sender, rounds: 6, ..PLAIN };
    chains(kind, 3);
    // Has a file that goes on behind compressed content among the structures.
    if ready(name) {
        chain(kind, 16);
    }
}

#[test]
fn chains_of_a_volume_with_items_for_holes() {
    let (name, mkfs) = ("send-holes", &["-O", "^no-holes"]);
    chains(Chain { name, mkfs, mount: "noatime,compress=lzo", rounds: 4, ..PLAIN }, 2);
}

#[test]
fn what_cannot_be_sent_is_refused() {
    if !ready("what_cannot_be_sent_is_refused") {
        return;
    }
    let image = Image::new("send-refused");
    let [v, s, other] = ["/v", "/s", "/other"].map(|path| image.at(path));
    fine(&["subvolume", "create", &v]);
    fine(&["subvolume", "create", &other]);
    fine(&["subvolume", "snapshot", "-r", &v, &s]);
    fine(&["property", "set", &other, "ro", "true"]);
    let refused = |words: &[&str], why: &str| {
        let (code, said) = failing(&[&["send", "-f", "/dev/null"], words].concat());
        assert!(code == 1 && said.contains(why), "{words:?}: {code}, {said}");
    };
    refused(&[&v], "not read-only");
    refused(&["-p", &v, &s], "not read-only");
    refused(&["-c", &v, &s], "not read-only");
    refused(&["-c", &other, &s], "not related");
    refused(&[&image.at("/nothing")], "no such file");
    refused(&["--proto", "1", "--compressed-data", &s], "protocol 2");
    // Without a word of it that is what is sent.
    let streams =
        [&["--compressed-data"][..], &["--proto", "2", "--compressed-data"]].map(|words| {
            let file = image.dir.join("stream").display().to_string();
            fine(&[&["send", "-q", "-f", &file], words, &[&s]].concat());
            std::fs::read(file).unwrap()
        });
    assert!(streams[0] == streams[1] && streams[0][13] == 2, "{:?}", &streams[0][..17]);
    refused(&[&image.at("/")], "not read-only");
    fine(&["property", "set", &image.at("/"), "ro", "true"]);
    refused(&["--subvolid", "5", &image.at("/")], "no name");
    let second = Image::new("send-refused-2");
    refused(&["-p", &second.at("/"), &s], "another volume");
    assert_eq!(failing(&["send"]).0, 2);
    assert_eq!(failing(&["send", "--proto", "7", &s]).0, 2);
}

/// What one inode after the other cannot do: names that go round in circles, directories that
/// go into what lay in them, and numbers and names that change hands.
#[test]
fn names_that_change_hands() {
    if !ready("names_that_change_hands") {
        return;
    }
    let (source, target) = (Image::new("send-names"), Image::new("send-names-to"));
    let (a, b) = (&source.path.display(), &target.path.display());
    shell(&format!(
        "mkdir {a}.m {b}.m; mount -o loop,noatime {a} {a}.m; cd {a}.m
        btrfs -q subvolume create v; cd v
        mkdir -p x/y/z p/q r/s/t gone/deep/deeper; echo x > x/f; echo p > p/f; echo 1 > one
        echo 2 > two; echo 3 > three; ln two p/q/hard; mkdir file-to-be; echo f > dir-to-be
        for i in $(seq 40); do mkdir -p chain/$i; echo $i > chain/$i/f; done
        echo a > o257-7-0; setfacl -d -m u:7:rwx,g::rx r; setfacl -m u:8:rw one
        cd ..; btrfs -q subvolume snapshot -r v s0; cd v
        # Circles of names.
        mv one t; mv two one; mv three two; mv t three; mv x t; mv p x; mv t p
        # A parent below its child.
        mv r/s s; mv r s/t/r
        # A directory in the place of a file, and the other way round.
        rmdir file-to-be; mv dir-to-be file-to-be; mkdir dir-to-be; mv p/y dir-to-be/
        # All of a chain one further, from the end.
        for i in $(seq 40 -1 1); do mv chain/$i chain/$((i+1)); done
        for i in $(seq 2 41); do mkdir chain/$i/in; mv chain/$i/f chain/$i/in/$((i-1)); done
        # Out of a directory that goes.
        mv gone/deep/deeper x/; rm -r gone; echo new > gone; ln gone x/deeper/link
        # Inherits nothing of what it lies in.
        touch s/t/r/none; mkdir s/t/r/no-directory; mkdir s/t/r/no-directory/below
        rm o257-7-0; mkdir o257-7-0
        cd ..; btrfs -q subvolume snapshot -r v s1; setfacl -R -b v/s; chattr +C v/x
        for i in $(seq 41); do rm -rf v/chain/$i/in; done; mv v/s v/x/deeper/
        btrfs -q subvolume snapshot -r v s2; cd /; umount {a}.m"
    ));
    let streams = TempDir::new("send-names").unwrap();
    let file = streams.join("all.stream").display().to_string();
    let [s0, s1, s2] = ["/s0", "/s1", "/s2"].map(|path| source.at(path));
    fine(&["send", "-q", "-e", "-f", &file, &s0]);
    shell(&format!("mount -o loop,noatime {b} {b}.m; btrfs receive -q -f {file} {b}.m"));
    // One stream for two subvolumes, of which the first is what the second is taken from.
    fine(&["send", "-q", "-c", &s0, "-f", &file, &s1, &s2]);
    shell(&format!("btrfs receive -q -f {file} {b}.m; mount -o loop,ro {a} {a}.m"));
    let top = |image: &Image, name: &str| format!("{}.m/{name}", image.path.display());
    for name in ["s0", "s1", "s2"] {
        let (left, right) = (top(&source, name), top(&target, name));
        assert_same(Path::new(&left), Path::new(&right), name);
    }
    // Backwards as well.
    fine(&["send", "-q", "-p", &s2, "-f", &file, &s0]);
    shell(&format!(
        "cd {b}.m; mkdir back; btrfs receive -q -f {file} back; cd /; umount {a}.m {b}.m
        mount -o loop,ro {b} {b}.m"
    ));
    let (left, right) = (top(&target, "s0"), top(&target, "back/s0"));
    assert_same(Path::new(&left), Path::new(&right), "back");
    shell(&format!("umount {b}.m; rmdir {a}.m {b}.m"));
    testkit::oracle::assert_clean(&target.path);
}

/// The same streams, byte for byte, from a mount and from the image.
#[test]
fn streams_from_a_mount() {
    if !ready("streams_from_a_mount") || lacks_fuse("fuse") {
        return;
    }
    let image = Image::with("send-mount", &["-n", "16384"]);
    history(&image, "noatime,compress-force=zstd", 5, 3, 400);
    let dir = TempDir::new("send-mount-streams").unwrap();
    let make = |from: &dyn Fn(&str) -> String, name: &str| {
        let file = |n: &str| dir.join(&format!("{name}-{n}")).display().to_string();
        let [s0, s1, s2] = ["s0", "s1", "s2"].map(from);
        fine(&["send", "-q", "-f", &file("whole"), &s0]);
        fine(&["send", "-q", "-p", &s0, "-f", &file("difference"), &s2]);
        let packed = ["--proto", "2", "--compressed-data", "-f", &file("packed")];
        fine(&[&["send", "-q", "-c", &s0][..], &packed, &[&s1, &s2]].concat());
    };
    make(&|name| image.at(&format!("/{name}")), "image");
    let mount = Mount::new(&image, "");
    make(&|name| mount.join(name).display().to_string(), "mount");
    let (code, said) =
        failing(&["send", "-f", "/dev/null", &mount.join("v").display().to_string()]);
    assert!(code == 1 && said.contains("not read-only"), "{said}");
    // What the server has in memory since it was made, as well.
    let [new, kept] = ["v", "kept"].map(|name| mount.join(name).display().to_string());
    shell(&format!("cp /bin/sh {new}/new; echo more >> {new}/new"));
    fine(&["subvolume", "snapshot", "-r", &new, &kept]);
    let s2 = mount.join("s2").display().to_string();
    let [file, again] = ["mount-new", "image-new"].map(|n| dir.join(n).display().to_string());
    fine(&["send", "-q", "-p", &s2, "-f", &file, &kept]);
    mount.umount();
    fine(&["send", "-q", "-p", &image.at("/s2"), "-f", &again, &image.at("/kept")]);
    for name in ["whole", "difference", "packed", "new"] {
        let [one, other] = ["image", "mount"]
            .map(|from| std::fs::read(dir.join(&format!("{from}-{name}"))).unwrap());
        assert!(one.len() > 1000 && one == other, "{name}: {} {}", one.len(), other.len());
    }
}

/// What a file had is there until there is something to be written, and no image that is read is emptied.
#[test]
fn a_file_is_emptied_by_a_stream_alone() {
    let image = Image::new("send-file");
    let [v, s] = ["/v", "/s"].map(|path| image.at(path));
    fine(&["subvolume", "create", &v]);
    fine(&["subvolume", "snapshot", "-r", &v, &s]);
    let dir = TempDir::new("send-file-streams").unwrap();
    let [file, other] = ["backup", "other"].map(|name| dir.join(name).display().to_string());
    fine(&["send", "-q", "-f", &file, &s]);
    let mode =
        std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&file).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600);
    let before = std::fs::read(&file).unwrap();
    let gone = image.at("/gone");
    for wrong in [&["-p", &gone, &s][..], &[&gone], &["-p", &v, &s], &[&v]] {
        failing(&[&["send", "-q", "-f", &file], wrong].concat());
        assert_eq!(std::fs::read(&file).unwrap(), before, "{wrong:?}");
        failing(&[&["send", "-q", "-f", &other], wrong].concat());
        assert!(!Path::new(&other).exists(), "{wrong:?}");
    }
    fine(&["send", "-q", "-f", &file, &s]);
    assert_eq!(std::fs::read(&file).unwrap(), before);
    let bytes = std::fs::metadata(&image.path).unwrap().len();
    let itself = image.path.display().to_string();
    for words in [&["send", "-f", &itself, &s][..], &["tar", "-c", "-f", &itself, &image.at("/")]] {
        let (code, said) = failing(words);
        assert!(code == 1 && said.contains("in use"), "{said}");
    }
    assert_eq!(std::fs::metadata(&image.path).unwrap().len(), bytes);
    fine(&["send", "-q", "-f", &file, &s]);
    if lacks_fuse("fuse") {
        return;
    }
    let mount = Mount::new(&image, "");
    let (_, said) = failing(&["send", "-f", &itself, &mount.join("s").display().to_string()]);
    assert!(said.contains("in use"), "{said}");
    mount.umount();
    fine(&["send", "-q", "-f", &file, &s]);
}

/// The server looks at who mounted, the kernel at each file that is opened, and at what lies over it.
#[test]
fn what_the_caller_may_not_open_is_sent_all_the_same() {
    if !ready("what_the_caller_may_not_open_is_sent_all_the_same") || lacks_fuse("fuse") {
        return;
    }
    if let Some(why) = common::no_ordinary_users() {
        testkit::skip!("{why}");
    }
    let _open = OpenToAll::new();
    let image = Image::new("send-closed");
    let kernels = KernelMount::new(&image.path, "noatime").unwrap();
    shell(&format!(
        "cd {}; btrfs -q subvolume create v; mkdir v/dir v/closed; for i in file dir/file closed/file
         do head -c 200000 /dev/urandom > v/$i; done; chmod 600 v/file; chmod 700 v/closed
         btrfs -q subvolume snapshot -r v s",
        kernels.path().display()
    ));
    kernels.unmount().unwrap();
    let [by_image, over] = ["by-image", "over"].map(|n| image.dir.join(n).display().to_string());
    fine(&["send", "-q", "-f", &by_image, &image.at("/s")]);
    as_ordinary_user(
        &image,
        "./spinney mount --log log disk.img mnt; ./spinney send -q -f by-mount mnt/s
         ./spinney umount mnt; cmp by-image by-mount",
    );
    let mount = Mount::new(&image, "");
    let covered = mount.join("s/dir").display().to_string();
    shell(&format!("mount -t tmpfs tmpfs {covered}"));
    fine(&["send", "-q", "-f", &over, &mount.join("s").display().to_string()]);
    shell(&format!("umount {covered}; cmp {by_image} {over}"));
    mount.umount();
}
