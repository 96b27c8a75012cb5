//! Watches a server's start from another process, so that a start that fails in whatever way
//! (it is killed, stopped, hangs, runs out of memory) ends soon, with a reason, and leaves
//! no mount behind. In the background the waiting command does this; a server in the
//! foreground gets a process for it that ends when the mount is ready. The waiting command may
//! be killed as well (Ctrl-C): its deputy, one process more, then ends the start.
//!
//! The server reports over a pipe: messages of a code, a length and a text. `M`: it begins
//! to mount. `R`: it is ready. `E`: there will be no mount, and why. Invariant: a mount is
//! taken away only if it is of this image, came to the mount point after the start began,
//! and its server has ended or is made to end.

use crate::image;
use crate::mounts::{self, MountEntry};
use crate::sys::{self, Umount};
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Without anything done. Opening may have to read and write much (replay a log, commit it), and
/// as long as it does it may go on; what hangs or was stopped does nothing.
const TO_OPEN: Duration = Duration::from_secs(20);
/// How often that is looked at.
const LOOK: Duration = Duration::from_millis(200);
/// Only this machine's kernel takes part in mounting.
const TO_MOUNT: Duration = Duration::from_secs(20);
/// Seconds that stand for both, for tests and for who knows better.
const LIMIT: &str = "SPINNEY_START_LIMIT";
/// How long a killed server may take to end.
const TO_END: Duration = Duration::from_secs(5);

/// What a start is about to mount where.
pub struct MountTarget {
    pub image: PathBuf,
    pub point: PathBuf,
    /// The source that the mount table shows, if it is not the image or a loop device.
    pub fsname: String,
    /// The mount that is there already.
    before: Option<u64>,
}

impl MountTarget {
    pub fn new(image: PathBuf, point: PathBuf, fsname: String) -> MountTarget {
        let before = mounts::on(&point).ok().flatten().map(|entry| entry.id);
        MountTarget { image, point, fsname, before }
    }

    /// What the start left mounted, if it did.
    fn left(&self) -> Option<MountEntry> {
        let entry = mounts::on(&self.point).ok()??;
        let ours = entry.is_fuse()
            && Some(entry.id) != self.before
            && (entry.source.as_os_str() == self.fsname.as_str()
                || image::is_source(&self.image, &entry.source));
        ours.then_some(entry)
    }

    /// Takes that away. The server must have ended.
    fn clean(&self) {
        if self.left().is_none() {
            return;
        }
        if let Err(error) = mounts::unmount(&self.point, Umount::ByForce) {
            tracing::warn!("{}: {error}", self.point.display());
        }
    }
}

/// How a start ended.
#[derive(PartialEq, Eq, Debug)]
pub enum Start {
    Ready(String),
    Failed(String),
    /// The server ended without a word.
    Died,
    /// It was ended, since it took too long; what it was doing, for how many seconds.
    TooLong(&'static str, u64),
}

/// The server's end of the pipe.
pub struct Teller {
    pipe: PipeWriter,
}

impl Teller {
    pub fn pair() -> io::Result<(Teller, PipeReader)> {
        let (reader, pipe) = io::pipe()?;
        Ok((Teller { pipe }, reader))
    }

    pub fn descriptor(&self) -> i32 {
        self.pipe.as_raw_fd()
    }

    /// Who waits may be gone; the server goes on without it.
    pub fn tell(&mut self, code: u8, text: &str) {
        let len = (text.len() as u32).to_le_bytes();
        let _ = self.pipe.write_all(&[&[code], &len[..], text.as_bytes()].concat());
    }
}

/// Longer ones are none that a server tells.
const MESSAGE: usize = 1 << 20;

fn hear(pipe: &mut PipeReader) -> io::Result<(u8, String)> {
    let mut head = [0; 5];
    pipe.read_exact(&mut head)?;
    let len = u32::from_le_bytes([head[1], head[2], head[3], head[4]]) as usize;
    if len > MESSAGE {
        return Err(io::Error::from(io::ErrorKind::InvalidData));
    }
    let mut text = vec![0; len];
    pipe.read_exact(&mut text)?;
    Ok((head[0], String::from_utf8_lossy(&text).into_owned()))
}

/// Waits for the start of `server`, and leaves nothing behind if it fails. `ended` waits so
/// long at most, and is true if the server has ended.
pub fn watch(
    server: i32,
    mut pipe: PipeReader,
    place: &MountTarget,
    ended: impl FnOnce(Duration) -> bool,
) -> Start {
    let given = std::env::var(LIMIT).ok().and_then(|s| s.parse().ok()).map(Duration::from_secs);
    let (mut doing, mut limit) =
        ("opening the volume without getting on", given.unwrap_or(TO_OPEN));
    let mut since = Instant::now();
    let mut opening = Some(Work::of(server));
    let start = loop {
        let left = limit.saturating_sub(since.elapsed());
        match sys::wait_readable(&pipe, left.min(LOOK)) {
            Ok(false) if !left.is_zero() => {
                if opening.as_mut().is_some_and(|work| work.goes_on(server)) {
                    since = Instant::now();
                }
            }
            Ok(true) => match hear(&mut pipe) {
                Ok((b'M', _)) => {
                    (doing, limit) = ("mounting it", given.unwrap_or(TO_MOUNT));
                    (since, opening) = (Instant::now(), None);
                }
                Ok((b'R', text)) => return Start::Ready(text),
                Ok((_, text)) => break Start::Failed(text),
                Err(_) => break Start::Died,
            },
            _ => break Start::TooLong(doing, limit.as_secs()),
        }
    };
    if matches!(start, Start::TooLong(..)) {
        // The pipe is open, so the number is still its own.
        sys::kill(server);
    }
    if ended(TO_END) {
        place.clean();
    }
    start
}

/// What a process has done so far.
struct Work {
    processor: u64,
    /// Bytes and calls, as /proc/PID/io counts them.
    io: String,
}

impl Work {
    fn of(process: i32) -> Work {
        let read = |name: &str| std::fs::read_to_string(format!("/proc/{process}/{name}"));
        let stat = read("stat").unwrap_or_default();
        let fields = stat.rsplit_once(") ").map_or("", |(_, fields)| fields).split(' ');
        // utime and stime, the fields 14 and 15 of proc(5): the third is the first here.
        let processor = fields.skip(11).take(2).filter_map(|n| n.parse::<u64>().ok()).sum();
        Work { processor, io: read("io").unwrap_or_default() }
    }

