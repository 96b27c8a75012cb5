//! The superblock copies against the one that the volume was opened by.

use crate::source::{Context, reason};
use crate::{Finding, FindingKind, Severity};
use btrfs_disk::Superblock;
use btrfs_disk::superblock::{COPIES, SUPER_SIZE};
use btrfs_volume::super_copies;

pub(crate) fn check(cx: &mut Context<'_>) {
    let chosen = cx.volume.superblock();
    if !cx.volume.starts_elsewhere() {
        copies(cx, &chosen);
    }
    let missing = chosen.fields.dev_item.total_bytes.saturating_sub(cx.volume.device().len());
    if missing > 0 {
        cx.add(Finding::new(FindingKind::Truncated { missing }));
    }
    let (stored, devices) = (chosen.fields.total_bytes, chosen.fields.dev_item.total_bytes);
    if stored != devices {
        cx.add(Finding::new(FindingKind::SuperTotalBytes { stored, devices }));
    }
    let (stored, sector) = (chosen.fields.stripesize, cx.geometry.sector_size);
    if stored != sector {
        cx.add(Finding::new(FindingKind::SuperStripeSize { stored, sector }));
    }
    cx.report.totals.pending_log = chosen.fields.log_root.0 != 0;
}

/// Each against the one that was chosen.
fn copies(cx: &mut Context<'_>, chosen: &Superblock) {
    for offset in super_copies(chosen.fields.total_bytes.min(cx.volume.device().len())) {
        match read(cx, offset) {
            Err(why) => cx.add(spare(offset, FindingKind::SuperCopyBad { offset, why })),
            Ok(copy) if copy.fields.fsid != chosen.fields.fsid => {
                let why = "it is of another volume".into();
                cx.add(spare(offset, FindingKind::SuperCopyBad { offset, why }));
            }
            Ok(copy) if copy.generation() != chosen.generation() => {
                let (generation, newest) = (copy.generation().0, chosen.generation().0);
                let kind = FindingKind::SuperCopyStale { offset, generation, newest };
                cx.add(spare(offset, kind));
            }
            Ok(copy) if counts_wrongly(&copy, chosen, offset) => {
                let (stored, counted) = (copy.fields.num_devices, chosen.fields.num_devices);
                cx.add(Finding::new(FindingKind::SuperNumDevices { stored, counted }));
            }
            Ok(copy) if !same(&copy, chosen) => {
                let why = "it says something else".into();
                cx.add(spare(offset, FindingKind::SuperCopyBad { offset, why }));
            }
            Ok(_) => {}
        }
    }
}

/// Later copies serve rescue alone, and every commit writes them anew: of them it is a note.
fn spare(offset: u64, kind: FindingKind) -> Finding {
    let mut finding = Finding::new(kind);
    if offset != COPIES[0] {
        finding.severity = Severity::Note;
    }
    finding
}

/// The open volume has the number that the chunk tree tells.
fn counts_wrongly(copy: &Superblock, chosen: &Superblock, offset: u64) -> bool {
    offset == COPIES[0] && copy.fields.num_devices != chosen.fields.num_devices
}

/// Equal but for what each copy says of itself, and for the log, which is written to the first
/// copy before the others.
fn same(copy: &Superblock, chosen: &Superblock) -> bool {
    let mut copy = copy.clone();
    let (own, other) = (&mut copy.fields, &chosen.fields);
    (own.csum, own.bytenr) = (other.csum, other.bytenr);
    (own.log_root, own.log_root_level) = (other.log_root, other.log_root_level);
    (own.log_root_transid, own.num_devices) = (other.log_root_transid, other.num_devices);
    copy == *chosen
}

fn read(cx: &Context<'_>, offset: u64) -> Result<Superblock, String> {
    let mut bytes = [0; SUPER_SIZE];
    cx.volume.device().read_at(offset, &mut bytes).map_err(|e| e.to_string())?;
    Superblock::parse(&bytes, offset).map_err(|e| reason(&e))
}
