//! Trees between this machine and a volume, by `btrfs_image`'s copies, and what `cp` adds
//! to them: merging into what exists, and new things that look new.
//!
//! Where nothing is in the way whole trees go over at once, hard links among them; a
//! merge goes name by name and keeps links within each name's tree.

use super::copy::Rules;
use super::fill::{self, Spot};
use super::node::Node;
use super::path::join;
use super::volumes::At;
use super::walk;
use crate::error::{Error, Result, io_text, say_error};
use crate::image::Volume;
use crate::output::human;
use crate::progress::Progress;
use crate::sys;
use btrfs_image::{CopyError, CopyOptions, Event, export_tree, import_contents, import_tree};
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions, Permissions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use vfs::{Context, FileKind, FileSystem, SetAttr, SetTime, Timestamp};

/// Copies one way, with progress.
pub struct Transfer<'v> {
    volume: &'v Volume,
    rules: Rules,
    progress: Progress,
}

impl<'v> Transfer<'v> {
    pub fn new(volume: &'v Volume, rules: Rules) -> Transfer<'v> {
        Transfer { volume, rules, progress: Progress::new() }
    }

    fn with_options<T>(&self, copy: impl FnOnce(&CopyOptions<'_>) -> T) -> T {
        let tell = |event: &Event<'_>| match event {
            Event::Made { path, so_far, .. } | Event::Data { path, so_far } => {
                self.progress.show(|| format!("{} {}", human(so_far.bytes), path.display()));
            }
            Event::SkippedXattr { path, name } => {
                self.progress.wipe();
                let name = String::from_utf8_lossy(name);
                say_error(&format!("spinney: {}: attribute {name} is left out", path.display()));
            }
        };
        copy(&CopyOptions {
            owners: self.rules.preserve && CopyOptions::default().owners,
            xattrs: self.rules.preserve,
            one_file_system: self.rules.one_file_system,
            progress: Some(&tell),
        })
    }

    fn failed(&self, error: CopyError) -> Error {
        let image = self.volume.image();
        match &error {
            CopyError::Host { path, action, source } => {
                Error::about(path.display(), format!("{action}: {}", io_text(source)))
            }
            CopyError::Volume { path, source, .. } => Error::fs(path.display(), image, source),
            CopyError::Refused { path, why } => Error::about(path.display(), why),
        }
    }

    // Into the volume.

    /// Copies `host` to the name `name` in `parent`.
    pub fn import(&self, host: &Path, parent: &Node<'v>, name: &[u8], path: &[u8]) -> Result<()> {
        // Without -r what a link leads to is copied, and of devices and pipes the content.
        let meta = match self.rules.recursive {
            true => host.symlink_metadata(),
            false => host.metadata(),
        };
        let meta = meta.map_err(|e| Error::io(host, &e))?;
        let Some(old) = parent.child_if_any(name).at(self.volume, path)? else {
            return self.import_new(host, &meta, parent, name, path);
        };
        match (meta.is_dir(), old.is_dir()) {
            (true, true) => self.import_into(host, &old, path),
            (false, false) if self.rules.no_clobber => Ok(()),
            (false, false) if old.attr.kind == FileKind::File && !meta.is_symlink() => {
                self.import_over(host, &meta, &old, path)
            }
            (false, false) => {
                self.volume
                    .fs
                    .unlink(&Context::default(), parent.ino(), name)
                    .at(self.volume, path)?;
                self.import_new(host, &meta, parent, name, path)
            }
            (true, false) => Err(self.in_the_way(path, "is no directory")),
            (false, true) => Err(self.in_the_way(path, "is a directory")),
        }
    }

    fn in_the_way(&self, path: &[u8], what: &str) -> Error {
        let image = self.volume.image().display();
        Error::about(format!("{image}:{}", String::from_utf8_lossy(path)), what)
    }

    fn import_new(
        &self,
        host: &Path,
        meta: &fs::Metadata,
        parent: &Node<'v>,
        name: &[u8],
        path: &[u8],
    ) -> Result<()> {
        if !self.rules.recursive && !meta.is_file() {
            return self.import_stream(host, parent, name, path);
        }
        let real = if self.rules.recursive { Ok(host.to_owned()) } else { host.canonicalize() };
        let real = real.map_err(|e| Error::io(host, &e))?;
        let copied = self.with_options(|options| {
            import_tree(&self.volume.fs, &real, parent.ino(), name, options)
        });
        copied.map_err(|e| self.failed(e))?;
        let top = parent.child(name).at(self.volume, path)?;
        if self.rules.preserve { Ok(()) } else { self.make_new(top, path) }
    }

    /// What can be read from a pipe or device.
    fn import_stream(
        &self,
        host: &Path,
        parent: &Node<'v>,
        name: &[u8],
        path: &[u8],
    ) -> Result<()> {
        let mut file = File::open(host).map_err(|e| Error::io(host, &e))?;
        let fs = &self.volume.fs;
        let made = fs.mknod(&super::context(), parent.ino(), name, FileKind::File, 0o666, 0);
        let node = Node::held(fs, made.at(self.volume, path)?);
        fill::from_host(&mut file, host, &Spot::of(self.volume, &node, path))
    }

    fn import_over(
        &self,
        host: &Path,
        meta: &fs::Metadata,
        old: &Node<'v>,
        path: &[u8],
    ) -> Result<()> {
        let mut file = File::open(host).map_err(|e| Error::io(host, &e))?;
        fill::from_host(&mut file, host, &Spot::of(self.volume, old, path))?;
        if !self.rules.preserve {
            return Ok(());
        }
        let time = |secs, nanos| SetTime::At(Timestamp { secs, nanos: nanos as u32 });
        let owners = sys::is_root();
        let set = SetAttr {
            uid: owners.then_some(meta.uid()),
            gid: owners.then_some(meta.gid()),
            perm: Some((meta.mode() & 0o7777) as u16),
            atime: Some(time(meta.atime(), meta.atime_nsec())),
            mtime: Some(time(meta.mtime(), meta.mtime_nsec())),
            ..SetAttr::default()
        };
        let done = self.volume.fs.setattr(&Context::default(), old.ino(), &set);
        done.at(self.volume, path).map(drop)
    }

    /// Copies what is in the host's directory into the volume's directory `to`.
    pub fn import_into(&self, host: &Path, to: &Node<'v>, path: &[u8]) -> Result<()> {
        let names = host_names(host)?;
        let taken = to.names().at(self.volume, path)?;
        let free = |name: &Vec<u8>| taken.binary_search(name).is_err();
        if names.iter().all(free) {
            return self.import_all(host, &names, to, path);
        }
        for name in names {
            let (from, below) = (host.join(OsStr::from_bytes(&name)), join(path, &name));
            self.import(&from, to, &name, &below)?;
        }
        Ok(())
    }

    fn import_all(&self, host: &Path, names: &[Vec<u8>], to: &Node<'v>, path: &[u8]) -> Result<()> {
        let fs = &self.volume.fs;
        let before = fs.getattr(to.ino()).at(self.volume, path)?;
        let copied = self.with_options(|options| import_contents(fs, host, to.ino(), options));
        copied.map_err(|e| self.failed(e))?;
        if self.rules.preserve {
            return Ok(());
        }
        // The directory itself was there before.
        let set = SetAttr { perm: Some(before.perm), ..SetAttr::default() };
        fs.setattr(&Context::default(), to.ino(), &SetAttr { mtime: Some(SetTime::Now), ..set })
            .at(self.volume, path)?;
        for name in names {
            let below = join(path, name);
            self.make_new(to.child(name).at(self.volume, &below)?, &below)?;
        }
        Ok(())
    }

    /// As if the caller had just made it: owner, times, and permissions by the umask.
    fn make_new(&self, top: Node<'v>, path: &[u8]) -> Result<()> {
        let cx = super::context();
        walk::every(self.volume, top, path.to_vec(), &mut |node, path| {
            let set = SetAttr {
                uid: Some(cx.uid),
                gid: Some(cx.gid),
                perm: (!node.is_symlink()).then_some(node.attr.perm & 0o777 & !cx.umask),
                atime: Some(SetTime::Now),
                mtime: Some(SetTime::Now),
                ..SetAttr::default()
            };
            self.volume.fs.setattr(&cx, node.ino(), &set).at(self.volume, path).map(drop)
        })
    }

    // Out of the volume.

    /// Copies `node` to the path `host`.
    pub fn export(&self, node: &Node<'v>, path: &[u8], host: &Path) -> Result<()> {
        let old = match host.symlink_metadata() {
            Ok(meta) => meta,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                return self.export_new(node, host);
            }
            Err(e) => return Err(Error::io(host, &e)),
        };
        match (node.is_dir(), old.is_dir()) {
            (true, true) => self.export_into(node, path, host),
            (false, false) if self.rules.no_clobber => Ok(()),
            (false, false) if old.is_file() && node.attr.kind == FileKind::File => {
                self.export_over(node, path, host)
            }
            (false, false) => {
                fs::remove_file(host).map_err(|e| Error::io(host, &e))?;
                self.export_new(node, host)
            }
            (true, false) => Err(Error::about(host.display(), "is no directory")),
            (false, true) => Err(Error::about(host.display(), "is a directory")),
        }
    }

