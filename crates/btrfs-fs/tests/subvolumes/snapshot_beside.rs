//! A snapshot stops nobody: while it stands still at any of its accesses to the device (the flush of its source's
//! content, the merge, the nodes, the superblock), others make, write, read and remove files in the source, in other
//! subvolumes and beside; and it costs the same however large its source is. Structure, not time: `spinney-bench
//! subvolumes` measures. What others do in it as soon as they can find it is theirs.

#![allow(dead_code)]

use crate::{common, harness};
use blocksim::SimDevice;
use btrfs_fs::{BtrfsFs, Caller, Injection, Options, VerityWish};
use common::{CX, Image, find, stat};
use harness::{base, hold};
use hold::{Gate, Hold, work_here};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;
use vfs::{FileKind, FileSystem, Ino, RenameMode};

/// Where one stops; behind the last it is done.
const HOLDS: [Hold; 9] = [
    Hold::Write(0),
    Hold::Write(1),
    Hold::Write(2),
    Hold::Write(3),
    Hold::Write(4),
    Hold::Write(6),
    Hold::Flush(0),
    Hold::Superblock,
    Hold::Flush(1),
];

fn file(fs: &BtrfsFs, dir: Ino, name: &str, content: &[u8]) -> Ino {
    let made = fs.mknod(&CX, dir, name.as_bytes(), FileKind::File, 0o644, 0);
    let ino = made.expect("create").attr.ino;
    fs.write(&CX, ino, 0, content, Default::default()).expect("write");
    ino
}

fn subvolume(fs: &BtrfsFs, name: &str) -> Ino {
    let made = fs.create_subvolume(&Caller::root(), fs.root(), name.as_bytes());
    made.expect("create a subvolume").1.attr.ino
}

fn snapshot(fs: &BtrfsFs, source: Ino, name: &str) {
    let made = fs.snapshot(&Caller::root(), source, fs.root(), name.as_bytes(), false);
    fs.forget(made.expect("snapshot").1.attr.ino, 1);
}

/// What others do in `dir`, where `old` is a file whose content has landed.
fn work(fs: &BtrfsFs, dir: Ino, old: Ino, round: usize) {
    let name = format!("new-{round}");
    file(fs, dir, &name, &[9; 3000]);
    fs.write(&CX, old, 0, &[round as u8; 100], Default::default()).expect("write");
    let mut read = [0; 100];
    assert_eq!(fs.read(old, 0, &mut read).expect("read"), 100);
    assert_eq!(read, [round as u8; 100]);
    let moved = format!("moved-{round}");
    fs.rename(&CX, dir, name.as_bytes(), dir, moved.as_bytes(), RenameMode::Replace).expect("move");
    fs.unlink(&CX, dir, moved.as_bytes()).expect("unlink");
}

#[test]
fn others_go_on_wherever_a_snapshot_stands_still() {
    work_here();
    let gate = Gate::new(Duration::ZERO);
    let device = SimDevice::new(base::base(0).image.clone()).hooked(Some(gate.hook()));
    let fs = base::mount(Arc::new(device)).expect("mount");
    let (source, other) = (subvolume(&fs, "source"), subvolume(&fs, "other"));
    let old = [source, other, fs.root()].map(|dir| (dir, file(&fs, dir, "old", &[1; 9000])));
    fs.sync().expect("sync");
    let mut held = 0;
    for (round, hold) in HOLDS.into_iter().enumerate() {
        // Content that it has to flush.
        for n in 0..3 {
            file(&fs, source, &format!("dirty-{round}-{n}"), &[n; 70_000]);
        }
        gate.arm(hold);
        std::thread::scope(|scope| {
            let name = format!("snapshot-{round}");
            let (fs, gate) = (&fs, &gate);
            let taking = scope.spawn(move || gate.commit(|| snapshot(fs, source, &name)));
            if gate.wait_held() {
                held += 1;
                old.iter().for_each(|(dir, old)| work(fs, *dir, *old, round));
                assert!(gate.inside().is_some(), "{hold:?}: somebody waited for the snapshot");
            }
            gate.release();
            taking.join().expect("a snapshot");
        });
    }
    assert!(held >= 7, "it was held {held} times alone");
    fs.destroy().expect("close");
}

/// Nodes that are looked at, items merged, nodes written.
fn cost(fs: &BtrfsFs, step: impl FnOnce()) -> u64 {
    let counted = ["cache.hits", "cache.misses", "commit.items_merged", "commit.nodes_written"];
    let work = || counted.iter().map(|name| stat(fs, name)).sum::<u64>();
    let before = work();
    step();
    work() - before
}

#[test]
fn a_large_subvolume_costs_what_a_small_one_does() {
    let image = Image::new(512 << 20, &[]);
    let fs = image.open_with(base::options());
    let costs = [20, 20_000].map(|files| {
        let source = subvolume(&fs, &format!("of-{files}"));
        for n in 0..files {
            let ino = file(&fs, source, &format!("f{n}"), &[7; 300]);
            fs.forget(ino, 1);
        }
        (0..2).for_each(|_| fs.sync().expect("sync"));
        cost(&fs, || snapshot(&fs, source, &format!("snapshot-{files}")))
    });
    assert!(costs[1] < costs[0] * 3 / 2 + 20, "20 files cost {}, 20,000 {}", costs[0], costs[1]);
    common::close_and_judge(&image, fs);
}

