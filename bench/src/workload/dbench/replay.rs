//! dbench's load, played by threads of this program, where dbench cannot go: in the
//! library.
//!
//! It does what dbench does with each operation: a name is looked up first, and where it
//! is missing the directory is searched for it in another case. Locks are not played: a
//! file system without a mount has none.

use super::load::{How, KINDS, Load, MAX_LEN, Op, PathId, Step};
use crate::target::{Access, DirId, OpenDir, OpenFile, Target, remove_children};
use crate::workload::{Detail, Done, Env, in_parallel};
use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::io::{self, ErrorKind};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// By so many clients, for so long.
pub fn run(env: &Env<'_>, load: &Load, clients: u64, limit: Duration) -> io::Result<Done> {
    let total = Mutex::new(Tally::default());
    let elapsed = in_parallel(clients, |number| {
        let mut client = Client::new(env, load, number)?;
        client.play(load, limit)?;
        total.lock().map_err(|_| io::Error::other("a client panicked"))?.add(&client.tally);
        Ok(())
    })?;
    let total = total.into_inner().map_err(|_| io::Error::other("a client panicked"))?;
    let mut done = Done::new(total.bytes as f64 / 1e6, elapsed);
    done.details = total.details();
    done.worst_ms = Some(total.kinds.iter().map(|kind| ms(kind.highest)).fold(0.0, f64::max));
    Ok(done)
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

#[derive(Clone, Copy, Default)]
struct Kind {
    count: u64,
    sum: Duration,
    highest: Duration,
}

#[derive(Default)]
struct Tally {
    bytes: u64,
    kinds: [Kind; KINDS.len()],
}

impl Tally {
    fn note(&mut self, kind: usize, time: Duration) {
        let kind = &mut self.kinds[kind];
        kind.count += 1;
        kind.sum += time;
        kind.highest = kind.highest.max(time);
    }

    fn add(&mut self, other: &Tally) {
        self.bytes += other.bytes;
        for (mine, its) in self.kinds.iter_mut().zip(&other.kinds) {
            mine.count += its.count;
            mine.sum += its.sum;
            mine.highest = mine.highest.max(its.highest);
        }
    }

    fn details(&self) -> Vec<Detail> {
        let row = |(name, kind): (&&str, &Kind)| Detail {
            name: name.to_string(),
            values: vec![
                ("Count", kind.count as f64),
                ("AvgLat", ms(kind.sum) / kind.count as f64),
                ("MaxLat", ms(kind.highest)),
            ],
        };
        KINDS.iter().zip(&self.kinds).filter(|(_, kind)| kind.count > 0).map(row).collect()
    }
}

enum Open<'a> {
    File(OpenFile<'a>),
    Dir(#[expect(dead_code, reason = "closed by dropping it")] OpenDir<'a>),
}

struct Client<'a> {
    target: &'a dyn Target,
    root: DirId,
    paths: Vec<Vec<CString>>,
    handles: HashMap<u32, Open<'a>>,
    buf: Vec<u8>,
    tally: Tally,
}

impl<'a> Client<'a> {
    fn new(env: &Env<'a>, load: &Load, number: u64) -> io::Result<Client<'a>> {
        Ok(Client {
            target: env.target,
            root: env.dir,
            paths: load.paths_of(number)?,
            handles: HashMap::new(),
            buf: vec![0; MAX_LEN],
            tally: Tally::default(),
        })
    }

    /// Over and over until the time is up.
    fn play(&mut self, load: &Load, limit: Duration) -> io::Result<()> {
        let start = Instant::now();
        loop {
            for (at, step) in load.steps.iter().enumerate() {
                let before = Instant::now();
                if before - start >= limit {
                    self.handles.clear();
                    return Ok(());
                }
                let result = self.step(step);
                self.tally.note(step.op.kind(), before.elapsed());
                if let (Err(error), true) = (result, step.succeeds) {
                    let message = format!("step {} ({:?}): {error}", at + 1, step.op);
                    return Err(io::Error::new(error.kind(), message));
                }
            }
            self.handles.clear();
        }
    }

    fn step(&mut self, step: &Step) -> io::Result<()> {
        match step.op {
            Op::Create { path, how, handle } => {
                let open = self.create(path, how)?;
                if step.succeeds {
                    self.handles.insert(handle, open);
                }
                Ok(())
            }
            Op::Close(handle) => self.handles.remove(&handle).map(drop).ok_or_else(no_handle),
            Op::Rename(from, to) => self.rename(from, to),
            Op::Unlink(path) => {
                let place = self.find(path)?;
                self.target.unlink(place.dir(), &place.name)
            }
            Op::Deltree(path) => or_missing(self.deltree(path)),
            Op::Mkdir(path) => {
                let place = self.place(path)?;
                or_exists(self.target.mkdir(place.dir(), &place.name))
            }
            Op::Qpathinfo(path) => self.find(path).map(drop),
            Op::Qfileinfo(handle) => self.with_file(handle, |file| file.size().map(drop)),
            Op::Qfsinfo => self.target.stat_fs(),
            Op::Sfileinfo(handle) => self.with_file(handle, |file| file.touch()),
            Op::Find(path) => self.list_of(path),
            Op::Write { handle, offset, len } => self.write(handle, offset, len),
            Op::Read { handle, offset, len, got } => self.read(handle, offset, len, got),
            Op::Lock(_) | Op::Unlock(_) => Ok(()),
            Op::Flush(handle) => self.with_file(handle, |file| file.fsync()),
        }
    }

    /// A directory has nothing of what is asked of a file here, and dbench's are left
    /// alone too.
    fn with_file(
        &self,
        handle: u32,
        work: impl FnOnce(&OpenFile<'a>) -> io::Result<()>,
    ) -> io::Result<()> {
        match self.handles.get(&handle) {
            Some(Open::File(file)) => work(file),
            Some(Open::Dir(_)) => Ok(()),
            None => Err(no_handle()),
        }
    }

    fn write(&mut self, handle: u32, offset: u64, len: usize) -> io::Result<()> {
        self.with_file(handle, |file| file.write_at(offset, &self.buf[..len]))?;
        self.tally.bytes += len as u64;
        Ok(())
    }

    fn read(&mut self, handle: u32, offset: u64, len: usize, got: usize) -> io::Result<()> {
        let mut buf = std::mem::take(&mut self.buf);
        let mut read = 0;
        let result = self.with_file(handle, |file| {
            read = file.read_at(offset, &mut buf[..len])?;
            Ok(())
        });
        self.buf = buf;
        result?;
        if read != got {
            return Err(io::Error::other(format!("read {read} bytes")));
        }
        self.tally.bytes += len as u64;
        Ok(())
    }

    fn create(&self, path: PathId, how: How) -> io::Result<Open<'a>> {
        let place = self.find_or_place(path)?;
        let (target, dir, name) = (self.target, place.dir(), place.name.as_c_str());
        Ok(match how {
            How::Directory => {
                or_exists(target.mkdir(dir, name))?;
                Open::Dir(OpenDir::open(target, dir, name)?)
            }
            How::Truncate => Open::File(OpenFile::create_or_truncate(target, dir, name)?),
            How::OpenOrCreate if !place.exists => Open::File(OpenFile::create(target, dir, name)?),
            How::Open | How::OpenOrCreate => {
                match OpenFile::open(target, dir, name, Access::ReadWrite) {
                    Err(e) if e.kind() == ErrorKind::IsADirectory => {
                        Open::Dir(OpenDir::open(target, dir, name)?)
                    }
                    other => Open::File(other?),
                }
            }
        })
    }

    fn rename(&self, from: PathId, to: PathId) -> io::Result<()> {
        let (from, to) = (self.find(from)?, self.find_or_place(to)?);
        self.target.rename(from.dir(), &from.name, to.dir(), &to.name)
    }

    fn deltree(&self, path: PathId) -> io::Result<()> {
        let place = self.find(path)?;
        let dir = OpenDir::open(self.target, place.dir(), &place.name)?;
        remove_children(self.target, dir.id)?;
        drop(dir);
        self.target.rmdir(place.dir(), &place.name)
    }

    /// The last component is a pattern, and all that dbench does with it is to read the
    /// directory.
    fn list_of(&self, path: PathId) -> io::Result<()> {
        let place = self.place(path)?;
        self.target.list(place.dir(), &mut |_, _| Ok(()))
    }

    /// The directory that a path leads to, and the last name.
    fn place(&self, path: PathId) -> io::Result<Resolved<'a>> {
        let parts = &self.paths[path];
        let (name, parents) = parts.split_last().ok_or(ErrorKind::InvalidInput)?;
        let mut place = Resolved { root: self.root, held: None, name: name.clone(), exists: false };
        for part in parents {
            place.held = Some(OpenDir::open(self.target, place.dir(), part)?);
        }
        Ok(place)
    }

    /// As it is called on disk, if it is there in any case.
    fn find_or_place(&self, path: PathId) -> io::Result<Resolved<'a>> {
        let mut place = self.place(path)?;
        match self.target.stat(place.dir(), &place.name) {
            Ok(_) => place.exists = true,
            Err(e) if e.kind() == ErrorKind::NotFound => {
                if let Some(name) = self.in_any_case(place.dir(), &place.name)? {
                    (place.name, place.exists) = (name, true);
                }
            }
            Err(e) => return Err(e),
        }
        Ok(place)
    }

    fn find(&self, path: PathId) -> io::Result<Resolved<'a>> {
        let place = self.find_or_place(path)?;
        if place.exists { Ok(place) } else { Err(ErrorKind::NotFound.into()) }
    }

    fn in_any_case(&self, dir: DirId, wanted: &CStr) -> io::Result<Option<CString>> {
        let mut found = None;
        self.target.list(dir, &mut |name, _| {
            if name.to_bytes().eq_ignore_ascii_case(wanted.to_bytes()) {
                found = Some(name.to_owned());
            }
            Ok(())
        })?;
        Ok(found)
    }
}

