//! Mounts by others than root at a terminal: mount(8), fstab(5), ordinary users.

use crate::common;
use common::mount::{Mount, lacks_fuse, mounted};
use common::{Image, KernelMount, OpenToAll, PROGRAM, TempDir, assert_clean, fine, sh, text};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use testkit::oracle::LoopDevice;
use testkit::{require, skip};

const HELPER: &str = "/sbin/mount.fuse.spinney";
/// By the type of the mount that is there, for remounts.
const REMOUNTER: &str = "/sbin/mount.fuseblk.spinney";

/// Runs a shell script with `spinney` on its path; it must succeed.
fn run(image: &Image, script: &str) -> String {
    let bin = image.dir.join("bin");
    if !bin.exists() {
        fs::create_dir(&bin).unwrap();
        symlink(PROGRAM, bin.join("spinney")).unwrap();
    }
    let output = sh(&format!("PATH={}:$PATH; export PATH; {script}", bin.display()));
    let shown = format!("{script}\n{}{}", text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{shown}");
    shown
}

/// Removes the link that it made.
struct Helper;

impl Drop for Helper {
    fn drop(&mut self) {
        let _ = fs::remove_file(HELPER);
        let _ = fs::remove_file(REMOUNTER);
    }
}

/// The mount works, and ends by plain umount(8).
fn judge(image: &Image, point: &Path, options: &[&str]) {
    // From here on it is unmounted, whatever happens.
    let mount = Mount { point: point.to_owned(), ready: String::new(), child: None };
    let (kind, _) = mounted(point).expect("mounted");
    assert_eq!(kind, "fuseblk.spinney");
    let table = fs::read_to_string("/proc/self/mounts").unwrap();
    let line = table.lines().find(|line| line.contains(&*point.to_string_lossy())).unwrap();
    for option in options {
        assert!(line.contains(option), "{option}: {line}");
    }
    fs::write(mount.join("file"), "x").unwrap();
    let output = sh(&format!("umount {}", mount.word()));
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_clean(&image.path);
    assert_eq!(fine(&["cat", &image.at("/file")]), "x");
    fine(&["rm", &image.at("/file")]);
    // Where there is no system log, servers in the background log here.
    let name = mount.word().trim_matches('/').replace('/', "-");
    let _ = fs::remove_file(format!("/run/spinney/{name}.log"));
}

#[test]
fn mount_8_finds_the_program() {
    require!(fuse);
    require!(btrfs_progs);
    let image = Image::new("mount8");
    let point = Mount::directory(&image);
    let (word, at) = (image.word(), point.display().to_string());
    // As mount.fuse calls a file system.
    run(
        &image,
        &format!(
            "cd {} && spinney disk.img mnt -o rw,noatime,dev,suid",
            image.dir.path().display()
        ),
    );
    judge(&image, &point, &["noatime"]);
    if !Path::new("/sbin/mount.fuse").exists() {
        skip!("mount.fuse is not installed");
    }
    if Path::new(HELPER).exists() || Path::new(REMOUNTER).exists() {
        skip!("{HELPER} or {REMOUNTER} is there already");
    }
    // mount(8) calls it with a path of its own, on which the test has no `spinney`.
    run(&image, &format!("/sbin/mount.fuse {word} {at} -t fuse.spinney -o nosuid"));
    judge(&image, &point, &["nosuid"]);
    run(&image, &format!("/sbin/mount.fuse 'spinney#{word}' {at}"));
    judge(&image, &point, &[]);
    symlink(PROGRAM, HELPER).unwrap();
    symlink(PROGRAM, REMOUNTER).unwrap();
    let _helper = Helper;
    run(&image, &format!("mount -t fuse.spinney -o nodev,commit=5 {word} {at}"));
    run(&image, &format!("mount -o remount,ro {at}; if touch {at}/x; then exit 1; fi"));
    run(&image, &format!("mount -o remount,rw {at} && touch {at}/x && rm {at}/x"));
    judge(&image, &point, &["nodev"]);
    let fstab = image.dir.join("fstab");
    let options = "defaults,noauto,user,nofail,_netdev,x-systemd.automount,noexec";
    fs::write(&fstab, format!("{word} {at} fuse.spinney {options} 0 0\n")).unwrap();
    run(&image, &format!("mount -T {} {at}", fstab.display()));
    judge(&image, &point, &["noexec"]);
    mounted_lines_are_left_alone(&image, &at);
    // Its own exit codes: 32 for a mount that failed, and the reason.
    let output = sh(&format!("mount -t fuse.spinney {at}/none {at}"));
    assert_eq!(output.status.code(), Some(32));
    assert!(text(&output.stderr).contains("no such file"), "{}", text(&output.stderr));
    let output = sh(&format!("mount -t fuse.spinney -o bogus {word} {at}"));
    assert!(!output.status.success() && text(&output.stderr).contains("bogus"));
    // -s is mount(8)'s word for leniency, -f for a rehearsal.
    run(&image, &format!("mount -s -t fuse.spinney -o bogus {word} {at}"));
    judge(&image, &point, &[]);
    run(&image, &format!("mount -f -t fuse.spinney {word} {at}"));
    assert_eq!(mounted(&point), None);
    from_a_users_fstab();
}

/// `mount -a` does not see of a line that begins at a subvolume that it is mounted.
fn mounted_lines_are_left_alone(image: &Image, at: &str) {
    let (fstab, word) = (image.dir.join("fstab"), image.word());
    let all = format!("mount -a -T {}", fstab.display());
    let write = |options: &str| {
        fs::write(&fstab, format!("{word} {at} fuse.spinney {options} 0 0\n")).unwrap();
    };
    fine(&["subvolume", "create", &image.at("/@a"), &image.at("/@b")]);
    fine(&["subvolume", "set-default", &image.at("/@b")]);
    for (line, other) in
        [("subvol=@a", "subvol=@b"), ("subvol=/@a,ro", "ro"), ("nosuid", "subvol=@a")]
    {
        let _mount = Mount { point: at.into(), ready: String::new(), child: None };
        write(line);
        let told = run(
            image,
            &format!("{all} && {all} && {all} && grep -c ' {at} ' /proc/self/mountinfo"),
        );
        assert!(told.ends_with("\n1\n"), "{told}");
        // What is not there is refused still.
        for other in [other, "subvolid=5", "subvol=@c", &format!("{line},noexec"), "nodev"] {
            write(other);
            assert_eq!(sh(&all).status.code(), Some(32), "{line}, {other}");
        }
        run(image, &format!("umount {at}"));
    }
    fine(&["subvolume", "set-default", "5", &word]);
    fine(&["subvolume", "delete", &image.at("/@a"), &image.at("/@b")]);
}

/// A line with `user`, without `spinney` on anybody's path: the link is enough. In a mount
/// namespace of its own, where /etc/fstab has that line.
fn from_a_users_fstab() {
    if let Some(why) = common::no_ordinary_users() {
        skip!("{why}");
    }
    let _open = OpenToAll::new();
    let image = Image::new("fstab");
    fine(&["chown", "65534:65534", &image.at("/")]);
    let (dir, place) = (image.dir.path().display(), Mount::directory(&image));
    let program = image.dir.join("spinney");
    fs::copy(PROGRAM, &program).unwrap();
    fs::remove_file(HELPER).unwrap();
    symlink(&program, HELPER).unwrap();
    let line =
        format!("{} {} fuse.spinney noauto,user,autodefrag 0 0\n", image.word(), place.display());
    fs::write(image.dir.join("fstab"), line).unwrap();
    let script = format!(
        "set -ex; cd {dir}; chown -R 65534:65534 .; touch /etc/fstab; mount --make-rprivate /
        mount --bind fstab /etc/fstab
        nobody() {{ setpriv --reuid 65534 --regid 65534 --clear-groups \"$@\"; }}
        nobody mount {0}; nobody touch {0}/made; nobody umount {0}
        for try in 1 2 3 4 5; do nobody mount {0} && break; sleep 1; done
        nobody rm {0}/made; nobody mkdir {0}/kept; nobody ./spinney umount {0}",
        place.display()
    );
    fs::write(image.dir.join("script"), script).unwrap();
    let output = sh(&format!("timeout 60 unshare -m sh {dir}/script"));
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("option without effect: autodefrag"), "it is told");
    assert_eq!(fine(&["ls", &image.at("/")]), "kept\n");
    assert_clean(&image.path);
}

/// Runs a script in `dir`, which becomes nobody's, as nobody, with an ordinary user's path.
fn run_as_nobody(dir: &Path, script: &str) -> String {
    fs::write(dir.join("script"), script).unwrap();
    let dir = dir.display();
    let output = sh(&format!(
        "chown -R 65534:65534 {dir} && cd {dir} &&
        PATH=/usr/local/bin:/usr/bin:/bin setpriv --reuid 65534 --regid 65534 --clear-groups \
        timeout 120 bash -eux {dir}/script"
    ));
    let shown = text(&output.stdout) + &text(&output.stderr);
    assert!(output.status.success(), "{shown}");
    shown
}

/// The first block of the README's section on mounting, from the line on that follows the build.
fn readme() -> String {
    let readme = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../README.md");
    let readme = fs::read_to_string(readme).unwrap();
    let (_, section) = readme.split_once("## Mounting a volume\n").expect("the section");
    let lines = section.lines().skip_while(|line| !line.starts_with("    "));
    let block: Vec<&str> = lines.map_while(|line| line.strip_prefix("    ")).collect();
    assert_eq!(block[0], "cargo build --release --package spinney-cli");
    assert!(block.len() > 5, "{block:?}");
    block[1..].join("\n")
}

/// They ended with "Permission denied".
#[test]
fn the_readmes_words_work_for_an_ordinary_user() {
    require!(fuse);
    require!(btrfs_progs);
    if let Some(why) = common::no_ordinary_users() {
        skip!("{why}");
    }
    let _open = OpenToAll::new();
    let dir = TempDir::new("readme").unwrap();
    fs::create_dir_all(dir.join("target/release")).unwrap();
    fs::copy(PROGRAM, dir.join("target/release/spinney")).unwrap();
    let _mount = Mount { point: dir.join("mnt"), ready: String::new(), child: None };
    let shown = run_as_nobody(dir.path(), &readme());
    assert!(shown.contains("no error found"), "{shown}");
    assert_eq!(fine(&["cat", &common::at(&dir.join("volume.img"), "/hello.txt")]), "hello\n");
}

/// Images that others made: root's files are whoever's mounts them, and what is made there
/// is stored as root's.
#[test]
fn ordinary_users_write_what_others_made() {
    require!(fuse);
    require!(kernel_btrfs);
    if let Some(why) = common::no_ordinary_users() {
        skip!("{why}");
    }
    let _open = OpenToAll::new();
    let image = Image::new("others");
    let kernel = KernelMount::new(&image.path, "noatime").unwrap();
    let made = sh(&format!(
        "cd {} && mkdir d && echo old > d/file && mkdir 1000 && chown 1000:100 1000 &&
        echo x > 1000/file && chown 1000:100 1000/file && chmod 600 1000/file && setfacl -m u:0:r d/file &&
        mkdir group && chgrp 7 group && chmod 2775 group",
        kernel.path().display()
    ));
    assert!(made.status.success(), "{}", text(&made.stderr));
    kernel.unmount().unwrap();
    fs::copy(PROGRAM, image.dir.join("spinney")).unwrap();
    fs::create_dir(image.dir.join("mnt")).unwrap();
    let _mount = Mount { point: image.dir.join("mnt"), ready: String::new(), child: None };
    let shown = run_as_nobody(image.dir.path(), MAPPED);
    assert!(shown.contains("-o map-owner lets you"), "{shown}");
    assert_clean(&image.path);
    let kernel = KernelMount::new(&image.path, "noatime").unwrap();
    let found = sh(&format!(
        "cd {} && find . -mindepth 1 -printf '%P %U:%G %m\\n' | sort && getfacl -nc d/new | grep ^user:0:",
        kernel.path().display()
    ));
    kernel.unmount().unwrap();
    let expected = "1000 1000:100 755\n1000/file 1000:100 640\n1000/new 1000:100 644\nd 0:0 755\n\
        d/dir 0:0 755\nd/file 0:0 644\nd/given 5:0 644\nd/link 0:0 777\nd/new 0:0 664\ngroup 0:7 2775\n\
        group/dir 0:7 2755\nnew 0:0 644\nuser:0:rw-\n";
    assert_eq!(text(&found.stdout).replace("d/file 0:0 664", "d/file 0:0 644"), expected);
}

const MAPPED: &str = "
umask 022; me=$(id -u):$(id -g)
start() { ./spinney mount --log log -o \"$1\" disk.img mnt; }
start rw; if touch mnt/new; then exit 3; fi; ./spinney umount mnt
start map-owner
mkdir two; if ./spinney mount disk.img two 2>told; then exit 7; fi
grep \"is mounted on $PWD/mnt already\" told
grep \"$PWD/mnt fuse.spinney rw,nosuid,nodev\" /proc/self/mounts
test $(stat -c %u:%g mnt mnt/d mnt/d/file | sort -u) = $me
test $(stat -c %u:%g mnt/1000) = 1000:100
if cat mnt/1000/file; then exit 4; fi
echo new > mnt/new; mkdir mnt/d/dir; ln -s file mnt/d/link; echo more >> mnt/d/file
touch mnt/d/new; setfacl -m u:$(id -u):rw mnt/d/new; getfacl -nc mnt/d/new | grep user:$(id -u):rw-
getfacl -nc mnt/d/file | grep user:$(id -u):r--
mkdir mnt/group/dir; test $(stat -c %g mnt/group/dir) = 7
chown $me mnt/new; if chown 5 mnt/new; then exit 5; fi
test $(find mnt/d -not -user $(id -u) | wc -l) = 0
./spinney umount mnt
start uid=$(id -u),gid=$(id -g)
test $(stat -c %u:%g mnt mnt/d mnt/1000/file mnt/group/dir | sort -u) = $me
cat mnt/1000/file; chmod 640 mnt/1000/file; echo mine > mnt/1000/new
chown $me mnt/1000/new; if chown 5 mnt/1000/new; then exit 6; fi
./spinney umount mnt
./spinney cp script disk.img:/d/given --no-preserve; ./spinney chmod 644 disk.img:/d/given; ./spinney chown 5:0 disk.img:/d/given
";

#[test]
fn ordinary_users_mount_their_own_images() {
    require!(fuse);
    require!(btrfs_progs);
    if let Some(why) = common::no_ordinary_users() {
        skip!("{why}");
    }
    let _open = OpenToAll::new();
    for transport in common::mount::TRANSPORTS {
        if lacks_fuse(transport) {
            continue;
        }
        as_nobody(transport);
    }
}

/// The mount table has what a user says that he has mounted, and he was believed: root was told
/// that the device is in use.
#[test]
fn a_mount_that_another_user_made_up_is_nobodys() {
    require!(fuse);
    require!(btrfs_progs);
    if let Some(why) = common::no_ordinary_users() {
        skip!("{why}");
    }
    let _open = OpenToAll::new();
    let (image, theirs) = (Image::new("disk"), Image::new("made-up"));
    let device = LoopDevice::attach(&image.path, false).unwrap();
    let (disk, dir) = (device.path().display(), theirs.dir.path());
    fs::copy(PROGRAM, theirs.dir.join("spinney")).unwrap();
    let fake = Mount { point: Mount::directory(&theirs), ready: String::new(), child: None };
    // With fusermount3 alone he can name the device itself.
    let script = "./spinney mount --log log disk.img mnt; mv disk.img other; ln -s";
    run_as_nobody(dir, &format!("{script} {disk} disk.img"));
    let (kind, source) = mounted(&fake.point).expect("mounted");
    assert_eq!((kind.as_str(), Path::new(&source)), ("fuse.spinney", theirs.path.as_path()));
    let (point, log) = (Mount::directory(&image), image.dir.join("log").display().to_string());
    let word = point.display().to_string();
    fine(&["mount", "--log", &log, &disk.to_string(), &word]);
    let mount = Mount { point, ready: String::new(), child: None };
    fs::write(mount.join("file"), "x").unwrap();
    // The same user gets the mount that is really there.
    let second = image.dir.join("second");
    fs::create_dir(&second).unwrap();
    let second = second.display().to_string();
    let told = fine(&["mount", &disk.to_string(), &second]);
    assert!(told.contains(&format!("it is the mount on {word}")), "{told}");
    fine(&["umount", &second]);
    mount.umount();
    fine(&["umount", &fake.word()]);
    device.detach().unwrap();
    assert_clean(&image.path);
}

fn as_nobody(transport: &str) {
    let image = Image::new("nobody");
    let dir = image.dir.path().display().to_string();
    fs::create_dir(image.dir.join("mnt")).unwrap();
    let script = format!(
        "set -e; cd {dir}
        ./spinney chmod 755 disk.img:/
        ./spinney chown 65534:65534 disk.img:/
        test \"$(./spinney mkdir disk.img:/mine && ./spinney stat --json disk.img:/mine | grep -c '\"uid\":65534')\" = 1
        if ./spinney mount --log log disk.img /mnt; then exit 3; fi
        ./spinney mount --log log -o transport={transport} disk.img mnt
        grep \"$PWD/mnt fuse.spinney\" /proc/self/mounts
        echo content > mnt/mine/file
        test $(stat -c %u:%g mnt/mine/file) = 65534:65534
        ./spinney stats mnt | grep fuse.transport
        ./spinney umount mnt
        btrfs check disk.img
        test $(./spinney cat disk.img:/mine/file) = content
        ./spinney mount --log log -o ro,transport={transport} disk.img mnt
        cat mnt/mine/file
        fusermount3 -u mnt
        # As mount.fuse calls it for a line of fstab(5).
        while grep \"$PWD/mnt \" /proc/self/mounts; do sleep 0.1; done
        PATH=.:$PATH
        for try in 1 2 3 4 5; do spinney disk.img mnt -o rw,noatime,transport={transport} && break; sleep 1; done
        grep \"$PWD/mnt fuse.spinney rw.*noatime\" /proc/self/mounts
        echo more > mnt/mine/more
        test $(stat -c %u:%g mnt/mine/more) = 65534:65534
        spinney umount mnt
        test $(spinney cat disk.img:/mine/more) = more
        echo all well"
    );
    fs::write(image.dir.join("script"), script).unwrap();
    let _mount = Mount { point: image.dir.join("mnt"), ready: String::new(), child: None };
    let output = sh(&format!(
        "cp {PROGRAM} {dir}/spinney && chown -R 65534:65534 {dir} &&
        setpriv --reuid 65534 --regid 65534 --clear-groups sh {dir}/script"
    ));
    let shown = text(&output.stdout) + &text(&output.stderr);
    assert!(output.status.success() && shown.contains("all well"), "{shown}");
    let kind = if transport == "uring" { "io_uring" } else { "classic" };
    assert!(shown.contains(&format!("is mounted on {dir}/mnt ({kind}, read-write)")), "{shown}");
    assert_clean(&image.path);
}
