//! Random histories of files, snapshots and deletions against a model, and what crashes leave of
//! them: `SPINNEY_SEED`, `SPINNEY_SEEDS` and `SPINNEY_STEPS` choose others and more.
//!
//! The model has a level of subvolumes below the top one, each with files. A crash must leave the
//! names of one moment, not before the last commit that somebody waited for; read-only snapshots
//! exactly as they were made; of other files content that they had, or as much of it as landed.

use crate::common;
use blocksim::{Image, SimDevice};
use btrfs_fs::{BtrfsFs, Caller, Delete, Options};
use common::{CX, assert_sound, seeds, steps};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use testkit::ops::Rng;
use testkit::oracle::{self, TempDir};
use vfs::{FileKind, FileSystem, Ino, SetAttr};

type Files = BTreeMap<String, Vec<u8>>;

#[derive(Clone, Default, PartialEq, Debug)]
struct Sub {
    read_only: bool,
    files: Files,
}

/// Subvolumes by name; the top level's is empty.
type World = BTreeMap<String, Sub>;

fn options() -> Options {
    Options { background: false, ..Options::default() }
}

fn dir_of(fs: &BtrfsFs, sub: &str) -> Ino {
    match sub {
        "" => fs.root(),
        name => fs.lookup(&CX, fs.root(), name.as_bytes()).expect("a subvolume").attr.ino,
    }
}

fn read(fs: &BtrfsFs, dir: Ino, name: &str) -> Vec<u8> {
    let attr = fs.lookup(&CX, dir, name.as_bytes()).expect("a file").attr;
    let mut bytes = vec![0; attr.size as usize];
    assert_eq!(fs.read(attr.ino, 0, &mut bytes).expect("read"), bytes.len());
    bytes
}

fn names(fs: &BtrfsFs, dir: Ino, kind: FileKind) -> Vec<String> {
    let mut names = Vec::new();
    let listed = fs.readdir(dir, 0, &mut |entry| {
        if entry.kind == kind && !entry.name.starts_with(b".") {
            names.push(String::from_utf8(entry.name.to_vec()).expect("UTF-8"));
        }
        true
    });
    listed.expect("list");
    names
}

fn files_of(fs: &BtrfsFs, dir: Ino) -> Files {
    let names = names(fs, dir, FileKind::File).into_iter();
    names.map(|name| (name.clone(), read(fs, dir, &name))).collect()
}

fn world_of(fs: &BtrfsFs) -> World {
    let subs = names(fs, fs.root(), FileKind::Dir).into_iter().chain([String::new()]);
    let all = fs.subvolumes().expect("list");
    subs.map(|name| {
        let info = all.iter().find(|info| info.path.as_deref() == Some(name.as_bytes()));
        let read_only = info.expect("listed").read_only;
        let files = files_of(fs, dir_of(fs, &name));
        (name, Sub { read_only, files })
    })
    .collect()
}

struct History {
    rng: Rng,
    world: World,
    made: u64,
    /// Single files are synced: what a crash leaves then is no one moment.
    syncs_files: bool,
    /// States after each step, and where the device was.
    states: Vec<(usize, World)>,
    /// States that were promised to be durable, by the position of the device.
    promises: Vec<(usize, usize)>,
    /// Read-only snapshots as they were made.
    fixed: BTreeMap<String, Files>,
}

impl History {
    fn new(seed: u64) -> History {
        let world = World::from([(String::new(), Sub::default())]);
        History {
            rng: Rng::new(seed),
            world,
            made: 0,
            syncs_files: true,
            states: Vec::new(),
            promises: Vec::new(),
            fixed: BTreeMap::new(),
        }
    }

    fn pick(&mut self, writable: bool) -> String {
        let all = self.world.iter().filter(|(_, sub)| !writable || !sub.read_only);
        let names: Vec<String> = all.map(|(name, _)| name.clone()).collect();
        self.rng.pick(&names).clone()
    }

