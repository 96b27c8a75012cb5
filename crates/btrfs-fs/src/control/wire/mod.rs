//! Numbers and layouts of the control operations, for both ends: the mount that serves them and
//! the program that asks.
//!
//! Those of the kernel's btrfs (linux/btrfs.h) where their records hold neither pointers nor
//! descriptors of the caller, which do not reach a server; beside them our own. A record's length
//! is in the number of its command. What comes in is a stranger's: nothing here trusts it.

pub mod kernels;
pub mod paths;
pub mod quotas;
mod snapshot;

use crate::find_new::NewExtent;
use crate::subvol::{ReceivedFrom, SubvolId, SubvolumeInfo};
use std::time::Duration;
use vfs::Ino;

const fn command(direction: u32, kind: u32, number: u32, len: u32) -> u32 {
    direction << 30 | len << 16 | kind << 8 | number
}

const WRITE: u32 = 1;
const READ: u32 = 2;
const BTRFS: u32 = 0x94;
/// No driver of the kernel's table has it; it reaches our mounts alone.
const OURS: u32 = 0xdc;
/// Of files of all file systems.
const FILES: u32 = 0x66;

/// Makes a subvolume: `VolArgs`.
pub const SUBVOL_CREATE: u32 = command(WRITE, BTRFS, 14, 4096);
/// The same: `VolArgs2`.
pub const SUBVOL_CREATE_V2: u32 = command(WRITE, BTRFS, 24, 4096);
/// Deletes one: `VolArgs`.
pub const SNAP_DESTROY: u32 = command(WRITE, BTRFS, 15, 4096);
/// The same, also by number: `VolArgs2`.
pub const SNAP_DESTROY_V2: u32 = command(WRITE, BTRFS, 63, 4096);
/// Commits.
pub const SYNC: u32 = command(0, BTRFS, 8, 0);
/// Writes a file anew in fewer extents.
pub const DEFRAG: u32 = command(WRITE, BTRFS, 2, 4096);
/// The same of a range, with conditions: `Defragment`.
pub const DEFRAG_RANGE: u32 = command(WRITE, BTRFS, 16, 48);
/// Makes a file one with fs-verity: the record of the kernel's documentation, salt and signature behind.
pub const ENABLE_VERITY: u32 = command(WRITE, FILES, 133, 128);
/// What it is measured by.
pub const MEASURE_VERITY: u32 = command(READ | WRITE, FILES, 134, 4);
/// Where mounts begin: a number.
pub const DEFAULT_SUBVOL: u32 = command(WRITE, BTRFS, 19, 8);
/// Whether a subvolume is read-only: `FLAG_READ_ONLY`.
pub const SUBVOL_GETFLAGS: u32 = command(READ, BTRFS, 25, 8);
/// Makes it so, or not.
pub const SUBVOL_SETFLAGS: u32 = command(WRITE, BTRFS, 26, 8);

/// What a subvolume was received as: `struct btrfs_ioctl_received_subvol_args`.
pub const SET_RECEIVED_SUBVOL: u32 = command(READ | WRITE, BTRFS, 37, 200);

/// Tells the label. It is everybody's, whatever the file system.
pub const GET_FSLABEL: u32 = command(READ, BTRFS, 49, 256);
/// Sets it.
pub const SET_FSLABEL: u32 = command(WRITE, BTRFS, 50, 256);

