//! How `spinney umount` learns that a volume is closed, and whether that went well.
//!
//! The server listens on an abstract socket whose name has the mount's device number.
//! Who connects is told one line when the volume is closed and the image unlocked:
//! `closed`, or `failed: ` and why. An end without a line means that the server died.
//! The socket is a convenience: without it everything works but the waiting.

use std::io::{self, Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// A waiter that does not read must not keep the server alive.
const PATIENCE: Duration = Duration::from_secs(2);

fn address(device: &str) -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(format!("spinney/mount/{device}"))
}

/// The server's side.
pub struct Control {
    listener: UnixListener,
    waiters: Arc<Mutex<Vec<UnixStream>>>,
}

impl Control {
    /// `device` is the mount's `major:minor`.
    pub fn listen(device: &str) -> io::Result<Control> {
        let listener = UnixListener::bind_addr(&address(device)?)?;
        let waiters = Arc::new(Mutex::new(Vec::new()));
        let control = Control { listener: listener.try_clone()?, waiters: waiters.clone() };
        thread::Builder::new().name("control".into()).spawn(move || {
            // Ends when `finish` has made the listener non-blocking.
            while let Ok((stream, _)) = listener.accept() {
                waiters.lock().unwrap_or_else(PoisonError::into_inner).push(stream);
            }
        })?;
        Ok(control)
    }

    /// Tells everybody who waits; the volume must be closed.
    pub fn finish(self, result: &Result<(), String>) {
        let line = match result {
            Ok(()) => "closed\n".to_owned(),
            Err(why) => format!("failed: {}\n", why.replace('\n', " ")),
        };
        let mut waiting = Vec::new();
        // Some may have connected a moment ago.
        if self.listener.set_nonblocking(true).is_ok() {
            while let Ok((stream, _)) = self.listener.accept() {
                waiting.push(stream);
            }
        }
        waiting.append(&mut self.waiters.lock().unwrap_or_else(PoisonError::into_inner));
        for mut stream in waiting {
            let _ = stream.set_write_timeout(Some(PATIENCE));
            let _ = stream.write_all(line.as_bytes());
        }
    }
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
    /// `None` if nobody serves that mount.
    pub fn connect(device: &str) -> Option<Waiter> {
        let stream = UnixStream::connect_addr(&address(device).ok()?).ok()?;
        Some(Waiter { stream })
    }

    pub fn wait(mut self) -> End {
        let mut told = String::new();
        // An error is an end as well.
        let _ = self.stream.read_to_string(&mut told);
        match told.trim_end() {
            "closed" => End::Closed,
            other => match other.strip_prefix("failed: ") {
                Some(why) => End::Failed(why.to_owned()),
                None => End::Died,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(test: &str) -> String {
        format!("test-{test}-{}", std::process::id())
    }

    #[test]
    fn waiters_hear_the_end() {
        let device = device("end");
        assert!(Waiter::connect(&device).is_none());
        let control = Control::listen(&device).unwrap();
        let waiters: Vec<_> = (0..3).map(|_| Waiter::connect(&device).unwrap()).collect();
        control.finish(&Err("no\nspace".into()));
        for waiter in waiters {
            assert_eq!(waiter.wait(), End::Failed("no space".into()));
        }
    }

    #[test]
    fn a_server_that_says_nothing_died() {
        let device = device("died");
        let listener = UnixListener::bind_addr(&address(&device).unwrap()).unwrap();
        let waiter = Waiter::connect(&device).unwrap();
        drop(listener);
        assert_eq!(waiter.wait(), End::Died);
    }
}
