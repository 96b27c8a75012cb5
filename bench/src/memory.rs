//! The most memory that somebody has while something is measured: the process that does the work
//! (a mount's server, or this one in the library), and the kernel beside it.
//!
//! Memory is looked at every 10 ms by a thread of its own. What the kernel has is everybody's: its objects
//! and the pages of files, those of images in memory left out; the figure is what came since the
//! start. The pages of a tree's nodes are among them, where the kernel's btrfs keeps them.
//!
//! What it does not know: what the memory is for.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const EVERY: Duration = Duration::from_millis(10);

/// Bytes.
#[derive(Clone, Copy, Default, Debug, PartialEq)]
pub struct Memory {
    /// Resident, of the process that does the work. None for the kernel's own file systems.
    pub process: u64,
    /// The kernel's objects and pages of files, of everybody.
    pub kernel: u64,
}

impl Memory {
    fn or_more(self, other: Memory) -> Memory {
        Memory { process: self.process.max(other.process), kernel: self.kernel.max(other.kernel) }
    }
}

/// Whose memory is looked at.
pub struct Watch {
    process: Option<PathBuf>,
}

impl Watch {
    /// `mount` is where a server serves; without it the work is done in this process.
    pub fn on(mount: Option<&Path>) -> io::Result<Watch> {
        let process = match mount {
            Some(at) => server_of(at)?,
            None => Some("/proc/self".into()),
        };
        Ok(Watch { process })
    }

    /// Does `work`, and says what there was at most; of the kernel, what it has more than before.
    pub fn during<T>(&self, work: impl FnOnce() -> io::Result<T>) -> io::Result<(T, Memory)> {
        let before = self.now()?;
        let (over, most) = (AtomicBool::new(false), Mutex::new(before));
        let look = || -> io::Result<()> {
            let now = self.now()?;
            let mut most = most.lock().map_err(|_| io::Error::other("the watch panicked"))?;
            *most = most.or_more(now);
            Ok(())
        };
        let done = std::thread::scope(|scope| {
            let watcher = scope.spawn(|| {
                while !over.load(Ordering::Acquire) && look().is_ok() {
                    std::thread::sleep(EVERY);
                }
            });
            let told = Told(&over);
            let done = work();
            drop(told);
            watcher.join().map_err(|_| io::Error::other("the watch panicked"))?;
            done
        })?;
        look()?;
        let mut most = most.into_inner().map_err(|_| io::Error::other("the watch panicked"))?;
        most.kernel = most.kernel.saturating_sub(before.kernel);
        Ok((done, most))
    }

    fn now(&self) -> io::Result<Memory> {
        let process = self.process.as_deref().map_or(Ok(0), resident)?;
        Ok(Memory { process, kernel: of_kernel()? })
    }
}

/// Nobody waits for a thread that goes on looking, be it that what it looks at panics.
struct Told<'a>(&'a AtomicBool);

impl Drop for Told<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Bytes that a process, which is a directory of /proc, has in memory.
pub fn resident(process: &Path) -> io::Result<u64> {
    let text = fs::read_to_string(process.join("status"))?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kib.map(|kib| kib << 10).ok_or_else(|| io::Error::other("no VmRSS"))
}

/// The largest process that was started with this mount point among its words: a server's
/// monitor is small.
fn server_of(at: &Path) -> io::Result<Option<PathBuf>> {
    let wanted = at.as_os_str().as_encoded_bytes();
    let mut found: Option<(u64, PathBuf)> = None;
    for entry in fs::read_dir("/proc")? {
        let process = entry?.path();
        // Whoever ended meanwhile has no words.
        let Ok(words) = fs::read(process.join("cmdline")) else { continue };
        if !words.split(|byte| *byte == 0).skip(1).any(|word| word == wanted) {
            continue;
        }
        let bytes = resident(&process).unwrap_or(0);
        if found.as_ref().is_none_or(|(most, _)| bytes > *most) {
            found = Some((bytes, process));
        }
    }
    Ok(found.map(|(_, process)| process))
}

fn of_kernel() -> io::Result<u64> {
    let text = fs::read_to_string("/proc/meminfo")?;
    let of = |name: &str| {
        let line = text.lines().find(|line| line.starts_with(name))?;
        line.split_whitespace().nth(1)?.parse::<u64>().ok()
    };
    let all = (|| {
        let pages = of("Cached:")? + of("Buffers:")?;
        Some(of("Slab:")? + pages.saturating_sub(of("Shmem:")?))
    })();
    all.map(|kib| kib << 10).ok_or_else(|| io::Error::other("/proc/meminfo does not tell"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_is_seen_although_it_is_gone_again() {
        const HELD: usize = 64 << 20;
        let watch = Watch::on(None).unwrap();
        let ((), most) = watch
            .during(|| {
                let held = std::hint::black_box(vec![1u8; HELD]);
                // However late the thread is that looks.
                std::thread::sleep(EVERY * 20);
                drop(held);
                Ok(())
            })
            .unwrap();
        // Beside other tests, which come and go.
        assert!(most.process >= HELD as u64, "{most:?}");
    }

    #[test]
    #[should_panic(expected = "what is watched")]
    fn what_panics_is_not_watched_for_ever() {
        let _never = Watch::on(None).unwrap().during(|| -> io::Result<()> {
            panic!("what is watched");
        });
    }

    #[test]
    fn a_server_is_found_by_its_mount_point() {
        let at = std::env::temp_dir().join(format!("bench-memory-{}", std::process::id()));
        let mut child = std::process::Command::new("sh")
            .args(["-c", "read line"])
            .arg("server")
            .arg(&at)
            .stdin(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        // Its words are there a moment after it is.
        let begin = std::time::Instant::now();
        let found = loop {
            let found = server_of(&at).unwrap();
            if found.is_some() || begin.elapsed().as_secs() >= 10 {
                break found;
            }
            std::thread::sleep(EVERY);
        };
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(found, Some(format!("/proc/{}", child.id()).into()));
        assert_eq!(server_of(&at).unwrap(), None, "nobody serves there any more");
    }
}
