//! Trees into the reference model and out again.

mod common;

use btrfs_image::copy::{
    CopyError, CopyOptions, CopyReport, Event, HostDir, export_tree, import_contents, import_tree,
};
use common::*;
use std::cell::RefCell;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;
use testkit::RefFs;
use testkit::compare::{Rules, TreeSnapshot, diff};
use vfs::{
    Context, Errno, FileKind, FileSystem, FsError, Ino, SeekWhence, SetAttr, Timestamp, XattrMode,
};

fn root() -> bool {
    // SAFETY: geteuid has no preconditions.
    let root = unsafe { libc::geteuid() } == 0;
    if !root {
        println!("SKIPPED: owners and devices need root");
    }
    root
}

fn sh(dir: &Path, script: &str) {
    run(Command::new("bash").args(["-euc", script]).current_dir(dir));
}

fn sh_text(script: &str) -> String {
    run(Command::new("bash").args(["-euc", script]))
}

/// What must survive: everything but ctime (on the host), flags, and what the two
/// formats count differently. atime has its own test: comparing reads the files.
fn rules() -> Rules {
    Rules { dir_size: false, flags: false, ..Rules::default() }
}

fn assert_same(a: &TreeSnapshot, b: &TreeSnapshot) {
    let differences = diff(a, b, &rules());
    let shown: Vec<String> = differences.iter().take(10).map(ToString::to_string).collect();
    assert!(differences.is_empty(), "{} differences:\n{}", differences.len(), shown.join("\n"));
    assert_eq!(a.nodes.len(), b.nodes.len());
}

/// A host tree with one of everything.
fn furnish(dir: &Path) {
    fs::create_dir_all(dir).expect("directory");
    sh(
        dir,
        r#"
        mkdir -p deep/er/est empty many
        echo hello > file; chmod 4751 file; chown 1000:1001 file
        : > nothing; chmod 000 nothing
        for i in $(seq 150); do echo $i > many/$i; done
        ln file deep/er/hardlink; ln file another; ln -s ../file deep/link
        ln -s "$(printf 'x%.0s' $(seq 1000))" dangling; ln dangling dangling2
        mkfifo -m 640 fifo; ln fifo deep/fifo2
        mknod -m 600 char c 259 70000; mknod block b 8 17
        python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind("sock")'
        chown -h 7:8 dangling fifo char; chown 5:6 many
        mkdir shared; chmod 3775 shared; chown 0:100 shared
        echo in > shared/in; chown 3:4 shared/in; mkdir shared/dir; chmod 700 shared/dir
        setfattr -n user.plain -v value file
        setfattr -n user.empty file
        setfattr -n trusted.t -v 0x00ff00 file
        setfattr -n user.long -v "$(printf 'y%.0s' $(seq 2000))" many
        setfattr -h -n trusted.link -v link dangling
        cp /bin/true capable
        setfattr -n security.capability -v 0x0100000200200000000000000000000000000000 capable
        mkdir acl; setfacl -d -m u:1234:rwx,g:4321:r-x acl; setfacl -m u:77:rw- acl
        echo a > acl/plain; setfacl -b acl/plain; mkdir acl/plaindir; setfacl -b -k acl/plaindir
        echo b > acl/inheriting; setfacl -m u:99:r acl/inheriting; chmod 604 acl/inheriting
        touch -d '1969-12-31 23:59:58.123456789 UTC' deep/link -h
        touch -d '2155-05-05 05:05:05.999999999 UTC' nothing
        touch -d '2001-02-03 04:05:06.000000007 UTC' -m many
        touch -d '1960-01-01 00:00:00.5 UTC' empty deep/er
        "#,
    );
    let odd = OsStr::from_bytes(b"\xff\xfe\n\t 'odd\"\x01");
    fs::write(dir.join(odd), "odd").expect("write");
    fs::write(dir.join("n".repeat(255)), "long name").expect("write");
    sparse(&dir.join("sparse"));
    let big: Vec<u8> = (0..3_500_001u32).map(|i| (i % 253) as u8).collect();
    fs::write(dir.join("big"), big).expect("write");
    let hole = fs::File::create(dir.join("only-a-hole")).expect("create");
    hole.set_len((1 << 24) + 7).expect("length");
}

