//! A file system in memory behind the same transport: what the protocol costs by itself.
//!
//! The server is this program again, in a process of its own, and what it serves is the model
//! of the tests: it forgets everything when it ends, so cold means that the kernel has forgotten.

use super::{Abort, Side, drop_caches, with_context};
use crate::counters::{self, Counters};
use crate::sys;
use crate::target::{PosixDir, Target};
use fuse::{Config, Session};
use std::ffi::CString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The word of the command line that makes this program the server.
pub const SERVE: &str = "serve-null";
/// For a server to come or to go.
const LIMIT: Duration = Duration::from_secs(20);

/// Serves an empty file system on `at` until it is unmounted.
pub fn serve(at: &Path) -> io::Result<()> {
    // The scheduler shares processors out among sessions first (`sched_autogroup`): beside other
    // work, a server in its callers' session was three times as fast as the same one in another.
    sys::leave_session()?;
    let config = Config { noatime: true, fsname: "null".into(), ..Config::default() };
    let session = Session::mount(Arc::new(testkit::RefFs::new()), at, &config);
    session.and_then(Session::run).map_err(|error| io::Error::other(error.to_string()))
}

pub struct NullSide {
    at: PathBuf,
    server: Option<Child>,
}

impl NullSide {
    pub fn new(scratch: &Path) -> NullSide {
        NullSide { at: scratch.join("null.mnt"), server: None }
    }

    fn start(&mut self) -> io::Result<()> {
        fs::create_dir_all(&self.at)?;
        let program = std::env::current_exe()?;
        let mut server =
            Command::new(program).arg(SERVE).arg(&self.at).stdin(Stdio::null()).spawn()?;
        let since = Instant::now();
        while sys::get_xattr(&self.at, c"spinney.stats").is_err() {
            if server.try_wait()?.is_some() || since.elapsed() > LIMIT {
                let _ = server.kill();
                return Err(io::Error::other("the null server does not come"));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        self.server = Some(server);
        Ok(())
    }

    fn stop(&mut self) -> io::Result<()> {
        let Some(mut server) = self.server.take() else { return Ok(()) };
        let status = Command::new("umount").arg("-l").arg(&self.at).status()?;
        let since = Instant::now();
        while server.try_wait()?.is_none() {
            if since.elapsed() > LIMIT {
                server.kill()?;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        if status.success() { Ok(()) } else { Err(io::Error::other(format!("umount: {status}"))) }
    }
}

impl Side for NullSide {
    fn label(&self) -> &str {
        "null"
    }

    fn is_reference(&self) -> bool {
        true
    }

    fn reset(&mut self) -> io::Result<()> {
        self.stop()?;
        self.start()
    }

    fn target(&mut self) -> io::Result<Box<dyn Target>> {
        Ok(Box::new(with_context(PosixDir::open(&self.at), self.at.display())?))
    }

    fn make_cold(&mut self) -> io::Result<()> {
        drop_caches()
    }

    fn counters(&mut self) -> io::Result<Option<Counters>> {
        let text = sys::get_xattr(&self.at, c"spinney.stats")?;
        Ok(counters::parse(&String::from_utf8_lossy(&text)))
    }

    fn abort_switch(&self) -> Option<Abort> {
        let at = CString::new(self.at.as_os_str().as_bytes()).ok()?;
        Some(Box::new(move || drop(sys::abort_mount(&at))))
    }

    fn close(&mut self) -> io::Result<()> {
        self.stop()?;
        match fs::remove_dir(&self.at) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
            _ => Ok(()),
        }
    }
}

impl Drop for NullSide {
    fn drop(&mut self) {
        if let Err(error) = self.close() {
            eprintln!("null: {error}");
        }
    }
}
