//! Real content: files of /usr, as many as fit, written one after the other and read back. For
//! comparing what compresses it, in time and in bytes.

use super::{Aims, Cache, Detail, Done, Env, Info, Workload, in_parallel, numbered};
use crate::target::{Access, OpenDir, OpenFile};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

const FROM: &str = "/usr";
const BLOCK: usize = 1 << 20;
/// What one file gives at most: no single one is the measurement.
const MOST: usize = 16 << 20;

pub fn all() -> Vec<Box<dyn Workload>> {
    vec![Box::new(Write), Box::new(Read)]
}

/// Read once, in the order of the names, all sides get the same.
fn contents(bytes: u64) -> &'static [Vec<u8>] {
    static CONTENTS: OnceLock<Vec<Vec<u8>>> = OnceLock::new();
    CONTENTS.get_or_init(|| {
        let (mut out, mut left) = (Vec::new(), bytes as usize);
        let mut paths = vec![PathBuf::from(FROM)];
        while let Some(path) = paths.pop() {
            if left == 0 {
                break;
            }
            if path.is_symlink() {
                continue;
            }
            if path.is_dir() {
                paths.extend(below(&path));
            } else if let Ok(mut content) = std::fs::read(&path) {
                content.truncate(MOST.min(left));
                left -= content.len();
                out.push(content);
            }
        }
        out
    })
}

fn below(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    paths.sort_by(|a, b| b.cmp(a));
    paths
}

fn write_all(env: &Env<'_>, dir: &OpenDir<'_>) -> io::Result<()> {
    let contents = contents(env.sizes.file_bytes);
    for (name, content) in numbered("f", contents.len() as u64).iter().zip(contents) {
        let file = OpenFile::create(env.target, dir.id, name)?;
        for (i, block) in content.chunks(BLOCK).enumerate() {
            file.write_at((i * BLOCK) as u64, block)?;
        }
    }
    env.target.sync()
}

fn read_all(env: &Env<'_>, dir: &OpenDir<'_>) -> io::Result<()> {
    let contents = contents(env.sizes.file_bytes);
    let mut buf = vec![0; BLOCK];
    for (name, content) in numbered("f", contents.len() as u64).iter().zip(contents) {
        let file = OpenFile::open(env.target, dir.id, name, Access::Read)?;
        for (i, block) in content.chunks(BLOCK).enumerate() {
            file.read_exact_at((i * BLOCK) as u64, &mut buf[..block.len()])?;
            if buf[..block.len()] != *block {
                return Err(io::Error::other("other content than was written"));
            }
        }
    }
    Ok(())
}

fn megabytes(env: &Env<'_>) -> f64 {
    contents(env.sizes.file_bytes).iter().map(Vec::len).sum::<usize>() as f64 / 1e6
}

struct Write;

impl Workload for Write {
    fn info(&self) -> Info {
        Info {
            name: "content-write",
            about: "files of /usr into a directory, and sync",
            unit: "MB/s",
            cache: Cache::Warm,
            aims: Aims::both(1.0, 1.5),
            standard: false,
        }
    }

    fn setup(&self, env: &Env<'_>) -> io::Result<()> {
        contents(env.sizes.file_bytes);
        env.target.sync()
    }

    fn run(&self, env: &Env<'_>) -> io::Result<Done> {
        let before = env.target.used_bytes()?;
        let dir = OpenDir::make(env.target, env.dir, c"files")?;
        let elapsed = in_parallel(1, |_| write_all(env, &dir))?;
        let after = env.target.used_bytes()?;
        let mut done = Done::new(megabytes(env), elapsed);
        let taken = after.saturating_sub(before) as f64 / 1e6;
        done.details = vec![Detail {
            name: "volume".into(),
            values: vec![("content MB", megabytes(env)), ("taken MB", taken)],
        }];
        Ok(done)
    }
}

struct Read;

impl Workload for Read {
    fn info(&self) -> Info {
        Info {
            name: "content-read",
            about: "the same files, read and compared",
            unit: "MB/s",
            cache: Cache::Cold,
            aims: Aims::both(1.0, 1.0),
            standard: false,
        }
    }

    fn setup(&self, env: &Env<'_>) -> io::Result<()> {
        write_all(env, &OpenDir::make(env.target, env.dir, c"files")?)
    }

    fn run(&self, env: &Env<'_>) -> io::Result<Done> {
        let dir = OpenDir::open(env.target, env.dir, c"files")?;
        Ok(Done::new(megabytes(env), in_parallel(1, |_| read_all(env, &dir))?))
    }
}