    /// It has done something since, or one of its threads waits for a device, of which there is
    /// nothing to be seen until it answers.
    fn goes_on(&mut self, process: i32) -> bool {
        let before = std::mem::replace(self, Work::of(process));
        let done = (before.processor, &before.io) != (self.processor, &self.io);
        done || waits_for_a_device(process)
    }
}

fn waits_for_a_device(process: i32) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten();
    let numbers = threads.flatten().filter_map(|e| e.file_name().to_str()?.parse().ok());
    numbers.into_iter().any(|thread: i32| sys::state(thread) == Some('D'))
}

/// A process that ends the start of a server if the command that waits for it is killed.
pub struct Deputy {
    /// Whoever waits has this; its end without a word says that it is gone.
    waiting: PipeWriter,
}

impl Deputy {
    /// To be called by who waits for `server`, whose messages come out of `pipe`.
    pub fn new(server: i32, pipe: &PipeReader, place: &MountTarget) -> io::Result<Deputy> {
        let (mut over, waiting) = io::pipe()?;
        let mut pipe = pipe.try_clone()?;
        let mut mine = Some(waiting);
        sys::fork_apart(|| {
            // Its copy would keep the pipe open.
            drop(mine.take());
            // Not to be ended with it from the terminal.
            let _ = sys::new_session();
            if over.read(&mut [0]).is_ok_and(|len| len == 0) {
                take_over(server, &mut pipe, place);
            }
        })?;
        let waiting = mine.ok_or_else(|| io::Error::from(io::ErrorKind::BrokenPipe))?;
        Ok(Deputy { waiting })
    }

    /// The start is over, one way or another.
    pub fn dismiss(mut self) {
        let _ = self.waiting.write_all(b"D");
    }
}

/// Nobody waits any more: a mount that is ready stays, a start that is not is ended.
fn take_over(server: i32, pipe: &mut PipeReader, place: &MountTarget) {
    while let Ok(true) = sys::wait_readable(pipe, Duration::ZERO) {
        match hear(pipe) {
            Ok((b'M', _)) => {}
            Ok((b'R', _)) => return,
            Ok(_) | Err(_) => break,
        }
    }
    // It may have ended: then nobody else has had its number since, this soon.
    if sys::is_alive(server) {
        sys::kill(server);
    }
    if eventually(TO_END, || !sys::is_alive(server)) {
        place.clean();
    }
}

/// Watches over the calling process, which serves in the foreground.
pub fn from_a_process_apart(place: &MountTarget) -> io::Result<Teller> {
    let (teller, pipe) = Teller::pair()?;
    let server = std::process::id() as i32;
    sys::fork_apart(|| {
        // Its end of the pipe too: the server's alone says that the server lives.
        sys::close_others(&mut [pipe.as_raw_fd()]);
        // Not to be ended with it from the terminal.
        let _ = sys::new_session();
        let gone = |limit| eventually(limit, || !sys::is_alive(server));
        if let Start::TooLong(doing, seconds) = watch(server, pipe, place, gone) {
            crate::error::say_error(&too_long(doing, seconds));
        }
    })?;
    Ok(teller)
}

/// Why a start was ended.
pub fn too_long(doing: &str, seconds: u64) -> String {
    format!("spinney: the server was {doing} for {seconds} s, and was ended")
}

/// True if `done` is within `limit`.
pub fn eventually(limit: Duration, mut done: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + limit;
    while !done() {
        if Instant::now() > deadline {
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    true
}
