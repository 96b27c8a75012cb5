//! The names under which a mount's server and those who ask it meet; the mount's device number is in each.
//!
//! An abstract name has no owner and no mode: whoever comes first has it, so who listens there is believed nothing but
//! to be who he is. Root's servers listen besides in a directory that root alone may change, and are looked for there
//! first: that name nobody can take away.
//!
//! A socket stays in the directory when its server ends, which by then may remove no file; the next server with the
//! number takes its place. What is said this file does not know.

use crate::sys;
use std::fs::{self, DirBuilder, Permissions};
use std::io::{self, ErrorKind};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

/// Of root's servers.
const DIR: &str = "/run/spinney";

/// Another server whose mount had the same number needs a moment to notice its end.
const TO_LISTEN: Duration = Duration::from_secs(2);
/// Where it is found by its own name as well nobody is kept waiting, whoever has the other one.
const TO_LISTEN_BESIDES: Duration = Duration::from_millis(100);

pub(super) fn address(device: &str) -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(format!("spinney/mount/{device}"))
}

pub(super) fn path(device: &str) -> PathBuf {
    Path::new(DIR).join(format!("mount-{device}"))
}

/// One listener for each name that can be had; at least one.
pub(super) fn listen(device: &str) -> io::Result<Vec<UnixListener>> {
    let own = match sys::is_root() {
        true => among_roots(device)
            .inspect_err(|e| {
                tracing::warn!("no socket in {DIR}: {e}; another process could listen in its place")
            })
            .ok(),
        false => None,
    };
    let patience = if own.is_some() { TO_LISTEN_BESIDES } else { TO_LISTEN };
    let common = address(device).and_then(|address| patiently(&address, patience));
    match (own, common) {
        (Some(own), Ok(common)) => Ok(vec![own, common]),
        (Some(own), Err(error)) => {
            tracing::warn!("somebody else listens in place of this server: {error}");
            Ok(vec![own])
        }
        (None, common) => Ok(vec![common?]),
    }
}

fn patiently(address: &SocketAddr, patience: Duration) -> io::Result<UnixListener> {
    let deadline = Instant::now() + patience;
    loop {
        match UnixListener::bind_addr(address) {
            Err(e) if e.kind() == ErrorKind::AddrInUse && Instant::now() < deadline => {
                thread::sleep(Duration::from_millis(10));
            }
            other => return other,
        }
    }
}

/// In the place of what an earlier server left. Anybody may connect.
fn among_roots(device: &str) -> io::Result<UnixListener> {
    match DirBuilder::new().mode(0o755).create(DIR) {
        Err(e) if e.kind() != ErrorKind::AlreadyExists => return Err(e),
        _ => {}
    }
    let dir = fs::symlink_metadata(DIR)?;
    if !dir.is_dir() || dir.uid() != 0 || dir.mode() & 0o022 != 0 {
        return Err(io::Error::other("others than root may change it"));
    }
    // Whatever the umask of who made it took from it.
    if dir.mode() & 0o777 != 0o755 {
        fs::set_permissions(DIR, Permissions::from_mode(0o755))?;
    }
    let path = path(device);
    let coming = path.with_extension(format!("{}", std::process::id()));
    let _ = fs::remove_file(&coming);
    let listener = UnixListener::bind(&coming)?;
    let placed = fs::set_permissions(&coming, Permissions::from_mode(0o666))
        .and_then(|()| fs::rename(&coming, &path));
    if placed.is_err() {
        let _ = fs::remove_file(&coming);
    }
    placed.map(|()| listener)
}

/// The server of that user's mount; `None` if nobody of him listens.
pub(super) fn connect(device: &str, user: u32) -> Option<UnixStream> {
    let by_path = || (user == 0).then(|| UnixStream::connect(path(device)).ok()).flatten();
    let by_name = || UnixStream::connect_addr(&address(device).ok()?).ok();
    let his = |stream: &UnixStream| sys::peer(stream).is_ok_and(|(_, peer)| peer == user);
    by_path().filter(his).or_else(|| by_name().filter(his))
}
