//! How `spinney umount` learns that a volume is closed, and whether that went well.
//!
//! The server listens on sockets whose names have the mount's device number (`meeting.rs`).
//! Who connects is told one line when the volume is closed and the image unlocked:
//! `closed`, or `failed: ` and why. Before that he may ask, by a line that is answered with a
//! line: for `status` (`again.rs`), to `follow` what the kernel's mount says, to hold what is sent (`sending.rs`). An end without a
//! line means that the server died. The kernel gives a number away again as soon as the mount is
//! gone, which may be long before the volume is closed: so the name is given up by then.
//!
//! Anybody can connect. Strangers, who are neither root nor
//! the server's own user, can learn what everybody may know, and change nothing.
//!
//! The socket is a convenience: without it everything works but the waiting.

use super::meeting;
use super::receive::{RECEIVE, Receivers};
use super::sandbox;
use super::sending::Holds;
use crate::error::say_error;
use crate::mounts::MountEntry;
use crate::sys;
use btrfs_fs::BtrfsFs;
use std::collections::HashMap;
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

/// A waiter that does not read must not keep the server alive.
const PATIENCE: Duration = Duration::from_secs(2);
/// So often who waits looks at how the server is.
const LOOK: Duration = Duration::from_millis(50);

/// Who asks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Asker {
    /// Root, or the user whose server it is.
    Owner,
    Stranger,
}

impl Asker {
    fn of(stream: &UnixStream) -> Asker {
        match sys::peer(stream) {
            Ok((_, user)) if user == 0 || user == sys::user_and_group().0 => Asker::Owner,
            _ => Asker::Stranger,
        }
    }
}

/// Answers a question, in one line.
pub type Answers = Arc<dyn Fn(&str, Asker) -> String + Send + Sync>;

/// What is done with the lines of who asks.
#[derive(Clone)]
pub struct Hearing {
    pub answers: Answers,
    /// Streams are received.
    pub receivers: Option<Arc<Receivers>>,
    /// Whose subvolumes are held while they are sent.
    pub fs: Weak<BtrfsFs>,
}

/// While so many are connected strangers wait for the end, but are not listened to.
const MOST_HEARD: usize = 32;
/// And while so many are, further ones are sent away: each is a descriptor of the server's.
const MOST_KEPT: usize = 256;
/// Where no connection could be taken.
const ANOTHER_TRY: Duration = Duration::from_millis(100);

type Waiters = Arc<Mutex<HashMap<usize, UnixStream>>>;

/// The server's side.
pub struct Control {
    listeners: Vec<UnixListener>,
    waiters: Waiters,
}

impl Control {
    /// `device` is the mount's `major:minor`.
    pub fn listen(device: &str, hearing: Hearing) -> io::Result<Control> {
        let listeners = meeting::listen(device)?;
        let (waiters, count) = (Waiters::default(), listeners.len());
        let mut control = Control { listeners: Vec::new(), waiters: waiters.clone() };
        for (at, listener) in listeners.into_iter().enumerate() {
            control.listeners.push(listener.try_clone()?);
            let (waiters, hearing) = (waiters.clone(), hearing.clone());
            sandbox::spawn("control", move || {
                // Ends when `close` has made the listener non-blocking.
                for number in (at..).step_by(count) {
                    match listener.accept() {
                        Ok((stream, _)) => take(number, stream, &waiters, &hearing),
                        Err(error) if is_passing(&error) => thread::sleep(ANOTHER_TRY),
                        Err(_) => break,
                    }
                }
            })?;
        }
        Ok(control)
    }

    /// The mount is gone. Who connected waits for the end; from now on the number, and with
    /// it the name, can be another server's.
    pub fn close(&mut self) {
        let mut waiting = HashMap::new();
        for listener in std::mem::take(&mut self.listeners) {
            // Some may have connected a moment ago.
            if listener.set_nonblocking(true).is_ok() {
                while let Ok((stream, _)) = listener.accept() {
                    waiting.insert(usize::MAX - waiting.len(), stream);
                }
            }
            // Wakes the thread, which holds the other copy.
            sys::shut_down(&listener);
        }
        self.waiters.lock().unwrap_or_else(PoisonError::into_inner).extend(waiting);
    }

