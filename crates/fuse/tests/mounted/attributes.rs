//! Attributes, and that what the kernel remembers of them is true.

use crate::fixture::Mount;
use crate::over_both_transports;
use crate::sys::{self, sh, sh_as_nobody};
use std::fs::{self, File, Metadata};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};

over_both_transports!(
    stat_asks_once,
    modes_owners_and_times,
    creation_time_is_told,
    umask_and_default_acls,
    access_lists_decide,
    extended_attributes,
    virtual_attributes,
    inode_flags,
    labels_and_versions,
    writers_lose_special_bits,
    programs_that_were_written_to_run_as_their_caller,
    allocation_and_copies_clear_special_bits,
    changes_of_owner_clear_special_bits,
    directories_keep_special_bits,
    directory_times_follow_their_names,
    ctime_follows_every_change,
    root_has_the_engines_number,
    changes_by_the_engine,
    volume_figures,
);

fn stamp(metadata: &Metadata) -> (i64, i64) {
    (metadata.ctime(), metadata.ctime_nsec())
}

fn stat_asks_once(mount: &Mount) {
    fs::create_dir(mount.path("dir")).unwrap();
    fs::write(mount.path("dir/file"), "x").unwrap();
    fs::metadata(mount.path("dir/file")).unwrap();
    let asked_nothing = || {
        fs::metadata(mount.path("dir/file")).unwrap();
        let before = mount.spy.all_calls();
        for _ in 0..100 {
            fs::metadata(mount.path("dir/file")).unwrap();
            File::open(mount.path("dir/file")).unwrap();
        }
        mount.spy.all_calls() == before
    };
    // Anybody on the machine may drop its caches.
    assert!((0..5).any(|_| asked_nothing()));
}

fn modes_owners_and_times(mount: &Mount) {
    let path = mount.path("file");
    fs::write(&path, "x").unwrap();
    fs::set_permissions(&path, PermissionsExt::from_mode(0o4751)).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().mode(), 0o104751);
    chown(&path, Some(12), Some(34)).unwrap();
    let now = fs::metadata(&path).unwrap();
    assert_eq!((now.uid(), now.gid()), (12, 34));
    sh(&format!("touch -d '2001-02-03 04:05:06.789 UTC' {}", path.display()));
    let now = fs::metadata(&path).unwrap();
    assert_eq!((now.mtime(), now.mtime_nsec()), (981_173_106, 789_000_000));
    sh(&format!("touch -a -d '1950-01-01 00:00 UTC' {}", path.display()));
    let old = fs::metadata(&path).unwrap();
    assert_eq!((old.atime(), old.mtime()), (-631_152_000, 981_173_106));
    crate::sys::drop_caches();
    assert_eq!(fs::metadata(&path).unwrap().atime(), -631_152_000);
}

fn creation_time_is_told(mount: &Mount) {
    let path = mount.path("file");
    fs::write(&path, "x").unwrap();
    let born = fs::metadata(&path).unwrap().created().unwrap();
    let age = std::time::SystemTime::now().duration_since(born).unwrap();
    assert!(age < std::time::Duration::from_secs(60));
    fs::write(&path, "y").unwrap();
    assert_eq!(fs::metadata(&path).unwrap().created().unwrap(), born);
}

fn umask_and_default_acls(mount: &Mount) {
    let root = mount.path("").display().to_string();
    sh(&format!("cd {root} && umask 027 && touch f && mkdir d"));
    let mode = |name: &str| fs::metadata(mount.path(name)).unwrap().mode() & 0o7777;
    assert_eq!((mode("f"), mode("d")), (0o640, 0o750));
    sh(&format!("cd {root} && setfacl -d -m u::rwx,g::rwx,o::r d && umask 077 && touch d/f"));
    assert_eq!(mode("d/f"), 0o664, "a default ACL stands in for the umask");
}

fn access_lists_decide(mount: &Mount) {
    let path = mount.path("secret");
    fs::write(&path, "text").unwrap();
    fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
    let shown = path.display();
    assert!(!sh_as_nobody(&format!("cat {shown}")).status.success());
    sh(&format!("setfacl -m u:65534:r {shown}"));
    assert_eq!(sh_as_nobody(&format!("cat {shown}")).stdout, b"text");
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o640, "the group bits show the mask");
    assert!(!sh_as_nobody(&format!("echo > {shown}")).status.success());
    fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
    assert!(!sh_as_nobody(&format!("cat {shown}")).status.success(), "chmod changes the mask");
    sh(&format!("setfacl -b {shown}"));
    assert!(sh(&format!("getfacl -cs {shown} 2>/dev/null")).is_empty());
}

