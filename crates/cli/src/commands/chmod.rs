//! `spinney chmod`.

use super::Command;
use crate::args::{self, Arg, Args};
use crate::error::{Error, Exit, Result};
use crate::image::ImagePath;
use crate::inside::volumes::At;
use crate::inside::{self, Failures, Node, Scope, Volumes, walk};
use crate::mode::Change;
use crate::mount::options::{subvol_id, subvol_path};
use btrfs_fs::Subvol;
use spinney::Volume;
use std::ffi::OsString;
use vfs::SetAttr;

pub const COMMAND: Command = Command {
    name: "chmod",
    summary: "change permissions in a volume",
    usage: "[-R] MODE IMAGE:/PATH...",
    help: "\
Changes the permissions of files in a volume that is not mounted. MODE is octal (755, 4755)
or symbolic, as for chmod(1): who (u, g, o, a), + - or =, and what (r, w, x, X, s, t, or u, g
or o to copy from), several separated by commas. Symbolic links are followed; with -R those
below are left alone.

Options
    -R, --recursive   directories and everything below
    --subvol PATH, --subvolid ID
                      start from this subvolume instead of the volume's default one

Examples
    spinney chmod 600 disk.img:/etc/shadow
    spinney chmod -R u=rwX,go=rX disk.img:/srv
",
    run,
};

fn run(args: Args) -> Result<Exit> {
    let mut args = args.taking("rwxXst");
    let (mut words, mut subvol, mut recursive) = (Vec::new(), Subvol::Default, false);
    while let Some(arg) = args.next()? {
        match arg {
            Arg::Short('R') | Arg::Long("recursive") => recursive = true,
            Arg::Long("subvol") => subvol = subvol_path(&args.text()?)?,
            Arg::Long("subvolid") => subvol = subvol_id(&args.text()?)?,
            Arg::Value(value) => words.push(value),
            // `chmod -w FILE` takes away; the letters look like options.
            Arg::Short(letter @ ('r' | 'w' | 'x' | 'X' | 's' | 't')) if words.is_empty() => {
                let rest = args.optional_value().unwrap_or_default();
                words.push(OsString::from(format!("-{letter}{}", args::text(rest)?)));
            }
            other => return Err(args::unexpected(other)),
        }
    }
    if words.is_empty() {
        return Err(Error::usage("the mode is missing"));
    }
    let change = change(&args::text(words.remove(0))?)?;
    let operands = words.iter().map(|w| ImagePath::expect(w)).collect::<Result<Vec<_>>>()?;
    let operands = args::some(operands, "IMAGE:/PATH")?;
    Scope::of(subvol, &operands, true).run(|volumes, failures| {
        for operand in &operands {
            failures.keep(apply(volumes, failures, operand, &change, recursive));
        }
        Ok(())
    })
}

pub fn change(text: &str) -> Result<Change> {
    let wrong = || Error::new(format!("{text} is no mode; write 755 or u=rwx,go=rx"));
    Change::parse(text).ok_or_else(wrong)
}

fn apply(
    volumes: &Volumes,
    failures: &Failures,
    operand: &ImagePath,
    change: &Change,
    recursive: bool,
) -> Result<()> {
    let (volume, path) = (volumes.of(operand)?, &operand.path);
    let top = volume.find(path, true).at(volume, path)?;
    if !recursive {
        return one(volume, &top, change).at(volume, path);
    }
    walk::every(volume, top, path.clone(), failures, &mut |node| match node.is_symlink() {
        true => Ok(()),
        false => one(volume, node, change),
    })
}

fn one(volume: &Volume, node: &Node, change: &Change) -> vfs::Result<()> {
    let cx = inside::context();
    let perm = change.apply(node.attr.perm, node.is_dir(), cx.umask);
    let set = SetAttr { perm: Some(perm), ..SetAttr::default() };
    volume.fs().setattr(&cx, node.ino(), &set).map(drop)
}
