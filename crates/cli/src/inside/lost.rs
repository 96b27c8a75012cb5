//! What a volume could not give while it was copied: each is told at once, with the file and the
//! range, and the command goes on; at its end it has failed.

use crate::error::{Error, say_error};
use crate::progress;
use crate::size::count;
use spinney::tree::Loss;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

#[derive(Default)]
pub struct Losses {
    things: AtomicU64,
    doubts: AtomicU64,
    ranges: AtomicU64,
    bytes: AtomicU64,
}

impl Losses {
    pub fn tell(&self, loss: &Loss<'_>) {
        progress::wipe();
        let (image, path) = (loss.volume.name().display(), String::from_utf8_lossy(loss.path));
        let (name, why) = (format!("{image}:{path}"), loss.why);
        match loss.range {
            Some((at, len)) if loss.copied => {
                self.doubts.fetch_add(len, Ordering::Relaxed);
                say_error(&format!(
                    "spinney: {name}: {len} bytes from {at} on are copied as they are, and may be wrong: {why}"
                ));
            }
            Some((at, len)) => {
                self.ranges.fetch_add(1, Ordering::Relaxed);
                self.bytes.fetch_add(len, Ordering::Relaxed);
                say_error(&format!("spinney: {name}: {len} bytes from {at} on are lost: {why}"));
            }
            None => {
                self.things.fetch_add(1, Ordering::Relaxed);
                say_error(&format!("spinney: {name}: could not be read: {why}"));
            }
        }
    }

    /// What there is to say at the end, if anything was lost.
    pub fn sum(&self, image: &Path) -> Option<Error> {
        let [things, doubts, ranges, bytes] =
            [&self.things, &self.doubts, &self.ranges, &self.bytes]
                .map(|count| count.load(Ordering::Relaxed));
        let mut parts = Vec::new();
        if ranges > 0 {
            parts.push(format!(
                "{bytes} bytes in {} are zeros in the copies",
                count(ranges, "place")
            ));
        }
        if doubts > 0 {
            parts.push(format!("{doubts} bytes in the copies may be wrong"));
        }
        if things > 0 {
            parts.push(match things {
                1 => "1 file or directory is missing or not whole".into(),
                _ => format!("{things} files or directories are missing or not whole"),
            });
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
