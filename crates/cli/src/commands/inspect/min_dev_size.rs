//! `spinney inspect-internal min-dev-size`.

use crate::args::{Arg, Args, one, unexpected};
use crate::commands::Command;
use crate::commands::filesystem::units::Units;
use crate::commands::subvolume::place::VolumePath;
use crate::commands::trees::Trees;
use crate::error::{Error, Exit, Result};
use crate::output::{Json, Out};
use btrfs_disk::ids::DEVICE_RESERVED;
use btrfs_disk::items::DevExtent;
use btrfs_disk::key::kind;
use btrfs_disk::superblock::COPIES;
use btrfs_disk::{FixedSize, Key, TreeId};

pub const COMMAND: Command = Command {
    name: "inspect-internal min-dev-size",
    summary: "tell how small a device can be made",
    usage: "[--json] [--id DEVID] VOLUME",
    help: "\
Prints the size to which the device can surely be shrunk with its chunks as they are, in
bytes and for people: the number of `btrfs inspect-internal min-dev-size`, which leaves room
for what moving chunks takes. `balance` first, and fewer chunks make it less. VOLUME is an
image or a path of a mount.

Options
        --id DEVID  the device (default: 1)
        --json      as a JSON object

Examples
    spinney inspect-internal min-dev-size disk.img
    spinney inspect-internal min-dev-size /mnt
",
    run,
};

/// What the kernel may make a new SYSTEM chunk of, while chunks move.
const SYSTEM_CHUNK: u64 = 32 << 20;

fn run(mut args: Args) -> Result<Exit> {
    let (mut operands, mut json, mut device) = (Vec::new(), false, 1);
    while let Some(arg) = args.next()? {
        match arg {
            Arg::Long("json") => json = true,
            Arg::Long("id") => {
                let word = args.text()?;
                let number = word.parse();
                device = number.map_err(|_| Error::usage(format!("{word:?} is no device")))?;
            }
            Arg::Value(value) => operands.push(value),
            other => return Err(unexpected(other)),
        }
    }
    let trees = Trees::open(&VolumePath::parse(&one(operands, "an image or a path of a mount")?))?;
    let bytes = smallest(&extents(&trees, device)?);
    let mut out = Out::new();
    match json {
        true => out.line(Json::object(|o| {
            o.number("device", device).number("bytes", bytes);
        }))?,
        false => out.line(format!("{bytes} bytes ({})", Units::HUMAN.show(bytes)))?,
    }
    out.finish()?;
    Ok(Exit::Done)
}

/// Begin and length of all that is in chunks, in their order on the device.
fn extents(trees: &Trees, device: u64) -> Result<Vec<(u64, u64)>> {
    let mut all = Vec::new();
    let key = |offset| Key::new(device, kind::DEV_EXTENT, offset);
    trees.each(TreeId::DEV, key(0)..=key(u64::MAX), |key, data| {
        if key.kind == kind::DEV_EXTENT {
            let extent = DevExtent::read(data).map_err(|c| c.key(key))?;
            all.push((key.offset, extent.length));
        }
        Ok(())
    })?;
    Ok(all)
}

/// All extents side by side are the least. From the last one on, those behind that move into the
/// first gap that is long enough; the first that fits nowhere is where the device ends. A gap with a
/// copy of the superblock may not hold all of a group, which then takes as much once more. What
/// moves is twice there for a while: the longest, and maybe a new SYSTEM chunk, come on top.
fn smallest(extents: &[(u64, u64)]) -> u64 {
    let all = extents.iter().map(|(_, len)| *len).fold(0, u64::saturating_add);
    let mut size = DEVICE_RESERVED.saturating_add(all);
    let end = |(start, len): (u64, u64)| start.saturating_add(len);
    let mut gaps: Vec<(u64, u64)> = extents
        .windows(2)
        .map(|pair| (end(pair[0]), pair[1].0.saturating_sub(end(pair[0]))))
        .collect();
    let mut longest = 0;
    for &(start, len) in extents.iter().rev() {
        // The last byte may be the one at `size`: so counts btrfs-progs.
        if end((start, len)).saturating_sub(1) <= size {
            break;
        }
        let Some(gap) = gaps.iter_mut().find(|gap| gap.1 >= len && gap.1 > 0) else {
            size = end((start, len));
            break;
        };
        if COPIES.iter().any(|at| (gap.0..end((gap.0, len))).contains(at)) {
            size = size.saturating_add(len);
        }
        *gap = (gap.0 + len, gap.1 - len);
        longest = longest.max(len);
    }
    match longest {
        0 => size,
        longest => size.saturating_add(longest).saturating_add(SYSTEM_CHUNK),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn in_mib(extents: &[(u64, u64)]) -> u64 {
        let bytes: Vec<_> = extents.iter().map(|(at, len)| (at * MIB, len * MIB)).collect();
        smallest(&bytes) / MIB
    }

    #[test]
    fn what_is_behind_moves_into_gaps() {
        assert_eq!(smallest(&[]), MIB);
        // Nothing to move.
        assert_eq!(in_mib(&[(1, 8), (9, 8)]), 17);
        // No gap: where it ends. In front of the first is none.
        assert_eq!(in_mib(&[(5, 8), (20, 8)]), 28);
        // 1 + 24, and what moves once more, and a system chunk.
        assert_eq!(in_mib(&[(1, 8), (40, 8), (100, 8)]), 25 + 8 + 32);
        // A gap with the second superblock.
        assert_eq!(in_mib(&[(1, 60), (100, 8), (200, 8)]), 77 + 8 + 8 + 32);
        // A damaged volume.
        assert_eq!(smallest(&[(u64::MAX, u64::MAX), (0, u64::MAX)]), u64::MAX);
    }
}
