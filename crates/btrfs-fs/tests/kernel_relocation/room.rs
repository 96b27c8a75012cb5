//! What there was no room to free goes as soon as there is some, by itself.

use crate::common::{self, Image};
use crate::images::{Quotas, interrupted, populate};
use crate::{MIB, judge, kernel};
use btrfs_disk::key::kind;
use btrfs_disk::{Key, TreeId};
use btrfs_fs::{BtrfsFs, Defect, Injection, Options, Place};
use btrfs_tree::Cursor;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tracing::{Event, Level, Metadata, Subscriber, span};
use vfs::FileSystem;

/// Longer than the cleaner rests.
const WHILE: Duration = Duration::from_secs(8);

/// Counts what the cleaner says as an error.
struct Errors(Arc<AtomicUsize>);

impl Subscriber for Errors {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() == Level::ERROR && metadata.target() == "btrfs_fs::cleaner"
    }
    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }
    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn event(&self, _: &Event<'_>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

/// Whether the last commit has a tree of a relocation.
fn is_left(fs: &BtrfsFs) -> bool {
    let committed = fs.committed().expect("it is open");
    let root = committed.tree(TreeId::ROOT).expect("there").0;
    let mut cursor = Cursor::new(committed.nodes(), &root);
    cursor.seek(&Key::new(TreeId::RELOC.0, kind::ROOT_ITEM, 0)).expect("sound");
    cursor.item().is_some_and(|(key, _)| key.objectid == TreeId::RELOC.0)
}

fn wait(most: Duration, is_so: impl Fn() -> bool) -> bool {
    let began = Instant::now();
    while !is_so() && began.elapsed() < most {
        std::thread::sleep(Duration::from_millis(10));
    }
    is_so()
}

/// The room comes while the mount is read-only for a while, and the thread that frees looks meanwhile.
#[test]
fn what_there_was_no_room_to_free_goes_behind_a_remount() {
    testkit::require!(kernel_btrfs);
    let errors = Arc::new(AtomicUsize::new(0));
    tracing::subscriber::set_global_default(Errors(errors.clone())).expect("nobody else listens");
    let image = Image::new(400 * MIB, &["-n", "4096", "-m", "single"]);
    kernel(&image.path, "noatime", |mount| populate(mount, Quotas::Off));
    let states = interrupted(&image.path, "-m", Quotas::Off);
    let state = states.first().expect("no state of a balance had trees of its own");
    let (lasts, sweeps) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicUsize::new(0)));
    let count = sweeps.clone();
    let injection = Injection::while_so(Defect::NoRoomToDrop, &lasts).looking(move |place| {
        count.fetch_add(usize::from(place == Place::Sweeps), Ordering::SeqCst);
    });
    let options = Options { injection, ..Options::default() };
    let device = Arc::new(common::open_device(state, false));
    let fs = BtrfsFs::open_device(device, options).expect("open");
    assert!(wait(Duration::from_secs(60), || sweeps.load(Ordering::SeqCst) > 0));
    assert!(is_left(&fs), "there is no room");
    fs.still().expect("still");
    let seen = sweeps.load(Ordering::SeqCst);
    lasts.store(false, Ordering::SeqCst);
    // It may have looked just before, and not look again.
    wait(WHILE, || sweeps.load(Ordering::SeqCst) > seen);
    std::thread::sleep(Duration::from_millis(200));
    assert!(is_left(&fs), "nothing is written");
    fs.writable_again().expect("writable");
    assert!(wait(Duration::from_secs(60), || !is_left(&fs)), "it stays");
    assert_eq!(errors.load(Ordering::SeqCst), 0, "nothing went wrong");
    fs.balance_groups(|_| true).expect("moves");
    let after = common::snapshot(&fs);
    fs.destroy().expect("close");
    drop(fs);
    judge(state, &after, Quotas::Off);
}
