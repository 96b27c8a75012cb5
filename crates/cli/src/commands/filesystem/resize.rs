//! `spinney filesystem resize`: a volume becomes larger or smaller, and the image with it.

use crate::args::{self, Arg, Args};
use crate::commands::Command;
use crate::commands::target::{Refused, Target, image_of, reason};
use crate::error::{Error, Exit, Result};
use crate::image::Access;
use crate::output::Out;
use btrfs_fs::NewSize;
use std::fs::File;
use std::path::Path;

pub const COMMAND: Command = Command {
    name: "filesystem resize",
    summary: "make a volume larger or smaller",
    usage: "[DEVID:][+|-]SIZE|[DEVID:]max VOLUME",
    help: "\
Gives the volume SIZE bytes, or so many more or fewer, or all that its device has. VOLUME is
a directory of a mount, or an image that is not mounted. An image file is grown and cut as
well (not while it is mounted: there its length is the limit); a partition of a whole disk
(disk.img@2) stays as long as it is. What lies behind a nearer end
moves first.

Options
    --enqueue         taken, and without effect

Examples
    spinney filesystem resize +2G disk.img
    spinney filesystem resize max /mnt
    spinney filesystem resize 1:-512M /mnt

Exit codes
    0  done
    1  what there is does not fit, or it failed otherwise; nothing has changed
    2  the command line is wrong
",
    run,
};

fn run(args: Args) -> Result<Exit> {
    let mut args = args.taking("0123456789");
    let mut operands = Vec::new();
    while let Some(arg) = args.next()? {
        match arg {
            // `-512M` looks like options.
            Arg::Short(digit) => {
                let rest = args.optional_value().map_or(Ok(String::new()), args::text)?;
                operands.push(format!("-{digit}{rest}").into());
            }
            Arg::Long("enqueue") => {}
            Arg::Value(value) => operands.push(value),
            other => return Err(args::unexpected(other)),
        }
    }
    let [size, volume] = <[_; 2]>::try_from(operands)
        .map_err(|_| Error::usage("expected a size, and an image or a directory of a mount"))?;
    let (devid, size) = parse(&args::text(size)?)?;
    let image = image_of(&volume).filter(|path| path.is_file());
    if let Some(image) = &image {
        grow(image, devid, size)?;
    }
    let target = Target::open(&volume, Access::Write)?;
    target.tell_errors();
    let (old, new) = target.resize(devid, size).map_err(|refused| refusal(&target, &refused))?;
    let device = target.device().display().to_string();
    target.close()?;
    if let Some(image) = image.filter(|_| new < old) {
        let file = File::options().write(true).open(&image);
        file.and_then(|file| file.set_len(new)).map_err(|e| Error::io(&image, &e))?;
    }
    let mut out = Out::new();
    let to = if let NewSize::Max = size { "max".into() } else { pretty(new) };
    let from = pretty(old);
    out.line(format!("Resize device id {devid} ({device}) from {from} to {to}"))?;
    out.finish()?;
    Ok(Exit::Done)
}

fn refusal(target: &Target, refused: &Refused) -> Error {
    let why = match refused.errno {
        libc::EFBIG => "New size too large".into(),
        libc::ENODEV => "No such device".into(),
        libc::EINVAL => "the smallest size is 256MiB".into(),
        errno => reason(errno),
    };
    Error::new(format!("unable to resize '{}': {why}", target.show()))
}

fn parse(text: &str) -> Result<(u64, NewSize)> {
    let (devid, size) = match text.split_once(':') {
        Some((devid, size)) => {
            let wrong = || Error::usage(format!("{devid:?} is no number of a device"));
            (devid.parse().map_err(|_| wrong())?, size)
        }
        None => (1, text),
    };
    let size = match size.as_bytes().first() {
        Some(b'+') => NewSize::Plus(args::size(&size[1..])?),
        Some(b'-') => NewSize::Minus(args::size(&size[1..])?),
        _ if size == "max" => NewSize::Max,
        _ => NewSize::Bytes(args::size(size)?),
    };
    Ok((devid, size))
}

/// The file gets the length that the volume is to have.
fn grow(image: &Path, devid: u64, size: NewSize) -> Result<()> {
    let failed = |e: std::io::Error| Error::io(image, &e);
    let len = image.metadata().map_err(failed)?.len();
    let wanted = match size {
        NewSize::Bytes(bytes) => bytes,
        // Of what the volume has now, which may be less than the file.
        NewSize::Plus(bytes) => {
            let target = Target::open(image.as_os_str(), Access::Read)?;
            target.size(devid)?.saturating_add(bytes)
        }
        NewSize::Minus(_) | NewSize::Max => 0,
    };
    if wanted <= len {
        return Ok(());
    }
    let file = File::options().write(true).open(image).map_err(failed)?;
    file.set_len(wanted).map_err(failed)
}

fn pretty(bytes: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.2}{}", units[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_and_told_as_btrfs_does() {
        assert_eq!(parse("1:+2G").unwrap(), (1, NewSize::Plus(2 << 30)));
        assert_eq!(parse("-512M").unwrap(), (1, NewSize::Minus(512 << 20)));
        assert_eq!(parse("max").unwrap(), (1, NewSize::Max));
        assert_eq!(parse("2:300M").unwrap(), (2, NewSize::Bytes(300 << 20)));
        assert!(parse("x:1").is_err() && parse("all").is_err());
        assert_eq!(pretty(512 << 20), "512.00MiB");
    }
}
