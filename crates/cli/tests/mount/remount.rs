//! `mount -o remount,ro` and back, by mount(8) alone and with our helper, beside the kernel's
//! btrfs: who writes is refused, the image is whole and stays as it is.

use crate::common;
use common::mount::{Mount, TRANSPORTS, lacks_fuse, mounted};
use common::{
    Image, KernelMount, OpenToAll, PROGRAM, TempDir, assert_clean, eventually, failing, fine,
    no_ordinary_users, sh, text,
};
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::Duration;
use testkit::require;

/// How it is remounted.
#[derive(Clone, Copy, PartialEq)]
enum By {
    /// The kernel alone is told.
    Mount8,
    /// As mount(8) calls mount.fuse, where that finds `spinney`.
    MountFuse,
    /// As mount(8) calls it where it finds it.
    Helper,
    Ourselves,
}

/// Exit code and standard error.
fn remount(by: By, point: &Path, options: &str) -> (Option<i32>, String) {
    let (word, dir) = (point.display(), TempDir::new("helper").unwrap());
    let output = match by {
        By::Mount8 => sh(&format!("mount -i -o remount,{options} {word}")),
        By::MountFuse => {
            symlink(PROGRAM, dir.join("spinney")).unwrap();
            let (path, source) = (dir.path().display(), mounted(point).unwrap().1);
            let table = "noatime,remount,user_id=0,group_id=0,default_permissions,allow_other";
            let words = format!("{source} {word} -o {options},{table} -t fuse.spinney");
            sh(&format!("PATH={path}:$PATH /sbin/mount.fuse {words}"))
        }
        By::Helper => {
            let helper = dir.join("mount.fuseblk.spinney");
            symlink(PROGRAM, &helper).unwrap();
            let source = mounted(point).unwrap().1;
            let table =
                "noatime,remount,user_id=0,group_id=0,default_permissions,allow_other,blksize=4096";
            sh(&format!("{} {source} {word} -o {options},{table}", helper.display()))
        }
        By::Ourselves => sh(&format!("{PROGRAM} mount -o remount,{options} {word}")),
    };
    (output.status.code(), text(&output.stderr))
}

/// Read as a whole again and again.
fn small(name: &str) -> Image {
    let dir = TempDir::new(name).unwrap();
    let path = dir.join("disk.img");
    common::mkfs_btrfs(&path, 128 << 20, &[]).unwrap();
    Image { dir, path }
}

fn errno<T>(result: std::io::Result<T>) -> Option<i32> {
    result.err().and_then(|error| error.raw_os_error())
}

/// What must hold of every btrfs on `point`, whose image is `image`. `settled` waits until
/// what the remount asked for has happened.
fn judge(by: By, image: &Path, point: &Path, settled: impl Fn(bool)) {
    fs::create_dir(point.join("d")).unwrap();
    fs::write(point.join("d/file"), vec![7; 3 << 20]).unwrap();
    let writer = OpenOptions::new().append(true).open(point.join("d/file")).unwrap();
    let (code, told) = remount(by, point, "ro");
    assert!(code == Some(32) || code == Some(1), "somebody writes: {code:?} {told}");
    assert!(told.contains("busy") || told.contains("open for writing"), "{told}");
    fs::write(point.join("x"), "x").unwrap();
    drop(writer);
    // Gone, but its last user comes to know late.
    let reader = File::open(point.join("x")).unwrap();
    fs::write(point.join("gone"), vec![8; 1 << 20]).unwrap();
    fs::remove_file(point.join("gone")).unwrap();
    let (code, told) = remount(by, point, "ro");
    assert_eq!((code, told.as_str()), (Some(0), ""));
    settled(true);
    assert_eq!(errno(fs::write(point.join("x"), "y")), Some(libc::EROFS));
    assert_eq!(errno(fs::create_dir(point.join("e"))), Some(libc::EROFS));
    assert_eq!(errno(fs::remove_file(point.join("x"))), Some(libc::EROFS));
    assert_eq!(errno(reader.sync_all()), None);
    assert_eq!(fs::read(point.join("d/file")).unwrap(), vec![7; 3 << 20]);
    // As others find the image meanwhile, and later than any commit would come.
    let copy = image.with_extension("copy");
    let (from, to) = (image.display(), copy.display());
    assert!(sh(&format!("cp --sparse=always {from} {to}")).status.success());
    assert_clean(&copy);
    assert_eq!(fine(&["cat", &common::at(&copy, "/x")]), "x");
    assert_eq!(fine(&["ls", &common::at(&copy, "/d")]), "file\n");
    std::thread::sleep(Duration::from_millis(1500));
    assert!(fs::read(image).unwrap() == fs::read(&copy).unwrap(), "the image changed");
    let (code, told) = remount(by, point, "rw");
    assert_eq!((code, told.as_str()), (Some(0), ""));
    settled(false);
    fs::write(point.join("x"), "again").unwrap();
    fs::create_dir(point.join("e")).unwrap();
    drop(reader);
    let (code, told) = remount(by, point, "ro,noatime");
    assert_eq!((code, told.as_str()), (Some(0), ""));
    settled(true);
}