fn extended_attributes(mount: &Mount) {
    let path = mount.path("file");
    fs::write(&path, "x").unwrap();
    sys::setxattr(&path, "user.one", b"1", 0).unwrap();
    sys::setxattr(&path, "user.big", &[7; 16_000], 0).unwrap();
    let code = |error: std::io::Error| error.raw_os_error();
    let create = sys::setxattr(&path, "user.one", b"2", libc::XATTR_CREATE).unwrap_err();
    assert_eq!(code(create), Some(libc::EEXIST));
    let replace = sys::setxattr(&path, "user.none", b"2", libc::XATTR_REPLACE).unwrap_err();
    assert_eq!(code(replace), Some(libc::ENODATA));
    assert_eq!(sys::getxattr(&path, "user.big", 0).unwrap().len(), 16_000);
    assert_eq!(sys::getxattr(&path, "user.big", 16_000).unwrap(), [7; 16_000]);
    assert_eq!(code(sys::getxattr(&path, "user.big", 15_999).unwrap_err()), Some(libc::ERANGE));
    assert_eq!(code(sys::getxattr(&path, "user.none", 10).unwrap_err()), Some(libc::ENODATA));
    let long = format!("user.{}", "n".repeat(251));
    assert_eq!(code(sys::setxattr(&path, &long, b"", 0).unwrap_err()), Some(libc::ERANGE));
    let listed = sh(&format!("getfattr --absolute-names {}", path.display()));
    assert!(listed.contains("user.one") && listed.contains("user.big"), "{listed}");
    sh(&format!("setfattr -x user.one {}", path.display()));
    assert_eq!(code(sys::getxattr(&path, "user.one", 10).unwrap_err()), Some(libc::ENODATA));
    for (name, value) in [("trusted.t", "1"), ("security.s", "2")] {
        sys::setxattr(&path, name, value.as_bytes(), 0).unwrap();
        assert_eq!(sys::getxattr(&path, name, 9).unwrap(), value.as_bytes());
    }
}

fn virtual_attributes(mount: &Mount) {
    fs::write(mount.path("file"), "x").unwrap();
    for name in ["", "file"] {
        let path = mount.path(name);
        let transport = sys::getxattr(&path, "spinney.transport", 100).unwrap();
        assert_eq!(transport, mount.transport.as_bytes());
        let room = sys::getxattr(&path, "spinney.stats", 0).unwrap().len();
        let stats = sys::getxattr(&path, "spinney.stats", room).unwrap();
        let stats = String::from_utf8(stats).unwrap();
        assert!(stats.starts_with("{\"fuse.transport\":") && stats.ends_with('}'), "{stats}");
        assert!(stats.contains(",\"spy.lookups\":"), "{stats}");
        assert!(stats.contains(",\"fuse.requests.getxattr\":"), "{stats}");
        let refused = sys::setxattr(&path, "spinney.stats", b"", 0).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EOPNOTSUPP));
        let listed = sh(&format!("getfattr -m- --absolute-names {}", path.display()));
        assert!(!listed.contains("spinney"), "{listed}");
    }
}

fn inode_flags(mount: &Mount) {
    let path = mount.path("file");
    fs::write(&path, "x").unwrap();
    let shown = path.display().to_string();
    let before = fs::metadata(&path).unwrap();
    sh(&format!("chattr +i {shown}"));
    assert!(sh(&format!("lsattr {shown}")).contains('i'));
    assert!(stamp(&fs::metadata(&path).unwrap()) > stamp(&before), "setting flags moves ctime");
    assert_eq!(fs::remove_file(&path).unwrap_err().raw_os_error(), Some(libc::EPERM));
    assert_eq!(fs::write(&path, "y").unwrap_err().raw_os_error(), Some(libc::EPERM));
    sh(&format!("chattr -i {shown}"));
    fs::write(&path, "y").unwrap();
    let file = File::open(&path).unwrap();
    let mut extended = [0u8; 28];
    sys::ioctl_read(&file, 0x801c_581f, &mut extended).unwrap();
    assert_eq!(extended[..4], [0; 4]);
    let unknown = sys::ioctl_read(&file, 0x8004_1234, &mut extended).unwrap_err();
    assert_eq!(unknown.raw_os_error(), Some(libc::ENOTTY));
    assert!(!sh_as_nobody(&format!("chattr +d {shown}")).status.success());
    // The kernel asks who the caller is only by its own number of a set, not by a 32-bit program's.
    let mut wanted = [0x10, 0, 0, 0, 0, 0, 0, 0];
    let unasked = sys::ioctl_read(&file, 0x4004_6602, &mut wanted).unwrap_err();
    assert_eq!(unasked.raw_os_error(), Some(libc::ENOTTY));
    fs::write(&path, "z").unwrap();
}

