//! A file system in memory behind the same transport: what the protocol costs by itself.
//!
//! The server is this program again, in a process of its own (`null` has what it serves). It is mounted as
//! Spinney is: over a block device where root may have one, without access times, and with
//! the same treatment of memory. What it keeps outlives a mount: it pauses and gets cold by unmounting, like the
//! others.
//!
//! Invariant: the server mounts once when it begins, and once more for each line that it is sent.

use super::{Abort, Side, with_context};
use crate::counters::{self, Counters};
use crate::null::NullFs;
use crate::sys;
use crate::target::{PosixDir, Target};
use fuse::{Config, Session, Source};
use std::ffi::CString;
use std::fs;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The word of the command line that makes this program the server.
pub const SERVE: &str = "serve-null";
/// For a server to come or to go.
const LIMIT: Duration = Duration::from_secs(20);
/// Of the file under the mount, which nobody reads.
const IMAGE_LEN: u64 = 1 << 30;

fn image_of(at: &Path) -> PathBuf {
    at.with_extension("img")
}

/// Serves an empty file system on `at`, with what goes behind `-o`, until the one who sends lines is gone.
pub fn serve(at: &Path, options: &str) -> io::Result<()> {
    // The scheduler shares processors out among sessions first (`sched_autogroup`): beside other
    // work, a server in its callers' session was three times as fast as the same one in another.
    sys::leave_session()?;
    sys::keep_memory_as_the_server();
    let told = |error: vfs::FsError| io::Error::other(error.to_string());
    let mut config = Config { noatime: true, fsname: "null".into(), ..Config::default() };
    if sys::is_root() {
        config.source = Source::Image(image_of(at));
    }
    config.apply_options(options).map_err(told)?;
    let fs = Arc::new(NullFs::new());
    loop {
        Session::mount(fs.clone(), at, &config).and_then(Session::run).map_err(told)?;
        if io::stdin().read_line(&mut String::new())? == 0 {
            return Ok(());
        }
    }
}

pub struct NullSide {
    label: String,
    options: String,
    at: PathBuf,
    server: Option<Child>,
    mounted: bool,
}

impl NullSide {
    /// `options` is what goes behind `-o`.
    pub fn new(label: &str, scratch: &Path, options: &str) -> NullSide {
        let at = scratch.join(format!("{label}.mnt"));
        let (label, options) = (label.to_string(), options.to_string());
        NullSide { label, options, at, server: None, mounted: false }
    }

    fn start(&mut self) -> io::Result<()> {
        fs::create_dir_all(&self.at)?;
        fs::File::create(image_of(&self.at))?.set_len(IMAGE_LEN)?;
        let mut server = Command::new(std::env::current_exe()?);
        server.arg(SERVE).arg(&self.at).arg(&self.options).stdin(Stdio::piped());
        self.server = Some(server.spawn()?);
        self.wait_for_mount()
    }

    fn wait_for_mount(&mut self) -> io::Result<()> {
        let Some(server) = &mut self.server else { return Err(io::Error::other("no server")) };
        let since = Instant::now();
        while sys::get_xattr(&self.at, c"spinney.stats").is_err() {
            if server.try_wait()?.is_some() || since.elapsed() > LIMIT {
                let _ = server.kill();
                return Err(io::Error::other("the null server does not come"));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        self.mounted = true;
        Ok(())
    }

    fn unmount(&mut self) -> io::Result<()> {
        if !std::mem::take(&mut self.mounted) {
            return Ok(());
        }
        if Command::new("umount").arg(&self.at).status()?.success() {
            return Ok(());
        }
        let status = Command::new("umount").arg("-l").arg(&self.at).status()?;
        if status.success() { Ok(()) } else { Err(io::Error::other(format!("umount: {status}"))) }
    }

    fn mount_again(&mut self) -> io::Result<()> {
        let lines = self.server.as_mut().and_then(|server| server.stdin.as_mut());
        lines.ok_or_else(|| io::Error::other("no server"))?.write_all(b"\n")?;
        self.wait_for_mount()
    }

    fn stop(&mut self) -> io::Result<()> {
        let unmounted = self.unmount();
        let Some(mut server) = self.server.take() else { return unmounted };
        drop(server.stdin.take());
        let since = Instant::now();
        while server.try_wait()?.is_none() {
            if since.elapsed() > LIMIT {
                server.kill()?;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        unmounted
    }
}

impl Side for NullSide {
    fn label(&self) -> &str {
        &self.label
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

    fn pause(&mut self) -> io::Result<()> {
        self.unmount()
    }

    fn resume(&mut self) -> io::Result<()> {
        if self.mounted { Ok(()) } else { self.mount_again() }
    }

    fn make_cold(&mut self) -> io::Result<()> {
        self.unmount()?;
        self.mount_again()
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
        let stopped = self.stop();
        for removed in [fs::remove_dir(&self.at), fs::remove_file(image_of(&self.at))] {
            match removed {
                Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
                _ => {}
            }
        }
        stopped
    }
}

impl Drop for NullSide {
    fn drop(&mut self) {
        if let Err(error) = self.close() {
            eprintln!("{}: {error}", self.label);
        }
    }
}
