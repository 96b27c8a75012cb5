//! Numbers that lead to no file: a FUSE kernel asks for whatever a file handle says, and who may open by
//! handles makes one himself. The inodes that the format keeps in other trees are none of the mount's.

use crate::common;
use common::{CX, Image, close_and_judge, errno};
use vfs::{FileSystem, Ino, SetAttr, XattrMode};

#[test]
fn inodes_of_no_subvolume_cannot_be_had() {
    testkit::require!(kernel_btrfs);
    let image = Image::new(256 << 20, &[]);
    let fs = image.open();
    // The tree of roots has the directory in which the default subvolume is named, with the number 6.
    let trees = [1, 2, 4, 7, 9].map(|tree: u64| [tree << 40 | 6, tree << 40 | 256]);
    let here = [0, 6, 255, (1 << 40) - 1];
    for ino in trees.into_iter().flatten().chain(here).map(Ino) {
        let set = SetAttr { perm: Some(0o777), ..SetAttr::default() };
        let ends = [
            errno(fs.lookup(&CX, ino, b".")),
            errno(fs.setattr(&CX, ino, &set)),
            errno(fs.setxattr(&CX, ino, b"user.x", b"1", XattrMode::Set)),
        ];
        let expected = if ino.0 == (1 << 40) - 1 { libc::ENOENT } else { libc::ESTALE };
        assert_eq!(ends, [expected; 3], "{:#x}", ino.0);
    }
    close_and_judge(&image, fs);
}
