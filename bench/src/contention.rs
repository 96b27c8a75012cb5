//! `spinney-bench contention`: how often operations of the library wait for a lock, and where.
//!
//! Each thread works in a directory of its own, so whoever waits waits for something that
//! operations share. Counts, not times: they hold on a busy machine as well, but threads beyond
//! the processors meet where one was stopped with a lock held.
//!
//! What it does not know: sides and rounds of the other commands; locks of other crates than
//! `locks` (FUSE's, devices').

use crate::cli::verb;
use crate::side::Engine;
use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Barrier;
use vfs::{Context, FileKind, FileSystem, FsError, Ino};

pub const USAGE: &str = "\
usage: spinney-bench contention [--files N] [--dir DIR] [--markdown FILE]

Operations of 1, 2, 8 and 64 threads on N files in all (default 64,000), on an image in DIR
(/dev/shm), and how often 1,000 of them waited for a lock in each file of the sources.
";

const THREADS: [u64; 4] = [1, 2, 8, 64];

struct Options {
    files: u64,
    dir: PathBuf,
    markdown: Option<PathBuf>,
}

/// One thread's work.
struct Worker<'a> {
    fs: &'a dyn FileSystem,
    cx: Context,
    dir: Ino,
    files: u64,
}

/// A kind of operation on each file of a worker, and how many calls one file is.
type Step = (&'static str, fn(&Worker<'_>, u64) -> vfs::Result<()>);

const STEPS: [Step; 6] = [
    ("create", |w, n| {
        let made = w.fs.mknod(&w.cx, w.dir, &name(n), FileKind::File, 0o644, 0)?;
        w.fs.forget(made.attr.ino, 1);
        Ok(())
    }),
    ("look up", |w, n| w.on(n, |_| Ok(()))),
    ("write 4 KiB", |w, n| {
        w.on(n, |ino| w.fs.write(&w.cx, ino, 0, &[7; 4096], Default::default()).map(drop))
    }),
    ("write and fsync", |w, n| {
        // A file in sixteen: they take as long as all the others.
        if !n.is_multiple_of(16) {
            return Ok(());
        }
        w.on(n, |ino| {
            w.fs.write(&w.cx, ino, 0, &[8; 4096], Default::default())?;
            w.fs.fsync(ino, false)
        })
    }),
    ("rename", |w, n| {
        let to = [b"to-", &*name(n)].concat();
        w.fs.rename(&w.cx, w.dir, &name(n), w.dir, &to, vfs::RenameMode::Replace)
    }),
    ("unlink", |w, n| w.fs.unlink(&w.cx, w.dir, &[b"to-", &*name(n)].concat())),
];

fn name(number: u64) -> Vec<u8> {
    format!("file-{number}").into_bytes()
}

impl Worker<'_> {
    fn on(&self, n: u64, work: impl FnOnce(Ino) -> vfs::Result<()>) -> vfs::Result<()> {
        let ino = self.fs.lookup(&self.cx, self.dir, &name(n))?.attr.ino;
        let done = work(ino);
        self.fs.forget(ino, 1);
        done
    }
}

/// A row: a step by so many threads.
struct Row {
    step: &'static str,
    threads: u64,
    operations: u64,
    waits: Vec<locks::Waits>,
}

/// Begins with the word behind `contention`.
pub fn main(words: &[String], engine: Engine) -> ExitCode {
    verb::main("contention", USAGE, parse(words), |options| measure(&options, engine))
}

fn parse(words: &[String]) -> Result<Options, String> {
    let mut options = Options { files: 64_000, dir: "/dev/shm".into(), markdown: None };
    verb::each(words, |given| {
        match given.option {
            "--files" => options.files = given.at_least(64)?,
            "--dir" => options.dir = given.path(),
            "--markdown" => options.markdown = Some(given.path()),
            _ => return given.is_unknown(),
        }
        Ok(())
    })?;
    Ok(options)
}

fn measure(options: &Options, engine: Engine) -> io::Result<()> {
    let image = options.dir.join(format!("spinney-contention-{}.img", std::process::id()));
    let mut rows = Vec::new();
    for threads in THREADS {
        testkit::oracle::mkfs_btrfs(&image, 4 << 30, &[]).map_err(io::Error::other)?;
        let measured = by_threads(&image, engine, threads, options.files / threads);
        std::fs::remove_file(&image)?;
        rows.extend(measured?);
    }
    let text = to_markdown(&rows);
    print!("{text}");
    options.markdown.as_ref().map_or(Ok(()), |file| std::fs::write(file, text))
}

fn by_threads(image: &Path, engine: Engine, threads: u64, files: u64) -> io::Result<Vec<Row>> {
    let fs = (engine.open)(image, "")?;
    let cx = Context { umask: 0o022, ..Context::default() };
    let mut rows = Vec::new();
    let dirs: vfs::Result<Vec<Ino>> = (0..threads)
        .map(|t| Ok(fs.mkdir(&cx, fs.root(), format!("d{t}").as_bytes(), 0o755)?.attr.ino))
        .collect();
    let dirs = dirs.map_err(other)?;
    for (step, work) in STEPS {
        locks::take_waits();
        let barrier = Barrier::new(threads as usize);
        let run = |dir: Ino| {
            let worker = Worker { fs: &*fs, cx, dir, files };
            barrier.wait();
            (0..worker.files).try_for_each(|n| work(&worker, n))
        };
        std::thread::scope(|scope| {
            let running: Vec<_> = dirs.iter().map(|dir| scope.spawn(|| run(*dir))).collect();
            running.into_iter().try_for_each(|thread| thread.join().expect("no panic"))
        })
        .map_err(other)?;
        let each = if step == "write and fsync" { 16 } else { 1 };
        let operations = threads * files.div_ceil(each);
        rows.push(Row { step, threads, operations, waits: locks::take_waits() });
    }
    fs.destroy().map_err(other)?;
    Ok(rows)
}

fn other(error: FsError) -> io::Error {
    io::Error::other(error.to_string())
}

/// Waits for each 1,000 operations: in all, and in the files that have most.
fn to_markdown(rows: &[Row]) -> String {
    let mut text = String::from(
        "| operation | threads | operations | waits for 1,000 | where |\n|---|---:|---:|---:|---|\n",
    );
    for row in rows {
        let per_thousand = |times: u64| times as f64 * 1000.0 / row.operations as f64;
        let mut files: Vec<(String, u64)> = Vec::new();
        for waits in &row.waits {
            let room = room(waits.file);
            match files.iter_mut().find(|(file, _)| *file == room) {
                Some((_, times)) => *times += waits.times,
                None => files.push((room, waits.times)),
            }
        }
        files.sort_by_key(|(_, times)| std::cmp::Reverse(*times));
        let all: u64 = files.iter().map(|(_, times)| times).sum();
        let listed: Vec<String> = files
            .iter()
            .take(4)
            .map(|(file, times)| format!("{file} {:.2}", per_thousand(*times)))
            .collect();
        let (step, threads, operations) = (row.step, row.threads, row.operations);
        let (waits, listed) = (per_thousand(all), listed.join(", "));
        _ = writeln!(text, "| {step} | {threads} | {operations} | {waits:.2} | {listed} |");
    }
    text
}

/// `crates/btrfs-txn/src/delta/items.rs` is `btrfs-txn delta/items`.
fn room(file: &str) -> String {
    let short = file.strip_prefix("crates/").unwrap_or(file);
    short.trim_end_matches(".rs").replacen("/src/", " ", 1)
}
