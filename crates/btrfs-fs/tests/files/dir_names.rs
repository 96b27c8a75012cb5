//! What a directory in memory knows of its names agrees with what layers have, whatever gives it names and
//! takes them away, and whenever it leaves memory: a name that is listed is found and is not made a second
//! time, one that is not listed can be made.

use crate::common;
use btrfs_fs::{BtrfsFs, Caller, Delete, Options};
use common::forge::forged;
use common::{CX, Image, assert_sound, errno, seeds, stat, steps};
use std::collections::BTreeSet;
use testkit::ops::Rng;
use vfs::{Entry, FileKind, FileSystem, Ino, RenameMode};

fn list(fs: &BtrfsFs, dir: Ino) -> BTreeSet<Vec<u8>> {
    let mut names = BTreeSet::new();
    let mut take = |entry: &vfs::DirEntry<'_>| {
        names.insert(entry.name.to_vec());
        true
    };
    fs.readdir(dir, 2, &mut take).expect("list");
    names
}

/// Gives back the reference that came with it; false: none came.
fn forget(fs: &BtrfsFs, entry: vfs::Result<Entry>) -> bool {
    match entry {
        Ok(entry) => fs.forget(entry.attr.ino, 1),
        Err(_) => return false,
    }
    true
}

fn make(fs: &BtrfsFs, dir: Ino, name: &[u8]) -> vfs::Result<()> {
    let made = fs.mknod(&CX, dir, name, FileKind::File, 0o644, 0)?;
    fs.forget(made.attr.ino, 1);
    Ok(())
}

/// Directories by their paths from the root, each with one claim, and names for what is in them.
struct World {
    fs: BtrfsFs,
    dirs: Vec<(Vec<u8>, Ino)>,
    names: Vec<Vec<u8>>,
    rng: Rng,
}

const DIRS: usize = 3;

impl World {
    fn new(fs: BtrfsFs, seed: u64) -> World {
        let mut dirs = Vec::new();
        for n in 0..DIRS {
            let name = format!("dir-{n}").into_bytes();
            let ino = match n {
                0 => fs.create_subvolume(&Caller::root(), fs.root(), &name).expect("make").1.attr,
                _ => fs.mkdir(&CX, fs.root(), &name, 0o755).expect("mkdir").attr,
            };
            dirs.push((name, ino.ino));
        }
        let mut names = forged("n", 0x0bad_cafe, 12, 4);
        names.extend((0..8u8).map(|n| vec![b'a' + n]));
        World { fs, dirs, names, rng: Rng::new(seed) }
    }

    fn dir(&mut self) -> Ino {
        self.dirs[self.rng.below(DIRS as u64) as usize].1
    }

    fn name(&mut self) -> Vec<u8> {
        self.names[self.rng.below(self.names.len() as u64) as usize].clone()
    }

    /// It leaves memory with the next commit, and is looked up again.
    fn evict(&mut self) {
        let n = self.rng.below(DIRS as u64) as usize;
        self.fs.forget(self.dirs[n].1, 1);
        self.fs.sync().expect("commit");
        let found = self.fs.lookup(&CX, self.fs.root(), &self.dirs[n].0).expect("look up");
        assert_eq!(found.attr.ino, self.dirs[n].1);
    }

    fn rename(&mut self) {
        let (from, to) = (self.dir(), self.dir());
        let (name, new_name) = (self.name(), self.name());
        let modes = [
            RenameMode::Replace,
            RenameMode::NoReplace,
            RenameMode::Exchange,
            RenameMode::Whiteout,
            RenameMode::NoReplaceWhiteout,
        ];
        let mode = modes[self.rng.below(5) as usize];
        let _refused = self.fs.rename(&CX, from, &name, to, &new_name, mode);
    }

    fn link(&mut self) {
        let (from, to) = (self.dir(), self.dir());
        let (name, new_name) = (self.name(), self.name());
        let Ok(found) = self.fs.lookup(&CX, from, &name) else { return };
        if self.fs.link(&CX, found.attr.ino, to, &new_name).is_ok() {
            self.fs.forget(found.attr.ino, 1);
        }
        self.fs.forget(found.attr.ino, 1);
    }

    fn subvolume(&mut self) {
        let (dir, name) = (self.dir(), self.name());
        let made = match self.rng.below(2) {
            0 => self.fs.create_subvolume(&Caller::root(), dir, &name),
            _ => self.fs.snapshot(&Caller::root(), self.dirs[0].1, dir, &name, false),
        };
        forget(&self.fs, made.map(|made| made.1));
    }

