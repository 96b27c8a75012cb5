//! `spinney balance` and `spinney filesystem resize`, in images and in mounts.
//!
//! Judge: the kernel's btrfs, its scrub, `btrfs check` and `btrfs balance`; content is that of before.

use crate::common;
use common::mount::{Mount, lacks_fuse};
use common::{
    Image, KernelMount, MIB, SCRUB, assert_clean, copies, failing, fine, sh, spinney, text,
    told_behind,
};
use std::os::unix::fs::FileExt;
use std::path::Path;
use testkit::require;

fn shell(script: &str) -> String {
    let done = sh(script);
    assert!(done.status.success(), "{script}: {}{}", text(&done.stderr), text(&done.stdout));
    text(&done.stdout)
}

/// Content, reflinks and snapshots, by the kernel; some of it deleted again.
fn filled(name: &str, options: &[&str]) -> Image {
    let image = Image::with(name, options);
    let mount = KernelMount::new(&image.path, "noatime").unwrap();
    shell(&format!(
        "cd {} && btrfs -q subvolume create a && for i in $(seq 60); do head -c 1500000 /dev/urandom >a/f$i; \
         echo $i >a/small$i; done && cp --reflink=always a/f1 a/clone && fallocate -l 3M a/pre && sync -f . && \
         btrfs -q subvolume snapshot a s1 && btrfs -q subvolume snapshot -r a s2 && \
         head -c 100000 /dev/urandom >s1/f3 && rm a/f2? && sync -f .",
        mount.path().display()
    ));
    mount.unmount().unwrap();
    image
}

/// What the kernel reads of all files, and that it finds nothing wrong.
fn content(image: &Path) -> String {
    assert_clean(image);
    let mount = KernelMount::new(image, "noatime").unwrap();
    let place = mount.path().display().to_string();
    let sums = shell(&format!("cd {place} && find . -type f | sort | xargs sha256sum"));
    let scrub = shell(&format!("{SCRUB} start -B {place}"));
    assert!(scrub.contains("no errors found"), "{scrub}");
    mount.unmount().unwrap();
    sums
}

fn profiles(image: &Path) -> Vec<String> {
    let mount = KernelMount::new(image, "ro").unwrap();
    let df = shell(&format!("btrfs filesystem df {}", mount.path().display()));
    mount.unmount().unwrap();
    let lines = df.lines().filter(|line| !line.starts_with("GlobalReserve"));
    lines.map(|line| line.split(':').next().unwrap_or_default().to_owned()).collect()
}

/// The numbers of `Done, had to relocate A out of B chunks`.
fn done(said: &str) -> (u64, u64) {
    let words: Vec<&str> = said.split_whitespace().collect();
    assert_eq!(words[..4], ["Done,", "had", "to", "relocate"], "{said}");
    (words[4].parse().unwrap(), words[7].parse().unwrap())
}

#[test]
fn an_image_is_balanced_and_converted() {
    require!(kernel_btrfs);
    let image = filled("balance-image", &[]);
    let (word, before) = (image.word(), content(&image.path));
    assert_eq!(fine(&["balance", "status", &word]), format!("No balance found on '{word}'\n"));
    let (moved, all) = done(&fine(&["balance", "start", "--full-balance", &word]));
    assert!(moved == all && all >= 3, "{moved} of {all}");
    assert_eq!(content(&image.path), before);
    // Filters as the kernel counts them.
    assert_eq!(done(&fine(&["balance", "start", "-dlimit=1", &word])).0, 1);
    assert_eq!(done(&fine(&["balance", "start", "-dvrange=0..1", &word])).0, 0);
    assert_eq!(done(&fine(&["balance", "start", "-dusage=0", &word])).0, 0);
    let told = fine(&["balance", "start", "-v", "-dusage=100,limit=1", &word]);
    assert!(told.contains("usage=100, limit=1") && told.contains("extents moved"), "{told}");
    for (filter, profile) in [("-dconvert=dup", "Data, DUP"), ("-dconvert=single", "Data, single")]
    {
        fine(&["balance", "start", filter, &word]);
        assert!(profiles(&image.path).contains(&profile.to_owned()), "{filter}");
        assert_eq!(content(&image.path), before, "{filter}");
    }
    let (code, why) = failing(&["balance", "start", "-mconvert=single", &word]);
    assert!(code == 1 && why.contains("Invalid argument"), "{why}");
    fine(&["balance", "start", "-f", "-mconvert=single", &word]);
    assert_eq!(profiles(&image.path), ["Data, single", "System, single", "Metadata, single"]);
    assert_eq!(content(&image.path), before);
    fine(&["balance", "start", "-mconvert=dup,soft", &word]);
    assert_eq!(profiles(&image.path), ["Data, single", "System, DUP", "Metadata, DUP"]);
    assert_eq!(content(&image.path), before);
    assert_eq!(failing(&["balance", "pause", &word]).0, 2);
    assert_eq!(failing(&["balance", "resume", &word]).0, 2);
    assert_eq!(failing(&["balance", "start", "-s", &word]).0, 1);
}