    /// Tells everybody who waits; the volume must be closed.
    pub fn finish(mut self, result: &Result<(), String>) {
        self.close();
        let line = match result {
            Ok(()) => "closed\n".to_owned(),
            Err(why) => format!("failed: {}\n", why.replace('\n', " ")),
        };
        for (_, mut stream) in self.waiters.lock().unwrap_or_else(PoisonError::into_inner).drain() {
            let _ = stream.write_all(line.as_bytes());
            // Who hears it has a copy, too.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

/// Whether the next try to take a connection may go well: descriptors or memory are short, or who
/// came is gone.
fn is_passing(error: &io::Error) -> bool {
    let passing =
        [libc::EMFILE, libc::ENFILE, libc::ENOMEM, libc::ENOBUFS, libc::ECONNABORTED, libc::EINTR];
    error.raw_os_error().is_some_and(|number| passing.contains(&number))
}

/// Keeps the connection until its other side goes, and hears what that asks.
fn take(number: usize, stream: UnixStream, waiters: &Waiters, hearing: &Hearing) {
    let _ = stream.set_write_timeout(Some(PATIENCE));
    let Ok(copy) = stream.try_clone() else { return };
    let mut all = waiters.lock().unwrap_or_else(PoisonError::into_inner);
    all.insert(number, copy);
    let asker = Asker::of(&stream);
    if asker == Asker::Stranger && all.len() > MOST_HEARD {
        // Nobody listens to those that are not heard, so nobody has seen them go.
        all.retain(|_, stream| !sys::has_hung_up(stream));
    }
    if asker == Asker::Stranger && all.len() > MOST_HEARD {
        if all.len() > MOST_KEPT {
            all.remove(&number);
        }
        return;
    }
    drop(all);
    let (waiters, hearing) = (waiters.clone(), hearing.clone());
    let body = move || {
        let forget = || {
            waiters.lock().unwrap_or_else(PoisonError::into_inner).remove(&number);
        };
        if let Some((line, receivers)) = hear(&stream, &hearing, asker) {
            // Who sends a stream waits for its end, and for nothing else.
            forget();
            return receivers.serve(&line, &stream);
        }
        forget();
    };
    // Without the thread nobody is heard, but all the same told of the end.
    let _ = thread::Builder::new().name("control".into()).spawn(body);
}

/// Until nothing is asked any more, or a stream is to come.
fn hear<'h>(
    stream: &UnixStream,
    hearing: &'h Hearing,
    asker: Asker,
) -> Option<(String, &'h Receivers)> {
    const LONGEST: u64 = 4096;
    let mut holds = Holds::new(&hearing.fs);
    for line in BufReader::new(stream.take(LONGEST)).lines() {
        let line = line.ok()?;
        if let (true, Some(receivers)) = (line.starts_with(RECEIVE), &hearing.receivers) {
            return Some((line, receivers));
        }
        let answer = holds.hear(&line).map(str::to_owned);
        let answer = answer.unwrap_or_else(|| (hearing.answers)(&line, asker).replace('\n', " "));
        if (&*stream).write_all(format!("{answer}\n").as_bytes()).is_err() {
            return None;
        }
    }
    None
}

/// How a server ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum End {
    Closed,
    Failed(String),
    /// It said nothing.
    Died,
}

/// The waiting side; connect before the unmount.
pub struct Waiter {
    stream: UnixStream,
}

impl Waiter {
    /// `None` if nobody serves that mount. Who listens must be the user who mounted it.
    pub fn of(entry: &MountEntry) -> Option<Waiter> {
        Waiter::connect(&entry.device, entry.user()?)
    }

    fn connect(device: &str, user: u32) -> Option<Waiter> {
        Some(Waiter { stream: meeting::connect(device, user)? })
    }

    /// The server's process.
    pub fn server(&self) -> Option<i32> {
        let (process, _) = sys::peer(&self.stream).ok()?;
        (process > 0).then_some(process)
    }

    /// The server's answer; `None` if there is none for so long. What comes behind it stays in the stream, for who goes
    /// on. A server that is stopped meanwhile is woken: who sent SIGSTOP a moment ago may see it stop later.
    pub fn ask(&self, question: &str, limit: Duration) -> Option<String> {
        let mut stream = &self.stream;
        let (deadline, mut answer) = (Instant::now() + limit, Vec::new());
        stream.set_read_timeout(Some(LOOK)).ok()?;
        stream.write_all(format!("{question}\n").as_bytes()).ok()?;
        loop {
            let mut next = [0; 1];
            match stream.read(&mut next) {
                Ok(0) => return None,
                Ok(_) if next == *b"\n" => return String::from_utf8(answer).ok(),
                Ok(_) => answer.extend(next),
                Err(e) if is_early(&e) && Instant::now() < deadline => {
                    wake_if_stopped(self.server());
                }
                Err(_) => return None,
            }
        }
    }

    /// The connection, for who goes on by himself.
    pub fn into_stream(self) -> UnixStream {
        self.stream
    }

