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
use vfs::{Context, Errno, FsError, SetAttr};

pub const COMMAND: Command = Command {
    name: "mkdir",
    summary: "make directories in a volume",
    usage: "[-p] [-m MODE] IMAGE:/PATH...",
    help: "\
Makes directories in a volume that is not mounted. They belong to the caller.

Options
    -p, --parents     make the directories above as well; no error if PATH is there
    -m, --mode MODE   permissions, as for chmod of 777, instead of 777 less the umask
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
    let new = New::of(mode);
    let made = match parents {
        true => make_all(volume, path, &new)?,
        false => Some(make_one(volume, path, &new)?),
    };
    let Some(node) = made else { return Ok(()) };
    let Some(perm) = new.corrected(node.attr.perm) else { return Ok(()) };
    let set = SetAttr { perm: Some(perm), ..SetAttr::default() };
    volume.fs().setattr(&new.cx, node.ino(), &set).at(volume, path).map(drop)
}

/// How a directory is made, as mkdir(1) does it: a mode is a change of 777, of which the umask takes nothing. What it does
/// not name is as the directory above has it: the set-group-ID bit, and what a default ACL lets nobody have.
struct New {
    cx: Context,
    mode: u16,
    /// Bits that were named.
    named: u16,
}

impl New {
    fn of(mode: Option<&Change>) -> New {
        let cx = inside::context();
        let Some(change) = mode else { return New { cx, mode: 0o777, named: 0 } };
        let (mode, named) = change.of_new_directory(cx.umask);
        New { cx: Context { umask: cx.umask & !mode, ..cx }, mode, named }
    }

    fn has_special(&self) -> bool {
        self.named & 0o6000 != 0 || self.mode & 0o1000 != 0
    }

    fn make(&self, volume: &Volume, parent: &Node, name: &[u8]) -> vfs::Result<Node> {
        // Nobody else writes there before those bits are right.
        let open = if self.has_special() { self.mode & !0o022 } else { self.mode };
        Ok(volume.hold(volume.fs().mkdir(&self.cx, parent.ino(), name, open & 0o1777)?))
    }

    /// What is to be set of one that was made with these permissions.
    fn corrected(&self, made: u16) -> Option<u16> {
        let sets = self.has_special() || self.mode & self.named & 0o777 != 0;
        (sets && (made ^ self.mode) & self.named != 0).then_some(self.mode | made & !self.named)
    }
}

fn make_one(volume: &Volume, path: &[u8], new: &New) -> Result<Node> {
    let (parent, name) = match volume.find_parent(path) {
        Err(FsError::Posix(Errno::EINVAL)) => Err(FsError::from(Errno::EEXIST)).at(volume, path)?,
        other => other.at(volume, path)?,
    };
    new.make(volume, &parent, &name).at(volume, path)
}

/// Makes what is missing; the last directory, if it was.
fn make_all(volume: &Volume, path: &[u8], new: &New) -> Result<Option<Node>> {
    let (mut here, mut last, mut above) = (b"/".to_vec(), None, New::of(None));
    // Their owner gets into them, whatever the umask says.
    above.cx.umask &= !0o300;
    let mut names = path.split(|b| *b == b'/').filter(|name| !name.is_empty()).peekable();
    while let Some(name) = names.next() {
        let below = join(&here, name);
        last = match volume.find(&below, true) {
            Ok(node) if node.is_dir() => None,
            Ok(_) => return Err(FsError::from(Errno::ENOTDIR)).at(volume, &below),
            Err(FsError::Posix(Errno::ENOENT)) => {
                let parent = volume.find(&here, true).at(volume, &here)?;
                let how = if names.peek().is_some() { &above } else { new };
                Some(how.make(volume, &parent, name).at(volume, &below)?)
            }
            Err(error) => return Err(error).at(volume, &below),
        };
        here = below;
    }
    Ok(last)
}
