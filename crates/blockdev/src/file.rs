//! A regular file or a block device, by `pread` and `pwrite`.
//!
//! Does not know whether the file is a block device beyond its length and how to
//! discard; takes an advisory lock (`lock`) so that two writers never share one image.

use crate::direct::Direct;
use crate::made::Made;
use crate::turns::{Turns, UnderWay, Way};
use crate::writers::Writer;
use crate::{BlockDevice, Span, lock};
use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::ops::Deref;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A file or a block device of this machine.
pub struct FileDevice {
    file: Arc<Held>,
    direct: Direct,
    path: PathBuf,
    /// It grows alone.
    len: AtomicU64,
    read_only: bool,
    block: bool,
}

impl FileDevice {
    /// Opens an existing image or device. Writers lock it exclusively (block devices
    /// with `O_EXCL`, unless `shared_block` says that our own mount holds it).
    pub fn open(path: &Path, read_only: bool, shared_block: bool) -> io::Result<FileDevice> {
        Self::open_for(path, read_only, shared_block, None)
    }

    /// The same for who uses the bytes of `part` alone: those are what is locked.
    pub fn open_part(path: &Path, read_only: bool, part: Span) -> io::Result<FileDevice> {
        Self::open_for(path, read_only, false, Some(part))
    }

    fn open_for(
        path: &Path,
        read_only: bool,
        shared_block: bool,
        part: Option<Span>,
    ) -> io::Result<FileDevice> {
        let is_block = std::fs::metadata(path)?.file_type().is_block_device();
        let mut options = OpenOptions::new();
        options.read(true).write(!read_only);
        if is_block && !read_only && !shared_block {
            options.custom_flags(libc::O_EXCL);
        }
        let file = options.open(path)?;
        Self::from_file(file, path, read_only, is_block, part)
    }