fn sparse(path: &Path) {
    let file = fs::File::create(path).expect("create");
    for at in [1 << 20, (5 << 20) + 4096, 40 << 20] {
        file.write_all_at(&[7; 5000], at).expect("write");
    }
    file.set_len((43 << 20) + 1).expect("length");
}

/// Where data lies, as the file system tells.
fn segments(fs: &dyn FileSystem, ino: Ino, size: u64) -> Vec<(u64, u64)> {
    let (mut at, mut out) = (0, Vec::new());
    while at < size {
        let Ok(start) = fs.seek(ino, at, SeekWhence::Data) else { break };
        let end = fs.seek(ino, start, SeekWhence::Hole).expect("hole");
        out.push((start, end));
        at = end;
    }
    out
}

fn find(fs: &dyn FileSystem, path: &str) -> Ino {
    path.split('/').fold(fs.root(), |dir, name| {
        let entry = fs.lookup(&Context::default(), dir, name.as_bytes()).expect(path);
        fs.forget(entry.attr.ino, 1);
        entry.attr.ino
    })
}

/// Whoever owns the directory that root copies into can put other things at the names of what was just
/// made: a link that leads to anybody's file, a program of his own.
#[test]
fn what_takes_the_place_of_a_copy_gets_nothing_of_it() {
    let scratch = Scratch::new();
    let (volume, cx) = (RefFs::new(), Context::default());
    let file = volume.mknod(&cx, volume.root(), b"f", FileKind::File, 0o4755, 0).expect("make");
    volume.write(&cx, file.attr.ino, 0, b"content", vfs::WriteFlags::default()).expect("write");
    volume.setxattr(&cx, file.attr.ino, b"user.x", b"1", XattrMode::Set).expect("set");
    let dir = volume.mkdir(&cx, volume.root(), b"d", 0o777).expect("make");
    for (ino, is_link) in [(file.attr.ino, true), (file.attr.ino, false), (dir.attr.ino, true)] {
        let (target, other) = (scratch.path("target"), scratch.path("other"));
        if ino == dir.attr.ino {
            fs::create_dir(&other).expect("mkdir");
        } else {
            fs::write(&other, "other").expect("write");
        }
        fs::set_permissions(&other, fs::Permissions::from_mode(0o700)).expect("chmod");
        let before = fs::metadata(&other).expect("stat");
        let swap = |event: &Event<'_>| {
            let (Event::Data { path, .. } | Event::Made { path, kind: FileKind::Dir, .. }) = event
            else {
                return;
            };
            fs::rename(path, scratch.path("away")).expect("rename");
            match is_link {
                true => std::os::unix::fs::symlink(&other, path).expect("link"),
                false => fs::hard_link(&other, path).expect("link"),
            }
        };
        let options =
            CopyOptions { progress: Some(&swap), xattrs: !is_link, ..CopyOptions::default() };
        let copied = export_tree(&volume, ino, &target, &options);
        let after = fs::metadata(&other).expect("stat");
        assert_eq!(before.mode(), after.mode(), "link: {is_link}, {copied:?}");
        assert_eq!(before.mtime_nsec(), after.mtime_nsec(), "link: {is_link}");
        let xattrs = sh_text(&format!("getfattr -d {}", other.display()));
        assert!(!xattrs.contains("user.x"), "{xattrs}");
        if ino == file.attr.ino {
            copied.expect("copied");
            let away = fs::metadata(scratch.path("away")).expect("stat");
            assert_eq!(away.mode() & 0o777, 0o755, "the copy has what is its");
            fs::remove_file(scratch.path("away")).expect("remove");
            fs::remove_file(&other).expect("remove");
        }
        fs::remove_file(&target).expect("remove");
    }
}

