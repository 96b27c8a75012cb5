//! Names and directories through a mount.

use crate::fixture::Mount;
use crate::over_both_transports;
use crate::sys::sh;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::{FileTypeExt, MetadataExt, symlink};
use std::path::Path;
use std::sync::atomic::Ordering;
use testkit::PosixFs;
use vfs::{Context, Errno, FileSystem, FsError, RenameMode};

over_both_transports!(
    long_names_have_a_limit,
    links_share_an_inode,
    renames_of_every_kind,
    directories_move,
    ten_thousand_names,
    removing_while_listing,
    lost_names_are_told_where_others_come,
    special_files,
    names_that_do_not_exist_are_remembered,
    names_made_behind_the_kernels_back,
    exclusive_creation,
    a_link_too_long_for_the_kernel_ends_nothing,
);

fn long_names_have_a_limit(mount: &Mount) {
    let name = |len| "n".repeat(len);
    File::create(mount.path(&name(255))).unwrap();
    assert!(fs::metadata(mount.path(&name(255))).is_ok());
    let too_long = Some(libc::ENAMETOOLONG);
    for len in [256, 1000, 1100] {
        let path = mount.path(&name(len));
        assert_eq!(File::create(&path).unwrap_err().raw_os_error(), too_long);
        assert_eq!(fs::metadata(&path).unwrap_err().raw_os_error(), too_long);
        assert_eq!(fs::create_dir(&path).unwrap_err().raw_os_error(), too_long);
        let old = mount.path(&name(255));
        assert_eq!(fs::rename(&old, &path).unwrap_err().raw_os_error(), too_long);
        assert_eq!(fs::hard_link(&old, &path).unwrap_err().raw_os_error(), too_long);
        assert_eq!(symlink("x", &path).unwrap_err().raw_os_error(), too_long);
    }
    let target = "t".repeat(4000);
    symlink(&target, mount.path("link")).unwrap();
    assert_eq!(fs::read_link(mount.path("link")).unwrap(), Path::new(&target));
}

fn links_share_an_inode(mount: &Mount) {
    let (one, two) = (mount.path("one"), mount.path("two"));
    fs::write(&one, "shared").unwrap();
    assert_eq!(fs::metadata(&one).unwrap().nlink(), 1);
    fs::hard_link(&one, &two).unwrap();
    let (a, b) = (fs::metadata(&one).unwrap(), fs::metadata(&two).unwrap());
    assert_eq!((a.ino(), a.nlink(), b.nlink()), (b.ino(), 2, 2));
    fs::remove_file(&one).unwrap();
    assert_eq!(fs::metadata(&two).unwrap().nlink(), 1);
    assert_eq!(fs::read(&two).unwrap(), b"shared");
}

