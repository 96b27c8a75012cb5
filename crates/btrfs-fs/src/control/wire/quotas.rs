//! Those of quotas.

use super::{
    BTRFS, FLAG_READ_ONLY, OURS, PAGE, READ, Record, Source, WRITE, command, len64, number, put,
    take, text,
};
use crate::qgroup::{LimitChange, Qgroup, QgroupId, QuotaStatus};

/// Begins quotas or ends them: `struct btrfs_ioctl_quota_ctl_args`.
pub const QUOTA_CTL: u32 = command(READ | WRITE, BTRFS, 40, 16);
/// Of `QUOTA_CTL`.
pub const ENABLE: u64 = 1;
/// Of `QUOTA_CTL`.
pub const DISABLE: u64 = 2;
/// Of `QUOTA_CTL`.
pub const ENABLE_SIMPLE: u64 = 4;
/// Puts a group into another or takes it out: 1 or 0, child, parent.
pub const QGROUP_ASSIGN: u32 = command(WRITE, BTRFS, 41, 24);
/// Makes a group or takes it away: 1 or 0, group.
pub const QGROUP_CREATE: u32 = command(WRITE, BTRFS, 42, 16);
/// Begins to count anew.
pub const RESCAN: u32 = command(WRITE, BTRFS, 44, 64);
/// Tells whether that is under way (1 or 0), and where it is.
pub const RESCAN_STATUS: u32 = command(READ, BTRFS, 45, 64);

/// Limits a group: group, flags, most referenced, most exclusive. The kernel's own number says that
/// nothing is passed in.
pub const QGROUP_LIMIT: u32 = command(WRITE, OURS, 33, 32);
/// Tells of groups from a number on: `Records` of `Qgroup`.
pub const QGROUP_LIST: u32 = command(READ | WRITE, OURS, 34, PAGE);
/// Tells what the status says.
pub const QUOTA_STATUS: u32 = command(READ, OURS, 35, 24);
/// Makes a subvolume or a snapshot in quota groups: `CreateIn`.
pub const CREATE_IN: u32 = command(WRITE, OURS, 37, 4096);

/// Bytes of a record of `QGROUP_LIST` without parents.
pub const SMALLEST_QGROUP: usize = 7 * 8;

/// What a record begins with.
pub fn numbers<const N: usize>(record: &[u8]) -> Option<[u64; N]> {
    let mut all = [0; N];
    for (at, field) in all.iter_mut().enumerate() {
        *field = number(record, 8 * at)?;
    }
    Some(all)
}

/// A record of numbers.
pub fn record(numbers: &[u64]) -> Vec<u8> {
    let mut record = Vec::new();
    put(&mut record, numbers);
    record
}

/// The record of `QGROUP_LIMIT`.
pub fn limit_record(id: QgroupId, change: &LimitChange) -> Vec<u8> {
    let (flags, referenced, exclusive) = change.as_call();
    record(&[id.0, flags, referenced, exclusive])
}

/// The answer of `QUOTA_STATUS`.
pub fn status_record(status: Option<QuotaStatus>) -> Vec<u8> {
    let Some(status) = status else { return record(&[0, 0, 0]) };
    let flags = 1 | u64::from(status.inconsistent) << 1 | u64::from(status.rescan.is_some()) << 2;
    let flags = flags | u64::from(status.simple) << 3;
    record(&[flags, status.rescan.unwrap_or(0), 0])
}

/// See [`status_record`]; the outer `None`: it is none.
pub fn read_status(answer: &[u8]) -> Option<Option<QuotaStatus>> {
    let [flags, rescan] = numbers(answer)?;
    let (inconsistent, simple) = (flags & 2 != 0, flags & 8 != 0);
    let status = QuotaStatus { rescan: (flags & 4 != 0).then_some(rescan), inconsistent, simple };
    Some((flags & 1 != 0).then_some(status))
}

impl Record for Qgroup {
    fn write(&self, to: &mut Vec<u8>) {
        let limits = LimitChange {
            referenced: self.max_referenced.map(Some),
            exclusive: self.max_exclusive.map(Some),
        };
        let (flags, referenced, exclusive) = limits.as_call();
        put(to, &[self.id.0, self.referenced, self.exclusive, flags, referenced, exclusive]);
        put(to, &[len64(&self.parents)]);
        self.parents.iter().for_each(|parent| put(to, &[parent.0]));
    }