#[test]
fn everything_survives_the_way_in_and_out() {
    if !root() {
        return;
    }
    let scratch = Scratch::new();
    let (source, target) = (scratch.path("source"), scratch.path("target"));
    furnish(&source);
    let volume = RefFs::new();
    let options = CopyOptions::default();
    let report =
        import_contents(&volume, HostDir::open(&source).expect("open"), volume.root(), &options)
            .expect("import");
    assert_eq!(volume.held_references(), 0, "every reference was given back");
    let inside = TreeSnapshot::of(&volume).expect("snapshot");
    let outside = TreeSnapshot::of_dir(&source).expect("snapshot");
    assert_same(&outside, &inside);
    assert_eq!((report.hard_links, report.skipped_xattrs), (4, 0));
    assert_eq!(report.symlinks, 2);
    assert_eq!(report.specials, 4);
    assert_eq!(report.directories, 9, "the top was there already");

    let again = export_tree(&volume, volume.root(), &target, &options).expect("export");
    assert_eq!(volume.held_references(), 0);
    let copied = TreeSnapshot::of_dir(&target).expect("snapshot");
    assert_same(&outside, &copied);
    assert_eq!(again, CopyReport { directories: report.directories + 1, ..report });
}

#[test]
fn hard_links_are_one_file_across_directories() {
    if !root() {
        return;
    }
    let scratch = Scratch::new();
    let (source, target) = (scratch.path("source"), scratch.path("target"));
    furnish(&source);
    let volume = RefFs::new();
    let options = CopyOptions::default();
    import_tree(&volume, &source, volume.root(), b"tree", &options).expect("import");
    let file = find(&volume, "tree/file");
    assert_eq!(file, find(&volume, "tree/deep/er/hardlink"));
    assert_eq!(volume.getattr(file).expect("attr").nlink, 3);
    let ctime = fs::metadata(source.join("file")).expect("stat");
    let ctime = Timestamp { secs: ctime.ctime(), nanos: ctime.ctime_nsec() as u32 };
    assert_eq!(volume.getattr(file).expect("attr").ctime, ctime, "links came after it");
    // One of several names alone is a file of its own.
    import_tree(&volume, &source.join("file"), volume.root(), b"one", &options).expect("import");
    assert_eq!(volume.getattr(find(&volume, "one")).expect("attr").nlink, 1);
    assert_eq!(volume.held_references(), 0);

    export_tree(&volume, find(&volume, "tree"), &target, &options).expect("export");
    let inode = |name: &str| fs::symlink_metadata(target.join(name)).expect("stat").ino();
    assert_eq!(inode("file"), inode("deep/er/hardlink"));
    assert_eq!(inode("dangling"), inode("dangling2"));
    assert_eq!(inode("fifo"), inode("deep/fifo2"));
}

#[test]
fn holes_stay_holes_both_ways() {
    let scratch = Scratch::new();
    let (source, target) = (scratch.path("sparse"), scratch.path("copy"));
    sparse(&source);
    let volume = RefFs::new();
    let options = CopyOptions::default();
    let report = import_tree(&volume, &source, volume.root(), b"f", &options).expect("import");
    assert!(report.bytes < 1 << 20, "{} bytes were copied", report.bytes);
    let ino = find(&volume, "f");
    let size = volume.getattr(ino).expect("attr").size;
    assert_eq!(size, (43 << 20) + 1);
    let starts: Vec<u64> = segments(&volume, ino, size).iter().map(|s| s.0).collect();
    assert_eq!(starts, [1 << 20, (5 << 20) + 4096, 40 << 20]);
    export_tree(&volume, ino, &target, &options).expect("export");
    let (a, b) = (fs::metadata(&source).expect("stat"), fs::metadata(&target).expect("stat"));
    assert_eq!((a.len(), a.blocks()), (b.len(), b.blocks()));
    let mut buf = [0; 5000];
    fs::File::open(&target).and_then(|f| f.read_exact_at(&mut buf, 40 << 20)).expect("read");
    assert!(buf == [7; 5000]);
}

