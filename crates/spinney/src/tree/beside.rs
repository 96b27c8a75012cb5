//! The names of what is made beside something until it can take that one's place, here and in volumes:
//! `.spinney-PID-N`. Of who is killed it may stay; who comes next to such a directory takes it away.
//!
//! Invariant: what somebody makes still is not taken away. On this machine he holds a lock of the
//! directory, shared with others who do so; in a volume nobody else is.

use crate::sys;
use btrfs_image::{HostDir, HostStat};
use std::cell::RefCell;
use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use vfs::FileKind;

/// A name that no other thread of this process is given.
pub(super) fn next_name() -> Vec<u8> {
    static NUMBERS: AtomicU64 = AtomicU64::new(0);
    let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
    format!(".spinney-{}-{number}", std::process::id()).into_bytes()
}

/// Whose it is, if it is such a name.
pub(super) fn process_of(name: &[u8]) -> Option<u32> {
    let numbers = std::str::from_utf8(name.strip_prefix(b".spinney-")?).ok()?;
    let (process, number) = numbers.split_once('-')?;
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    (is_number(process) && is_number(number)).then(|| process.parse().ok()).flatten()
}

/// Directories of this machine that were looked through already.
#[derive(Default)]
pub(super) struct Swept(RefCell<HashSet<(u64, u64)>>);

impl Swept {
    /// Says that something is made in `dir`, as long as what is returned lives. Before that, what others
    /// left there goes, if nobody makes anything; what cannot be told or taken away stays.
    pub(super) fn enter(&self, dir: &HostDir) -> Option<File> {
        let open = dir.again().ok()?;
        let is_new =
            HostStat::of_file(&open).is_ok_and(|stat| self.0.borrow_mut().insert(stat.key));
        if is_new && open.try_lock().is_ok() {
            let _ = sweep(dir);
        }
        open.try_lock_shared().is_ok().then_some(open)
    }
}

fn sweep(dir: &HostDir) -> io::Result<()> {
    let (us, _) = sys::user_and_group();
    for name in dir.names()? {
        if process_of(&name).is_none_or(sys::is_running) {
            continue;
        }
        let stat = dir.stat(&name, false)?;
        if stat.is_some_and(|stat| stat.uid == us && !stat.is(FileKind::Dir)) {
            dir.remove(&name)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tell_whose_they_are() {
        assert_eq!(process_of(&next_name()), Some(std::process::id()));
        assert_eq!(process_of(b".spinney-12-0"), Some(12));
        for other in [
            &b".spinney-12"[..],
            b".spinney-12-",
            b".spinney--1",
            b".spinney-12-0x",
            b"spinney-1-2",
        ] {
            assert_eq!(process_of(other), None, "{other:?}");
        }
        assert!(sys::is_running(std::process::id()));
    }
}
