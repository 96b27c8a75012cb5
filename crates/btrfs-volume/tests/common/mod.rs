//! Images by mkfs.btrfs in a directory of their own, removed at the end of the test.
#![allow(dead_code)]

use blockdev::{BlockDevice, FileDevice};
use btrfs_disk::Superblock;
use btrfs_disk::superblock::SUPER_SIZE;
use btrfs_volume::{OpenOptions, Volume};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

pub const MIB: u64 = 1 << 20;

pub struct Scratch(PathBuf);

impl Scratch {
    pub fn new() -> Scratch {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let dir = PathBuf::from(format!("/tmp/btrfs-volume/{}-{n}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("scratch directory");
        Scratch(dir)
    }

    /// A sparse file of `len` bytes.
    pub fn file(&self, name: &str, len: u64) -> PathBuf {
        let path = self.0.join(name);
        std::fs::File::create(&path).and_then(|f| f.set_len(len)).expect("image file");
        path
    }

    /// An image by `mkfs.btrfs`.
    pub fn mkfs(&self, name: &str, len: u64, args: &[&str]) -> PathBuf {
        let path = self.file(name, len);
        run(Command::new("mkfs.btrfs").arg("-q").args(args).arg(&path));
        path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// False, with the reason printed, where the machine lacks btrfs-progs.
pub fn have_mkfs() -> bool {
    let there = Command::new("mkfs.btrfs").arg("--version").output().is_ok();
    if !there {
        println!("SKIPPED: mkfs.btrfs is not installed");
    }
    there
}

pub fn run(command: &mut Command) -> String {
    let output = command.output().expect("program starts");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?} failed: {text}{errors}");
    text
}

/// Opens for writing.
pub fn device(path: &Path) -> Arc<FileDevice> {
    Arc::new(FileDevice::open(path, false, false).expect("image opens"))
}

pub fn open(path: &Path) -> btrfs_disk::Result<Volume> {
    Volume::open(device(path), OpenOptions::default())
}

pub fn open_read_only(path: &Path) -> btrfs_disk::Result<Volume> {
    let dev = Arc::new(FileDevice::open(path, true, false).expect("image opens"));
    Volume::open(dev, OpenOptions { read_only: true, ..OpenOptions::default() })
}

pub fn read_bytes(path: &Path, at: u64, len: usize) -> Vec<u8> {
    let mut buf = vec![0; len];
    std::fs::File::open(path).and_then(|f| f.read_exact_at(&mut buf, at)).expect("read");
    buf
}

pub fn write_bytes(path: &Path, at: u64, bytes: &[u8]) {
    let file = std::fs::OpenOptions::new().write(true).open(path).expect("image opens");
    file.write_all_at(bytes, at).expect("write");
}

/// Flips one bit.
pub fn flip(path: &Path, at: u64) {
    let byte = read_bytes(path, at, 1)[0];
    write_bytes(path, at, &[byte ^ 0x10]);
}

/// Changes the copy of the superblock at `at`, with a checksum that fits.
pub fn edit_super(path: &Path, at: u64, edit: impl FnOnce(&mut Superblock)) {
    let mut sb = Superblock::parse(&read_bytes(path, at, SUPER_SIZE), at).expect("valid copy");
    edit(&mut sb);
    write_bytes(path, at, &sb.to_bytes(at).expect("known checksum"));
}

/// Every kind of failing I/O in one range of a device.
pub struct Faulty {
    pub inner: Arc<FileDevice>,
    pub bad: std::ops::Range<u64>,
}

impl Faulty {
    fn check(&self, offset: u64, len: usize) -> io::Result<()> {
        if offset < self.bad.end && self.bad.start < offset + len as u64 {
            return Err(io::Error::from_raw_os_error(5));
        }
        Ok(())
    }
}

impl BlockDevice for Faulty {
    fn len(&self) -> u64 {
        self.inner.len()
    }
    fn read_only(&self) -> bool {
        self.inner.read_only()
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.check(offset, buf.len())?;
        self.inner.read_at(offset, buf)
    }
    fn write_at(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
        self.check(offset, buf.len())?;
        self.inner.write_at(offset, buf)
    }
    fn flush(&self) -> io::Result<()> {
        self.inner.flush()
    }
    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.inner.discard(offset, len)
    }
    fn name(&self) -> String {
        self.inner.name()
    }
}
