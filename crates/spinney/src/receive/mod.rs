//! Streams of subvolumes, as `btrfs send` writes them, played into a volume that is open.
//!
//! It does not know what commands mean (`btrfs_receiver`), nor where the stream comes from.

mod target;

use crate::error::{Error, Result};
use crate::guard::Guard;
use crate::tree::Node;
use crate::volume::{At, Volume, bytes};
use btrfs_fs::BtrfsFs;
use btrfs_receiver::{Event, Options};
use std::ffi::OsStr;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use target::InVolume;
use vfs::{FileSystem, Ino};

impl Volume {
    /// Makes in the directory `path` what `stream` has, as [`Volume::send`] and `btrfs send` write
    /// it: subvolumes whole, or as differences from read-only ones that the volume has. `told` hears
    /// of each when it begins. Each is read-only and durable when it is complete.
    ///
    /// The stream may come from a stranger: nothing outside of the subvolumes that it makes is
    /// changed. After an error the last one stays as far as it came, writable and without the
    /// sender's UUID, so that nothing is received on top of it. What the volume answered is the error's
    /// [`cause`](Error::cause). Where more errors than one are
    /// allowed, that goes for each of which a command failed, and how many did is returned.
    pub fn receive(
        &self,
        path: impl AsRef<Path>,
        stream: &mut dyn Read,
        options: &ReceiveOptions,
        mut told: impl FnMut(Receiving<'_>),
    ) -> Result<u64> {
        let place = bytes(&path);
        let dir = self.find(place, true).at(self, place)?;
        if !dir.is_dir() {
            return Err(self.error(place, vfs::Errno::ENOTDIR.into()));
        }
        let mut target = InVolume::new(self.guard(), self.fs(), dir, &|| false);
        let mut last = PathBuf::new();
        let played = &mut |event: Event<'_>| match event {
            Event::Begun { name, .. } => {
                last = path.as_ref().join(OsStr::from_bytes(name));
                told(Receiving::Begun(&last));
            }
            Event::Failed(error) => told(Receiving::Failed(&last, error)),
        };
        let done = btrfs_receiver::receive(stream, &mut target, options.0, played);
        done.map_err(|error| self.not_received(&last, error))
    }
}

impl Volume {
    /// Of the subvolume `last`, which the stream had begun.
    fn not_received(&self, last: &Path, error: btrfs_receiver::Error) -> Error {
        let subvolume = self.show(bytes(last));
        match error {
            btrfs_receiver::Error::Stream(error) => Error::incoming(error),
            btrfs_receiver::Error::Target { offset, what, error, .. } => {
                let subject = format!("{subvolume}: at byte {offset} of the stream: {what}");
                Error::volume_said(subject, self.name(), error)
            }
            error => Error::refused(subvolume, error),
        }
    }
}

/// For who serves a volume to others: the same into the directory `dir` of a live engine, whose
/// observer hears of what changes. `gone` says whether to give up within a command that takes long.
#[doc(hidden)]
pub fn receive_live(
    fs: &Arc<BtrfsFs>,
    dir: Ino,
    stream: &mut dyn Read,
    options: Options,
    told: &mut dyn FnMut(Event<'_>),
    gone: &dyn Fn() -> bool,
) -> vfs::Result<btrfs_receiver::Result<u64>> {
    // It is no transaction that could be too long.
    let guard = Arc::new(Guard::new(fs.clone(), u64::MAX));
    let engine: Arc<dyn FileSystem> = guard.clone();
    let dir = Node::at(&engine, dir)?;
    let mut target = InVolume::new(&guard, &engine, dir, gone);
    let done = btrfs_receiver::receive(stream, &mut target, options, told);
    drop(target);
    fs.receive_ended();
    Ok(done)
}

/// What [`Volume::receive`] tells on its way.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Receiving<'r> {
    /// This subvolume began.
    Begun(&'r Path),
    /// A command of it failed; the stream goes on.
    Failed(&'r Path, &'r dyn std::error::Error),
}

/// How [`Volume::receive`] plays a stream.
#[derive(Clone, Debug, Default)]
pub struct ReceiveOptions(Options);

impl ReceiveOptions {
    /// Everything that the input has.
    pub fn new() -> ReceiveOptions {
        ReceiveOptions::default()
    }

    /// Ends behind the first end command; what follows in the input is not read as a stream.
    pub fn only_one(mut self, yes: bool) -> ReceiveOptions {
        self.0.only_one = yes;
        self
    }

    /// Ends when so many commands have failed (1 if this is not called); 0: however many do.
    pub fn max_errors(mut self, errors: u64) -> ReceiveOptions {
        self.0.max_errors = errors;
        self
    }

    /// Content that the stream has compressed is written as content, by the rules of the volume, and
    /// not stored as it is.
    pub fn decompress(mut self, yes: bool) -> ReceiveOptions {
        self.0.decompress = yes;
        self
    }
}
