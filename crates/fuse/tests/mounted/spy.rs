//! The reference model with a witness: calls are counted, and some can be made to fail.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::time::{Duration, Instant};
use testkit::RefFs;
use vfs::*;

/// Looking this name up panics.
pub const PANIC: &[u8] = b"panic";
/// Looking up what begins so is held until the test lets it go, or for a while.
pub const SLOW: &[u8] = b"slow";
const HELD_FOR: Duration = Duration::from_secs(20);
/// Looking this name up fails for want of the operation.
pub const UNKNOWN: &[u8] = b"unknown";
/// A link to this is told to lead further than any path does.
pub const FAR: &[u8] = b"far";

#[derive(Default)]
pub struct Spy {
    pub model: RefFs,
    pub counted: Mutex<BTreeMap<&'static str, u64>>,
    /// The threads that looked something up, by the kernel's numbers.
    pub looked_up_by: Mutex<BTreeSet<i32>>,
    pub observer: OnceLock<Arc<dyn Observer>>,
    pub slow: Hold,
    /// Reading is held, too, from when this is set.
    pub holds_reads: AtomicBool,
    pub reads: Hold,
    pub observe_takes: Duration,
    pub destroy_takes: Duration,
    pub destroy_fails: bool,
    pub destroy_panics: bool,
    /// Listings are not whole, if names come meanwhile.
    pub loses_names: AtomicBool,
    /// Of what comes out of the kernel's cache the half is written.
    pub writes_halves: AtomicBool,
    /// Names stand so much further behind in their directories than the model has them.
    pub further: u64,
    /// Tell no `STATX_ATTR_*` bits: Linux drops them from a FUSE server's replies.
    pub without_attributes: bool,
}

/// Where requests wait until the test lets them go.
#[derive(Default)]
pub struct Hold {
    /// How often they were let go, and how many wait.
    state: Mutex<(u64, usize)>,
    released: Condvar,
}

impl Hold {
    fn pass(&self) {
        let mut state = self.state.lock().unwrap();
        state.1 += 1;
        let now = state.0;
        let waits = |state: &mut (u64, usize)| state.0 == now;
        self.released.wait_timeout_while(state, HELD_FOR, waits).unwrap().0.1 -= 1;
    }

    pub fn held(&self) -> usize {
        self.state.lock().unwrap().1
    }

    /// Waits until so many wait.
    pub fn wait_for(&self, number: usize) {
        let deadline = Instant::now() + HELD_FOR / 2;
        while self.held() != number {
            assert!(Instant::now() < deadline, "{} are held, not {number}", self.held());
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    pub fn release(&self) {
        self.state.lock().unwrap().0 += 1;
        self.released.notify_all();
    }
}

impl Spy {
    pub fn new() -> Spy {
        Spy::default()
    }

    pub fn calls(&self, name: &str) -> u64 {
        self.counted.lock().unwrap().get(name).copied().unwrap_or(0)
    }

    pub fn all_calls(&self) -> BTreeMap<&'static str, u64> {
        self.counted.lock().unwrap().clone()
    }

    /// Where the model has what is told to stand at `offset`; `.` and `..` are told as they are.
    fn nearer(&self, offset: u64) -> u64 {
        if offset <= 2 { offset } else { offset.saturating_sub(self.further).max(2) }
    }

    fn moved<'a>(&self, name: &DirEntry<'a>) -> DirEntry<'a> {
        let next = if name.next <= 2 { name.next } else { name.next + self.further };
        DirEntry { next, ..*name }
    }

    fn note(&self, name: &'static str) {
        *self.counted.lock().unwrap().entry(name).or_default() += 1;
    }
}

/// Where an answer has attributes.
trait Masked {
    fn masked(self) -> Self;
}

impl Masked for Attr {
    fn masked(self) -> Attr {
        Attr { attributes: 0, ..self }
    }
}

impl Masked for Entry {
    fn masked(self) -> Entry {
        Entry { attr: self.attr.masked(), ..self }
    }
}

impl Spy {
    fn told<T: Masked>(&self, answer: Result<T>) -> Result<T> {
        if self.without_attributes { answer.map(T::masked) } else { answer }
    }
}

macro_rules! delegate_told {
    ($(fn $name:ident(&self $(, $arg:ident: $ty:ty)* $(,)?) -> $ret:ty;)*) => {
        $(fn $name(&self $(, $arg: $ty)*) -> $ret {
            self.note(stringify!($name));
            self.told(self.model.$name($($arg),*))
        })*
    };
}

macro_rules! delegate {
    ($(fn $name:ident(&self $(, $arg:ident: $ty:ty)*) $(-> $ret:ty)?;)*) => {
        $(fn $name(&self $(, $arg: $ty)*) $(-> $ret)? {
            self.note(stringify!($name));
            self.model.$name($($arg),*)
        })*
    };
}

impl FileSystem for Spy {
    fn root(&self) -> Ino {
        self.model.root()
    }

    fn observe(&self, observer: Arc<dyn Observer>) {
        std::thread::sleep(self.observe_takes);
        self.note("observe");
        assert!(self.observer.set(observer).is_ok(), "two observers");
    }

    fn lookup(&self, cx: &Context, parent: Ino, name: &[u8]) -> Result<Entry> {
        self.note("lookup");
        self.looked_up_by.lock().unwrap().insert(crate::sys::thread_id());
        match name {
            PANIC => panic!("asked to"),
            UNKNOWN => return Err(Errno::ENOSYS.into()),
            slow if slow.starts_with(SLOW) => self.slow.pass(),
            _ => {}
        }
        self.told(self.model.lookup(cx, parent, name))
    }

