//! Requests made by hand, and what the kernel is to be told meanwhile: there is none, so nothing is sent.

mod full;

use super::*;
use crate::abi::record::*;
use crate::abi::{Wire, fattr};
use crate::config::Controls;
use crate::device::Device;
use crate::notify::Subject;
use std::time::Duration;
use testkit::RefFs;
use vfs::{Asker, Controlled, FileKind};

/// Of FS_IOC_SETFLAGS.
const APPEND: u32 = 0x20;
const CX: Context = Context { uid: 0, gid: 0, pid: 0, umask: 0 };

struct Served {
    fs: Arc<RefFs>,
    dispatcher: Dispatcher,
    notifier: Notifier,
}

impl Served {
    fn new(config: &Config) -> Served {
        let fs = Arc::new(RefFs::new());
        Served::of(fs.clone(), fs, config)
    }

    /// `served` is `fs`, perhaps with something in front.
    fn of(fs: Arc<RefFs>, served: Arc<dyn FileSystem>, config: &Config) -> Served {
        let nowhere = std::fs::File::options().read(true).write(true).open("/dev/null");
        let device = Device::from_fd(nowhere.expect("/dev/null").into());
        let notifier = Notifier::new(device, fs.root());
        let polling = Arc::new(Polling::new(Duration::ZERO, 0));
        let dispatcher = Dispatcher::new(served, notifier.clone(), config, &polling);
        Served { fs, dispatcher, notifier }
    }

    fn asked<T: Wire>(&self, opcode: Opcode, ino: Ino, arg: &T, payload: &[u8]) -> Outcome {
        self.answered(opcode, ino, arg, payload, &mut vec![0; 1 << 16])
    }

    fn answered<T: Wire>(
        &self,
        opcode: Opcode,
        ino: Ino,
        arg: &T,
        payload: &[u8],
        out: &mut [u8],
    ) -> Outcome {
        let mut message = vec![0; InHeader::SIZE + T::SIZE];
        let header = InHeader {
            len: (message.len() + payload.len()) as u32,
            opcode: opcode.number(),
            unique: 2,
            nodeid: self.notifier.nodes().to_node(ino),
            ..Default::default()
        };
        header.store(&mut message);
        arg.store(&mut message[InHeader::SIZE..]);
        message.extend_from_slice(payload);
        let request = Request::parse(&message).expect("a request");
        self.dispatcher.dispatch(&request, out)
    }

    fn done<T: Wire>(&self, opcode: Opcode, ino: Ino, arg: &T, payload: &[u8]) {
        let outcome = self.asked(opcode, ino, arg, payload);
        assert!(matches!(outcome, Outcome::Reply(_)), "{opcode:?}: {outcome:?}");
    }

    /// A file that holds one reference.
    fn new_file(&self, name: &str, size: usize) -> Ino {
        let made = self.fs.mknod(&CX, self.fs.root(), name.as_bytes(), FileKind::File, 0o644, 0);
        let ino = made.expect("mknod").attr.ino;
        self.write(ino, 0, size);
        ino
    }

    fn write(&self, ino: Ino, offset: u64, size: usize) {
        let arg = WriteIn { offset, size: size as u32, ..Default::default() };
        self.done(Opcode::Write, ino, &arg, &vec![b'x'; size]);
    }

    /// As for the page cache.
    fn read(&self, ino: Ino, offset: u64, size: u32) {
        let arg = ReadIn { offset, size, ..Default::default() };
        self.done(Opcode::Read, ino, &arg, &[]);
    }

    /// How often the kernel was to clear what is behind an end.
    fn cleared(&self) -> usize {
        self.notifier.queued().0
    }
}

#[test]
fn of_a_copy_that_fails_no_end_is_told() {
    let served = Served::new(&Config::default());
    let (from, to) = (served.new_file("from", 4096), served.new_file("to", 100));
    served.read(to, 0, 4096);
    let copy = |off_in| {
        let nodeid_out = served.notifier.nodes().to_node(to);
        let arg =
            CopyFileRangeIn { off_in, nodeid_out, off_out: 200, len: 50, ..Default::default() };
        served.asked(Opcode::CopyFileRange, from, &arg, &[])
    };
    assert!(matches!(copy(4096), Outcome::Reply(_)), "nothing to copy");
    assert_eq!(served.cleared(), 0);
    served.fs.set_flags(&CX, to, APPEND).expect("chattr");
    assert_eq!(copy(0), Outcome::Refuse(libc::EPERM));
    assert_eq!(served.cleared(), 0);
    served.fs.set_flags(&CX, to, 0).expect("chattr");
    assert!(matches!(copy(0), Outcome::Reply(_)));
    assert_eq!(served.cleared(), 1);
}

/// A page that was never READ is locked while a part of it is written: zeros for it would be waited for.
#[test]
fn only_the_page_whose_end_was_read_is_cleared() {
    let served = Served::new(&Config::default());
    let ino = served.new_file("file", 100);
    served.write(ino, 200, 50);
    assert_eq!(served.cleared(), 0, "never READ");
    served.read(ino, 0, 4096);
    (2..1000).for_each(|at| served.write(ino, at * 200, 100));
    assert_eq!(served.cleared(), 19, "up to the write at 4000");
    // The end that is READ where it is now.
    served.read(ino, 999 * 200 / 4096 * 4096, 4096);
    served.write(ino, 1000 * 200, 100);
    assert_eq!(served.cleared(), 20);
    // A READ that met the end of before, and comes late.
    served.dispatcher.end_is_read(ino, 100);
    served.write(ino, 1001 * 200, 100);
    assert_eq!(served.cleared(), 21);
}

