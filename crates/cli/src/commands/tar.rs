//! `spinney tar`: trees of a volume into an archive, and an archive into a volume.

use super::Command;
use crate::archive::{Packer, Unpacker};
use crate::args::{self, Arg, Args};
use crate::error::{Error, Exit, Result};
use crate::image::ImagePath;
use crate::inside::path::split;
use crate::inside::volumes::At;
use crate::inside::{self, Failures, Scope, Volumes};
use crate::mount::options::{subvol_id, subvol_path};
use crate::out_file::{OutFile, Settling};
use crate::rescue_options::RescueOptions;
use btrfs_fs::Subvol;
use std::ffi::OsString;
use std::fs::File;
use std::io::{BufReader, BufWriter, IsTerminal, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;

pub const COMMAND: Command = Command {
    name: "tar",
    summary: "put trees of a volume into a tar archive, and back",
    usage: "\
-c [-f FILE] [OPTIONS] IMAGE:/PATH...
-x [-f FILE] [OPTIONS] IMAGE:/DIRECTORY",
    help: "\
With -c writes files and trees of a volume that is not mounted to an archive, with -x unpacks
an archive into a directory of a volume. Without -f, or with `-f -`, the archive is standard
output or standard input. It is not compressed: put gzip or zstd behind or in front.

The format is that of POSIX (pax), as GNU tar and bsdtar read and write it: owners as
numbers, times to the nanosecond, extended attributes with ACLs and capabilities (GNU tar
restores them with --xattrs --xattrs-include='*'), hard links, holes, devices and fifos;
sockets are left out. Members are named by the last name of PATH, those of a volume's root
`./...`. ACLs that are texts (GNU tar and bsdtar --acls) are unpacked: who is named there
without a number is looked up on this machine, and if he is not known the file is its owner's
alone.

Unpacking, files that are there are replaced, directories are filled. All is one commit,
unless it is larger than the memory for uncommitted changes. Names that lead out of
DIRECTORY, by .. or by a symbolic link of the same archive, are refused, and paths of more
than 64 KiB. What replaces something is made beside it first, and needs room for both
meanwhile. Of links and devices it may stay there as `.spinney-PID-N` when the command is
killed: remove it then.

Options
    -c, --create              make an archive
    -x, --extract             unpack one
    -f, --file FILE           the archive; - is standard output or input
    -v, --verbose             name each member, on standard error
    --exclude PATTERN         with -c: leave out what has this name or path, with all below
    --strip-components N      with -x: without the first N names of each path
    --subvol PATH, --subvolid ID
                              start from this subvolume instead of the volume's default one
    --rescue WORD[:WORD...]
                              make do with a damaged volume, as mount -o ro,rescue=
                              does: usebackuproot:ignorebadroots first. With
                              ignoredatacsums (and all) what is copied without a
                              checksum that fits is named, and the exit code is 1

Examples
    spinney tar -c disk.img:/etc | zstd > etc.tar.zst
    spinney tar -cf root.tar --exclude './var/cache/*' disk.img:/
    docker export container | spinney tar -x root.img:/
",
    run,
};

#[derive(Default)]
struct Words {
    create: bool,
    extract: bool,
    file: Option<OsString>,
    verbose: bool,
    exclude: Vec<Vec<u8>>,
    strip: usize,
    rescue: RescueOptions,
    operands: Vec<ImagePath>,
}

fn run(mut args: Args) -> Result<Exit> {
    let (mut words, mut subvol) = (Words::default(), Subvol::Default);
    while let Some(arg) = args.next()? {
        match arg {
            Arg::Short('c') | Arg::Long("create") => words.create = true,
            Arg::Short('x') | Arg::Long("extract") => words.extract = true,
            Arg::Short('f') | Arg::Long("file") => words.file = Some(args.value()?),
            Arg::Short('v') | Arg::Long("verbose") => words.verbose = true,
            Arg::Long("exclude") => words.exclude.push(args.value()?.into_vec()),
            Arg::Long("strip-components") => {
                let text = args.text()?;
                let wrong = || Error::usage(format!("{text:?} is no number of names"));
                words.strip = text.parse().map_err(|_| wrong())?;
            }
            Arg::Long("subvol") => subvol = subvol_path(&args.text()?)?,
            Arg::Long("subvolid") => subvol = subvol_id(&args.text()?)?,
            Arg::Long("rescue") => words.rescue = RescueOptions::parse(&args.text()?)?,
            Arg::Value(value) => words.operands.push(ImagePath::expect(&value)?),
            other => return Err(args::unexpected(other)),
        }
    }
    words.file = words.file.filter(|file| file != "-");
    words.operands = args::some(words.operands, "IMAGE:/PATH")?;
    match (words.create, words.extract) {
        (true, false) => create(&words, subvol),
        (false, true) => extract(&words, subvol),
        _ => Err(Error::usage("either -c, to make an archive, or -x, to unpack one")),
    }
}

fn create(words: &Words, subvol: Subvol) -> Result<Exit> {
    if words.file.is_none() && std::io::stdout().is_terminal() {
        return Err(Error::usage("an archive is nothing for a terminal; write -f FILE"));
    }
    Scope::of(subvol, &words.operands, false).rescue(words.rescue).run(|volumes, failures| {
        // What the file has stays if nothing of this is there.
        let look_up = |operand| failures.keep(found(volumes, operand)).map(|it| (operand, it));
        let all: Vec<_> = words.operands.iter().filter_map(look_up).collect();
        if all.is_empty() {
            return Ok(());
        }
        let out: Box<dyn Write> = match &words.file {
            Some(file) => Box::new(emptied(Path::new(file))?),
            None => Box::new(Settling(own(std::io::stdout().as_fd(), "standard output")?)),
        };
        let mut packer = Packer::new(BufWriter::with_capacity(1 << 20, out), failures);
        packer.exclude.clone_from(&words.exclude);
        packer.verbose = words.verbose;
        for (operand, (volume, node, name)) in all {
            packer.tree(volume, node, &operand.path, &name)?;
        }
        packer.finish()
    })
}

/// Unless an image that is open is meant: by mistake, as one that is read.
fn emptied(path: &Path) -> Result<OutFile> {
    let mut file = OutFile::open(path, 0o666)?;
    file.is_free()?;
    file.empty().map_err(|e| Error::io(path, &e))?;
    Ok(file)
}

type Found<'v> = (&'v spinney::Volume, inside::Node, Vec<u8>);