    fn content(&mut self) -> Vec<u8> {
        let len = match self.rng.below(4) {
            0 => self.rng.below(200),
            1 => self.rng.below(4096),
            _ => self.rng.below(30_000),
        };
        let byte = self.rng.below(255) as u8;
        (0..len).map(|i| byte.wrapping_add((i / 512) as u8)).collect()
    }

    fn write(&mut self, fs: &BtrfsFs) {
        let sub = self.pick(true);
        let dir = dir_of(fs, &sub);
        let name = format!("f{}", self.rng.below(60));
        let content = self.content();
        let known = fs.lookup(&CX, dir, name.as_bytes());
        let ino = match known {
            Ok(entry) => entry.attr.ino,
            Err(_) => {
                let made = fs.mknod(&CX, dir, name.as_bytes(), FileKind::File, 0o644, 0);
                made.expect("create").attr.ino
            }
        };
        let file = self.world.get_mut(&sub).expect("known").files.entry(name).or_default();
        if self.rng.chance(30) && !content.is_empty() {
            let at = self.rng.below(file.len() as u64 + 1) as usize;
            fs.write(&CX, ino, at as u64, &content, Default::default()).expect("write");
            file.resize(file.len().max(at + content.len()), 0);
            file[at..at + content.len()].copy_from_slice(&content);
        } else {
            let cut = SetAttr { size: Some(0), ..SetAttr::default() };
            fs.setattr(&CX, ino, &cut).expect("truncate");
            fs.write(&CX, ino, 0, &content, Default::default()).expect("write");
            *file = content;
        }
    }

    fn unlink(&mut self, fs: &BtrfsFs) {
        let sub = self.pick(true);
        let files = &mut self.world.get_mut(&sub).expect("known").files;
        let Some(name) = files.keys().nth(self.rng.below(60) as usize).cloned() else { return };
        files.remove(&name);
        fs.unlink(&CX, dir_of(fs, &sub), name.as_bytes()).expect("unlink");
    }

    fn clone_file(&mut self, fs: &BtrfsFs) {
        let (from, to) = (self.pick(false), self.pick(true));
        let files = &self.world[&from].files;
        let Some(name) = files.keys().nth(self.rng.below(20) as usize).cloned() else { return };
        let content = files[&name].clone();
        let new = format!("c{}", self.rng.below(10));
        let dir = dir_of(fs, &to);
        let _ = fs.unlink(&CX, dir, new.as_bytes());
        let made = fs.mknod(&CX, dir, new.as_bytes(), FileKind::File, 0o644, 0).expect("create");
        let source = fs.lookup(&CX, dir_of(fs, &from), name.as_bytes()).expect("a file").attr;
        let cloned = fs.clone_range(&CX, source.ino, 0, made.attr.ino, 0, content.len() as u64);
        cloned.expect("clone");
        self.world.get_mut(&to).expect("known").files.insert(new, content);
    }

    fn create(&mut self, fs: &BtrfsFs) {
        self.made += 1;
        let name = format!("v{}", self.made);
        fs.create_subvolume(&Caller::root(), fs.root(), name.as_bytes()).expect("create");
        self.world.insert(name, Sub::default());
    }

    fn snapshot(&mut self, fs: &BtrfsFs) {
        let source = self.pick(false);
        self.made += 1;
        let (name, read_only) = (format!("v{}", self.made), self.rng.chance(40));
        let from = dir_of(fs, &source);
        let caller = Caller::root();
        let made = fs.snapshot(&caller, from, fs.root(), name.as_bytes(), read_only);
        made.expect("snapshot");
        let files = self.world[&source].files.clone();
        if read_only {
            self.fixed.insert(name.clone(), files.clone());
        }
        self.world.insert(name, Sub { read_only, files });
    }