    fn export_new(&self, node: &Node<'v>, host: &Path) -> Result<()> {
        let copied =
            self.with_options(|options| export_tree(&self.volume.fs, node.ino(), host, options));
        copied.map_err(|e| self.failed(e))?;
        if self.rules.preserve { Ok(()) } else { make_new_on_host(host) }
    }

    fn export_over(&self, node: &Node<'v>, path: &[u8], host: &Path) -> Result<()> {
        let failed = |e: std::io::Error| Error::io(host, &e);
        let mut options = OpenOptions::new();
        let file = options.write(true).truncate(true).custom_flags(libc::O_NOFOLLOW).open(host);
        let file = file.map_err(failed)?;
        fill::to_host(&Spot::of(self.volume, node, path), &file, host)?;
        if !self.rules.preserve {
            return Ok(());
        }
        let attr = &node.attr;
        if sys::is_root() {
            std::os::unix::fs::fchown(&file, Some(attr.uid), Some(attr.gid)).map_err(failed)?;
        }
        file.set_permissions(Permissions::from_mode(attr.perm.into())).map_err(failed)?;
        sys::set_times(host, attr.atime, attr.mtime).map_err(failed)
    }

    /// Copies what is in the volume's directory `node` into the host's directory.
    pub fn export_into(&self, node: &Node<'v>, path: &[u8], host: &Path) -> Result<()> {
        let names = node.names().at(self.volume, path)?;
        let taken = host_names(host)?;
        if self.rules.preserve && names.iter().all(|name| taken.binary_search(name).is_err()) {
            return self.export_new(node, host);
        }
        for name in names {
            if name.contains(&b'/') || matches!(name.as_slice(), b"" | b"." | b"..") {
                return Err(self.in_the_way(path, "has a name that is none"));
            }
            let below = join(path, &name);
            let child = node.child(&name).at(self.volume, &below)?;
            self.export(&child, &below, &host.join(OsStr::from_bytes(&name)))?;
        }
        Ok(())
    }
}

