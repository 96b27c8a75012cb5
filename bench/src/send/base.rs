//! The volume that is sent, and a round of each side.

use super::Side;
use crate::balance::base::{Mounted, run};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

pub struct Base {
    dir: PathBuf,
    spinney: String,
    pub files: u64,
    pub bytes: u64,
    /// Bytes of the kernel's streams.
    pub streams: [u64; 2],
}

const STREAMS: [&str; 2] = ["whole.stream", "difference.stream"];

impl Base {
    pub fn make(above: &Path, spinney: &Path, content: u64) -> io::Result<Base> {
        let dir = above.join(format!("spinney-send-{}", std::process::id()));
        fs::create_dir_all(dir.join("mnt"))?;
        let spinney = spinney.display().to_string();
        let mut base = Base { dir, spinney, files: 0, bytes: 0, streams: [0; 2] };
        make_image(&base.path("base.img"), 3 * content)?;
        let top = base.dir.join("mnt");
        let _mounted = Mounted::new(&base.dir.join("base.img"), &top)?;
        let at = |name: &str| top.join(name).display().to_string();
        run("btrfs", &["-q", "subvolume", "create", &at("v")])?;
        base.fill(Path::new("/usr"), &top.join("v"), content)?;
        run("btrfs", &["-q", "subvolume", "snapshot", "-r", &at("v"), &at("s1")])?;
        change(&top.join("v"))?;
        run("btrfs", &["-q", "subvolume", "snapshot", "-r", &at("v"), &at("s2")])?;
        run("btrfs", &["filesystem", "sync", &at("")])?;
        let [whole, difference] = STREAMS.map(|name| base.path(name));
        run("btrfs", &["-q", "send", "-f", &whole, &at("s1")])?;
        run("btrfs", &["-q", "send", "-p", &at("s1"), "-f", &difference, &at("s2")])?;
        base.streams = [fs::metadata(&whole)?.len(), fs::metadata(&difference)?.len()];
        Ok(base)
    }

    fn path(&self, name: &str) -> String {
        self.dir.join(name).display().to_string()
    }

    fn fill(&mut self, from: &Path, to: &Path, most: u64) -> io::Result<()> {
        fs::create_dir_all(to)?;
        let mut entries: Vec<_> = fs::read_dir(from)?.flatten().collect();
        entries.sort_by_key(fs::DirEntry::file_name);
        for entry in entries {
            let (path, kind) = (entry.path(), entry.file_type()?);
            if self.bytes >= most {
                return Ok(());
            }
            if kind.is_dir() {
                self.fill(&path, &to.join(entry.file_name()), most)?;
            } else if kind.is_file() && entry.metadata()?.len() <= 16 << 20 {
                self.bytes += fs::copy(&path, to.join(entry.file_name()))?;
                self.files += 1;
            }
        }
        Ok(())
    }

    /// Seconds of each work by one side.
    pub fn run(&self, side: Side) -> io::Result<[f64; 4]> {
        let sends = match side {
            Side::Image => self.sends(side, &format!("{}:", self.path("base.img")))?,
            Side::Kernel | Side::Mount => {
                self.mounted(side, "base.img", |at| self.sends(side, at))?
            }
        };
        make_image(&self.path("target.img"), fs::metadata(self.path("base.img"))?.len())?;
        let receives = match side {
            Side::Image => self.receives(side, &format!("{}:/", self.path("target.img")))?,
            Side::Kernel | Side::Mount => {
                self.mounted(side, "target.img", |at| self.receives(side, at))?
            }
        };
        // Whoever receives something wrong measures nothing.
        run("btrfs", &["check", "--readonly", &self.path("target.img")])?;
        Ok([sends[0], sends[1], receives[0], receives[1]])
    }

