//! An image with btrfs, and mounts of it by the `spinney` program.
//!
//! Invariants: whatever happens to a test, its mount and its server are gone at the end,
//! and no mount outlives its time limit: then the server is killed, which ends every
//! system call that waits for it with an error.

use std::fs;
use std::panic::Location;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{JoinHandle, sleep};
use std::time::{Duration, Instant};

use testkit::compare::{Rules, TreeSnapshot, diff};
use testkit::oracle::{
    KernelMount, Report, TempDir, btrfs_check, capabilities, mkfs_btrfs, record_skip, run, scrub,
    with_kernel,
};

use crate::program::spinney;

/// The `transport=` of the mounts to test.
pub const TRANSPORTS: [&str; 2] = ["uring", "classic"];

const START: Duration = Duration::from_secs(60);

fn uring_is_on() -> bool {
    let flag = fs::read_to_string("/sys/module/fuse/parameters/enable_uring");
    flag.is_ok_and(|flag| flag.trim() == "Y")
}

/// Why this machine cannot mount with `transport`, if so.
pub fn lacking(transport: &str) -> Option<String> {
    let found = capabilities();
    if !found.fuse || !found.root {
        return Some("no FUSE, or not root".to_owned());
    }
    if let Some(why) = found.lacking_kernel_btrfs() {
        return Some(why.to_owned());
    }
    let off = transport.starts_with("uring") && !uring_is_on();
    off.then(|| "FUSE over io_uring is off (/sys/module/fuse/parameters/enable_uring)".to_owned())
}

/// The transports that this machine can mount with; the others are counted as skipped.
#[track_caller]
pub fn transports() -> Vec<&'static str> {
    let place = Location::caller().to_string();
    let works = |transport: &&str| {
        let lacking = lacking(transport);
        lacking.iter().for_each(|why| record_skip(&place, &format!("{transport}: {why}")));
        lacking.is_none()
    };
    TRANSPORTS.into_iter().filter(works).collect()
}

/// An image in a directory of its own.
pub struct Volume {
    dir: TempDir,
}

impl Volume {
    pub fn new(name: &str, size: u64) -> Volume {
        let volume = Volume { dir: TempDir::new(name).unwrap() };
        mkfs_btrfs(&volume.image(), size, &[]).unwrap();
        fs::create_dir(volume.point()).unwrap();
        volume
    }

    pub fn image(&self) -> PathBuf {
        self.dir.join("image")
    }

    fn point(&self) -> PathBuf {
        self.dir.join("mnt")
    }

