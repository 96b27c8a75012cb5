//! What a check needs of memory does not go with how many subvolumes share what there is. Alone in its
//! process, whose highest use it looks at.

mod common;

use common::{Scratch, listing, mkfs_btrfs, mounted, ours, ready};
use std::fs;

/// Pieces of the file, and snapshots of it.
const PIECES: u64 = 60_000;
const SNAPSHOTS: u64 = 100;

fn highest() -> u64 {
    let text = fs::read_to_string("/proc/self/status").expect("status");
    let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a line");
    line.split_whitespace().next().and_then(|kib| kib.parse::<u64>().ok()).expect("a number") << 10
}

/// With quotas each subvolume's way through the trees was kept, and sorted at the end.
#[test]
fn many_snapshots_of_the_same_need_no_more() {
    if !ready() {
        return;
    }
    let scratch = Scratch::new("shared");
    let image = scratch.path("image");
    mkfs_btrfs(&image, "1G", "mkfs.btrfs");
    let script = format!(
        "btrfs quota enable . && btrfs -q subvolume create s && truncate -s {0}K s/f &&
         python3 -c 'import os
f = os.open(\"s/f\", os.O_WRONLY)
for n in range({PIECES}): os.pwrite(f, b\"x\" * 4096, n * 8192)
os.fsync(f)' && btrfs quota rescan -w . >/dev/null && sync -f .",
        PIECES * 8
    );
    mounted(&image, "noatime,nodatasum", &script);
    assert!(ours(&image, false).findings.is_empty());
    let before = highest();
    let script = format!(
        "for n in $(seq {SNAPSHOTS}); do btrfs -q subvolume snapshot s s$n || exit 1; done
         btrfs quota rescan -w . >/dev/null && sync -f ."
    );
    mounted(&image, "noatime,nodatasum", &script);
    let report = ours(&image, false);
    assert!(report.findings.is_empty(), "{}", listing(&report));
    assert_eq!(report.totals.subvolumes, SNAPSHOTS + 2);
    let more = highest() - before;
    // Two words for each of what each reaches, at the very least.
    assert!(more < SNAPSHOTS * PIECES * 16, "{more} bytes more");
}
