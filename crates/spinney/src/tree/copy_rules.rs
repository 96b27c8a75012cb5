//! By which rules things are copied, between volumes and this machine alike.

use super::fill::Reflink;

/// How things are copied; by default as cp(1) does without options.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CopyRules {
    /// Directories and what is below; symbolic links, devices, fifos and sockets as such.
    pub recursive: bool,
    /// Keep owners, permissions, times, extended attributes and hard links.
    pub preserve: bool,
    /// Leave files that are there alone.
    pub no_clobber: bool,
    /// Leave out what is mounted below a directory of this machine.
    pub one_file_system: bool,
    /// Whether copies inside a volume share the data.
    pub reflink: Reflink,
}

impl CopyRules {
    /// The same tree again.
    pub const SAME: CopyRules = CopyRules {
        recursive: true,
        preserve: true,
        no_clobber: false,
        one_file_system: false,
        reflink: Reflink::Auto,
    };
}
