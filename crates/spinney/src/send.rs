//! Streams of subvolumes, as `btrfs send` writes them, of a volume that is open.
//!
//! It does not know what a stream is made of (`btrfs_sender`), nor where it goes.

use crate::error::{Error, Result};
use crate::volume::{Volume, bytes};
use btrfs_disk::Logical;
use btrfs_disk::items::FileExtentFields;
use btrfs_fs::{Committed, Sending, SubvolId, to_fs};
use btrfs_send::Protocol;
use btrfs_sender::{ExtentBase, File, Has, Sender, Source, Subvolume};
use btrfs_tree::NodeReader;
use std::io::Write;
use std::path::{Path, PathBuf};

/// How [`Volume::send`] writes a stream.
#[derive(Clone, Debug)]
pub struct SendOptions {
    parent: Option<PathBuf>,
    clones: Vec<PathBuf>,
    stream: btrfs_sender::Options,
}

impl Default for SendOptions {
    fn default() -> SendOptions {
        let stream = btrfs_sender::Options {
            protocol: Protocol::V1,
            compressed: false,
            without_content: false,
            one_end: false,
        };
        SendOptions { parent: None, clones: Vec::new(), stream }
    }
}

impl SendOptions {
    /// Everything that the subvolume has, in protocol 1, which every receiver knows.
    pub fn new() -> SendOptions {
        SendOptions::default()
    }

    /// Only what differs from this read-only subvolume, which the receiver has.
    pub fn parent(mut self, path: impl AsRef<Path>) -> SendOptions {
        self.parent = Some(path.as_ref().to_owned());
        self
    }

    /// The receiver has this read-only subvolume as well: content that it shares is taken from
    /// there. Where no parent is named, the best of these becomes it.
    pub fn clone_source(mut self, path: impl AsRef<Path>) -> SendOptions {
        self.clones.push(path.as_ref().to_owned());
        self
    }

    /// With the commands of protocol 2: holes, flags and the time of birth are told as well.
    pub fn protocol_2(mut self, yes: bool) -> SendOptions {
        self.stream.protocol = if yes { Protocol::V2 } else { Protocol::V1 };
        self
    }

    /// With the commands of protocol 3 as well: files with fs-verity are made such by the receiver. Few
    /// receivers know them: ours, and kernels' that were built for experiments.
    pub fn protocol_3(mut self, yes: bool) -> SendOptions {
        if yes {
            self.stream.protocol = Protocol::V3;
        }
        self
    }

    /// Compressed content as it is stored; needs protocol 2.
    pub fn compressed(mut self, yes: bool) -> SendOptions {
        self.stream.compressed = yes;
        self
    }

    /// Which ranges differ, and not what is in them: for who wants to know what changed.
    pub fn without_content(mut self, yes: bool) -> SendOptions {
        self.stream.without_content = yes;
        self
    }

    /// One header and one end for several subvolumes, where others have one each.
    pub fn one_end(mut self, yes: bool) -> SendOptions {
        self.stream.one_end = yes;
        self
    }
}

/// # Streams
impl Volume {
    /// Writes the stream of these read-only subvolumes: `btrfs receive` makes them anew from it, on
    /// this or another volume. With a parent or clone sources each becomes a clone source of
    /// those behind it.
    ///
    /// What changes in the volume meanwhile is not in it, and who deletes one of these subvolumes meanwhile, or
    /// makes it writable, hears EPERM. What was written before an error stays written.
    pub fn send(
        &self,
        subvolumes: &[impl AsRef<Path>],
        options: &SendOptions,
        to: &mut dyn Write,
    ) -> Result<()> {
        if self.read_only_reason().is_none() {
            self.sync()?;
        }
        let sources = options.parent.iter().chain(&options.clones).map(PathBuf::as_path);
        let held = subvolumes
            .iter()
            .map(AsRef::as_ref)
            .chain(sources)
            .map(|path| self.hold_for_send(path));
        let _held = held.collect::<Result<Vec<_>>>()?;
        let committed = self.guard().committed().map_err(|e| self.error(b"", e))?;
        let state = State { volume: self, committed };
        let parent = options.parent.as_ref().map(|parent| state.find(parent)).transpose()?;
        let clones = options.clones.iter().map(|path| state.find(path)).collect::<Result<_>>()?;
        let all = subvolumes.iter().map(|path| state.find(path.as_ref()));
        let all = all.collect::<Result<Vec<_>>>()?;
        let sender = Sender::new(to, options.stream, Has { parent, clones });
        let mut sender = sender.map_err(|error| self.no_stream(b"", error))?;
        for (number, (subvolume, path)) in all.iter().zip(subvolumes).enumerate() {
            let sent = sender.send(&state, subvolume, number + 1 == all.len());
            sent.map_err(|error| self.no_stream(bytes(path), error))?;
        }
        Ok(())
    }

    fn hold_for_send(&self, path: &Path) -> Result<Sending> {
        let id = self.subvolume(path)?.id;
        self.guard().hold_for_send(id).map_err(|error| self.error(bytes(path), error))
    }

    fn no_stream(&self, path: &[u8], error: btrfs_sender::Error) -> Error {
        let joined = |below: &[u8]| [path.strip_suffix(b"/").unwrap_or(path), b"/", below].concat();
        match error {
            btrfs_sender::Error::Tree(error) => self.error(path, to_fs(error)),
            btrfs_sender::Error::Content(error) => self.error(path, error),
            btrfs_sender::Error::File(below, error) => self.error(&joined(&below), error),
            btrfs_sender::Error::Unsayable(below, what) => {
                Error::refused(self.show(&joined(&below)), what)
            }
            btrfs_sender::Error::Stream(error) => Error::stream(error),
            btrfs_sender::Error::Refused(why) => Error::refused(self.show(path), why),
        }
    }
}

/// The volume as the last commit left it.
struct State<'v> {
    volume: &'v Volume,
    committed: Committed<'v>,
}

impl State<'_> {
    fn find(&self, path: &Path) -> Result<Subvolume> {
        let info = self.volume.subvolume(path)?;
        let found = self.committed.subvolume(info.id);
        let (root, item) = found.map_err(|error| self.volume.error(bytes(path), error))?;
        Ok(Subvolume { name: info.name, root, item })
    }
}

impl Source for State<'_> {
    fn reader(&self) -> &dyn NodeReader {
        self.committed.nodes()
    }

    fn references(&self, extent: Logical) -> vfs::Result<Vec<ExtentBase>> {
        let all = self.committed.references(extent)?.into_iter();
        Ok(all.map(|(ino, base)| ExtentBase { ino, base }).collect())
    }

    fn read(&self, file: &File<'_>, offset: u64, buf: &mut [u8]) -> vfs::Result<()> {
        self.committed.read(file.tree, file.ino, file.flags, offset, buf)
    }

    fn read_stored(
        &self,
        file: &File<'_>,
        _: u64,
        extent: &FileExtentFields,
        buf: &mut [u8],
    ) -> vfs::Result<()> {
        self.committed.read_stored(file.flags, extent, 0, buf)
    }

    fn is_unchanged(&self, subvolume: &Subvolume) -> vfs::Result<bool> {
        let info = self.volume.guard().subvolume_info(SubvolId(subvolume.root.id.0))?;
        Ok(info.read_only && !info.deleted && info.ctransid == subvolume.item.ctransid)
    }
}