    fn write(
        &self,
        cx: &Context,
        ino: Ino,
        offset: u64,
        data: &[u8],
        flags: WriteFlags,
    ) -> Result<usize> {
        self.note(if flags.sync { "synchronous write" } else { "write" });
        let half = flags.cached && self.writes_halves.load(Ordering::Relaxed);
        let len = if half { data.len() / 2 } else { data.len() };
        self.model.write(cx, ino, offset, &data[..len], flags)
    }

    fn read(&self, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.note("read");
        if self.holds_reads.load(Ordering::Relaxed) {
            self.reads.pass();
        }
        self.model.read(ino, offset, buf)
    }

    fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        self.note("readlink");
        let target = self.model.readlink(ino)?;
        Ok(if target == FAR { vec![b'x'; 5000] } else { target })
    }

    fn stats(&self) -> Vec<Stat> {
        vec![Stat { name: "spy.lookups", value: self.calls("lookup") }]
    }

    fn listing_ended(&self, _dir: Ino, _end: u64) -> Result<()> {
        self.note("listing_ended");
        match self.loses_names.load(Ordering::Relaxed) {
            true => Err(vfs::Damage::new("asked to").into()),
            false => Ok(()),
        }
    }

    fn label(&self) -> Result<Vec<u8>> {
        Ok(b"a label".to_vec())
    }

    fn destroy(&self) -> Result<()> {
        std::thread::sleep(self.destroy_takes);
        self.note("destroy");
        assert!(!self.destroy_panics, "asked to panic");
        match self.destroy_fails {
            true => Err(vfs::Damage::new("asked to").into()),
            false => self.model.destroy(),
        }
    }

    fn readdir_plus(
        &self,
        dir: Ino,
        offset: u64,
        emit: &mut dyn FnMut(&DirEntry<'_>, Option<&Entry>) -> bool,
    ) -> Result<()> {
        self.note("readdir_plus");
        self.model.readdir_plus(dir, self.nearer(offset), &mut |name, entry| {
            let hide = self.without_attributes;
            let entry = entry.map(|entry| if hide { entry.masked() } else { *entry });
            emit(&self.moved(name), entry.as_ref())
        })
    }

    fn readdir(
        &self,
        dir: Ino,
        offset: u64,
        emit: &mut dyn FnMut(&DirEntry<'_>) -> bool,
    ) -> Result<()> {
        self.note("readdir");
        self.model.readdir(dir, self.nearer(offset), &mut |name| emit(&self.moved(name)))
    }

    fn dir_end(&self, dir: Ino) -> Result<u64> {
        self.note("dir_end");
        Ok(self.model.dir_end(dir)? + self.further)
    }

    delegate_told! {
        fn getattr(&self, ino: Ino) -> Result<Attr>;
        fn setattr(&self, cx: &Context, ino: Ino, set: &SetAttr) -> Result<Attr>;
        fn mknod(&self, cx: &Context, parent: Ino, name: &[u8], kind: FileKind, perm: u16, rdev: u32) -> Result<Entry>;
        fn mkdir(&self, cx: &Context, parent: Ino, name: &[u8], perm: u16) -> Result<Entry>;
        fn symlink(&self, cx: &Context, parent: Ino, name: &[u8], target: &[u8]) -> Result<Entry>;
        fn link(&self, cx: &Context, ino: Ino, parent: Ino, name: &[u8]) -> Result<Entry>;
        fn tmpfile(&self, cx: &Context, parent: Ino, perm: u16) -> Result<Entry>;
    }

    delegate! {
        fn forget(&self, ino: Ino, count: u64);
        fn is_held(&self, ino: Ino) -> bool;
        fn unlink(&self, cx: &Context, parent: Ino, name: &[u8]) -> Result<()>;
        fn rmdir(&self, cx: &Context, parent: Ino, name: &[u8]) -> Result<()>;
        fn rename(&self, cx: &Context, parent: Ino, name: &[u8], new_parent: Ino, new_name: &[u8], mode: RenameMode) -> Result<()>;
        fn fallocate(&self, cx: &Context, ino: Ino, mode: FallocateMode, offset: u64, len: u64) -> Result<()>;
        fn copy_range(&self, cx: &Context, from: Ino, from_offset: u64, to: Ino, to_offset: u64, len: u64) -> Result<u64>;
        fn clone_range(&self, cx: &Context, from: Ino, from_offset: u64, to: Ino, to_offset: u64, len: u64) -> Result<()>;
        fn seek(&self, ino: Ino, offset: u64, whence: SeekWhence) -> Result<u64>;
        fn fsync(&self, ino: Ino, datasync: bool) -> Result<()>;
        fn sync(&self) -> Result<()>;
        fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>>;
        fn listxattr(&self, ino: Ino) -> Result<Vec<Vec<u8>>>;
        fn setxattr(&self, cx: &Context, ino: Ino, name: &[u8], value: &[u8], mode: XattrMode) -> Result<()>;
        fn removexattr(&self, cx: &Context, ino: Ino, name: &[u8]) -> Result<()>;
        fn flags(&self, ino: Ino) -> Result<u32>;
        fn set_flags(&self, cx: &Context, ino: Ino, flags: u32) -> Result<()>;
        fn statfs(&self) -> Result<StatFs>;
    }
}
