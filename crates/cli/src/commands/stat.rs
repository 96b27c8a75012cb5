//! `spinney stat`.

use super::Command;
use crate::args::{self, Arg, Args};
use crate::error::{Exit, Result};
use crate::image::ImagePath;
use crate::inside::volumes::At;
use crate::inside::{Node, Scope};
use crate::mount::options::{subvol_id, subvol_path};
use crate::output::{Json, Out};
use crate::show::{self, Owners};
use crate::when;
use btrfs_fs::Subvol;
use spinney::Volume;
use vfs::FileKind;

pub const COMMAND: Command = Command {
    name: "stat",
    summary: "tell all about files in a volume",
    usage: "[-L] [--json] IMAGE:/PATH...",
    help: "\
Tells type, size, owner, permissions and times of files in a volume that is not mounted.

Options
    -L, --dereference   follow symbolic links
    --json              an array of objects, one for each path; times are in UTC
    --subvol PATH, --subvolid ID
                        start from this subvolume instead of the volume's default one

Examples
    spinney stat disk.img:/etc/fstab
    spinney stat --json disk.img:/a disk.img:/b
",
    run,
};

fn run(mut args: Args) -> Result<Exit> {
    let (mut operands, mut subvol) = (Vec::new(), Subvol::Default);
    let (mut follow, mut json) = (false, false);
    while let Some(arg) = args.next()? {
        match arg {
            Arg::Short('L') | Arg::Long("dereference") => follow = true,
            Arg::Long("json") => json = true,
            Arg::Long("subvol") => subvol = subvol_path(&args.text()?)?,
            Arg::Long("subvolid") => subvol = subvol_id(&args.text()?)?,
            Arg::Value(value) => operands.push(ImagePath::expect(&value)?),
            other => return Err(args::unexpected(other)),
        }
    }
    let operands = args::some(operands, "IMAGE:/PATH")?;
    Scope::of(subvol, &operands, false).run(|volumes, failures| {
        let (mut out, mut objects, mut owners) = (Out::new(), Vec::new(), Owners::default());
        for operand in &operands {
            let found = volumes.of(operand).and_then(|volume| find(volume, operand, follow));
            let Some((node, target)) = failures.keep(found) else { continue };
            if json {
                objects.push(object(operand, &node, target.as_deref()));
            } else {
                out.bytes(&text(operand, &node, target.as_deref(), &mut owners))?;
            }
        }
        if json {
            out.line(format!("[{}]", objects.join(",\n")))?;
        }
        out.finish()
    })
}

type Found<'v> = (Node, Option<Vec<u8>>);

fn find<'v>(volume: &'v Volume, operand: &ImagePath, follow: bool) -> Result<Found<'v>> {
    let path = &operand.path;
    let node = volume.find(path, follow).at(volume, path)?;
    let target = match node.is_symlink() {
        true => Some(volume.fs().readlink(node.ino()).at(volume, path)?),
        false => None,
    };
    Ok((node, target))
}

fn object(operand: &ImagePath, node: &Node, target: Option<&[u8]>) -> String {
    Json::object(|o| {
        o.bytes("path", &operand.path);
        show::json(o, &node.attr);
        if let Some(target) = target {
            o.bytes("target", target);
        }
    })
}

fn text(operand: &ImagePath, node: &Node, target: Option<&[u8]>, owners: &mut Owners) -> Vec<u8> {
    let attr = &node.attr;
    let mut text = format!("  File: {}", String::from_utf8_lossy(&operand.path));
    if let Some(target) = target {
        text.push_str(&format!(" -> {}", String::from_utf8_lossy(target)));
    }
    let kind = match attr.kind {
        FileKind::CharDevice | FileKind::BlockDevice => {
            let (major, minor) = show::device_numbers(attr.rdev);
            format!("{} {major}, {minor}", show::kind_word(attr.kind))
        }
        kind => show::kind_word(kind).to_owned(),
    };
    text.push_str(&format!(
        "\n  Size: {:<15} Blocks: {:<10} IO Block: {:<6} {kind}\n",
        attr.size, attr.blocks, attr.blksize
    ));
    text.push_str(&format!(" Inode: {:<15} Links: {}\n", attr.ino.0, attr.nlink));
    text.push_str(&format!(
        "Access: ({:04o}/{})  Uid: ({:>5}/{:>8})   Gid: ({:>5}/{:>8})\n",
        attr.perm,
        show::mode_text(attr),
        attr.uid,
        owners.user(attr.uid),
        attr.gid,
        owners.group(attr.gid)
    ));
    for (name, time) in [
        ("Access", attr.atime),
        ("Modify", attr.mtime),
        ("Change", attr.ctime),
        (" Birth", attr.btime),
    ] {
        text.push_str(&format!("{name}: {}\n", when::full(time)));
    }
    text.into_bytes()
}
