//! `spinney-bench inode-memory`: bytes of memory that an inode takes that somebody holds, in the
//! library, in a mount's server with what the kernel keeps beside it, and in the kernel's btrfs.
//!
//! Each side opens the same image of empty files cold, and every file is looked up and held: in the
//! library by its number, on a mount by the kernel's own cache. What the process (or the kernel's
//! slabs) has more than before, divided by the files, is the figure. Caches of nodes are kept
//! small and are counted in, as what comes with an inode.
//!
//! What it does not know: sides and rounds of the other commands.

use crate::balance::base::run;
use crate::cli::verb;
use crate::memory::resident;
use crate::side::Engine;
use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use vfs::{Context, FileKind, FileSystem, FsError, Ino};

pub const USAGE: &str = "\
usage: spinney-bench inode-memory --spinney PROGRAM [--dir DIR] [--files N] [--mounted N]
                                  [--markdown FILE]

Bytes an inode that is held, of N files (default 10,000,000) in the library, and of N (2,000,000)
in a mount of Spinney's and of the kernel's. The image is in DIR (/var/tmp). Needs root.
";

const OPTIONS: &str = "inode-cache=64G,memory=64G,cache-size=32M";
const FILES_OF_A_DIRECTORY: u64 = 10_000;

struct Options {
    spinney: PathBuf,
    dir: PathBuf,
    files: u64,
    mounted: u64,
    markdown: Option<PathBuf>,
    /// This process is the one whose memory is looked at: of an image that is there.
    library_of: Option<PathBuf>,
}

/// One line of the table.
struct Row {
    side: &'static str,
    files: u64,
    what: String,
    bytes: u64,
}

/// Begins with the word behind `inode-memory`.
pub fn main(words: &[String], engine: Engine) -> ExitCode {
    verb::main("inode-memory", USAGE, parse(words), |options| match &options.library_of {
        Some(image) => in_library(image, engine, options.files).map(|bytes| println!("{bytes}")),
        None => measure(&options, engine),
    })
}

fn parse(words: &[String]) -> Result<Options, String> {
    let mut options = Options {
        spinney: PathBuf::new(),
        dir: "/var/tmp".into(),
        files: 10_000_000,
        mounted: 2_000_000,
        markdown: None,
        library_of: None,
    };
    verb::each(words, |given| {
        match given.option {
            "--spinney" => options.spinney = given.path(),
            "--dir" => options.dir = given.path(),
            "--files" => options.files = given.at_least(1)?,
            "--mounted" => options.mounted = given.at_least(1)?,
            "--library-of" => options.library_of = Some(given.path()),
            "--markdown" => options.markdown = Some(given.path()),
            _ => return given.is_unknown(),
        }
        Ok(())
    })?;
    match options.spinney.as_os_str().is_empty() && options.library_of.is_none() {
        true => Err("--spinney PROGRAM is wanted".into()),
        false => Ok(options),
    }
}

fn measure(options: &Options, engine: Engine) -> io::Result<()> {
    let place = options.dir.join(format!("spinney-inodes-{}", std::process::id()));
    fs::create_dir_all(place.join("mnt"))?;
    let measured = on_images(options, engine, &place);
    // Not remove_dir_all: what is still mounted is not ours.
    let _ = fs::remove_file(place.join("image"));
    let _ = fs::remove_dir(place.join("mnt"));
    fs::remove_dir(&place)?;
    let text = to_markdown(&measured?);
    print!("{text}");
    options.markdown.as_ref().map_or(Ok(()), |file| fs::write(file, text))
}

fn on_images(options: &Options, engine: Engine, place: &Path) -> io::Result<Vec<Row>> {
    let (image, at) = (place.join("image"), place.join("mnt"));
    let mut rows = Vec::new();
    make(&image, engine, options.files)?;
    rows.push(in_process_of_its_own(&image, options.files)?);
    if options.mounted != options.files {
        make(&image, engine, options.mounted)?;
    }
    rows.extend(mounted_by_spinney(options, &image, &at)?);
    rows.extend(mounted_by_kernel(options.mounted, &image, &at)?);
    Ok(rows)
}

fn directories(files: u64) -> u64 {
    files.div_ceil(FILES_OF_A_DIRECTORY)
}

fn in_directory(files: u64, dir: u64) -> u64 {
    FILES_OF_A_DIRECTORY.min(files - dir * FILES_OF_A_DIRECTORY)
}

fn make(image: &Path, engine: Engine, files: u64) -> io::Result<()> {
    eprintln!("{files} files");
    let _ = fs::remove_file(image);
    testkit::oracle::mkfs_btrfs(image, 64 << 30, &["-m", "single"]).map_err(io::Error::other)?;
    let fs = (engine.open)(image, "")?;
    let cx = Context { umask: 0o022, ..Context::default() };
    let fill = || -> vfs::Result<()> {
        for dir in 0..directories(files) {
            let made = fs.mkdir(&cx, fs.root(), format!("d{dir}").as_bytes(), 0o755)?;
            for n in 0..in_directory(files, dir) {
                let name = format!("file-{n}");
                let kind = FileKind::File;
                let file = fs.mknod(&cx, made.attr.ino, name.as_bytes(), kind, 0o644, 0)?;
                fs.forget(file.attr.ino, 1);
            }
            fs.forget(made.attr.ino, 1);
        }
        fs.destroy()
    };
    fill().map_err(other)
}