/// Sorted.
fn host_names(host: &Path) -> Result<Vec<Vec<u8>>> {
    let failed = |e: std::io::Error| Error::io(host, &e);
    let mut names = Vec::new();
    for entry in fs::read_dir(host).map_err(failed)? {
        names.push(entry.map_err(failed)?.file_name().as_bytes().to_vec());
    }
    names.sort_unstable();
    Ok(names)
}

/// As if the caller had just made it: times, and permissions by the umask.
fn make_new_on_host(top: &Path) -> Result<()> {
    let (umask, now) = (sys::umask(), Timestamp::now());
    let mut left: Vec<PathBuf> = vec![top.to_owned()];
    let mut directories = Vec::new();
    while let Some(path) = left.pop() {
        let failed = |e: std::io::Error| Error::io(&path, &e);
        let meta = path.symlink_metadata().map_err(failed)?;
        if meta.is_dir() {
            // Its entries' paths go through it: its own permissions come last.
            left.extend(host_names(&path)?.iter().map(|n| path.join(OsStr::from_bytes(n))));
            directories.push((path, meta.mode()));
            continue;
        }
        if !meta.is_symlink() {
            let mode = meta.mode() & 0o777 & !umask;
            fs::set_permissions(&path, Permissions::from_mode(mode)).map_err(failed)?;
        }
        sys::set_times(&path, now, now).map_err(failed)?;
    }
    for (path, mode) in directories.into_iter().rev() {
        let failed = |e: std::io::Error| Error::io(&path, &e);
        let mode = mode & 0o777 & !umask;
        fs::set_permissions(&path, Permissions::from_mode(mode)).map_err(failed)?;
        sys::set_times(&path, now, now).map_err(failed)?;
    }
    Ok(())
}
