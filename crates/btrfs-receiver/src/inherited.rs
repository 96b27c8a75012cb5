//! What the target gives a new inode of its directory, unasked: streams say all that an inode
//! has, so it is taken away again.

use crate::path::RelPath;
use crate::target::Target;
use vfs::Result;

const ACLS: &[u8] = b"system.posix_acl_";
const DEFAULT_ACL: &[u8] = b"system.posix_acl_default";
const PROPERTIES: &[u8] = b"btrfs.";

/// The directory that was looked at last, and whether it hands something down.
#[derive(Default)]
pub(crate) struct Inherited(Option<(Vec<u8>, bool)>);

impl Inherited {
    /// Another subvolume begins.
    pub(crate) fn forget(&mut self) {
        self.0 = None;
    }

    /// What had this path has it no more, or something else has it now.
    pub(crate) fn moved(&mut self, path: RelPath<'_>) {
        self.0 = self.0.take().filter(|(dir, _)| !path.leads_to(dir));
    }

    /// An attribute changed.
    pub(crate) fn changed(&mut self, name: &[u8]) {
        if hands_down(name) {
            self.forget();
        }
    }

    /// Behind the making of `path`.
    pub(crate) fn take_back(&mut self, path: RelPath<'_>, target: &mut dyn Target) -> Result<()> {
        let Some((dir, _)) = path.split() else { return Ok(()) };
        let known = self.0.as_ref().filter(|(known, _)| known == dir.as_bytes());
        let some = match known {
            Some((_, some)) => *some,
            None => {
                let some = target.xattrs(dir)?.iter().any(|name| hands_down(name));
                self.0 = Some((dir.as_bytes().to_vec(), some));
                some
            }
        };
        match some {
            true => strip(path, target),
            false => Ok(()),
        }
    }
}

/// Of something new: also of a subvolume's root directory, which inherits from the directory that the
/// subvolume was begun in.
pub(crate) fn strip(path: RelPath<'_>, target: &mut dyn Target) -> Result<()> {
    for name in target.xattrs(path)? {
        if name.starts_with(ACLS) || name.starts_with(PROPERTIES) {
            target.remove_xattr(path, &name)?;
        }
    }
    Ok(())
}

fn hands_down(name: &[u8]) -> bool {
    name == DEFAULT_ACL || name.starts_with(PROPERTIES)
}