fn names_in(path: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(path).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

fn renames_of_every_kind(mount: &Mount) {
    let fs_calls = PosixFs::open(&mount.path("")).unwrap();
    let (cx, root) = (Context::default(), fs_calls.root());
    let rename = |old: &str, new: &str, mode| {
        fs_calls.rename(&cx, root, old.as_bytes(), root, new.as_bytes(), mode)
    };
    fs::write(mount.path("a"), "A").unwrap();
    fs::write(mount.path("b"), "B").unwrap();
    let exists = rename("a", "b", RenameMode::NoReplace);
    assert!(matches!(exists, Err(FsError::Posix(Errno::EEXIST))));
    rename("a", "b", RenameMode::Exchange).unwrap();
    assert_eq!(fs::read(mount.path("a")).unwrap(), b"B");
    assert_eq!(fs::read(mount.path("b")).unwrap(), b"A");
    rename("a", "c", RenameMode::NoReplace).unwrap();
    rename("c", "b", RenameMode::Replace).unwrap();
    assert_eq!(fs::read(mount.path("b")).unwrap(), b"B");
    assert_eq!(names_in(&mount.path("")), BTreeSet::from(["b".into()]));
    rename("b", "d", RenameMode::Whiteout).unwrap();
    assert_eq!(fs::read(mount.path("d")).unwrap(), b"B");
    let whiteout = fs::symlink_metadata(mount.path("b")).unwrap();
    assert!(whiteout.file_type().is_char_device() && whiteout.rdev() == 0);
}

fn directories_move(mount: &Mount) {
    fs::create_dir_all(mount.path("a/b/c")).unwrap();
    fs::write(mount.path("a/b/c/file"), "deep").unwrap();
    fs::create_dir(mount.path("x")).unwrap();
    let before = fs::metadata(mount.path("x")).unwrap();
    fs::rename(mount.path("a/b"), mount.path("x/y")).unwrap();
    assert_eq!(fs::read(mount.path("x/y/c/file")).unwrap(), b"deep");
    assert_eq!(fs::metadata(mount.path("a/b")).unwrap_err().kind(), ErrorKind::NotFound);
    let after = fs::metadata(mount.path("x")).unwrap();
    assert!((after.mtime(), after.mtime_nsec()) > (before.mtime(), before.mtime_nsec()));
    assert_eq!(sh(&format!("cd {} && cd ../../.. && ls", mount.path("x/y/c").display())), "a\nx\n");
    assert!(fs::rename(mount.path("x"), mount.path("x/y/z")).is_err());
    fs::create_dir(mount.path("full")).unwrap();
    fs::write(mount.path("full/f"), "").unwrap();
    let busy = fs::rename(mount.path("a"), mount.path("full")).unwrap_err();
    assert_eq!(busy.raw_os_error(), Some(libc::ENOTEMPTY));
    assert_eq!(
        fs::remove_dir(mount.path("full")).unwrap_err().raw_os_error(),
        Some(libc::ENOTEMPTY)
    );
}

fn ten_thousand_names(mount: &Mount) {
    let names: BTreeSet<String> = (0..10_000).map(|i| format!("file-{i}")).collect();
    for name in &names {
        File::create(mount.path(name)).unwrap();
    }
    for _ in 0..3 {
        assert!(names_in(&mount.path("")) == names);
        crate::sys::drop_caches();
    }
    // With attributes of each.
    for entry in fs::read_dir(mount.path("")).unwrap() {
        assert!(entry.unwrap().metadata().unwrap().is_file());
    }
    fs::remove_file(mount.path("file-77")).unwrap();
    File::create(mount.path("new")).unwrap();
    let now = names_in(&mount.path(""));
    assert!(now.contains("new") && !now.contains("file-77") && now.len() == 10_000);
}

fn removing_while_listing(mount: &Mount) {
    fs::create_dir(mount.path("tree")).unwrap();
    for i in 0..3000 {
        File::create(mount.path(&format!("tree/{i}"))).unwrap();
    }
    let mut seen = 0;
    for entry in fs::read_dir(mount.path("tree")).unwrap() {
        fs::remove_file(entry.unwrap().path()).unwrap();
        seen += 1;
    }
    assert_eq!(seen, 3000);
    fs::remove_dir(mount.path("tree")).unwrap();
}

/// Where names come into a directory while it is listed, and some of what it had cannot be told.
fn lost_names_are_told_where_others_come(mount: &Mount) {
    let dir = mount.path("lossy");
    fs::create_dir(&dir).unwrap();
    let make = |name: &str| drop(File::create(dir.join(name)).unwrap());
    (0..3000).for_each(|i| make(&format!("{i}")));
    for loses in [false, true] {
        mount.spy.loses_names.store(loses, Ordering::Relaxed);
        let (mut seen, mut error) = (0, None);
        for entry in fs::read_dir(&dir).unwrap() {
            match entry {
                Ok(_) => make(&format!("{loses} {seen}")),
                Err(told) => error = told.raw_os_error(),
            }
            seen += 1;
        }
        assert!(seen >= 3000);
        assert_eq!(error, loses.then_some(libc::EUCLEAN));
    }
    mount.spy.loses_names.store(false, Ordering::Relaxed);
}

fn special_files(mount: &Mount) {
    sh(&format!(
        "cd {} && mkfifo fifo && mknod null c 1 3 && mknod disk b 259 70000",
        mount.path("").display()
    ));
    let kind = |name: &str| fs::metadata(mount.path(name)).unwrap();
    assert!(kind("fifo").file_type().is_fifo());
    assert_eq!(kind("null").rdev(), libc::makedev(1, 3));
    assert_eq!(kind("disk").rdev(), libc::makedev(259, 70000));
    fs::write(mount.path("null"), "into the void").unwrap();
    let socket = std::os::unix::net::UnixListener::bind(mount.path("socket")).unwrap();
    assert!(kind("socket").file_type().is_socket());
    std::os::unix::net::UnixStream::connect(mount.path("socket")).unwrap();
    drop(socket);
}

fn names_that_do_not_exist_are_remembered(mount: &Mount) {
    let asked_once = |name: &String| {
        let before = mount.spy.calls("lookup");
        for _ in 0..10 {
            let error = fs::metadata(mount.path(name)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::NotFound);
        }
        mount.spy.calls("lookup") == before + 1
    };
    // Anybody on the machine may drop its caches.
    let name = (0..5).map(|number| format!("missing{number}")).find(asked_once);
    let path = mount.path(&name.expect("asked once"));
    fs::write(&path, "not any more").unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"not any more");
    fs::remove_file(&path).unwrap();
    assert_eq!(fs::metadata(&path).unwrap_err().kind(), ErrorKind::NotFound);
    fs::write(mount.path("other"), "moved in").unwrap();
    fs::rename(mount.path("other"), &path).unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"moved in");
    assert_eq!(fs::metadata(mount.path("other")).unwrap_err().kind(), ErrorKind::NotFound);
    fs::create_dir(mount.path("other")).unwrap();
    assert!(fs::metadata(mount.path("other")).unwrap().is_dir());
}