/// The node, and how its members are called.
fn found<'v>(volumes: &'v Volumes, operand: &ImagePath) -> Result<Found<'v>> {
    let volume = volumes.of(operand)?;
    let node = volume.find(&operand.path, false).at(volume, &operand.path)?;
    let name = match split(&operand.path) {
        Some((_, name)) => name.to_vec(),
        None => b"./".to_vec(),
    };
    Ok((volume, node, name))
}

fn extract(words: &Words, subvol: Subvol) -> Result<Exit> {
    let [target] = words.operands.as_slice() else {
        return Err(Error::usage("one directory at a time"));
    };
    if words.rescue != RescueOptions::default() {
        return Err(Error::usage("--rescue is for volumes that are read"));
    }
    let from = match &words.file {
        Some(file) => File::open(file).map_err(|e| Error::io(Path::new(file), &e))?,
        None if std::io::stdin().is_terminal() => {
            return Err(Error::usage("standard input is a terminal; write -f FILE"));
        }
        None => own(std::io::stdin().as_fd(), "standard input")?,
    };
    Scope::of(subvol, &words.operands, true)
        .run(|volumes, failures| unpack(volumes, failures, words, target, from))
}

fn unpack(
    volumes: &Volumes,
    failures: &Failures,
    words: &Words,
    target: &ImagePath,
    from: File,
) -> Result<()> {
    let (volume, path) = (volumes.of(target)?, &target.path);
    let top = volume.find(path, true).at(volume, path)?;
    if !top.is_dir() {
        return Err(Error::about(target.show(), "is no directory"));
    }
    let mut unpacker = Unpacker::new(volume, &top, path);
    unpacker.strip = words.strip;
    unpacker.verbose = words.verbose;
    unpacker.all(BufReader::with_capacity(1 << 20, from), failures)
}

/// The descriptor itself, without the library's buffer.
fn own(stream: impl AsFd, name: &str) -> Result<File> {
    let owned = stream.as_fd().try_clone_to_owned();
    owned.map(File::from).map_err(|e| Error::io(Path::new(name), &e))
}
