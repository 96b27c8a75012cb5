//! A thread in a subvolume of which nodes are lost: what it can do, and what it is told.
//!
//! Invariants: an error says that something is damaged, and nothing else; what is read is what was
//! written. Of a file that a change met an error in nothing more is known.
//!
//! What it does not know: what is lost.

use crate::common::{CX, Files, find};
use btrfs_fs::BtrfsFs;
use std::collections::BTreeSet;
use testkit::ops::Rng;
use vfs::{FallocateMode, FileKind, FileSystem, Ino, RenameMode, SetAttr, XattrMode};

pub const ACTORS: u64 = 2;
pub const FILES: u64 = 220;

pub fn name(actor: u64, n: u64) -> String {
    format!("actor-{actor}-has-the-file-{n}")
}

pub fn content(rng: &mut Rng) -> Vec<u8> {
    let most = [40, 1800, 9000, 150_000][rng.below(4) as usize];
    let mut content = vec![0; 1 + rng.below(most) as usize];
    rng.fill(&mut content);
    content
}

pub fn new_file(fs: &BtrfsFs, dir: Ino, name: &str, content: &[u8]) {
    let ino = find(fs, dir, name).unwrap_or_else(|| {
        let made = fs.mknod(&CX, dir, name.as_bytes(), FileKind::File, 0o644, 0);
        made.expect("create").attr.ino
    });
    fs.setattr(&CX, ino, &size(0)).expect("cut");
    fs.write(&CX, ino, 0, content, Default::default()).expect("write");
    fs.forget(ino, 1);
}

fn size(size: u64) -> SetAttr {
    SetAttr { size: Some(size), ..SetAttr::default() }
}

/// An errno that damage may be told with.
pub fn told(errno: i32, what: &str) {
    assert!([0, libc::EUCLEAN, libc::EIO].contains(&errno), "{what}: errno {errno}");
}

pub struct Actor {
    number: u64,
    rng: Rng,
    files: Files,
    /// Names of files of which nothing is known, and that were changed perhaps.
    unsure: BTreeSet<String>,
    /// Names that have never been changed.
    same: BTreeSet<String>,
    pub refused: u64,
}

impl Actor {
    pub fn new(number: u64, all: &Files, seed: u64) -> Actor {
        let mine = format!("actor-{number}-");
        let own = all.iter().filter(|(name, _)| name.starts_with(&mine));
        let files: Files = own.map(|(name, content)| (name.clone(), content.clone())).collect();
        let (same, unsure) = (files.keys().cloned().collect(), BTreeSet::new());
        Actor { number, rng: Rng::new(seed * 7 + number), files, unsure, same, refused: 0 }
    }

    /// `None`: it met damage, and what became of `names` is not known.
    fn done<T>(&mut self, result: vfs::Result<T>, what: &str, names: &[&str]) -> Option<T> {
        match result {
            Ok(done) => Some(done),
            Err(error) => {
                told(error.errno(), what);
                self.refused += 1;
                for name in names {
                    self.files.remove(*name);
                    self.unsure.insert((*name).to_owned());
                    self.same.remove(*name);
                }
                None
            }
        }
    }

    /// Something.
    pub fn step(&mut self, fs: &BtrfsFs, dir: Ino) {
        let name = name(self.number, self.rng.below(FILES + 60));
        let looked_up = fs.lookup(&CX, dir, name.as_bytes());
        let known = self.files.contains_key(&name);
        let ino = match looked_up {
            Ok(entry) => entry.attr.ino,
            Err(error) if error.errno() == libc::ENOENT => {
                assert!(!known, "{name} is gone");
                if !self.unsure.contains(&name) {
                    self.make(fs, dir, &name);
                }
                return;
            }
            Err(error) => {
                told(error.errno(), "lookup");
                self.refused += 1;
                return;
            }
        };
        if known {
            self.change(fs, dir, ino, &name);
        }
        fs.forget(ino, 1);
    }

    fn make(&mut self, fs: &BtrfsFs, dir: Ino, name: &str) {
        let made = fs.mknod(&CX, dir, name.as_bytes(), FileKind::File, 0o644, 0);
        let Some(made) = self.done(made, "create", &[name]) else { return };
        let content = content(&mut self.rng);
        let written = fs.write(&CX, made.attr.ino, 0, &content, Default::default());
        if self.done(written, "write", &[name]).is_some() {
            self.files.insert(name.into(), content);
        }
        fs.forget(made.attr.ino, 1);
    }

