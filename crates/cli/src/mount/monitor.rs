//! A process beside the server that does for it what the sandbox (`sandbox.rs`) takes from it,
//! on a few fixed words: it looks at who makes a request, tells whether the kernel has mounted
//! the image, and unmounts. It reads no volume and holds nothing of the mount, so a server
//! that was killed ends at once.
//!
//! It is made while the process has one thread and nothing open, and ends with the server, whose
//! ends of three sockets say that it lives. Lookups have one, and wait for nothing. The end of the mount may
//! wait for the server itself, and has another; the look for the kernel's mounts, which may wait for
//! the file system that the image lies on, has the third.
//!
//! Invariant: whoever speaks for the server, be it a stranger's volume, gets no more by these
//! words than is told here: anybody's groups and capabilities, whether a thread waits in one
//! ioctl on one file of this mount and came to it by an idmapped mount, whether four bytes of memory are a mode of a
//! shutdown, and the end of this one mount, whose number is told once.

use crate::error::io_text;
use crate::image;
use crate::mounts::{self, MountEntry};
use crate::sys::{self, Umount};
use fuse::{Call, Callers, Credentials, Proc};
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// As `ps` shows it.
const NAME: &std::ffi::CStr = c"spinney-monitor";

/// The server's side.
#[derive(Debug)]
pub struct Monitor {
    lookups: Line,
    kernel: Line,
    end: Line,
}

/// How an unmount went.
#[derive(PartialEq, Eq, Debug)]
pub enum Unmounted {
    Done,
    /// It was unmounted before, and something is open in it.
    Before,
    /// It is detached, or not even that; what there is to be said.
    But(String),
}

impl Monitor {
    /// Must be called while the process has one thread and nothing open.
    pub fn start(image: &Path, point: &Path) -> io::Result<Monitor> {
        let (lookups, look_up) = UnixStream::pair()?;
        let (kernel, look_for_kernel) = UnixStream::pair()?;
        let (end, unmount) = UnixStream::pair()?;
        sys::fork_apart(|| {
            // Nothing may get out of here into what the server goes on with.
            let _ = catch_unwind(AssertUnwindSafe(|| {
                serve(look_up, look_for_kernel, unmount, image, point);
            }));
        })?;
        let [lookups, kernel, end] = [lookups, kernel, end].map(Line::new);
        Ok(Monitor { lookups, kernel, end })
    }

    /// That answers nothing.
    #[cfg(test)]
    pub(super) fn of_nobody() -> Monitor {
        let line = || Line::new(UnixStream::pair().expect("a pair").0);
        Monitor { lookups: line(), kernel: line(), end: line() }
    }

    /// The mount that is served from now on, by its `major:minor`. The first word of it counts.
    pub fn begun(&self, number: &str) {
        for line in [&self.end, &self.lookups] {
            let _ = line.ask(&format!("serves {number}"));
        }
    }

    /// Where the kernel has the image mounted to write to it.
    pub fn written_by_kernel(&self) -> Option<String> {
        self.kernel.ask("kernel")
    }

    /// Unmounts what is served wherever it is mounted.
    pub fn unmount(&self) -> Unmounted {
        match self.end.ask("unmount").as_deref() {
            Some("done") => Unmounted::Done,
            Some("before") => Unmounted::Before,
            Some(said) => Unmounted::But(said.into()),
            None => Unmounted::But("nobody is there to unmount it".into()),
        }
    }
}

impl Callers for Monitor {
    fn credentials(&self, process: u32) -> Option<Credentials> {
        parse(&self.lookups.ask(&format!("credentials {process}"))?)
    }

    /// Nobody yet: a mount that cannot be used as it is goes, and another one is made (see `begun`).
    fn of_mount(&self, _: &str) -> Option<Arc<dyn Callers>> {
        None
    }

    fn call(&self, thread: u32, command: u32, ino: u64) -> Option<Call> {
        match &*self.lookups.ask(&format!("ioctl {thread} {command} {ino}"))? {
            "plain" => Some(Call::Plain),
            "mapped" => Some(Call::Mapped),
            _ => Some(Call::Elsewhere),
        }
    }

