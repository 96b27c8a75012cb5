//! Files by the library where something goes wrong or goes on beside: what `std::io` promises of them holds, and
//! all of it ends.

use spinney::tree::fill::FileAt;
use spinney::vfs::{Context, FallocateMode};
use spinney::{
    BlockDevice, FileOptions, FormatOptions, LimitChange, MemDevice, QgroupId, Volume,
    VolumeOptions,
};
use std::io::{self, ErrorKind, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

/// A device that fails when it is told to.
struct Moody {
    device: MemDevice,
    /// The next write of content fails.
    no_write: AtomicBool,
    no_read: AtomicBool,
}

impl Moody {
    fn new() -> Arc<Moody> {
        let device = MemDevice::new(256 << 20);
        FormatOptions::new().format(&device).unwrap();
        Arc::new(Moody {
            device,
            no_write: AtomicBool::new(false),
            no_read: AtomicBool::new(false),
        })
    }
}

impl BlockDevice for Moody {
    fn len(&self) -> u64 {
        self.device.len()
    }
    fn read_only(&self) -> bool {
        false
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        match self.no_read.load(Ordering::Relaxed) {
            true => Err(ErrorKind::TimedOut.into()),
            false => self.device.read_at(offset, buf),
        }
    }
    fn write_at(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
        self.device.write_at(offset, buf)
    }
    fn write_apart(&self, offset: u64, bufs: &[&[u8]], through: bool) -> io::Result<()> {
        match self.no_write.swap(false, Ordering::Relaxed) {
            true => Err(io::Error::from_raw_os_error(libc::EIO)),
            false => self.device.write_apart(offset, bufs, through),
        }
    }
    fn flush(&self) -> io::Result<()> {
        self.device.flush()
    }
    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.device.discard(offset, len)
    }
    fn name(&self) -> String {
        "moody".into()
    }
}

fn writable(device: &Arc<Moody>) -> Volume {
    VolumeOptions::new().write(true).open_device(device.clone()).unwrap()
}

/// What `work` answers, which must not take for ever.
fn ends<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || tell.send(work()));
    told.recv_timeout(Duration::from_secs(60)).expect("it ends")
}

/// Bytes that tell where they are from.
fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at / 7 % 251) as u8).collect()
}

/// Writes it as `BufWriter` does, which keeps what an error says is not written, and tells how much is.
fn append(log: &mut spinney::File, data: &[u8]) -> usize {
    let mut done = 0;
    while done < data.len() {
        match log.write(&data[done..]) {
            Ok(written) => done += written,
            Err(_) => break,
        }
    }
    done
}

#[test]
fn what_failed_to_be_appended_is_appended_once() {
    let device = Moody::new();
    let volume = writable(&device);
    let mut log = FileOptions::new().append(true).create(true).open(&volume, "log").unwrap();
    let data = bytes(1 << 20);
    log.write_all(&data[..5000]).unwrap();
    device.no_write.store(true, Ordering::Relaxed);
    let done = append(&mut log, &data[5000..]);
    assert!(!device.no_write.load(Ordering::Relaxed), "it was asked");
    assert_eq!(log.metadata().unwrap().len(), 5000 + done as u64);
    log.write_all(&data[5000 + done..]).unwrap();
    assert!(volume.read("log").unwrap() == data, "something is there twice");
    volume.close().unwrap();
}

/// Space that the file has already takes the beginning, and a quota refuses the rest.
#[test]
fn what_a_limit_refused_is_appended_once() {
    let device = Moody::new();
    let volume = writable(&device);
    let home = QgroupId(volume.create_subvolume("home").unwrap().0);
    let mut log = FileOptions::new().append(true).create(true).open(&volume, "home/log").unwrap();
    let ino = volume.find(b"home/log", true).unwrap().ino();
    let (cx, keep) = (Context::default(), FallocateMode::KeepSize);
    volume.fs().fallocate(&cx, ino, keep, 0, 1 << 20).unwrap();
    volume.enable_quotas().unwrap();
    let limit = |bytes| LimitChange { referenced: Some(bytes), ..LimitChange::default() };
    volume.limit_qgroup(home, &limit(Some((1 << 20) + 65536))).unwrap();
    let data = bytes(2 << 20);
    let done = append(&mut log, &data);
    assert!((1 << 20..data.len()).contains(&done), "{done}");
    assert_eq!(log.metadata().unwrap().len(), done as u64);
    volume.limit_qgroup(home, &limit(None)).unwrap();
    log.write_all(&data[done..]).unwrap();
    assert!(volume.read("home/log").unwrap() == data, "something is there twice");
    volume.close().unwrap();
}

