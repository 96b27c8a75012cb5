//! The face: paths, handles, names, attributes, walks; and what `btrfs check` and the kernel see
//! of it afterwards.

use spinney::{
    Cause, FileOptions, FileType, FormatOptions, FsError, MemDevice, SetMetadata, Volume,
    VolumeOptions,
};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};
use testkit::oracle::{TempDir, assert_clean, with_kernel};

fn fresh() -> (Arc<MemDevice>, Volume) {
    let device = Arc::new(MemDevice::new(512 << 20));
    FormatOptions::new().label("test").format(&*device).unwrap();
    let options = VolumeOptions::new().write(true).owner(7, 8);
    let volume = options.open_device(device.clone()).unwrap();
    (device, volume)
}

fn again(device: &Arc<MemDevice>) -> Volume {
    VolumeOptions::new().open_device(device.clone()).unwrap()
}

fn errno(result: spinney::Result<impl Sized>) -> i32 {
    result.err().expect("it fails").errno().expect("a number")
}

#[test]
fn files_are_read_written_and_sought() {
    let (device, volume) = fresh();
    let mut file = volume.create("/greeting").unwrap();
    write!(file, "hello, world").unwrap();
    file.seek(SeekFrom::Start(7)).unwrap();
    file.write_all(b"there").unwrap();
    file.seek(SeekFrom::End(-5)).unwrap();
    let mut rest = String::new();
    file.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "there");
    assert!(file.seek(SeekFrom::Current(-100)).is_err());
    file.write_at(20, b"behind a hole").unwrap();
    assert_eq!(file.metadata().unwrap().len(), 33);
    file.set_len(5).unwrap();
    assert_eq!(volume.read("greeting").unwrap(), b"hello");
    drop(file);
    volume.close().unwrap();
    assert_eq!(again(&device).read("greeting").unwrap(), b"hello");
}

#[test]
fn files_open_as_they_are_asked_to() {
    let (_, volume) = fresh();
    assert_eq!(errno(volume.open_path("none")), libc::ENOENT);
    volume.write("a", b"1").unwrap();
    assert_eq!(errno(FileOptions::new().write(true).create_new(true).open(&volume, "a")), 17);
    assert_eq!(errno(volume.open_path("a").unwrap().write_at(0, b"x")), libc::EBADF);
    let mut log = FileOptions::new().append(true).create(true).open(&volume, "a").unwrap();
    log.write_all(b"2").unwrap();
    log.seek(SeekFrom::Start(0)).unwrap();
    log.write_all(b"3").unwrap();
    assert_eq!(volume.read("a").unwrap(), b"123");
    volume.create_dir("d").unwrap();
    assert_eq!(errno(volume.open_path("d")), libc::EISDIR);
    // Through a link, but not through one that leads nowhere.
    volume.symlink("a", "link").unwrap();
    volume.symlink("nowhere", "broken").unwrap();
    assert_eq!(volume.read("link").unwrap(), b"123");
    assert_eq!(errno(volume.create("broken")), libc::EEXIST);
    // As std: nothing is made for who cannot write to it.
    for wrong in [
        FileOptions::new().create(true),
        FileOptions::new().create_new(true),
        FileOptions::new().truncate(true),
        FileOptions::new().append(true).truncate(true),
        FileOptions::new().write(true).append(true).create(true).truncate(true),
    ] {
        assert_eq!(errno(wrong.open(&volume, "y")), libc::EINVAL);
        assert_eq!(errno(volume.open_path("y")), libc::ENOENT, "{wrong:?}");
        assert_eq!(errno(wrong.open(&volume, "a")), libc::EINVAL);
        let error = std::io::Error::from(wrong.open(&volume, "y").unwrap_err());
        assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
    }
    assert_eq!(volume.read("a").unwrap(), b"123");
    // To append is to write, whatever was said of that.
    let log = FileOptions::new().append(true).write(false).open(&volume, "a").unwrap();
    { log }.write_all(b"4").unwrap();
    let new = FileOptions::new().append(true).create_new(true).truncate(true);
    new.open(&volume, "z").unwrap().write_all(b"5").unwrap();
    assert_eq!(
        (volume.read("a").unwrap(), volume.read("z").unwrap()),
        (b"1234".into(), b"5".into())
    );
    let made = FileOptions::new().write(true).create(true).mode(0o777).open(&volume, "x").unwrap();
    let about = made.metadata().unwrap();
    assert_eq!((about.permissions(), about.uid(), about.gid()), (0o755, 7, 8));
}

#[test]
fn a_file_outlives_its_name_and_a_volume_its_handle() {
    let (device, volume) = fresh();
    let mut file = volume.create("gone").unwrap();
    volume.remove_file("gone").unwrap();
    file.write_all(b"still here").unwrap();
    assert_eq!(file.metadata().unwrap().nlink(), 0);
    volume.write("kept", b"1").unwrap();
    drop(volume);
    let mut back = [0; 10];
    file.read_at(0, &mut back).unwrap();
    assert_eq!(&back, b"still here");
    drop(file);
    let volume = again(&device);
    assert_eq!(volume.read("kept").unwrap(), b"1");
    assert!(!volume.exists("gone").unwrap());
    assert!(volume.check(true).unwrap().is_clean());
}

