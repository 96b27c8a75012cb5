//! What happens to such files, and to those that are about to become one: snapshots, deletion, commits
//! and fsyncs meanwhile, and who may.

use super::*;
use btrfs_fs::Caller;
use btrfs_fs::control::{verity::write_enable, wire::ENABLE_VERITY};
use std::cell::Cell;
use std::time::Duration;
use vfs::{Asker, Control, Who};

const SMALL_BLOCKS: (HashAlgorithm, u32) = (HashAlgorithm::Sha512, 1024);

fn slow() -> VerityWish {
    wish(SMALL_BLOCKS.0, SMALL_BLOCKS.1, b"slow")
}

fn snapshot(fs: &BtrfsFs, name: &str, read_only: bool) -> Ino {
    let (root, name) = (fs.root(), name.as_bytes());
    fs.snapshot(&Caller::root(), root, root, name, read_only).expect("snapshot").1.attr.ino
}

fn lookup(fs: &BtrfsFs, dir: Ino, name: &str) -> Ino {
    fs.lookup(&CX, dir, name.as_bytes()).expect("a name").attr.ino
}

#[test]
fn in_snapshots_they_are_what_they_are_in_the_source() {
    let (_dir, path) = ours();
    let fs = open(&path);
    let old = content(200_000);
    let ino = new_file(&fs, "file", &old);
    fs.enable_verity(None, ino, &plain()).expect("enable");
    let digest = fs.measure_verity(ino).expect("measure").digest();
    let (writable, locked) = (snapshot(&fs, "writable", false), snapshot(&fs, "locked", true));
    for dir in [writable, locked] {
        let copy = lookup(&fs, dir, "file");
        assert_ne!(copy, ino);
        assert_eq!(fs.measure_verity(copy).expect("measure").digest(), digest);
        assert_eq!(read(&fs, copy, 0, 1 << 20).expect("read"), old);
        let refused = errno(fs.write(&CX, copy, 0, b"x", WriteFlags::default()));
        assert_eq!(refused, if dir == writable { libc::EPERM } else { libc::EROFS });
    }
    let copy = lookup(&fs, writable, "file");
    fs.setattr(&CX, copy, &SetAttr { perm: Some(0o600), ..SetAttr::default() }).expect("chmod");
    // What becomes one in the snapshot is none in the source, and the other way round.
    let other = new_file(&fs, "other", &old);
    let later = snapshot(&fs, "later", false);
    fs.enable_verity(None, lookup(&fs, later, "other"), &plain()).expect("enable");
    assert_eq!(errno(fs.measure_verity(other)), libc::ENODATA);
    fs.write(&CX, other, 0, b"x", WriteFlags::default()).expect("write");
    let kept = lookup(&fs, later, "other");
    assert_eq!(read(&fs, kept, 0, 1 << 20).expect("read"), old);
    let in_locked = fs.enable_verity(None, lookup(&fs, locked, "file"), &plain());
    assert_eq!(errno(in_locked), libc::EROFS);
    // The source's goes; the copies stay.
    fs.unlink(&CX, fs.root(), b"file").expect("unlink");
    fs.forget(ino, 1);
    fs.sync().expect("sync");
    assert_eq!(read(&fs, copy, 0, 1 << 20).expect("read"), old);
    fs.destroy().expect("close");
    drop(fs);
    assert_sound(&path);
    let fs = open(&path);
    for (dir, name) in [("writable", "file"), ("locked", "file"), ("later", "other")] {
        let dir = lookup(&fs, fs.root(), dir);
        assert_eq!(read(&fs, lookup(&fs, dir, name), 0, 1 << 20).expect("read"), old);
    }
}

/// Each of `meanwhile` at some moments of the making of a tree; answers what became of that.
fn while_one_is_made(meanwhile: impl Fn(&BtrfsFs, Ino, u64), judge: impl Fn(&Path, bool, u64)) {
    let mut made = [0, 0];
    for round in 0..6 {
        let (_dir, path) = ours();
        let fs = open(&path);
        let ino = new_file(&fs, "file", &content(12_000_000));
        fs.sync().expect("sync");
        let enabled = std::thread::scope(|scope| {
            let enable = scope.spawn(|| fs.enable_verity(None, ino, &slow()));
            std::thread::sleep(Duration::from_millis(5 + 25 * round));
            let early = !enable.is_finished();
            meanwhile(&fs, ino, round);
            made[usize::from(early)] += 1;
            enable.join().expect("no panic")
        });
        if let Err(error) = &enabled {
            assert_eq!(error.errno(), libc::EROFS, "{error}");
        }
        fs.forget(ino, 1);
        fs.destroy().expect("close");
        drop(fs);
        assert_sound(&path);
        judge(&path, enabled.is_ok(), round);
    }
    println!("{} while it was made", made[1]);
    assert!(made[1] > 0);
}

