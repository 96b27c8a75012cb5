//! Mounting what Spinney has mounted already, for the same user: the kernel gives a second
//! mount of the file system that it has, and so do we, by a bind mount of its top. Only root
//! can make one; others are told where it is mounted.
//!
//! Invariant: nothing is opened here, and what is served goes on as it is. The first mount's
//! options hold; a second one that they contradict (another subvolume, writing where the
//! first does not) is refused.

use super::control::{Waiter, wake_if_stopped};
use super::flags::Flags;
use super::serve::Request;
use crate::error::{Error, Result, io_text};
use crate::image;
use crate::mounts::{self, MountEntry};
use crate::sys;
use btrfs_disk::TreeId;
use btrfs_fs::Subvol;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::time::Duration;

/// It knows by heart.
const TO_ANSWER: Duration = Duration::from_secs(5);

/// What a server tells of itself: whether it was asked not to write, and the subvolume.
pub fn status(read_only: bool, subvol: &Subvol) -> String {
    let access = if read_only { "ro" } else { "rw" };
    format!("{access} {}", name(subvol))
}

fn name(subvol: &Subvol) -> String {
    match subvol {
        Subvol::Default => "default".into(),
        Subvol::Id(id) => format!("id {id}"),
        Subvol::Path(path) if path.is_empty() => format!("id {}", TreeId::FS),
        Subvol::Path(path) => format!("/{}", String::from_utf8_lossy(path)),
    }
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
    let tops = || entries.iter().filter(|entry| entry.root == Path::new("/"));
    let served = tops().find_map(|entry| Some((entry, Waiter::of(entry)?)));
    let Some((known, waiter)) = served else { return Ok(None) };
    wake_if_stopped(waiter.server());
    let mut same = tops().filter(|entry| entry.device == known.device);
    let reached = same.find_map(|entry| Some((entry, mounts::reach(entry)?)));
    let first = reached.as_ref().map_or(known, |(entry, _)| *entry);
    let told = |what: &str| {
        let place = first.point.display();
        Error::about(request.image.display(), format!("is mounted on {place} already{what}"))
    };
    if entries.iter().any(|entry| entry.point == request.point) {
        return Err(told(""));
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
    let bound = bind(request, first, top);
    bound.map_err(|e| Error::about(request.point.display(), io_text(&e)))?;
    Ok(Some(format!(
        "{} is mounted on {}, too; it is the mount on {}, whose options hold",
        request.image.display(),
        request.point.display(),
        first.point.display()
    )))
}

fn agrees(request: &Request, status: &str) -> std::result::Result<(), String> {
    let (access, subvol) = status.split_once(' ').unwrap_or((status, ""));
    let wanted = name(&request.options.fs.subvol);
    if subvol != wanted {
        let of = |subvol: &str| match subvol {
            "default" => "its default subvolume".to_owned(),
            other => format!("its subvolume {other}"),
        };
        return Err(format!("{}, not {}", of(subvol), of(&wanted)));
    }
    match access {
        "ro" if !request.options.fs.read_only => {
            Err("read-only; unmount it there, or mount it read-only (-r) here, too".into())
        }
        _ => Ok(()),
    }
}

/// With what the first mount forbids and with what is asked for here. The server keeps access
/// times for all mounts as the first says.
fn bind(request: &Request, first: &MountEntry, top: &File) -> std::io::Result<()> {
    let config = &request.options.config;
    let asked = [
        (config.read_only, libc::MS_RDONLY),
        (config.nosuid, libc::MS_NOSUID),
        (config.nodev, libc::MS_NODEV),
        (config.noexec, libc::MS_NOEXEC),
        (config.nosymfollow, libc::MS_NOSYMFOLLOW),
    ];
    let forbidden = Flags::of(first).mount & !libc::MS_RDONLY;
    let flags = asked.iter().filter(|(on, _)| *on).fold(forbidden, |all, (_, flag)| all | flag);
    let from = format!("/proc/self/fd/{}", top.as_raw_fd());
    sys::bind(Path::new(&from), &request.point, flags)
}
