//! Images by mkfs.btrfs in a directory of their own, removed at the end of the test.
#![allow(dead_code)]

use blockdev::FileDevice;
use blocksim::{GoOn, Request, RequestHook};
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
pub struct Faulty(pub std::ops::Range<u64>);

impl RequestHook for Faulty {
    fn ask(&self, request: Request<'_>, go_on: GoOn<'_>) -> io::Result<()> {
        let (offset, len) = match request {
            Request::Read { offset, len } => (offset, len),
            Request::Write { offset, pieces } => {
                (offset, pieces.iter().map(|piece| piece.len()).sum())
            }
            _ => return go_on(),
        };
        if offset < self.0.end && self.0.start < offset + len as u64 {
            return Err(io::Error::from_raw_os_error(5));
        }
        go_on()
    }
}
