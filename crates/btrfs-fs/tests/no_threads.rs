//! No thread can be had for a balance or a scrub: whoever asked is told, nobody is taken to be at
//! work, and the volume closes.

mod common;

use btrfs_disk::ids::block_group::DATA;
use btrfs_disk::items::BalanceItem;
use btrfs_fs::{BalanceState, Defect, Injection, Options, ScrubState};
use common::{Image, close_and_judge};

#[test]
fn what_cannot_be_started_is_not_waited_for() {
    testkit::require!(kernel_btrfs);
    let image = Image::new(256 << 20, &[]);
    let injection = Injection::of(Some(Defect::NoThreads));
    let fs = image.open_with(Options { background: false, injection, ..Options::default() });
    let item = BalanceItem { flags: DATA, ..BalanceItem::default() };
    assert_eq!(fs.start_balance(item).unwrap_err().errno(), libc::EIO);
    assert_eq!(fs.balance_status().expect("status").state, BalanceState::Paused);
    fs.cancel_balance().expect("there is one");
    assert_eq!(fs.start_scrub(false).unwrap_err().errno(), libc::EIO);
    assert_eq!(fs.scrub_status().expect("status").state, ScrubState::Cancelled);
    assert_eq!(fs.cancel_scrub().unwrap_err().errno(), libc::ENOTCONN);
    close_and_judge(&image, fs);
}