    fn shutdown_mode(&self, process: u32, address: u64) -> Option<u32> {
        self.lookups.ask(&format!("mode {process} {address}"))?.parse().ok()
    }
}

fn write(seen: &Credentials) -> String {
    let groups = seen.groups.iter().map(|group| format!(" {group}")).collect::<String>();
    let Credentials { capabilities, ours, user, group, umask, .. } = seen;
    let ours = ours.map_or("?", |ours| if ours { "1" } else { "0" });
    format!("{capabilities} {ours} {user} {umask} {group}{groups}")
}

fn parse(text: &str) -> Option<Credentials> {
    let mut words = text.split(' ');
    Some(Credentials {
        capabilities: words.next()?.parse().ok()?,
        ours: match words.next()? {
            "?" => None,
            word => Some(word == "1"),
        },
        user: words.next()?.parse().ok()?,
        umask: words.next()?.parse().ok()?,
        group: words.next()?.parse().ok()?,
        groups: words.map(|word| word.parse().ok()).collect::<Option<_>>()?,
    })
}

/// Questions and answers of a line each; an empty one is none.
#[derive(Debug)]
struct Line(Mutex<BufReader<UnixStream>>);

impl Line {
    fn new(socket: UnixStream) -> Line {
        Line(Mutex::new(BufReader::new(socket)))
    }

    fn ask(&self, question: &str) -> Option<String> {
        let mut socket = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut answer = String::new();
        let told = socket.get_mut().write_all(format!("{question}\n").as_bytes());
        let told = told.and_then(|()| match socket.read_line(&mut answer)? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(()),
        });
        if let Err(error) = told {
            tracing::error!("the process beside the server does not answer: {error}");
            return None;
        }
        Some(answer.trim_end_matches('\n').to_owned()).filter(|answer| !answer.is_empty())
    }
}

/// The monitor, until the server is gone.
fn serve(look_up: UnixStream, kernel: UnixStream, end: UnixStream, image: &Path, point: &Path) {
    sys::close_others(&mut [look_up.as_raw_fd(), kernel.as_raw_fd(), end.as_raw_fd()]);
    // It ends with the server and not by a signal from the terminal, keeps no directory busy, and
    // nobody waits for it to close what the server was given to write to.
    let _ = sys::new_session().and_then(|()| sys::null_stdio());
    let _ = std::env::set_current_dir("/");
    sys::block_signals();
    sys::name_thread(NAME);
    let mut mount = Mount { point: point.to_owned(), number: None };
    let image = image.to_owned();
    let is_begun = begin("kernel", move || answer(&kernel, |question| on_kernel(&image, question)))
        && begin("end", move || answer(&end, |question| mount.answer(question)));
    if is_begun {
        let mut looks = Looks::default();
        answer(&look_up, |question| looks.answer(question));
    }
}

fn begin(name: &str, body: impl FnOnce() + Send + 'static) -> bool {
    std::thread::Builder::new().name(name.into()).spawn(body).is_ok()
}

fn answer(socket: &UnixStream, mut answer_to: impl FnMut(&str) -> Option<String>) {
    for question in BufReader::new(socket).lines() {
        let Ok(question) = question else { return };
        let answer = answer_to(&question).unwrap_or_default().replace('\n', "; ");
        if (&*socket).write_all(format!("{answer}\n").as_bytes()).is_err() {
            return;
        }
    }
}

/// Looks at callers.
#[derive(Default, Debug)]
struct Looks {
    proc: Proc,
    is_told: bool,
}

impl Looks {
    fn answer(&mut self, question: &str) -> Option<String> {
        let Some(device) = question.strip_prefix("serves ") else {
            return look(&self.proc, question);
        };
        if !std::mem::replace(&mut self.is_told, true) {
            self.proc = Proc::of(device);
        }
        None
    }
}

fn look(proc: &Proc, question: &str) -> Option<String> {
    let mut words = question.split(' ');
    let (what, process) = (words.next()?, words.next()?.parse().ok()?);
    match what {
        "credentials" => proc.credentials(process).map(|seen| write(&seen)),
        "ioctl" => {
            let (command, ino) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
            let told = match proc.call(process, command, ino)? {
                Call::Elsewhere => "elsewhere",
                Call::Plain => "plain",
                Call::Mapped => "mapped",
            };
            Some(told.to_string())
        }
        "mode" => {
            let mode = proc.shutdown_mode(process, words.next()?.parse().ok()?)?;
            Some(mode.to_string())
        }
        _ => None,
    }
}