    /// Makes (or empties) an image of `len` bytes, all holes. One that another has open stays as it is,
    /// and where it fails no file is left that was not there.
    pub fn create(path: &Path, len: u64) -> io::Result<FileDevice> {
        match Self::create_new(path, len) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            made => return made.map(|(device, _)| device),
        }
        if !std::fs::metadata(path)?.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "is there, and is no file"));
        }
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        lock::lock(&file, true, None)?;
        file.set_len(0).and_then(|()| file.set_len(len))?;
        Self::from_file(file, path, false, false, None)
    }

    /// Makes an image of `len` bytes, all holes, where nothing is: also where a symbolic link leads that leads to
    /// nothing. `AlreadyExists`: something is there, and stays as it is. Where it fails otherwise nothing is left but
    /// what another has taken by then; who fails behind it takes it away by what it answers.
    pub fn create_new(path: &Path, len: u64) -> io::Result<(FileDevice, Made)> {
        let (file, made) = Made::through_links(path)?;
        let made = fill_new(&file, made, len)?;
        Ok((Self::from_file(file, path, false, false, None)?, made))
    }

    /// Takes a file that is open already; `name` is for messages. A writer is locked
    /// exclusively, as by `open`, also against copies of its descriptor in this program, but may be a block
    /// device that others hold.
    pub fn of_file(file: File, name: &Path, read_only: bool) -> io::Result<FileDevice> {
        let block = file.metadata()?.file_type().is_block_device();
        Self::from_file(file, name, read_only, block, None)
    }

    fn from_file(
        file: File,
        path: &Path,
        read_only: bool,
        block: bool,
        part: Option<Span>,
    ) -> io::Result<Self> {
        let mut writer = None;
        if !read_only {
            check_writable(&file)?;
            // In front of the lock, which a copy of the descriptor has already.
            writer = Some(Writer::of(&file, part)?);
            lock::lock(&file, true, part)?;
            take_old_error(&file, path);
        }
        let len = AtomicU64::new(end_of(&file)?);
        // Now: once it is mounted the kernel may refuse to open a device for writing, and a server in its sandbox
        // opens nothing any more.
        let direct = Direct::of(&file, read_only);
        let turns = (block && !read_only && direct.is_past()).then(|| Turns::new(folio_at_most()));
        let file = Arc::new(Held { file, turns, writer });
        Ok(FileDevice { file, direct, path: path.to_owned(), len, read_only, block })
    }

    /// The very file once more, to be read: also where its path leads to another one by now. It has the
    /// length that the file has now.
    pub fn again(&self) -> io::Result<FileDevice> {
        Self::from_file(self.file.try_clone()?, &self.path, true, self.block, None)
    }

    /// Which file or device of this machine it is, whatever its path leads to by now.
    pub fn metadata(&self) -> io::Result<Metadata> {
        self.file.metadata()
    }

    /// Gives the file `len` bytes, whatever its path leads to by now. As a device this one keeps the
    /// length that it was opened with.
    pub fn set_file_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }

    /// The very file once more, as this one is open, with the length that it has now. It stays locked until
    /// both are gone.
    pub fn with_file_len(&self) -> io::Result<FileDevice> {
        let file: &File = &self.file;
        let len = AtomicU64::new(end_of(file)?);
        let direct = Direct::of(file, self.read_only);
        let (read_only, block) = (self.read_only, self.block);
        let path = self.path.clone();
        Ok(FileDevice { file: self.file.clone(), direct, path, len, read_only, block })
    }

    /// As long as what it returns lives, nobody writes the other way nearby.
    fn turn(&self, way: Way, offset: u64, len: u64) -> Option<UnderWay<'_>> {
        self.file.turns.as_ref().map(|turns| turns.begin(way, offset, len))
    }

    /// Before it tells the device the kernel drops what its cache has of the range. Where another holds the device,
    /// as a mount's connection to the kernel does, it drops no folio that is dirty, be it beside the range.
    fn discard_written_back(&self, offset: u64, len: u64) -> io::Result<()> {
        // Nobody dirties one meanwhile.
        let _turn = self.turn(Way::Past, offset, len);
        self.direct.write_back(offset, len);
        discard(&self.file, self.block, offset, len)
    }

    fn check_range(&self, offset: u64, len: u64) -> io::Result<()> {
        match offset.checked_add(len) {
            Some(end) if end <= self.len() => Ok(()),
            _ => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "range behind the end")),
        }
    }
}

/// Gives the file that was made its length, unless somebody else has found and taken it.
fn fill_new(file: &File, made: Made, len: u64) -> io::Result<Made> {
    let taken = |error: &io::Error| error.kind() == io::ErrorKind::ResourceBusy;
    let filled = match lock::lock(file, true, None) {
        Ok(()) if file.metadata()?.len() != 0 => return Err(io::ErrorKind::AlreadyExists.into()),
        locked => locked.and_then(|()| file.set_len(len)),
    };
    match filled {
        Ok(()) => Ok(made),
        Err(error) => {
            if !taken(&error) {
                drop(made.remove());
            }
            Err(error)
        }
    }
}

/// Nobody goes by the place that this leaves the file at.
fn end_of(mut file: &File) -> io::Result<u64> {
    file.seek(SeekFrom::End(0))
}

/// A file that is unlocked when nobody here has it any more.
struct Held {
    file: File,
    /// Of a block device that is written past the page cache as well.
    turns: Option<Turns>,
    /// Of one that is locked. Behind the lock: who is the next writer by a copy of the descriptor keeps his own.
    writer: Option<Writer>,
}

impl Deref for Held {
    type Target = File;

    fn deref(&self) -> &File {
        &self.file
    }
}

/// A child that another thread has forked holds the descriptor until it executes its program,
/// and with it the lock of who only closes it.
impl Drop for Held {
    fn drop(&mut self) {
        if self.writer.is_some() {
            lock::unlock(&self.file);
        }
    }
}