#[test]
fn all_times_arrive_to_the_nanosecond() {
    let scratch = Scratch::new();
    let (source, target) = (scratch.path("source"), scratch.path("target"));
    fs::create_dir_all(source.join("dir")).expect("mkdir");
    fs::write(source.join("dir/file"), "x").expect("write");
    sh(
        &source,
        "ln -s nowhere dir/link; touch -h -a -d '2010-10-10 10:10:10.101010101 UTC' . dir dir/file dir/link",
    );
    let volume = RefFs::new();
    let options = CopyOptions::default();
    import_tree(&volume, &source, volume.root(), b"t", &options).expect("import");
    for name in ["", "/dir", "/dir/file", "/dir/link"] {
        let meta = fs::symlink_metadata(format!("{}{name}", source.display())).expect("stat");
        let attr = volume.getattr(find(&volume, &format!("t{name}"))).expect("attr");
        assert_eq!(attr.atime, Timestamp { secs: 1286705410, nanos: 101010101 }, "{name}");
        let times = [
            (attr.mtime, meta.mtime(), meta.mtime_nsec()),
            (attr.ctime, meta.ctime(), meta.ctime_nsec()),
        ];
        for (ours, secs, nanos) in times {
            assert_eq!(ours, Timestamp { secs, nanos: nanos as u32 }, "{name}");
        }
    }
    export_tree(&volume, find(&volume, "t"), &target, &options).expect("export");
    // Parents last: looking something up does not read a directory.
    for name in ["", "/dir", "/dir/file", "/dir/link"] {
        let meta = fs::symlink_metadata(format!("{}{name}", target.display())).expect("stat");
        assert_eq!((meta.atime(), meta.atime_nsec()), (1286705410, 101010101), "{name}");
    }
}

#[test]
fn nothing_is_inherited_from_the_directory_above() {
    if !root() {
        return;
    }
    let scratch = Scratch::new();
    let (above, source) = (scratch.path("above"), scratch.path("source"));
    fs::create_dir_all(source.join("dir")).expect("mkdir");
    fs::write(source.join("dir/file"), "x").expect("write");
    sh(&source, "chmod 640 dir/file; chmod 750 dir");
    fs::create_dir_all(&above).expect("mkdir");
    sh(&above, "chown 0:55 .; chmod 2777 .; setfacl -d -m u:1234:rwx .");
    let (volume, options) = (RefFs::new(), CopyOptions::default());
    import_tree(&volume, &above, volume.root(), b"above", &options).expect("import");
    import_tree(&volume, &source, find(&volume, "above"), b"tree", &options).expect("import");
    export_tree(&volume, find(&volume, "above/tree"), &above.join("tree"), &options)
        .expect("export");
    let snapshot = |path: &Path| TreeSnapshot::of_dir(path).expect("snapshot");
    assert_same(&snapshot(&source), &snapshot(&above.join("tree")));
    let file = find(&volume, "above/tree/dir/file");
    let attr = volume.getattr(file).expect("attr");
    assert_eq!((attr.gid, attr.perm), (0, 0o640));
    assert_eq!(volume.listxattr(file).expect("list"), Vec::<Vec<u8>>::new());
    let dir = find(&volume, "above/tree");
    assert_eq!(volume.listxattr(dir).expect("list"), Vec::<Vec<u8>>::new());
    assert_eq!(volume.getattr(dir).expect("attr").perm & 0o7000, 0);
}

#[test]
fn the_order_is_by_name_and_the_listener_hears_everything() {
    let scratch = Scratch::new();
    let source = scratch.path("source");
    fs::create_dir_all(&source).expect("mkdir");
    for name in ["b", "a", "c", "B", "10", "9"] {
        fs::write(source.join(name), vec![1; 3 << 20]).expect("write");
    }
    let told = RefCell::new((Vec::new(), 0u64));
    let progress = |event: &Event<'_>| match event {
        Event::Made { path, .. } => told.borrow_mut().0.push(path.display().to_string()),
        Event::Data { so_far, .. } => told.borrow_mut().1 = so_far.bytes,
        _ => {}
    };
    let options = CopyOptions { progress: Some(&progress), ..CopyOptions::default() };
    let volume = RefFs::new();
    let report = import_tree(&volume, &source, volume.root(), b"t", &options).expect("import");
    let names: Vec<String> = ["", "/10", "/9", "/B", "/a", "/b", "/c"]
        .map(|n| format!("{}{n}", source.display()))
        .to_vec();
    assert_eq!(told.borrow().0, names);
    assert_eq!((told.borrow().1, report.bytes), (18 << 20, 18 << 20));
    let first = find(&volume, "t/10");
    assert!(first < find(&volume, "t/9"), "inode numbers follow the names");
}

