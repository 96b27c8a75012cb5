//! One thread's changes in a subvolume of its own, and what is in it by them.
//!
//! Invariant: a change that fails for want of room has changed nothing, or a part that the thread knows
//! of; any other error is a failure.
//!
//! What it does not know: who empties block groups meanwhile.

use crate::common::{CX, Files, files_of, find, read};
use btrfs_fs::{BtrfsFs, Defragment};
use testkit::ops::Rng;
use vfs::{FallocateMode, FileKind, FileSystem, Ino, RenameMode, SetAttr, WriteFlags};

const BLOCK: u64 = 4096;
/// Written in place, without checksums.
const NOCOW: u32 = 0x0080_0000;

/// Fails with the names of what differs.
pub fn assert_files(fs: &BtrfsFs, sub: &str, expected: &Files) {
    let found = files_of(fs, sub);
    let names: Vec<&String> = expected.keys().chain(found.keys()).collect();
    let differ: Vec<String> = names
        .into_iter()
        .filter(|name| expected.get(*name) != found.get(*name))
        .map(|name| differs(name, expected.get(name), found.get(name)))
        .collect();
    assert!(differ.is_empty(), "{sub}: {differ:?}");
}

fn differs(name: &str, expected: Option<&Vec<u8>>, found: Option<&Vec<u8>>) -> String {
    let (Some(expected), Some(found)) = (expected, found) else {
        return format!("{name}: {} there", if found.is_some() { "is" } else { "is not" });
    };
    let at = expected.iter().zip(found).position(|(a, b)| a != b);
    format!("{name}: {} bytes and {}, first at {at:?}", expected.len(), found.len())
}

pub struct Worker<'f> {
    pub fs: &'f BtrfsFs,
    pub dir: Ino,
    pub files: Files,
    pub rng: Rng,
    /// Bytes of a change, at most.
    pub most: u64,
    /// Changes that found no room.
    pub refused: u64,
    /// Some files are written in place.
    pub nocow: bool,
}

