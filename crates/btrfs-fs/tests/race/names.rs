//! Names that are there all the time, however often they come to stand for something else.

use super::common::{CX, Image, close_and_judge, new_file, steps};
use super::options;
use btrfs_fs::{BtrfsFs, Caller, Delete};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use vfs::{FileKind, FileSystem, Ino, RenameMode};

/// Until `work` has ended, `other` over and over.
fn beside(work: impl FnOnce(), others: &[&(dyn Fn() + Sync)]) {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for other in others {
            scope.spawn(|| {
                while !done.load(SeqCst) {
                    other();
                }
            });
        }
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        done.store(true, SeqCst);
        ended.unwrap();
    });
}

fn with_volume(test: impl FnOnce(&BtrfsFs)) {
    let image = Image::new(1 << 30, &[]);
    let fs = image.open_with(options(1));
    test(&fs);
    close_and_judge(&image, fs);
}

fn dir(fs: &BtrfsFs, above: Ino, name: &str) -> Ino {
    fs.mkdir(&CX, above, name.as_bytes(), 0o755).expect("mkdir").attr.ino
}

fn looked_up(fs: &BtrfsFs, above: Ino, name: &str) -> Ino {
    let found = fs.lookup(&CX, above, name.as_bytes());
    let ino = found.unwrap_or_else(|error| panic!("{name} is there: {error:?}")).attr.ino;
    fs.forget(ino, 1);
    ino
}

fn rename(fs: &BtrfsFs, from: (Ino, &str), to: (Ino, &str), mode: RenameMode) {
    let done = fs.rename(&CX, from.0, from.1.as_bytes(), to.0, to.1.as_bytes(), mode);
    done.unwrap_or_else(|error| panic!("{} to {}: {error:?}", from.1, to.1));
}

fn commit(fs: &BtrfsFs) {
    fs.sync().expect("commit");
    std::thread::sleep(std::time::Duration::from_millis(2));
}

#[test]
fn a_name_that_is_replaced_is_always_there() {
    testkit::require!(kernel_btrfs);
    with_volume(|fs| {
        let top = fs.root();
        new_file(fs, "name", b"first");
        beside(
            || {
                for _ in 0..steps(3000) {
                    let made = fs.mknod(&CX, top, b"new", FileKind::File, 0o644, 0);
                    fs.forget(made.expect("create").attr.ino, 1);
                    rename(fs, (top, "new"), (top, "name"), RenameMode::Replace);
                }
            },
            &[&|| _ = looked_up(fs, top, "name"), &|| commit(fs)],
        );
    });
}

#[test]
fn names_that_are_exchanged_are_always_there() {
    testkit::require!(kernel_btrfs);
    with_volume(|fs| {
        let top = fs.root();
        new_file(fs, "one", b"1");
        new_file(fs, "two", b"2");
        beside(
            || {
                for _ in 0..steps(3000) {
                    rename(fs, (top, "one"), (top, "two"), RenameMode::Exchange);
                }
            },
            &[
                &|| _ = looked_up(fs, top, "one"),
                &|| {
                    let done = fs.rename(&CX, top, b"two", top, b"one", RenameMode::NoReplace);
                    assert_eq!(done.expect_err("it is there").errno(), libc::EEXIST);
                },
                &|| commit(fs),
            ],
        );
    });
}

#[test]
fn the_way_up_is_always_there() {
    testkit::require!(kernel_btrfs);
    with_volume(|fs| {
        let top = fs.root();
        let above = dir(fs, top, "above");
        let middle = dir(fs, above, "middle");
        let below = dir(fs, middle, "below");
        dir(fs, top, "moved");
        beside(
            || {
                for _ in 0..steps(2000) {
                    rename(fs, (above, "middle"), (above, "other"), RenameMode::Replace);
                    rename(fs, (above, "other"), (above, "middle"), RenameMode::Replace);
                }
            },
            &[
                &|| assert_eq!(looked_up(fs, middle, ".."), above),
                &|| {
                    rename(fs, (top, "moved"), (below, "moved"), RenameMode::Replace);
                    rename(fs, (below, "moved"), (top, "moved"), RenameMode::Replace);
                },
                &|| {
                    let mut up = None;
                    fs.readdir(middle, 1, &mut |entry| {
                        up = Some(entry.ino);
                        false
                    })
                    .expect("readdir");
                    assert_eq!(up, Some(above));
                },
                &|| commit(fs),
            ],
        );
    });
}