/// Finds items of trees, each with its key and the commit of its leaf.
pub const TREE_SEARCH: u32 = command(READ | WRITE, BTRFS, 17, 4096);
/// The way to an inode of a tree.
pub const INO_LOOKUP: u32 = command(READ | WRITE, BTRFS, 18, 4096);
/// Waits for a commit: its number.
pub const WAIT_SYNC: u32 = command(WRITE, BTRFS, 22, 8);
/// Commits, and tells which commit that was.
pub const START_SYNC: u32 = command(READ, BTRFS, 24, 8);
/// A device by its number: size, and how much is in chunks.
pub const DEV_INFO: u32 = command(READ | WRITE, BTRFS, 30, 4096);
/// UUID, devices, sizes of nodes and sectors, checksums.
pub const FS_INFO: u32 = command(READ, BTRFS, 31, 1024);
/// Errors of a device.
pub const GET_DEV_STATS: u32 = command(READ | WRITE, BTRFS, 52, 1032);
/// Feature bits of the volume.
pub const GET_FEATURES: u32 = command(READ, BTRFS, 57, 24);
/// Feature bits that a volume may have.
pub const GET_SUPPORTED_FEATURES: u32 = command(READ, BTRFS, 57, 72);
/// The subvolume that a file lies in.
pub const GET_SUBVOL_INFO: u32 = command(READ, BTRFS, 60, 504);
/// The subvolumes right below that one.
pub const GET_SUBVOL_ROOTREF: u32 = command(READ | WRITE, BTRFS, 61, 4096);

/// Tells of subvolumes behind a number: `Records` of `SubvolumeInfo`.
pub const LIST: u32 = command(READ | WRITE, OURS, 2, PAGE);
/// Tells of the subvolume that a file lies in: whether the file is its root, `SubvolumeInfo`.
pub const INFO: u32 = command(READ, OURS, 3, PAGE);
/// Tells where mounts begin: a number.
pub const GET_DEFAULT: u32 = command(READ, OURS, 4, 8);
/// Tells what is newer than a commit: that, and behind which inode and offset; `Records` of
/// `NewExtent`.
pub const FIND_NEW: u32 = command(READ | WRITE, OURS, 5, PAGE);

/// Begins a balance: `BalanceItem`.
pub const BALANCE_START: u32 = command(WRITE, OURS, 64, 448);
/// Tells how far it is.
pub const BALANCE_STATUS: u32 = command(READ, OURS, 65, 88 + 448);
/// One of the three below.
pub const BALANCE_ACT: u32 = command(WRITE, OURS, 66, 8);
/// The device gets another size: its number, how to take the next, bytes.
pub const RESIZE: u32 = command(READ | WRITE, OURS, 67, 24);

/// It stops, and stays unfinished.
pub const BALANCE_PAUSE: u64 = 1;
/// It goes on.
pub const BALANCE_RESUME: u64 = 2;
/// It stops for good.
pub const BALANCE_CANCEL: u64 = 3;

/// One of the four below.
pub const SCRUB_ACT: u32 = command(WRITE, OURS, 68, 8);
/// Tells how far a scrub is.
pub const SCRUB_STATUS: u32 = command(READ, OURS, 69, 160);
/// One of an earlier mount goes on: what `SCRUB_STATUS` told of it.
pub const SCRUB_CONTINUE: u32 = command(WRITE, OURS, 70, 160);
/// How many bytes a scrub reads in a second at most: one of the three below, and a new number. What it
/// was is told in its place; 0: as many as there can be.
pub const SCRUB_LIMIT: u32 = command(READ | WRITE, OURS, 71, 16);

/// It stays as it is.
pub const LIMIT_ASKED: u64 = 0;
/// It is another one until the unmount.
pub const LIMIT_SET: u64 = 1;
/// It is another one until the scrub ends that is at work.
pub const LIMIT_ONCE: u64 = 2;

/// As `SCRUB_ACT`, one of the first two below; and how many bytes that scrub reads in a second at most.
pub const SCRUB_BEGIN: u32 = command(WRITE, OURS, 72, 16);

/// A scrub begins, which mends what it can.
pub const SCRUB_START: u64 = 1;
/// A scrub begins, which writes nothing.
pub const SCRUB_START_READ_ONLY: u64 = 2;
/// One that was cancelled goes on.
pub const SCRUB_RESUME: u64 = 3;
/// It stops.
pub const SCRUB_CANCEL: u64 = 4;

