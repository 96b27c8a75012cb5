//! What the caller may choose about a mount.

use crate::callers::{Callers, Proc};
use crate::owners::Owners;
use crate::tidying::Tidying;
use std::fmt;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use vfs::{Control, Errno, FsError, Result};

/// How requests reach the server.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum Transport {
    /// io_uring where the kernel offers it, else the device.
    #[default]
    Auto,
    /// io_uring; mounting fails without it.
    Uring,
    /// `/dev/fuse`.
    Classic,
}

/// What the mount stands on. With a block device (root only) the mount is of type
/// `fuseblk`: the kernel then passes syncfs(2) on and unmounting waits for the commit.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum Source {
    /// A name alone: `Config::fsname`.
    #[default]
    Nothing,
    /// This block device.
    BlockDevice(PathBuf),
    /// As root a loop device is attached for the time of the mount. As `Nothing` for others, and where root
    /// may not have one, as in most containers.
    Image(PathBuf),
    /// The same of so many bytes of it, from an offset on.
    Part(PathBuf, Range<u64>),
}

/// Who serves control operations.
#[derive(Clone)]
pub struct Controls(pub Arc<dyn Control>);

impl fmt::Debug for Controls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Controls")
    }
}

/// How a file system is mounted and served; the default serves any.
#[derive(Clone, Debug)]
pub struct Config {
    /// How requests come.
    pub transport: Transport,
    /// Server threads per processor; requests that block (fsync) hold one each. 0 leaves
    /// the choice to us.
    pub threads_per_cpu: usize,
    /// Under io_uring, serve streaks of large reads away from their caller's processor, so
    /// that reading ahead and using what was read overlap.
    pub spread_large_reads: bool,
    /// How long processors are kept awake after a request, in microseconds, once requests
    /// come in quick succession (`polling`). 0: never; `None`: as long as usual where that pays.
    pub poll: Option<u32>,
    /// Let the kernel collect small writes. Faster for these, slower for much else.
    pub writeback: bool,
    /// Whose the files appear to be.
    pub owners: Owners,
    /// Who looks at those who make requests.
    pub callers: Arc<dyn Callers>,
    /// Serves the control operations that the session does not know.
    pub control: Option<Controls>,
    /// Each thread that the session makes calls this before it serves. A thread that is made
    /// by another has from it what the system lets it inherit.
    pub on_thread: Option<fn()>,
    /// When and how threads that serve let go memory that they keep for themselves.
    pub tidying: Tidying,
    /// Each opening of a file hears by its own fsync of content that was refused
    /// ([`FileSystem::fsync_opened`](vfs::FileSystem::fsync_opened)), as on the kernel's file
    /// systems; else the first fsync that asks. Opens are messages for it.
    pub open_errors: bool,
    /// Remember names that do not exist.
    pub cache_negative: bool,
    /// Largest data of one request, in bytes.
    pub max_write: u32,
    /// Largest data that one request asks for, in bytes; `None` leaves it to the kernel.
    pub max_read: Option<u32>,
    /// Let users other than the one who mounts in. File modes and ACLs still decide.
    pub allow_other: bool,
    /// Nothing is changed: the kernel refuses it.
    pub read_only: bool,
    /// Set-user-ID and set-group-ID bits, and capabilities of files, mean nothing.
    pub nosuid: bool,
    /// Device nodes cannot be opened.
    pub nodev: bool,
    /// No program can be started from it.
    pub noexec: bool,
    /// Symbolic links of it are not followed. An older fusermount3 refuses to.
    pub nosymfollow: bool,
    /// Reading changes no access times.
    pub noatime: bool,
    /// Each read changes them, where `noatime` does not say otherwise. As the kernel's table
    /// shows it: who serves the volume keeps access times. fusermount3 is not told.
    pub strictatime: bool,
    /// Reading directories changes none of theirs. As `strictatime`.
    pub nodiratime: bool,
    /// Each write is durable when it returns: the kernel sends an FSYNC behind it.
    pub sync: bool,
    /// Shown as the source of a mount that has no block device.
    pub fsname: String,
    /// What follows `fuse.` in the mount's type.
    pub subtype: String,
    /// What it stands on.
    pub source: Source,
    /// Further options, passed to the kernel (or `fusermount3`) as they are.
    pub options: Vec<String>,
    /// Is called at each of [`STEPS`](Config::STEPS); its error is that step's failure.
    #[cfg(feature = "fault-injection")]
    pub on_step: Option<fn(&'static str) -> std::io::Result<()>>,
    /// Is called with the number of each operation that a loop begins; what it panics with nobody
    /// catches.
    #[cfg(feature = "fault-injection")]
    pub on_request: Option<fn(u32)>,
}

impl Config {
    /// The points of a start at which something can go wrong.
    #[cfg(feature = "fault-injection")]
    pub const STEPS: &[&str] = &[
        "attach",
        "open-device",
        "mounted",
        "first-request",
        "rings",
        "loops",
        "notify",
        "answer",
        "answered",
    ];

    /// A start has come to `name`.
    #[cfg(feature = "fault-injection")]
    pub(crate) fn step(&self, name: &'static str) -> Result<()> {
        debug_assert!(Config::STEPS.contains(&name));
        let outcome = self.on_step.map_or(Ok(()), |call| call(name));
        outcome.map_err(|source| FsError::Io { context: format!("step {name}"), source })
    }

