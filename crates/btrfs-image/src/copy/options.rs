//! How to copy, what to tell meanwhile, and what was done.

use super::error::{CopyError, Result};
use super::links::{ExportLinks, ImportLinks};
use std::cell::RefCell;
use std::path::Path;
use vfs::{Context, FileKind, FsError, Ino};

/// What a copy tells while it runs; `path` is the host's.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// A file, directory, link or node is there; a directory before its entries.
    Made {
        /// Its path on the host.
        path: &'a Path,
        /// What it is.
        kind: FileKind,
        /// Of a copy into a volume: the inode that was made for it there. Another name of one has none.
        ino: Option<Ino>,
        /// What was copied up to here.
        so_far: &'a CopyReport,
    },
    /// Another piece of a file's content is there.
    Data {
        /// The file's path on the host.
        path: &'a Path,
        /// What was copied up to here.
        so_far: &'a CopyReport,
    },
    /// It is what [`CopyOptions::leave_out`] says; it was left out.
    LeftOut {
        /// Its path on the host.
        path: &'a Path,
    },
    /// The target knows no such attribute, it cannot be read, or there is a NUL in its name; it was left out.
    SkippedXattr {
        /// The path of what lacks it, on the host.
        path: &'a Path,
        /// The attribute's name.
        name: &'a [u8],
    },
}

/// What is carried over, and who is told meanwhile.
pub struct CopyOptions<'a> {
    /// Carry user and group over; else new things belong to root in a volume, to who copies
    /// on the host. There only root gives files away: what should be somebody else's and is
    /// not loses the set-user-ID, set-group-ID and sticky bits.
    pub owners: bool,
    /// Carry extended attributes over, ACLs among them.
    pub xattrs: bool,
    /// What is made is as if this caller had just made it, by whose umask, with no special mode bits: in a volume
    /// it is his, or what its directory hands on; on the host it has the owner and the attributes that it got by itself.
    /// Times are of now. So nothing of somebody else's is ever his with that one's mode, however the copy ends.
    pub as_new: Option<Context>,
    /// Import only: do not descend into other file systems mounted below the top.
    pub one_file_system: bool,
    /// Import only: the file that the volume itself lies in, by device and inode number. It would be copied
    /// while it is written, and each byte that is copied makes it longer.
    pub leave_out: Option<(u64, u64)>,
    /// Hard links between this copy and others; else only inside this one.
    pub import_links: Option<&'a ImportLinks<'a>>,
    /// The same for copies to the host.
    pub export_links: Option<&'a ExportLinks>,
    /// Export only, of what is no directory: a file gets its name when it is whole, where this machine's file system
    /// has files without a name.
    pub nameless: bool,
    /// Is told what happens, from the thread that copies.
    pub progress: Option<&'a dyn Fn(&Event<'_>)>,
    /// Export only: takes what the volume could not give, and the copy goes on; `None` ends it
    /// with the error. Content that is lost reads as zeros in the copy.
    pub lost: Option<&'a dyn Fn(&Lost<'_>)>,
    /// Takes what failed about one thing, and the copy goes on with the others; `None` ends it
    /// with the error. What would fail for all of them ends it anyhow
    /// ([`CopyError::is_of_all`]).
    pub failed: Option<&'a dyn Fn(CopyError)>,
}

/// Something that the volume could not give.
#[derive(Clone, Copy, Debug)]
pub struct Lost<'a> {
    /// The host's name of it.
    pub path: &'a Path,
    /// Offset and length of the content; `None` if it is the thing itself, or what is in it.
    pub range: Option<(u64, u64)>,
    /// What the volume said.
    pub why: &'a FsError,
    /// The copy has it nevertheless, and nothing vouches for it.
    pub copied: bool,
}

impl Default for CopyOptions<'_> {
    /// Everything.
    fn default() -> Self {
        CopyOptions {
            owners: true,
            xattrs: true,
            as_new: None,
            one_file_system: false,
            leave_out: None,
            import_links: None,
            export_links: None,
            nameless: false,
            progress: None,
            lost: None,
            failed: None,
        }
    }
}

/// What a copy has made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CopyReport {
    /// Directories, the top among them.
    pub directories: u64,
    /// Regular files.
    pub files: u64,
    /// Symbolic links.
    pub symlinks: u64,
    /// Devices, FIFOs and sockets.
    pub specials: u64,
    /// Further names of what was already carried over.
    pub hard_links: u64,
    /// Content bytes, holes not counted.
    pub bytes: u64,
    /// Attributes that the target does not know, or that cannot be read.
    pub skipped_xattrs: u64,
}

/// The running report and who listens.
pub(super) struct Teller<'a> {
    options: &'a CopyOptions<'a>,
    report: RefCell<CopyReport>,
}

impl<'a> Teller<'a> {
    pub(super) fn new(options: &'a CopyOptions<'a>) -> Teller<'a> {
        Teller { options, report: RefCell::default() }
    }

    /// What failed about one thing does not end the copy, if somebody is told.
    pub(super) fn go_on(&self, result: Result<()>) -> Result<()> {
        match (result, self.options.failed) {
            (Err(error), Some(failed)) if !error.is_of_all() => {
                failed(error);
                Ok(())
            }
            (result, _) => result,
        }
    }

    pub(super) fn report(&self) -> CopyReport {
        *self.report.borrow()
    }

    fn tell(&self, event: &Event<'_>) {
        if let Some(progress) = self.options.progress {
            progress(event);
        }
    }

    /// `ino`: in the volume, where it was copied into one.
    pub(super) fn made(&self, path: &Path, kind: FileKind, link: bool, ino: Option<Ino>) {
        {
            let mut report = self.report.borrow_mut();
            let counter = match kind {
                _ if link => &mut report.hard_links,
                FileKind::Dir => &mut report.directories,
                FileKind::File => &mut report.files,
                FileKind::Symlink => &mut report.symlinks,
                _ => &mut report.specials,
            };
            *counter += 1;
        }
        self.tell(&Event::Made { path, kind, ino, so_far: &self.report() });
    }

    pub(super) fn data(&self, path: &Path, bytes: u64) {
        self.report.borrow_mut().bytes += bytes;
        self.tell(&Event::Data { path, so_far: &self.report() });
    }

    pub(super) fn left_out(&self, path: &Path) {
        self.tell(&Event::LeftOut { path });
    }

    pub(super) fn skipped_xattr(&self, path: &Path, name: &[u8]) {
        self.report.borrow_mut().skipped_xattrs += 1;
        self.tell(&Event::SkippedXattr { path, name });
    }
}