pub use snapshot::{SNAPSHOT, SNAPSHOT_SOURCE, SnapshotArgs, Source};

pub use super::balance::{read_status, write_resize};
pub use super::defragment::write_defragment;
pub use super::scrub::{read_status as read_scrub_status, write_status as write_scrub_status};
/// Tells what the volume is made of, in numbers: `Usage`.
pub const USAGE: u32 = command(READ, OURS, 20, PAGE);

/// A tree of the last commit, by its number: sector and node size, checksums, UUID of
/// the nodes and of the chunk tree, address, level and commit of the root node, the root item; two
/// numbers that each of the others below begins with.
pub const COMMITTED_TREE: u32 = command(READ | WRITE, OURS, 80, 536);
/// A node: address, level, commit, and from which byte on; as much as there is room for. Its checksum
/// is not to be relied on, since the server has verified it and may have the node anew.
pub const COMMITTED_NODE: u32 = command(READ | WRITE, OURS, 81, PAGE);
/// Files that share an extent, by its address: how many, and for each its number and where in it
/// the extent's first byte would stand.
pub const COMMITTED_REFERENCES: u32 = command(READ | WRITE, OURS, 82, PAGE);
/// An extent as it is stored: the tree, the inode, the offset of the extent's item, which sectors
/// of it, in bytes: from where on, and how many.
pub const COMMITTED_STORED: u32 = command(READ | WRITE, OURS, 83, PAGE);

/// Leave to send the server a stream that is received into this directory: a word that it knows by.
pub const RECEIVE: u32 = command(READ, OURS, 88, 16);

/// Leave to have the server hold the subvolume of this directory while a stream is made of it: a word that it knows
/// by.
pub const SEND: u32 = command(READ, OURS, 89, 16);

/// Content of a file: the tree, the inode, from where on, and how much.
pub const COMMITTED_CONTENT: u32 = command(READ | WRITE, OURS, 84, PAGE);

/// As much as the number of a command can say, in whole words.
const PAGE: u32 = 16376;

/// Bytes of a record of `LIST` without name and path.
pub const SMALLEST_INFO: usize = 23 * 8 + 3 * 16;

/// Of `SUBVOL_SETFLAGS`, `SNAPSHOT` and `VolArgs2`.
pub const FLAG_READ_ONLY: u64 = 1 << 1;
/// The record names the subvolume by its number.
pub const FLAG_BY_ID: u64 = 1 << 4;

/// Where names stand in `VolArgs` and `VolArgs2`.
const NAME: usize = 8;
const FLAGS_V2: usize = 16;
const NAME_V2: usize = 56;

/// How long the record of a command is.
pub fn len(command: u32) -> usize {
    usize::try_from(command >> 16 & 0x3fff).expect("14 bits")
}

/// The number at `at`.
pub fn number(bytes: &[u8], at: usize) -> Option<u64> {
    let field = bytes.get(at..at.checked_add(8)?)?;
    Some(u64::from_le_bytes(field.try_into().ok()?))
}

/// What `SET_RECEIVED_SUBVOL` tells. No flag is known.
pub fn read_received(record: &[u8]) -> Option<ReceivedFrom> {
    let uuid = record.get(..16)?.try_into().ok()?;
    let (stransid, flags) = (number(record, 16)?, number(record, 64)?);
    let nanos = u32::from_le_bytes(record.get(40..44)?.try_into().ok()?);
    let stime = (number(record, 32)?.cast_signed(), nanos);
    (flags == 0).then_some(ReceivedFrom { uuid, stransid, stime })
}

/// The record of `SET_RECEIVED_SUBVOL`.
pub fn write_received(from: &ReceivedFrom) -> Vec<u8> {
    let mut record = vec![0; len(SET_RECEIVED_SUBVOL)];
    record[..16].copy_from_slice(&from.uuid);
    record[16..24].copy_from_slice(&from.stransid.to_le_bytes());
    record[32..40].copy_from_slice(&from.stime.0.to_le_bytes());
    record[40..44].copy_from_slice(&from.stime.1.to_le_bytes());
    record
}

