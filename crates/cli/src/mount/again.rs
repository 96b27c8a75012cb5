//! Mounting what Spinney has mounted already, for the same user: the kernel gives a second
//! mount of the file system that it has, and so do we, by a bind mount of its top, or of the subvolume
//! in it that is asked for (`within.rs`). Only root can make one; others are told where it is mounted.
//!
//! Invariant: nothing is opened here, and what is served goes on as it is. The first mount's
//! options hold; a second one that they contradict (a subvolume that does not lie in the first one's,
//! writing where the first does not) is refused.

use super::begin;
use super::control::{Waiter, keeping_awake};
use super::flags::Flags;
use super::request::Request;
use super::within::{self, Within};
use crate::error::{Error, Result, io_text};
use crate::image;
use crate::mounts::{self, MountEntry};
use crate::sys;
use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

/// It knows by heart.
const TO_ANSWER: Duration = Duration::from_secs(5);

/// What helps where the first mount begins at a subvolume in which the other does not lie.
const BESIDE: &str = "unmount it there, and mount the volume's top level first (-o subvolid=5): each \
                      subvolume can be mounted beside that";

/// What a server tells of itself: whether it was asked not to write.
pub fn status(read_only: bool) -> String {
    if read_only { "ro" } else { "rw" }.into()
}

/// The mounts of the image that are this user's.
///
/// Other users' mounts count for nothing: with fusermount3 anybody has the table say that he has
/// any device mounted. If it is true, the image is locked.
fn mounts_of(request: &Request) -> Result<Vec<MountEntry>> {
    let all = mounts::all().map_err(|e| Error::io(Path::new("/proc/self/mountinfo"), &e))?;
    let (user, _) = sys::user_and_group();
    let ours = |entry: &MountEntry| {
        entry.kind.ends_with(".spinney")
            && entry.user() == Some(user)
            && image::is_source(&request.image, &entry.source)
    };
    Ok(all.into_iter().filter(ours).collect())
}

/// What to say, if the image was mounted already and now is at `request.point`, too. `None`
/// if nobody serves it, or nobody who can be asked: then opening it tells who has it.
pub fn share(request: &Request) -> Result<Option<String>> {
    let entries = mounts_of(request)?;
    let served = entries.iter().find_map(|entry| Some((entry, Waiter::of(entry)?)));
    let Some((known, waiter)) = served else { return Ok(None) };
    // Each look at what is mounted is a request to the server.
    keeping_awake(waiter.server(), || share_of(request, &entries, known, &waiter)).map(Some)
}

/// With the mount that is `known`, one of `entries`, whose server `waiter` asks.
fn share_of(
    request: &Request,
    entries: &[MountEntry],
    known: &MountEntry,
    waiter: &Waiter,
) -> Result<String> {
    let same: Vec<_> = entries.iter().filter(|entry| entry.device == known.device).collect();
    let reached = top_of(&same);
    let first = reached.as_ref().map_or(known, |(entry, _)| *entry);
    let told = |what: &str| {
        let place = first.point.display();
        Error::about(request.image.display(), format!("is mounted on {place} already{what}"))
    };
    if entries.iter().any(|entry| entry.point == request.point) {
        return match is_done(request, entries, waiter)? {
            true => Ok(told("").text()),
            false => Err(told("")),
        };
    }
    if !sys::is_root() {
        return Err(told("").remedy("use it there; only root can have it at a second place"));
    }
    let status =
        waiter.ask("status", TO_ANSWER).ok_or_else(|| told(", but its server does not answer"))?;
    agrees(request, &status).map_err(|why| told(&format!(", {why}")))?;
    let Some((_, top)) = &reached else {
        return Err(told(", but something else is mounted over it").remedy("unmount that first"));
    };
    let within = within::find(top, &first.point, &request.options.fs.subvol)?;
    let (dir, way, path) = match &within {
        Within::Top => (top, &[][..], None),
        Within::Below(dir, path) => (dir, &[][..], Some(path.as_slice())),
        Within::Covered(way, path) => (top, way.as_slice(), Some(path.as_slice())),
        Within::Nowhere(why) => return Err(told(&format!(", {why}"))),
        Within::Beside(why) => return Err(told(&format!(", {why}")).remedy(BESIDE)),
    };
    let bound = bind(request, first, dir).and_then(|()| narrow(request, way));
    bound.map_err(|e| Error::about(request.point.display(), io_text(&e)))?;
    Ok(shared(request, first, path))
}