    fn delete(&mut self, fs: &BtrfsFs) {
        let name = self.pick(false);
        if name.is_empty() {
            return;
        }
        let which = Delete::Name(fs.root(), name.as_bytes());
        fs.delete_subvolume(&Caller::root(), which).expect("delete");
        self.world.remove(&name);
    }

    /// One step; whether all that was done before is durable now.
    fn step(&mut self, fs: &BtrfsFs) -> bool {
        match self.rng.below(100) {
            0..50 => self.write(fs),
            50..62 => self.unlink(fs),
            62..68 => self.clone_file(fs),
            68..72 => self.create(fs),
            72..84 => {
                self.snapshot(fs);
                return true;
            }
            84..92 => self.delete(fs),
            92..95 => {
                fs.sync_deleted(&[], None).expect("sweep");
            }
            95..97 if self.syncs_files => {
                let sub = self.pick(false);
                let Some(name) = self.world[&sub].files.keys().next() else { return false };
                let ino = fs.lookup(&CX, dir_of(fs, &sub), name.as_bytes()).expect("a file");
                fs.fsync(ino.attr.ino, false).expect("fsync");
            }
            _ => {
                fs.sync().expect("sync");
                return true;
            }
        }
        false
    }

    /// Random steps; now and then one subvolume is held against the model.
    fn run(&mut self, fs: &BtrfsFs, count: usize, position: impl Fn() -> usize) {
        for _ in 0..count {
            let durable = self.step(fs);
            self.states.push((position(), self.world.clone()));
            if durable {
                self.promises.push((position(), self.states.len() - 1));
            }
            let sub = self.pick(false);
            assert_eq!(files_of(fs, dir_of(fs, &sub)), self.world[&sub].files, "{sub}");
        }
    }

    /// What may be found after a crash at a position of the device.
    fn judge(&self, found: &World, position: usize) -> Result<(), String> {
        let promised = self.promises.iter().rev().find(|(at, _)| *at <= position);
        let first = promised.map_or(0, |(_, state)| *state);
        let last = self.states.iter().take_while(|(at, _)| *at <= position).count();
        // The step that was under way may have been committed already.
        let window = &self.states[first..(last + 1).min(self.states.len())];
        let names = |world: &World| -> BTreeMap<String, BTreeSet<String>> {
            let names = |sub: &Sub| sub.files.keys().cloned().collect();
            world.iter().map(|(name, sub)| (name.clone(), names(sub))).collect()
        };
        let empty = first == 0 && found.values().all(|sub| sub.files.is_empty());
        if !empty && !window.iter().any(|(_, world)| names(world) == names(found)) {
            return Err(format!("names of no moment from {first} to {last}: {:?}", names(found)));
        }
        for (name, files) in &self.fixed {
            if let Some(there) = found.get(name)
                && there.files != *files
            {
                return Err(format!("{name} is not as it was made"));
            }
        }
        Ok(())
    }
}

fn base(seed: u64) -> (TempDir, Image) {
    let dir = TempDir::new("snapshots").expect("a directory");
    let path = dir.join("disk.img");
    let node = if seed.is_multiple_of(2) { "4096" } else { "16384" };
    oracle::mkfs_btrfs(&path, 256 << 20, &["-n", node]).expect("mkfs.btrfs");
    let image = Image::import(&path).expect("import");
    (dir, image)
}

fn exported(dir: &TempDir, image: &Image) -> std::path::PathBuf {
    let path = dir.join("out.img");
    image.export(&path).expect("export");
    path
}

/// A dead tree that nobody has dropped yet is sometimes too much for `btrfs check` (6.2: "errors
/// found in fs roots", and not which; its other mode and the kernel have none).
fn as_the_crash_left_it(path: &std::path::Path) {
    if !oracle::capabilities().btrfs_progs {
        return;
    }
    let path = path.to_string_lossy();
    let args = ["check", "--readonly", "--mode=lowmem", &path];
    oracle::sh("btrfs", &args).expect("btrfs check is content");
}