#[test]
fn errors_name_the_path_and_leave_no_references() {
    let scratch = Scratch::new();
    let (source, target) = (scratch.path("source"), scratch.path("target"));
    let (volume, options) = (RefFs::new(), CopyOptions::default());
    let missing = import_tree(&volume, &source, volume.root(), b"t", &options);
    let error = missing.expect_err("there is no source");
    assert!(matches!(error, CopyError::Host { .. }));
    assert!(error.to_string().contains("source: stat"), "{error}");

    fs::create_dir_all(source.join("a/b")).expect("mkdir");
    fs::write(source.join("a/b/file"), "x").expect("write");
    fs::hard_link(source.join("a/b/file"), source.join("a/b/link")).expect("link");
    import_tree(&volume, &source, volume.root(), b"t", &options).expect("import");
    let error = import_tree(&volume, &source, volume.root(), b"t", &options).expect_err("taken");
    assert!(matches!(&error, CopyError::Volume { source: FsError::Posix(Errno::EEXIST), .. }));
    assert_eq!(error.path(), source);

    // A name that is taken deep inside.
    let file = find(&volume, "t/a/b");
    fs::create_dir_all(target.join("a/b/link")).expect("mkdir");
    let error = export_tree(&volume, find(&volume, "t"), &target, &options).expect_err("taken");
    assert_eq!(error.path(), target.join("a"));
    fs::write(target.join("plain"), "old").expect("write");
    let error = export_tree(&volume, find(&volume, "t/a/b/file"), &target.join("plain"), &options);
    assert!(error.is_err());
    assert_eq!(fs::read(target.join("plain")).expect("read"), b"old");
    let too_long = import_tree(&volume, &source, file, &[b'x'; 256], &options);
    assert!(matches!(too_long, Err(CopyError::Volume { .. })));
    assert_eq!(volume.held_references(), 0);
}

#[test]
fn no_link_on_the_host_is_written_through() {
    let scratch = Scratch::new();
    let (target, elsewhere) = (scratch.path("target"), scratch.path("elsewhere"));
    fs::create_dir_all(&target).expect("mkdir");
    fs::create_dir_all(&elsewhere).expect("mkdir");
    std::os::unix::fs::symlink(&elsewhere, target.join("dir")).expect("link");
    std::os::unix::fs::symlink(elsewhere.join("new"), target.join("file")).expect("link");
    let (volume, options, cx) = (RefFs::new(), CopyOptions::default(), Context::default());
    volume.mknod(&cx, volume.root(), b"file", vfs::FileKind::File, 0o644, 0).expect("make");
    assert!(export_tree(&volume, volume.root(), &target, &options).is_err());
    volume.unlink(&cx, volume.root(), b"file").expect("unlink");
    let dir = volume.mkdir(&cx, volume.root(), b"dir", 0o755).expect("make").attr.ino;
    volume.mknod(&cx, dir, b"inside", vfs::FileKind::File, 0o644, 0).expect("make");
    assert!(export_tree(&volume, volume.root(), &target, &options).is_err());
    assert_eq!(fs::read_dir(&elsewhere).expect("list").count(), 0);
}

