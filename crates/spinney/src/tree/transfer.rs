//! Trees between this machine and a volume, by `btrfs_image`'s copies, and what `cp` adds
//! to them: merging into what exists, and new things that look new.
//!
//! Where nothing is in the way whole trees go over at once; a merge goes name by name. Hard
//! links are kept through all that one `Transfer` copies: files with several names are not
//! written over but replaced, so that no name gets the content of another; what is replaced goes when
//! what comes in its place is there.

mod into;

use super::copy_rules::CopyRules;
use super::fill::{self, FileAt};
use super::host::HostName;
use super::node::Node;
use super::path::join;
use super::target::{self, MadeInside, OwnLinks};
use crate::error::{Error, Result};
use crate::medium::{Ground, Place};
use crate::volume::Volume;
use blockdev::Span;
use btrfs_image::{
    CopyError, CopyOptions, Event, ExportLinks, HostDir, HostPlace, HostStat, ImportLinks, Lost,
    export_attributes, export_contents, export_tree_at, settled,
};
use std::fs::File;
use std::io::{ErrorKind, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::rc::Rc;
use vfs::FileKind;

/// Something that a [`Transfer`] tells while it runs; paths are the host's.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum TransferEvent<'e> {
    /// So many bytes of content are there, the last of them in this file.
    #[non_exhaustive]
    Progress {
        /// What is being copied.
        path: &'e Path,
        /// Bytes of content so far.
        bytes: u64,
    },
    /// It is the image that is copied into; it was left out.
    #[non_exhaustive]
    LeftOut {
        /// Its path.
        path: &'e Path,
    },
    /// The target knows no such attribute, it cannot be read, or there is a NUL in its name; it was left out.
    #[non_exhaustive]
    SkippedXattr {
        /// Of what.
        path: &'e Path,
        /// Its name.
        name: &'e [u8],
    },
}

type Listener<'v> = dyn Fn(&TransferEvent<'_>) + 'v;
type Failed<'v> = dyn Fn(Error) + 'v;

/// Copies trees between this machine and one volume. Hard links are kept through all that one
/// of these copies.
pub struct Transfer<'v> {
    volume: &'v Volume,
    rules: CopyRules,
    listener: Option<Box<Listener<'v>>>,
    failed: Option<Box<Failed<'v>>>,
    pub(super) import_links: Rc<ImportLinks<'v>>,
    export_links: ExportLinks,
    own_links: OwnLinks,
    pub(super) made_inside: MadeInside,
    /// Where the volume lies.
    image: Option<Place>,
}

/// What it copies into the volume is in `into`; what goes out of it here.
impl<'v> Transfer<'v> {
    /// Copies nothing yet; and never the image or device of this machine that `volume` was opened from into
    /// itself, nor, of a loop device, the file behind it: that is left out
    /// ([`LeftOut`](TransferEvent::LeftOut)).
    pub fn new(volume: &'v Volume, rules: CopyRules) -> Transfer<'v> {
        Transfer {
            volume,
            rules,
            listener: None,
            failed: None,
            import_links: Rc::new(ImportLinks::new(&**volume.fs())),
            export_links: ExportLinks::default(),
            own_links: OwnLinks::default(),
            made_inside: MadeInside::default(),
            image: volume.place(),
        }
    }

    /// Who is told while it runs.
    pub fn on_event(self, listener: impl Fn(&TransferEvent<'_>) + 'v) -> Transfer<'v> {
        Transfer { listener: Some(Box::new(listener)), ..self }
    }

    /// Goes on behind what fails of single files and directories, as `cp` does, and tells that here. What
    /// would fail for all (no room, a target that is read-only) still ends the copy.
    pub fn on_failure(self, failed: impl Fn(Error) + 'v) -> Transfer<'v> {
        Transfer { failed: Some(Box::new(failed)), ..self }
    }

    /// Never copies `image`, in which the volume lies: for who opened it on a device of his own
    /// ([`VolumeOptions::open_device`](crate::VolumeOptions::open_device)), so that nobody else knows where that is.
    pub fn in_image(self, image: &Path) -> Transfer<'v> {
        self.in_part(image, None)
    }

    /// The same of a volume in a `part` of `image`: another part, as a device, is copied as anything else.
    pub fn in_part(self, image: &Path, part: Option<Span>) -> Transfer<'v> {
        let ground = image.metadata().ok().and_then(|meta| Ground::of(&meta));
        let image = ground.map(|ground| Place::of(ground, part));
        Transfer { image: image.or(self.image), ..self }
    }