/// Files of every subvolume, as the kernel sees them.
fn kernels_world(path: &std::path::Path) -> BTreeMap<String, Files> {
    let files = |dir: &std::path::Path| -> Files {
        let entries = std::fs::read_dir(dir).expect("list").map(|entry| entry.expect("entry"));
        let files = entries.filter(|entry| entry.file_type().expect("type").is_file());
        files
            .map(|entry| {
                let name = entry.file_name().to_string_lossy().into_owned();
                (name, std::fs::read(entry.path()).expect("read"))
            })
            .collect()
    };
    common::kernel::kernel(path, "noatime", |mount| {
        let top = std::fs::read_dir(mount.path()).expect("list");
        let dirs = top.map(|e| e.expect("entry")).filter(|e| e.file_type().unwrap().is_dir());
        let mut all: BTreeMap<String, Files> = dirs
            .map(|dir| (dir.file_name().to_string_lossy().into_owned(), files(&dir.path())))
            .collect();
        all.insert(String::new(), files(mount.path()));
        all
    })
}

#[test]
fn random_histories_are_what_the_model_says() {
    for seed in seeds(1, 6) {
        println!("SPINNEY_SEED={seed} SPINNEY_SEEDS=1 SPINNEY_STEPS={}", steps(250));
        let (dir, image) = base(seed);
        let device = Arc::new(SimDevice::new(image));
        let mut history = History::new(seed);
        for _ in 0..3 {
            let fs = BtrfsFs::open_device(device.clone(), options()).expect("open");
            assert_eq!(world_of(&fs), history.world);
            history.run(&fs, steps(250) / 3, || 0);
            assert_eq!(world_of(&fs), history.world);
            fs.destroy().expect("close");
        }
        let path = exported(&dir, &device.image());
        assert_sound(&path);
        let fs = common::open_image(&path, options());
        fs.sync_deleted(&[], None).expect("sweep");
        assert_eq!(world_of(&fs), history.world);
        fs.destroy().expect("close");
        drop(fs);
        assert_sound(&path);
        if oracle::capabilities().lacking_kernel_btrfs().is_none() {
            let files = history.world.into_iter().map(|(name, sub)| (name, sub.files));
            assert_eq!(kernels_world(&path), files.collect());
        }
    }
}

#[test]
fn a_crash_leaves_one_moment() {
    for seed in seeds(100, 4) {
        println!("SPINNEY_SEED={seed} SPINNEY_SEEDS=1 SPINNEY_STEPS={}", steps(60));
        let (dir, image) = base(seed);
        let device = Arc::new(SimDevice::new(image));
        let fs = BtrfsFs::open_device(device.clone(), options()).expect("open");
        let mut history = History { syncs_files: false, ..History::new(seed) };
        history.run(&fs, steps(60), || device.position());
        drop(fs);
        let (mut crashes, mut outside) = (0, 0);
        for epoch in device.recording().epochs() {
            for choice in epoch.choices(2, seed) {
                let image = epoch.image(&choice);
                let crashed = Arc::new(SimDevice::new(image.clone()));
                let fs = BtrfsFs::open_device(crashed.clone(), options()).expect("mount");
                assert_eq!(fs.read_only_reason(), None);
                let found = world_of(&fs);
                history.judge(&found, epoch.end).unwrap_or_else(|why| {
                    panic!("{why}\nseed {seed}, before flush {}", epoch.index)
                });
                crashes += 1;
                if crashes % 12 == 0 {
                    outside += 1;
                    as_the_crash_left_it(&exported(&dir, &image));
                    fs.sync_deleted(&[], None).expect("sweep");
                    assert_eq!(world_of(&fs), found);
                    fs.destroy().expect("close");
                    assert_sound(&exported(&dir, &crashed.image()));
                }
            }
        }
        println!("{crashes} crashes, {outside} judged by btrfs check");
    }
}
