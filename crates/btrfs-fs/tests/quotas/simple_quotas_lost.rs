//! Simple quotas where a tree goes as a whole of which a leaf is lost: nothing of it is read, so the numbers stay
//! right and the volume can be written. Each leaf is lost by its checksum, and because the device does not answer.

use crate::{common, lost};
use blockdev::BlockDevice;
use blocksim::Hooked;
use btrfs_disk::{Logical, TreeId};
use btrfs_fs::{BtrfsFs, Caller, Options};
use common::unreadable::Unreadable;
use common::{find, new_file, read};
use fuzzing::hostile::base::{Base, options};
use fuzzing::hostile::disk::Layered;
use lost::{leaves_of, volume};
use std::sync::Arc;
use vfs::FileSystem;

type Device = Hooked<Layered, Unreadable>;

const SUBVOLUMES: usize = 200;

/// Simple quotas have been there before the leaves of all trees were written.
fn counted() -> Base {
    volume(|fs| {
        fs.enable_simple_quotas().expect("on");
        fs.sync().expect("commit");
        for n in 0..SUBVOLUMES {
            let name = format!("sub-{n}");
            fs.create_subvolume(&Caller::root(), fs.root(), name.as_bytes()).expect("create");
        }
        new_file(fs, "counted", &[1; 9000]);
    })
}

/// The volume with a leaf of the tree that is lost, in both ways.
fn with_lost_leaf(base: &Base, tree: TreeId) -> [Arc<Device>; 2] {
    let found = leaves_of(base, |of| of == tree, |_| true);
    let lost = found[found.len() / 2].1;
    let copies = base.copies(Logical(lost)).into_iter().map(|at| at..at + 4096).collect();
    let [flipped, unread] = [Vec::new(), copies].map(|ranges| {
        Arc::new(Hooked { below: Layered::new(&base.device), hook: Unreadable::new(ranges) })
    });
    for at in base.copies(Logical(lost)) {
        let mut byte = [0];
        flipped.read_at(at + 200, &mut byte).expect("in range");
        flipped.write_at(at + 200, &[!byte[0]]).expect("in range");
    }
    [unread, flipped]
}

/// Groups count what they should, the volume is written on, and all of it is sound.
fn goes_on(device: &Arc<Device>, fs: BtrfsFs) {
    assert_eq!(fs.read_only_reason(), None);
    let status = fs.quota_status().expect("status").expect("quotas");
    assert!(status.simple && !status.inconsistent, "{status:?}");
    // What is written there may be read again.
    device.hook.mend();
    new_file(&fs, "more", &[2; 9000]);
    fs.destroy().expect("close");
    drop(fs);
    common::check_device(device.clone(), true, btrfs_check::Severity::Warning);
    let fs = BtrfsFs::open_device(device.clone(), options()).expect("open");
    assert!(
        read(&fs, fs.root(), "counted") == [1; 9000] && find(&fs, fs.root(), "sub-9").is_some()
    );
    fs.destroy().expect("close");
}

#[test]
fn a_uuid_tree_with_a_lost_leaf_goes_and_is_charged_to_nobody() {
    let base = counted();
    for device in with_lost_leaf(&base, TreeId::UUID) {
        let fs = BtrfsFs::open_device(device.clone(), options()).expect("open");
        assert!(fs.clear_uuid_tree().expect("it is cleared"));
        fs.destroy().expect("close");
        drop(fs);
        let makes = Options { background: true, ..options() };
        let fs = BtrfsFs::open_device(device.clone(), makes).expect("open");
        goes_on(&device, fs);
    }
}

#[test]
fn a_free_space_tree_with_a_lost_leaf_goes_and_is_charged_to_nobody() {
    let base = counted();
    for device in with_lost_leaf(&base, TreeId::FREE_SPACE) {
        let renews = Options { renew_free_space: true, ..options() };
        let fs = BtrfsFs::open_device(device.clone(), renews).expect("another is made");
        goes_on(&device, fs);
    }
}
