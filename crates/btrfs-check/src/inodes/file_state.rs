//! What was seen of a file's extents so far, and what they are held against.

/// What a file's extents must obey on this volume, in this tree.
pub(super) struct Rules {
    /// Gaps need no explicit holes.
    pub no_holes: bool,
    /// The relocation tree's inodes stand for moved extents, not for files.
    pub relocation: bool,
    pub sector: u64,
}

/// What was seen of the extents so far.
#[derive(Default)]
pub(super) struct FileState {
    pub any: bool,
    /// Where the last extent ends.
    pub end: u64,
    pub first_gap: Option<(u64, u64)>,
    pub bytes: u64,
    /// Length of inline content, and whether its last byte is a NUL.
    pub inline: Option<(u64, bool)>,
    /// Start of the last extent with written content.
    pub last_written: Option<u64>,
    /// What the first extent says wrongly, and its length.
    pub ram_bytes: Option<(u64, u64)>,
    /// What is odd about the first odd one, and nobody is harmed by.
    pub bad: Option<String>,
    /// What lies behind the end of the device, from and to.
    pub cut: Vec<(u64, u64)>,
    pub csums_found: bool,
    pub csums_missing: u64,
}

impl FileState {
    /// Whether the content is the target of a symbolic link of that size. `btrfs-convert` stores
    /// the NUL behind it, too.
    pub(super) fn is_target_of(&self, size: u64) -> bool {
        match self.inline {
            Some((len, ends)) => len == size || ends && len == size.saturating_add(1),
            None => false,
        }
    }

    pub(super) fn add_cut(&mut self, (from, to): (u64, u64)) {
        match self.cut.last_mut() {
            Some(last) if last.1 == from => last.1 = to,
            _ => self.cut.push((from, to)),
        }
    }
}