    #[cfg(not(feature = "fault-injection"))]
    pub(crate) fn step(&self, _: &'static str) -> Result<()> {
        Ok(())
    }
}

impl Default for Config {
    fn default() -> Config {
        Config {
            transport: Transport::Auto,
            threads_per_cpu: 0,
            spread_large_reads: true,
            poll: None,
            writeback: false,
            owners: Owners::default(),
            callers: Arc::new(Proc::default()),
            control: None,
            on_thread: None,
            tidying: Tidying::default(),
            open_errors: false,
            cache_negative: true,
            max_write: 1 << 20,
            max_read: None,
            allow_other: crate::sys::is_root(),
            read_only: false,
            nosuid: false,
            nodev: false,
            noexec: false,
            nosymfollow: false,
            noatime: false,
            strictatime: false,
            nodiratime: false,
            sync: false,
            fsname: "spinney".into(),
            subtype: "spinney".into(),
            source: Source::Nothing,
            options: Vec::new(),
            #[cfg(feature = "fault-injection")]
            on_step: None,
            #[cfg(feature = "fault-injection")]
            on_request: None,
        }
    }
}

/// Threads per processor: where processors are few, blocked requests crowd on each. An fsync
/// holds its thread for as long as the device flushes, and only those that have one share a
/// log write: with 8 for each of two processors, 64 callers on a disk waited for each other.
const THREADS: std::ops::RangeInclusive<usize> = 4..=32;
const THREADS_IN_ALL: usize = 64;

/// Options that ask for what is the case anyhow, or are for others.
const HOLDS: &[&str] = &[
    "rw",
    "defaults",
    "atime",
    "default_permissions",
    "auto",
    "noauto",
    "user",
    "nofail",
    "_netdev",
];

impl Config {
    /// `poll`, decided: for how long, and on which processors.
    pub(crate) fn polling(&self) -> (Duration, Vec<usize>) {
        match self.poll {
            Some(micros) => (Duration::from_micros(micros.into()), crate::sys::usable_cpus()),
            None => match crate::polling::polling_pays() {
                none if none.is_empty() => (Duration::ZERO, none),
                processors => (crate::polling::USUAL, processors),
            },
        }
    }

    /// `threads_per_cpu`, decided.
    pub(crate) fn threads_for(&self, cpus: usize) -> usize {
        match self.threads_per_cpu {
            0 => (THREADS_IN_ALL / cpus.max(1)).clamp(*THREADS.start(), *THREADS.end()),
            given => given,
        }
    }

    /// Takes a list as after `mount -o`: known names set members, others are passed on.
    pub fn apply_options(&mut self, list: &str) -> Result<()> {
        list.split(',').filter(|option| !option.is_empty()).try_for_each(|o| self.apply(o))
    }

    fn apply(&mut self, option: &str) -> Result<()> {
        let (name, value) = option.split_once('=').unwrap_or((option, ""));
        match name {
            _ if HOLDS.contains(&name) => {}
            "ro" => self.read_only = true,
            "suid" => self.nosuid = false,
            "nosuid" => self.nosuid = true,
            "dev" => self.nodev = false,
            "nodev" => self.nodev = true,
            "exec" => self.noexec = false,
            "noexec" => self.noexec = true,
            "symfollow" => self.nosymfollow = false,
            "nosymfollow" => self.nosymfollow = true,
            "noatime" => self.noatime = true,
            "sync" => self.sync = true,
            "async" => self.sync = false,
            "allow_other" => self.allow_other = true,
            "no_spread_large_reads" => self.spread_large_reads = false,
            "poll" if value == "auto" => self.poll = None,
            "poll" => self.poll = Some(number(value)?),
            "writeback" => self.writeback = true,
            "open-errors" | "open_errors" => self.open_errors = true,
            "fsname" => self.fsname = value.into(),
            "subtype" => self.subtype = value.into(),
            "max_read" => self.max_read = Some(number(value)?),
            "max_write" => self.max_write = number(value)?,
            "threads" => self.threads_per_cpu = number(value)? as usize,
            "transport" => self.transport = transport(value)?,
            "blkdev" => self.source = Source::BlockDevice(value.into()),
            _ => self.options.push(option.to_string()),
        }
        Ok(())
    }
}

fn number(text: &str) -> Result<u32> {
    text.parse().map_err(|_| FsError::Posix(Errno::EINVAL))
}

fn transport(text: &str) -> Result<Transport> {
    Ok(match text {
        "auto" => Transport::Auto,
        "uring" | "io_uring" => Transport::Uring,
        "classic" => Transport::Classic,
        _ => return Err(Errno::EINVAL.into()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_set_members_and_pass_the_rest_on() {
        let mut config = Config::default();
        config.apply_options("ro,nosuid,transport=classic,max_read=65536,foo=bar,,x").unwrap();
        assert!(config.read_only && config.nosuid && !config.nodev);
        assert_eq!(config.transport, Transport::Classic);
        assert_eq!(config.max_read, Some(65536));
        assert_eq!(config.options, ["foo=bar", "x"]);
        assert!(!config.open_errors);
        config.apply_options("open-errors").unwrap();
        assert!(config.open_errors);
        config.apply_options("poll=50").unwrap();
        assert_eq!(config.polling().0, Duration::from_micros(50));
        config.apply_options("poll=auto,poll=0").unwrap();
        assert_eq!(config.poll, Some(0));
        assert!(config.apply_options("poll=fast").is_err());
        assert!(config.apply_options("max_read=many").is_err());
        assert!(config.apply_options("transport=pigeon").is_err());
    }
}