    /// A place outside the mount.
    pub fn beside(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Mounts for at most `limit`. More options may follow the transport: `uring,writeback`.
    pub fn mount(&self, transport: &str, limit: Duration) -> Mounted {
        self.mount_from(&self.image(), transport, limit)
    }

    /// The same of another image or device.
    pub fn mount_from(&self, source: &Path, transport: &str, limit: Duration) -> Mounted {
        Mounted::new(source, &self.point(), &self.beside("log"), transport, limit)
    }

    pub fn mount_by_kernel(&self) -> KernelMount {
        KernelMount::new(&self.image(), "noatime").unwrap()
    }

    /// What the kernel and btrfs-progs say of the unmounted image: sound, data included,
    /// and with the tree that was seen through FUSE.
    #[track_caller]
    pub fn judge(&self, seen: &TreeSnapshot) {
        self.judge_by(seen, Rules::default());
    }

    /// As `judge`, for a mount with `transport`. With writeback the kernel has its own idea
    /// of when a file was written, by milliseconds (docs/SEMANTICS.md).
    #[track_caller]
    pub fn judge_mount(&self, seen: &TreeSnapshot, transport: &str) {
        let rules = Rules::default();
        let writeback = transport.contains("writeback");
        self.judge_by(seen, if writeback { rules.ignoring_clock() } else { rules });
    }

    #[track_caller]
    fn judge_by(&self, seen: &TreeSnapshot, rules: Rules) {
        assert_sound(&self.image());
        let look = |mount: &KernelMount| {
            scrub(mount).unwrap_or_else(|why| panic!("{why}"));
            TreeSnapshot::of_dir(mount.path()).unwrap()
        };
        let kernel = with_kernel(&self.image(), "noatime", look).unwrap();
        let found = diff(seen, &kernel, &Rules { attributes: false, ..rules });
        assert!(
            found.is_empty(),
            "FUSE and the kernel differ: {:#?}",
            &found[..found.len().min(20)]
        );
        assert_eq!(kernel.contradictions(), Vec::<String>::new());
    }
}

/// Neither `btrfs check` nor `spinney check` finds anything, content included.
#[track_caller]
pub fn assert_sound(image: &Path) {
    let report = checked(image);
    assert!(is_clean(&report), "spinney check is not content:\n{}", report.text());
}

/// As `assert_sound`, of a volume whose server was killed, perhaps between the copies of a
/// superblock: one may be of the commit before, which the next mount mends.
#[track_caller]
pub fn assert_sound_after_kill(image: &Path) {
    let report = checked(image);
    let text = report.text();
    let only_copies = || {
        // The first copy is worth a warning, the others a note.
        let warned = !report.success() && text.contains(": 0 errors, ");
        let noted = report.success() && text.contains(": no damage found (");
        (warned || noted) && text.lines().all(no_news_after_kill)
    };
    assert!(is_clean(&report) || only_copies(), "spinney check is not content:\n{text}");
}

/// What `spinney check` says, where `btrfs check` finds nothing.
#[track_caller]
fn checked(image: &Path) -> Report {
    btrfs_check(image).unwrap_or_else(|why| panic!("{why}"));
    run(&spinney().to_string_lossy(), &["check", "--data", &image.to_string_lossy()])
}

fn is_clean(report: &Report) -> bool {
    report.success() && report.stdout.trim_end().ends_with("no damage found")
}

/// Neither a warning nor a note, but for that of a copy that was still to be written.
fn no_news_after_kill(line: &str) -> bool {
    let line = line.trim();
    let Some(what) = line.strip_prefix("warning: ").or_else(|| line.strip_prefix("note: ")) else {
        return true;
    };
    let generations = what.strip_prefix("superblock copy at offset ").and_then(|rest| {
        let (_, rest) = rest.split_once(" is of generation ")?;
        let (copy, first) = rest.split_once(", not ")?;
        Some((copy.parse::<u64>().ok()?, first.parse::<u64>().ok()?))
    });
    generations.is_some_and(|(copy, first)| copy + 1 == first)
}

/// A mount of the `spinney` program until dropped.
pub struct Mounted {
    point: PathBuf,
    log: PathBuf,
    pid: u32,
    server: Option<Child>,
    watch: Option<(Sender<()>, JoinHandle<()>)>,
}

fn is_mounted(point: &Path) -> bool {
    let table = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let point = point.to_string_lossy();
    table.lines().any(|line| line.split(' ').nth(1) == Some(&*point))
}

fn kill(pid: u32) {
    let report = run("kill", &["-9", &pid.to_string()]);
    if !report.success() {
        eprintln!("{}", report.text());
    }
}

/// Kills the server when the time is up and nobody said that it ended.
fn watchdog(pid: u32, limit: Duration) -> (Sender<()>, JoinHandle<()>) {
    let (done, wait) = channel();
    let body = move || {
        if wait.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
            println!("the mount's time is up ({limit:?}): killing the server");
            kill(pid);
        }
    };
    (done, std::thread::spawn(body))
}

impl Mounted {
    fn new(image: &Path, point: &Path, log: &Path, transport: &str, limit: Duration) -> Mounted {
        let output = fs::File::options().create(true).append(true).open(log).unwrap();
        let server = Command::new(spinney())
            .args(["mount", "-f", "-o", &format!("transport={transport}")])
            .args([image, point])
            .stdin(Stdio::null())
            .stdout(output.try_clone().unwrap())
            .stderr(output)
            .spawn()
            .unwrap();
        let pid = server.id();
        let watch = Some(watchdog(pid, limit));
        let (point, log) = (point.to_owned(), log.to_owned());
        let mut mounted = Mounted { point, log, pid, server: Some(server), watch };
        mounted.await_start();
        mounted
    }

    fn await_start(&mut self) {
        let start = Instant::now();
        while !is_mounted(&self.point) {
            let ended = self.server.as_mut().and_then(|server| server.try_wait().unwrap());
            assert!(ended.is_none(), "the server ended: {ended:?}\n{}", self.log());
            assert!(start.elapsed() < START, "no mount after {START:?}\n{}", self.log());
            sleep(Duration::from_millis(5));
        }
    }

    pub fn path(&self) -> &Path {
        &self.point
    }

    pub fn join(&self, name: &str) -> PathBuf {
        self.point.join(name)
    }

    /// What the server said.
    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// The server's counters.
    fn stats(&self) -> Result<String, String> {
        let report = run(&spinney().to_string_lossy(), &["stats", &self.point.to_string_lossy()]);
        if report.success() { Ok(report.stdout) } else { Err(report.text()) }
    }

    /// Unmounts, and the tree as it was then.
    #[track_caller]
    pub fn unmount_with_tree(self) -> TreeSnapshot {
        let tree = TreeSnapshot::of_dir(&self.point).unwrap();
        self.unmount();
        tree
    }

