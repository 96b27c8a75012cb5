//! Files by the library where something goes wrong or goes on beside: what `std::io` promises of them holds, and
//! all of it ends.

use spinney::tree::fill::{self, FileAt};
use spinney::vfs::{Context, FallocateMode};
use spinney::{
    BlockDevice, FileOptions, FormatOptions, LimitChange, MemDevice, QgroupId, Volume,
    VolumeOptions,
};
use std::io::{self, ErrorKind, Write};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

/// A device that fails when it is told to.
struct Moody {
    device: MemDevice,
    /// So many writes of content on, one fails; 0: none does.
    no_write: AtomicU32,
    no_read: Mutex<Option<ErrorKind>>,
}

impl Moody {
    fn new() -> Arc<Moody> {
        let device = MemDevice::new(256 << 20);
        FormatOptions::new().format(&device).unwrap();
        Arc::new(Moody { device, no_write: AtomicU32::new(0), no_read: Mutex::new(None) })
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
        match *self.no_read.lock().unwrap() {
            Some(kind) => Err(kind.into()),
            None => self.device.read_at(offset, buf),
        }
    }
    fn write_at(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
        self.device.write_at(offset, buf)
    }
    fn write_apart(&self, offset: u64, bufs: &[&[u8]], through: bool) -> io::Result<()> {
        let left = |left: u32| left.checked_sub(1);
        match self.no_write.fetch_update(Ordering::Relaxed, Ordering::Relaxed, left) {
            Ok(1) => Err(io::Error::from_raw_os_error(libc::EIO)),
            _ => self.device.write_apart(offset, bufs, through),
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

/// A sector's rest gathers in front of what is written straight, and is stored before it.
#[test]
fn what_failed_to_be_appended_is_appended_once() {
    let data = bytes(1 << 20);
    for which in 1..=4 {
        let device = Moody::new();
        let volume = writable(&device);
        let mut log = FileOptions::new().append(true).create(true).open(&volume, "log").unwrap();
        log.write_all(&data[..5000]).unwrap();
        log.sync_all().unwrap();
        device.no_write.store(which, Ordering::Relaxed);
        let done = append(&mut log, &data[5000..]);
        device.no_write.store(0, Ordering::Relaxed);
        assert_eq!(log.metadata().unwrap().len(), 5000 + done as u64, "{which}");
        log.write_all(&data[5000 + done..]).unwrap();
        assert!(volume.read("log").unwrap() == data, "{which}: something is there twice");
        volume.close().unwrap();
    }
}

/// Of a file that may only grow, who appends is refused where another was faster. What that one wrote is not his.
#[test]
fn what_another_handle_appended_is_not_what_this_one_did() {
    /// `FS_APPEND_FL`.
    const APPEND: u32 = 0x20;
    const LINES: usize = 20_000;
    let volume = writable(&Moody::new());
    volume.write("log", b"").unwrap();
    let ino = volume.find(b"log", true).unwrap().ino();
    volume.fs().set_flags(&Context::default(), ino, APPEND).unwrap();
    let write = |letter: u8| {
        let mut log = FileOptions::new().append(true).open(&volume, "log").unwrap();
        let line = [letter; 50];
        (0..LINES).map(|_| log.write(&line).unwrap_or(0)).sum::<usize>()
    };
    let told = std::thread::scope(|scope| {
        [b'a', b'b'].map(|letter| scope.spawn(move || write(letter))).map(|one| one.join().unwrap())
    });
    let content = volume.read("log").unwrap();
    let there = [b'a', b'b'].map(|letter| content.iter().filter(|b| **b == letter).count());
    assert_eq!(told, there);
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

/// What was read is there, and no zeros up to where the file ended once.
#[test]
fn a_copy_of_a_file_that_is_cut_meanwhile_has_nothing_that_the_file_never_had() {
    let dir = testkit::oracle::TempDir::new("lib-cut").unwrap();
    let (volume, data, path) = (writable(&Moody::new()), bytes(64 << 20), dir.join("copy"));
    volume.write("log", &data).unwrap();
    let node = volume.find(b"log", true).unwrap();
    let to = std::fs::File::create(&path).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while path.metadata().unwrap().len() == 0 {}
            FileOptions::new().write(true).open(&volume, "log").unwrap().set_len(5000).unwrap();
        });
        fill::to_host(&FileAt::of(&volume, &node, b"log"), &to, &path).unwrap();
    });
    let copied = std::fs::read(&path).unwrap();
    assert!(copied.len() >= 5000 && data.starts_with(&copied), "{} bytes", copied.len());
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
    *device.no_read.lock().unwrap() = Some(ErrorKind::TimedOut);
    let error = file.read_at(0, &mut [0; 4096]).unwrap_err();
    assert_eq!((error.kind(), error.errno()), (ErrorKind::TimedOut, Some(libc::EIO)));
    assert_eq!(io::Error::from(error).kind(), ErrorKind::TimedOut);
    let error = VolumeOptions::new().open_device(device).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
}

/// Programs take the one for a file's end, and std tries again for the others.
#[test]
fn what_a_device_says_of_itself_is_not_said_of_the_file() {
    use std::io::Read;
    for kind in [
        ErrorKind::UnexpectedEof,
        ErrorKind::Interrupted,
        ErrorKind::WouldBlock,
        ErrorKind::NotFound,
        ErrorKind::InvalidInput,
        ErrorKind::BrokenPipe,
    ] {
        let device = Moody::new();
        let volume = writable(&device);
        volume.write("f", &bytes(1 << 20)).unwrap();
        volume.close().unwrap();
        let volume = VolumeOptions::new().open_device(device.clone()).unwrap();
        let mut file = volume.open_path("f").unwrap();
        *device.no_read.lock().unwrap() = Some(kind);
        let read = ends(move || file.read_exact(&mut [0; 4096]).unwrap_err());
        assert_eq!(read.kind(), ErrorKind::Other, "{kind}");
        let opened = VolumeOptions::new().open_device(device).map(drop).unwrap_err();
        assert_eq!(opened.kind(), ErrorKind::Other, "{kind}: {opened}");
    }
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
    let nothing = volume.create_dir("").map_err(io::Error::from);
    assert_eq!(kind(nothing), kind(std::fs::create_dir("")));
    volume.create_dir_all("").unwrap();
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
