//! Streams of subvolumes, as `btrfs send` writes them, played into a volume that is open.
//!
//! It does not know what commands mean (`btrfs_receiver`), nor where the stream comes from.

mod target;

use crate::error::{Error, Result};
use crate::volume::{At, Volume, bytes};
use btrfs_receiver::Options;
use std::ffi::OsStr;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use target::InVolume;

impl Volume {
    /// Makes in the directory `path` what `stream` has, as [`Volume::send`] and `btrfs send` write
    /// it: subvolumes whole, or as differences from read-only ones that the volume has. Tells `begun`
    /// of each when it begins. Each is read-only and durable when it is complete.
    ///
    /// The stream may come from a stranger: nothing outside of the subvolumes that it makes is
    /// changed. After an error the last one stays as far as it came, writable and without the
    /// sender's UUID, so that nothing is received on top of it.
    pub fn receive(
        &self,
        path: impl AsRef<Path>,
        stream: &mut dyn Read,
        options: &ReceiveOptions,
        mut begun: impl FnMut(&Path),
    ) -> Result<()> {
        let place = bytes(&path);
        let dir = self.find(place, true).at(self, place)?;
        if !dir.is_dir() {
            return Err(self.error(place, vfs::Errno::ENOTDIR.into()));
        }
        let mut target = InVolume::new(self, dir);
        let options = Options { only_one: options.only_one };
        let mut last = PathBuf::new();
        let done = btrfs_receiver::receive(stream, &mut target, options, &mut |name, _| {
            last = path.as_ref().join(OsStr::from_bytes(name));
            begun(&last);
        });
        done.map_err(|error| match error {
            btrfs_receiver::Error::Stream(error) => Error::stream(error),
            error => Error::refused(self.show(bytes(&last)), error),
        })
    }
}

/// How [`Volume::receive`] plays a stream.
#[derive(Clone, Debug, Default)]
pub struct ReceiveOptions {
    only_one: bool,
}

impl ReceiveOptions {
    /// Everything that the input has.
    pub fn new() -> ReceiveOptions {
        ReceiveOptions::default()
    }

    /// Ends behind the first end command; what follows in the input is not read as a stream.
    pub fn only_one(mut self, yes: bool) -> ReceiveOptions {
        self.only_one = yes;
        self
    }
}
