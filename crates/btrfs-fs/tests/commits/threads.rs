//! Many threads at once, with commits running all the time and a node cache that is
//! too small: each in a directory of its own against a model of its own, then all over
//! the same few names. And one file that is written while others write it anew and share it.
//!
//! `SPINNEY_SEED`, `SPINNEY_SEEDS` and `SPINNEY_STEPS` choose other seeds and more.

use crate::common;
use btrfs_fs::{BtrfsFs, Defragment, Options};
use common::{CX, Image, close_and_judge, judge, new_file, seeds, snapshot, steps};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use testkit::ops::{Config, OpKind, Rng, Tolerance, check_private_trees, check_shared_tree};
use vfs::{FileSystem, Ino};

/// Runs `work` beside a thread that commits without pause.
fn with_commits(fs: &BtrfsFs, work: impl FnOnce() -> Result<(), String>) {
    let done = AtomicBool::new(false);
    let result = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                fs.sync().expect("commit");
                std::thread::sleep(Duration::from_millis(3));
            }
        });
        let result = work();
        done.store(true, Ordering::Relaxed);
        result
    });
    if let Err(report) = result {
        panic!("{report}");
    }
}

/// `work` gets a volume, a seed and its number of steps; once for each seed.
fn run(first: u64, work: impl Fn(&BtrfsFs, u64, usize) -> Result<(), String>) {
    for seed in seeds(first, 1) {
        println!("SPINNEY_SEED={seed} SPINNEY_SEEDS=1 SPINNEY_STEPS={}", steps(1500));
        let image = Image::new(1 << 30, &[]);
        let fs = image.open_with(Options { cache_bytes: 1 << 20, ..common::inodes(seed) });
        with_commits(&fs, || work(&fs, seed, steps(1500)));
        let expected = snapshot(&fs);
        fs.destroy().expect("close");
        drop(fs);
        judge(&image.path, &expected);
    }
}

#[test]
fn each_in_its_own_directory() {
    testkit::require!(kernel_btrfs);
    let config = Config::all().without(&[OpKind::Seek]);
    let tolerance = Tolerance { tree_every: 300, ..Tolerance::default() };
    for first in [100, 101] {
        run(first, |fs, seed, steps| check_private_trees(fs, seed, 8, steps, &config, &tolerance));
    }
}

#[test]
fn all_over_the_same_names() {
    testkit::require!(kernel_btrfs);
    run(7001, |fs, seed, steps| check_shared_tree(fs, seed, 16, steps, &Config::all()));
}

/// One that is written, with others at it.
struct Busy<'a> {
    fs: &'a BtrfsFs,
    ino: Ino,
    len: u64,
    done: AtomicBool,
}

impl Busy<'_> {
    /// Until the writer has ended.
    fn meanwhile(&self, mut work: impl FnMut()) {
        while !self.done.load(Ordering::Relaxed) {
            work();
        }
    }

    /// Answers what is there in the end.
    fn write(&self, seed: u64, steps: usize) -> Vec<u8> {
        let (mut rng, mut content) = (Rng::new(seed), vec![0; self.len as usize]);
        for step in 0..steps {
            let (len, block) = (1 + rng.below(9000), rng.below(self.len / 4096 - 3));
            let mut data = vec![0; len as usize];
            rng.fill(&mut data);
            self.fs.write(&CX, self.ino, block * 4096, &data, Default::default()).expect("write");
            content[block as usize * 4096..][..data.len()].copy_from_slice(&data);
            if step % 16 == 0 {
                self.fs.fsync(self.ino, true).expect("fsync");
            }
        }
        self.done.store(true, Ordering::Relaxed);
        content
    }
}

#[test]
fn a_file_is_written_anew_and_shared_while_it_is_written() {
    testkit::require!(kernel_btrfs);
    for seed in seeds(300, 1) {
        let image = Image::new(1 << 30, &[]);
        let fs = image.open_with(Options::default());
        let len = 40 << 20;
        let ino = new_file(&fs, "file", &vec![0; len]);
        let [whole, parts] = ["whole", "parts"].map(|name| new_file(&fs, name, &vec![0; len]));
        let busy = Busy { fs: &fs, ino, len: len as u64, done: AtomicBool::new(false) };
        let content = std::thread::scope(|scope| {
            scope.spawn(|| {
                busy.meanwhile(|| {
                    let wish = Defragment { unshare: true, ..Defragment::default() };
                    fs.defragment(ino, &Defragment::default()).expect("defragment");
                    fs.defragment(ino, &wish).expect("defragment what is shared, too");
                })
            });
            scope.spawn(|| {
                busy.meanwhile(|| {
                    fs.clone_some((ino, 0), (parts, 0), busy.len).expect("clone a part");
                    fs.clone_range(&CX, ino, 0, whole, 0, busy.len).expect("clone");
                })
            });
            scope.spawn(|| busy.meanwhile(|| fs.sync().expect("commit")));
            busy.write(seed, steps(4000))
        });
        let mut read = vec![0; len];
        assert_eq!(fs.read(ino, 0, &mut read).expect("read"), len);
        assert!(read == content, "SPINNEY_SEED={seed}: what was written is there");
        close_and_judge(&image, fs);
    }
}