fn on_kernel(image: &Path, question: &str) -> Option<String> {
    let point = image::written_by_kernel(image).filter(|_| question == "kernel")?;
    Some(point.display().to_string())
}

/// What the monitor knows of the mount.
struct Mount {
    point: PathBuf,
    number: Option<String>,
}

impl Mount {
    fn answer(&mut self, question: &str) -> Option<String> {
        match question.split_once(' ').unwrap_or((question, "")) {
            ("serves", number) => {
                self.number.get_or_insert_with(|| number.into());
                None
            }
            ("unmount", "") => Some(self.unmount()),
            _ => None,
        }
    }

    fn is_ours(&self, entry: &MountEntry) -> bool {
        Some(&entry.device) == self.number.as_ref() && entry.is_fuse()
    }

    /// What is on top there is the server's.
    fn is_on(&self, point: &Path) -> bool {
        mounts::on(point).ok().flatten().is_some_and(|entry| self.is_ours(&entry))
    }

    /// Takes the mount away, where it is mounted a second time first.
    fn unmount(&self) -> String {
        let mut said = Vec::new();
        let all = mounts::all().unwrap_or_default();
        let elsewhere = |entry: &&MountEntry| self.is_ours(entry) && entry.point != self.point;
        for entry in all.iter().rev().filter(elsewhere) {
            if self.is_on(&entry.point) {
                unmount(&entry.point, &mut said);
            }
        }
        match self.is_on(&self.point) {
            true => unmount(&self.point, &mut said),
            // What is there now is not the server's to be unmounted.
            false if said.is_empty() => return "before".into(),
            false => {}
        }
        if said.is_empty() { "done".into() } else { said.join("; ") }
    }
}

fn unmount(point: &Path, said: &mut Vec<String>) {
    let Err(error) = mounts::unmount(point, Umount::Now) else { return };
    said.push(format!(
        "{}: {}; detached, it is closed when the last file in it is",
        point.display(),
        io_text(&error)
    ));
    if let Err(error) = mounts::unmount(point, Umount::Lazily) {
        said.push(format!("detaching: {error}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_pass_as_they_are() {
        let none = Credentials::default();
        let (user, group, groups, umask) = (9, 0, vec![7, 20], 0o22);
        let ours = Some(true);
        let some = Credentials { capabilities: u64::MAX, ours, user, group, groups, umask };
        let unseen = Credentials { ours: None, ..some.clone() };
        for seen in [none, some, unseen] {
            assert_eq!(parse(&write(&seen)), Some(seen));
        }
        for wrong in ["", "1 1", "1 1 1", "1 1 1 1", "1 1 1 x 1", "1 1 1 1 1 x"] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }

    /// Everything but the words that are known, and a second number, is nothing.
    #[test]
    fn a_server_that_is_not_itself_gets_nothing() {
        let me = std::process::id();
        assert!(look(&Proc::default(), &format!("credentials {me}")).is_some());
        for wrong in ["", "credentials", "credentials x", "credentials -1", "status 1", "mode 1"] {
            assert_eq!(look(&Proc::default(), wrong), None, "{wrong}");
        }
        let mut looks = Looks::default();
        let of_root = mounts::on(Path::new("/")).unwrap().unwrap().device;
        for number in ["0:0", &of_root] {
            assert_eq!(looks.answer(&format!("serves {number}")), None);
        }
        assert!(format!("{looks:?}").contains("0:0"), "the first word counts: {looks:?}");
        let root = mounts::on(Path::new("/")).unwrap().unwrap();
        let mut mount = Mount { point: "/".into(), number: None };
        assert_eq!(mount.answer("unmount").as_deref(), Some("before"));
        for number in ["0:0", &root.device] {
            assert_eq!(mount.answer(&format!("serves {number}")), None);
            assert_eq!(mount.answer("unmount").as_deref(), Some("before"));
        }
        assert_eq!(mount.number.as_deref(), Some("0:0"));
        assert_eq!(mount.answer("unmount /"), None);
    }
}
