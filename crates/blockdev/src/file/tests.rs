use super::*;

fn scratch(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("blockdev-{name}-{}", std::process::id()))
}

#[test]
fn an_image_that_is_in_use_is_not_emptied() {
    let path = scratch("in-use");
    let device = FileDevice::create(&path, 4096).expect("create");
    device.write_at(0, &[7; 512]).expect("write");
    let refused = FileDevice::create(&path, 8192).map(|_| ()).expect_err("in use");
    assert_eq!(refused.kind(), io::ErrorKind::ResourceBusy);
    drop(device);
    let left = std::fs::read(&path).expect("read");
    std::fs::remove_file(&path).expect("remove");
    assert!(left.len() == 4096 && left.starts_with(&[7; 512]), "{} bytes", left.len());
}

/// And whoever has it from here; a part of it stays as long as it is.
#[test]
fn a_device_grows_when_it_is_asked() {
    let path = scratch("grows");
    let device = Arc::new(FileDevice::create(&path, 8192).expect("create"));
    let span = Span { start: 4096, len: 4096 };
    let part = crate::Slice::new(Arc::clone(&device), span, "part".into()).expect("a part");
    let whole = crate::Sticky::new(crate::Slice::whole(device));
    for (len, known) in [(16384, 16384), (4096, 16384), (20000, 20000)] {
        File::options().write(true).open(&path).and_then(|file| file.set_len(len)).expect("cut");
        assert!(whole.len() != known || len < known);
        whole.grow_to_now().expect("asked");
        part.grow_to_now().expect("asked");
        assert_eq!((whole.len(), part.len()), (known, 4096));
    }
    whole.write_at(19999, &[7]).expect("write");
    assert!(whole.write_at(20000, &[7]).is_err() && part.write_at(4096, &[7]).is_err());
    std::fs::remove_file(&path).expect("remove");
}

#[test]
fn what_is_there_is_not_made_anew() {
    let (path, link) = (scratch("new"), scratch("new-link"));
    let exists = |path: &Path| {
        let made = FileDevice::create_new(path, 4096).map(|_| ());
        assert_eq!(made.expect_err("there").kind(), io::ErrorKind::AlreadyExists);
    };
    std::fs::write(&path, "there before").expect("write");
    std::os::unix::fs::symlink(path.file_name().expect("a name"), &link).expect("link");
    exists(&path);
    exists(&link);
    assert_eq!(std::fs::read(&path).expect("read"), b"there before");
    std::fs::remove_file(&path).expect("remove");
    // It fails, and leaves nothing but the link.
    FileDevice::create_new(&link, u64::MAX).map(|_| ()).expect_err("too long");
    assert!(!path.exists() && link.is_symlink());
    let (device, _) = FileDevice::create_new(&link, 4096).expect("create");
    assert!(device.len() == 4096 && path.is_file());
    drop(device);
    // It leads to itself.
    std::fs::remove_file(&link).expect("remove");
    std::os::unix::fs::symlink(&link, &link).expect("link");
    let made = FileDevice::create_new(&link, 4096).map(|_| ());
    assert_eq!(made.expect_err("a loop").raw_os_error(), Some(libc::ELOOP));
    for name in [&path, &link] {
        std::fs::remove_file(name).expect("remove");
    }
}

/// Root made the file for him, and where he wanted it.
#[test]
fn a_strangers_link_in_a_directory_of_all_is_not_followed() {
    use std::os::unix::fs::{PermissionsExt, lchown, symlink};
    let (dir, target) = (scratch("of-all"), scratch("target"));
    std::fs::create_dir(&dir).expect("mkdir");
    let mode = |mode| {
        std::fs::set_permissions(&dir, PermissionsExt::from_mode(mode)).expect("chmod");
    };
    let [theirs, own, behind] = ["theirs", "own", "behind"].map(|name| dir.join(name));
    symlink(&target, &theirs).expect("link");
    symlink(&target, &own).expect("link");
    symlink("theirs", &behind).expect("link");
    // As root; nobody else makes links of others.
    if lchown(&theirs, Some(1000), None).is_ok() {
        mode(0o1777);
        for link in [&theirs, &behind] {
            let refused = FileDevice::create_new(link, 4096).map(|_| ()).expect_err("theirs");
            assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied);
            assert!(!target.exists() && theirs.is_symlink());
        }
        // As the kernel follows them where not everybody can make any.
        mode(0o755);
        drop(FileDevice::create_new(&behind, 4096).expect("created"));
        std::fs::remove_file(&target).expect("remove");
    }
    mode(0o1777);
    drop(FileDevice::create_new(&own, 4096).expect("created"));
    assert!(target.is_file());
    std::fs::remove_file(&target).expect("remove");
    std::fs::remove_dir_all(&dir).expect("remove");
}