fn labels_and_versions(mount: &Mount) {
    let directory = File::open(mount.path("")).unwrap();
    let mut label = [0xffu8; 256];
    sys::ioctl_read(&directory, 0x8100_9431, &mut label).unwrap();
    assert_eq!(&label[..8], b"a label\0");
    // Their numbers say `long`, and callers have room for an `int`: nothing is written behind that.
    for command in [0x8008_6601, 0x8008_7601] {
        let mut room = [0xff; 8];
        sys::ioctl_read(&directory, command, &mut room).unwrap();
        assert_eq!(room[4..], [0xff; 4], "{command:x}");
    }
}

fn special_file(mount: &Mount, mode: u32) -> std::path::PathBuf {
    let path = mount.path("special");
    fs::write(&path, vec![b'x'; 8192]).unwrap();
    chown(&path, Some(65534), Some(65534)).unwrap();
    fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
    path
}

/// The mode that execve would act on: from the kernel's memory, without asking us.
fn remembered_mode(path: &std::path::Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o7777
}

fn writers_lose_special_bits(mount: &Mount) {
    let path = special_file(mount, 0o6777);
    assert!(sh_as_nobody(&format!("echo y >> {}", path.display())).status.success());
    assert_eq!(remembered_mode(&path), 0o777);
    // Group ID without group execution is not a right and stays.
    let path = special_file(mount, 0o6767);
    assert!(sh_as_nobody(&format!("echo y >> {}", path.display())).status.success());
    assert_eq!(remembered_mode(&path), 0o2767);
    let path = special_file(mount, 0o6777);
    assert!(sh_as_nobody(&format!("truncate -s 5 {}", path.display())).status.success());
    assert_eq!(remembered_mode(&path), 0o777);
    let path = special_file(mount, 0o6777);
    sh(&format!("echo y >> {}", path.display()));
    assert_eq!(remembered_mode(&path), 0o6777, "root keeps them");
}

/// Running a program does not stat it: what the kernel remembers decides.
fn programs_that_were_written_to_run_as_their_caller(mount: &Mount) {
    let path = mount.path("id");
    fs::copy("/usr/bin/id", &path).unwrap();
    fs::set_permissions(&path, PermissionsExt::from_mode(0o4777)).unwrap();
    let user = || sys::run_as_nobody(&path, "-u");
    assert_eq!(user(), "0\n", "set-user-ID works");
    assert!(sh_as_nobody(&format!("echo >> {}", path.display())).status.success());
    assert_eq!(user(), "65534\n");
}

fn allocation_and_copies_clear_special_bits(mount: &Mount) {
    let path = special_file(mount, 0o6777);
    let shown = path.display();
    assert!(sh_as_nobody(&format!("fallocate -l 64K {shown}")).status.success());
    assert_eq!(remembered_mode(&path), 0o777);
    let path = special_file(mount, 0o6777);
    fs::write(mount.path("source"), "source").unwrap();
    let copy = format!("cp --reflink=auto {} {shown}", mount.path("source").display());
    assert!(sh_as_nobody(&copy).status.success());
    assert_eq!(fs::read(&path).unwrap(), b"source");
    assert_eq!(remembered_mode(&path), 0o777);
}

fn changes_of_owner_clear_special_bits(mount: &Mount) {
    let path = special_file(mount, 0o6777);
    chown(&path, Some(1), None).unwrap();
    assert_eq!(remembered_mode(&path), 0o777);
    let path = special_file(mount, 0o6777);
    chown(&path, None, None).unwrap();
    assert_eq!(remembered_mode(&path), 0o777, "even a change to the same owner");
}

fn directories_keep_special_bits(mount: &Mount) {
    let path = mount.path("dir");
    fs::create_dir(&path).unwrap();
    fs::set_permissions(&path, PermissionsExt::from_mode(0o7775)).unwrap();
    chown(&path, Some(1), Some(2)).unwrap();
    assert_eq!(remembered_mode(&path), 0o7775);
    fs::write(path.join("file"), "").unwrap();
    assert_eq!(fs::metadata(path.join("file")).unwrap().gid(), 2, "set-group-ID is inherited");
}

