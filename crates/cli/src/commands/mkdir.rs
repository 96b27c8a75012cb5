//! `spinney mkdir`.

use super::Command;
use crate::args::{self, Arg, Args};
use crate::error::{Exit, Result};
use crate::image::ImagePath;
use crate::inside::path::join;
use crate::inside::volumes::At;
use crate::inside::{self, Node, Scope, Volumes};
use crate::mode::Change;
use crate::mount::options::{subvol_id, subvol_path};
use btrfs_fs::Subvol;
use spinney::Volume;
use vfs::{Errno, FsError, SetAttr};

pub const COMMAND: Command = Command {
    name: "mkdir",
    summary: "make directories in a volume",
    usage: "[-p] [-m MODE] IMAGE:/PATH...",
    help: "\
Makes directories in a volume that is not mounted. They belong to the caller.

Options
    -p, --parents     make the directories above as well; no error if PATH is there
    -m, --mode MODE   permissions, as for chmod, instead of 777 less the umask
    --subvol PATH, --subvolid ID
                      start from this subvolume instead of the volume's default one

Examples
    spinney mkdir disk.img:/home disk.img:/srv
    spinney mkdir -p -m 700 disk.img:/home/user/.ssh
",
    run,
};

fn run(mut args: Args) -> Result<Exit> {
    let (mut operands, mut subvol) = (Vec::new(), Subvol::Default);
    let (mut parents, mut mode) = (false, None);
    while let Some(arg) = args.next()? {
        match arg {
            Arg::Short('p') | Arg::Long("parents") => parents = true,
            Arg::Short('m') | Arg::Long("mode") => {
                mode = Some(super::chmod::change(&args.text()?)?)
            }
            Arg::Long("subvol") => subvol = subvol_path(&args.text()?)?,
            Arg::Long("subvolid") => subvol = subvol_id(&args.text()?)?,
            Arg::Value(value) => operands.push(ImagePath::expect(&value)?),
            other => return Err(args::unexpected(other)),
        }
    }
    let operands = args::some(operands, "IMAGE:/PATH")?;
    Scope::of(subvol, &operands, true).run(|volumes, failures| {
        for operand in &operands {
            failures.keep(make(volumes, operand, parents, mode.as_ref()));
        }
        Ok(())
    })
}

fn make(
    volumes: &Volumes,
    operand: &ImagePath,
    parents: bool,
    mode: Option<&Change>,
) -> Result<()> {
    let (volume, path) = (volumes.of(operand)?, &operand.path);
    let made = match parents {
        true => make_all(volume, path)?,
        false => Some(make_one(volume, operand)?),
    };
    let (Some(node), Some(change)) = (made, mode) else { return Ok(()) };
    let umask = inside::context().umask;
    // As mkdir(1): the group goes on to what is below, whoever says who may do what.
    let perm = change.apply(0o777 & !umask | node.attr.perm & 0o6000, true, umask);
    let set = SetAttr { perm: Some(perm), ..SetAttr::default() };
    volume.fs().setattr(&inside::context(), node.ino(), &set).at(volume, path).map(drop)
}

fn make_one(volume: &Volume, operand: &ImagePath) -> Result<Node> {
    let path = &operand.path;
    let (parent, name) = match volume.find_parent(path) {
        Err(FsError::Posix(Errno::EINVAL)) => Err(FsError::from(Errno::EEXIST)).at(volume, path)?,
        other => other.at(volume, path)?,
    };
    let made = volume.fs().mkdir(&inside::context(), parent.ino(), &name, 0o777);
    Ok(volume.hold(made.at(volume, path)?))
}

/// Makes what is missing; the last directory, if it was.
fn make_all(volume: &Volume, path: &[u8]) -> Result<Option<Node>> {
    let (mut here, mut last) = (b"/".to_vec(), None);
    for name in path.split(|b| *b == b'/').filter(|name| !name.is_empty()) {
        let below = join(&here, name);
        last = match volume.find(&below, true) {
            Ok(node) if node.is_dir() => None,
            Ok(_) => return Err(FsError::from(Errno::ENOTDIR)).at(volume, &below),
            Err(FsError::Posix(Errno::ENOENT)) => {
                let parent = volume.find(&here, true).at(volume, &here)?;
                let made = volume.fs().mkdir(&inside::context(), parent.ino(), name, 0o777);
                Some(volume.hold(made.at(volume, &below)?))
            }
            Err(error) => return Err(error).at(volume, &below),
        };
        here = below;
    }
    Ok(last)
}
