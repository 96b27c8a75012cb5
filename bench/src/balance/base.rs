//! The image that all copies are made of.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Runs a program that must succeed; answers what it printed.
pub fn run(program: &str, words: &[&str]) -> io::Result<String> {
    let output = Command::new(program).args(words).output()?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(io::Error::other(format!("{program} {}: {}", words.join(" "), said.trim())))
}

pub fn word(path: &Path) -> String {
    path.display().to_string()
}

/// A directory of this run with a place to mount at, gone at the end.
pub struct Scratch {
    dir: PathBuf,
    /// What may be left in it.
    files: &'static [&'static str],
}

impl Scratch {
    pub fn make(above: &Path, verb: &str, files: &'static [&'static str]) -> io::Result<Scratch> {
        let dir = above.join(format!("spinney-{verb}-{}", std::process::id()));
        fs::create_dir(&dir)?;
        fs::create_dir(dir.join("mnt"))?;
        Ok(Scratch { dir, files })
    }

    pub fn join(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Not remove_dir_all: what is still mounted is not ours.
        for file in self.files {
            let _ = fs::remove_file(self.join(file));
        }
        let _ = fs::remove_dir(self.join("mnt"));
        if let Err(error) = fs::remove_dir(&self.dir) {
            eprintln!("{}: {error}", self.dir.display());
        }
    }
}

pub struct Base {
    pub image: PathBuf,
    /// The same with quotas, counted.
    with_quotas: PathBuf,
    pub work: PathBuf,
    pub mount: PathBuf,
    pub files: u64,
    pub bytes: u64,
}

/// A mount by the kernel, gone when it is dropped.
pub struct Mounted<'a>(&'a Path);

impl<'a> Mounted<'a> {
    pub fn new(image: &Path, at: &'a Path) -> io::Result<Mounted<'a>> {
        run("mount", &["-t", "btrfs", "-o", "loop,noatime", &word(image), &word(at)])?;
        Ok(Mounted(at))
    }
}

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        if let Err(error) = run("umount", &[&word(self.0)]) {
            eprintln!("{error}");
        }
    }
}

impl Base {
    /// A volume of four times the content, and a subvolume with that. It lies in the second half
    /// of the volume, so that a shrink to half has to move it.
    pub fn make(scratch: &Scratch, content: u64) -> io::Result<Base> {
        let at = |name: &str| scratch.join(name);
        let (image, work, mount) = (at("base.img"), at("work.img"), at("mnt"));
        let with_quotas = at("quotas.img");
        fs::File::create(&image)?.set_len((4 * content).max(1 << 30))?;
        run("mkfs.btrfs", &["-q", "-n", "4096", "-m", "dup", &word(&image)])?;
        let mut base = Base { image, with_quotas, work, mount, files: 0, bytes: 0 };
        {
            let top = base.mount.clone();
            let _mounted = Mounted::new(&base.image, &top)?;
            let filler = word(&top.join("filler"));
            run("fallocate", &["-l", &(2 * content).to_string(), &filler])?;
            run("btrfs", &["subvolume", "create", &word(&top.join("s"))])?;
            for from in ["/usr", "/lib"] {
                let to = top.join("s").join(from.trim_start_matches('/'));
                base.fill(Path::new(from), &to, content)?;
            }
            fs::remove_file(filler)?;
            run("btrfs", &["filesystem", "sync", &word(&top)])?;
            run("btrfs", &["balance", "start", "-dusage=0", &word(&top)])?;
        }
        Ok(base)
    }

    /// Directories and files of at most 1 MiB, so that there are many, until there is enough.
    fn fill(&mut self, from: &Path, to: &Path, most: u64) -> io::Result<()> {
        fs::create_dir_all(to)?;
        let mut entries: Vec<_> = fs::read_dir(from)?.flatten().collect();
        entries.sort_by_key(fs::DirEntry::file_name);
        for entry in entries {
            if self.bytes >= most {
                return Ok(());
            }
            let (path, kind) = (entry.path(), entry.file_type()?);
            if kind.is_dir() {
                self.fill(&path, &to.join(entry.file_name()), most)?;
            } else if kind.is_file() && entry.metadata()?.len() <= 1 << 20 {
                self.bytes += fs::copy(&path, to.join(entry.file_name()))?;
                self.files += 1;
            }
        }
        Ok(())
    }

    /// More snapshots, from number `have` on, with three files changed in each.
    pub fn add_snapshots(&self, have: u64, want: u64) -> io::Result<()> {
        let _mounted = Mounted::new(&self.image, &self.mount)?;
        let mut files = Vec::new();
        list(&self.mount.join("s"), Path::new(""), &mut files)?;
        let mut rng = 0x9e37_79b9_u64;
        for number in have..want {
            let to = self.mount.join(format!("snap-{number}"));
            run("btrfs", &["subvolume", "snapshot", &word(&self.mount.join("s")), &word(&to)])?;
            for _ in 0..3 {
                rng = rng.wrapping_mul(6364136223846793005).wrapping_add(number + 1);
                let file = to.join(&files[(rng >> 33) as usize % files.len()]);
                fs::write(file, vec![number as u8; 5000])?;
            }
        }
        Ok(())
    }

    /// Makes the image with quotas anew, of the other one.
    pub fn add_quotas(&self) -> io::Result<()> {
        copy(&self.image, &self.with_quotas)?;
        let _mounted = Mounted::new(&self.with_quotas, &self.mount)?;
        run("btrfs", &["quota", "enable", &word(&self.mount)])?;
        run("btrfs", &["quota", "rescan", "-w", &word(&self.mount)])?;
        Ok(())
    }

    /// A copy to work on. Counting takes half a minute, so it is not done here: a copy that nobody has touched
    /// for as long takes longer to read (docs/perf/journal.md).
    pub fn copy(&self, quotas: bool) -> io::Result<()> {
        copy(if quotas { &self.with_quotas } else { &self.image }, &self.work)
    }
}

fn copy(from: &Path, to: &Path) -> io::Result<()> {
    run("cp", &["--sparse=always", &word(from), &word(to)]).map(drop)
}

fn list(top: &Path, below: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(top.join(below))?.flatten() {
        let path = below.join(entry.file_name());
        match entry.file_type()? {
            kind if kind.is_dir() => list(top, &path, files)?,
            kind if kind.is_file() => files.push(path),
            _ => {}
        }
    }
    Ok(())
}