    /// `meanwhile` is called every now and then.
    pub fn wait(mut self, mut meanwhile: impl FnMut()) -> End {
        let mut told = Vec::new();
        let _ = self.stream.set_read_timeout(Some(LOOK));
        loop {
            let mut part = [0; 4096];
            match self.stream.read(&mut part) {
                Ok(len) if len > 0 => told.extend_from_slice(&part[..len]),
                Err(e) if is_early(&e) => meanwhile(),
                // An error is an end as well.
                _ => break,
            }
        }
        let told = String::from_utf8_lossy(&told);
        match told.lines().last().unwrap_or_default() {
            "closed" => End::Closed,
            other => match other.strip_prefix("failed: ") {
                Some(why) => End::Failed(why.to_owned()),
                None => End::Died,
            },
        }
    }
}

/// Nothing came by the next look.
fn is_early(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

/// Somebody stopped the server: whoever is about to wait for it would wait for ever.
pub fn wake_if_stopped(server: Option<i32>) {
    if let Some(server) = server
        && sys::state(server) == Some('T')
    {
        say_error(&format!("spinney: the server (process {server}) was stopped; waking it"));
        sys::wake(server);
    }
}

/// Does what the server has its part in, and wakes it meanwhile if somebody stopped it.
pub fn keeping_awake<T: Send>(server: Option<i32>, work: impl FnOnce() -> T + Send) -> T {
    wake_if_stopped(server);
    thread::scope(|scope| {
        let working = scope.spawn(work);
        while !working.is_finished() {
            thread::sleep(Duration::from_millis(1));
            wake_if_stopped(server);
        }
        working.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The socket of root's goes with it.
    struct Device(String);

    impl Drop for Device {
        fn drop(&mut self) {
            let _ = std::fs::remove_file(meeting::path(&self.0));
        }
    }

    impl std::ops::Deref for Device {
        type Target = str;

        fn deref(&self) -> &str {
            &self.0
        }
    }

    fn device(test: &str) -> Device {
        Device(format!("test-{test}-{}", std::process::id()))
    }

    fn connect(device: &str) -> Option<Waiter> {
        Waiter::connect(device, sys::user_and_group().0)
    }

    fn answers() -> Hearing {
        let answers: Answers = Arc::new(|question, _| format!("{question}?\nyes"));
        Hearing { answers, receivers: None, fs: Weak::new() }
    }

    #[test]
    fn questions_are_answered_and_the_end_is_told_all_the_same() {
        let device = device("asked");
        let control = Control::listen(&device, answers()).unwrap();
        let waiter = connect(&device).unwrap();
        assert_eq!(waiter.ask("status", PATIENCE).as_deref(), Some("status? yes"));
        assert_eq!(waiter.ask("more", PATIENCE).as_deref(), Some("more? yes"));
        for _ in 0..10 {
            connect(&device).unwrap().ask("x", PATIENCE).unwrap();
        }
        let kept = || control.waiters.lock().unwrap().len();
        let deadline = Instant::now() + PATIENCE;
        while kept() > 1 && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(kept(), 1, "who has gone is forgotten");
        control.finish(&Ok(()));
        assert_eq!(waiter.wait(|| {}), End::Closed);
    }

    /// It was lost: "the server has ended" stood for the reason that the server had told.
    #[test]
    fn what_comes_with_an_answer_is_kept_for_who_goes_on() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        (&theirs).write_all(b"ready\nwhy it ended").unwrap();
        theirs.shutdown(Shutdown::Write).unwrap();
        let waiter = Waiter { stream: ours };
        assert_eq!(waiter.ask("receive", PATIENCE).as_deref(), Some("ready"));
        let mut rest = String::new();
        waiter.into_stream().read_to_string(&mut rest).unwrap();
        assert_eq!(rest, "why it ended");
    }

    #[test]
    fn who_is_short_of_descriptors_tries_again() {
        let error = io::Error::from_raw_os_error;
        assert!(is_passing(&error(libc::EMFILE)) && is_passing(&error(libc::ECONNABORTED)));
        assert!(!is_passing(&error(libc::EINVAL)) && !is_passing(&error(libc::EAGAIN)));
    }

    #[test]
    fn a_hang_up_is_seen_at_once() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        (&theirs).write_all(b"not read yet").unwrap();
        theirs.shutdown(Shutdown::Write).unwrap();
        assert!(!sys::has_hung_up(&ours), "who has sent all may wait for the end");
        drop(theirs);
        assert!(sys::has_hung_up(&ours));
        let (ours, _theirs) = UnixStream::pair().unwrap();
        assert!(!sys::has_hung_up(&ours));
        ours.shutdown(Shutdown::Both).unwrap();
        assert!(sys::has_hung_up(&ours));
    }

    #[test]
    fn waiters_hear_the_end() {
        let device = device("end");
        assert!(connect(&device).is_none());
        let control = Control::listen(&device, answers()).unwrap();
        let waiters: Vec<_> = (0..3).map(|_| connect(&device).unwrap()).collect();
        assert_eq!(waiters[0].server(), Some(std::process::id() as i32));
        control.finish(&Err("no\nspace".into()));
        for waiter in waiters {
            assert_eq!(waiter.wait(|| {}), End::Failed("no space".into()));
        }
    }

    /// Else who waited for the second server's end would be told the first one's.
    #[test]
    fn a_number_that_is_free_again_is_the_next_servers() {
        let device = device("again");
        let mut first = Control::listen(&device, answers()).unwrap();
        let of_first = connect(&device).unwrap();
        first.close();
        let second = Control::listen(&device, answers()).unwrap();
        let of_second = connect(&device).unwrap();
        first.finish(&Err("first".into()));
        assert_eq!(of_first.wait(|| {}), End::Failed("first".into()));
        second.finish(&Ok(()));
        assert_eq!(of_second.wait(|| {}), End::Closed);
    }

    #[test]
    fn a_server_that_says_nothing_died() {
        let device = device("died");
        let listener = UnixListener::bind_addr(&meeting::address(&device).unwrap()).unwrap();
        let waiter = connect(&device).unwrap();
        drop(listener);
        assert_eq!(waiter.wait(|| {}), End::Died);
    }
}