fn names_made_behind_the_kernels_back(mount: &Mount) {
    let path = mount.path("appears");
    assert!(fs::metadata(&path).is_err());
    assert!(names_in(&mount.path("")).is_empty());
    let model = &mount.spy.model;
    let entry = model.mkdir(&Context::default(), model.root(), b"appears", 0o755).unwrap();
    assert!(fs::metadata(&path).is_err(), "nobody told the kernel yet");
    mount.notifier.name_changed(model.root(), b"appears");
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
    while fs::metadata(&path).is_err() {
        assert!(std::time::Instant::now() < deadline);
        std::thread::yield_now();
    }
    assert_eq!(fs::metadata(&path).unwrap().ino(), entry.attr.ino.0);
    assert_eq!(names_in(&mount.path("")).len(), 1);
}

fn exclusive_creation(mount: &Mount) {
    let path = mount.path("mine");
    let winners: usize = std::thread::scope(|scope| {
        let tries: Vec<_> =
            (0..8).map(|_| scope.spawn(|| usize::from(File::create_new(&path).is_ok()))).collect();
        tries.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert_eq!(winners, 1);
    let opened = fs::OpenOptions::new().write(true).create_new(true).open(mount.path("ro"));
    opened.unwrap();
}

/// The kernel took no such reply, and the server ended with it.
fn a_link_too_long_for_the_kernel_ends_nothing(mount: &Mount) {
    symlink("far", mount.path("link")).unwrap();
    symlink("x".repeat(4095), mount.path("longest")).unwrap();
    for _ in 0..8 {
        let refused = fs::read_link(mount.path("link")).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::ENAMETOOLONG));
    }
    assert_eq!(fs::read_link(mount.path("longest")).unwrap().as_os_str().len(), 4095);
    File::create(mount.path("file")).unwrap();
    assert!(fs::metadata(mount.path("file")).unwrap().is_file());
}