    fn change(&mut self, fs: &BtrfsFs, dir: Ino, ino: Ino, name: &str) {
        if self.rng.chance(40) {
            return self.look(fs, ino, name);
        }
        let len = self.files[name].len() as u64;
        let at = self.rng.below(len + 1);
        self.same.remove(name);
        match self.rng.below(9) {
            0 | 1 => {
                let content = content(&mut self.rng);
                let written = fs.write(&CX, ino, at, &content, Default::default());
                if self.done(written, "write", &[name]).is_some() {
                    let old = self.files.get_mut(name).expect("known");
                    let (at, end) = (at as usize, at as usize + content.len());
                    old.resize(old.len().max(end), 0);
                    old[at..end].copy_from_slice(&content);
                }
            }
            2 => {
                let cut = fs.setattr(&CX, ino, &size(at));
                if self.done(cut, "truncate", &[name]).is_some() {
                    self.files.get_mut(name).expect("known").truncate(at as usize);
                }
            }
            3 => {
                let gone = fs.unlink(&CX, dir, name.as_bytes());
                if self.done(gone, "unlink", &[name]).is_some() {
                    self.files.remove(name);
                }
            }
            4 => {
                let punched = fs.fallocate(&CX, ino, FallocateMode::PunchHole, at, 9000);
                if self.done(punched, "punch", &[name]).is_some() {
                    let old = self.files.get_mut(name).expect("known");
                    let end = (at + 9000).min(len) as usize;
                    old[at as usize..end].fill(0);
                }
            }
            5 => {
                let set = fs.setxattr(&CX, ino, b"user.x", &[1; 50], XattrMode::Set);
                self.done(set, "setxattr", &[name]);
            }
            6 => self.rename(fs, dir, name),
            7 => self.clone_it(fs, dir, ino, name),
            _ => {
                let synced = fs.fsync(ino, false);
                self.done(synced, "fsync", &[]);
            }
        }
    }

    fn look(&mut self, fs: &BtrfsFs, ino: Ino, name: &str) {
        let mut there = vec![0; self.files[name].len() + 1];
        let read = fs.read(ino, 0, &mut there);
        if let Some(read) = self.done(read, "read", &[]) {
            assert!(there[..read] == self.files[name], "{name} reads otherwise");
        }
        let listed = fs.listxattr(ino);
        self.done(listed, "listxattr", &[]);
    }

    fn rename(&mut self, fs: &BtrfsFs, dir: Ino, from: &str) {
        let to = name(self.number, self.rng.below(FILES + 60));
        if to == from {
            return;
        }
        let moved = fs.rename(&CX, dir, from.as_bytes(), dir, to.as_bytes(), RenameMode::Replace);
        if self.done(moved, "rename", &[from, &to]).is_some() {
            let content = self.files.remove(from).expect("known");
            self.unsure.remove(&to);
            self.same.remove(&to);
            self.files.insert(to, content);
        }
    }

    fn clone_it(&mut self, fs: &BtrfsFs, dir: Ino, ino: Ino, from: &str) {
        let to = format!("actor-{}-clones-{}", self.number, self.rng.below(9));
        if !self.files.contains_key(&to) {
            if !self.unsure.contains(&to) {
                self.make(fs, dir, &to);
            }
            return;
        }
        let Some(into) = find(fs, dir, &to) else {
            self.files.remove(&to);
            self.unsure.insert(to);
            return;
        };
        let cut = fs.setattr(&CX, into, &size(0));
        if self.done(cut, "cut", &[&to]).is_some() {
            let cloned = fs.clone_range(&CX, ino, 0, into, 0, 0);
            if self.done(cloned, "clone", &[&to]).is_some() {
                let content = self.files[from].clone();
                self.files.insert(to, content);
            }
        }
        fs.forget(into, 1);
    }

    /// All that is known is there, or damaged; nothing is damaged any more, if there is a `before`.
    pub fn judge(&self, fs: &BtrfsFs, before: Option<&Files>) {
        let dir = find(fs, fs.root(), "victim");
        assert!(dir.is_some() || before.is_none(), "the subvolume is there");
        let Some(dir) = dir else { return };
        for (name, content) in &self.files {
            let read = fs.lookup(&CX, dir, name.as_bytes()).and_then(|entry| {
                let mut there = vec![0; content.len() + 1];
                let read = fs.read(entry.attr.ino, 0, &mut there)?;
                there.truncate(read);
                Ok(there)
            });
            match (read, before) {
                (Ok(there), _) => assert!(there == *content, "{name} is another"),
                (Err(error), None) => told(error.errno(), name),
                (Err(error), Some(_)) => panic!("{name}: {error}"),
            }
        }
        if let Some(before) = before {
            self.same.iter().for_each(|name| assert!(before[name] == self.files[name], "{name}"));
        }
    }
}
