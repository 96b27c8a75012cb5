//! No thread can be had for a balance or a scrub, or it panics, or the device refuses its first and its
//! last write: whoever asked is told, nobody is taken to be at work, and the volume closes.

use crate::common;
use blocksim::{Access, Fault, SimDevice, Span};
use btrfs_disk::ids::block_group::DATA;
use btrfs_disk::items::BalanceItem;
use btrfs_fs::{BalanceState, BtrfsFs, Defect, Injection, Options, ScrubState};
use common::{Image, close_and_judge};
use std::sync::Arc;
use std::time::{Duration, Instant};
use vfs::FileSystem;

#[test]
fn what_cannot_be_started_is_not_waited_for() {
    testkit::require!(kernel_btrfs);
    let image = Image::new(256 << 20, &[]);
    let injection = Injection::of(Some(Defect::NoThreads));
    let fs = image.open_with(Options { background: false, injection, ..Options::default() });
    assert_eq!(fs.start_balance(all()).unwrap_err().errno(), libc::EIO);
    assert_eq!(fs.balance_status().expect("status").state, BalanceState::Paused);
    fs.cancel_balance().expect("there is one");
    assert_eq!(fs.start_scrub(false).unwrap_err().errno(), libc::EIO);
    assert_eq!(fs.scrub_status().expect("status").state, ScrubState::Cancelled);
    assert_eq!(fs.cancel_scrub().unwrap_err().errno(), libc::ENOTCONN);
    close_and_judge(&image, fs);
}

#[test]
fn what_panicked_is_not_waited_for() {
    testkit::require!(kernel_btrfs);
    let image = Image::new(256 << 20, &[]);
    for scrub in [false, true] {
        let injection = Injection::of(Some(Defect::WorkPanics));
        let fs = image.open_with(Options { background: false, injection, ..Options::default() });
        match scrub {
            true => fs.start_scrub(false).expect("begun"),
            false => fs.start_balance(all()).expect("begun"),
        }
        let runs = || match scrub {
            true => fs.scrub_status().expect("status").state == ScrubState::Running,
            false => fs.balance_status().expect("status").state == BalanceState::Running,
        };
        wait_while(runs);
        assert!(fs.read_only_reason().is_some_and(|why| why.contains("panicked")));
        assert_eq!(fs.destroy().unwrap_err().errno(), libc::EROFS);
    }
    let fs = image.open_with(Options { background: false, ..Options::default() });
    fs.cancel_balance().expect("it stands on the volume");
    close_and_judge(&image, fs);
}

/// Each write and each flush of a balance in turn is refused, once or from then on.
#[test]
fn what_the_device_refuses_ends_it() {
    testkit::require!(kernel_btrfs);
    let image = blocksim::Image::import(&Image::new(256 << 20, &[]).path).expect("an image");
    let (mut paused, mut done) = (0, 0);
    for (access, span) in [Access::Write, Access::Flush]
        .into_iter()
        .flat_map(|access| [Span::Once, Span::FromThenOn].map(|span| (access, span)))
    {
        for nth in 0.. {
            let device = Arc::new(SimDevice::new(image.clone()));
            let options = Options { background: false, ..Options::default() };
            let fs = BtrfsFs::open_device(device.clone(), options).expect("it opens");
            let counts = device.counts();
            let before = if access == Access::Write { counts.writes } else { counts.flushes };
            device.set_faults(&[Fault { access, nth: before + nth, span }]);
            if fs.start_balance(all()).is_ok() {
                wait_while(|| fs.balance_status().expect("status").state == BalanceState::Running);
                let status = fs.balance_status().expect("status");
                assert!(status.state == BalanceState::Done || status.errno != 0, "{status:?}");
                paused += usize::from(status.state == BalanceState::Paused);
                done += usize::from(status.state == BalanceState::Done);
            }
            let failed = device.counts().failed > counts.failed;
            let _told = fs.destroy();
            if !failed {
                break;
            }
        }
    }
    assert!(paused > 3 && done >= 4, "{paused} {done}");
}

fn all() -> BalanceItem {
    BalanceItem { flags: DATA, ..BalanceItem::default() }
}

fn wait_while(goes_on: impl Fn() -> bool) {
    let until = Instant::now() + Duration::from_secs(20);
    while goes_on() {
        assert!(Instant::now() < until, "nobody is at work, and it is said to be");
        std::thread::sleep(Duration::from_millis(1));
    }
}
