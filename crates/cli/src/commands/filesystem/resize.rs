//! `spinney filesystem resize`: a volume becomes larger or smaller, and the image with it.

use crate::args::{self, Arg, Args};
use crate::commands::Command;
use crate::commands::target::{Refused, Target, image_of, reason};
use crate::error::{Error, Exit, Result};
use crate::image::{self, Access, Medium};
use crate::output::Out;
use btrfs_fs::NewSize;
use std::path::{Path, PathBuf};

pub const COMMAND: Command = Command {
    name: "filesystem resize",
    summary: "make a volume larger or smaller",
    usage: "[DEVID:][+|-]SIZE|[DEVID:]max VOLUME",
    help: "\
Gives the volume SIZE bytes, or so many more or fewer, or all that its device has. VOLUME is
a directory of a mount, or an image that is not mounted. An image file is grown and cut as
well (not while it is mounted: there its length is the limit); a partition of a whole disk
(disk.img@2) stays as long as it is. What lies behind a nearer end
moves first. An image file that is shorter than its volume has lost its end, and is not
resized.

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
    let [size, volume] = args::exactly(operands, "a size, and an image or a directory of a mount")?;
    let (devid, size) = parse(&args::text(size)?)?;
    let (device, old, new) = match image_of(&volume).filter(|path| path.is_file()) {
        Some(path) => Image::open(path, devid)?.resize(size)?,
        None => resize(Target::open(&volume, Access::Write)?, devid, size)?,
    };
    let mut out = Out::new();
    let to = if let NewSize::Max = size { "max".into() } else { pretty(new) };
    let from = pretty(old);
    out.line(format!("Resize device id {devid} ({device}) from {from} to {to}"))?;
    out.finish()?;
    Ok(Exit::Done)
}

/// How the device is called, and how large it was and is.
fn resize(target: Target, devid: u64, size: NewSize) -> Result<(String, u64, u64)> {
    target.tell_errors();
    let (old, new) = target.resize(devid, size).map_err(|refused| refusal(&target, &refused))?;
    let device = target.device().display().to_string();
    target.close()?;
    Ok((device, old, new))
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

/// An image file, which is nobody else's from before it is looked at until it has its length. Whatever has its name
/// meanwhile, this very file is meant.
struct Image {
    path: PathBuf,
    devid: u64,
    medium: Medium,
}

impl Image {
    fn open(path: PathBuf, devid: u64) -> Result<Image> {
        let medium = image::open(&path, Access::Write)?;
        Ok(Image { path, devid, medium })
    }

    fn resize(&self, size: NewSize) -> Result<(String, u64, u64)> {
        let grown = self.grow(size)?;
        let done = self.resize_volume(size).inspect_err(|_| {
            if let Some(had) = grown {
                self.put_back(had);
            }
        })?;
        if done.2 < done.1 {
            self.cut()?;
        }
        Ok(done)
    }

    /// What the volume has, and is to have.
    fn sizes(&self, size: NewSize) -> Result<(u64, u64)> {
        let target = Target::on(self.medium.peek()?, self.path.clone(), true)?;
        target.sizes(self.devid, size).map_err(|refused| refusal(&target, &refused))
    }

    /// The file gets the length that the volume is to have; what it had, if that was less.
    ///
    /// With zeros behind its end a file that has lost something would count as whole: it is looked at before.
    fn grow(&self, size: NewSize) -> Result<Option<u64>> {
        let (old, new) = self.sizes(size)?;
        let len = self.medium.device().len();
        if len < old {
            return Err(is_cut(&self.path, len, old));
        }
        if new <= len {
            return Ok(None);
        }
        self.medium.set_len(new)?;
        Ok(Some(len))
    }

    fn resize_volume(&self, size: NewSize) -> Result<(String, u64, u64)> {
        let target = Target::on(self.medium.share()?, self.path.clone(), false)?;
        resize(target, self.devid, size)
    }

    /// Takes from the file what lies behind its volume.
    fn cut(&self) -> Result<()> {
        let (end, _) = self.sizes(NewSize::Plus(0))?;
        match end >= self.medium.device().len() {
            true => Ok(()),
            false => Ok(self.medium.set_len(end)?),
        }
    }

    /// Takes away what `grow` has given to a file that had `had` bytes, unless the volume has it by now, or
    /// nobody knows: a file that is too long does no harm.
    fn put_back(&self, had: u64) {
        if self.sizes(NewSize::Plus(0)).is_ok_and(|(now, _)| now <= had) {
            let _ = self.medium.set_len(had);
        }
    }
}

fn is_cut(image: &Path, len: u64, volume: u64) -> Error {
    let name = image.display();
    let why = format!("the file has lost its end: it has {len} bytes, its volume {volume}");
    Error::about(&name, why).remedy(format!(
        "take the whole file from where it was copied from; `spinney cp -r {name}:/ DIR` saves what can \
         be read of this one"
    ))
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
    use std::fs::File;
    use testkit::oracle::TempDir;

    /// Between one step and the next another could have it.
    #[test]
    fn nobody_has_the_file_between_the_steps() {
        let dir = TempDir::new("resize-steps").unwrap();
        let (path, size, more) = (dir.join("disk.img"), 512 << 20, 64 << 20);
        spinney::FormatOptions::new().create(&path, size).unwrap().close().unwrap();
        let len = || path.metadata().unwrap().len();
        let is_held = || image::open(&path, Access::Read).is_err();
        let image = Image::open(path.clone(), 1).unwrap();
        assert_eq!(image.grow(NewSize::Plus(more)).unwrap(), Some(size));
        assert!(is_held() && len() == size + more);
        image.put_back(size);
        assert!(is_held() && len() == size);
        image.grow(NewSize::Plus(more)).unwrap();
        image.resize_volume(NewSize::Plus(more)).unwrap();
        image.put_back(size);
        assert!(is_held() && len() == size + more, "the volume has it");
        drop(image);
        let image = Image::open(path.clone(), 1).unwrap();
        image.resize_volume(NewSize::Bytes(size)).unwrap();
        assert!(is_held() && len() == size + more);
        image.cut().unwrap();
        assert!(is_held() && len() == size);
        drop(image);
        assert!(!is_held());
        testkit::oracle::assert_clean(&path);
    }

    /// Whoever owns the directory can put another file at the name, or a link to anybody's.
    #[test]
    fn what_has_the_name_by_now_is_not_cut() {
        let dir = TempDir::new("resize-swapped").unwrap();
        let (path, away, other) = (dir.join("disk.img"), dir.join("away"), dir.join("other"));
        let size = 512 << 20;
        spinney::FormatOptions::new().create(&path, size).unwrap().close().unwrap();
        let grown = size + 4096;
        File::options().write(true).open(&path).unwrap().set_len(grown).unwrap();
        File::create(&other).unwrap().set_len(grown).unwrap();
        let image = Image::open(path.clone(), 1).unwrap();
        std::fs::rename(&path, &away).unwrap();
        std::os::unix::fs::symlink(&other, &path).unwrap();
        image.cut().unwrap();
        let len = |path: &Path| path.metadata().unwrap().len();
        assert_eq!((len(&away), len(&other)), (size, grown));
    }

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
