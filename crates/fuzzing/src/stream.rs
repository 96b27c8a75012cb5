//! Streams of `btrfs send`, played to a target that holds the receiver to its promises.

use btrfs_disk::compress::{Encoded, MAX_UNCOMPRESSED};
use btrfs_receiver::{
    CloneFrom, Event, Made, New, Options, Received, RelPath, Target, Times, receive,
};
use btrfs_send::{MAX_COMMAND, Origin, Verity, mend};
use vfs::{Errno, FallocateMode, FsError, Result};

/// The checksums of the commands are made right first, or nothing would get past them.
pub fn stream(data: &[u8]) -> bool {
    let mut bytes = data.to_vec();
    mend(&mut bytes);
    let mut target = Watching::default();
    let done = receive(&mut &*bytes, &mut target, Options::default(), &mut sound);
    assert!(done.is_err() || target.open == 0, "it ends without the end of a subvolume");
    let patient = Options { max_errors: 0, ..Options::default() };
    let mut again = Watching { patient: true, ..Watching::default() };
    let done = receive(&mut &*bytes, &mut again, patient, &mut sound);
    assert!(done.is_err() || done.is_ok_and(|errors| errors > 0 || again.open == 0));
    target.calls > 1
}

fn sound(told: Event<'_>) {
    if let Event::Begun { name, .. } = told {
        assert!(!name.is_empty() && !name.contains(&b'/'));
    }
}

/// Takes everything, but now and then, and looks at what it is given.
#[derive(Default)]
struct Watching {
    calls: u64,
    /// Subvolumes begun and not complete.
    open: u64,
    /// One may be given up for the next.
    patient: bool,
    /// Something of the open one failed: it is never complete.
    failed: bool,
}

impl Watching {
    fn path(&mut self, path: RelPath<'_>) -> Result<()> {
        let bytes = path.as_bytes();
        let sound = |name: &[u8]| {
            !matches!(name, b"" | b"." | b"..") && name.len() <= 255 && !name.contains(&0)
        };
        assert!(bytes.is_empty() || bytes.split(|byte| *byte == b'/').all(sound), "{bytes:?}");
        assert_eq!(self.open, 1, "a change outside of any subvolume");
        self.calls += 1;
        if self.calls.is_multiple_of(97) {
            self.failed = true;
            return Err(FsError::Posix(Errno::ENOSPC));
        }
        Ok(())
    }

    fn begun(&mut self) -> Result<()> {
        assert!(self.open == 0 || self.patient, "one inside of another");
        (self.open, self.calls, self.failed) = (1, self.calls + 1, false);
        Ok(())
    }

    fn both(&mut self, one: RelPath<'_>, other: RelPath<'_>) -> Result<()> {
        self.path(one)?;
        self.path(other)
    }
}

impl Target for Watching {
    fn begin(&mut self, _: &[u8]) -> Result<()> {
        self.begun()
    }
    fn begin_from(&mut self, _: &[u8], parent: &Origin) -> Result<Made> {
        if parent.uuid == [0; 16] {
            return Ok(Made::UnknownParent);
        }
        self.begun().map(|()| Made::Yes)
    }
    fn complete(&mut self, _: &Received) -> Result<()> {
        assert_eq!(std::mem::take(&mut self.open), 1, "nothing is there to be completed");
        assert!(!self.failed, "what failed is told to be complete");
        Ok(())
    }
    fn make(&mut self, path: RelPath<'_>, _: &New<'_>) -> Result<()> {
        self.path(path)
    }
    fn rename(&mut self, from: RelPath<'_>, to: RelPath<'_>) -> Result<()> {
        self.both(from, to)
    }
    fn link(&mut self, old: RelPath<'_>, path: RelPath<'_>) -> Result<()> {
        self.both(old, path)
    }
    fn unlink(&mut self, path: RelPath<'_>) -> Result<()> {
        self.path(path)
    }
    fn rmdir(&mut self, path: RelPath<'_>) -> Result<()> {
        self.path(path)
    }
    fn write(&mut self, path: RelPath<'_>, _: u64, data: &[u8]) -> Result<()> {
        assert!(data.len() <= MAX_COMMAND);
        self.path(path)
    }
    fn write_encoded(&mut self, path: RelPath<'_>, at: u64, encoded: &Encoded<'_>) -> Result<()> {
        let (content, whole) = (encoded.content().len() as u64, encoded.whole_len());
        assert!(whole <= MAX_UNCOMPRESSED as u64 && encoded.within() + content <= whole);
        self.write(path, at, encoded.content())
    }
    fn clone(&mut self, from: &CloneFrom<'_>, path: RelPath<'_>, _: u64, _: u64) -> Result<()> {
        self.both(from.path, path)
    }
    fn truncate(&mut self, path: RelPath<'_>, _: u64) -> Result<()> {
        self.path(path)
    }
    fn allocate(&mut self, path: RelPath<'_>, _: FallocateMode, _: u64, _: u64) -> Result<()> {
        self.path(path)
    }
    fn enable_verity(&mut self, path: RelPath<'_>, _: &Verity<'_>) -> Result<()> {
        self.path(path)
    }
    fn xattrs(&mut self, path: RelPath<'_>) -> Result<Vec<Vec<u8>>> {
        self.path(path)?;
        let some = self.calls.is_multiple_of(2);
        Ok(if some { vec![b"btrfs.compression".to_vec()] } else { Vec::new() })
    }
    fn set_xattr(&mut self, path: RelPath<'_>, _: &[u8], _: &[u8]) -> Result<()> {
        self.path(path)
    }
    fn remove_xattr(&mut self, path: RelPath<'_>, _: &[u8]) -> Result<()> {
        self.path(path)
    }
    fn chmod(&mut self, path: RelPath<'_>, mode: u16) -> Result<()> {
        assert!(mode <= 0o7777);
        self.path(path)
    }
    fn chown(&mut self, path: RelPath<'_>, _: u32, _: u32) -> Result<()> {
        self.path(path)
    }
    fn set_times(&mut self, path: RelPath<'_>, times: &Times) -> Result<()> {
        let made = times.otime.unwrap_or_default();
        let nanos = [times.atime, times.mtime, made].map(|time| time.nanos);
        assert!(nanos.iter().all(|nanos| *nanos < 1_000_000_000));
        self.path(path)
    }
    fn set_flags(&mut self, path: RelPath<'_>, which: u32, flags: u32) -> Result<()> {
        assert_eq!(flags & !which, 0);
        self.path(path)
    }
}
