//! What is known of a mount's scrub when the mount is gone: a file that the verbs write, in the
//! form of `btrfs scrub`, which reads it as its own.
//!
//! Root's is where `btrfs scrub` has it; an ordinary user's in the place for such files of his
//! programs. A line for the device says what was found. How far it came is a logical address for
//! us and one on the device for the kernel, so it has a line of its own, for device 0, which no
//! volume has; the device's own line says 0, and whoever goes on by that reads all.
//!
//! Invariant: what is written was asked for while the file that becomes the record was locked,
//! so that nobody's later answer is replaced by an earlier one.

use crate::commands::offline::uuid;
use crate::commands::target::Target;
use crate::error::{Error, Result, io_text};
use crate::image::Access;
use crate::{mounts, sys};
use btrfs_fs::{ScrubState, ScrubStatus};
use btrfs_volume::Scrubbed;
use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

const ROOTS: &str = "/var/lib/btrfs";
/// Names another place, as tests need one.
const PLACE: &str = "SPINNEY_SCRUB_RECORDS";
const HEAD: &str = "scrub status:1";
/// Its line tells where to go on.
const NO_DEVICE: u64 = 0;
/// How often a scrub that is at work is written down, as by `btrfs scrub`.
pub const OFTEN: Duration = Duration::from_secs(5);

/// Where the record of a volume is.
#[derive(Clone)]
pub struct Record {
    /// `None`: the user has no place for it.
    file: Option<PathBuf>,
    fsid: String,
    devid: u64,
}

/// What a record says.
pub struct Kept {
    pub status: ScrubStatus,
    /// Where the scrub is to go on, if we wrote it.
    pub next: Option<u64>,
}

fn place() -> Option<PathBuf> {
    let absolute = |name| std::env::var_os(name).map(PathBuf::from).filter(|p| p.is_absolute());
    if let Some(chosen) = absolute(PLACE) {
        return Some(chosen);
    }
    if sys::is_root() {
        return Some(ROOTS.into());
    }
    let state = absolute("XDG_STATE_HOME");
    let state = state.or_else(|| Some(absolute("HOME")?.join(".local/state")));
    Some(state?.join("spinney"))
}

impl Record {
    pub fn of(target: &Target) -> Result<Record> {
        let fsid = uuid(&target.fsid()?);
        let file = place().map(|dir| dir.join(format!("scrub.status.{fsid}")));
        Ok(Record { file, fsid, devid: target.devid()? })
    }

    /// Asks, and writes down what it hears; that it could not write is said once, by `lost`.
    pub fn note(&self, target: &Target, lost: &mut bool) -> Result<ScrubStatus> {
        let locked = self.lock();
        let status = target.scrub_status()?;
        self.keep(locked, &status, lost);
        Ok(status)
    }

    /// As `note`, and lets go of the mount before it writes: who waits for what is written may unmount.
    fn note_apart(&self, target: Target) -> Result<ScrubStatus> {
        let locked = self.lock();
        let status = target.scrub_status();
        drop(target);
        let status = status?;
        self.keep(locked, &status, &mut true);
        Ok(status)
    }

    fn keep(&self, locked: io::Result<File>, status: &ScrubStatus, lost: &mut bool) {
        let written = match status.state {
            ScrubState::None => return,
            _ => locked.and_then(|file| self.write(file, status)),
        };
        if let Err(error) = written.as_ref().map_err(io_text)
            && !*lost
        {
            *lost = true;
            let what = format!("what a scrub has done is forgotten at the unmount: {error}");
            match &self.file {
                Some(file) => Error::about(file.display(), what),
                None => Error::new(what),
            }
            .print();
        }
    }

    fn file(&self) -> io::Result<&Path> {
        let none = || io::Error::other("neither $XDG_STATE_HOME nor $HOME names a directory");
        self.file.as_deref().ok_or_else(none)
    }

    fn coming(&self) -> io::Result<PathBuf> {
        let mut name = self.file()?.as_os_str().to_owned();
        name.push("_tmp");
        Ok(name.into())
    }

    /// The file that will be the record, when nobody else is at it.
    fn lock(&self) -> io::Result<File> {
        let coming = self.coming()?;
        if let Some(dir) = coming.parent() {
            let mode = if sys::is_root() { 0o755 } else { 0o700 };
            fs::DirBuilder::new().recursive(true).mode(mode).create(dir)?;
        }
        loop {
            let mut options = OpenOptions::new();
            options.write(true).create(true).truncate(false).mode(0o600);
            let file = options.custom_flags(libc::O_NOFOLLOW).open(&coming)?;
            file.lock()?;
            // Whoever had the lock may have made it the record.
            if fs::metadata(&coming)
                .is_ok_and(|now| file.metadata().is_ok_and(|it| now.ino() == it.ino()))
            {
                return Ok(file);
            }
        }
    }

    fn write(&self, mut file: File, status: &ScrubStatus) -> io::Result<()> {
        file.set_len(0)?;
        file.write_all(self.text(status).as_bytes())?;
        fs::rename(self.coming()?, self.file()?)
    }

    fn text(&self, status: &ScrubStatus) -> String {
        let flag = |state| u8::from(status.state == state);
        let ended = format!(
            "t_start:{}|t_resumed:0|duration:{}|canceled:{}|finished:{}",
            status.started,
            status.time.as_secs(),
            flag(ScrubState::Cancelled),
            flag(ScrubState::Finished)
        );
        let line = |devid: u64, done: &Scrubbed, last: u64| {
            // In the order in which `btrfs scrub` writes them.
            let names = done.list().into_iter().map(|(name, n)| format!("{name}:{n}|"));
            format!(
                "{}:{devid}|{}last_physical:{last}|{ended}\n",
                self.fsid,
                names.collect::<String>()
            )
        };
        let place = line(NO_DEVICE, &Scrubbed::default(), status.next);
        format!("{HEAD}\n{}{place}", line(self.devid, &status.done, 0))
    }