#[test]
fn read_only_and_back() {
    require!(fuse);
    require!(btrfs_progs);
    for transport in TRANSPORTS {
        for kind in ["rw", "plain"] {
            for by in [By::Mount8, By::MountFuse, By::Helper, By::Ourselves] {
                let no_mount_fuse = kind == "rw" || !Path::new("/sbin/mount.fuse").exists();
                let done = transport == "uring" && by != By::Mount8;
                if lacks_fuse(transport) || done || by == By::MountFuse && no_mount_fuse {
                    continue;
                }
                let image = small("remount");
                let mount = Mount::new(&image, &format!("{kind},commit=1,transport={transport}"));
                let log = image.dir.join("log");
                let followed = |read_only: bool| {
                    let what = if read_only { "read-only" } else { "read-write" };
                    let log = fs::read_to_string(&log).unwrap();
                    let last = log.lines().rfind(|line| line.contains("remounted read-"));
                    last.is_some_and(|line| line.contains(what))
                };
                judge(by, &image.path, &mount.point, |read_only| {
                    // At once; but mount(8) does not wait for that.
                    if by == By::Mount8 {
                        eventually("the server followed", || followed(read_only));
                    }
                    assert!(followed(read_only));
                });
                mount.umount();
                assert_clean(&image.path);
                assert_eq!(fine(&["cat", &image.at("/x")]), "again");
            }
        }
    }
}

#[test]
fn as_the_kernels_btrfs() {
    require!(kernel_btrfs);
    let image = small("remount-kernel");
    let kernel = KernelMount::new(&image.path, "commit=1").unwrap();
    judge(By::Mount8, &image.path, kernel.path(), |_| {});
    kernel.unmount().unwrap();
    assert_clean(&image.path);
}

#[test]
fn what_was_opened_read_only_stays_so() {
    require!(fuse);
    require!(btrfs_progs);
    let image = Image::new("remount-refused");
    let mount = Mount::new(&image, "ro,plain");
    for by in [By::Helper, By::Ourselves] {
        let (code, told) = remount(by, &mount.point, "rw");
        assert!(code == Some(32) || code == Some(1), "{told}");
        assert!(told.contains("cannot be remounted read-write: mounted read-only"), "{told}");
        assert!(told.contains("unmount it, and mount it anew"), "{told}");
        assert_eq!(errno(fs::write(mount.join("x"), "x")), Some(libc::EROFS));
        assert_eq!(remount(by, &mount.point, "ro").0, Some(0));
    }
    // mount(8) alone tells the kernel alone; the server stands by what it said.
    assert_eq!(remount(By::Mount8, &mount.point, "rw").0, Some(0));
    assert_eq!(errno(fs::write(mount.join("x"), "x")), Some(libc::EROFS));
    eventually("the log says so", || {
        let log = fs::read_to_string(image.dir.join("log")).unwrap();
        log.contains("writable for the kernel, but not here: mounted read-only")
    });
    mount.umount();
    let elsewhere = image.dir.path().display().to_string();
    let (code, told) = failing(&["mount", "-o", "remount,ro", &elsewhere]);
    assert!(code == 1 && told.contains("no mount of Spinney's"), "{told}");
    assert_clean(&image.path);
}