fn directory_times_follow_their_names(mount: &Mount) {
    let dir = mount.path("dir");
    fs::create_dir(&dir).unwrap();
    let mut last = stamp(&fs::metadata(&dir).unwrap());
    let mut moved = |what: &str| {
        let now = stamp(&fs::metadata(&dir).unwrap());
        assert!(now > last, "{what} moves the directory's ctime");
        last = now;
    };
    fs::write(dir.join("a"), "").unwrap();
    moved("create");
    fs::hard_link(dir.join("a"), dir.join("b")).unwrap();
    moved("link");
    fs::rename(dir.join("b"), dir.join("c")).unwrap();
    moved("rename");
    fs::remove_file(dir.join("c")).unwrap();
    moved("unlink");
    fs::create_dir(dir.join("d")).unwrap();
    moved("mkdir");
    fs::remove_dir(dir.join("d")).unwrap();
    moved("rmdir");
    std::os::unix::fs::symlink("x", dir.join("s")).unwrap();
    moved("symlink");
    fs::rename(dir.join("s"), mount.path("s")).unwrap();
    moved("moving away");
}

fn ctime_follows_every_change(mount: &Mount) {
    let path = mount.path("file");
    let file = File::create(&path).unwrap();
    let shown = path.display().to_string();
    let mut last = stamp(&fs::metadata(&path).unwrap());
    let mut moved = |what: &str| {
        let now = stamp(&file.metadata().unwrap());
        assert!(now > last, "{what} moves the ctime");
        last = now;
    };
    fs::write(&path, "content").unwrap();
    moved("write");
    fs::hard_link(&path, mount.path("link")).unwrap();
    moved("link");
    fs::remove_file(mount.path("link")).unwrap();
    moved("unlink of another name");
    fs::rename(&path, mount.path("moved")).unwrap();
    moved("rename");
    fs::rename(mount.path("moved"), &path).unwrap();
    moved("rename back");
    sys::setxattr(&path, "user.x", b"1", 0).unwrap();
    moved("setxattr");
    sh(&format!("setfattr -x user.x {shown}"));
    moved("removexattr");
    sh(&format!("setfacl -m u:1:r {shown}"));
    moved("setfacl");
    sh(&format!("chattr +d {shown}"));
    moved("chattr");
    sh(&format!("fallocate -l 10000 {shown}"));
    moved("fallocate");
    sh(&format!("truncate -s 3 {shown}"));
    moved("truncate");
    fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
    moved("chmod");
    fs::write(mount.path("source"), "source").unwrap();
    fs::copy(mount.path("source"), &path).unwrap();
    moved("copy_file_range");
    fs::rename(mount.path("source"), &path).unwrap();
    moved("being replaced");
    assert_eq!(file.metadata().unwrap().nlink(), 0);
}

fn root_has_the_engines_number(mount: &Mount) {
    let root = vfs::FileSystem::root(&mount.spy.model).0;
    assert_eq!(fs::metadata(mount.path("")).unwrap().ino(), root);
    fs::create_dir(mount.path("dir")).unwrap();
    let listed = sh(&format!("ls -ai {}", mount.path("dir").display()));
    assert!(listed.lines().any(|line| line.trim() == format!("{root} ..")), "{listed}");
}

fn changes_by_the_engine(mount: &Mount) {
    let path = mount.path("file");
    fs::write(&path, "x").unwrap();
    let attributes = fs::metadata(&path).unwrap();
    let (model, ino) = (&mount.spy.model, vfs::Ino(attributes.ino()));
    let cx = vfs::Context::default();
    let set = vfs::SetAttr { perm: Some(0o751), ..Default::default() };
    vfs::FileSystem::setattr(model, &cx, ino, &set).unwrap();
    mount.spy.observer.get().unwrap().attributes_changed(ino);
    wait_until(|| remembered_mode(&path) == 0o751);
    let flags = vfs::WriteFlags::default();
    vfs::FileSystem::write(model, &cx, ino, 0, b"Y", flags).unwrap();
    mount.notifier.data_changed(ino, 0, 1);
    wait_until(|| fs::read(&path).unwrap() == b"Y");
}

fn wait_until(done: impl Fn() -> bool) {
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
    while !done() {
        assert!(std::time::Instant::now() < deadline, "it did not happen");
        std::thread::yield_now();
    }
}

fn volume_figures(mount: &Mount) {
    let figures = sh(&format!("stat -f -c '%S %b %l' {}", mount.path("").display()));
    let told = vfs::FileSystem::statfs(&mount.spy.model).unwrap();
    let expected = format!("{} {} {}\n", told.block_size, told.blocks, told.name_max);
    assert_eq!(figures, expected);
}