    fn read(from: &mut &[u8]) -> Option<Qgroup> {
        let (id, referenced, exclusive) = (QgroupId(take(from)?), take(from)?, take(from)?);
        let (flags, most) = (take(from)?, [take(from)?, take(from)?]);
        let count = usize::try_from(take(from)?).ok().filter(|count| *count <= from.len() / 8)?;
        let parents = (0..count).map(|_| take(from).map(QgroupId)).collect::<Option<_>>()?;
        let limits = LimitChange::of_call(flags, most[0], most[1]);
        let (max_referenced, max_exclusive) =
            (limits.referenced.flatten(), limits.exclusive.flatten());
        Some(Qgroup { id, referenced, exclusive, max_referenced, max_exclusive, parents })
    }
}

/// The record of `CREATE_IN`.
pub struct CreateIn<'a> {
    /// What is snapshotted, and whether nothing can be changed in the snapshot; `None` makes an empty
    /// subvolume.
    pub source: Option<(Source, bool)>,
    /// Groups that it is put into.
    pub groups: Vec<QgroupId>,
    /// In the directory that it is asked of.
    pub name: &'a [u8],
}

/// Of `CREATE_IN`: there is a source.
const SNAPSHOT: u64 = 1;

impl<'a> CreateIn<'a> {
    /// `None`: it is no such record.
    pub fn parse(record: &'a [u8]) -> Option<CreateIn<'a>> {
        let mut rest = record;
        let (source, flags) = Source::read(record, 8, take(&mut rest)?)?;
        rest = rest.get(16..)?;
        let count = take(&mut rest)?;
        if flags & !(SNAPSHOT | FLAG_READ_ONLY) != 0 {
            return None;
        }
        let count = usize::try_from(count).ok().filter(|count| *count <= rest.len() / 8)?;
        let groups = (0..count).map(|_| take(&mut rest).map(QgroupId)).collect::<Option<_>>()?;
        let source = (flags & SNAPSHOT != 0).then_some((source, flags & FLAG_READ_ONLY != 0));
        Some(CreateIn { source, groups, name: text(rest, 0)? })
    }

    /// `None`: the record is too short for it.
    pub fn write(&self) -> Option<Vec<u8>> {
        let (source, flags) = match self.source {
            None => ([0; 16], 0),
            Some((source, read_only)) => {
                let (source, flag) = source.parts();
                (source, flag | SNAPSHOT | if read_only { FLAG_READ_ONLY } else { 0 })
            }
        };
        let mut out = record(&[flags]);
        out.extend_from_slice(&source);
        put(&mut out, &[len64(&self.groups)]);
        self.groups.iter().for_each(|group| put(&mut out, &[group.0]));
        out.extend_from_slice(self.name);
        (out.len() < super::len(CREATE_IN)).then_some(out)
    }
}

#[cfg(test)]
mod tests {
    use super::super::Records;
    use super::*;
    use vfs::Ino;

    #[test]
    fn numbers_are_the_kernels() {
        assert_eq!(QUOTA_CTL, 0xc010_9428);
        assert_eq!((QGROUP_ASSIGN, QGROUP_CREATE), (0x4018_9429, 0x4010_942a));
        assert_eq!((RESCAN, RESCAN_STATUS), (0x4040_942c, 0x8040_942d));
    }

    #[test]
    fn records_pass_as_they_are() {
        let group = Qgroup {
            id: QgroupId(1 << 48 | 7),
            referenced: 5,
            exclusive: 4,
            max_referenced: Some(0),
            max_exclusive: None,
            parents: vec![QgroupId(2 << 48), QgroupId(3 << 48)],
        };
        let answer = Records::write([group.clone()], PAGE as usize);
        assert_eq!(Records::read::<Qgroup>(&answer), Some(vec![group]));
        for cut in 0..answer.len() {
            assert_eq!(Records::read::<Qgroup>(&answer[..cut]), None, "{cut}");
        }
        let some = QuotaStatus { rescan: Some(9), inconsistent: true, simple: false };
        for status in [None, Some(some), Some(QuotaStatus { simple: true, ..some })] {
            assert_eq!(read_status(&status_record(status)), Some(status));
        }
        let groups = vec![QgroupId(1 << 48)];
        let sources = [Source::Word([9; 16]), Source::Number(Ino(7))].map(|source| (source, true));
        for source in sources.map(Some).into_iter().chain([None]) {
            let args = CreateIn { source, groups: groups.clone(), name: b"x" };
            let mut record = args.write().unwrap();
            record.resize(4096, 0);
            let read = CreateIn::parse(&record).unwrap();
            assert_eq!((read.source, &read.groups, read.name), (source, &groups, args.name));
        }
        assert!(CreateIn::parse(&[0xff; 4096]).is_none());
        let long = CreateIn { source: None, groups: vec![QgroupId(0); 600], name: b"x" };
        assert!(long.write().is_none());
    }
}
