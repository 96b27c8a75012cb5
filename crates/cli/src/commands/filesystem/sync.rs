//! `spinney filesystem sync`.

use crate::args::{Args, only};
use crate::commands::Command;
use crate::commands::subvolume::place::VolumePath;
use crate::door::Door;
use crate::error::{Exit, Result};
use crate::image;
use btrfs_disk::TreeId;
use btrfs_fs::Subvol;

pub const COMMAND: Command = Command {
    name: "filesystem sync",
    summary: "make all changes of a volume durable",
    usage: "VOLUME",
    help: "\
Commits what was changed in a mount; what programs have written to mapped files goes along.
In an image that is not mounted it replays the log that a crash has left, if there is one:
everything else is durable there anyway.

Examples
    spinney filesystem sync /mnt
",
    run,
};

fn run(args: Args) -> Result<Exit> {
    match VolumePath::parse(&only(args, "an image or a directory of a mount")?) {
        VolumePath::Image(inside) => {
            let volume = image::open_volume(&inside.image, true, &Subvol::Id(TreeId::FS))?;
            volume.sync()?;
            volume.close()?;
        }
        VolumePath::Mount(path) => Door::open(&path)?.sync_all()?,
    }
    Ok(Exit::Done)
}
