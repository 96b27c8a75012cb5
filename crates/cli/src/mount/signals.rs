//! SIGTERM, SIGINT and SIGHUP end the mount: all is committed and the tree unmounted, or detached where
//! files are open, and the volume closed with the last of them. A second signal does not wait for those.
//!
//! A sender who means one end may send several signals: what stops a session sends SIGTERM and SIGHUP at
//! once, and a terminal that goes sends SIGHUP twice. So what comes beside the first is the same wish. The
//! commit may take longer than that, and what comes during it counts when the tree is unmounted; so one
//! thread waits for signals, and another commits and unmounts.
//!
//! Invariants: the process ends by nothing here before the tree is unmounted or detached. Where the close is under way already it is the server's end that ends the process, since it
//! tells who waits in `spinney umount` how that went.

use super::monitor::{Monitor, Unmounted};
use super::{fault, sandbox};
use crate::error::Exit;
use crate::image::Medium;
use crate::sys;
use btrfs_fs::BtrfsFs;
use fuse::Unmounter;
use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};
use vfs::FileSystem;

/// From the first signal on others are the same wish for so long, at least.
/// Chosen, not measured.
const BESIDE: Duration = Duration::from_secs(1);
/// The session is over so soon after the kernel closed the volume.
/// Chosen, not measured.
const MOMENT: Duration = Duration::from_millis(500);
/// For the server's own end.
/// Chosen, not measured.
const TO_END: Duration = Duration::from_secs(10);

/// What is ended.
pub struct Served {
    fs: Weak<BtrfsFs>,
    medium: Weak<Medium>,
    mount: Unmounter,
    /// Its other side goes when the session is over. Nothing is sent.
    over: Receiver<()>,
}

impl Served {
    pub fn new(
        fs: &Arc<BtrfsFs>,
        medium: &Arc<Medium>,
        mount: Unmounter,
        over: Receiver<()>,
    ) -> Served {
        Served { fs: Arc::downgrade(fs), medium: Arc::downgrade(medium), mount, over }
    }

    fn is_over_in(&self, limit: Duration) -> bool {
        self.over.recv_timeout(limit) == Err(RecvTimeoutError::Disconnected)
    }

    /// The process ends; the kernel answers open files with errors from then on. A thread that the kernel keeps for
    /// somebody (who lists a directory whose names it tells of) keeps open what the process has, so its end alone
    /// would not do that.
    fn end_now(&self, nothing_is_open: bool) -> ! {
        // Then the server ends by itself, and closes the volume as it should.
        if self.is_over_in(if nothing_is_open { TO_END } else { Duration::ZERO }) {
            thread::sleep(TO_END);
        }
        let closed = self.fs.upgrade().map_or(Ok(()), |fs| fs.destroy());
        // Then it was the kernel that closed it, and the server comes to its end by itself.
        if self.is_over_in(MOMENT) {
            thread::sleep(TO_END);
        }
        if let Err(error) = closed {
            tracing::error!("closing: {error}");
        }
        self.mount.disconnect();
        if let Some(medium) = self.medium.upgrade() {
            medium.forget_failed();
        }
        std::process::exit(i32::from(Exit::Failed.code()));
    }
}

/// Starts the thread that waits for them, and the one that does what the first asks for, once they are told
/// what to end: there is nothing yet, so that what can fail fails before.
pub fn wait(monitor: Arc<Monitor>) -> io::Result<Sender<Served>> {
    let (tell, told) = channel::<Served>();
    let (begin, wanted) = channel();
    let (doing, done) = channel();
    let unmounting = move || {
        if let Ok(fs) = wanted.recv() {
            let _ = doing.send(unmount(&fs, &monitor));
        }
    };
    sandbox::spawn("unmounting", unmounting)?;
    let body = move || {
        let Ok(served) = told.recv() else { return };
        let signal = sys::wait_for_signal();
        let begun = Instant::now();
        tracing::info!("{signal}: committing and unmounting");
        let _ = begin.send(served.fs.clone());
        pass_over(begun + BESIDE);
        let signal = sys::wait_for_signal();
        tracing::warn!("{signal} again: closing without waiting for open files");
        // An error: it panicked.
        served.end_now(done.recv().unwrap_or(false));
    };
    sandbox::spawn("signals", body).map(|()| tell)
}

/// Whether nothing is open any more.
fn unmount(fs: &Weak<BtrfsFs>, monitor: &Monitor) -> bool {
    if let Err(error) = fault::at(fault::ENDING) {
        tracing::error!("{error}");
    }
    if let Some(fs) = fs.upgrade()
        && let Err(error) = fs.sync()
    {
        tracing::error!("committing: {error}");
    }
    let unmounted = monitor.unmount();
    match &unmounted {
        Unmounted::Done => {}
        Unmounted::Before => tracing::info!("unmounted already, but files are still open"),
        Unmounted::But(said) => tracing::warn!("{said}"),
    }
    unmounted == Unmounted::Done
}

/// Takes those that come until then, and those that are there by then.
fn pass_over(until: Instant) {
    // There is one of each kind at most.
    let mut looks = sys::ENDING.len();
    while looks > 0 {
        let left = until.saturating_duration_since(Instant::now());
        looks -= usize::from(left.is_zero());
        if let Some(signal) = sys::signal_within(left) {
            tracing::debug!("{signal}, too, is the same wish");
        }
    }
}
