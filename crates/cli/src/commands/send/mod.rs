//! `spinney send`.

mod mount;

use crate::args::{self, Arg, Args};
use crate::commands::Command;
use crate::commands::subvolume::place::{self, Open, VolumePath};
use crate::error::{Error, Exit, Result, io_text, say_error};
use crate::mount::options::{subvol_id, subvol_path};
use crate::out_file::OutFile;
use btrfs_fs::Subvol;
use btrfs_image::settled;
use btrfs_send::Protocol;
use btrfs_sender::Options;
use spinney::{SendOptions, Volume};
use std::ffi::{OsStr, OsString};
use std::io::{self, BufWriter, IsTerminal, StdoutLock, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

pub const COMMAND: Command = Command {
    name: "send",
    summary: "write a subvolume, or what changed in it, as a stream",
    usage: "[OPTIONS] [-p PARENT] [-c CLONE]... [-f FILE] SUBVOLUME...",
    help: "\
Writes read-only subvolumes as the stream that `spinney receive` and `btrfs receive` make
them from anew. With a parent it has only what differs; what did not change is not read.

Options
    -p PARENT         send what differs from this subvolume, which the receiver has, too
    -c CLONE          content that SUBVOLUME shares with this one, which the receiver has,
                      too, is taken from there; may be given several times. Without -p the
                      nearest relative of them is the parent
    -f FILE           write to FILE, not to standard output; a new one gets mode 0600
    -e                of several subvolumes: one header and one end for all of them
    --no-data         say which ranges of files changed, and not what is in them
    --proto N         1 (the default), or 2: with holes, flags of files, and times of birth;
                      or 3: files with fs-verity are sent as such, too, which in protocols 1
                      and 2 are ordinary files. 0: 2, the newest that all receivers know
    --compressed-data
                      compressed content as it is stored; protocol 2, where --proto says
                      nothing
    -q, --quiet       say nothing but errors
    -v, --verbose     taken, and without effect: it says what it sends anyway
    --subvol PATH, --subvolid ID
                      paths in an image start from this subvolume, not the default one

Examples
    spinney send disk.img:/snap1 | spinney receive backup.img:/
    spinney send -p disk.img:/snap1 disk.img:/snap2 | ssh host btrfs receive /backup
",
    run,
};

struct Wanted {
    subvolumes: Vec<VolumePath>,
    parent: Option<VolumePath>,
    clones: Vec<VolumePath>,
    file: Option<PathBuf>,
    stream: Options,
    verbose: bool,
}

fn run(args: Args) -> Result<Exit> {
    let (wanted, subvol) = words(args)?;
    let all: Vec<VolumePath> =
        wanted.subvolumes.iter().chain(&wanted.parent).chain(&wanted.clones).cloned().collect();
    let mut output = BufWriter::with_capacity(1 << 18, output(wanted.file.as_deref())?);
    if wanted.verbose {
        wanted
            .subvolumes
            .iter()
            .for_each(|place| say_error(&format!("At subvol {}", place.show())));
    }
    place::at(&all, subvol, false, |open, _| {
        let done = stream(open, &wanted, &all, &mut output);
        // Of what was refused at once the file hears nothing.
        if done.is_err() && matches!(output.get_ref(), To::File(file) if !file.has_begun()) {
            drop(output.into_parts());
        }
        done
    })
}

fn stream(
    open: &Open<'_>,
    wanted: &Wanted,
    all: &[VolumePath],
    output: &mut BufWriter<To>,
) -> Result<()> {
    if let To::File(file) = output.get_mut() {
        file.is_free()?;
    }
    match &all[0] {
        VolumePath::Mount(_) => mount::send(wanted, output)?,
        VolumePath::Image(first) => {
            let volume = open.volume(first)?;
            for other in &all[1..] {
                let same =
                    matches!(other, VolumePath::Image(inside) if open.volume(inside)?.is(volume));
                if !same {
                    let what = "lies in another volume than the subvolume that is sent";
                    return Err(Error::about(other.show(), what));
                }
            }
            send(volume, wanted, output)?;
        }
    }
    output.flush().map_err(|e| Error::about("the stream", io_text(&e)))
}

/// Where the stream goes.
enum To {
    File(OutFile),
    Output(StdoutLock<'static>),
}

impl Write for To {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            To::File(file) => file.write(bytes),
            To::Output(output) => output.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            To::File(file) => file.flush(),
            To::Output(output) => output.flush().and_then(|()| settled(&*output)),
        }
    }
}

