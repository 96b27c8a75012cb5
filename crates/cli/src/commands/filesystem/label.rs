//! `spinney filesystem label`.

use crate::args::{Arg, Args, unexpected};
use crate::commands::Command;
use crate::commands::subvolume::place::{self, Open, VolumePath};
use crate::door::Door;
use crate::error::{Error, Exit, Result};
use crate::image;
use crate::output::{Json, Out};
use crate::size::count;
use btrfs_disk::TreeId;
use btrfs_fs::Subvol;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

pub const COMMAND: Command = Command {
    name: "filesystem label",
    summary: "tell or change the label of a volume",
    usage: "[--json] VOLUME [LABEL]",
    help: "\
Prints the label of a volume, or gives it another one, of at most 255 bytes; an empty one
takes it away. VOLUME is an image that is not mounted, or a directory of a mount, where an
administrator may change it. It is durable when the command ends.

Options
        --json      as a JSON object

Examples
    spinney filesystem label /mnt
    spinney filesystem label disk.img backup
",
    run,
};

/// Bytes of a label.
const MOST: usize = 255;

fn run(mut args: Args) -> Result<Exit> {
    let (mut operands, mut json) = (Vec::new(), false);
    while let Some(arg) = args.next()? {
        match arg {
            Arg::Long("json") => json = true,
            Arg::Value(value) => operands.push(value),
            other => return Err(unexpected(other)),
        }
    }
    match &operands[..] {
        [place] => tell(&VolumePath::parse(place), json),
        [place, label] => set(&VolumePath::parse(place), label),
        all => Err(Error::usage(format!(
            "expected a volume and a label, got {}",
            count(all.len() as u64, "word")
        ))),
    }
}

fn tell(place: &VolumePath, json: bool) -> Result<Exit> {
    let label = get(place)?;
    let mut out = Out::new();
    match json {
        true => out.line(Json::object(|o| {
            o.bytes("label", &label);
        }))?,
        false => out.line(label)?,
    }
    out.finish()?;
    Ok(Exit::Done)
}

/// Of an image as of its last commit.
pub fn get(place: &VolumePath) -> Result<Vec<u8>> {
    match place {
        VolumePath::Image(inside) => {
            Ok(image::look(&inside.image, &Subvol::Id(TreeId::FS))?.label()?)
        }
        VolumePath::Mount(path) => Door::open(path)?.label(),
    }
}

pub fn set(place: &VolumePath, label: &OsStr) -> Result<Exit> {
    let top = Subvol::Id(TreeId::FS);
    place::at(std::slice::from_ref(place), top, true, |open, _| set_in(open, place, label))
}

/// Where the volume is open.
pub fn set_in(open: &Open<'_>, place: &VolumePath, label: &OsStr) -> Result<()> {
    let label = label.as_bytes();
    if label.len() > MOST {
        return Err(Error::about(place.show(), format!("a label has at most {MOST} bytes")));
    }
    match place {
        VolumePath::Image(inside) => Ok(open.volume(inside)?.set_label(label)?),
        VolumePath::Mount(path) => Door::open(path)?.set_label(label),
    }
}