#[test]
fn names_are_made_moved_and_removed() {
    let (_, volume) = fresh();
    volume.create_dir_all("a/b/c").unwrap();
    volume.create_dir_all("/a/b").unwrap();
    volume.write("a/file", b"1").unwrap();
    assert_eq!(errno(volume.create_dir_all("a/file")), libc::EEXIST);
    assert_eq!(errno(volume.create_dir_all("a/file/x")), libc::ENOTDIR);
    assert_eq!(errno(volume.create_dir("a")), libc::EEXIST);
    volume.hard_link("a/file", "other").unwrap();
    assert_eq!(volume.metadata("other").unwrap().nlink(), 2);
    volume.rename("a/file", "a/b/file").unwrap();
    assert_eq!(errno(volume.rename_new("a/b/file", "other")), libc::EEXIST);
    volume.write("third", b"3").unwrap();
    volume.exchange("third", "a/b/file").unwrap();
    assert_eq!(volume.read("a/b/file").unwrap(), b"3");
    volume.symlink("../a/b", "a/up").unwrap();
    assert_eq!(volume.read_link("a/up").unwrap(), Path::new("../a/b"));
    assert_eq!(volume.read("a/up/file").unwrap(), b"3");
    assert_eq!(errno(volume.remove_dir("a")), libc::ENOTEMPTY);
    assert_eq!(errno(volume.remove_file("a/b")), libc::EISDIR);
    volume.remove_file("a/up").unwrap();
    volume.remove_dir_all("a").unwrap();
    let names: Vec<_> = volume.read_dir("/").unwrap();
    let names: Vec<_> = names.iter().map(|e| e.file_name().to_str().unwrap()).collect();
    assert_eq!(names, ["other", "third"]);
    volume.close().unwrap();
}

#[test]
fn attributes_are_set_and_told() {
    let (device, volume) = fresh();
    volume.write("f", b"x").unwrap();
    volume.symlink("f", "l").unwrap();
    let then = UNIX_EPOCH + Duration::new(1_000_000_000, 5);
    let before = UNIX_EPOCH - Duration::new(3, 500);
    let all = SetMetadata::new().permissions(0o4711).owner(1, 2).modified(then).accessed(before);
    volume.set_metadata("l", &all).unwrap();
    volume.set_metadata("l", &SetMetadata::new().no_follow().owner(3, 4)).unwrap();
    volume.set_xattr("f", "user.k", b"v").unwrap();
    volume.set_xattr("f", "user.a", b"").unwrap();
    volume.remove_xattr("f", "user.a").unwrap();
    assert_eq!(errno(volume.remove_xattr("f", "user.a")), libc::ENODATA);
    volume.close().unwrap();
    let volume = again(&device);
    let f = volume.metadata("l").unwrap();
    assert_eq!((f.permissions(), f.uid(), f.gid()), (0o4711, 1, 2));
    assert_eq!((f.modified(), f.accessed()), (then, before));
    let l = volume.symlink_metadata("l").unwrap();
    assert_eq!((l.file_type(), l.uid()), (FileType::Symlink, 3));
    assert_eq!(volume.xattrs("f").unwrap(), ["user.k"]);
    assert_eq!(volume.xattr("f", "user.k").unwrap().as_deref(), Some(&b"v"[..]));
    assert_eq!(volume.xattr("f", "user.a").unwrap(), None);
    assert_eq!(volume.label().unwrap(), b"test");
    assert!(volume.space().unwrap().available > 100 << 20);
    // What was opened to be read takes no changes.
    assert_eq!(errno(volume.write("f", b"y")), libc::EROFS);
    assert!(volume.transaction().is_err());
}

#[test]
fn a_walk_sees_everything_once_and_skips_what_it_is_told_to() {
    let (_, volume) = fresh();
    for dir in ["a", "a/b", "c"] {
        volume.create_dir(dir).unwrap();
        volume.write(format!("{dir}/f"), b"").unwrap();
    }
    volume.symlink("/", "c/loop").unwrap();
    let paths = |skip: &str| {
        let mut walk = volume.walk("/").unwrap();
        let mut seen = Vec::new();
        while let Some(entry) = walk.next() {
            let entry = entry.unwrap();
            let path = entry.path().to_str().unwrap().to_owned();
            assert_eq!(entry.depth(), if path == "/" { 0 } else { path.matches('/').count() });
            if path == skip {
                walk.skip_dir();
            }
            seen.push(path);
        }
        seen
    };
    assert_eq!(paths(""), ["/", "/a", "/a/b", "/a/b/f", "/a/f", "/c", "/c/f", "/c/loop"]);
    assert_eq!(paths("/a"), ["/", "/a", "/c", "/c/f", "/c/loop"]);
    assert_eq!(paths("/"), ["/"]);
}