fn words(mut args: Args) -> Result<(Wanted, Subvol)> {
    let (mut operands, mut clones) = (Vec::<OsString>::new(), Vec::<OsString>::new());
    let (mut parent, mut file, mut subvol) = (None, None, Subvol::Default);
    let (mut protocol, mut compressed, mut without_content) = (None, false, false);
    let (mut one_end, mut verbose) = (false, true);
    while let Some(arg) = args.next()? {
        match arg {
            Arg::Short('p') => parent = Some(args.value()?),
            Arg::Short('c') => clones.push(args.value()?),
            Arg::Short('f') => file = Some(args.path()?),
            Arg::Short('e') => one_end = true,
            Arg::Short('v') | Arg::Long("verbose") => verbose = true,
            Arg::Short('q') | Arg::Long("quiet") => verbose = false,
            Arg::Long("no-data") => without_content = true,
            Arg::Long("proto") => protocol = Some(protocol_of(&args.text()?)?),
            Arg::Long("compressed-data") => compressed = true,
            Arg::Long("subvol") => subvol = subvol_path(&args.text()?)?,
            Arg::Long("subvolid") => subvol = subvol_id(&args.text()?)?,
            Arg::Value(value) => operands.push(value),
            other => return Err(args::unexpected(other)),
        }
    }
    if operands.is_empty() {
        return Err(none());
    }
    // As with `btrfs send`: what is asked for says which one is needed.
    let protocol = protocol.unwrap_or(if compressed { Protocol::V2 } else { Protocol::V1 });
    let wanted = Wanted {
        subvolumes: VolumePath::all(&operands),
        parent: parent.map(|word: OsString| VolumePath::parse(&word)),
        clones: VolumePath::all(&clones),
        file,
        stream: Options { protocol, compressed, without_content, one_end },
        verbose,
    };
    Ok((wanted, subvol))
}

fn none() -> Error {
    Error::usage("expected SUBVOLUME")
}

fn protocol_of(word: &str) -> Result<Protocol> {
    match word {
        // As with `btrfs send`, 0 is the newest one.
        "0" | "2" => Ok(Protocol::V2),
        "1" => Ok(Protocol::V1),
        "3" => Ok(Protocol::V3),
        other => Err(Error::usage(format!("{other:?} is no protocol: 1, 2 or 3"))),
    }
}

fn output(file: Option<&Path>) -> Result<To> {
    match file {
        // What is in a stream not everybody may read.
        Some(path) => Ok(To::File(OutFile::open(path, 0o600)?)),
        None if io::stdout().is_terminal() => {
            Err(Error::usage("a stream is nothing for a terminal; write -f FILE"))
        }
        None => Ok(To::Output(io::stdout().lock())),
    }
}

fn send(volume: &Volume, wanted: &Wanted, output: &mut dyn Write) -> Result<()> {
    let path = |place: &VolumePath| match place {
        VolumePath::Image(inside) => PathBuf::from(OsStr::from_bytes(&inside.path)),
        VolumePath::Mount(path) => path.clone(),
    };
    let paths: Vec<PathBuf> = wanted.subvolumes.iter().map(path).collect();
    let stream = &wanted.stream;
    let mut options = SendOptions::new()
        .protocol_2(stream.protocol == Protocol::V2)
        .protocol_3(stream.protocol == Protocol::V3)
        .compressed(stream.compressed)
        .without_content(stream.without_content)
        .one_end(stream.one_end);
    if let Some(parent) = &wanted.parent {
        options = options.parent(path(parent));
    }
    for clone in &wanted.clones {
        options = options.clone_source(path(clone));
    }
    Ok(volume.send(&paths, &options, output)?)
}
