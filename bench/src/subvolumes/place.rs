//! An image of a side's own, mounted by that side.

use crate::balance::base::{Scratch, run, word};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

#[derive(Clone, Copy, Debug)]
pub enum Side<'a> {
    Kernel,
    Spinney(&'a Path),
}

/// A new volume, mounted; unmounted when it is dropped.
pub struct OwnVolume<'a> {
    side: Side<'a>,
    image: PathBuf,
    at: PathBuf,
    mounted: bool,
}

impl<'a> OwnVolume<'a> {
    pub fn new(scratch: &Scratch, side: Side<'a>, bytes: u64) -> io::Result<OwnVolume<'a>> {
        let (image, at) = (scratch.join("image"), scratch.join("mnt"));
        fs::File::create(&image)?.set_len(0)?;
        fs::File::options().write(true).open(&image)?.set_len(bytes)?;
        run("mkfs.btrfs", &["-q", "-m", "single", &word(&image)])?;
        let (from, to) = (word(&image), word(&at));
        match side {
            Side::Kernel => run("mount", &["-t", "btrfs", "-o", "loop,noatime", &from, &to])?,
            Side::Spinney(program) => run(&word(program), &["mount", "-o", "noatime", &from, &to])?,
        };
        Ok(OwnVolume { side, image, at, mounted: true })
    }

    /// The side's own program for subvolumes, quotas and balances.
    pub fn program(&self) -> String {
        match self.side {
            Side::Kernel => "btrfs".to_owned(),
            Side::Spinney(program) => word(program),
        }
    }

    pub fn verb(&self, words: &[&str]) -> io::Result<String> {
        run(&self.program(), words)
    }

    pub fn join(&self, name: &str) -> PathBuf {
        self.at.join(name)
    }

    pub fn path(&self, name: &str) -> String {
        word(&self.at.join(name))
    }

    /// Makes all durable, of this volume alone.
    pub fn sync(&self) -> io::Result<()> {
        run("sync", &["-f", &word(&self.at)]).map(drop)
    }

    /// Bytes that no one else can have.
    pub fn used(&self) -> io::Result<u64> {
        let said = run("df", &["-B1", "--output=used", &word(&self.at)])?;
        let number = said.lines().nth(1).and_then(|line| line.trim().parse().ok());
        number.ok_or_else(|| io::Error::other("df tells no number"))
    }

    /// Bytes of memory: the most that the server had, or what the machine's caches and tables have now, the images
    /// in memory apart. Of the kernel it is the growth since `before` that counts.
    pub fn memory(&self) -> io::Result<u64> {
        match self.side {
            Side::Kernel => {
                let text = fs::read_to_string("/proc/meminfo")?;
                let of = |name: &str| kib_behind(&text, name);
                Ok((of("Slab:") + of("Cached:") + of("Buffers:")).saturating_sub(of("Shmem:"))
                    << 10)
            }
            Side::Spinney(program) => {
                let pid = crate::balance::side::server(program, &self.image)?;
                let text = fs::read_to_string(format!("/proc/{pid}/status"))?;
                Ok(kib_behind(&text, "VmHWM:") << 10)
            }
        }
    }

    /// Ends the mount; the volume must be sound.
    pub fn judged(mut self) -> io::Result<()> {
        self.unmount()?;
        run("btrfs", &["check", "--readonly", &word(&self.image)]).map(drop)
    }

    fn unmount(&mut self) -> io::Result<()> {
        self.mounted = false;
        let at = word(&self.at);
        match self.side {
            Side::Kernel => run("umount", &[&at]),
            Side::Spinney(program) => run(&word(program), &["umount", &at]),
        }
        .map(drop)
    }
}

impl Drop for OwnVolume<'_> {
    fn drop(&mut self) {
        if self.mounted
            && let Err(error) = self.unmount()
        {
            eprintln!("{error}");
        }
    }
}

fn kib_behind(text: &str, name: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
    line.split_whitespace().next().and_then(|number| number.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::kib_behind;

    #[test]
    fn a_number_is_that_of_its_line() {
        let text = "MemTotal: 7 kB\nSlab:   12 kB\nSwapCached: 9 kB\nCached: 5 kB\n";
        assert_eq!(["Slab:", "Cached:", "None:"].map(|name| kib_behind(text, name)), [12, 5, 0]);
    }
}