impl Worker<'_> {
    fn content(&mut self, most: u64) -> Vec<u8> {
        let mut content = vec![0; 1 + self.rng.below(most) as usize];
        self.rng.fill(&mut content);
        content
    }

    /// Whether there was room.
    fn had_room<T>(&mut self, result: vfs::Result<T>, what: &str) -> Option<T> {
        match result {
            Ok(done) => Some(done),
            Err(error) if error.errno() == libc::ENOSPC => {
                self.refused += 1;
                None
            }
            Err(error) => panic!("{what}: {error}"),
        }
    }

    fn wrote(&mut self, name: &str, at: u64, content: &[u8]) {
        let old = self.files.get_mut(name).expect("known");
        let (at, end) = (at as usize, at as usize + content.len());
        old.resize(old.len().max(end), 0);
        old[at..end].copy_from_slice(content);
    }

    fn make(&mut self, name: &str) -> Option<Ino> {
        let made = self.fs.mknod(&CX, self.dir, name.as_bytes(), FileKind::File, 0o644, 0);
        let ino = self.had_room(made, "create")?.attr.ino;
        self.files.insert(name.into(), Vec::new());
        if self.nocow && self.rng.chance(20) {
            let set = self.fs.set_flags(&CX, ino, NOCOW);
            self.had_room(set, "set flags");
        }
        Some(ino)
    }

    fn write(&mut self, ino: Ino, name: &str) {
        let len = self.files[name].len() as u64;
        let most = [100, 5000, self.most][self.rng.below(3) as usize];
        let mut content = self.content(most);
        let mut at = self.rng.below(len + 1);
        let direct = self.rng.chance(30);
        if direct {
            at = at / BLOCK * BLOCK;
            content.resize(content.len().next_multiple_of(BLOCK as usize), 1);
        }
        let flags = WriteFlags { sync: self.rng.chance(5), direct, ..WriteFlags::default() };
        let written = self.fs.write(&CX, ino, at, &content, flags);
        if let Some(count) = self.had_room(written, "write") {
            self.wrote(name, at, &content[..count]);
        }
    }

    /// One change.
    pub fn change(&mut self) {
        let name = format!("f{}", self.rng.below(40));
        if !self.files.contains_key(&name) {
            if let Some(ino) = self.make(&name) {
                self.write(ino, &name);
                self.fs.forget(ino, 1);
            }
            return;
        }
        let ino = find(self.fs, self.dir, &name).expect("there");
        match self.rng.below(12) {
            0 => {
                let gone = self.fs.unlink(&CX, self.dir, name.as_bytes());
                if self.had_room(gone, "unlink").is_some() {
                    self.files.remove(&name);
                }
            }
            1 => self.cut(ino, &name),
            2 => self.clone_it(ino, &name),
            3 => {
                let wish = Defragment { unshare: self.rng.chance(50), ..Defragment::default() };
                let done = self.fs.defragment(ino, &wish);
                self.had_room(done, "defragment");
            }
            4 | 5 => {
                let synced = self.fs.fsync(ino, self.rng.chance(50));
                self.had_room(synced, "fsync");
            }
            6 => self.punch(ino, &name),
            7 => {
                let (at, len) = (self.rng.below(200_000), 1 + self.rng.below(self.most));
                let how = FallocateMode::KeepSize;
                let done = self.fs.fallocate(&CX, ino, how, at, len);
                self.had_room(done, "allocate");
            }
            8 => {
                let to = format!("f{}", self.rng.below(40));
                let (from, new) = (name.as_bytes(), to.as_bytes());
                let done = self.fs.rename(&CX, self.dir, from, self.dir, new, RenameMode::Replace);
                if name != to && self.had_room(done, "rename").is_some() {
                    let content = self.files.remove(&name).expect("known");
                    self.files.insert(to, content);
                }
            }
            9 => {
                let found = read(self.fs, self.dir, &name);
                assert!(found == self.files[&name], "{name} reads otherwise");
            }
            _ => self.write(ino, &name),
        }
        self.fs.forget(ino, 1);
    }

    fn cut(&mut self, ino: Ino, name: &str) {
        let len = self.rng.below(self.files[name].len() as u64 + 1);
        let set = SetAttr { size: Some(len), ..SetAttr::default() };
        let done = self.fs.setattr(&CX, ino, &set);
        if self.had_room(done, "cut").is_some() {
            self.files.get_mut(name).expect("known").truncate(len as usize);
        }
    }

    fn punch(&mut self, ino: Ino, name: &str) {
        let size = self.files[name].len() as u64;
        let (at, len) = (self.rng.below(size + 1), 1 + self.rng.below(self.most));
        let done = self.fs.fallocate(&CX, ino, FallocateMode::PunchHole, at, len);
        if self.had_room(done, "punch").is_some() {
            let old = self.files.get_mut(name).expect("known");
            let end = (at + len).min(size) as usize;
            old[at as usize..end].fill(0);
        }
    }

    fn clone_it(&mut self, ino: Ino, name: &str) {
        let new = format!("c{}", self.rng.below(15));
        if self.files.contains_key(&new) {
            let gone = self.fs.unlink(&CX, self.dir, new.as_bytes());
            if self.had_room(gone, "unlink").is_none() {
                return;
            }
            self.files.remove(&new);
        }
        let made = self.fs.mknod(&CX, self.dir, new.as_bytes(), FileKind::File, 0o644, 0);
        let Some(made) = self.had_room(made, "create") else { return };
        self.files.insert(new.clone(), Vec::new());
        let flags = self.fs.flags(ino).expect("flags");
        // Both have checksums, or none has.
        let alike = self.fs.set_flags(&CX, made.attr.ino, flags & NOCOW);
        if self.had_room(alike, "set flags").is_some() {
            let cloned = self.fs.clone_range(&CX, ino, 0, made.attr.ino, 0, 0);
            if self.had_room(cloned, "clone").is_some() {
                self.files.insert(new, self.files[name].clone());
            } else {
                // A long one comes in parts.
                let gone = self.fs.unlink(&CX, self.dir, new.as_bytes());
                gone.expect("unlink");
                self.files.remove(&new);
            }
        }
        self.fs.forget(made.attr.ino, 1);
    }
}