/// What stands before the first NUL; `None` without one.
fn text(bytes: &[u8], at: usize) -> Option<&[u8]> {
    let field = bytes.get(at..)?;
    field.iter().position(|byte| *byte == 0).map(|end| &field[..end])
}

/// `struct btrfs_ioctl_vol_args`: a descriptor that is not looked at, and a name.
pub struct VolArgs;

impl VolArgs {
    /// The name.
    pub fn name(record: &[u8]) -> Option<&[u8]> {
        text(record, NAME)
    }
}

/// `struct btrfs_ioctl_vol_args_v2`, without what it can say of quota groups.
pub struct VolArgs2;

impl VolArgs2 {
    /// Its flags.
    pub fn flags(record: &[u8]) -> Option<u64> {
        number(record, FLAGS_V2)
    }

    /// The name.
    pub fn name(record: &[u8]) -> Option<&[u8]> {
        text(record, NAME_V2)
    }

    /// The number, where the flags say that there is one.
    pub fn id(record: &[u8]) -> Option<u64> {
        number(record, NAME_V2)
    }

    /// A record that names something in the directory that it is asked of.
    pub fn named(name: &[u8]) -> Option<Vec<u8>> {
        with_name(4096, NAME_V2, name)
    }

    /// A record that names a subvolume by its number.
    pub fn numbered(id: SubvolId) -> Vec<u8> {
        let mut record = vec![0; 4096];
        record[FLAGS_V2..FLAGS_V2 + 8].copy_from_slice(&FLAG_BY_ID.to_le_bytes());
        record[NAME_V2..NAME_V2 + 8].copy_from_slice(&id.0.to_le_bytes());
        record
    }
}

fn with_name(len: usize, at: usize, name: &[u8]) -> Option<Vec<u8>> {
    let mut record = vec![0; len];
    record[..len - 1].get_mut(at..at + name.len())?.copy_from_slice(name);
    Some(record)
}

/// What an answer of many is made of.
pub trait Record: Sized {
    /// Appends it.
    fn write(&self, to: &mut Vec<u8>);
    /// Takes it off the front.
    fn read(from: &mut &[u8]) -> Option<Self>;
}

/// As many as there is room for, behind their count.
pub struct Records;

impl Records {
    /// The first of `all`, in an answer of at most `room` bytes.
    pub fn write<R: Record>(all: impl IntoIterator<Item = R>, room: usize) -> Vec<u8> {
        let (mut out, mut count) = (vec![0; 8], 0u64);
        for record in all {
            let before = out.len();
            record.write(&mut out);
            if out.len() > room {
                out.truncate(before);
                break;
            }
            count += 1;
        }
        out[..8].copy_from_slice(&count.to_le_bytes());
        out
    }

    /// All of an answer; `None` if it is none.
    pub fn read<R: Record>(answer: &[u8]) -> Option<Vec<R>> {
        let mut rest = answer.get(8..)?;
        let count = usize::try_from(number(answer, 0)?).ok().filter(|n| *n <= answer.len())?;
        (0..count).map(|_| R::read(&mut rest)).collect()
    }
}

/// Bytes at some places of a record.
pub(super) fn fill(record: &mut [u8], parts: &[(usize, &[u8])]) {
    for (at, bytes) in parts {
        record[*at..*at + bytes.len()].copy_from_slice(bytes);
    }
}

pub(super) fn put(out: &mut Vec<u8>, numbers: &[u64]) {
    numbers.iter().for_each(|number| out.extend_from_slice(&number.to_le_bytes()));
}

/// How many there are, as a number of a record.
pub(super) fn len64<T>(of: &[T]) -> u64 {
    u64::try_from(of.len()).expect("no target has longer indices")
}