    /// As a user would; the server must end by itself and be content.
    #[track_caller]
    pub fn unmount(self) {
        let stats = self.stats().unwrap_or_else(|why| panic!("{why}"));
        assert_eq!(counter(&stats, "commit.short"), 0, "a commit ran short:\n{stats}");
        let log = self.unmount_with_errors();
        assert!(!log.contains("error:"), "the server's log:\n{log}");
    }

    /// The same, where the server had errors to tell. Answers what it said.
    #[track_caller]
    pub fn unmount_with_errors(mut self) -> String {
        // A server that was shut down, or is the only one left of its mount, may not answer.
        if let Ok(stats) = self.stats() {
            assert_promises_held(&stats);
        }
        let umount =
            || run(&spinney().to_string_lossy(), &["umount", &self.point.to_string_lossy()]);
        // A child that another test has just forked has this one's files open until it runs
        // its program.
        let asked = Instant::now();
        let mut report = umount();
        while report.text().contains("busy") && asked.elapsed() < Duration::from_secs(5) {
            std::thread::sleep(Duration::from_millis(50));
            report = umount();
        }
        assert!(report.success(), "{}\n{}", report.text(), self.log());
        let status = self.server.as_mut().map(|server| server.wait().unwrap());
        assert!(status.is_some_and(|status| status.success()), "{status:?}\n{}", self.log());
        let log = self.log();
        assert!(!log.contains("panicked"), "the server's log:\n{log}");
        log
    }

    /// `kill -9` at any moment, from any thread.
    pub fn kill_server(&self) {
        kill(self.pid);
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // The watchdog first: the number is the server's only until it is waited for.
        if let Some((done, thread)) = self.watch.take() {
            drop(done);
            if thread.join().is_err() {
                eprintln!("the watchdog panicked");
            }
        }
        let Some(mut server) = self.server.take() else { return };
        if let Ok(None) = server.try_wait() {
            kill(self.pid);
        }
        if is_mounted(&self.point) {
            let report = run("umount", &["-l", &self.point.to_string_lossy()]);
            if !report.success() {
                eprintln!("{}", report.text());
            }
        }
        if let Err(error) = server.wait() {
            eprintln!("waiting for the server: {error}");
        }
    }
}

/// One of the counters of `spinney stats`.
#[track_caller]
fn counter(stats: &str, name: &str) -> u64 {
    let fields = stats.lines().filter_map(|line| line.split_once(' '));
    let value = fields.filter(|(found, _)| *found == name).find_map(|(_, v)| v.trim().parse().ok());
    value.unwrap_or_else(|| panic!("no counter {name}:\n{stats}"))
}

/// No commit needed more than the operations in it had promised for it: the proof of
/// `btrfs-fs/src/reserve` on whatever this mount was made to do, also in a release build.
#[track_caller]
fn assert_promises_held(stats: &str) {
    for name in ["commit.over_promise", "commit.unpaid_nodes"] {
        assert_eq!(counter(stats, name), 0, "{name}: a commit needed more than promised:\n{stats}");
    }
}

#[cfg(test)]
mod tests {
    use super::{assert_promises_held, counter, no_news_after_kill};

    #[test]
    fn counters_are_read_and_judged() {
        let stats = "commit.count         12\ncommit.over_promise  0\ncommit.unpaid_nodes  0\n";
        assert_eq!(counter(stats, "commit.count"), 12);
        assert_promises_held(stats);
        let broken = stats.replace("unpaid_nodes  0", "unpaid_nodes  3");
        assert!(std::panic::catch_unwind(|| assert_promises_held(&broken)).is_err());
        assert!(std::panic::catch_unwind(|| counter(stats, "commit.short")).is_err());
    }

    #[test]
    fn a_kill_excuses_a_copy_that_is_one_commit_behind() {
        assert!(no_news_after_kill("  names          1305"));
        let copy = "warning: superblock copy at offset 67108864 is of generation";
        assert!(no_news_after_kill(&format!("{copy} 83, not 84")));
        assert!(!no_news_after_kill(&format!("{copy} 82, not 84")));
        assert!(!no_news_after_kill("warning: superblock copy at offset 67108864 is damaged"));
        assert!(!no_news_after_kill("warning: something else of generation 83, not 84"));
        let noted = copy.replace("warning", "note");
        assert!(no_news_after_kill(&format!("{noted} 83, not 84")));
        assert!(!no_news_after_kill(&format!("{noted} 82, not 84")));
        assert!(!no_news_after_kill("note: something else"));
    }
}
