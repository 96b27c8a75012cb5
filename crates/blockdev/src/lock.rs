//! Who has an image: writers alone, readers together, and parts of it apart from each other.
//!
//! All of an image is locked as ever, by `flock`: exclusively to be written. Who has a part shares
//! that lock and locks the bytes of the part (OFD locks); a reader of all does both, so that no part
//! of what it reads is written. So two parts can be written at once that have no byte in common, and
//! whoever knows `flock` alone keeps away.
//!
//! Where bytes cannot be locked a part counts as all of the image. The kernel locks bytes to be written only by a
//! descriptor that can be written to. Who has another one (a device that is opened to be written is news to udev) locks
//! them to be read, which keeps writers away, and the same bytes far behind the end of any file (`claimed`), which each
//! reader looks at. Either sets its lock first and looks at the other's then, so at least one of them sees the other.

use crate::Span;
use std::fs::{File, TryLockError};
use std::io;

/// Locks all of `file`, or the part, or answers `ResourceBusy`.
pub fn lock(file: &File, write: bool, part: Option<Span>) -> io::Result<()> {
    let all = |write: bool| match if write { file.try_lock() } else { file.try_lock_shared() } {
        Ok(()) => Ok(()),
        Err(TryLockError::WouldBlock) => Err(busy()),
        Err(TryLockError::Error(error)) => Err(error),
    };
    if write && part.is_none() {
        return all(true);
    }
    all(false)?;
    match lock_bytes(file, write, part) {
        // The descriptor cannot be read.
        Err(error) if is_busy(&error) || error.raw_os_error() == Some(libc::EBADF) => {
            unlock(file);
            Err(error)
        }
        Err(_) => all(write),
        Ok(()) => Ok(()),
    }
}

/// Also where a child that another thread has forked holds the descriptor still.
pub(crate) fn unlock(file: &File) {
    unlock_bytes(file);
    let _ = file.unlock();
}

fn busy() -> io::Error {
    io::Error::new(io::ErrorKind::ResourceBusy, "in use by another program")
}

fn is_busy(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::ResourceBusy
}

/// No file is so long.
#[cfg(target_os = "linux")]
const BEHIND: u64 = 1 << 61;

/// The bytes of the part, or all, that a file can have.
#[cfg(target_os = "linux")]
fn bytes_of(part: Option<Span>) -> Span {
    let Span { start, len } = part.unwrap_or(Span { start: 0, len: BEHIND });
    let start = start.min(BEHIND - 1);
    Span { start, len: len.clamp(1, BEHIND - start) }
}

/// What stands for these bytes where they are claimed by who cannot write.
#[cfg(target_os = "linux")]
fn claimed(bytes: Span) -> Span {
    Span { start: BEHIND + bytes.start, len: bytes.len }
}

#[cfg(target_os = "linux")]
fn of_bytes(kind: libc::c_int, Span { start, len }: Span) -> io::Result<libc::flock> {
    let offset = |bytes: u64| libc::off_t::try_from(bytes).map_err(io::Error::other);
    Ok(libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: offset(start)?,
        l_len: offset(len)?,
        l_pid: 0,
    })
}

#[cfg(target_os = "linux")]
fn set(file: &File, kind: libc::c_int, bytes: Span) -> io::Result<()> {
    use std::os::fd::AsRawFd;
    let lock = of_bytes(kind, bytes)?;
    // SAFETY: fcntl reads the structure, which outlives the call.
    if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &lock) } == 0 {
        return Ok(());
    }
    match io::Error::last_os_error() {
        e if matches!(e.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => Err(busy()),
        e => Err(e),
    }
}