#[test]
fn a_subvolume_that_moves_is_found_or_not() {
    testkit::require!(kernel_btrfs);
    with_volume(|fs| {
        let (top, root) = (fs.root(), Caller::root());
        let (id, entry) = fs.create_subvolume(&root, top, b"one").expect("a subvolume");
        let real = entry.attr.ino;
        let look = |name: &[u8]| match fs.lookup(&CX, top, name) {
            Ok(entry) => {
                assert_eq!(entry.attr.ino, real, "the subvolume itself");
                fs.forget(real, 1);
            }
            Err(error) => assert_eq!(error.errno(), libc::ENOENT, "{error:?}"),
        };
        beside(
            || {
                for _ in 0..steps(600) {
                    rename(fs, (top, "one"), (top, "two"), RenameMode::Replace);
                    rename(fs, (top, "two"), (top, "one"), RenameMode::Replace);
                    let made = fs.snapshot(&root, real, top, b"snapshot", false);
                    fs.forget(made.expect("snapshot").1.attr.ino, 1);
                    let which = Delete::Name(top, b"snapshot");
                    fs.delete_subvolume(&root, which).expect("delete");
                }
            },
            &[
                &|| look(b"one"),
                &|| look(b"two"),
                &|| {
                    let info = fs.subvolume_info(id).expect("it is there");
                    let path = info.path.expect("a path");
                    assert!([&b"one"[..], b"two"].contains(&&path[..]), "{path:?}");
                },
                // While it is deleted it is gone for who comes to it, and no empty directory.
                &|| match fs.lookup(&CX, top, b"snapshot") {
                    Ok(entry) => {
                        let found = fs.subvolume_of(entry.attr.ino);
                        fs.forget(entry.attr.ino, 1);
                        match found {
                            Ok((_, is_root)) => assert!(is_root, "no stand-in"),
                            Err(e) => assert_eq!(e.errno(), libc::ESTALE, "{e:?}"),
                        }
                    }
                    Err(error) => {
                        assert!([libc::ENOENT, libc::ESTALE].contains(&error.errno()), "{error:?}")
                    }
                },
            ],
        );
    });
}

#[test]
fn what_stays_is_listed_once() {
    testkit::require!(kernel_btrfs);
    with_volume(|fs| {
        let top = fs.root();
        let wanted: Vec<String> = (0..700).map(|n| format!("stays{n}")).collect();
        let made = |name: &str| {
            let made = fs.mknod(&CX, top, name.as_bytes(), FileKind::File, 0o644, 0);
            fs.forget(made.expect("create").attr.ino, 1);
        };
        for (n, name) in wanted.iter().enumerate() {
            made(name);
            made(&format!("goes{n}"));
        }
        fs.sync().expect("commit");
        let turn = AtomicU64::new(0);
        let change = || {
            let turn = turn.fetch_add(1, SeqCst);
            let (old, new) = (format!("goes{}", turn % 700), format!("new{turn}"));
            rename(fs, (top, &old), (top, &new), RenameMode::Replace);
            fs.unlink(&CX, top, new.as_bytes()).expect("unlink");
            made(&old);
        };
        beside(
            || {
                for _ in 0..steps(150) {
                    let mut seen = Vec::new();
                    fs.readdir(top, 0, &mut |entry| {
                        seen.push(String::from_utf8_lossy(entry.name).into_owned());
                        true
                    })
                    .expect("readdir");
                    seen.retain(|name| name.starts_with("stays"));
                    assert!(seen == wanted, "each once, and in order");
                }
            },
            &[&change, &|| commit(fs)],
        );
    });
}
