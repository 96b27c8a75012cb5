//! Makes a start, or the end, fail where a test wants it: `SPINNEY_FAULT=STEP=WHAT[,STEP=WHAT...]`.
//! `serving=try` lets who looks at the extended attribute `user.spinney.try.WHAT` have a thread
//! that serves try WHAT; `sandbox=PART` leaves a part of the sandbox away, as on a kernel
//! without it, and `sandbox=mercy` has a call that is refused end the server.
//!
//! Without the feature `fault-injection`, which only this workspace's tests turn on, nobody asks:
//! a released program has no code for it (`cargo xtask released`).

use std::io;
use std::sync::Arc;
use vfs::FileSystem;

/// The step before a signal's commit.
pub const ENDING: &str = "ending";

/// The steps of `serve`; `fuse::Config::STEPS` are those of mounting itself. `closing` is inside
/// of what closes the volume.
#[cfg(feature = "fault-injection")]
const STEPS: &[&str] =
    &["log", "opened", "way", "beneath", "place", "listening", "ready", ENDING, CLOSING];
#[cfg(feature = "fault-injection")]
const CLOSING: &str = "closing";
#[cfg(feature = "fault-injection")]
const SERVING: &str = "serving";

/// What a test wants at `step`.
#[cfg(feature = "fault-injection")]
fn wanted(step: &str) -> Option<String> {
    let all = std::env::var("SPINNEY_FAULT").ok()?;
    let all = all.split(',').filter_map(|one| one.split_once('='));
    all.filter(|(name, _)| *name == step).map(|(_, what)| what.to_owned()).next()
}

/// Work that gets on, or waits.
#[cfg(feature = "fault-injection")]
const BUSY: std::time::Duration = std::time::Duration::from_secs(4);

#[cfg(not(feature = "fault-injection"))]
pub fn at(_: &'static str) -> io::Result<()> {
    Ok(())
}

#[cfg(feature = "fault-injection")]
pub fn at(step: &'static str) -> io::Result<()> {
    debug_assert!(STEPS.contains(&step) || fuse::Config::STEPS.contains(&step), "{step}");
    let Some(what) = wanted(step) else { return Ok(()) };
    match what.as_str() {
        "panic" => panic!("asked to panic at {step}"),
        "abort" => std::process::abort(),
        "kill" => crate::sys::kill_myself(),
        "stop" => crate::sys::stop_myself(),
        "hang" => loop {
            std::thread::park();
        },
        "busy" => {
            let start = std::time::Instant::now();
            while start.elapsed() < BUSY {}
        }
        "slow" => std::thread::sleep(BUSY),
        _ => return Err(io::Error::other(format!("asked to fail at {step}"))),
    }
    Ok(())
}

/// Has the steps of mounting ask, too.
#[cfg(feature = "fault-injection")]
pub fn in_mounting(config: &mut fuse::Config) {
    config.on_step = Some(at);
}

#[cfg(not(feature = "fault-injection"))]
pub fn in_mounting(_: &mut fuse::Config) {}

#[cfg(not(feature = "fault-injection"))]
pub fn in_serving(fs: Arc<impl FileSystem + 'static>) -> Arc<dyn FileSystem> {
    fs
}

/// The same file system; its end fails, or it tries things, if a test asked for that.
#[cfg(feature = "fault-injection")]
pub fn in_serving(fs: Arc<impl FileSystem + 'static>) -> Arc<dyn FileSystem> {
    match wanted(CLOSING).or_else(|| wanted(SERVING)) {
        Some(_) => Arc::new(serving::Failing(fs)),
        None => fs,
    }
}

#[cfg(not(feature = "fault-injection"))]
pub fn lacks(_: &str) -> bool {
    false
}

/// Whether the sandbox is to do as if the kernel had no such `part`.
#[cfg(feature = "fault-injection")]
pub fn lacks(part: &str) -> bool {
    wanted("sandbox").is_some_and(|without| without == part)
}

#[cfg(feature = "fault-injection")]
mod serving {
    use std::sync::Arc;
    use vfs::*;

    pub struct Failing(pub Arc<dyn FileSystem>);

    macro_rules! delegate {
        ($(fn $name:ident(&self $(, $arg:ident: $ty:ty)*) $(-> $ret:ty)?;)*) => {
            $(fn $name(&self $(, $arg: $ty)*) $(-> $ret)? { self.0.$name($($arg),*) })*
        };
    }

    impl FileSystem for Failing {
        fn destroy(&self) -> Result<()> {
            super::at(super::CLOSING)
                .map_err(|source| FsError::Io { context: "closing".into(), source })?;
            self.0.destroy()
        }

        /// What came of it, as the value: 0, or the error's number.
        fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
            let what = name.strip_prefix(b"user.spinney.try.").and_then(|n| str::from_utf8(n).ok());
            match what.filter(|_| super::wanted(super::SERVING).is_some()) {
                Some(what) => Ok(crate::sys::attempt(what).to_string().into_bytes()),
                None => self.0.getxattr(ino, name),
            }
        }

