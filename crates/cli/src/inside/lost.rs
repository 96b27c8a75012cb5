//! What a volume could not give while it was copied: each is told at once, with the file and the
//! range, and the command goes on; at its end it has failed.

use crate::error::{Error, say_error};
use std::cell::Cell;
use std::path::Path;
use vfs::FsError;

#[derive(Default)]
pub struct Losses {
    things: Cell<u64>,
    ranges: Cell<u64>,
    bytes: Cell<u64>,
}

impl Losses {
    /// `range`: offset and length of content; else it is what `path` names, or holds.
    pub fn tell(&self, image: &Path, path: &[u8], range: Option<(u64, u64)>, why: &FsError) {
        let name = format!("{}:{}", image.display(), String::from_utf8_lossy(path));
        match range {
            Some((at, len)) => {
                self.ranges.set(self.ranges.get() + 1);
                self.bytes.set(self.bytes.get() + len);
                say_error(&format!("spinney: {name}: {len} bytes from {at} on are lost: {why}"));
            }
            None => {
                self.things.set(self.things.get() + 1);
                say_error(&format!("spinney: {name}: could not be read: {why}"));
            }
        }
    }

    /// What there is to say at the end, if anything was lost.
    pub fn sum(&self, image: &Path) -> Option<Error> {
        let (things, ranges, bytes) = (self.things.get(), self.ranges.get(), self.bytes.get());
        let mut parts = Vec::new();
        if ranges > 0 {
            parts.push(format!("{bytes} bytes in {ranges} places are zeros in the copies"));
        }
        if things > 0 {
            parts.push(format!("{things} files or directories are missing or not whole"));
        }
        if parts.is_empty() {
            return None;
        }
        let image = image.display();
        Some(
            Error::about(&image, format!("could not be read wholly: {}", parts.join("; "))).remedy(
                format!("the rest was copied; `spinney check --data {image}` lists all damage"),
            ),
        )
    }
}
