//! `spinney trim`: give an image's free space back.

use super::Command;
use crate::args::{Arg, Args, one, unexpected};
use crate::error::{Error, Exit, Result};
use crate::image::{self, Access};
use crate::output::{Json, Out, human};
use btrfs_fs::{BtrfsFs, Options, Subvol};
use std::path::Path;
use vfs::FileSystem;

pub const COMMAND: Command = Command {
    name: "trim",
    summary: "give a volume's free space back",
    usage: "[--json] IMAGE",
    help: "\
Tells the device below a volume that is not mounted which of its bytes are free: an image
becomes sparse there, an SSD can use them. What files and trees need is not touched. A log
that a crash left is replayed first.

On a mounted volume `fstrim MOUNTPOINT` does the same; with `mount -o discard` each commit
does it for what became free since the last one.

Options
    --json    tell how many bytes as a JSON object

Examples
    spinney trim disk.img

Exit codes
    0  done
    1  the volume cannot be written, or the device failed; the message says why
    2  the command line is wrong
",
    run,
};

fn run(mut args: Args) -> Result<Exit> {
    let (mut json, mut operands) = (false, Vec::new());
    while let Some(arg) = args.next()? {
        match arg {
            Arg::Long("json") => json = true,
            Arg::Value(value) => operands.push(value),
            other => return Err(unexpected(other)),
        }
    }
    let image = one(operands, "an image")?;
    let path = Path::new(&image);
    let failed = |error: vfs::FsError| Error::about(path.display(), error);
    let medium = image::open(path, Access::Write)?;
    let options = Options { background: false, ..Options::default() };
    let fs = BtrfsFs::open_device(medium.device(), options)
        .map_err(|e| image::opening_volume(path, &Subvol::Default, true, &e))?;
    image::tell_converted(path, fs.made_free_space_tree());
    let trimmed = fs.trim(&vfs::Context::default(), 0, u64::MAX, 0);
    // An error of the trim says more than that of the closing behind it.
    let closed = fs.destroy();
    let trimmed = trimmed.and_then(|bytes| closed.map(|()| bytes)).map_err(failed)?;
    let mut out = Out::new();
    out.line(match json {
        true => Json::object(|o| {
            o.bytes("image", path.as_os_str().as_encoded_bytes()).number("trimmed_bytes", trimmed);
        }),
        false => format!("{} are free and given back", human(trimmed)),
    })?;
    out.finish()?;
    Ok(Exit::Done)
}
