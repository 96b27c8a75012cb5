//! Quotas through the door: all of it is for administrators, as the kernel has it.

use super::wire::quotas as wire;
use super::{administrator, caller, snapshots, some};
use crate::control::wire::Records;
use crate::fs::BtrfsFs;
use crate::qgroup::{LimitChange, QgroupId};
use crate::subvol::NewSubvolume;
use vfs::{Asker, Controlled, Errno, FileSystem, Ino, Result};

/// `None`: it is none of these operations.
pub(super) fn control(
    fs: &BtrfsFs,
    asker: &dyn Asker,
    dir: Ino,
    command: u32,
    input: &[u8],
) -> Option<Result<Controlled>> {
    if command == wire::CREATE_IN {
        return Some(create(fs, asker, dir, input));
    }
    let work: fn(&BtrfsFs, &[u8]) -> Result<Controlled> = match command {
        wire::QUOTA_CTL => on_or_off,
        wire::RESCAN => |fs, _| done(fs.rescan_quotas()),
        wire::RESCAN_STATUS => rescan_status,
        wire::QGROUP_ASSIGN => assign,
        wire::QGROUP_CREATE => create_or_destroy,
        wire::QGROUP_LIMIT => limit,
        wire::QGROUP_LIST => list,
        wire::QUOTA_STATUS => |fs, _| {
            let status = fs.quota_status()?;
            Ok(Controlled::answer(wire::status_record(status)))
        },
        _ => return None,
    };
    Some(administrator(asker).and_then(|()| work(fs, input)))
}

fn done(result: Result<()>) -> Result<Controlled> {
    result.map(|()| Controlled::default())
}

fn numbers<const N: usize>(input: &[u8]) -> Result<[u64; N]> {
    some(wire::numbers(input))
}

fn on_or_off(fs: &BtrfsFs, input: &[u8]) -> Result<Controlled> {
    match numbers::<1>(input)? {
        [wire::ENABLE] => fs.enable_quotas()?,
        [wire::ENABLE_SIMPLE] => fs.enable_simple_quotas()?,
        [wire::DISABLE] => fs.disable_quotas()?,
        _ => return Err(Errno::EINVAL.into()),
    }
    Ok(Controlled::answer(input.to_vec()))
}

fn rescan_status(fs: &BtrfsFs, _: &[u8]) -> Result<Controlled> {
    let at = fs.quota_status()?.and_then(|status| status.rescan);
    let mut answer = vec![0; 64];
    answer[..8].copy_from_slice(&u64::from(at.is_some()).to_le_bytes());
    answer[8..16].copy_from_slice(&at.unwrap_or(0).to_le_bytes());
    Ok(Controlled::answer(answer))
}

fn assign(fs: &BtrfsFs, input: &[u8]) -> Result<Controlled> {
    let [assign, child, parent] = numbers(input)?;
    let (child, parent) = (QgroupId(child), QgroupId(parent));
    match assign {
        0 => fs.remove_qgroup(child, parent)?,
        _ => fs.assign_qgroup(child, parent)?,
    };
    Ok(Controlled::default())
}

fn create_or_destroy(fs: &BtrfsFs, input: &[u8]) -> Result<Controlled> {
    match numbers(input)? {
        [0, id] => done(fs.destroy_qgroup(QgroupId(id))),
        [_, id] => done(fs.create_qgroup(QgroupId(id))),
    }
}

fn limit(fs: &BtrfsFs, input: &[u8]) -> Result<Controlled> {
    let [id, flags, referenced, exclusive] = numbers(input)?;
    done(fs.limit_qgroup(QgroupId(id), &LimitChange::of_call(flags, referenced, exclusive)))
}

fn list(fs: &BtrfsFs, input: &[u8]) -> Result<Controlled> {
    let [from] = numbers(input)?;
    let room = super::wire::len(wire::QGROUP_LIST);
    let groups = fs.qgroups_from(QgroupId(from), room / wire::SMALLEST_QGROUP)?;
    let any = !groups.is_empty();
    let answer = Records::write(groups, room);
    // One that fills the answer alone would end the list before its end.
    if any && answer.len() <= 8 {
        return Err(Errno::EOVERFLOW.into());
    }
    Ok(Controlled::answer(answer))
}

fn create(fs: &BtrfsFs, asker: &dyn Asker, parent: Ino, input: &[u8]) -> Result<Controlled> {
    let args = wire::CreateIn::parse(input).ok_or(Errno::EINVAL)?;
    let new = NewSubvolume { parent, name: args.name, groups: &args.groups };
    let caller = caller(asker)?;
    let (_, entry) = match args.source {
        None => fs.create_subvolume_in(&caller, &new)?,
        Some((source, read_only)) => {
            let source = snapshots::source(fs, asker, source)?;
            fs.snapshot_in(&caller, source, &new, read_only)?
        }
    };
    fs.forget(entry.attr.ino, 1);
    Ok(Controlled::name(parent, args.name))
}
