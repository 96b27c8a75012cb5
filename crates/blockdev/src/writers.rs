//! Which files this program writes.
//!
//! The kernel's locks are those of an open file, and a copy of its descriptor (`File::try_clone`) is the same open file:
//! it has the lock already, and would give it back for both.
//!
//! Invariant: no byte of a file is two writers'. It does not know other programs (`lock` does).

use crate::Span;
use parking_lot::Mutex;
use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;

/// Device and inode of the file, and the bytes that are written.
type Place = ((u64, u64), Span);

static WRITERS: Mutex<Vec<Place>> = Mutex::new(Vec::new());

/// Inside of the `ResourceBusy` of who wants to write what this program writes already.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OwnWriter;

impl OwnWriter {
    /// Whether that is what is wrong.
    pub fn is_in(error: &io::Error) -> bool {
        error.get_ref().is_some_and(|inner| inner.is::<OwnWriter>())
    }
}

impl fmt::Display for OwnWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("this program has it open to be written")
    }
}

impl std::error::Error for OwnWriter {}

/// As long as it lives, no other writer gets any of its bytes.
pub(crate) struct Writer(Place);

impl Writer {
    /// Of the part, or of all bytes; `ResourceBusy` where one has some of them.
    pub(crate) fn of(file: &File, part: Option<Span>) -> io::Result<Writer> {
        let meta = file.metadata()?;
        let part = part.unwrap_or(Span { start: 0, len: u64::MAX });
        let place = ((meta.dev(), meta.ino()), part);
        let mut writers = WRITERS.lock();
        if writers.iter().any(|(file, theirs)| *file == place.0 && theirs.overlaps(part)) {
            return Err(io::Error::new(io::ErrorKind::ResourceBusy, OwnWriter));
        }
        writers.push(place);
        Ok(Writer(place))
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        let mut writers = WRITERS.lock();
        if let Some(at) = writers.iter().position(|place| *place == self.0) {
            writers.swap_remove(at);
        }
    }
}
