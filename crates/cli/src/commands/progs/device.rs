//! `btrfs device scan` and `device ready`: what start-up scripts ask for before they mount.
//!
//! The kernel's btrfs has to hear of each device before it mounts a volume of several; Spinney, whose
//! volumes have one, has nothing to hear. So a scan finds nothing to do, and a device is ready if
//! it is a whole volume.

use crate::args::{self, Arg, Args, unexpected};
use crate::commands::Command;
use crate::error::{Error, Exit, Result};
use crate::image;
use crate::output::Out;
use btrfs_disk::TreeId;
use btrfs_fs::Subvol;
use std::ffi::OsString;
use std::path::Path;

pub const SCAN: Command = Command {
    name: "device scan",
    summary: "look for devices of volumes, of which none need be known",
    usage: "[-d|-u] [DEVICE...]",
    help: "\
The kernel's btrfs is told of devices so that volumes of several can be mounted. Spinney mounts
volumes of one, and need not be told: nothing happens, and that is no error.

Options
    -d, --all-devices  taken, and without effect
    -u, --forget       taken: nothing was kept that could be forgotten

Examples
    btrfs device scan
",
    run: scan,
};

pub const READY: Command = Command {
    name: "device ready",
    summary: "tell whether all devices of a volume are there",
    usage: "DEVICE",
    help: "\
Ends with 0 if DEVICE is a volume that can be mounted, and with 1 if it is none, or one of
several devices.

Examples
    btrfs device ready /dev/sdb1
",
    run: ready,
};

fn scan(mut args: Args) -> Result<Exit> {
    let (mut forget, mut operands) = (false, Vec::<OsString>::new());
    while let Some(arg) = args.next()? {
        match arg {
            Arg::Short('d') | Arg::Long("all-devices") => {}
            Arg::Short('u') | Arg::Long("forget") => forget = true,
            Arg::Value(value) => operands.push(value),
            other => return Err(unexpected(other)),
        }
    }
    let mut out = Out::new();
    if operands.is_empty() && !forget {
        out.line("Scanning for Btrfs filesystems")?;
    }
    for device in &operands {
        device_at(Path::new(device))?;
        if !forget {
            let shown = args::show(device);
            out.line(format!("Scanning for btrfs filesystems on '{shown}'"))?;
        }
    }
    out.finish()?;
    Ok(Exit::Done)
}

fn ready(args: Args) -> Result<Exit> {
    let device = args::only(args, "a device")?;
    let path = Path::new(&device);
    device_at(path)?;
    image::look(path, &Subvol::Id(TreeId::FS))?;
    Ok(Exit::Done)
}

/// An image will do for a device.
fn device_at(path: &Path) -> Result<()> {
    if image::is_image(path) {
        return Ok(());
    }
    Err(Error::new(format!("not a block device: {}", path.display())))
}