#[test]
fn a_page_that_the_kernel_keeps_when_the_file_is_cut_is_cleared() {
    let cut = |served: &Served, ino, size| {
        let arg = SetattrIn { valid: fattr::SIZE, size, ..Default::default() };
        served.done(Opcode::Setattr, ino, &arg, &[]);
    };
    let served = Served::new(&Config::default());
    let ino = served.new_file("written", 3 * 4096);
    cut(&served, ino, 4096 + 100);
    served.write(ino, 4096 + 200, 100);
    assert_eq!(served.cleared(), 1);
    // Not of a file of which it has nothing, nor where it grows.
    let ino = served.fs.mknod(&CX, served.fs.root(), b"grown", FileKind::File, 0o644, 0);
    let ino = ino.expect("mknod").attr.ino;
    cut(&served, ino, 8192);
    cut(&served, ino, 100);
    cut(&served, ino, 300);
    assert_eq!(served.cleared(), 1);
}

/// A FORGET of what the kernel evicted comes behind its next LOOKUP, and is not of what it knows by then.
#[test]
fn what_is_noted_of_an_inode_lasts_until_the_last_reference_goes() {
    let served = Served::new(&Config::default());
    let ino = served.new_file("file", 100);
    served.done(Opcode::Lookup, served.fs.root(), &[0u32; 0], b"file\0");
    served.read(ino, 0, 4096);
    let forget = |nlookup| {
        let outcome = served.asked(Opcode::Forget, ino, &ForgetIn { nlookup }, &[]);
        assert_eq!(outcome, Outcome::Silent);
    };
    let noted = || {
        let Dispatcher { ends, read, .. } = &served.dispatcher;
        [ends.of(ino).is_some(), read.of(ino).is_some()]
    };
    forget(1);
    assert_eq!(noted(), [true; 2]);
    served.write(ino, 200, 100);
    assert_eq!(served.cleared(), 1);
    forget(1);
    assert_eq!(noted(), [false; 2]);
}

/// A directory that comes into another lists that one as `..` from then on.
#[test]
fn what_moves_to_another_directory_is_listed_anew() {
    let served = Served::new(&Config::default());
    let root = served.fs.root();
    let make = |dir, name: &[u8]| served.fs.mkdir(&CX, dir, name, 0o755).expect("mkdir").attr.ino;
    let (a, b) = (make(root, b"a"), make(root, b"b"));
    let (one, two) = (make(a, b"one"), make(b, b"two"));
    let list = |dir| {
        let arg = ReadIn { size: 4096, ..Default::default() };
        served.done(Opcode::Readdir, dir, &arg, &[]);
    };
    let rename = |from, to, flags, names: &[u8]| {
        let newdir = served.notifier.nodes().to_node(to);
        let arg = Rename2In { newdir, flags, ..Default::default() };
        served.done(Opcode::Rename2, from, &arg, names);
    };
    let dropped = || served.notifier.queued().1;
    rename(a, b, 0, b"one\0one\0");
    assert_eq!(dropped(), 0, "never listed");
    list(one);
    rename(b, b, 0, b"one\0first\0");
    assert_eq!(dropped(), 0, "stays in its directory");
    rename(b, a, 0, b"first\0one\0");
    assert_eq!(dropped(), 1);
    list(two);
    rename(a, b, libc::RENAME_EXCHANGE, b"one\0two\0");
    assert_eq!(dropped(), 2, "the one that was listed since");
    rename(b, a, libc::RENAME_EXCHANGE, b"two\0one\0");
    assert_eq!(dropped(), 2, "none was");
}

/// Works for long, and fetches what the kernel has of the file behind that, as the one who enables fs-verity.
struct Working;

impl Control for Working {
    fn control(&self, asker: &dyn Asker, ino: Ino, _: u32, _: &[u8]) -> vfs::Result<Controlled> {
        (0..100).try_for_each(|_| asker.goes_on())?;
        asker.fetch(ino)?;
        Ok(Controlled::default())
    }
}

#[test]
fn who_works_for_long_fetches_pages_all_the_same() {
    let control = Some(Controls(Arc::new(Working)));
    let served = Served::new(&Config { control, ..Config::default() });
    let ino = served.new_file("file", 100);
    let work = || served.asked(Opcode::Ioctl, ino, &IoctlIn { cmd: 1, ..Default::default() }, &[]);
    assert_eq!(work(), Outcome::Refuse(libc::EBUSY), "nobody serves beside");
    // Two threads, so one may take long.
    served.dispatcher.served_by(2, 0);
    let outcome = std::thread::scope(|scope| {
        let working = scope.spawn(work);
        while served.notifier.queued().1 == 0 && !working.is_finished() {
            std::thread::yield_now();
        }
        assert!(!working.is_finished(), "it waits for who tells the kernel");
        scope.spawn(|| served.notifier.run(Subject::Inodes, ()));
        let outcome = working.join().expect("no panic");
        served.notifier.close();
        outcome
    });
    assert!(matches!(outcome, Outcome::Reply(_)), "{outcome:?}");
}

/// Where the kernel takes no rings after all, threads of theirs read the device.
#[test]
fn who_goes_on_by_the_device_says_so_and_may_wait() {
    let served = Served::new(&Config::default());
    let Dispatcher { waiters, .. } = &served.dispatcher;
    served.dispatcher.set_transport("io_uring");
    served.dispatcher.served_by(0, 4);
    let may_wait = || waiters.enter_for_long(Origin::Device).is_some();
    assert_eq!((served.dispatcher.transport(), may_wait()), ("io_uring", false));
    served.dispatcher.goes_on_by_the_device();
    assert_eq!((served.dispatcher.transport(), may_wait()), ("classic", false));
    served.dispatcher.goes_on_by_the_device();
    assert!(may_wait(), "one of two");
}
