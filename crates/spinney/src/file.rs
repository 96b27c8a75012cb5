//! Open files: content at offsets, and by the traits of `std::io`.
//!
//! A file stays readable and writable after its last name is gone, until the handle is.

use crate::error::Result;
use crate::metadata::Metadata;
use crate::tree::fill::{self, FileAt, Reflink};
use crate::tree::{Node, path};
use crate::volume::{At, Volume, bytes, is_errno};
use btrfs_fs::{Defragment, VerityWish};
use fs_verity::Descriptor as VerityDescriptor;
use std::fmt;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;
use vfs::{Damage, Errno, FileKind, FsError};

/// So often a name may be missing and then taken, as where others make and remove it: more often in a row it is
/// taken, and leads nowhere. Chosen, not measured.
const ROUNDS: u32 = 16;

/// How a file of a volume is opened; see [`FileOptions::open`].
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let volume = spinney::Volume::open_writable("disk.img")?;
/// use std::io::Write;
/// let mut log = spinney::FileOptions::new().append(true).create(true).open(&volume, "log")?;
/// writeln!(log, "one line more")?;
/// # drop(log); Ok(volume.close()?) }
/// ```
#[derive(Clone, Debug)]
pub struct FileOptions {
    write: bool,
    append: bool,
    truncate: bool,
    create: bool,
    create_new: bool,
    mode: u32,
}

impl Default for FileOptions {
    fn default() -> FileOptions {
        FileOptions::new()
    }
}

impl FileOptions {
    /// To read a file that exists.
    pub fn new() -> FileOptions {
        FileOptions {
            write: false,
            append: false,
            truncate: false,
            create: false,
            create_new: false,
            mode: 0o666,
        }
    }

    /// The content may be changed.
    pub fn write(mut self, write: bool) -> FileOptions {
        self.write = write;
        self
    }

    /// Writes go to the end. Two handles that append at once may get into each other's way.
    pub fn append(mut self, append: bool) -> FileOptions {
        self.append = append;
        self
    }

    /// The file is emptied; not one that is only appended to.
    pub fn truncate(mut self, truncate: bool) -> FileOptions {
        self.truncate = truncate;
        self
    }

    /// The file is made if there is none.
    pub fn create(mut self, create: bool) -> FileOptions {
        self.create = create;
        self
    }

    /// The file is made, and there must be none yet, nor a symbolic link of that name; whatever
    /// [`create`](FileOptions::create) says.
    pub fn create_new(mut self, create: bool) -> FileOptions {
        self.create_new = create;
        self
    }

    /// Permissions of a file that is made, less the volume's umask (0o666).
    pub fn mode(mut self, mode: u32) -> FileOptions {
        self.mode = mode;
        self
    }

    /// Opens the file `path` of `volume`; symbolic links are followed. What makes no sense together is
    /// refused with EINVAL, as by [`std::fs::OpenOptions`], and makes and empties nothing: to create or to
    /// truncate without [`write`](FileOptions::write), and to truncate what is appended to.
    pub fn open(&self, volume: &Volume, path: impl AsRef<Path>) -> Result<File> {
        let path = bytes(&path);
        // Before anything is made.
        if !self.makes_sense() {
            return Err(volume.error(path, Errno::EINVAL.into()));
        }
        let node = self.node(volume, path)?;
        match node.attr.kind {
            FileKind::File => {}
            FileKind::Dir => return Err(volume.error(path, Errno::EISDIR.into())),
            // Nobody is behind a device, pipe or socket of a volume that is not mounted.
            _ => return Err(volume.error(path, Errno::ENXIO.into())),
        }
        let file = File {
            node,
            at: 0,
            write: self.write || self.append,
            append: self.append,
            path: path.to_vec(),
            volume: volume.clone(),
        };
        if self.truncate {
            file.set_len(0)?;
        }
        Ok(file)
    }

    fn makes_sense(&self) -> bool {
        match self.append {
            // A file that is new has nothing to lose.
            true => !self.truncate || self.create_new,
            false => self.write || !(self.truncate || self.create || self.create_new),
        }
    }

