//! `spinney filesystem defragment`: fewer extents, or compressed ones, the same content and times, and
//! nothing that is shared stored twice. The kernel counts the extents, and judges.

use crate::common;
use common::mount::Mount;
use common::streams::{ready, shell};
use common::{Image, assert_clean, fine};
use testkit::oracle::KernelMount;

/// `fragmented`: 200 extents of 4 KiB, written from its end to its beginning; `shared`, the same, of
/// which `copy` is a reflink; `old`, the same, in a snapshot, too; `holes`: every other sector;
/// `whole`: one extent; `short`: inline; `text`: compressible, in one extent.
fn made(name: &str) -> Image {
    let image = Image::new(name);
    let mount = KernelMount::new(&image.path, "noatime").unwrap();
    let top = mount.path().display();
    shell(&format!(
        "cd {top}; btrfs -q subvolume create v; cd v; mkdir d
        for f in d/fragmented shared old; do for i in $(seq 199 -1 0); do
        dd if=/dev/urandom of=$f bs=4k count=1 seek=$i conv=notrunc status=none oflag=direct; done; done
        cp --reflink shared copy; cd ..; btrfs -q subvolume snapshot -r v snap; cd v
        for i in $(seq 0 2 99); do dd if=/dev/urandom of=d/holes bs=4k count=1 seek=$i conv=notrunc \
        status=none oflag=direct; done
        head -c 500000 /dev/urandom > d/whole; echo short > d/short
        seq 100000 > d/text; rm d/fragmented; for i in $(seq 199 -1 0); do
        dd if=/dev/urandom of=d/fragmented bs=4k count=1 seek=$i conv=notrunc status=none oflag=direct; done"
    ));
    mount.unmount().unwrap();
    image
}

/// Of the kernel: extents, content and times of each file; bytes in use.
fn seen(image: &Image) -> (Vec<(String, usize)>, String, u64) {
    let mount = KernelMount::new(&image.path, "ro,noatime").unwrap();
    let top = mount.path().display();
    let extents = shell(&format!(
        "cd {top}; for f in $(find . -type f | sort); do echo $f $(filefrag -v $f | grep -cE '^ +[0-9]+:'); done"
    ));
    let facts = shell(&format!(
        "cd {top}; find . -type f | sort | xargs md5sum; find . | sort | xargs stat -c '%n %s %Y %Z %X'"
    ));
    let used = shell(&format!("btrfs filesystem df -b {top} | grep Data | sed 's/.*used=//'"));
    mount.unmount().unwrap();
    let count = |line: &str| {
        let (name, count) = line.split_once(' ').unwrap();
        (name.to_owned(), count.parse().unwrap())
    };
    (extents.lines().map(count).collect(), facts, used.trim().parse().unwrap())
}

fn extents(seen: &[(String, usize)], name: &str) -> usize {
    seen.iter().find(|(file, _)| file == name).unwrap_or_else(|| panic!("{name} in {seen:?}")).1
}

fn judge(image: &Image, defragment: impl Fn(&[&str], &str)) {
    let before = seen(image);
    assert_eq!(extents(&before.0, "./v/d/fragmented"), 200);
    defragment(&["-r"], "/v");
    let after = seen(image);
    assert_eq!(after.1, before.1, "what callers see is as it was");
    assert_eq!(extents(&after.0, "./v/d/fragmented"), 1);
    for (name, count) in &before.0 {
        if name != "./v/d/fragmented" {
            assert_eq!(extents(&after.0, name), *count, "{name} is left alone");
        }
    }
    assert_eq!(after.2, before.2, "nothing is stored twice");
    assert_clean(&image.path);

    defragment(&["-r", "--unshare"], "/v");
    let unshared = seen(image);
    assert_eq!(unshared.1, before.1);
    assert_eq!(extents(&unshared.0, "./v/shared"), 1);
    assert_eq!(extents(&unshared.0, "./v/old"), 1);
    assert_eq!(extents(&unshared.0, "./snap/old"), 200, "the snapshot has its own");
    assert!(unshared.2 > after.2);

    defragment(&["-czstd"], "/v/d/text");
    let compressed = seen(image);
    assert_eq!(compressed.1, before.1);
    assert!(compressed.2 < unshared.2, "the text takes less");
    let told = fine(&["compsize", &image.at("/v/d/text")]);
    assert!(told.contains("zstd") && !told.contains("none"), "{told}");
    assert_clean(&image.path);
}

#[test]
fn files_in_an_image_are_defragmented() {
    if !ready("files_in_an_image_are_defragmented") {
        return;
    }
    let image = made("defragment");
    judge(&image, |options, path| {
        fine(&[&["filesystem", "defragment"], options, &[&image.at(path)]].concat());
    });
}