/// Where a state stands among all that have a number in records; 0: it is none of them.
pub(super) fn position<T: PartialEq>(all: &[T], one: &T) -> u64 {
    (0..).zip(all).find(|(_, other)| *other == one).map_or(0, |(number, _)| number)
}

/// The two numbers of 32 bits that stand in the place of one, the lower one first.
pub(super) fn halves(number: u64) -> [u32; 2] {
    let [a, b, c, d, e, f, g, h] = number.to_le_bytes();
    [[a, b, c, d], [e, f, g, h]].map(u32::from_le_bytes)
}

/// Of something that took this time; of one that no mount lives to see, the longest.
pub(super) fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

pub(super) fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put(out, &[len64(bytes)]);
    out.extend_from_slice(bytes);
}

pub(super) fn take(from: &mut &[u8]) -> Option<u64> {
    let taken = number(from, 0)?;
    *from = &from[8..];
    Some(taken)
}

pub(super) fn take_bytes(from: &mut &[u8]) -> Option<Vec<u8>> {
    let len = usize::try_from(take(from)?).ok()?;
    let (bytes, rest) = from.split_at_checked(len)?;
    *from = rest;
    Some(bytes.to_vec())
}

pub(super) fn take_uuid(from: &mut &[u8]) -> Option<[u8; 16]> {
    let (bytes, rest) = from.split_at_checked(16)?;
    *from = rest;
    bytes.try_into().ok()
}

impl Record for SubvolumeInfo {
    fn write(&self, to: &mut Vec<u8>) {
        let parent = self.parent.map_or(0, |parent| parent.0);
        let known = u64::from(self.read_only)
            | u64::from(self.deleted) << 1
            | u64::from(self.path.is_some()) << 2;
        put(to, &[self.id.0, parent, known, self.directory, self.root.0, self.flags]);
        put(to, &[self.generation, self.created, self.last_snapshot]);
        put(to, &[self.ctransid, self.otransid, self.stransid, self.rtransid]);
        for (secs, nanos) in [self.ctime, self.otime, self.stime, self.rtime] {
            put(to, &[secs.cast_unsigned(), nanos.into()]);
        }
        for uuid in [self.uuid, self.parent_uuid, self.received_uuid] {
            to.extend_from_slice(&uuid);
        }
        put_bytes(to, &self.name);
        put_bytes(to, self.path.as_deref().unwrap_or_default());
    }

    fn read(from: &mut &[u8]) -> Option<SubvolumeInfo> {
        let (id, parent, known) = (SubvolId(take(from)?), take(from)?, take(from)?);
        let (directory, root, flags) = (take(from)?, Ino(take(from)?), take(from)?);
        let (generation, created, last_snapshot) = (take(from)?, take(from)?, take(from)?);
        let [ctransid, otransid, stransid, rtransid] =
            [take(from)?, take(from)?, take(from)?, take(from)?];
        let mut time = || Some((take(from)?.cast_signed(), u32::try_from(take(from)?).ok()?));
        let [ctime, otime, stime, rtime] = [time()?, time()?, time()?, time()?];
        let (uuid, parent_uuid) = (take_uuid(from)?, take_uuid(from)?);
        let (received_uuid, name) = (take_uuid(from)?, take_bytes(from)?);
        let path = Some(take_bytes(from)?).filter(|_| known & 4 != 0);
        let parent = (parent != 0).then_some(SubvolId(parent));
        let (read_only, deleted) = (known & 1 != 0, known & 2 != 0);
        Some(SubvolumeInfo {
            id,
            parent,
            directory,
            name,
            path,
            root,
            generation,
            created,
            uuid,
            parent_uuid,
            received_uuid,
            read_only,
            flags,
            ctime,
            otime,
            stime,
            rtime,
            ctransid,
            otransid,
            stransid,
            rtransid,
            last_snapshot,
            deleted,
        })
    }
}