/// Any user could make the server write to an image that root had remounted read-only.
#[test]
fn strangers_do_not_make_it_writable() {
    require!(fuse);
    require!(btrfs_progs);
    if !sh("setpriv --help").status.success() {
        testkit::skip!("no setpriv here");
    }
    let image = small("remount-stranger");
    let mount = Mount::new(&image, "rw,allow_other");
    fs::write(mount.join("x"), "x").unwrap();
    assert_eq!(remount(By::Ourselves, &mount.point, "ro"), (Some(0), String::new()));
    let before = fs::read(&image.path).unwrap();
    let program = image.dir.join("spinney");
    fs::copy(PROGRAM, &program).unwrap();
    let asked = sh(&format!(
        "chmod 755 {}; setpriv --reuid 65534 --regid 65534 --clear-groups {} mount -o remount,rw {}",
        image.dir.path().display(),
        program.display(),
        mount.word()
    ));
    let told = text(&asked.stderr);
    assert!(!asked.status.success() && told.contains("only root and the user who"), "{told}");
    assert!(fs::read(&image.path).unwrap() == before, "the image changed");
    let log = || fs::read_to_string(image.dir.join("log")).unwrap();
    assert!(!log().contains("remounted read-write"), "{}", log());
    assert_eq!(remount(By::Ourselves, &mount.point, "rw"), (Some(0), String::new()));
    assert!(log().contains("remounted read-write"), "{}", log());
    fs::write(mount.join("y"), "y").unwrap();
    mount.umount();
    assert_clean(&image.path);
}

/// What the kernel and we say of how a file lies: extents compressed, and how.
fn compressed(image: &Image, file: &str) -> String {
    let told = fine(&["compsize", "-b", &image.at(file)]);
    let kinds = told.lines().filter_map(|line| line.split_whitespace().next());
    kinds.filter(|kind| ["none", "zlib", "lzo", "zstd"].contains(kind)).collect()
}

#[test]
fn compression_changes() {
    require!(fuse);
    require!(kernel_btrfs);
    for by in [By::Ourselves, By::Helper] {
        let image = small("remount-compress");
        let mount = Mount::new(&image, "rw,compress=lzo,dirty-size=32M");
        let lines = (0..300_000).map(|i| format!("line {i}\n")).collect::<String>();
        let mut names = Vec::new();
        for (options, kind) in [
            ("", "lzo"),
            ("compress=zstd:3", "zstd"),
            ("compress=no", "none"),
            ("compress-force=zlib:9,compress-force=lzo", "lzo"),
            ("dirty-size=32M,ro,rw", "lzo"),
            ("compress=none", "none"),
            ("compress", "zlib"),
        ] {
            if !options.is_empty() {
                assert_eq!(remount(by, &mount.point, options), (Some(0), String::new()));
            }
            names.push((format!("{}-{kind}", names.len()), kind));
            fs::write(mount.join(&names[names.len() - 1].0), &lines).unwrap();
            // What waits to be written is compressed as it is said then.
            File::open(&mount.point).unwrap().sync_all().unwrap();
            assert!(sh(&format!("sync -f {}", mount.word())).status.success());
        }
        // Nothing changes where something cannot.
        let (code, told) = remount(by, &mount.point, "compress=zstd,commit=7");
        assert!(code == Some(1) || code == Some(32), "{told}");
        assert!(told.contains("option commit=7 cannot be changed by a remount"), "{told}");
        assert!(told.contains("unmount it, and mount it anew"), "{told}");
        names.push(("last".into(), "zlib"));
        fs::write(mount.join("last"), &lines).unwrap();
        mount.umount();
        for (name, kind) in &names {
            assert_eq!(compressed(&image, &format!("/{name}")), *kind, "{name}");
        }
        assert_clean(&image.path);
        let kernel = KernelMount::new(&image.path, "ro").unwrap();
        for (name, _) in &names {
            assert!(fs::read(kernel.join(name)).unwrap() == lines.as_bytes(), "{name}");
        }
        kernel.unmount().unwrap();
    }
}