#[test]
fn a_file_that_is_deleted_meanwhile_is_gone_with_all_of_it() {
    while_one_is_made(
        |fs, ino, round| {
            fs.unlink(&CX, fs.root(), b"file").expect("unlink");
            if round % 2 == 0 {
                fs.sync().expect("sync");
            }
            assert_eq!(fs.getattr(ino).expect("it is open").nlink, 0);
        },
        |path, _, _| {
            assert_eq!(verity_items(path), 0, "items of a file that is gone");
            let orphans = Patch::new(path).items(TOP);
            let orphans = orphans.iter().filter(|(key, _)| key.kind == kind::ORPHAN_ITEM);
            assert_eq!(orphans.count(), 0);
        },
    );
}

/// The snapshot has a whole one, or none: what it took of a half-made tree nobody sees.
#[test]
fn a_snapshot_meanwhile_has_a_whole_one_or_none() {
    while_one_is_made(
        |fs, _, round| {
            snapshot(fs, "snap", round % 2 == 0);
        },
        |path, enabled, _| {
            assert!(enabled);
            let fs = open(path);
            let snap = lookup(&fs, fs.root(), "snap");
            let copy = lookup(&fs, snap, "file");
            let old = content(12_000_000);
            assert_eq!(read(&fs, copy, 0, 13 << 20).expect("read"), old);
            let whole = fs.measure_verity(copy).is_ok();
            fs.measure_verity(lookup(&fs, fs.root(), "file")).expect("the source is one");
            let id = fs.subvolume_of(snap).expect("a subvolume").0;
            if fs.subvolume_info(id).expect("info").read_only {
                return;
            }
            match whole {
                true => assert_eq!(errno(fs.enable_verity(None, copy, &plain())), libc::EEXIST),
                false => fs.enable_verity(None, copy, &plain()).expect("enable"),
            }
            assert_eq!(read(&fs, copy, 0, 13 << 20).expect("read"), old);
            fs.destroy().expect("close");
            drop(fs);
            assert_sound(path);
        },
    );
}

#[test]
fn nothing_changes_content_while_a_tree_is_made() {
    while_one_is_made(
        |fs, ino, _| {
            let flags = WriteFlags::default();
            let refused = [
                fs.write(&CX, ino, 5, b"x", flags).map(drop),
                fs.setattr(&CX, ino, &SetAttr { size: Some(3), ..SetAttr::default() }).map(drop),
                fs.fallocate(&CX, ino, FallocateMode::PunchHole, 0, 8192),
                fs.enable_verity(None, ino, &plain()),
            ];
            for result in refused {
                let errno = errno(result);
                let known = [libc::ETXTBSY, libc::EPERM, libc::EBUSY, libc::EEXIST];
                assert!(known.contains(&errno), "{errno}");
            }
            fs.setattr(&CX, ino, &SetAttr { perm: Some(0o600), ..SetAttr::default() })
                .expect("chmod");
            fs.fsync(ino, false).expect("fsync");
        },
        |path, enabled, _| {
            assert!(enabled);
            let fs = open(path);
            let ino = lookup(&fs, fs.root(), "file");
            assert_eq!(read(&fs, ino, 0, 13 << 20).expect("read"), content(12_000_000));
        },
    );
}

#[test]
fn who_may_not_write_the_file_does_not_enable() {
    let (_dir, path) = ours();
    let fs = open(&path);
    let ino = new_file(&fs, "file", b"content");
    let other = Caller { uid: 1000, gid: 1000, ..Caller::default() };
    assert_eq!(errno(fs.enable_verity(Some(&other), ino, &plain())), libc::EACCES);
    let owned = SetAttr { uid: Some(1000), perm: Some(0o444), ..SetAttr::default() };
    fs.setattr(&CX, ino, &owned).expect("chown");
    assert_eq!(errno(fs.enable_verity(Some(&other), ino, &plain())), libc::EACCES);
    fs.setattr(&CX, ino, &SetAttr { perm: Some(0o644), ..SetAttr::default() }).expect("chmod");
    fs.enable_verity(Some(&other), ino, &plain()).expect("its owner");
    fs.measure_verity(ino).expect("measure");
    fs.destroy().expect("close");
}

