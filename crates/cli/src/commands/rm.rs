//! `spinney rm`.

use super::Command;
use crate::args::{self, Arg, Args};
use crate::error::{Error, Exit, Result};
use crate::image::ImagePath;
use crate::inside::volumes::At;
use crate::inside::{Failures, Scope};
use crate::mount::options::{subvol_id, subvol_path};
use crate::output::Out;
use btrfs_fs::Subvol;
use spinney::Volume;
use spinney::tree::remove::{self, Tell};
use vfs::{Context, Errno, FsError};

pub const COMMAND: Command = Command {
    name: "rm",
    summary: "remove files from a volume",
    usage: "[-r] [-f] [-d] [-v] IMAGE:/PATH...",
    help: "\
Removes files from a volume that is not mounted. Nothing is asked, and nothing brings them
back. What cannot be removed is told, and the rest goes; of a read-only subvolume it is told
once.

Options
    -r, -R, --recursive   directories and everything below
    -f, --force           no error if PATH is not there
    -d, --dir             empty directories as well
    -v, --verbose         name what is removed
    --subvol PATH, --subvolid ID
                          start from this subvolume instead of the volume's default one

Examples
    spinney rm disk.img:/tmp/x disk.img:/tmp/y
    spinney rm -rf disk.img:/var/cache
",
    run,
};

#[derive(Clone, Copy, Default)]
struct Options {
    recursive: bool,
    force: bool,
    directories: bool,
    verbose: bool,
}

fn run(mut args: Args) -> Result<Exit> {
    let (mut operands, mut subvol) = (Vec::new(), Subvol::Default);
    let mut options = Options::default();
    while let Some(arg) = args.next()? {
        match arg {
            Arg::Short('r' | 'R') | Arg::Long("recursive") => options.recursive = true,
            Arg::Short('f') | Arg::Long("force") => options.force = true,
            Arg::Short('d') | Arg::Long("dir") => options.directories = true,
            Arg::Short('v') | Arg::Long("verbose") => options.verbose = true,
            Arg::Long("subvol") => subvol = subvol_path(&args.text()?)?,
            Arg::Long("subvolid") => subvol = subvol_id(&args.text()?)?,
            Arg::Value(value) => operands.push(ImagePath::expect(&value)?),
            other => return Err(args::unexpected(other)),
        }
    }
    if operands.is_empty() && options.force {
        return Ok(Exit::Done);
    }
    let operands = args::some(operands, "IMAGE:/PATH")?;
    Scope::of(subvol, &operands, true).run(|volumes, failures| {
        let mut out = Out::new();
        for operand in &operands {
            let removed = volumes
                .of(operand)
                .and_then(|volume| one(volume, operand, options, failures, &mut out));
            failures.keep(removed);
        }
        out.finish()
    })
}

fn one(
    volume: &Volume,
    operand: &ImagePath,
    options: Options,
    failures: &Failures,
    out: &mut Out,
) -> Result<()> {
    let (fs, path) = (volume.fs(), &operand.path);
    let found = volume
        .find_parent(path)
        .and_then(|(parent, name)| Ok((parent.child(&name)?, parent, name)));
    let (node, parent, name) = match found {
        Err(FsError::Posix(Errno::ENOENT)) if options.force => return Ok(()),
        Err(FsError::Posix(Errno::EINVAL)) => {
            return Err(Error::about(operand.show(), "`/`, `.` and `..` are not removed"));
        }
        other => other.at(volume, path)?,
    };
    let mut told = |path: &[u8]| match options.verbose {
        true => out.line([b"removed ", path].concat()),
        false => Ok(()),
    };
    if !node.is_dir() {
        if path.ends_with(b"/") {
            return Err(FsError::from(Errno::ENOTDIR)).at(volume, path);
        }
        drop(node);
        fs.unlink(&Context::default(), parent.ino(), &name).at(volume, path)?;
        return told(path);
    }
    drop(node);
    if options.recursive {
        let failed = &mut |error| pass_over(error, failures);
        return remove::tree(volume, &parent, &name, path, Tell { removed: &mut told, failed });
    }
    if options.directories {
        fs.rmdir(&Context::default(), parent.ino(), &name).at(volume, path)?;
        return told(path);
    }
    Err(Error::about(operand.show(), "is a directory").remedy("-r removes it and what is below"))
}

/// As rm(1) does with what it cannot remove.
fn pass_over(error: spinney::Error, failures: &Failures) -> Result<()> {
    match error.errno() {
        Some(libc::ENOSPC) => Err(error.into()),
        _ => {
            failures.tell(&error.into());
            Ok(())
        }
    }
}