/// A volume with a subvolume `source`, and what `work` does, with the root of a snapshot of that, when others can find
/// `copy` and what had no name in `source` is there still.
fn entered(
    source: impl FnOnce(&BtrfsFs, Ino),
    work: impl Fn(&Arc<BtrfsFs>, Ino) + Send + Sync + 'static,
) -> (Image, Arc<BtrfsFs>) {
    let here = Arc::new(OnceLock::<Weak<BtrfsFs>>::new());
    let there = here.clone();
    let look = move || {
        let fs = there.get().and_then(Weak::upgrade).expect("it is open");
        let copy = find(&fs, fs.root(), "copy").expect("there");
        work(&fs, copy);
    };
    let image = Image::new(512 << 20, &[]);
    let injection = Injection::in_new_snapshot(look);
    let options = Options { background: false, injection, ..Options::default() };
    let fs = Arc::new(image.open_with(options));
    here.set(Arc::downgrade(&fs)).expect("once");
    let ino = subvolume(&fs, "source");
    source(&fs, ino);
    snapshot(&fs, ino, "copy");
    (image, fs)
}

fn judged(image: &Image, fs: Arc<BtrfsFs>) {
    common::close_and_judge(image, Arc::into_inner(fs).expect("nobody else has it"));
}

/// The copy in `dir`'s subvolume of an inode of another one.
fn same_in(dir: Ino, ino: Ino) -> Ino {
    const OBJECT: u64 = (1 << 40) - 1;
    Ino(dir.0 & !OBJECT | ino.0 & OBJECT)
}

/// Both have an ORPHAN_ITEM by the time that the snapshot is cleaned.
#[test]
fn files_without_a_name_that_others_open_in_a_snapshot_at_once_stay_theirs() {
    let opened = Arc::new(Mutex::new(Vec::new()));
    let mine = opened.clone();
    let inherited = Arc::new(OnceLock::new());
    let kept = inherited.clone();
    let source = |fs: &BtrfsFs, dir| {
        file(fs, dir, "old", &[1; 9000]);
        let nameless = fs.tmpfile(&CX, dir, 0o600).expect("tmpfile").attr.ino;
        fs.write(&CX, nameless, 0, &[2; 9000], Default::default()).expect("write");
        kept.set(nameless).expect("once");
    };
    let (image, fs) = entered(source, move |fs, dir| {
        let new = fs.tmpfile(&CX, dir, 0o600).expect("tmpfile").attr.ino;
        fs.write(&CX, new, 0, &[3; 9000], Default::default()).expect("write");
        let old = find(fs, dir, "old").expect("there");
        fs.unlink(&CX, dir, b"old").expect("unlink");
        fs.sync().expect("sync");
        mine.lock().expect("no panic").extend([new, old, dir]);
    });
    let [new, old, dir] = opened.lock().expect("no panic")[..] else {
        panic!("it was called once")
    };
    let nameless = *inherited.get().expect("made");
    let mut content = [0; 9000];
    for (ino, byte) in [(new, 3), (old, 1), (nameless, 2)] {
        assert_eq!(fs.read(ino, 0, &mut content).expect("it is open"), 9000);
        assert_eq!(content, [byte; 9000]);
    }
    fs.getattr(same_in(dir, nameless)).expect_err("that of the source is erased");
    fs.link(&CX, new, dir, b"new").expect("its first name");
    for (ino, count) in [(new, 2), (old, 1), (nameless, 1), (dir, 1)] {
        fs.forget(ino, count);
    }
    fs.sync().expect("sync");
    judged(&image, fs);
}

/// It has an ORPHAN_ITEM until its tree is made.
#[test]
fn a_file_that_others_verify_in_a_snapshot_at_once_gets_its_tree() {
    const LEN: usize = 20 << 20;
    let (begun, begins) = channel();
    let (ends, ended) = channel::<()>();
    let (begins, ended) = (Mutex::new(begins), Arc::new(Mutex::new(ended)));
    // The thread alone has it: who waits hears of its end.
    let begun = Mutex::new(Some(begun));
    let verifying = Arc::new(Mutex::new(None));
    let handle = verifying.clone();
    let source = |fs: &BtrfsFs, dir| _ = file(fs, dir, "file", &[7; LEN]);
    let (image, fs) = entered(source, move |fs, dir| {
        let ino = find(fs, dir, "file").expect("there");
        let begun = begun.lock().expect("no panic").take().expect("it is called once");
        let (fs, ended) = (fs.clone(), ended.clone());
        let wish = VerityWish::of(2, 1024, b"at once", &[]).expect("a wish");
        let verify = move || {
            let mut asked = 0;
            let made = fs.enable_verity_while(None, ino, &wish, &mut || {
                asked += 1;
                if asked == 2 {
                    // A part of the tree is there; the rest comes when the snapshot is done.
                    begun.send(()).expect("it waits");
                    ended.lock().expect("no panic").recv().expect("it ends");
                }
                Ok(())
            });
            made.map(|()| ino)
        };
        *handle.lock().expect("no panic") = Some(std::thread::spawn(verify));
        begins.lock().expect("no panic").recv().expect("it begins");
    });
    ends.send(()).expect("it waits");
    let verifying = verifying.lock().expect("no panic").take().expect("it was called");
    let ino = verifying.join().expect("no panic").expect("verified");
    let mut content = vec![0; LEN];
    assert_eq!(fs.read(ino, 0, &mut content).expect("by its tree"), LEN);
    assert!(content == [7; LEN]);
    fs.forget(ino, 1);
    let copy = find(&fs, fs.root(), "copy").expect("there");
    fs.forget(copy, 2);
    fs.destroy().expect("close");
    drop(fs);
    // A kernel that was built without does not open it.
    common::assert_sound(&image.path);
}