/// No folio of the page cache crosses a multiple of this: none is of a higher order than 11.
fn folio_at_most() -> u64 {
    // SAFETY: sysconf takes an integer only.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    u64::try_from(page).unwrap_or(4096).max(4096) << 11
}

/// What is opened to append Linux writes at the end, wherever it is asked to.
fn check_writable(file: &File) -> io::Result<()> {
    // SAFETY: F_GETFL takes nothing, and the descriptor is open.
    let flags = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETFL) };
    let refused = |what| Err(io::Error::new(io::ErrorKind::InvalidInput, what));
    match flags {
        -1 => Err(io::Error::last_os_error()),
        _ if flags & libc::O_ACCMODE != libc::O_RDWR => refused("is not open to be written"),
        _ if flags & libc::O_APPEND != 0 => refused("is open to append"),
        _ => Ok(()),
    }
}

/// A write of whoever had the file open before may have failed after that: the kernel tells
/// the next opener's first fsync of it. Nothing of ours is written yet, and a failure that
/// lasts shows in our own first flush. What it could not write may be cached still.
fn take_old_error(file: &File, path: &Path) {
    if let Err(error) = file.sync_data() {
        tracing::warn!("{}: an earlier write of another program failed: {error}", path.display());
        uncache(file, 0, i64::MAX as u64);
    }
}

impl BlockDevice for FileDevice {
    fn len(&self) -> u64 {
        self.len.load(Ordering::Acquire)
    }

    fn grow_to_now(&self) -> io::Result<()> {
        self.len.fetch_max(end_of(&self.file)?, Ordering::AcqRel);
        Ok(())
    }

    fn read_only(&self) -> bool {
        self.read_only
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.check_range(offset, buf.len() as u64)?;
        self.file.read_exact_at(buf, offset)
    }

    fn read_medium(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.check_range(offset, buf.len() as u64)?;
        if let Some(read) = self.direct.read_past(offset, buf) {
            return read;
        }
        uncache(&self.file, offset, buf.len() as u64);
        self.file.read_exact_at(buf, offset)
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
        self.check_range(offset, buf.len() as u64)?;
        let _turn = self.turn(Way::Through, offset, buf.len() as u64);
        self.file.write_all_at(buf, offset)
    }

    fn write_vectored_at(&self, offset: u64, bufs: &[&[u8]]) -> io::Result<()> {
        let total: u64 = bufs.iter().map(|b| b.len() as u64).sum();
        self.check_range(offset, total)?;
        let _turn = self.turn(Way::Through, offset, total);
        write_all_vectored(&self.file, offset, bufs)
    }

    fn write_apart(&self, offset: u64, bufs: &[&[u8]], through: bool) -> io::Result<()> {
        let total: u64 = bufs.iter().map(|b| b.len() as u64).sum();
        self.check_range(offset, total)?;
        if through {
            let _turn = self.turn(Way::Past, offset, total);
            if let Some(written) = self.direct.write_past(offset, bufs) {
                return written;
            }
        }
        let _turn = self.turn(Way::Through, offset, total);
        match (through, bufs) {
            (true, bufs) => self.direct.write_through(&self.file, offset, bufs),
            (false, [one]) => self.file.write_all_at(one, offset),
            (false, many) => write_all_vectored(&self.file, offset, many),
        }
    }

    /// Those of an image would be the host's file system's, which has taken the content.
    fn tells_late(&self) -> bool {
        self.block && !self.read_only && self.direct.is_past()
    }

    fn start_writing(&self) -> io::Result<()> {
        start_writing(&self.file)
    }