impl Record for NewExtent {
    fn write(&self, to: &mut Vec<u8>) {
        let known = u64::from(self.compressed)
            | u64::from(self.preallocated) << 1
            | u64::from(self.inline) << 2;
        put(to, &[self.inode, self.file_offset, self.len, self.disk_start, self.offset]);
        put(to, &[self.generation, known]);
        put_bytes(to, &self.path);
    }

    fn read(from: &mut &[u8]) -> Option<NewExtent> {
        let (inode, file_offset, len) = (take(from)?, take(from)?, take(from)?);
        let (disk_start, offset, generation) = (take(from)?, take(from)?, take(from)?);
        let (known, path) = (take(from)?, take_bytes(from)?);
        let [compressed, preallocated, inline] = [1, 2, 4].map(|bit| known & bit != 0);
        Some(NewExtent {
            inode,
            file_offset,
            len,
            disk_start,
            offset,
            generation,
            compressed,
            preallocated,
            inline,
            path,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(id: u64) -> SubvolumeInfo {
        let time = (-5, 999_999_999);
        SubvolumeInfo {
            id: SubvolId(id),
            parent: Some(SubvolId(5)),
            directory: 257,
            name: b"name".to_vec(),
            path: Some(b"a/name".to_vec()),
            root: Ino(id << 40 | 256),
            generation: 9,
            created: 8,
            uuid: [1; 16],
            parent_uuid: [2; 16],
            received_uuid: [3; 16],
            read_only: true,
            flags: 1,
            ctime: time,
            otime: (1, 2),
            stime: (0, 0),
            rtime: (3, 4),
            ctransid: 11,
            otransid: 12,
            stransid: 13,
            rtransid: 14,
            last_snapshot: 15,
            deleted: false,
        }
    }

    #[test]
    fn numbers_are_the_kernels() {
        assert_eq!(SUBVOL_CREATE, 0x5000_940e);
        assert_eq!(SNAP_DESTROY_V2, 0x5000_943f);
        assert_eq!(SUBVOL_GETFLAGS, 0x8008_9419);
        assert_eq!(SUBVOL_SETFLAGS, 0x4008_941a);
        assert_eq!((SYNC, DEFAULT_SUBVOL), (0x9408, 0x4008_9413));
        assert_eq!((len(SUBVOL_CREATE), len(LIST)), (4096, PAGE as usize));
    }

    #[test]
    fn records_pass_as_they_are() {
        let mut other = info(257);
        (other.parent, other.path, other.deleted) = (None, None, true);
        let all = vec![info(256), other];
        let answer = Records::write(all.clone(), PAGE as usize);
        assert_eq!(Records::read::<SubvolumeInfo>(&answer), Some(all.clone()));
        let bare = SubvolumeInfo { name: Vec::new(), path: None, ..info(256) };
        assert_eq!(Records::write([bare.clone()], PAGE as usize).len(), 8 + SMALLEST_INFO);
        let one = Records::write(all.clone(), answer.len() - 1);
        assert_eq!(Records::read::<SubvolumeInfo>(&one), Some(all[..1].to_vec()));
        for cut in 0..answer.len() {
            assert_eq!(Records::read::<SubvolumeInfo>(&answer[..cut]), None, "{cut}");
        }
        let told = [info(256), bare.clone()].map(|info| paths::Told::within(info, 2));
        assert_eq!(
            told.each_ref().map(|told| (told.is_long, told.info.path.is_some())),
            [(true, false), (false, false)]
        );
        let answer = Records::write(told.clone(), PAGE as usize);
        assert_eq!(Records::read::<paths::Told>(&answer), Some(told.to_vec()));
        assert_eq!(VolArgs2::name(&VolArgs2::named(b"sub").unwrap()), Some(&b"sub"[..]));
        assert_eq!(VolArgs2::named(&[b'x'; 4040]), None);
        assert_eq!(VolArgs2::id(&VolArgs2::numbered(SubvolId(300))), Some(300));
        assert_eq!(VolArgs::name(&[1; 4096]), None);
    }
}
