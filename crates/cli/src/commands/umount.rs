//! `spinney umount`: returns when the volume is closed.

use super::Command;
use crate::args::{self, Arg, Args};
use crate::error::{Error, Exit, Result, io_text, say_error};
use crate::mount::control::{End, Waiter, keeping_awake, wake_if_stopped};
use crate::mounts::{self, MountEntry};
use crate::sys::Umount;
use std::io::{self, ErrorKind};
use std::path::Path;
use std::time::{Duration, Instant};

/// How often a mount that is busy is tried again, and how long after.
const MOMENTS: usize = 5;
const MOMENT: Duration = Duration::from_millis(40);

/// When who waits looks at what he waits for, and so often again.
const LOOK: Duration = Duration::from_secs(3);
/// Where nothing is found he is told that it takes long.
const LONG: Duration = Duration::from_secs(30);

pub const COMMAND: Command = Command {
    name: "umount",
    summary: "unmount a volume, and wait until it is closed",
    usage: "[-l] DIR...",
    help: "\
Unmounts the volumes on the directories DIR, and returns when everything is on the medium
and the images may be used again. umount(8) and `fusermount3 -u` unmount as well, but for
mounts of ordinary users they return before the last commit is written. A volume that is
mounted in another mount namespace, too (a container's, a sandboxed service's), is closed
when it is unmounted there; who that is is told after some seconds.

The exit code is 1 if a volume could not be unmounted, or if closing it failed.

Options
    -l, --lazy    detach the tree now, although files in it are open; returns when the
                  last of them is closed, and the volume with it

Examples
    spinney umount /mnt
",
    run,
};

fn run(mut args: Args) -> Result<Exit> {
    let (mut lazy, mut points) = (false, Vec::new());
    while let Some(arg) = args.next()? {
        match arg {
            Arg::Short('l') | Arg::Long("lazy") => lazy = true,
            Arg::Value(value) => points.push(value),
            other => return Err(args::unexpected(other)),
        }
    }
    let mut failed = false;
    for point in args::some(points, "the mount point")? {
        if let Err(error) = unmount(Path::new(&point), lazy) {
            error.print();
            failed = true;
        }
    }
    Ok(Exit::failed_if(failed))
}

fn unmount(point: &Path, lazy: bool) -> Result<()> {
    let real = keeping_awake(server_at(point), || mounts::real_path(point));
    let real = real.map_err(|e| Error::io(point, &e))?;
    let entry = mounts::on(&real)
        .map_err(|e| Error::io(&real, &e))?
        .ok_or_else(|| Error::about(point.display(), "nothing is mounted here"))?;
    if !entry.is_fuse() {
        let what = format!("a mount of type {}, not of Spinney", entry.kind);
        return Err(Error::about(point.display(), what).remedy("use umount(8)"));
    }
    let waiter = Waiter::of(&entry);
    // Only asked where there is no other way to know: it may hang with the server.
    let dead = waiter.is_none() && point.metadata().is_err();
    // umount(2) waits for the server's answer: a stopped one would keep it, and sync(2) of
    // everybody, waiting.
    let server = waiter.as_ref().and_then(Waiter::server);
    detach_patiently(server, &real, lazy).map_err(|e| refused(point, &e))?;
    if elsewhere(&entry) {
        return Ok(());
    }
    match waiter {
        Some(waiter) => {
            let mut waiting = Waiting::new(point, &entry.device, server);
            judge(point, waiter.wait(|| waiting.look()))
        }
        None => unwatched(point, &entry, dead),
    }
}

/// Tells who waits long what he waits for, once.
struct Waiting<'w> {
    point: &'w Path,
    device: &'w str,
    server: Option<i32>,
    since: Instant,
    looked: Duration,
    told: bool,
}

impl<'w> Waiting<'w> {
    fn new(point: &'w Path, device: &'w str, server: Option<i32>) -> Waiting<'w> {
        Waiting {
            point,
            device,
            server,
            since: Instant::now(),
            looked: Duration::ZERO,
            told: false,
        }
    }

    fn look(&mut self) {
        wake_if_stopped(self.server);
        let now = self.since.elapsed();
        if self.told || now < self.looked + LOOK {
            return;
        }
        self.looked = now;
        let why = match mounts::in_another_namespace(self.device) {
            Some(who) => format!("it is mounted in another mount namespace, too: {who}"),
            None if now < LONG => return,
            None => "files in it are open, or its server has much to write".to_owned(),
        };
        self.told = true;
        say_error(&format!("spinney: {}: unmounted here; waiting: {why}", self.point.display()));
    }
}

fn judge(point: &Path, end: End) -> Result<()> {
    let told = |what: String| Error::about(point.display(), what);
    match end {
        End::Closed => Ok(()),
        End::Failed(why) => Err(told(format!("unmounted, but closing the volume failed: {why}"))
            .remedy("what was not committed is lost; the server's log tells more")),
        End::Died => Err(told("unmounted, but the server ended without closing the volume".into())
            .remedy("the volume is in the state of its last commit; it can be mounted again")),
    }
}

/// The server died before, or listens nowhere.
fn unwatched(point: &Path, entry: &MountEntry, dead: bool) -> Result<()> {
    if !entry.kind.ends_with(".spinney") || (!dead && entry.kind.starts_with("fuseblk")) {
        return Ok(());
    }
    if dead {
        return judge(point, End::Died);
    }
    let told = "unmounted; the server cannot be asked whether the volume is closed";
    Err(Error::about(point.display(), told)
        .remedy(format!("until it is, `fuser -v {}` names the server", entry.source.display())))
}

fn refused(point: &Path, error: &io::Error) -> Error {
    let told = Error::about(point.display(), io_text(error));
    match error.kind() {
        ErrorKind::ResourceBusy => told.remedy(format!(
            "`fuser -vm {0}` names who has files open there; `spinney umount -l {0}` detaches",
            point.display()
        )),
        _ => told,
    }
}

/// Unmounts. Who only asks something of the mount, as the process that writes down how a scrub goes on,
/// makes it busy for a moment.
fn detach_patiently(server: Option<i32>, point: &Path, lazy: bool) -> io::Result<()> {
    for _ in 0..MOMENTS {
        match detach_from(server, point, lazy) {
            Err(busy) if busy.kind() == ErrorKind::ResourceBusy => {}
            ended => return ended,
        }
        std::thread::sleep(MOMENT);
    }
    detach_from(server, point, lazy)
}

/// Unmounts, and wakes the server meanwhile if somebody stopped it.
fn detach_from(server: Option<i32>, point: &Path, lazy: bool) -> io::Result<()> {
    let how = if lazy { Umount::Lazily } else { Umount::Now };
    keeping_awake(server, || mounts::unmount(point, how))
}

/// To look at the mount point is to ask the server already. Without that a path with symbolic
/// links in it is not found in the table; then one waits until somebody else wakes it.
fn server_at(point: &Path) -> Option<i32> {
    let entry = mounts::on(&std::path::absolute(point).ok()?).ok()?;
    Waiter::of(&entry.filter(MountEntry::is_fuse)?)?.server()
}

/// The same volume is mounted at another place as well (a bind mount): it stays open.
fn elsewhere(entry: &MountEntry) -> bool {
    let same = |other: &MountEntry| other.device == entry.device && other.is_fuse();
    mounts::all().is_ok_and(|all| all.iter().any(same))
}
