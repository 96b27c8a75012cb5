//! What a mount may be told.

pub(crate) mod compression;

pub(crate) use compression::is_never_compressed;
pub use compression::{Compress, Method};

use btrfs_disk::TreeId;
use btrfs_disk::items::Timespec;
use btrfs_txn::{Clock, Contention, Injection, MemoryLimits};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How a volume is mounted.
#[derive(Clone, Debug)]
pub struct Options {
    /// Nothing is written, and nothing can be changed.
    pub read_only: bool,
    /// Do not replay a log of fsyncs: show the last commit. Read-only mounts alone.
    pub ignore_log: bool,
    /// What is made do with of a damaged volume. Read-only mounts alone.
    pub rescue: Rescue,
    /// Opening it makes another free-space tree, in the first commit, with nothing read of the one that is
    /// there. Volumes that have one alone.
    pub renew_free_space: bool,
    /// Quotas end with the first commit, and nothing of their tree is read, so it may be damaged: for who
    /// rescues a volume. Not read-only.
    pub give_up_quotas: bool,
    /// Mount this subvolume as the root.
    pub subvol: Subvol,
    /// Longest time between commits.
    pub commit_interval: Duration,
    /// Bytes of memory for all that the next four are parts of, and for what a
    /// commit builds: who needs more takes it from those that need less.
    pub memory_bytes: u64,
    /// Bytes of memory for cached nodes, at most.
    pub cache_bytes: u64,
    /// Bytes of memory that uncommitted changes may take before a commit starts, at most.
    pub delta_bytes: u64,
    /// Bytes of unwritten file content before it is written back, at most.
    pub dirty_bytes: u64,
    /// Bytes of memory for inodes, and a quarter of all at most; those that are in use at the
    /// moment, or have something unwritten, come on top. The others are loaded again when they
    /// are asked for, whether callers have them open or not.
    pub inode_bytes: u64,
    /// The root is the top of the volume, where a path leads from there to `subvol`: whoever asks
    /// `BtrfsFs::begin` finds it below. Else `subvol` is the root.
    pub from_top: bool,
    /// What a read does to the access time.
    pub atime: Atime,
    /// Directories' access times stay.
    pub nodiratime: bool,
    /// Who may write in a subvolume and in the directory that names it may delete it; else root
    /// alone may.
    pub user_subvol_rm_allowed: bool,
    /// A balance that was interrupted stays paused; else a mount with background threads goes on
    /// with it.
    pub skip_balance: bool,
    /// Tell the device about freed space after each commit.
    pub discard: bool,
    /// Content is compressed, where a file does not say otherwise.
    pub compress: Option<Compress>,
    /// An fsync writes the tree log; else it commits.
    pub tree_log: bool,
    /// Start background threads (commit every `commit_interval`).
    pub background: bool,
    /// What inodes and roots are stamped with; a test's own makes a world that repeats.
    pub clock: Arc<dyn Clock>,
    /// What UUIDs of new subvolumes are made of, beside their numbers and the time; `None`: the machine's
    /// randomness. A test's own, with its clock, makes a world that repeats.
    pub seed: Option<u64>,
    /// Whether others want the processors: then a commit that nobody waits for rests.
    pub contention: Arc<dyn Contention>,
    /// What tests want to go wrong; no release has it.
    #[cfg(feature = "fault-injection")]
    pub injection: Injection,
}

/// What a read-only mount of a damaged volume makes do with, as the kernel's `rescue=` has it. The
/// default is nothing of it.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Rescue {
    /// Where the last commit's trees cannot be read, those of the newest of the superblock's backups that
    /// can (`usebackuproot`).
    pub backup_root: bool,
    /// Trees that the lost parts of the root tree name are not there; all others are (`ignorebadroots`).
    pub bad_roots: bool,
    /// Content is given out whatever its checksum says, and without one (`ignoredatacsums`).
    pub data_sums: bool,
}

/// What a read does to the access time, as the kernel names it: `noatime`, `relatime` (if it is
/// not newer than the last change, or is a day old) and `strictatime`.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Atime {
    /// `noatime`.
    #[default]
    Never,
    /// `relatime`.
    Relative,
    /// `strictatime`.
    Always,
}

/// What the machine's scheduler shows: who gives his processor away and has it back at once was
/// alone there.
#[derive(Clone, Copy, Default, Debug)]
pub struct SystemContention;

/// Back and forth takes less than a microsecond where nobody waits, and some where the only
/// one who does is of lowest priority.
const SHARED: Duration = Duration::from_micros(20);

impl Contention for SystemContention {
    fn give_way(&self) -> bool {
        let begin = Instant::now();
        std::thread::yield_now();
        begin.elapsed() > SHARED
    }
}

/// The machine's own time.
#[derive(Clone, Copy, Default, Debug)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Timespec {
        let now = vfs::Timestamp::now();
        Timespec { sec: now.secs, nsec: now.nanos }
    }
}

impl Options {
    /// The bounds of the volume's memory.
    pub(crate) fn memory(&self) -> MemoryLimits {
        MemoryLimits {
            all: self.memory_bytes,
            cache: self.cache_bytes,
            delta: self.delta_bytes,
            content: self.dirty_bytes,
            inodes: self.inode_bytes,
        }
    }

    pub(crate) fn injection(&self) -> Injection {
        #[cfg(feature = "fault-injection")]
        return self.injection.clone();
        #[cfg(not(feature = "fault-injection"))]
        Injection::default()
    }
}

/// Which subvolume is the root of a mount.
#[derive(Clone, PartialEq, Eq, Debug)]
// Exhaustive: a face that passed one over would show another subvolume than was asked for.
pub enum Subvol {
    /// What the volume's default says.
    Default,
    /// By its number.
    Id(TreeId),
    /// Path from the top level, `/` between names.
    Path(Vec<u8>),
    /// By its path, where that leads to the subvolume with this number.
    Both(TreeId, Vec<u8>),
}

impl Default for Options {
    fn default() -> Options {
        Options {
            read_only: false,
            ignore_log: false,
            rescue: Rescue::default(),
            renew_free_space: false,
            give_up_quotas: false,
            subvol: Subvol::Default,
            commit_interval: Duration::from_secs(30),
            memory_bytes: 512 << 20,
            cache_bytes: 512 << 20,
            delta_bytes: 256 << 20,
            dirty_bytes: 256 << 20,
            inode_bytes: 128 << 20,
            from_top: false,
            atime: Atime::Never,
            nodiratime: false,
            user_subvol_rm_allowed: false,
            skip_balance: false,
            discard: false,
            compress: None,
            tree_log: true,
            background: true,
            clock: Arc::new(SystemClock),
            seed: None,
            contention: Arc::new(SystemContention),
            #[cfg(feature = "fault-injection")]
            injection: Injection::default(),
        }
    }
}
