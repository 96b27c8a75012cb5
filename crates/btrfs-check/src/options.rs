//! What the caller chooses, and what it is told on the way.

use btrfs_disk::TreeId;

/// A stage of the check, in the order in which they run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Phase {
    /// The copies of the superblock.
    Superblocks,
    /// Chunks, devices and device extents.
    ChunkTree,
    /// The extent tree and block groups; then the other trees that are no subvolumes.
    ExtentTree,
    /// The subvolumes: inodes, names and what files refer to.
    Trees,
    /// The log of fsyncs, if there is one.
    Log,
    /// References that were found against those that the extent tree has; quotas.
    References,
    /// The free-space tree against the extents.
    FreeSpace,
    /// The checksum tree against the extents of content.
    Checksums,
    /// Subvolumes and their names against each other.
    Roots,
    /// Content against its checksums and trees of hashes, where that was asked for.
    Data,
}

impl Phase {
    /// What it is called when progress is shown.
    pub fn name(self) -> &'static str {
        match self {
            Phase::Superblocks => "superblocks",
            Phase::ChunkTree => "chunks and devices",
            Phase::ExtentTree => "extent tree",
            Phase::Trees => "file trees",
            Phase::References => "references",
            Phase::FreeSpace => "free space",
            Phase::Checksums => "checksums",
            Phase::Roots => "subvolumes",
            Phase::Log => "log",
            Phase::Data => "data",
        }
    }
}

/// How far a phase has come; `total` where it is known (bytes in the data phase, tree
/// blocks elsewhere).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Progress {
    /// The stage that runs.
    pub phase: Phase,
    /// Bytes or tree blocks that it has come by.
    pub done: u64,
    /// How many there are.
    pub total: Option<u64>,
}

/// What a check looks at, and whom it tells how far it is.
pub struct CheckOptions<'a> {
    /// Read every checksummed block of data from every copy and verify it; hold content of files with
    /// fs-verity against their trees.
    pub verify_data: bool,
    /// Findings beyond this many are counted, not kept.
    pub max_findings: usize,
    /// Tell in the report what each quota group holds, also where the numbers on the volume need not be right.
    pub quota_report: bool,
    /// Tell in the report which extents this subvolume reaches, and who else.
    pub sharing_of: Option<TreeId>,
    /// Called now and then from the checking thread.
    pub progress: Option<&'a dyn Fn(Progress)>,
}

impl Default for CheckOptions<'_> {
    fn default() -> Self {
        CheckOptions {
            verify_data: false,
            max_findings: 10_000,
            quota_report: false,
            sharing_of: None,
            progress: None,
        }
    }
}