/// What made the image has memory that it does not give back.
fn in_process_of_its_own(image: &Path, files: u64) -> io::Result<Row> {
    let program = std::env::current_exe()?.display().to_string();
    let (image, count) = (image.display().to_string(), files.to_string());
    let words = ["inode-memory", "--library-of", &image, "--files", &count];
    let bytes = run(&program, &words)?.trim().parse().map_err(io::Error::other)?;
    Ok(Row { side: "library", files, what: "process".into(), bytes })
}

fn in_library(image: &Path, engine: Engine, files: u64) -> io::Result<u64> {
    let fs = (engine.open)(image, OPTIONS)?;
    let before = resident(Path::new("/proc/self"))?;
    hold_all(&fs, files).map_err(other)?;
    let bytes = resident(Path::new("/proc/self"))?.saturating_sub(before);
    fs.destroy().map_err(other)?;
    Ok(bytes)
}

/// Nothing of it is given back: that would be what the figure is about.
fn hold_all(fs: &Arc<dyn FileSystem>, files: u64) -> vfs::Result<()> {
    let cx = Context::default();
    for dir in 0..directories(files) {
        let parent: Ino = fs.lookup(&cx, fs.root(), format!("d{dir}").as_bytes())?.attr.ino;
        for n in 0..in_directory(files, dir) {
            fs.lookup(&cx, parent, format!("file-{n}").as_bytes())?;
        }
    }
    Ok(())
}

fn mounted_by_spinney(options: &Options, image: &Path, at: &Path) -> io::Result<Vec<Row>> {
    let program = options.spinney.display().to_string();
    let (shown, point) = (image.display().to_string(), at.display().to_string());
    let mount = ["mount", "-f", "-o", OPTIONS, &shown, &point];
    let mut server = std::process::Command::new(&program).args(mount).spawn()?;
    let measured = wait_for_mount(at).and_then(|()| {
        let process = PathBuf::from(format!("/proc/{}", server.id()));
        let (before, slabs) = (resident(&process)?, slabs()?);
        walk(at, options.mounted)?;
        let bytes = resident(&process)?.saturating_sub(before);
        let row = |what: String, bytes| Row { side: "mount", files: options.mounted, what, bytes };
        let mut rows = vec![row("server".into(), bytes)];
        rows.extend(grown(&slabs)?.into_iter().map(|(what, bytes)| row(what, bytes)));
        Ok(rows)
    });
    run(&program, &["umount", &point])?;
    server.wait()?;
    measured
}

fn mounted_by_kernel(files: u64, image: &Path, at: &Path) -> io::Result<Vec<Row>> {
    let mounted = crate::balance::base::Mounted::new(image, at)?;
    let before = slabs()?;
    walk(at, files)?;
    let row = |(what, bytes)| Row { side: "kernel's btrfs", files, what, bytes };
    let rows = grown(&before)?.into_iter().map(row).collect();
    drop(mounted);
    Ok(rows)
}

fn wait_for_mount(at: &Path) -> io::Result<()> {
    for _ in 0..600 {
        if fs::read_dir(at)?.next().is_some() {
            return Ok(());
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    Err(io::Error::other("spinney mount does not come up"))
}

/// Asks for each file by its name, as `ls -l` and `find -size` do.
fn walk(at: &Path, files: u64) -> io::Result<()> {
    for dir in 0..directories(files) {
        let dir_path = at.join(format!("d{dir}"));
        for n in 0..in_directory(files, dir) {
            fs::symlink_metadata(dir_path.join(format!("file-{n}")))?;
        }
    }
    Ok(())
}

/// Bytes of the kernel's caches of objects, by their names.
fn slabs() -> io::Result<Vec<(String, u64)>> {
    let text = fs::read_to_string("/proc/slabinfo")?;
    let line = |line: &str| {
        // name, active objects, objects, size of one, ...
        let mut words = line.split_whitespace();
        let name = words.next()?.to_owned();
        let objects: u64 = words.nth(1)?.parse().ok()?;
        let size: u64 = words.next()?.parse().ok()?;
        Some((name, objects * size))
    };
    Ok(text.lines().skip(2).filter_map(line).collect())
}

/// Those that have grown by 16 MiB or more, most first.
fn grown(before: &[(String, u64)]) -> io::Result<Vec<(String, u64)>> {
    let had = |name: &str| before.iter().find(|(of, _)| of == name).map_or(0, |(_, bytes)| *bytes);
    let mut more: Vec<(String, u64)> = slabs()?
        .into_iter()
        .map(|(name, bytes)| (format!("slab {name}"), bytes.saturating_sub(had(&name))))
        .filter(|(_, bytes)| *bytes >= 16 << 20)
        .collect();
    more.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
    Ok(more)
}

fn other(error: FsError) -> io::Error {
    io::Error::other(error.to_string())
}

fn to_markdown(rows: &[Row]) -> String {
    let mut text =
        String::from("| side | files | memory of | bytes a file |\n|---|---:|---|---:|\n");
    for Row { side, files, what, bytes } in rows {
        _ = writeln!(text, "| {side} | {files} | {what} | {:.0} |", *bytes as f64 / *files as f64);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_directory_has_what_is_left() {
        assert_eq!((directories(25_000), in_directory(25_000, 2)), (3, 5000));
        assert_eq!((directories(10_000), in_directory(10_000, 0)), (1, 10_000));
    }

    #[test]
    fn a_process_has_memory() {
        const HELD: usize = 64 << 20;
        let held = std::hint::black_box(vec![1u8; HELD]);
        // What it had before is no measure: other tests give theirs back meanwhile.
        assert!(resident(Path::new("/proc/self")).unwrap() >= HELD as u64);
        drop(held);
    }
}
