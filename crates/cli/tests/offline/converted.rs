//! Volumes that `btrfs-convert` made of an ext4 file system in its place: block groups laid around what was
//! there, symbolic links with a NUL behind them, a data relocation tree with a generation in its key. They
//! are checked, read, written, balanced and shrunk, sent and received, and turned back.

use crate::common;
use common::alike::{assert_seen_alike, assert_sound, judge};
use common::mount::{Mount, lacks_fuse};
use common::streams::{assert_same, ready, shell};
use common::{Image, KernelMount, MIB, assert_clean, fine, mkfs_btrfs, sh};
use std::path::PathBuf;
use testkit::compare::TreeSnapshot;
use testkit::oracle::TempDir;
use testkit::require;

/// Those that people have.
const KINDS: [&[&str]; 2] = [&[], &["-N", "4096", "-d", "-n", "--csum", "xxhash"]];

/// One of each kind of file, in an ext4 image.
const TREE: &str = "mkdir -p tree/d/e; cd tree
for n in $(seq 300); do head -c $((n * 97)) /dev/urandom > d/file-$n; done
head -c 9000000 /dev/urandom > large; ln large d/linked; : > empty; mkfifo fifo
truncate -s 40M sparse; echo in the middle | dd of=sparse bs=1 seek=20000000 conv=notrunc 2>/dev/null
ln -s large link; ln -s $(printf 'a%.0s' $(seq 1000)) d/long; ln -s ../../large d/e/up
setfattr -n user.name -v value large; chmod 4711 d/file-7; chown 12:34 d/file-8; cd ..
mkfs.ext4 -q -b 4096 -d tree ext4.img 600M";

/// Of Debian's btrfs-progs and e2fsprogs.
const TOOLS: &str = "command -v btrfs-convert && command -v mkfs.ext4 && command -v e2fsck";

struct Converted {
    image: Image,
    before: PathBuf,
}

fn converted(name: &str, options: &[&str]) -> Converted {
    let dir = TempDir::new(name).expect("scratch directory");
    let (path, before) = (dir.join("disk.img"), dir.join("ext4.img"));
    shell(&format!(
        "cd {}; {TREE}; cp --sparse=always ext4.img disk.img
        btrfs-convert --no-progress {} disk.img",
        dir.path().display(),
        options.join(" ")
    ));
    assert_clean(&path);
    Converted { image: Image { dir, path }, before }
}

impl Converted {
    /// Works on a mount of ours; answers what is there then.
    fn with_mount(&self, options: &str, work: &str) -> TreeSnapshot {
        let mount = Mount::new(&self.image, options);
        shell(&format!("cd {}; {work}", mount.word()));
        let tree = TreeSnapshot::of_dir(&mount.join("")).unwrap();
        mount.umount();
        tree
    }

    /// The file system of before is there again, whole.
    fn turn_back(&self) {
        let back = self.image.path.with_file_name("back.img");
        shell(&format!(
            "cp --sparse=always {} {back}; btrfs-convert -r {back} >/dev/null
            e2fsck -fn {back} >/dev/null 2>&1; rm {back}",
            self.image.word(),
            back = back.display()
        ));
    }
}

#[test]
fn a_converted_volume_is_read_written_and_turned_back() {
    if !ready("converted volumes") || lacks_fuse("fuse") {
        return;
    }
    require!(sh(TOOLS).status.success(), "no btrfs-convert, mkfs.ext4 or e2fsck");
    for options in KINDS {
        let volume = converted("converted", options);
        assert_sound(&volume.image, "as it was");
        let same = format!("cmp ext2_saved/image {}", volume.before.display());
        let seen = volume.with_mount("ro", &same);
        assert_seen_alike(&volume.image, &seen, "as it was");
        let work = "rm d/file-1*; cp large new; echo more >> large; ln -s here d/new; mv d/e e
            truncate -s 5000000 sparse; sync -f .";
        let seen = volume.with_mount("", &format!("{work}; {same}"));
        judge(&volume.image, &seen, "written");
        volume.turn_back();
        let rest = "for n in 2 3 4; do head -c 3000000 /dev/urandom > after-$n; done";
        fine(&["subvolume", "delete", &volume.image.at("/ext2_saved")]);
        fine(&["balance", "start", "--full-balance", &volume.image.word()]);
        let seen = volume.with_mount("", rest);
        judge(&volume.image, &seen, "without what was there before");
        fine(&["filesystem", "resize", "400M", &volume.image.word()]);
        judge(&volume.image, &seen, "smaller");
    }
}

#[test]
fn a_converted_volume_is_sent_and_received() {
    if !ready("streams of converted volumes") {
        return;
    }
    require!(sh(TOOLS).status.success(), "no btrfs-convert, mkfs.ext4 or e2fsck");
    let volume = converted("converted-send", &[]);
    let streams = volume.image.dir.path().display().to_string();
    let from = KernelMount::new(&volume.image.path, "noatime").unwrap();
    shell(&format!(
        "btrfs -q subvolume delete {top}/ext2_saved; btrfs -q subvolume snapshot -r {top} {top}/snap
        btrfs -q send -f {streams}/theirs {top}/snap",
        top = from.path().display()
    ));
    from.unmount().unwrap();
    fine(&["send", "-q", "-f", &format!("{streams}/ours"), &volume.image.at("/snap")]);
    let from = KernelMount::new(&volume.image.path, "ro").unwrap();
    for stream in ["theirs", "ours"].map(|name| format!("{streams}/{name}")) {
        let [ours, theirs] =
            ["by-us", "by-them"].map(|name| volume.image.path.with_file_name(name));
        for target in [&ours, &theirs] {
            mkfs_btrfs(target, 512 * MIB, &["-f"]).unwrap();
        }
        let into = format!("{}:/", ours.display());
        assert_eq!(fine(&["receive", "-q", "-f", &stream, &into]), "");
        let mounts = [(&ours, "ro"), (&theirs, "noatime")]
            .map(|(target, options)| KernelMount::new(target, options).unwrap());
        shell(&format!("btrfs -q receive -f {stream} {}", mounts[1].path().display()));
        for mount in mounts {
            assert_same(&from.join("snap"), &mount.join("snap"), &stream);
            mount.unmount().unwrap();
        }
        [&ours, &theirs].iter().for_each(|image| assert_clean(image));
    }
    from.unmount().unwrap();
}