/// Who asks through a mount, and how often the kernel is to send what it holds and to forget it.
struct Through {
    uid: u32,
    fetched: Cell<u32>,
}

impl Asker for Through {
    fn who(&self) -> vfs::Result<Who> {
        let (uid, admin) = (self.uid, self.uid == 0);
        let exempt = if admin { vfs::Exempt::ALL } else { vfs::Exempt::default() };
        Ok(Who { uid, gid: uid, unknown: false, groups: Vec::new(), exempt, umask: 0o22, admin })
    }

    fn fetch(&self, _: Ino) -> vfs::Result<()> {
        self.fetched.set(self.fetched.get() + 1);
        Ok(())
    }
}

#[test]
fn who_may_not_enable_makes_the_kernel_forget_nothing() {
    let (_dir, path) = ours();
    let fs = open(&path);
    let ino = new_file(&fs, "file", b"content");
    let asked = |uid, ino, wish: &VerityWish| {
        let asker = Through { uid, fetched: Cell::new(0) };
        let done = fs.control(&asker, ino, ENABLE_VERITY, &write_enable(wish, 0, 0));
        (done.err().map(|error| error.errno()), asker.fetched.get())
    };
    assert_eq!(asked(1000, ino, &plain()), (Some(libc::EACCES), 0));
    let large = wish(HashAlgorithm::Sha256, 16384, &[]);
    assert_eq!(asked(0, ino, &large), (Some(libc::EINVAL), 0));
    assert_eq!(asked(0, fs.root(), &plain()), (Some(libc::EISDIR), 0));
    let appended = new_file(&fs, "appended", b"content");
    fs.set_flags(&CX, appended, 0x20).expect("chattr");
    assert_eq!(asked(0, appended, &plain()), (Some(libc::EPERM), 0));
    assert_eq!(asked(0, ino, &plain()), (None, 2));
    assert_eq!(asked(0, ino, &plain()), (Some(libc::EEXIST), 0));
    fs.destroy().expect("close");
}

/// What an fsync says of the file, of its directory and of others behind it is there after a crash.
#[test]
fn fsyncs_behind_it_are_kept() {
    let (dir, device, fs) = simulated();
    let old = content(100_000);
    let mut there = Vec::new();
    for (at, way) in ["file", "dir", "other", "renamed", "logged before"].iter().enumerate() {
        let name = format!("f{at}");
        let ino = new_file(&fs, &name, &old);
        if *way == "logged before" {
            fs.fsync(ino, false).expect("fsync");
        }
        fs.enable_verity(None, ino, &plain()).expect("enable");
        let mut name = name;
        let mut known = true;
        match *way {
            "dir" => fs.fsync(fs.root(), false).expect("fsync"),
            "other" => {
                let other = new_file(&fs, "beside", b"x");
                fs.fsync(other, false).expect("fsync");
                // Nobody asked for this one.
                known = false;
            }
            "renamed" => {
                let root = fs.root();
                let replace = vfs::RenameMode::Replace;
                fs.rename(&CX, root, name.as_bytes(), root, b"moved", replace).expect("rename");
                name = "moved".into();
                fs.fsync(ino, false).expect("fsync");
            }
            _ => fs.fsync(ino, false).expect("fsync"),
        }
        there.push((name, known));
        let left = dir.join("left.img");
        device.recording().epochs().last().expect("one").durable.export(&left).expect("export");
        let again = open(&left);
        for (name, known) in &there {
            let Ok(entry) = again.lookup(&CX, again.root(), name.as_bytes()) else {
                assert!(!known, "{way}: {name} is gone");
                continue;
            };
            let ino = entry.attr.ino;
            assert!(!known || again.measure_verity(ino).is_ok(), "{way}: {name} is not verified");
            assert_eq!(read(&again, ino, 0, 1 << 20).expect("read"), old, "{way}: {name}");
        }
        again.destroy().expect("close");
        drop(again);
        assert_sound(&left);
    }
}