    /// Also a device over it, or below it, whose content would be copied.
    fn is_image(&self, host: &HostStat) -> bool {
        let ground = match host.kind() {
            Some(FileKind::File) => Some(Ground::File(host.key.0, host.key.1)),
            Some(FileKind::BlockDevice) if !self.rules.recursive => Some(Ground::Device(host.rdev)),
            _ => None,
        };
        self.image.zip(ground).is_some_and(|(image, ground)| image.shares(&Place::of(ground, None)))
    }

    fn is_other(&self, host: &Path, seen: &HostStat) -> Result<()> {
        match self.is_image(seen) {
            true => {
                Err(Error::refused(host.display(), "is the image that it was to be copied into"))
            }
            false => Ok(()),
        }
    }

    /// `is_elsewhere`: whether what failed lies where others of the same directory do not.
    fn go_on(&self, result: Result<()>, is_elsewhere: impl Fn(&Error) -> bool) -> Result<()> {
        match (result, &self.failed) {
            (Err(error), Some(failed)) if !error.is_of_all() || is_elsewhere(&error) => {
                failed(error);
                Ok(())
            }
            (result, _) => result,
        }
    }

    /// One that knows what another of the same command made.
    pub fn beside(self, other: Option<&Transfer<'_>>) -> Transfer<'v> {
        match other {
            Some(other) => Transfer { own_links: other.own_links.clone(), ..self },
            None => self,
        }
    }

    /// Whether it is one of this volume.
    pub fn is_of(&self, volume: &Volume) -> bool {
        self.volume.is(volume)
    }

    /// Exports, and tells of what the volume could not give by its names in the volume.
    fn out_of<T>(
        &self,
        (path, host): (&[u8], &Path),
        copy: impl FnOnce(&CopyOptions<'_>) -> T,
    ) -> T {
        let tell = |lost: &Lost<'_>| {
            let name = match lost.path.strip_prefix(host) {
                Ok(below) if !below.as_os_str().is_empty() => {
                    join(path, below.as_os_str().as_bytes())
                }
                _ => path.to_vec(),
            };
            self.volume.tell_loss(&name, lost.range, lost.why, lost.copied);
        };
        let listens = self.volume.has_listener();
        self.with_options(|options| {
            copy(&CopyOptions { lost: if listens { Some(&tell) } else { None }, ..*options })
        })
    }

    fn tell(&self, event: &TransferEvent<'_>) {
        if let Some(listener) = &self.listener {
            listener(event);
        }
    }

    fn with_options<T>(&self, copy: impl FnOnce(&CopyOptions<'_>) -> T) -> T {
        let tell = |event: &Event<'_>| match event {
            Event::Made { ino: Some(ino), kind: FileKind::Symlink, .. } => {
                self.made_inside.add_link(*ino)
            }
            Event::Made { path, kind: FileKind::Symlink, .. } => self.own_links.add(path),
            Event::Made { path, so_far, .. } | Event::Data { path, so_far } => {
                self.tell(&TransferEvent::Progress { path, bytes: so_far.bytes });
            }
            Event::LeftOut { path } => self.tell(&TransferEvent::LeftOut { path }),
            Event::SkippedXattr { path, name } => {
                self.tell(&TransferEvent::SkippedXattr { path, name });
            }
            _ => {}
        };
        let failed = |error| {
            if let Some(failed) = &self.failed {
                failed(self.said(error));
            }
        };
        copy(&CopyOptions {
            nameless: false,
            owners: self.rules.preserve,
            xattrs: self.rules.preserve,
            as_new: (!self.rules.preserve).then(|| *self.volume.context()),
            one_file_system: self.rules.one_file_system,
            leave_out: match self.image.map(|image| image.ground) {
                Some(Ground::File(dev, ino)) => Some((dev, ino)),
                _ => None,
            },
            import_links: self.rules.preserve.then_some(&*self.import_links),
            export_links: self.rules.preserve.then_some(&self.export_links),
            progress: Some(&tell),
            lost: None,
            failed: if self.failed.is_some() { Some(&failed) } else { None },
        })
    }

    fn said(&self, error: CopyError) -> Error {
        Error::copy(self.volume.name(), error)
    }

    /// Of what was to be `path`'s copy: the volume's side is named by it, the host's by the name that was
    /// to be.
    fn failed_out(&self, error: CopyError, path: &[u8], (made, host): (&Path, &Path)) -> Error {
        match error {
            CopyError::Host { path, action, source } if path == made => {
                self.said(CopyError::Host { path: host.to_owned(), action, source })
            }
            CopyError::Volume { source, .. } => {
                let name = format!("{}:{}", self.volume.name().display(), path.escape_ascii());
                Error::volume_said(name, self.volume.name(), source)
            }
            error => self.said(error),
        }
    }

    fn in_the_way(&self, path: &[u8], what: &str) -> Error {
        Error::refused(self.volume.show(path), what)
    }

    /// Copies `node` to the path `host`.
    pub fn export(&self, node: &Node, path: &[u8], host: &Path) -> Result<()> {
        match HostDir::place(host).map_err(|e| Error::host(host, e))? {
            HostPlace::Name(dir, name) => self.export_to(node, path, &dir, &name),
            HostPlace::NewDir(dir, name) if node.is_dir() => {
                self.export_to(node, path, &dir, &name)
            }
            HostPlace::NewDir(..) => Err(Error::host(host, ErrorKind::NotADirectory.into())),
            HostPlace::Dir(dir) if node.is_dir() => self.export_below(node, path, dir),
            HostPlace::Dir(_) => Err(Error::refused(host.display(), "is a directory")),
        }
    }

    /// To the name `name` in `dir`.
    fn export_to(&self, node: &Node, path: &[u8], dir: &HostDir, name: &[u8]) -> Result<()> {
        let at = &HostName::new(dir, name);
        // Content goes where a link leads, and into pipes and devices; what has none takes
        // their place.
        let has_content = node.attr.kind == FileKind::File;
        let old = match has_content {
            true => target::on_host(at, &self.own_links)?,
            false => at.stat()?,
        };
        let Some(old) = old else { return self.export_new(node, path, at, at) };
        match (node.is_dir(), old.is(FileKind::Dir)) {
            (true, true) => {
                let dir = dir.dir(name).map_err(|e| at.failed(e))?;
                self.export_below(node, path, dir)
            }
            (false, false) if self.rules.no_clobber => Ok(()),
            (false, false) if has_content && !old.is(FileKind::File) => {
                self.export_stream(node, path, at)
            }
            (false, false) if has_content && !self.links(node, &old) => {
                self.export_over(node, path, at)
            }
            (false, false) => {
                at.may_be_replaced()?;
                self.export_instead(node, path, at)
            }
            (true, false) => Err(at.refused("is no directory")),
            (false, true) => Err(at.refused("is a directory")),
        }
    }

    /// Into a pipe or a device.
    fn export_stream(&self, node: &Node, path: &[u8], at: &HostName<'_>) -> Result<()> {
        let (mut to, _claim) = at.open_claimed()?;
        let from = FileAt::of(self.volume, node, path);
        from.bytes_around(&mut |bytes| to.write_all(bytes).map_err(|e| at.failed(e)))?;
        settled(&to).map_err(|e| at.failed(e))
    }

    fn links(&self, node: &Node, old: &HostStat) -> bool {
        self.rules.preserve
            && (node.attr.nlink > 1 || old.nlink > 1 || self.export_links.is_copy(old))
    }

    /// At `made`; in messages it is called `at`. Where that is another name a file has it when it is whole.
    fn export_new(
        &self,
        node: &Node,
        path: &[u8],
        made: &HostName<'_>,
        at: &HostName<'_>,
    ) -> Result<()> {
        let (fs, host) = (self.volume.fs(), made.path());
        let nameless = made.name != at.name;
        let copied = self.out_of((path, &host), |options| {
            let options = CopyOptions { nameless, ..*options };
            export_tree_at(&**fs, node.ino(), made.dir, made.name, &options)
        });
        copied.map(drop).map_err(|e| self.failed_out(e, path, (&host, &at.path())))
    }

    /// In the place of what is there, which stays until the copy is whole. Who is killed leaves a file's copy under
    /// the name beside only between two calls, where the file system has files without a name.
    fn export_instead(&self, node: &Node, path: &[u8], at: &HostName<'_>) -> Result<()> {
        let free = at.beside()?;
        let beside = HostName::new(at.dir, &free);
        let put = self.export_new(node, path, &beside, at).and_then(|()| {
            let gone = || at.failed(ErrorKind::NotFound.into());
            let old = at.stat()?.ok_or_else(gone)?;
            // Between two names of one file a rename does nothing.
            if Some(old.key) == beside.stat()?.map(|made| made.key) {
                return at.dir.remove(beside.name).map_err(|e| at.failed(e));
            }
            at.dir.rename(beside.name, at.name).map_err(|e| at.failed(e))?;
            self.export_links.removed(&at.path(), &old);
            self.export_links.moved(node.ino(), &beside.path(), &at.path());
            Ok(())
        });
        put.inspect_err(|_| self.take_away(&beside))
    }

    /// What was made there for another name; what does not go is told.
    fn take_away(&self, beside: &HostName<'_>) {
        if let Err(e) = beside.dir.remove(beside.name)
            && e.kind() != ErrorKind::NotFound
            && let Some(failed) = &self.failed
        {
            failed(beside.refused(&format!("is left over: {e}")));
        }
    }

    fn export_over(&self, node: &Node, path: &[u8], at: &HostName<'_>) -> Result<()> {
        let ((file, _claim), host) = (at.open_claimed()?, at.path());
        fill::to_host(&FileAt::of(self.volume, node, path), &file, &host)?;
        match self.rules.preserve {
            // Of the file, where a link leads to it.
            true => self.export_attributes(node, &host, &file),
            false => Ok(()),
        }
    }

    fn export_attributes(&self, node: &Node, host: &Path, file: &File) -> Result<()> {
        let fs = self.volume.fs();
        let done =
            self.with_options(|options| export_attributes(&**fs, node.ino(), host, file, options));
        done.map_err(|e| self.said(e))
    }

    /// Copies what is in the volume's directory `node` into the host's directory, or into that which a
    /// symbolic link leads to.
    pub fn export_into(&self, node: &Node, path: &[u8], host: &Path) -> Result<()> {
        let dir = HostDir::open(host).map_err(|e| Error::host(host, e))?;
        self.export_below(node, path, dir)
    }

    fn export_below(&self, node: &Node, path: &[u8], dir: HostDir) -> Result<()> {
        let host = dir.path().to_owned();
        let (names, missing) = node.listing();
        let taken = dir.names().map_err(|e| Error::host(&host, e))?;
        if self.rules.preserve
            && names.iter().all(|listed| taken.binary_search(&listed.name).is_err())
        {
            let fs = self.volume.fs();
            let copied = self
                .out_of((path, &host), |options| export_contents(&**fs, node.ino(), dir, options));
            return copied.map(drop).map_err(|e| self.failed_out(e, path, (&host, &host)));
        }
        if let Some(why) = missing {
            self.volume.lost(path, None, why)?;
        }
        for listed in names {
            let name = &listed.name;
            if name.contains(&b'/') || matches!(name.as_slice(), b"" | b"." | b"..") {
                return Err(self.in_the_way(path, "has a name that is none"));
            }
            let below = join(path, name);
            let child = match node.listed(&listed) {
                Ok(child) => child,
                Err(why) => {
                    self.volume.lost(&below, None, why)?;
                    continue;
                }
            };
            let done = self.export_to(&child, &below, &dir, name);
            // A file system of its own is mounted there.
            self.go_on(done, |error| error.is_of_host() && dir.leads_elsewhere(name))?;
        }
        match self.rules.preserve {
            true => self.export_attributes(node, &host, dir.file()),
            false => Ok(()),
        }
    }
}
