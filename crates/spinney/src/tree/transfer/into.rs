//! What a [`Transfer`] copies into the volume.
//!
//! A path that the caller names may lead through links. Below that all is what is in a directory that is open:
//! whoever may rename in it meanwhile puts nothing else into the volume. Only without -r, where what links
//! lead to is copied, they are followed there, too. With -x no directory of another device than its top's is
//! entered, in a merge as in a copy of a whole tree.

use super::super::draft::Draft;
use super::super::fill::{self, FileAt};
use super::super::host::{HostName, dir_seen, open_seen};
use super::super::node::Node;
use super::super::path::join;
use super::super::refused::is_elsewhere;
use super::super::target;
use super::{Transfer, TransferEvent};
use crate::error::{Error, Result};
use crate::volume::At;
use btrfs_image::{
    HostDir, HostPlace, HostStat, import_attributes, import_content, import_contents, import_tree,
    import_tree_at,
};
use std::fs::File;
use std::io::ErrorKind;
use std::path::Path;
use vfs::FileKind;

fn stat_of(dir: &HostDir) -> Result<HostStat> {
    HostStat::of_file(dir.file()).map_err(|e| Error::host(dir.path(), e))
}

impl Transfer<'_> {
    /// Copies `host` to the name `name` in `parent`.
    pub fn import(&self, host: &Path, parent: &Node, name: &[u8], path: &[u8]) -> Result<()> {
        let dir = match HostDir::place(host).map_err(|e| Error::host(host, e))? {
            HostPlace::Name(dir, from) => {
                return self.import_from(&HostName::new(&dir, &from), parent, name, path, None);
            }
            HostPlace::NewDir(..) => return Err(Error::host(host, ErrorKind::NotFound.into())),
            HostPlace::Dir(dir) => dir,
        };
        match parent.child_if_any(name).at(self.volume, path)? {
            Some(old) if old.is_dir() => self.import_below(dir, &old, path),
            Some(_) => Err(self.in_the_way(path, "is no directory")),
            None if !self.rules.recursive => self.import_stream(host, parent, name, path),
            None => {
                let copied = self.with_options(|options| {
                    import_tree(&**self.volume.fs(), host, parent.ino(), name, options)
                });
                copied.map(drop).map_err(|e| self.said(e))
            }
        }
    }

    /// Below the top of a copy with -x, `stay` is the device that it keeps to.
    fn import_from(
        &self,
        from: &HostName<'_>,
        parent: &Node,
        name: &[u8],
        path: &[u8],
        stay: Option<u64>,
    ) -> Result<()> {
        // Without -r what a link leads to is copied, and of devices and pipes the content.
        let seen = from.dir.stat(from.name, !self.rules.recursive).map_err(|e| from.failed(e))?;
        let seen = &seen.ok_or_else(|| from.failed(ErrorKind::NotFound.into()))?;
        self.is_other(&from.path(), seen)?;
        let Some(old) = parent.child_if_any(name).at(self.volume, path)? else {
            return self.import_new((from, seen), parent, name, path, stay);
        };
        let is_dir = seen.is(FileKind::Dir);
        let has_content = seen.is(FileKind::File) || (!self.rules.recursive && !is_dir);
        let old = match has_content {
            true => self.filled(old, path, self.rules.no_clobber)?,
            false => old,
        };
        match (is_dir, old.is_dir()) {
            (true, true) => self.import_dir(from, seen, &old, path, stay),
            (false, false) if self.rules.no_clobber => Ok(()),
            (false, false) if self.fills(seen, &old) => self.import_over(from, seen, &old, path),
            (false, false) => {
                let draft = Draft::new(self.volume, parent, name, true);
                let mut draft = draft.at(self.volume, path)?;
                draft.make(|name| self.import_new((from, seen), parent, name, path, stay))?;
                draft.keep().at(self.volume, path)
            }
            (true, false) => Err(self.in_the_way(path, "is no directory")),
            (false, true) => Err(self.in_the_way(path, "is a directory")),
        }
    }

    /// What the content goes to instead of `old`.
    fn filled(&self, old: Node, path: &[u8], kept: bool) -> Result<Node> {
        target::inside(self.volume, &self.made_inside, old, path, kept)
    }

    /// Whether the content of `seen` goes into the file that is there. Links, devices and
    /// pipes that are copied as such take its place.
    fn fills(&self, seen: &HostStat, old: &Node) -> bool {
        let is_copy = |ino| self.import_links.is_copy(ino) || self.made_inside.is_copy(ino);
        let links =
            self.rules.preserve && (seen.nlink > 1 || old.attr.nlink > 1 || is_copy(old.ino()));
        let has_content = seen.is(FileKind::File) || !self.rules.recursive;
        old.attr.kind == FileKind::File && has_content && !links
    }

    /// Into a directory that the volume has. One of another device than `stay` has nothing to give, and what
    /// would be mounted by entering it is not asked for.
    fn import_dir(
        &self,
        from: &HostName<'_>,
        seen: &HostStat,
        to: &Node,
        path: &[u8],
        stay: Option<u64>,
    ) -> Result<()> {
        let is_foreign = |stat: &HostStat| stay.is_some_and(|device| device != stat.key.0);
        if is_foreign(seen) {
            return Ok(());
        }
        match dir_seen(from, seen, !self.rules.recursive) {
            // What came by the opening itself.
            Ok(dir) if is_foreign(&stat_of(&dir)?) => Ok(()),
            Ok(dir) => self.import_below(dir, to, path),
            // The same, where it may not be listed.
            Err(_) if matches!(from.stat(), Ok(Some(now)) if is_foreign(&now)) => Ok(()),
            Err(e) => Err(e),
        }
    }

    fn import_new(
        &self,
        (from, seen): (&HostName<'_>, &HostStat),
        parent: &Node,
        name: &[u8],
        path: &[u8],
        stay: Option<u64>,
    ) -> Result<()> {
        let (fs, host) = (&**self.volume.fs(), from.path());
        let copied = match self.rules.recursive {
            true => self.with_options(|options| {
                import_tree_at(fs, (from.dir, from.name), parent.ino(), name, stay, options)
            }),
            false if !seen.is(FileKind::File) => {
                return self.import_stream(&host, parent, name, path);
            }
            false => {
                let real = host.canonicalize().map_err(|e| from.failed(e))?;
                self.with_options(|options| import_tree(fs, &real, parent.ino(), name, options))
            }
        };
        copied.map(drop).map_err(|e| self.said(e))
    }

    /// What can be read from a pipe or device.
    fn import_stream(&self, host: &Path, parent: &Node, name: &[u8], path: &[u8]) -> Result<()> {
        let mut file = File::open(host).map_err(|e| Error::host(host, e))?;
        self.stream_new(&mut file, host, parent, name, path)
    }

    /// What can be read from `file`, to the name `name` in `parent`.
    pub fn import_open(
        &self,
        file: &mut File,
        host: &Path,
        parent: &Node,
        name: &[u8],
        path: &[u8],
    ) -> Result<()> {
        self.is_other(host, &HostStat::of_file(file).map_err(|e| Error::host(host, e))?)?;
        match parent.child_if_any(name).at(self.volume, path)? {
            None => self.stream_new(file, host, parent, name, path),
            Some(_) if self.rules.no_clobber => Ok(()),
            Some(old) => {
                let old = self.filled(old, path, false)?;
                match old.is_dir() {
                    true => Err(self.in_the_way(path, "is a directory")),
                    false => fill::from_host(file, host, &FileAt::of(self.volume, &old, path)),
                }
            }
        }
    }

    fn stream_new(
        &self,
        file: &mut File,
        host: &Path,
        parent: &Node,
        name: &[u8],
        path: &[u8],
    ) -> Result<()> {
        let fs = self.volume.fs();
        let mut draft = Draft::new(self.volume, parent, name, false).at(self.volume, path)?;
        let made = draft.make(|name| {
            fs.mknod(self.volume.context(), parent.ino(), name, FileKind::File, 0o666, 0)
        });
        let node = Node::held(fs, made.at(self.volume, path)?);
        fill::from_host(file, host, &FileAt::of(self.volume, &node, path))?;
        draft.keep().at(self.volume, path)
    }

    fn import_over(
        &self,
        from: &HostName<'_>,
        seen: &HostStat,
        old: &Node,
        path: &[u8],
    ) -> Result<()> {
        let (host, is_file) = (from.path(), seen.is(FileKind::File));
        if !is_file {
            // What is read from a pipe has no attributes to speak of.
            let mut file = File::open(&host).map_err(|e| from.failed(e))?;
            return fill::from_host(&mut file, &host, &FileAt::of(self.volume, old, path));
        }
        let file = open_seen(from, seen, !self.rules.recursive)?;
        let fs = &**self.volume.fs();
        let filled = self.with_options(|o| import_content(fs, &host, &file, old.ino(), o));
        filled.map_err(|e| self.said(e))?;
        if self.rules.preserve { self.import_attributes(&host, &file, old) } else { Ok(()) }
    }

    fn import_attributes(&self, host: &Path, file: &File, to: &Node) -> Result<()> {
        let fs = self.volume.fs();
        let done =
            self.with_options(|options| import_attributes(&**fs, host, file, to.ino(), options));
        done.map_err(|e| self.said(e))
    }

    /// Copies what is in the host's directory into the volume's directory `to`.
    pub fn import_into(&self, host: &Path, to: &Node, path: &[u8]) -> Result<()> {
        self.import_below(HostDir::open(host).map_err(|e| Error::host(host, e))?, to, path)
    }

    fn import_below(&self, dir: HostDir, to: &Node, path: &[u8]) -> Result<()> {
        let stay = match self.rules.one_file_system {
            true => Some(stat_of(&dir)?.key.0),
            false => None,
        };
        let names = dir.names().map_err(|e| Error::host(dir.path(), e))?;
        let taken = to.names().at(self.volume, path)?;
        let free = |name: &Vec<u8>| taken.binary_search(name).is_err();
        if names.iter().all(free) {
            return self.import_all(dir, to);
        }
        for name in names {
            let (from, below) = (HostName::new(&dir, &name), join(path, &name));
            if matches!(from.stat(), Ok(Some(seen)) if self.is_image(&seen)) {
                self.tell(&TransferEvent::LeftOut { path: &from.path() });
                continue;
            }
            let done = self.import_from(&from, to, &name, &below, stay);
            self.go_on(done, |error| {
                error.is_of_subvolume() && is_elsewhere(self.volume, to, &below)
            })?;
        }
        match self.rules.preserve {
            true => self.import_attributes(dir.path(), dir.file(), to),
            false => Ok(()),
        }
    }

    fn import_all(&self, dir: HostDir, to: &Node) -> Result<()> {
        let fs = self.volume.fs();
        let copied = self.with_options(|options| import_contents(&**fs, dir, to.ino(), options));
        copied.map(drop).map_err(|e| self.said(e))
    }
}