    fn flush(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn uncache(&self, offset: u64, len: u64) {
        uncache(&self.file, offset, len);
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.check_range(offset, len)?;
        match discard(&self.file, self.block, offset, len) {
            Err(e) if self.block && e.kind() == io::ErrorKind::ResourceBusy => {
                self.discard_written_back(offset, len)
            }
            done => done,
        }
    }

    fn name(&self) -> String {
        self.path.display().to_string()
    }
}

fn write_all_vectored(file: &File, mut offset: u64, bufs: &[&[u8]]) -> io::Result<()> {
    for group in bufs.chunks(512) {
        let iov: Vec<libc::iovec> = group
            .iter()
            .map(|b| libc::iovec { iov_base: b.as_ptr() as *mut _, iov_len: b.len() })
            .collect();
        let total: usize = group.iter().map(|b| b.len()).sum();
        // SAFETY: every iovec points into a slice that `bufs` borrows for this call;
        // pwritev only reads through them.
        let done = unsafe {
            libc::pwritev(file.as_raw_fd(), iov.as_ptr(), iov.len() as i32, offset as libc::off_t)
        };
        if done < 0 {
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
        if done != total as isize {
            // Short or interrupted: the plain path finishes (rewriting is harmless).
            let mut at = offset;
            for buf in group {
                file.write_all_at(buf, at)?;
                at += buf.len() as u64;
            }
        }
        offset += total as u64;
    }
    Ok(())
}

/// An error of the medium that this tells of is told to nobody else: it counts as a write's.
#[cfg(target_os = "linux")]
fn start_writing(file: &File) -> io::Result<()> {
    let flags = libc::SYNC_FILE_RANGE_WAIT_BEFORE | libc::SYNC_FILE_RANGE_WRITE;
    // SAFETY: sync_file_range takes a descriptor and integers only.
    if unsafe { libc::sync_file_range(file.as_raw_fd(), 0, 0, flags) } == 0 {
        return Ok(());
    }
    match io::Error::last_os_error() {
        e if matches!(e.raw_os_error(), Some(libc::EINVAL | libc::ESPIPE | libc::ENOSYS)) => Ok(()),
        e => Err(e),
    }
}

#[cfg(not(target_os = "linux"))]
fn start_writing(_: &File) -> io::Result<()> {
    Ok(())
}

/// The kernel forgets whole folios alone.
#[cfg(target_os = "linux")]
fn uncache(file: &File, offset: u64, len: u64) {
    let most = folio_at_most();
    let end = offset.saturating_add(len).checked_next_multiple_of(most);
    let start = offset / most * most;
    // To the end of the file.
    let len = end.map_or(0, |end| end - start);
    let (start, len) = (start as libc::off64_t, i64::try_from(len).unwrap_or(0));
    // SAFETY: posix_fadvise takes a descriptor and integers only.
    let number =
        unsafe { libc::posix_fadvise64(file.as_raw_fd(), start, len, libc::POSIX_FADV_DONTNEED) };
    if number != 0 {
        let error = io::Error::from_raw_os_error(number);
        tracing::warn!("what the machine has cached of a device cannot be forgotten: {error}");
    }
}

#[cfg(not(target_os = "linux"))]
fn uncache(_: &File, _: u64, _: u64) {}

#[cfg(target_os = "linux")]
fn discard(file: &File, block: bool, offset: u64, len: u64) -> io::Result<()> {
    let fd = file.as_raw_fd();
    let result = if block {
        const BLKDISCARD: libc::Ioctl = 0x1277;
        let range = [offset, len];
        // SAFETY: BLKDISCARD reads two u64 from the pointer, which outlive the call.
        unsafe { libc::ioctl(fd, BLKDISCARD, range.as_ptr()) }
    } else {
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        // SAFETY: fallocate takes a descriptor and integers only.
        unsafe { libc::fallocate(fd, mode, offset as libc::off_t, len as libc::off_t) }
    };
    if result == 0 {
        return Ok(());
    }
    match io::Error::last_os_error() {
        e if e.raw_os_error() == Some(libc::EOPNOTSUPP) => Ok(()),
        e => Err(e),
    }
}

/// A hint that need not be taken.
#[cfg(not(target_os = "linux"))]
fn discard(_: &File, _: bool, _: u64, _: u64) -> io::Result<()> {
    Ok(())
}

#[cfg(test)]
mod tests;