    fn mounted<T>(
        &self,
        side: Side,
        image: &str,
        work: impl FnOnce(&str) -> io::Result<T>,
    ) -> io::Result<T> {
        let (image, at) = (self.path(image), self.path("mnt"));
        if side == Side::Kernel {
            let _mounted = Mounted::new(Path::new(&image), Path::new(&at))?;
            return work(&at);
        }
        run(&self.spinney, &["mount", "-o", "noatime", &image, &at])?;
        let done = work(&at);
        run(&self.spinney, &["umount", &at])?;
        done
    }

    fn program(&self, side: Side) -> &str {
        if side == Side::Kernel { "btrfs" } else { &self.spinney }
    }

    fn sends(&self, side: Side, at: &str) -> io::Result<[f64; 2]> {
        let [s1, s2] = ["s1", "s2"].map(|name| format!("{at}/{name}"));
        let whole = self.piped(side, &["send", &s1])?;
        Ok([whole, self.piped(side, &["send", "-p", &s1, &s2])?])
    }

    fn piped(&self, side: Side, words: &[&str]) -> io::Result<f64> {
        drop_caches();
        let start = Instant::now();
        let mut sender = Command::new(self.program(side))
            .args(words)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let stream = sender.stdout.take().ok_or_else(|| io::Error::other("no pipe"))?;
        let sink = Command::new("cat").stdin(stream).stdout(Stdio::null()).status()?;
        let sent = sender.wait()?;
        match sent.success() && sink.success() {
            true => Ok(start.elapsed().as_secs_f64()),
            false => Err(io::Error::other(format!("{side:?}: {} failed", words.join(" ")))),
        }
    }

    fn receives(&self, side: Side, at: &str) -> io::Result<[f64; 2]> {
        let mut seconds = [0.0; 2];
        for (name, slot) in STREAMS.iter().zip(&mut seconds) {
            drop_caches();
            let start = Instant::now();
            run(self.program(side), &["receive", "-q", "-f", &self.path(name), at])?;
            if side == Side::Kernel {
                run("btrfs", &["filesystem", "sync", at])?;
            }
            *slot = start.elapsed().as_secs_f64();
        }
        Ok(seconds)
    }
}

fn make_image(path: &str, len: u64) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    fs::File::create(path)?.set_len(len.max(1 << 30))?;
    run("mkfs.btrfs", &["-q", path]).map(drop)
}

/// Every fiftieth file grows, the first directory moves into the last, another one goes.
fn change(top: &Path) -> io::Result<()> {
    let mut count = 0;
    grow(top, &mut count)?;
    let mut dirs: Vec<PathBuf> = fs::read_dir(top)?.flatten().map(|entry| entry.path()).collect();
    dirs.retain(|path| path.is_dir());
    dirs.sort();
    if let [first, middle @ .., last] = &dirs[..] {
        fs::rename(first, last.join("moved"))?;
        if let Some(gone) = middle.first() {
            fs::remove_dir_all(gone)?;
        }
    }
    Ok(())
}

fn grow(dir: &Path, count: &mut u64) -> io::Result<()> {
    for entry in fs::read_dir(dir)?.flatten() {
        if entry.file_type()?.is_dir() {
            grow(&entry.path(), count)?;
            continue;
        }
        *count += 1;
        if count.is_multiple_of(50) {
            let mut file = fs::OpenOptions::new().append(true).open(entry.path())?;
            io::Write::write_all(&mut file, b"more\n")?;
        }
    }
    Ok(())
}

fn drop_caches() {
    // Without the right to it everybody has warm ones.
    let _ = fs::write("/proc/sys/vm/drop_caches", "3");
}

impl Drop for Base {
    fn drop(&mut self) {
        // Not remove_dir_all: what is still mounted is not ours.
        for file in STREAMS.iter().chain(&["base.img", "target.img"]) {
            let _ = fs::remove_file(self.dir.join(file));
        }
        let _ = fs::remove_dir(self.dir.join("mnt"));
        if let Err(error) = fs::remove_dir(&self.dir) {
            eprintln!("{}: {error}", self.dir.display());
        }
    }
}