struct Resolved<'a> {
    root: DirId,
    /// None where the name is in the root itself.
    held: Option<OpenDir<'a>>,
    name: CString,
    exists: bool,
}

impl Resolved<'_> {
    fn dir(&self) -> DirId {
        self.held.as_ref().map_or(self.root, |dir| dir.id)
    }
}

fn no_handle() -> io::Error {
    io::Error::other("the handle is not open")
}

fn or_missing(result: io::Result<()>) -> io::Result<()> {
    result.or_else(|e| if e.kind() == ErrorKind::NotFound { Ok(()) } else { Err(e) })
}

fn or_exists(result: io::Result<()>) -> io::Result<()> {
    result.or_else(|e| if e.kind() == ErrorKind::AlreadyExists { Ok(()) } else { Err(e) })
}

#[cfg(test)]
mod tests {
    use super::super::load::tests::SAMPLE;
    use super::*;
    use crate::target::tests::Scratch;
    use crate::target::{PosixDir, VfsTarget};
    use crate::workload::{Material, Sizes};
    use std::sync::Arc;
    use testkit::RefFs;

    fn play(target: &dyn Target, scratch: &Scratch, text: &str) -> io::Result<Done> {
        let file = scratch.0.join("load");
        std::fs::write(&file, text).unwrap();
        let load = Load::read(&file).unwrap();
        let sizes = Sizes::scaled(0.0, 1 << 20);
        let material = Material::new(&scratch.0, &sizes, &file);
        let dir = OpenDir::make(target, target.root(), c"work").unwrap();
        let env = Env { target, dir: dir.id, dir_name: "work", sizes: &sizes, material: &material };
        // A slow device does not come to the end of the load in a moment.
        let mut done = Err(no_handle());
        for limit in [200, 2000, 20_000].map(Duration::from_millis) {
            done = run(&env, &load, 3, limit);
            remove_children(target, dir.id).unwrap();
            let each = |done: &Done| done.details.iter().all(|detail| detail.values[0].1 >= 1.0);
            if done.as_ref().map_or(true, each) {
                break;
            }
        }
        drop(dir);
        target.rmdir(target.root(), c"work").unwrap();
        done
    }