/// A volume whose balance of data the kernel has paused, and its content; `None`: it was too fast.
fn paused_by_the_kernel(name: &str) -> Option<(Image, String)> {
    let image = filled(name, &[]);
    let before = content(&image.path);
    let mount = KernelMount::new(&image.path, "noatime").unwrap();
    let place = mount.path().display().to_string();
    shell(&format!(
        "btrfs balance start --bg -d {place}; for i in $(seq 100); do btrfs balance pause {place} && break; done"
    ));
    let status = sh(&format!("btrfs balance status {place}"));
    let paused = text(&status.stdout).contains("is paused");
    mount.unmount().unwrap();
    if !paused {
        println!("SKIPPED: the kernel was done before it could be paused");
    }
    paused.then_some((image, before))
}

#[test]
fn a_balance_that_was_interrupted_goes_on_here_and_there() {
    require!(kernel_btrfs);
    let Some((image, before)) = paused_by_the_kernel("balance-paused") else { return };
    let word = image.word();
    let status = spinney(&["balance", "status", "-v", &word]);
    assert_eq!(status.status.code(), Some(1), "{}", text(&status.stderr));
    assert!(text(&status.stdout).contains("is paused"), "{}", text(&status.stdout));
    let status = text(&spinney(&["balance", "status", "--json", &word]).stdout);
    let parts = ["\"state\":\"paused\"", "\"data\":\"balancing\"", "\"considered\":"];
    assert!(parts.iter().all(|part| status.contains(part)), "{status}");
    let copy = image.dir.join("copy.img");
    std::fs::copy(&image.path, &copy).unwrap();
    done(&fine(&["balance", "resume", &word]));
    assert_eq!(content(&image.path), before);
    assert_eq!(fine(&["balance", "status", &word]), format!("No balance found on '{word}'\n"));
    let word = copy.display().to_string();
    fine(&["balance", "cancel", &word]);
    assert_eq!(failing(&["balance", "cancel", &word]).0, 2);
    assert_eq!(content(&copy), before);
}