/// What is mounted read-only stays so where compression alone is to change.
#[test]
fn compression_changes_leave_the_kernels_flags() {
    require!(fuse);
    require!(btrfs_progs);
    let image = small("remount-compress-flags");
    let mount = Mount::new(&image, "rw,nosuid");
    let flags = || {
        let table = fs::read_to_string("/proc/self/mounts").unwrap();
        let line = table.lines().find(|line| line.contains(&mount.word())).unwrap().to_owned();
        line.split(' ').nth(3).unwrap().to_owned()
    };
    for options in ["ro,nosuid", "rw,noexec"] {
        assert_eq!(remount(By::Ourselves, &mount.point, options).0, Some(0));
        let before = flags();
        assert_eq!(remount(By::Ourselves, &mount.point, "compress=zstd"), (Some(0), String::new()));
        assert_eq!(flags(), before);
    }
    mount.umount();
    assert_clean(&image.path);
}

/// The flags of the mount on `point` and of its file system, as the kernel's table has them.
fn flags(point: &Path) -> String {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let fields = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
    let line = table.lines().map(fields).rfind(|fields| Path::new(&fields[4]) == point).unwrap();
    let of_fs = line[9].split(',').take_while(|word| !word.contains('='));
    format!("{}/{}", line[5], of_fs.collect::<Vec<_>>().join(","))
}

/// A remount took away each flag that it did not name: a set-user-ID program ran as root after
/// `remount,ro`, and what was written to a mount with `sync` was lost at a crash.
#[test]
fn flags_that_are_not_named_stay() {
    require!(fuse);
    require!(btrfs_progs);
    let image = small("remount-flags");
    let kept = "nosuid,nodev,noexec,noatime,nodiratime";
    for (kind, options, kept) in [
        ("rw", "nosuid,nodev,noexec,sync,nodiratime", kept),
        ("plain", "uid=1000,noexec,sync,nodiratime", kept),
    ] {
        let mount = Mount::new(&image, &format!("{kind},{options}"));
        let after = |by: By, options: &str| {
            assert_eq!(remount(by, &mount.point, options), (Some(0), String::new()), "{options}");
            flags(&mount.point)
        };
        assert_eq!(flags(&mount.point), format!("rw,{kept}/rw,sync"));
        assert_eq!(after(By::Ourselves, "ro"), format!("ro,{kept}/ro,sync"));
        assert_eq!(after(By::Ourselves, "noexec"), format!("ro,{kept}/ro,sync"));
        assert_eq!(after(By::Ourselves, "rw"), format!("rw,{kept}/rw,sync"));
        assert_eq!(after(By::Ourselves, "async"), format!("rw,{kept}/rw"));
        let fewer = kept.replace("noexec,", "");
        assert_eq!(after(By::Ourselves, "exec"), format!("rw,{fewer}/rw"));
        let more = format!("rw,{fewer},nosymfollow/rw");
        assert_eq!(after(By::Ourselves, "nosymfollow"), more);
        assert_eq!(after(By::Ourselves, "rw,noatime"), more);
        // What mount(8) leaves out of the table's flags was taken away.
        let table = "nodev,nodiratime,sync";
        let told = "rw,nodev,noatime,nodiratime/rw,sync";
        assert_eq!(after(By::Helper, &format!("rw,{table}")), told);
        mount.umount();
    }
    assert_clean(&image.path);
}

/// The flags of a second mount are its own, and it is read-only alone where it was made so.
#[test]
fn a_second_mount_keeps_what_the_first_forbids() {
    require!(fuse);
    require!(btrfs_progs);
    let image = small("remount-second");
    let mount = Mount::new(&image, "nosuid");
    let second = image.dir.join("second");
    fs::create_dir(&second).unwrap();
    fine(&["mount", "-o", "ro,nodev", &image.word(), &second.display().to_string()]);
    let both = || (flags(&mount.point), flags(&second));
    let pair = |first: &str, second: &str| (first.to_owned(), second.to_owned());
    assert_eq!(both(), pair("rw,nosuid,noatime/rw", "ro,nosuid,nodev,noatime/rw"));
    for (options, first, then) in [
        ("noexec", "rw,nosuid,noatime/rw", "ro,nosuid,nodev,noexec,noatime/rw"),
        ("sync", "rw,nosuid,noatime/rw,sync", "ro,nosuid,nodev,noexec,noatime/rw,sync"),
        ("rw,async", "rw,nosuid,noatime/rw", "rw,nosuid,nodev,noexec,noatime/rw"),
    ] {
        assert_eq!(remount(By::Ourselves, &second, options), (Some(0), String::new()));
        assert_eq!(both(), pair(first, then), "{options}");
    }
    fs::write(second.join("x"), "x").unwrap();
    fine(&["umount", &second.display().to_string()]);
    mount.umount();
    assert_clean(&image.path);
}

