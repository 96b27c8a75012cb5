//! `spinney cat`.

use super::Command;
use crate::args::{self, Arg, Args};
use crate::error::{Error, Exit, Result, io_text};
use crate::image::ImagePath;
use crate::inside::fill::FileAt;
use crate::inside::volumes::At;
use crate::inside::{Scope, Volumes};
use crate::mount::options::{subvol_id, subvol_path};
use crate::output::Out;
use btrfs_fs::Subvol;
use std::ffi::OsStr;
use std::io::Read;
use vfs::{Errno, FileKind, FsError};

pub const COMMAND: Command = Command {
    name: "cat",
    summary: "write files of a volume to standard output",
    usage: "IMAGE:/PATH|-...",
    help: "\
Writes the content of files in a volume that is not mounted to standard output. Every block
is verified against its checksum before it is written; where that fails the file ends with
an error instead (`spinney cp IMAGE:/PATH -` goes on, with zeros for what is lost). `-`
stands for standard input.

Options
    --subvol PATH, --subvolid ID
                 start from this subvolume instead of the volume's default one

Examples
    spinney cat disk.img:/etc/fstab
",
    run,
};

fn run(mut args: Args) -> Result<Exit> {
    let (mut operands, mut subvol) = (Vec::new(), Subvol::Default);
    while let Some(arg) = args.next()? {
        match arg {
            Arg::Long("subvol") => subvol = subvol_path(&args.text()?)?,
            Arg::Long("subvolid") => subvol = subvol_id(&args.text()?)?,
            Arg::Value(value) => operands.push(Source::of(&value)?),
            other => return Err(args::unexpected(other)),
        }
    }
    let operands = args::some(operands, "IMAGE:/PATH")?;
    let mut scope = Scope::new(subvol);
    for operand in &operands {
        if let Source::Image(path) = operand {
            scope.add(path, false);
        }
    }
    scope.run(|volumes, failures| {
        let mut out = Out::new();
        for operand in &operands {
            failures.keep(match operand {
                Source::Image(path) => cat(volumes, path, &mut out),
                Source::Input => pass(&mut out),
            });
            if out.closed() {
                break;
            }
        }
        out.finish_content()
    })
}

enum Source {
    Image(ImagePath),
    Input,
}

impl Source {
    fn of(word: &OsStr) -> Result<Source> {
        match word == "-" {
            true => Ok(Source::Input),
            false => ImagePath::expect(word).map(Source::Image),
        }
    }
}

/// Standard input to standard output.
fn pass(out: &mut Out) -> Result<()> {
    let mut buffer = vec![0; 1 << 16];
    let failed = |e: std::io::Error| Error::about("standard input", io_text(&e));
    loop {
        match std::io::stdin().read(&mut buffer).map_err(failed)? {
            0 => return Ok(()),
            got => out.content(&buffer[..got])?,
        }
    }
}

fn cat(volumes: &Volumes, operand: &ImagePath, out: &mut Out) -> Result<()> {
    let (volume, path) = (volumes.of(operand)?, &operand.path);
    let node = volume.find(path, true).at(volume, path)?;
    match node.attr.kind {
        FileKind::File => {}
        FileKind::Dir => return Err(FsError::from(Errno::EISDIR)).at(volume, path),
        _ => return Err(Error::about(operand.show(), "has no content: a device, fifo or socket")),
    }
    FileAt::of(volume, &node, path).bytes(&mut |bytes| out.content(bytes))
}