#[test]
fn a_mount_leaves_a_paused_balance_alone_where_it_is_told_to() {
    require!(kernel_btrfs);
    if lacks_fuse("classic") {
        return;
    }
    let Some((image, before)) = paused_by_the_kernel("balance-skipped") else { return };
    let mount = Mount::new(&image, "noatime,skip_balance");
    let place = mount.point.display().to_string();
    let status = spinney(&["balance", "status", &place]);
    assert!(text(&status.stdout).contains("is paused"), "{}", text(&status.stdout));
    shell(&format!("echo new >{place}/a/new && sync -f {place}/a/new && rm {place}/a/new"));
    mount.umount();
    // A mount by the kernel would go on with it.
    assert_clean(&image.path);
    let status = text(&spinney(&["balance", "status", &image.word()]).stdout);
    assert!(status.contains("is paused"), "{status}");
    // Without the word the mount goes on with it by itself.
    let mount = Mount::new(&image, "noatime");
    let place = mount.point.display().to_string();
    let is_over =
        || text(&spinney(&["balance", "status", &place]).stdout).starts_with("No balance");
    let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while !is_over() {
        assert!(std::time::Instant::now() < end, "the balance goes on");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    mount.umount();
    assert_eq!(content(&image.path), before);
}

#[test]
fn an_image_is_resized_with_its_file() {
    require!(kernel_btrfs);
    let image = filled("resize-image", &[]);
    let (word, before) = (image.word(), content(&image.path));
    let len = || std::fs::metadata(&image.path).unwrap().len() / MIB;
    let told = fine(&["filesystem", "resize", "-200M", &word]);
    assert_eq!(told, format!("Resize device id 1 ({word}) from 512.00MiB to 312.00MiB\n"));
    assert_eq!(len(), 312);
    assert_eq!(content(&image.path), before);
    let told = fine(&["filesystem", "resize", "max", &word]);
    assert_eq!(told, format!("Resize device id 1 ({word}) from 312.00MiB to max\n"));
    fine(&["filesystem", "resize", "1:+500M", &word]);
    assert_eq!(len(), 812);
    assert_eq!(content(&image.path), before);
    fine(&["filesystem", "resize", "400M", &word]);
    assert_eq!((len(), content(&image.path)), (400, before));
    assert_eq!(failing(&["filesystem", "resize", "100M", &word]).0, 1);
    assert_eq!(failing(&["filesystem", "resize", "2:max", &word]).0, 1);
    assert_eq!(len(), 400);
}

/// Length, and when it was written: nobody did if that is the same.
fn state(image: &Image) -> (u64, std::time::SystemTime) {
    let meta = std::fs::metadata(&image.path).unwrap();
    (meta.len() / MIB, meta.modified().unwrap())
}

/// With zeros for what it has lost it would count as whole.
#[test]
fn a_file_that_has_lost_its_end_is_not_resized() {
    let image = Image::new("resize-cut");
    std::fs::File::options().write(true).open(&image.path).unwrap().set_len(260 * MIB).unwrap();
    let before = state(&image);
    for size in ["300M", "600M", "+100M", "1:+1", "-100M", "max"] {
        let (code, said) = failing(&["filesystem", "resize", size, &image.word()]);
        assert!(code == 1 && said.contains("has lost its end"), "{size}: {said}");
        assert!(said.contains("272629760") && said.contains("536870912"), "{size}: {said}");
        assert!(said.contains(&image.word()) && said.contains("spinney cp -r"), "{size}: {said}");
        assert_eq!(state(&image), before, "{size}");
    }
}

/// Its extent tree cannot be read, so that it can be read alone.
#[test]
fn a_file_whose_volume_does_not_grow_is_as_long_as_before() {
    let image = Image::new("resize-back");
    let before = state(&image);
    assert_eq!(failing(&["filesystem", "resize", "2:600M", &image.word()]).0, 1);
    assert_eq!(state(&image), before);
    let dump = sh(&format!("btrfs inspect-internal dump-tree -t extent {}", image.word()));
    let root = told_behind(text(&dump.stdout).as_str(), "leaf ")[0];
    let file = std::fs::File::options().write(true).open(&image.path).unwrap();
    for at in copies(&image.path, root) {
        file.write_all_at(&[0x5a; 100], at + 1000).unwrap();
    }
    for size in ["600M", "+100M"] {
        let (code, said) = failing(&["filesystem", "resize", size, &image.word()]);
        assert!(code == 1 && said.contains("fails its checksum"), "{size}: {said}");
        assert_eq!(state(&image).0, 512, "{size}");
    }
}

#[test]
fn a_mount_is_balanced_and_resized() {
    require!(kernel_btrfs);
    if lacks_fuse("classic") {
        return;
    }
    let image = filled("balance-mount", &[]);
    let before = content(&image.path);
    let mount = Mount::new(&image, "noatime");
    let place = mount.point.display().to_string();
    assert!(done(&fine(&["balance", "start", "-d", &place])).0 > 0);
    assert!(done(&fine(&["balance", "start", "-m", &place])).0 > 0);
    fine(&["balance", "start", "--bg", "-d", &place]);
    let status = spinney(&["balance", "status", &place]);
    assert!([Some(0), Some(1)].contains(&status.status.code()));
    let _may_be_done = spinney(&["balance", "cancel", &place]);
    assert_eq!(fine(&["balance", "status", &place]), format!("No balance found on '{place}'\n"));
    fine(&["filesystem", "resize", "-100M", &place]);
    assert_eq!(failing(&["filesystem", "resize", "+200M", &place]).0, 1);
    fine(&["filesystem", "resize", "max", &place]);
    mount.umount();
    assert_eq!(content(&image.path), before);
}

struct Loop(String);

impl Drop for Loop {
    fn drop(&mut self) {
        sh(&format!("losetup -d {}", self.0));
    }
}

/// A volume has no more of its device than it had when it was mounted, until somebody asks for it.
#[test]
fn a_mount_takes_what_its_device_has_become() {
    if lacks_fuse("classic") {
        return;
    }
    let image = Image::new("resize-grown");
    let lengthen = |len: u64| {
        std::fs::File::options().write(true).open(&image.path).unwrap().set_len(len).unwrap()
    };
    let mount = Mount::new(&image, "noatime");
    let place = mount.point.display().to_string();
    let size = || shell(&format!("stat -f -c %b {place}")).trim().parse::<u64>().unwrap() / 256;
    assert_eq!(size(), 512);
    lengthen(700 * MIB);
    assert_eq!(failing(&["filesystem", "resize", "+200M", &place]).0, 1);
    fine(&["filesystem", "resize", "max", &place]);
    assert_eq!(size(), 700);
    mount.umount();
    assert_clean(&image.path);
    let device = Loop(shell(&format!("losetup -f --show {}", image.word())).trim().to_owned());
    fine(&["mount", &device.0, &place]);
    lengthen(900 * MIB);
    shell(&format!("losetup -c {}", device.0));
    fine(&["filesystem", "resize", "+100M", &place]);
    assert_eq!(size(), 800);
    fine(&["filesystem", "resize", "max", &place]);
    assert_eq!(size(), 900);
    fine(&["umount", &place]);
    drop(device);
    assert_clean(&image.path);
}

/// One chunk's content has no good copy: that one stays, by name, and the others move.
#[test]
fn what_cannot_be_moved_is_named() {
    require!(kernel_btrfs);
    let image = filled("balance-bad", &["-m", "dup"]);
    let bytes = std::fs::read(&image.path).unwrap();
    let mount = KernelMount::new(&image.path, "ro").unwrap();
    let wanted = std::fs::read(mount.join("a/f1")).unwrap();
    mount.unmount().unwrap();
    let at = bytes.chunks(4096).position(|block| block == &wanted[..4096]).unwrap();
    let file = std::fs::File::options().write(true).open(&image.path).unwrap();
    file.write_all_at(&[7; 100], at as u64 * 4096).unwrap();
    let (code, said) = failing(&["balance", "start", "-d", &image.word()]);
    assert_eq!(code, 1, "{said}");
    let named = |line: &&str| line.contains("block group") && line.contains("cannot be emptied");
    assert_eq!(said.lines().filter(named).count(), 1, "{said}");
    assert!(said.contains("1 chunk stays; see above"), "{said}");
}