    fn check(done: &Done) {
        let names: Vec<&str> = done.details.iter().map(|detail| detail.name.as_str()).collect();
        assert_eq!(names, KINDS);
        let counts: Vec<f64> = done.details.iter().map(|detail| detail.values[0].1).collect();
        assert!(counts.iter().all(|count| *count >= 1.0), "{counts:?}");
        assert!(done.rate() > 0.0 && done.worst_ms.unwrap() > 0.0);
    }

    #[test]
    fn both_targets_can_be_played_on() {
        let scratch = Scratch::new("replay");
        let root = scratch.0.join("root");
        std::fs::create_dir(&root).unwrap();
        check(&play(&PosixDir::open(&root).unwrap(), &scratch, SAMPLE).unwrap());
        let fs = Arc::new(RefFs::new());
        check(&play(&VfsTarget::new(fs.clone()), &scratch, SAMPLE).unwrap());
        assert_eq!(fs.held_references(), 0);
    }

    #[test]
    fn an_answer_that_the_load_does_not_have_is_an_error() {
        let scratch = Scratch::new("replay-wrong");
        let target = || VfsTarget::new(Arc::new(RefFs::new()));
        let gone = SAMPLE.replace("Unlink \"\\clients\\client1\\b\"", "Unlink \"\\none\"");
        let error = play(&target(), &scratch, &gone).unwrap_err();
        assert!(error.to_string().starts_with("step 19 (Unlink"), "{error}");
        let short = SAMPLE.replace("65536 65535 NT", "65536 65536 NT");
        let error = play(&target(), &scratch, &short).unwrap_err();
        assert!(error.to_string().contains("read 65535 bytes"), "{error}");
    }
}
