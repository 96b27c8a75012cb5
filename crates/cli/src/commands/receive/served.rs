//! A stream that the mount's server receives itself: it is sent as it comes, and what the server tells
//! of it is told.
//!
//! Where that cannot be (the caller is no administrator, the server is older or caches writes, the mount
//! may not be written, nobody listens) the caller receives by system calls (`mount.rs`).

use crate::door::Door;
use crate::error::{Error, Result, io_text};
use crate::mount::control::Waiter;
use crate::mount::receive::{FAILED, PIECE, READY, ServerMessage, line};
use crate::mounts;
use crate::sys;
use btrfs_fs::control::wire;
use btrfs_receiver::Options;
use std::fs::File;
use std::io::{BufReader, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread;
use std::time::Duration;

/// A server that does not answer is done without.
const PATIENCE: Duration = Duration::from_secs(5);

/// A server that is ready for a stream.
pub(super) struct Served {
    stream: UnixStream,
    /// Keeps the mount busy: an `umount` meanwhile fails, as where system calls receive.
    _dir: File,
}

impl Served {
    /// `None`: it cannot be had.
    pub(super) fn ask(dir: &Path, options: &Options) -> Option<Served> {
        let file = File::open(dir).ok()?;
        if sys::is_read_only(&file).ok()? {
            return None;
        }
        let busy = file.try_clone().ok()?;
        let word = Door::on(file, dir).ask_volume(wire::RECEIVE, Vec::new()).ok()?;
        let waiter = Waiter::of(&mounts::around(dir).ok()??)?;
        let ready = waiter.ask(&line(&word, options), PATIENCE)? == READY;
        ready.then(|| Served { stream: waiter.into_stream(), _dir: busy })
    }

    /// Sends all of `input`, and gives `told` what the server says, to the end.
    pub(super) fn send(
        self,
        dir: &Path,
        input: impl Read + Send + 'static,
        mut told: impl FnMut(ServerMessage) -> Option<Result<u64>>,
    ) -> Result<u64> {
        let failed = |e: &std::io::Error| Error::about(dir.display(), io_text(e));
        let to = self.stream.try_clone().map_err(|e| failed(&e))?;
        self.stream.set_read_timeout(None).map_err(|e| failed(&e))?;
        let pump = move || pump(input, &to);
        thread::Builder::new().name("send".into()).spawn(pump).map_err(|e| failed(&e))?;
        let mut from = BufReader::new(&self.stream);
        loop {
            let Ok(next) = ServerMessage::read(&mut from) else {
                return Err(Error::about(dir.display(), "the server of this mount has ended"));
            };
            if let Some(done) = told(next) {
                return done;
            }
        }
    }
}

/// Ends where the input does, or where nobody takes it any more: why, the server has told.
fn pump(mut input: impl Read, mut to: &UnixStream) {
    let mut piece = vec![0; 4 + PIECE];
    loop {
        let len = match input.read(&mut piece[4..]) {
            Err(e) if e.kind() == ErrorKind::Interrupted => continue,
            Err(e) => {
                let code = e.raw_os_error().unwrap_or(libc::EIO);
                let _ = to.write_all(&[FAILED.to_le_bytes(), code.to_le_bytes()].concat());
                return;
            }
            Ok(len) => len,
        };
        piece[..4].copy_from_slice(&(len as u32).to_le_bytes());
        if to.write_all(&piece[..4 + len]).is_err() || len == 0 {
            return;
        }
    }
}
