//! Those of the kernel's btrfs that its programs ask, where ours ask by numbers of their own: they wait, or
//! their records say less. `QGROUP_LIMIT` and `BALANCE_CTL` are not among them: what they pass in does not
//! reach a server.

use super::{BTRFS, READ, WRITE, command};

/// The device gets another size: `VolArgs`, of which the name says how large.
pub const RESIZE: u32 = command(WRITE, BTRFS, 3, 4096);
/// A scrub from its beginning to its end: device, from, to, flags, numbers.
pub const SCRUB: u32 = command(READ | WRITE, BTRFS, 27, 1024);
/// It stops.
pub const SCRUB_CANCEL: u32 = command(0, BTRFS, 28, 0);
/// How far it is: as `SCRUB`.
pub const SCRUB_PROGRESS: u32 = command(READ | WRITE, BTRFS, 29, 1024);
/// A balance from its beginning to its end, or from where it paused: flags, state, filters, numbers.
pub const BALANCE: u32 = command(READ | WRITE, BTRFS, 32, 1024);
/// How far it is: as `BALANCE`.
pub const BALANCE_PROGRESS: u32 = command(READ, BTRFS, 34, 1024);
/// Returns when no rescan of quotas is under way.
pub const RESCAN_WAIT: u32 = command(0, BTRFS, 46, 0);
/// Feature bits of the volume: which are to change, and how they are to be.
pub const SET_FEATURES: u32 = command(WRITE, BTRFS, 57, 48);
/// The way from a directory to a subvolume below it, for who may walk it.
pub const INO_LOOKUP_USER: u32 = command(READ | WRITE, BTRFS, 62, 4096);
/// Returns when a deleted subvolume is gone: its number, and one of the two below.
pub const SUBVOL_SYNC_WAIT: u32 = command(WRITE, BTRFS, 65, 16);

/// Of `SUBVOL_SYNC_WAIT`: the one with that number.
pub const FOR_ONE: u32 = 0;
/// Of `SUBVOL_SYNC_WAIT`: all that are deleted now.
pub const FOR_QUEUED: u32 = 1;
/// Of `SUBVOL_SYNC_WAIT`: the last of those that tell something, for which the record has no way back.
pub const TELLS_LAST: u32 = 4;

/// Of `SCRUB`: nothing is written.
pub const SCRUB_READ_ONLY: u64 = 1;
/// Of `BALANCE`: the paused one goes on.
pub const BALANCE_RESUME: u64 = 1 << 4;
/// Of the state of `BALANCE`.
pub const STATE_RUNNING: u64 = 1;
/// Of the state of `BALANCE`: it is to pause, or to be cancelled.
pub const STATE_PAUSING: u64 = 1 << 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_the_kernels() {
        assert_eq!((RESIZE, SCRUB, SCRUB_CANCEL), (0x5000_9403, 0xc400_941b, 0x941c));
        assert_eq!((SCRUB_PROGRESS, BALANCE), (0xc400_941d, 0xc400_9420));
        assert_eq!((BALANCE_PROGRESS, RESCAN_WAIT), (0x8400_9422, 0x942e));
        assert_eq!((SET_FEATURES, INO_LOOKUP_USER), (0x4030_9439, 0xd000_943e));
        assert_eq!(SUBVOL_SYNC_WAIT, 0x4010_9441);
    }
}
