//! `spinney chown`.

use super::Command;
use crate::args::{self, Arg, Args};
use crate::error::{Error, Exit, Result};
use crate::image::ImagePath;
use crate::inside::volumes::At;
use crate::inside::{self, Failures, Node, Scope, Volumes, walk};
use crate::mount::options::{subvol_id, subvol_path};
use crate::sys;
use btrfs_fs::Subvol;
use spinney::Volume;
use vfs::{FileKind, SetAttr};

pub const COMMAND: Command = Command {
    name: "chown",
    summary: "change owners in a volume",
    usage: "[-R] [-h] USER[:GROUP] IMAGE:/PATH...",
    help: "\
Changes user and group of files in a volume that is not mounted: USER, USER:GROUP, :GROUP,
or `USER:` for the user's login group. Both are numbers, or names of this machine, which
need not be those of the machine that the volume belongs to. Set-user-ID and set-group-ID
of files are cleared, as the kernel does. Symbolic links are followed; with -R those below
are changed themselves.

Options
    -R, --recursive        directories and everything below
    -h, --no-dereference   change symbolic links themselves
    --subvol PATH, --subvolid ID
                           start from this subvolume instead of the volume's default one

Examples
    spinney chown 1000:1000 disk.img:/home/user
    spinney chown -R www-data: disk.img:/srv/www
",
    run,
};

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Owner {
    uid: Option<u32>,
    gid: Option<u32>,
}

fn run(mut args: Args) -> Result<Exit> {
    let (mut words, mut subvol) = (Vec::new(), Subvol::Default);
    let (mut recursive, mut follow) = (false, true);
    while let Some(arg) = args.next()? {
        match arg {
            Arg::Short('R') | Arg::Long("recursive") => recursive = true,
            Arg::Short('h') | Arg::Long("no-dereference") => follow = false,
            Arg::Long("subvol") => subvol = subvol_path(&args.text()?)?,
            Arg::Long("subvolid") => subvol = subvol_id(&args.text()?)?,
            Arg::Value(value) => words.push(value),
            other => return Err(args::unexpected(other)),
        }
    }
    if words.is_empty() {
        return Err(Error::usage("the owner is missing"));
    }
    let owner = owner(&args::text(words.remove(0))?)?;
    let operands = words.iter().map(|w| ImagePath::expect(w)).collect::<Result<Vec<_>>>()?;
    let operands = args::some(operands, "IMAGE:/PATH")?;
    Scope::of(subvol, &operands, true).run(|volumes, failures| {
        for operand in &operands {
            failures.keep(apply(volumes, failures, operand, owner, (recursive, follow)));
        }
        Ok(())
    })
}

fn owner(text: &str) -> Result<Owner> {
    let (user, group) = match text.split_once(':') {
        Some((user, group)) => (user, Some(group)),
        None => (text, None),
    };
    let mut owner = Owner::default();
    let mut login = None;
    if let Some(uid) = args::id(user) {
        owner.uid = Some(uid);
    } else if !user.is_empty() {
        let found = sys::user_id_and_group(user);
        let (uid, gid) = found.ok_or_else(|| Error::new(format!("no user {user} here")))?;
        (owner.uid, login) = (Some(uid), Some(gid));
    }
    owner.gid = match group {
        None => None,
        Some("") if user.is_empty() => None,
        Some("") => {
            let why = || Error::new(format!("{text}: a number has no login group"));
            Some(login.ok_or_else(why)?)
        }
        Some(group) => match args::id(group) {
            Some(gid) => Some(gid),
            None => Some(
                sys::group_id(group).ok_or_else(|| Error::new(format!("no group {group} here")))?,
            ),
        },
    };
    match owner {
        Owner { uid: None, gid: None } => Err(Error::usage("the owner is missing")),
        owner => Ok(owner),
    }
}

fn apply(
    volumes: &Volumes,
    failures: &Failures,
    operand: &ImagePath,
    owner: Owner,
    (recursive, follow): (bool, bool),
) -> Result<()> {
    let (volume, path) = (volumes.of(operand)?, &operand.path);
    let top = volume.find(path, follow).at(volume, path)?;
    if !recursive {
        return one(volume, &top, owner).at(volume, path);
    }
    walk::every(volume, top, path.clone(), failures, &mut |node| one(volume, node, owner))
}

fn one(volume: &Volume, node: &Node, owner: Owner) -> vfs::Result<()> {
    let set = SetAttr {
        uid: owner.uid,
        gid: owner.gid,
        kill_priv: node.attr.kind == FileKind::File,
        ..SetAttr::default()
    };
    volume.fs().setattr(&inside::context(), node.ino(), &set).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_are_names_and_numbers() {
        let both = |uid, gid| Owner { uid, gid };
        assert_eq!(owner("5").unwrap(), both(Some(5), None));
        assert_eq!(owner("4294967294").unwrap(), both(Some(u32::MAX - 1), None));
        assert!(owner("4294967295").is_err() && owner("5:4294967295").is_err());
        assert_eq!(owner("5:6").unwrap(), both(Some(5), Some(6)));
        assert_eq!(owner(":6").unwrap(), both(None, Some(6)));
        assert_eq!(owner("root:root").unwrap(), both(Some(0), Some(0)));
        assert_eq!(owner("root:").unwrap(), both(Some(0), Some(0)));
        for wrong in ["", ":", "5:", "no-such-user", "0:no-such-group", "-1"] {
            assert!(owner(wrong).is_err(), "{wrong}");
        }
    }
}