/// Whether mount(8) asks for what is there, on that very point. It has lines of fstab left away that are mounted, but
/// of those that begin at a subvolume it does not know that: `mount -a` would fail.
fn is_done(request: &Request, entries: &[MountEntry], waiter: &Waiter) -> Result<bool> {
    let top = mounts::on(&request.point).map_err(|e| Error::io(&request.point, &e))?;
    let ours = |top: &MountEntry| entries.iter().any(|entry| entry.id == top.id);
    let Some(top) = top.filter(ours) else { return Ok(false) };
    if !request.options.by_mount8 || top.root == Path::new("/") {
        return Ok(false);
    }
    let status = waiter.ask("status", TO_ANSWER);
    let as_asked = status.is_some_and(|status| agrees(request, &status).is_ok())
        && Flags::of(&top).mount & asked(request) == asked(request);
    let Some(dir) = mounts::reach(&top).filter(|_| as_asked) else { return Ok(false) };
    within::is(&dir, &request.point, &request.options.fs.subvol)
}

fn shared(request: &Request, first: &MountEntry, subvolume: Option<&[u8]>) -> String {
    let (image, point) = (request.image.display(), request.point.display());
    let part = subvolume.map_or(String::new(), |path| {
        format!("the subvolume {} of ", Path::new(OsStr::from_bytes(path)).display())
    });
    let first = first.point.display();
    format!(
        "{image} is mounted on {point}, too; it is {part}the mount on {first}, whose options hold"
    )
}

/// The top of what is served, by the first mount that leads to it: one of the top itself, else one of
/// something below.
fn top_of<'e>(same: &[&'e MountEntry]) -> Option<(&'e MountEntry, File)> {
    let is_top = |entry: &&&MountEntry| entry.root == Path::new("/");
    let by_name =
        same.iter().filter(is_top).find_map(|entry| Some((*entry, mounts::reach(entry)?)));
    by_name.or_else(|| {
        same.iter().find_map(|entry| {
            let below = mounts::reach(entry)?;
            Some((*entry, sys::top_of_fuse(&below).ok()?))
        })
    })
}

fn agrees(request: &Request, status: &str) -> std::result::Result<(), String> {
    // What servers that are older tell behind it is their subvolume.
    match status.split(' ').next() {
        Some("ro") if !request.options.fs.read_only => {
            Err("read-only; unmount it there, or mount it read-only (-r) here, too".into())
        }
        _ => Ok(()),
    }
}

/// The second mount is of the directory `way` below what is bound: where something else is mounted over that nothing
/// but a mount of its own leads there.
fn narrow(request: &Request, way: &[u8]) -> std::io::Result<()> {
    begin::at(&request.point, way).map_err(|failed| {
        failed.take_away(&request.point);
        failed.error
    })
}

/// With what the first mount forbids and with what is asked for here. The server keeps access
/// times for all mounts as the first says.
fn bind(request: &Request, first: &MountEntry, top: &File) -> std::io::Result<()> {
    let flags = Flags::of(first).mount & !libc::MS_RDONLY | asked(request);
    let from = format!("/proc/self/fd/{}", top.as_raw_fd());
    sys::bind(Path::new(&from), &request.point, flags)
}

/// What is asked to be forbidden.
fn asked(request: &Request) -> libc::c_ulong {
    let config = &request.options.config;
    let flags = [
        (config.read_only, libc::MS_RDONLY),
        (config.nosuid, libc::MS_NOSUID),
        (config.nodev, libc::MS_NODEV),
        (config.noexec, libc::MS_NOEXEC),
        (config.nosymfollow, libc::MS_NOSYMFOLLOW),
    ];
    flags.iter().filter(|(on, _)| *on).fold(0, |all, (_, flag)| all | flag)
}
