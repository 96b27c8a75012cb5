//! The superblock copies against the one that the volume was opened by.

use crate::source::{Context, reason};
use crate::{Finding, FindingKind};
use btrfs_disk::Superblock;
use btrfs_disk::superblock::SUPER_SIZE;
use btrfs_volume::super_copies;

pub(crate) fn check(cx: &mut Context<'_>) {
    let chosen = cx.volume.superblock();
    for offset in super_copies(chosen.fields.total_bytes.min(cx.volume.device().len())) {
        match read(cx, offset) {
            Err(why) => cx.add(Finding::new(FindingKind::SuperCopyBad { offset, why })),
            Ok(copy) if copy.fields.fsid != chosen.fields.fsid => {
                let why = "it is of another volume".into();
                cx.add(Finding::new(FindingKind::SuperCopyBad { offset, why }));
            }
            Ok(copy) if copy.generation() != chosen.generation() => {
                let (generation, newest) = (copy.generation().0, chosen.generation().0);
                let kind = FindingKind::SuperCopyStale { offset, generation, newest };
                cx.add(Finding::new(kind));
            }
            Ok(_) => {}
        }
    }
    let (stored, devices) = (chosen.fields.total_bytes, chosen.fields.dev_item.total_bytes);
    if stored != devices {
        cx.add(Finding::new(FindingKind::SuperTotalBytes { stored, devices }));
    }
    cx.report.totals.pending_log = chosen.fields.log_root.0 != 0;
}

fn read(cx: &Context<'_>, offset: u64) -> Result<Superblock, String> {
    let mut bytes = [0; SUPER_SIZE];
    cx.volume.device().read_at(offset, &mut bytes).map_err(|e| e.to_string())?;
    Superblock::parse(&bytes, offset).map_err(|e| reason(&e))
}
