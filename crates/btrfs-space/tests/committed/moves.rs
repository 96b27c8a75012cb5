//! What a move of content may not do: change more than room was reserved for, and what a rescan of quotas goes by.

use crate::common;
use btrfs_disk::TreeId;
use btrfs_space::{Extent, MoveContent, MoveNodes, MovedNodes, count_moves};
use common::edit::Commit;
use common::{Image, Opened, with_kernel};

/// What becomes of it in a commit that is given up.
fn moved(opened: &Opened, what: &MoveNodes) -> MovedNodes {
    moved_beside(opened, what, |_| ())
}

/// The same, beside something else in that commit.
fn moved_beside(
    opened: &Opened,
    what: &MoveNodes,
    other: impl FnOnce(&mut Commit<'_>),
) -> MovedNodes {
    let space = opened.space();
    let mut commit = Commit::new(opened, &space);
    other(&mut commit);
    commit.settle.move_nodes(what.clone());
    commit.settle.drain_data().expect("drains");
    commit.settle.moved_nodes().next().expect("one move").clone()
}

#[test]
fn content_that_got_more_references_than_were_counted_stays() {
    with_kernel(|| {
        let image = Image::new("512M", &["-n", "4096"]);
        image.script(
            "",
            "head -c 100000 /dev/urandom > f; sync -f .
             for i in $(seq 1 20); do cp --reflink=always f f$i; done; sync -f .",
        );
        let opened = image.open();
        let space = opened.space();
        let (file, extent) = {
            let mut commit = Commit::new(&opened, &space);
            let (file, _) = commit.files(TreeId::FS)[0];
            (file, commit.extents(TreeId::FS, file).0[0].1)
        };
        let from = Extent { logical: extent.disk_bytenr, len: extent.disk_num_bytes };
        let mut room = space.reserve_data(from.len).expect("room");
        let to = room.alloc(&space, from.len, from.len, None).expect("a place").logical;
        let content = vec![MoveContent { from, to }];
        let mut what = MoveNodes { content, limit: 1000, ..MoveNodes::default() };
        let counted = count_moves(&opened.store, &opened.states(), &what).expect("counts");
        assert_eq!(counted.references, 21, "file {file}");
        what.references = counted.references - 1;
        let refused = moved(&opened, &what);
        assert!(refused.refused.is_some() && refused.content.is_empty(), "{refused:?}");
        what.references = counted.references;
        let done = moved(&opened, &what);
        assert!(done.refused.is_none() && done.content.len() == 1, "{done:?}");
    });
}

/// Who asked for the move may not know of it yet.
#[test]
fn nothing_moves_while_quotas_are_counted() {
    with_kernel(|| {
        let image = Image::new("512M", &["-n", "4096"]);
        // More than one commit counts.
        image.script(
            "",
            "head -c 100000 /dev/urandom > f; mkdir d
             for i in $(seq 1 3000); do head -c 5000 /dev/zero > d/$i; done
             btrfs quota enable .; btrfs quota rescan -w . > /dev/null",
        );
        let opened = image.open();
        let range = {
            let space = opened.space();
            let mut commit = Commit::new(&opened, &space);
            let at = commit.root(TreeId::FS).logical.0;
            at..at + 1
        };
        let what = MoveNodes { range, limit: 1000, ..MoveNodes::default() };
        let done = moved(&opened, &what);
        assert!(done.refused.is_none() && done.moved == 1, "{done:?}");
        let refused = moved_beside(&opened, &what, |commit| commit.begin_rescan());
        assert!(refused.counting && refused.refused.is_some(), "{refused:?}");
        assert_eq!(refused.moved, 0);
    });
}