    /// `None`: there is no record, or nobody understands it.
    pub fn read(&self) -> Option<Kept> {
        self.parse(&fs::read_to_string(self.file.as_ref()?).ok()?)
    }

    fn parse(&self, text: &str) -> Option<Kept> {
        let lines = text.strip_prefix(HEAD)?.lines().filter_map(|line| self.line(line));
        let lines: HashMap<u64, HashMap<&str, u64>> = lines.collect();
        let found = lines.get(&self.devid)?;
        let number = |name| found.get(name).copied().unwrap_or(0);
        let names = Scrubbed::default().list();
        let done = Scrubbed::from_numbers(names.into_iter().map(|(name, _)| number(name)));
        let state = match (number("finished"), number("canceled")) {
            (0, 0) => ScrubState::Failed,
            (0, _) => ScrubState::Cancelled,
            _ => ScrubState::Finished,
        };
        let seconds = |name| number(name).min(u64::from(u32::MAX));
        let started = seconds("t_start").cast_signed();
        let time = Duration::from_secs(seconds("duration"));
        let next = lines.get(&NO_DEVICE).and_then(|line| line.get("last_physical").copied());
        // Another program's line for the device is newer than ours for no device.
        let next = next.filter(|_| number("last_physical") == 0);
        let status = ScrubStatus { state, started, time, done, ..ScrubStatus::default() };
        Some(Kept { status, next })
    }

    fn line<'a>(&self, line: &'a str) -> Option<(u64, HashMap<&'a str, u64>)> {
        let mut words = line.strip_prefix(&self.fsid)?.strip_prefix(':')?.split('|');
        let devid = words.next()?.parse().ok()?;
        let number = |word: &'a str| {
            let (name, number) = word.split_once(':')?;
            Some((name, number.parse().ok()?))
        };
        Some((devid, words.map(number).collect::<Option<_>>()?))
    }

    /// A process stays behind that writes down how the scrub goes on, until it ends or the mount
    /// does. It holds nothing of the mount, which can be unmounted.
    pub fn follow(&self, path: &Path) {
        let Ok(point) = mounts::real_path(path) else { return };
        let point = mounts::around(&point).ok().flatten().map_or(point, |entry| entry.point);
        let followed = sys::fork_apart(|| {
            sys::close_others(&mut []);
            let _ = sys::new_session().and_then(|()| sys::null_stdio());
            let _ = std::env::set_current_dir("/");
            self.stay(&point);
        });
        if let Err(error) = followed {
            Error::new(format!("how the scrub ends is not written down: {}", io_text(&error)))
                .print();
        }
    }

    fn stay(&self, point: &Path) {
        let (mut rest, mut written) = (Duration::from_millis(50), Instant::now());
        loop {
            sleep(rest);
            rest = (rest * 2).min(Duration::from_secs(1));
            let Ok(target) = Target::open(point.as_os_str(), Access::Read) else { return };
            if !target.fsid().is_ok_and(|fsid| uuid(&fsid) == self.fsid) {
                return;
            }
            let running = |status: &ScrubStatus| status.state == ScrubState::Running;
            if written.elapsed() < OFTEN
                && target.scrub_status().is_ok_and(|status| running(&status))
            {
                continue;
            }
            written = Instant::now();
            if !self.note_apart(target).is_ok_and(|status| running(&status)) {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> Record {
        Record { file: None, fsid: "00-11".into(), devid: 3 }
    }

    #[test]
    fn what_is_written_is_read() {
        let done = Scrubbed { data_bytes_scrubbed: 77, csum_errors: 2, ..Scrubbed::default() };
        let time = Duration::from_secs(9);
        for state in [ScrubState::Running, ScrubState::Cancelled, ScrubState::Finished] {
            let status =
                ScrubStatus { state, next: 5, started: 6, time, done, ..ScrubStatus::default() };
            let kept = record().parse(&record().text(&status)).unwrap();
            let as_kept = if state == ScrubState::Running { ScrubState::Failed } else { state };
            assert_eq!((kept.next, kept.status.state, kept.status.done), (Some(5), as_kept, done));
            assert_eq!((kept.status.started, kept.status.time), (6, time));
        }
    }

    /// `btrfs scrub` has gone on with ours, or written its own; or it is another volume's, or none.
    #[test]
    fn what_others_have_written() {
        let theirs = |last| {
            format!("{HEAD}\n00-11:3|csum_errors:1|last_physical:{last}|canceled:1|finished:0\n")
        };
        let ours = "00-11:0|last_physical:8|canceled:0\n";
        let next = |text: String| record().parse(&text).map(|kept| kept.next);
        assert_eq!(next(theirs(9)), Some(None));
        assert_eq!(next(theirs(9) + ours), Some(None));
        assert_eq!(next(theirs(0) + ours), Some(Some(8)));
        assert_eq!(next(theirs(0).replace("00-11", "00-12")), None);
        assert_eq!(next(theirs(0).replace(":1|", ":x|")), None);
        assert_eq!(next(theirs(0)[1..].into()), None);
        assert_eq!(next(String::new()), None);
    }
}