/// Each was accepted, changed nothing, and some were in the mount table then.
#[test]
fn what_cannot_change_is_refused_by_name() {
    require!(fuse);
    require!(btrfs_progs);
    let image = small("remount-fixed");
    for (mounted, refused, taken, shown) in [
        (
            "rw",
            &[
                "relatime",
                "strictatime",
                "nodiratime",
                "max_read=4096",
                "max_write=4096",
                "fsname=x",
            ][..],
            "noatime,allow_other",
            "rw,noatime/rw",
        ),
        ("relatime", &["noatime", "strictatime"], "relatime", "rw,relatime/rw"),
        ("strictatime,nodiratime", &["noatime", "relatime"], "nodiratime", "rw,nodiratime/rw"),
    ] {
        let mount = Mount::new(&image, mounted);
        assert_eq!(flags(&mount.point), shown);
        for option in refused {
            let (code, told) = remount(By::Ourselves, &mount.point, &format!("ro,{option}"));
            assert_eq!(code, Some(1), "{mounted}: {option}");
            let why = format!("option {option} cannot be changed by a remount");
            assert!(told.contains(&why), "{told}");
            assert_eq!(flags(&mount.point), shown, "{option}");
        }
        assert_eq!(remount(By::Ourselves, &mount.point, taken), (Some(0), String::new()));
        assert_eq!(flags(&mount.point), shown);
        mount.umount();
    }
    assert_clean(&image.path);
}

/// Whoever mounted the volume, without root's help; the kernel's own flags stay root's.
#[test]
fn an_ordinary_user_changes_the_compression_of_his_mount() {
    require!(fuse);
    require!(btrfs_progs);
    if let Some(why) = no_ordinary_users() {
        testkit::skip!("{why}");
    }
    let _open = OpenToAll::new();
    for transport in TRANSPORTS {
        if lacks_fuse(transport) {
            continue;
        }
        let image = small("remount-user");
        fine(&["chown", "65534:65534", &image.at("/")]);
        let (dir, point) = (image.dir.path().display(), Mount::directory(&image));
        fs::copy(PROGRAM, image.dir.join("spinney")).unwrap();
        let script = format!(
            "cd {dir}; chmod 755 .; top={}; flags() {{ grep \" $top \" /proc/self/mounts; }}
            refused() {{ ! ./spinney mount -o remount,$1 $top 2>told; cat told; flags >now; cmp before now; }}
            ./spinney mount -o transport={transport},compress=lzo disk.img $top; flags >before
            for how in lzo zstd:3 no zlib; do
                ./spinney mount -o remount,compress=$how $top 2>told; [ ! -s told ]
                seq 300000 >$top/$how; sync $top/$how
            done
            flags >now; cmp before now
            refused ro,compress=lzo; refused rw; refused noatime,compress=lzo
            refused compress=lzo,commit=7; refused compress=gzip
            seq 300000 >$top/last; sync $top/last
            ./spinney umount $top",
            point.display()
        );
        fs::write(image.dir.join("script"), script).unwrap();
        let output = sh(&format!(
            "chown -R 65534:65534 {dir} && cd {dir} && PATH=/usr/local/bin:/usr/bin:/bin \
             setpriv --reuid 65534 --regid 65534 --clear-groups timeout 100 bash -eu script"
        ));
        let (told, errors) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success(), "{told}{errors}");
        println!("{told}{errors}");
        for (name, kind) in
            [("lzo", "lzo"), ("zstd:3", "zstd"), ("no", "none"), ("zlib", "zlib"), ("last", "zlib")]
        {
            assert_eq!(compressed(&image, &format!("/{name}")), kind, "{transport}: {name}");
        }
        assert_clean(&image.path);
    }
}