        delegate! {
            fn root(&self) -> Ino;
            fn lookup(&self, cx: &Context, parent: Ino, name: &[u8]) -> Result<Entry>;
            fn forget(&self, ino: Ino, count: u64);
            fn is_held(&self, ino: Ino) -> bool;
            fn getattr(&self, ino: Ino) -> Result<Attr>;
            fn refuses_writers(&self) -> bool;
            fn may_write(&self, ino: Ino) -> Result<()>;
            fn keeps_atime(&self) -> bool;
            fn access_due(&self, ino: Ino) -> bool;
            fn accessed(&self, ino: Ino);
            fn moment(&self) -> u64;
            fn lasts(&self, ino: Ino, moment: u64) -> bool;
            fn setattr(&self, cx: &Context, ino: Ino, set: &SetAttr) -> Result<Attr>;
            fn readlink(&self, ino: Ino) -> Result<Vec<u8>>;
            fn mknod(&self, cx: &Context, parent: Ino, name: &[u8], kind: FileKind, perm: u16, rdev: u32) -> Result<Entry>;
            fn mkdir(&self, cx: &Context, parent: Ino, name: &[u8], perm: u16) -> Result<Entry>;
            fn symlink(&self, cx: &Context, parent: Ino, name: &[u8], target: &[u8]) -> Result<Entry>;
            fn link(&self, cx: &Context, ino: Ino, parent: Ino, name: &[u8]) -> Result<Entry>;
            fn tmpfile(&self, cx: &Context, parent: Ino, perm: u16) -> Result<Entry>;
            fn unlink(&self, cx: &Context, parent: Ino, name: &[u8]) -> Result<()>;
            fn rmdir(&self, cx: &Context, parent: Ino, name: &[u8]) -> Result<()>;
            fn rename(&self, cx: &Context, parent: Ino, name: &[u8], new_parent: Ino, new_name: &[u8], mode: RenameMode) -> Result<()>;
            fn read(&self, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize>;
            fn write(&self, cx: &Context, ino: Ino, offset: u64, data: &[u8], flags: WriteFlags) -> Result<usize>;
            fn fallocate(&self, cx: &Context, ino: Ino, mode: FallocateMode, offset: u64, len: u64) -> Result<()>;
            fn copy_range(&self, cx: &Context, from: Ino, from_offset: u64, to: Ino, to_offset: u64, len: u64) -> Result<u64>;
            fn clone_range(&self, cx: &Context, from: Ino, from_offset: u64, to: Ino, to_offset: u64, len: u64) -> Result<()>;
            fn seek(&self, ino: Ino, offset: u64, whence: SeekWhence) -> Result<u64>;
            fn fsync(&self, ino: Ino, datasync: bool) -> Result<()>;
            fn opened(&self) -> u64;
            fn fsync_opened(&self, ino: Ino, opened: u64, datasync: bool) -> Result<()>;
            fn sync(&self) -> Result<()>;
            fn sync_by(&self, thread: u32) -> Result<()>;
            fn readdir(&self, dir: Ino, offset: u64, emit: &mut dyn FnMut(&DirEntry<'_>) -> bool) -> Result<()>;
            fn readdir_plus(&self, dir: Ino, offset: u64, emit: &mut dyn FnMut(&DirEntry<'_>, Option<&Entry>) -> bool) -> Result<()>;
            fn dir_end(&self, dir: Ino) -> Result<u64>;
            fn listing_ended(&self, dir: Ino, end: u64) -> Result<()>;
            fn take_unverified(&self, ino: Ino) -> Vec<(u64, u64)>;
            fn listxattr(&self, ino: Ino) -> Result<Vec<Vec<u8>>>;
            fn setxattr(&self, cx: &Context, ino: Ino, name: &[u8], value: &[u8], mode: XattrMode) -> Result<()>;
            fn removexattr(&self, cx: &Context, ino: Ino, name: &[u8]) -> Result<()>;
            fn flags(&self, ino: Ino) -> Result<u32>;
            fn set_flags(&self, cx: &Context, ino: Ino, flags: u32) -> Result<()>;
            fn set_common_flags(&self, cx: &Context, ino: Ino, flags: u32) -> Result<()>;
            fn trim(&self, cx: &Context, start: u64, len: u64, least: u64) -> Result<u64>;
            fn observe(&self, observer: Arc<dyn Observer>);
            fn statfs(&self) -> Result<StatFs>;
            fn label(&self) -> Result<Vec<u8>>;
            fn set_label(&self, cx: &Context, label: &[u8]) -> Result<()>;
            fn shut_down(&self, first: Durable) -> Result<()>;
            fn stats(&self) -> Vec<Stat>;
        }
    }
}