#[test]
fn a_new_file_that_another_has_taken_stays_his() {
    let path = scratch("taken");
    let make = || Made::through_links(&path).expect("made");
    let (file, made) = make();
    let other = FileDevice::open(&path, false, false).expect("open");
    let refused = fill_new(&file, made, 4096).expect_err("taken");
    assert!(refused.kind() == io::ErrorKind::ResourceBusy && path.exists());
    drop((other, std::fs::remove_file(&path)));
    let (file, made) = make();
    let other = FileDevice::open(&path, false, false).expect("open");
    other.set_file_len(8192).expect("length");
    drop(other);
    let refused = fill_new(&file, made, 4096).expect_err("his");
    assert_eq!(refused.kind(), io::ErrorKind::AlreadyExists);
    assert_eq!(path.metadata().expect("there").len(), 8192);
    std::fs::remove_file(&path).expect("remove");
}

#[test]
fn what_is_there_and_is_no_file_becomes_no_image() {
    let refused = FileDevice::create(Path::new("/dev/null"), 4096).map(|_| ());
    assert!(refused.expect_err("no file").to_string().contains("is no file"));
}

#[test]
fn an_image_that_cannot_be_made_leaves_no_file() {
    let (path, link) = (scratch("too-long"), scratch("too-long-link"));
    std::os::unix::fs::symlink(&path, &link).expect("link");
    for name in [&path, &link] {
        // No file is longer than what `off_t` counts.
        FileDevice::create(name, u64::MAX).map(|_| ()).expect_err("too long");
        assert!(!path.exists());
    }
    std::fs::write(&path, "there before").expect("write");
    FileDevice::create(&path, u64::MAX).map(|_| ()).expect_err("too long");
    assert!(path.exists() && link.is_symlink());
    for name in [&path, &link] {
        std::fs::remove_file(name).expect("remove");
    }
}

/// Also of another length, for which it is opened anew: it is locked all the while.
#[test]
fn a_longer_one_is_the_same_file_and_stays_locked() {
    let (path, away) = (scratch("longer"), scratch("longer-away"));
    let device = FileDevice::create(&path, 4096).expect("create");
    std::fs::rename(&path, &away).expect("rename");
    std::fs::write(&path, [1; 16]).expect("write");
    device.set_file_len(8192).expect("length");
    let longer = device.with_file_len().expect("again");
    drop(device);
    let busy = FileDevice::open(&away, false, false).map(|_| ()).expect_err("one writer");
    longer.write_at(4096, &[7; 4096]).expect("write");
    assert_eq!((busy.kind(), longer.len()), (io::ErrorKind::ResourceBusy, 8192));
    drop(longer);
    let (other, free) = (std::fs::read(&path), FileDevice::open(&away, false, false));
    for name in [&path, &away] {
        std::fs::remove_file(name).expect("remove");
    }
    assert_eq!((other.expect("read"), free.expect("free").len()), (vec![1; 16], 8192));
}

#[test]
fn a_closed_image_is_free_whoever_has_a_copy_of_its_descriptor() {
    let path = std::env::temp_dir().join(format!("blockdev-lock-{}", std::process::id()));
    let device = FileDevice::create(&path, 4096).expect("create");
    let busy = FileDevice::open(&path, false, false).map(|_| ()).expect_err("one writer");
    assert_eq!(busy.kind(), io::ErrorKind::ResourceBusy);
    let copy = device.file.try_clone().expect("as a forked child has");
    drop(device);
    let again = FileDevice::open(&path, false, false).map(|_| ());
    std::fs::remove_file(&path).expect("remove");
    again.expect("nobody uses it");
    drop(copy);
}
