//! What the caller chooses, and what it is told on the way.

/// A stage of the check, in the order in which they run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Phase {
    Superblocks,
    ChunkTree,
    ExtentTree,
    Trees,
    References,
    FreeSpace,
    Checksums,
    Roots,
    Log,
    Data,
}

impl Phase {
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
    pub phase: Phase,
    pub done: u64,
    pub total: Option<u64>,
}

pub struct CheckOptions<'a> {
    /// Read every checksummed block of data from every copy and verify it.
    pub verify_data: bool,
    /// Findings beyond this many are counted, not kept.
    pub max_findings: usize,
    /// Called now and then from the checking thread.
    pub progress: Option<&'a dyn Fn(Progress)>,
}

impl Default for CheckOptions<'_> {
    fn default() -> Self {
        CheckOptions { verify_data: false, max_findings: 10_000, progress: None }
    }
}