/// Refuses bytes that somebody else has locked, also to read them.
#[cfg(target_os = "linux")]
fn nobody_has(file: &File, bytes: Span) -> io::Result<()> {
    use std::os::fd::AsRawFd;
    let mut lock = of_bytes(libc::F_WRLCK, bytes)?;
    // SAFETY: fcntl reads and writes the structure, which outlives the call.
    match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &raw mut lock) } {
        0 if lock.l_type == libc::F_UNLCK as libc::c_short => Ok(()),
        0 => Err(busy()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(target_os = "linux")]
fn lock_bytes(file: &File, write: bool, part: Option<Span>) -> io::Result<()> {
    let bytes = bytes_of(part);
    if !write {
        set(file, libc::F_RDLCK, bytes)?;
        return nobody_has(file, claimed(bytes));
    }
    match set(file, libc::F_WRLCK, bytes) {
        // It cannot be written to.
        Err(error) if error.raw_os_error() == Some(libc::EBADF) => {
            set(file, libc::F_RDLCK, bytes)?;
            set(file, libc::F_RDLCK, claimed(bytes))?;
            nobody_has(file, bytes)
        }
        locked => locked,
    }
}

#[cfg(target_os = "linux")]
fn unlock_bytes(file: &File) {
    // A length of 0 is all behind the start.
    let _ = set(file, libc::F_UNLCK, Span { start: 0, len: 0 });
}

#[cfg(not(target_os = "linux"))]
fn lock_bytes(_: &File, _: bool, _: Option<Span>) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(not(target_os = "linux"))]
fn unlock_bytes(_: &File) {}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::OpenOptions;

    const FIRST: Option<Span> = Some(Span { start: 0, len: 4096 });
    const SECOND: Option<Span> = Some(Span { start: 4096, len: 4096 });
    const ACROSS: Option<Span> = Some(Span { start: 2048, len: 4096 });

    /// To be written or not, and what.
    type Wish = (bool, Option<Span>);

    /// What is held, what is wanted, whether both can be.
    const CASES: [(Wish, Wish, bool); 14] = [
        ((true, FIRST), (true, SECOND), true),
        ((true, FIRST), (true, ACROSS), false),
        ((true, FIRST), (false, ACROSS), false),
        ((false, FIRST), (true, ACROSS), false),
        ((false, FIRST), (false, ACROSS), true),
        ((true, FIRST), (true, None), false),
        ((true, FIRST), (false, None), false),
        ((false, FIRST), (true, None), false),
        ((false, FIRST), (false, None), true),
        ((true, None), (true, SECOND), false),
        ((true, None), (false, SECOND), false),
        ((true, None), (false, None), false),
        ((false, None), (true, SECOND), false),
        ((false, None), (false, SECOND), true),
    ];

    #[test]
    fn parts_exclude_each_other_where_they_meet_and_all_excludes_parts() {
        let path = std::env::temp_dir().join(format!("blockdev-parts-{}", std::process::id()));
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        let open = || options.open(&path).unwrap();
        for (held, wanted, both) in CASES {
            let (holder, other) = (open(), open());
            lock(&holder, held.0, held.1).unwrap();
            let got = lock(&other, wanted.0, wanted.1);
            let told = format!("{held:?}, then {wanted:?}: {got:?}");
            assert_eq!(got.is_ok(), both, "{told}");
            if let Err(error) = got {
                assert_eq!(error.kind(), io::ErrorKind::ResourceBusy, "{told}");
            }
            // Who was refused holds nothing; who lets go holds nothing, whoever has a copy.
            let copy = holder.try_clone().unwrap();
            unlock(&holder);
            if both {
                unlock(&other);
            }
            lock(&open(), true, None).unwrap_or_else(|e| panic!("{told}: {e}"));
            drop((holder, copy, other));
        }
        std::fs::remove_file(&path).unwrap();
    }

    /// Who may only read is no reason to ask for all of the image.
    #[test]
    fn a_descriptor_that_is_only_read_locks_its_part_too() {
        let path = std::env::temp_dir().join(format!("blockdev-read-{}", std::process::id()));
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        let open = || options.open(&path).unwrap();
        let (first, reads) = (open(), File::open(&path).unwrap());
        lock(&first, true, FIRST).unwrap();
        let busy = |file: &File, wish: Wish| {
            assert!(is_busy(&lock(file, wish.0, wish.1).unwrap_err()), "{wish:?}");
        };
        busy(&reads, (true, ACROSS));
        lock(&reads, true, SECOND).unwrap();
        busy(&open(), (true, SECOND));
        // Who only reads comes too late as well, here and of all; not of another part.
        for late in [(false, SECOND), (false, ACROSS), (false, None)] {
            busy(&open(), late);
        }
        let third = Some(Span { start: 8192, len: u64::MAX });
        let (beside, other) = (File::open(&path).unwrap(), File::open(&path).unwrap());
        lock(&beside, true, third).unwrap();
        busy(&other, (true, third));
        unlock(&beside);
        lock(&beside, false, third).unwrap();
        lock(&other, false, third).unwrap();
        unlock(&beside);
        unlock(&other);
        unlock(&reads);
        let reader = open();
        lock(&reader, false, SECOND).unwrap();
        busy(&reads, (true, SECOND));
        unlock(&reader);
        // Who was refused holds nothing.
        lock(&open(), true, SECOND).unwrap();
        std::fs::remove_file(&path).unwrap();
    }
}