#[test]
fn files_in_a_mount_are_defragmented_by_either_program() {
    if !ready("files_in_a_mount_are_defragmented_by_either_program") {
        return;
    }
    let image = made("defragment-mount");
    judge(&image, |options, path| {
        let mount = Mount::new(&image, "");
        let path = format!("{}{path}", mount.word());
        fine(&[&["filesystem", "defragment"], options, &[&path]].concat());
        mount.umount();
    });
    let image = made("defragment-theirs");
    let mount = Mount::new(&image, "");
    let file = format!("{}/v/d/fragmented", mount.word());
    shell(&format!("btrfs filesystem defragment -czlib {}/v/d/text", mount.word()));
    shell(&format!("btrfs filesystem defragment -f {file}"));
    mount.umount();
    assert_eq!(extents(&seen(&image).0, "./v/d/fragmented"), 1);
    assert!(fine(&["compsize", &image.at("/v/d/text")]).contains("zlib"));
    assert_clean(&image.path);
}

/// Who writes meanwhile has what he wrote.
#[test]
fn a_file_is_written_while_it_is_defragmented() {
    if !ready("a_file_is_written_while_it_is_defragmented") {
        return;
    }
    let image = Image::new("defragment-busy");
    let mount = Mount::new(&image, "commit=1");
    let top = mount.word();
    let copy = image.path.with_file_name("copy").display().to_string();
    shell(&format!("head -c 8000000 /dev/zero > {top}/file; cp {top}/file {copy}"));
    let writer = std::process::Command::new("python3")
        .arg("-c")
        .arg(format!(
            "import os,random,time
a=os.open('{top}/file',os.O_RDWR); b=os.open('{copy}',os.O_RDWR)
end=time.time()+4
while time.time()<end:
    data=os.urandom(random.choice([1,100,4096,9000])); at=random.randrange(7900000)
    os.pwrite(a,data,at); os.pwrite(b,data,at)
    if random.random()<0.05: os.fsync(a)"
        ))
        .spawn();
    let mut writer = writer.unwrap();
    while writer.try_wait().unwrap().is_none() {
        for options in [&["-t", "8M"][..], &["-czstd", "--unshare"], &["-f"]] {
            fine(&[&["filesystem", "defragment"], options, &[&format!("{top}/file")]].concat());
        }
    }
    assert!(writer.wait().unwrap().success());
    shell(&format!("cmp {top}/file {copy}"));
    mount.umount();
    let kernel = KernelMount::new(&image.path, "ro").unwrap();
    shell(&format!("cmp {}/file {copy}", kernel.path().display()));
    kernel.unmount().unwrap();
    assert_clean(&image.path);
}

/// What goes while it is walked is passed over; what may not be read is told, and the others are visited.
#[test]
fn one_name_keeps_no_other_from_it() {
    if !ready("defragment-names") {
        return;
    }
    let image = Image::new("defragment-names");
    let mount = Mount::new(&image, "allow_other");
    let top = mount.word();
    shell(&format!(
        "cd {top}; mkdir closed many; chmod 700 closed; for i in $(seq 40); do mkdir many/$i; done
        for i in $(seq 199 -1 0); do
        dd if=/dev/urandom of=many/file bs=4k count=1 seek=$i conv=notrunc status=none oflag=sync; done
        cp many/file closed; chown -R 65534 many; chmod 755 ."
    ));
    let left = std::sync::atomic::AtomicBool::new(true);
    std::thread::scope(|threads| {
        threads.spawn(|| {
            while left.load(std::sync::atomic::Ordering::Relaxed) {
                shell(&format!("cd {top}/many; for i in $(seq 40); do echo x > $i/x; mkdir $i/d; done; rm -r */x */d"));
            }
        });
        let all = || (0..15).map(|_| common::spinney(&["filesystem", "defragment", "-r", &top]));
        let failed = all().find(|done| !done.status.success());
        left.store(false, std::sync::atomic::Ordering::Relaxed);
        assert!(failed.is_none(), "{}", common::text(&failed.unwrap().stderr));
    });
    let program = image.dir.join("program").display().to_string();
    let nobody = "setpriv --reuid 65534 --regid 65534 --clear-groups";
    shell(&format!("cp {} {program}; chmod 755 {}", common::PROGRAM, image.dir.path().display()));
    let done = common::sh(&format!("{nobody} {program} filesystem defragment -rv {top}"));
    let (out, err) = (common::text(&done.stdout), common::text(&done.stderr));
    assert!(done.status.code() == Some(1) && err.contains("closed: permission denied"), "{err}");
    assert!(out.contains("many/file"), "{out}");
    mount.umount();
    assert_clean(&image.path);
}