#[test]
fn attributes_that_the_target_does_not_know_are_skipped_and_told() {
    let scratch = Scratch::new();
    let target = scratch.path("target");
    let (volume, cx) = (RefFs::new(), Context::default());
    let file = volume.mknod(&cx, volume.root(), b"f", vfs::FileKind::File, 0o644, 0).expect("make");
    let ino = file.attr.ino;
    volume.setxattr(&cx, ino, b"btrfs.compression", b"zstd", XattrMode::Set).expect("set");
    volume.setxattr(&cx, ino, b"user.known", b"1", XattrMode::Set).expect("set");
    let skipped = RefCell::new(Vec::new());
    let progress = |event: &Event<'_>| {
        if let Event::SkippedXattr { name, .. } = event {
            skipped.borrow_mut().push(name.to_vec());
        }
    };
    let options = CopyOptions { progress: Some(&progress), ..CopyOptions::default() };
    let report = export_tree(&volume, ino, &target, &options).expect("export");
    assert_eq!(report.skipped_xattrs, 1);
    assert_eq!(*skipped.borrow(), [b"btrfs.compression".to_vec()]);
    let none = CopyOptions { xattrs: false, ..CopyOptions::default() };
    let report = export_tree(&volume, ino, &scratch.path("bare"), &none).expect("export");
    assert_eq!(report.skipped_xattrs, 0);
}

#[test]
fn deep_trees_need_no_stack() {
    let scratch = Scratch::new();
    let (source, target) = (scratch.path("s"), scratch.path("t"));
    let depth = 1500;
    let deep = format!("{}{}", source.display(), "/d".repeat(depth));
    fs::create_dir_all(&deep).expect("mkdir");
    fs::write(format!("{deep}/f"), "bottom").expect("write");
    let both_ways = || {
        let (volume, options) = (RefFs::new(), CopyOptions::default());
        import_tree(&volume, &source, volume.root(), b"t", &options).expect("import");
        export_tree(&volume, find(&volume, "t"), &target, &options).expect("export")
    };
    let report = std::thread::scope(|scope| {
        let small = std::thread::Builder::new().stack_size(128 << 10);
        let thread = small.spawn_scoped(scope, both_ways).expect("thread");
        thread.join().expect("no overflow")
    });
    assert_eq!(report.directories, depth as u64 + 1);
    let bottom = format!("{}{}/f", target.display(), "/d".repeat(depth));
    assert_eq!(fs::read(bottom).expect("read"), b"bottom");
}

#[test]
fn other_file_systems_are_left_out_on_request() {
    if !root() {
        return;
    }
    let scratch = Scratch::new();
    let source = scratch.path("source");
    fs::create_dir_all(source.join("mnt")).expect("mkdir");
    let mounted =
        try_run(Command::new("mount").args(["-t", "tmpfs", "none"]).arg(source.join("mnt")));
    if !mounted.0 {
        println!("SKIPPED: no tmpfs: {}", mounted.1);
        return;
    }
    fs::write(source.join("mnt/file"), "x").expect("write");
    let volume = RefFs::new();
    let one = CopyOptions { one_file_system: true, ..CopyOptions::default() };
    let first = import_tree(&volume, &source, volume.root(), b"one", &one);
    let all = import_tree(&volume, &source, volume.root(), b"all", &CopyOptions::default());
    let _ = Command::new("umount").arg(source.join("mnt")).output();
    assert_eq!(first.expect("import").files, 0);
    assert_eq!(all.expect("import").files, 1);
}

#[test]
fn an_owner_is_left_out_on_request() {
    if !root() {
        return;
    }
    let scratch = Scratch::new();
    let source = scratch.path("file");
    fs::write(&source, "x").expect("write");
    std::os::unix::fs::chown(&source, Some(1000), Some(1000)).expect("chown");
    fs::set_permissions(&source, fs::Permissions::from_mode(0o4755)).expect("chmod");
    let volume = RefFs::new();
    let options = CopyOptions { owners: false, ..CopyOptions::default() };
    import_tree(&volume, &source, volume.root(), b"f", &options).expect("import");
    let ino = find(&volume, "f");
    let attr = volume.getattr(ino).expect("attr");
    assert_eq!((attr.uid, attr.gid, attr.perm), (0, 0, 0o4755));
    let set = SetAttr { uid: Some(9), gid: Some(9), ..SetAttr::default() };
    volume.setattr(&Context::default(), ino, &set).expect("chown");
    export_tree(&volume, ino, &scratch.path("out"), &options).expect("export");
    assert_eq!(fs::metadata(scratch.path("out")).expect("stat").uid(), 0);
}
