//! `spinney truncate`.

use super::Command;
use crate::args::{self, Arg, Args};
use crate::error::{Error, Exit, Result};
use crate::image::ImagePath;
use crate::inside::Scope;
use crate::inside::fill::FileAt;
use crate::inside::volumes::At;
use crate::mount::options::{subvol_id, subvol_path};
use btrfs_fs::Subvol;
use spinney::Volume;
use vfs::{Errno, FileKind, FsError};

pub const COMMAND: Command = Command {
    name: "truncate",
    summary: "set sizes of files in a volume",
    usage: "[-c] -s [+-<>/%]SIZE IMAGE:/PATH...",
    help: "\
Makes files in a volume that is not mounted shorter, or longer by a hole at the end. Files
that are not there are made.

Options
    -s, --size SIZE   64K, 2G; + and - in front add and take away, < and > set a most and a
                      least, / and % round down and up to a multiple
    -c, --no-create   do not make files
    --subvol PATH, --subvolid ID
                      start from this subvolume instead of the volume's default one

Examples
    spinney truncate -s 0 disk.img:/var/log/messages
    spinney truncate -s +1G disk.img:/vm.raw
",
    run,
};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Size {
    To(u64),
    By(i128),
    AtMost(u64),
    AtLeast(u64),
    Down(u64),
    Up(u64),
}

fn run(mut args: Args) -> Result<Exit> {
    let (mut operands, mut subvol) = (Vec::new(), Subvol::Default);
    let (mut size, mut no_create) = (None, false);
    while let Some(arg) = args.next()? {
        match arg {
            Arg::Short('s') | Arg::Long("size") => size = Some(parse(&args.text()?)?),
            Arg::Short('c') | Arg::Long("no-create") => no_create = true,
            Arg::Long("subvol") => subvol = subvol_path(&args.text()?)?,
            Arg::Long("subvolid") => subvol = subvol_id(&args.text()?)?,
            Arg::Value(value) => operands.push(ImagePath::expect(&value)?),
            other => return Err(args::unexpected(other)),
        }
    }
    let size = size.ok_or_else(|| Error::usage("the size is missing: -s SIZE"))?;
    let operands = args::some(operands, "IMAGE:/PATH")?;
    Scope::of(subvol, &operands, true).run(|volumes, failures| {
        for operand in &operands {
            let volume = volumes.of(operand);
            failures.keep(volume.and_then(|v| truncate(v, operand, size, no_create)));
        }
        Ok(())
    })
}

fn parse(text: &str) -> Result<Size> {
    let Some(rest) = text.strip_prefix(['+', '-', '<', '>', '/', '%']) else {
        return Ok(Size::To(args::size(text)?));
    };
    let size = args::size(rest)?;
    Ok(match text.as_bytes()[0] {
        b'+' => Size::By(i128::from(size)),
        b'-' => Size::By(-i128::from(size)),
        b'<' => Size::AtMost(size),
        b'>' => Size::AtLeast(size),
        _ if size == 0 => return Err(Error::usage("a multiple of 0 is no size")),
        b'/' => Size::Down(size),
        _ => Size::Up(size),
    })
}

impl Size {
    /// `None` if no file can be so long.
    fn of(self, now: u64) -> Option<u64> {
        match self {
            Size::To(size) => Some(size),
            Size::By(by) => u64::try_from((i128::from(now) + by).max(0)).ok(),
            Size::AtMost(most) => Some(now.min(most)),
            Size::AtLeast(least) => Some(now.max(least)),
            Size::Down(unit) => Some(now / unit * unit),
            Size::Up(unit) => now.checked_next_multiple_of(unit),
        }
    }
}

fn truncate(volume: &Volume, operand: &ImagePath, size: Size, no_create: bool) -> Result<()> {
    let path = &operand.path;
    let node = match volume.find(path, true) {
        Ok(node) => node,
        Err(FsError::Posix(Errno::ENOENT)) if no_create => return Ok(()),
        Err(FsError::Posix(Errno::ENOENT)) => super::touch::create(volume, path)?,
        Err(error) => return Err(error).at(volume, path),
    };
    match node.attr.kind {
        FileKind::File => {}
        FileKind::Dir => return Err(FsError::from(Errno::EISDIR)).at(volume, path),
        _ => return Err(Error::about(operand.show(), "is no file")),
    }
    let Some(size) = size.of(node.attr.size) else {
        return Err(FsError::from(Errno::EFBIG)).at(volume, path);
    };
    Ok(FileAt::of(volume, &node, path).set_size(size)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_relative_to_the_old_one() {
        for (text, old, new) in [
            ("5", 100, Some(5)),
            ("+5", 100, Some(105)),
            ("-5", 100, Some(95)),
            ("-1K", 100, Some(0)),
            ("<50", 100, Some(50)),
            ("<500", 100, Some(100)),
            (">500", 100, Some(500)),
            ("/64", 100, Some(64)),
            ("%64", 100, Some(128)),
            ("+16383P", u64::MAX, None),
        ] {
            assert_eq!(parse(text).unwrap().of(old), new, "{text}");
        }
        for wrong in ["", "+", "%0", "/0", "x", "++1"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