    fn node(&self, volume: &Volume, path: &[u8]) -> Result<Node> {
        for _ in 0..ROUNDS {
            if !self.create_new {
                match volume.find(path, true) {
                    Err(FsError::Posix(Errno::ENOENT)) if self.create => {}
                    found => return found.at(volume, path),
                }
            }
            match self.make(volume, path) {
                // Somebody else was faster, a link leads nowhere, or the name does.
                Err(error)
                    if self.create && !self.create_new && is_errno(&error, Errno::EEXIST) =>
                {
                    if path::find(volume.fs(), path, false).is_ok_and(|node| node.is_symlink()) {
                        return Err(error);
                    }
                }
                made => return made,
            }
        }
        let damage = Damage::new("the name is taken, but what it stands for is not there");
        Err(volume.error(path, damage.into()))
    }

    fn make(&self, volume: &Volume, path: &[u8]) -> Result<Node> {
        let (parent, name) = volume.find_parent_of_file(path).at(volume, path)?;
        let perm = (self.mode & 0o7777) as u16;
        let (fs, cx) = (volume.fs(), volume.context());
        let made = fs.mknod(cx, parent.ino(), &name, FileKind::File, perm, 0);
        made.at(volume, path).map(|entry| volume.hold(entry))
    }
}

/// An open file of a volume.
///
/// It reads, writes and seeks by the traits of [`std::io`], and at offsets by
/// [`read_at`](File::read_at) and [`write_at`](File::write_at), which need no `&mut`. What was
/// written is seen by everybody at once, and is on the medium after
/// [`sync_all`](File::sync_all) or a commit of the volume.
pub struct File {
    node: Node,
    at: u64,
    write: bool,
    append: bool,
    path: Vec<u8>,
    /// Dropped behind `node`, which refers to something in it.
    volume: Volume,
}

impl File {
    /// Fills `buf` from `offset` on; less only at the end of the file. A block whose checksum
    /// is wrong is an error, and never content.
    pub fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.volume.fs().read(self.node.ino(), offset, buf).at(&self.volume, &self.path)
    }

    /// Writes all of `data` at `offset`. Where that fails a part of it may be there.
    pub fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.may_write()?;
        self.place().write(offset, data)
    }

    /// Cuts the content, or makes it longer by a hole, which reads as zeros.
    pub fn set_len(&self, len: u64) -> Result<()> {
        self.may_write()?;
        self.place().set_size(len)
    }

    /// What is known of it now.
    pub fn metadata(&self) -> Result<Metadata> {
        let attr = self.volume.fs().getattr(self.node.ino()).at(&self.volume, &self.path)?;
        Ok(Metadata::of(attr))
    }

    /// Content and attributes of this file, and its name, are on the medium when this returns:
    /// a crash does not take them back. Costs less than a commit. Refused while a transaction
    /// is open.
    pub fn sync_all(&self) -> Result<()> {
        let synced = self.volume.fs().fsync(self.node.ino(), false);
        synced.map_err(|e| self.volume.not_durable(&self.path, e))
    }

    /// The volume that it is of.
    pub fn volume(&self) -> &Volume {
        &self.volume
    }

    fn place(&self) -> FileAt<'_> {
        FileAt { volume: &self.volume, ino: self.node.ino(), path: &self.path }
    }

    fn may_write(&self) -> Result<()> {
        match self.write {
            true => Ok(()),
            false => Err(self.volume.error(&self.path, Errno::EBADF.into())),
        }
    }

    fn len(&self) -> Result<u64> {
        self.metadata().map(|metadata| metadata.len())
    }

    /// Of a write that fails the file may have the beginning: that is an answer, and the rest fails by itself. How
    /// much it is says the engine; what the file has grown by may be another handle's.
    fn write_here(&self, data: &[u8]) -> Result<usize> {
        self.may_write()?;
        match data {
            [] => Ok(0),
            _ => self.place().write_some(self.at, data),
        }
    }
}