#[test]
fn copies_share_what_they_have() {
    let (_, volume) = fresh();
    volume.write("from", &vec![3; 4 << 20]).unwrap();
    volume.sync().unwrap();
    let before = volume.space().unwrap().free;
    volume.copy("from", "to").unwrap();
    volume.sync().unwrap();
    assert_eq!(volume.read("to").unwrap(), vec![3; 4 << 20]);
    assert!(before - volume.space().unwrap().free < 1 << 20);
    assert!(volume.copy("from", "from").is_err());
}

#[test]
fn errors_say_what_and_why() {
    let (_, volume) = fresh();
    let error = volume.read("a/b").unwrap_err();
    assert_eq!(error.to_string(), "memory:a/b: no such file or directory");
    assert_eq!(error.kind(), std::io::ErrorKind::NotFound);
    assert!(matches!(error.cause(), Cause::Volume(FsError::Posix(_))));
    let io: std::io::Error = error.into();
    assert_eq!(io.kind(), std::io::ErrorKind::NotFound);
    let empty = MemDevice::new(64 << 20);
    let error = VolumeOptions::new().open_device(Arc::new(empty)).unwrap_err();
    assert!(matches!(error.cause(), Cause::Volume(FsError::NotAVolume(_))), "{error}");
    assert!(FormatOptions::new().format(&MemDevice::new(1 << 20)).is_err());
}

#[test]
fn one_image_has_one_writer() {
    let dir = TempDir::new("lib-lock").unwrap();
    let image = dir.join("disk.img");
    let volume = FormatOptions::new().create(&image, 256 << 20).unwrap();
    for second in [Volume::open(&image), Volume::open_writable(&image)] {
        assert!(matches!(second.unwrap_err().cause(), Cause::InUse(_)));
    }
    volume.close().unwrap();
    let first = Volume::open(&image).unwrap();
    let second = Volume::open(&image).unwrap();
    assert!(Volume::open_writable(&image).is_err());
    drop((first, second));
    let file = std::fs::OpenOptions::new().read(true).write(true).open(&image).unwrap();
    let volume = VolumeOptions::new().write(true).open_file(file, "disk.img").unwrap();
    volume.write("f", b"by its file").unwrap();
    assert!(Volume::open_writable(&image).is_err());
    volume.close().unwrap();
    // The kernel's lock is that of all copies of a descriptor.
    let file = std::fs::OpenOptions::new().read(true).write(true).open(&image).unwrap();
    let by = |file: &std::fs::File| {
        VolumeOptions::new().write(true).open_file(file.try_clone().unwrap(), "copy")
    };
    let volume = by(&file).unwrap();
    let refused = by(&file).unwrap_err();
    assert!(matches!(refused.cause(), Cause::InUse(_)));
    assert!(refused.to_string().contains("this program"), "{refused}");
    // Whoever was refused has not unlocked it.
    assert!(Volume::open_writable(&image).is_err());
    volume.write("g", b"by a copy").unwrap();
    volume.close().unwrap();
    by(&file).unwrap().close().unwrap();
    drop(file);
    let file = || std::fs::File::open(&image).unwrap();
    assert_eq!(Volume::open_file(file()).unwrap().read("f").unwrap(), b"by its file");
    // All writes of the one would go behind the end, and none of the other's anywhere.
    let appended = std::fs::OpenOptions::new().read(true).append(true).open(&image).unwrap();
    for file in [appended, file()] {
        let refused = VolumeOptions::new().write(true).open_file(file, "disk.img").unwrap_err();
        assert!(refused.to_string().contains("open to "), "{refused}");
        Volume::open_writable(&image).unwrap().close().unwrap();
    }
}

#[test]
fn what_is_written_the_kernel_reads() {
    testkit::require!(kernel_btrfs);
    let dir = TempDir::new("lib-kernel").unwrap();
    let image = dir.join("disk.img");
    let volume = FormatOptions::new().create(&image, 256 << 20).unwrap();
    volume.create_dir("d").unwrap();
    volume.write("d/small", b"small").unwrap();
    volume.write("d/large", &vec![5; 9 << 20]).unwrap();
    volume.copy("d/large", "d/copy").unwrap();
    volume.set_xattr("d/small", "user.k", b"v").unwrap();
    volume.rename("d/small", "moved").unwrap();
    assert!(volume.check(true).unwrap().is_clean());
    volume.close().unwrap();
    assert!(spinney::check(&image, true).unwrap().is_clean());
    assert_clean(&image);
    with_kernel(&image, "ro", |mount| {
        assert_eq!(std::fs::read(mount.join("moved")).unwrap(), b"small");
        assert_eq!(std::fs::read(mount.join("d/copy")).unwrap(), vec![5; 9 << 20]);
    })
    .unwrap();
}

#[test]
fn handles_serve_many_threads() {
    let (device, volume) = fresh();
    std::thread::scope(|scope| {
        for thread in 0..4u8 {
            let volume = volume.clone();
            scope.spawn(move || {
                for i in 0..50 {
                    volume.write(format!("{thread}-{i}"), &[thread; 5000]).unwrap();
                }
            });
        }
    });
    volume.close().unwrap();
    let volume = again(&device);
    assert_eq!(volume.read_dir("/").unwrap().len(), 200);
    assert_eq!(volume.read("3-49").unwrap(), [3; 5000]);
}
