//! Snapshots that share with each other, of which some are dropped; and what is said of the volume then.

use super::derive::{assert_space_true, assert_true};
use super::edit::Commit;
use super::{Image, Opened};
use btrfs_check::Severity;
use btrfs_disk::TreeId;
use btrfs_space::{DropState, Space};

pub fn judge(image: &Image) {
    let opened = image.open();
    assert_true(&opened);
    assert_space_true(&opened);
    drop(opened);
    image.check();
}

/// Snapshots of snapshots, changed on all sides, with nodes of every way of sharing.
pub fn family() -> Image {
    let image = Image::new("512M", &["-n", "4096"]);
    image.script(
        "",
        "btrfs -q subvolume create a; cd a; mkdir d
         for i in $(seq 1 250); do head -c $((i * 97)) /dev/urandom > f$i; done
         for i in $(seq 1 15); do touch $(seq -f d/empty$i-%g 1 100); done; sync -f .",
    );
    image.script(
        "",
        "btrfs -q subvolume snapshot a b; sync -f .; touch a/f1*; sync -f .
         btrfs -q subvolume snapshot b c; touch b/d/empty3*; rm -f b/f2*; sync -f .
         btrfs -q subvolume snapshot a e; touch e/d/empty*; echo x >> e/f7; sync -f .
         btrfs -q subvolume snapshot c g; rm -f c/d/empty2*; sync -f .
         touch b/d/empty7* g/f*; btrfs -q subvolume snapshot b h; sync -f .; rm -f h/f5*; sync -f .",
    );
    image
}

pub fn subvolumes(opened: &Opened) -> Vec<TreeId> {
    let ids = opened.trees().into_iter().map(|(_, _, root)| root.id);
    ids.filter(|id| id.is_subvolume() && *id != TreeId::FS).collect()
}

/// Orphans a tree and drops it, `budget` nodes a commit; at most `steps` commits.
pub fn drop_one(opened: &Opened, space: &Space, id: TreeId, budget: usize, steps: usize) -> bool {
    let mut commit = Commit::new(opened, space);
    commit.orphan(id);
    commit.finish();
    go_on(opened, space, id, budget, steps)
}

pub fn go_on(opened: &Opened, space: &Space, id: TreeId, budget: usize, steps: usize) -> bool {
    let mut state = DropState::default();
    for step in 0..steps {
        let mut commit = Commit::new(opened, space);
        let done = commit.drop_tree(id, &mut state, budget);
        commit.finish();
        if done {
            return true;
        }
        // A new state is as good as the old one.
        if step % 3 == 2 {
            state = DropState::default();
        }
    }
    false
}

/// The codes of what our check finds, but for notes: nobody brings the UUID tree up to date here.
pub fn findings(image: &Image) -> Vec<&'static str> {
    let options = btrfs_volume::OpenOptions { read_only: true, ..Default::default() };
    let device = blockdev::FileDevice::open(&image.path, true, true).expect("image");
    let volume = btrfs_volume::Volume::open(std::sync::Arc::new(device), options).expect("volume");
    let report = btrfs_check::check(std::sync::Arc::new(volume), &Default::default());
    let findings = report.expect("check").findings.into_iter();
    let mut codes: Vec<_> = findings
        .filter(|finding| finding.severity > Severity::Note)
        .map(|finding| finding.kind.code())
        .collect();
    codes.dedup();
    codes
}