impl Read for File {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let got = self.read_at(self.at, buf)?;
        self.at += got as u64;
        Ok(got)
    }
}

impl Write for File {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        if self.append {
            self.at = self.len()?;
        }
        let written = self.write_here(data)?;
        self.at += written as u64;
        Ok(written)
    }

    /// Nothing waits in the handle. For the medium there is [`File::sync_all`].
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Seek for File {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let place = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::Current(by) => self.at.checked_add_signed(by),
            SeekFrom::End(by) => self.len()?.checked_add_signed(by),
        };
        self.at = place.ok_or(io::ErrorKind::InvalidInput)?;
        Ok(self.at)
    }
}

impl fmt::Debug for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("File").field("path", &self.volume.show(&self.path)).finish_non_exhaustive()
    }
}

impl Volume {
    /// Writes content of a file anew, so that it lies in fewer extents, or compressed; answers how many
    /// bytes that were. What a reflink or a snapshot has, too, stays, unless the wish says otherwise.
    /// Durable with the next commit.
    pub fn defragment(&self, path: impl AsRef<Path>, wish: &Defragment) -> Result<u64> {
        let path = bytes(&path);
        let node = self.find(path, true).at(self, path)?;
        self.guard().defragment(node.ino(), wish).at(self, path)
    }

    /// The file's content stays as it is from now on, and each read of it is verified (fs-verity).
    /// That takes as long as reading it; durable with the next commit. EEXIST: it is so already.
    pub fn enable_verity(&self, path: impl AsRef<Path>, wish: &VerityWish) -> Result<()> {
        let path = bytes(&path);
        let node = self.find(path, true).at(self, path)?;
        self.guard().enable_verity(node.ino(), wish).at(self, path)
    }

    /// What the content is verified by. ENODATA: it is not.
    pub fn measure_verity(&self, path: impl AsRef<Path>) -> Result<VerityDescriptor> {
        let path = bytes(&path);
        let node = self.find(path, true).at(self, path)?;
        self.guard().measure_verity(node.ino()).at(self, path)
    }

    /// Opens a file to be read.
    pub fn open_path(&self, path: impl AsRef<Path>) -> Result<File> {
        FileOptions::new().open(self, path)
    }

    /// Makes a file, or empties one that is there, to be written.
    pub fn create(&self, path: impl AsRef<Path>) -> Result<File> {
        FileOptions::new().write(true).create(true).truncate(true).open(self, path)
    }

    /// The whole content of a file; ENOMEM where memory for all of it is not to be had. A file of a few bytes on
    /// the medium can be 8 EiB long, all of it a hole: who opens volumes of strangers looks at the
    /// [length](Metadata::len) first, or reads by [`open_path`](Volume::open_path) what he wants of it.
    pub fn read(&self, path: impl AsRef<Path>) -> Result<Vec<u8>> {
        let file = self.open_path(path)?;
        let too_long = |_| self.error(&file.path, Errno::ENOMEM.into());
        let len = usize::try_from(file.len()?).unwrap_or(usize::MAX);
        let mut content = Vec::new();
        content.try_reserve_exact(len).map_err(too_long)?;
        file.place().bytes::<crate::Error>(&mut |bytes| {
            // It may grow meanwhile.
            content.try_reserve(bytes.len()).map_err(too_long)?;
            content.extend_from_slice(bytes);
            Ok(())
        })?;
        Ok(content)
    }

    /// Gives a file this content and no other; makes it if there is none.
    pub fn write(&self, path: impl AsRef<Path>, content: &[u8]) -> Result<()> {
        self.create(path)?.write_at(0, content)
    }

    /// Gives the file `to` the content of the file `from`, and makes it if there is none. The
    /// two share what they have on the medium, until one of them is changed.
    pub fn copy(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<()> {
        let from = self.open_path(from)?;
        let to = FileOptions::new().write(true).create(true).open(self, to)?;
        if from.node.ino() == to.node.ino() {
            return Err(self.error(&to.path, Errno::EINVAL.into()));
        }
        fill::copy(&from.place(), &to.place(), Reflink::Auto)
    }
}