    fn remove(&mut self) {
        let (dir, name) = (self.dir(), self.name());
        let removed = self.fs.unlink(&CX, dir, &name).or_else(|_| self.fs.rmdir(&CX, dir, &name));
        if removed.is_err() {
            let _none = self.fs.delete_subvolume(&Caller::root(), Delete::Name(dir, &name));
        }
    }

    fn step(&mut self) {
        let (dir, name) = (self.dir(), self.name());
        match self.rng.below(20) {
            0..5 => {
                let there = list(&self.fs, dir).contains(&name);
                let made = make(&self.fs, dir, &name);
                assert_eq!(errno(made), if there { libc::EEXIST } else { 0 });
            }
            5 => _ = forget(&self.fs, self.fs.mkdir(&CX, dir, &name, 0o755)),
            6 | 7 => self.link(),
            8..11 => self.rename(),
            11 | 12 => self.subvolume(),
            13..17 => self.remove(),
            17 => self.fs.sync().expect("commit"),
            _ => self.evict(),
        }
    }

    fn check(&self) {
        for (path, dir) in &self.dirs {
            let listed = list(&self.fs, *dir);
            for name in &self.names {
                let is_found = forget(&self.fs, self.fs.lookup(&CX, *dir, name));
                assert_eq!(is_found, listed.contains(name), "{name:?} in {path:?}");
            }
        }
    }
}

#[test]
fn what_is_listed_is_found_and_not_made_again() {
    for seed in seeds(0, 6) {
        println!("seed {seed}");
        let image = Image::new(256 << 20, &[]);
        let mut world = World::new(image.open(), seed);
        for step in 0..steps(300) {
            println!("step {step}");
            world.step();
            world.check();
        }
        world.fs.destroy().expect("close");
        drop(world);
        assert_sound(&image.path);
    }
}

fn looked_at(fs: &BtrfsFs) -> u64 {
    stat(fs, "cache.hits") + stat(fs, "cache.misses")
}

/// Nodes that making `count` names looks at.
fn cost_of_names(fs: &BtrfsFs, dir: Ino, prefix: &str, count: usize) -> u64 {
    let before = looked_at(fs);
    for n in 0..count {
        let name = format!("{prefix}{n}");
        assert_eq!(errno(fs.lookup(&CX, dir, name.as_bytes())), libc::ENOENT);
        make(fs, dir, name.as_bytes()).expect("make");
    }
    looked_at(fs) - before
}

#[test]
fn new_names_need_no_look_at_the_trees_while_the_directory_is_in_memory() {
    let image = Image::new(256 << 20, &[]);
    let fs = image.open();
    let dir = fs.mkdir(&CX, fs.root(), b"dir", 0o755).expect("mkdir").attr.ino;
    cost_of_names(&fs, dir, "a", 1000);
    fs.sync().expect("commit");
    assert_eq!(cost_of_names(&fs, dir, "b", 100), 0);
    fs.sync().expect("commit");
    // What the layers below alone have is there.
    for name in ["a7", "b7"] {
        assert_eq!(errno(make(&fs, dir, name.as_bytes())), libc::EEXIST);
    }
    fs.forget(dir, 1);
    fs.sync().expect("commit");
    assert_eq!(fs.lookup(&CX, fs.root(), b"dir").expect("look up").attr.ino, dir);
    for name in ["a7", "b7"] {
        assert_eq!(errno(make(&fs, dir, name.as_bytes())), libc::EEXIST);
    }
    let costs = cost_of_names(&fs, dir, "c", 100);
    assert!(costs >= 100, "loaded anew, nothing is known of it: {costs}");
}

/// The volume's budget has room for few names.
#[test]
fn a_directory_of_more_names_than_can_be_known_works() {
    let image = Image::new(256 << 20, &[]);
    let options = Options { inode_bytes: 20_000, background: false, ..Options::default() };
    let fs = image.open_with(options);
    let dir = fs.mkdir(&CX, fs.root(), b"dir", 0o755).expect("mkdir").attr.ino;
    let costs: Vec<u64> = ["a", "b", "c"]
        .iter()
        .map(|prefix| {
            fs.sync().expect("commit");
            cost_of_names(&fs, dir, prefix, 200)
        })
        .collect();
    assert!(costs[2] >= 200, "{costs:?}");
    for n in 0..200 {
        assert_eq!(errno(make(&fs, dir, format!("a{n}").as_bytes())), libc::EEXIST);
    }
    assert_eq!(list(&fs, dir).len(), 600);
    fs.destroy().expect("close");
    drop(fs);
    assert_sound(&image.path);
}