/// A byte at a time was looked for behind where the file had ended when that began.
#[test]
fn a_copy_ends_however_much_is_appended_meanwhile() {
    let volume = writable(&Moody::new());
    volume.write("log", &bytes(100_000)).unwrap();
    let copied = ends(move || {
        let node = volume.find(b"log", true).unwrap();
        let mut log = FileOptions::new().append(true).open(&volume, "log").unwrap();
        let (more, mut copied) = (bytes(32 << 20), Vec::new());
        let copy = FileAt::of(&volume, &node, b"log").data(&mut |at, bytes| {
            if at == 0 {
                log.write_all(&more).unwrap();
            }
            assert_eq!(at, copied.len() as u64);
            copied.extend_from_slice(bytes);
            Ok(())
        });
        copy.map(|()| copied).unwrap()
    });
    assert!(copied == bytes(100_000), "{} bytes", copied.len());
}

/// A few hundred bytes of an image say so.
#[test]
fn a_file_that_is_longer_than_all_memory_is_no_end_of_the_program() {
    let volume = writable(&Moody::new());
    volume.create("long").unwrap().set_len(i64::MAX as u64).unwrap();
    let error = ends(move || volume.read("long")).unwrap_err();
    assert_eq!((error.kind(), error.errno()), (ErrorKind::OutOfMemory, Some(libc::ENOMEM)));
}

#[test]
fn an_error_is_of_the_kind_that_the_device_says() {
    let device = Moody::new();
    let volume = writable(&device);
    volume.write("f", &bytes(1 << 20)).unwrap();
    volume.close().unwrap();
    let volume = VolumeOptions::new().open_device(device.clone()).unwrap();
    let file = volume.open_path("f").unwrap();
    device.no_read.store(true, Ordering::Relaxed);
    let error = file.read_at(0, &mut [0; 4096]).unwrap_err();
    assert_eq!((error.kind(), error.errno()), (ErrorKind::TimedOut, Some(libc::EIO)));
    assert_eq!(io::Error::from(error).kind(), ErrorKind::TimedOut);
    let error = VolumeOptions::new().open_device(device).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
}

/// As `std::fs` beside it: paths that a program has put together.
#[test]
fn directories_are_made_along_any_path() {
    let host = testkit::oracle::TempDir::new("lib-dirs").unwrap();
    let volume = writable(&Moody::new());
    std::fs::write(host.join("file"), b"").unwrap();
    volume.write("file", b"").unwrap();
    for target in ["b/c", "nowhere"] {
        std::os::unix::fs::symlink(target, host.path().join(format!("to-{}", &target[..1])))
            .unwrap();
        volume.symlink(target, format!("to-{}", &target[..1])).unwrap();
    }
    let kind = |made: io::Result<()>| made.err().map(|error| error.kind());
    for path in [
        "a/./b",
        "b/../c",
        "b/c/../../d/e/",
        "./f",
        "h//i",
        "j/..",
        "b/new/../other",
        "to-b/k",
        "file",
        "file/l",
        "to-n/m",
        "to-n",
        "b/c/../c/./n/../o",
        "missing/../file/p",
    ] {
        let ours = volume.create_dir_all(path).map_err(io::Error::from);
        assert_eq!(kind(ours), kind(std::fs::create_dir_all(host.join(path))), "{path}");
    }
    for path in ["a/.", "a/..", "none/.", "a/", "file/.", "q/", "q"] {
        let ours = volume.create_dir(path).map_err(io::Error::from);
        assert_eq!(kind(ours), kind(std::fs::create_dir(host.join(path))), "{path}");
    }
    let there = volume.create_dir("/").map_err(io::Error::from);
    assert_eq!(kind(there), Some(ErrorKind::AlreadyExists));
    let mut count = 0;
    for entry in volume.walk("/").unwrap() {
        let entry = entry.unwrap();
        let below = entry.path().strip_prefix("/").unwrap();
        assert!(host.path().join(below).symlink_metadata().is_ok(), "{below:?}");
        count += 1;
    }
    let listed = std::process::Command::new("find").arg(host.path()).output().unwrap().stdout;
    assert_eq!(count, listed.iter().filter(|b| **b == b'\n').count());
    // There std asks for `g/.` alone.
    volume.create_dir_all("g/.").unwrap();
    assert!(volume.exists("g").unwrap());
    volume.close().unwrap();
}
