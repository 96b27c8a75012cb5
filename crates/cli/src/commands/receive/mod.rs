//! `spinney receive`.

mod confine;
mod mount;
mod served;

use crate::args::{self, Arg, Args};
use crate::commands::Command;
use crate::commands::subvolume::place::{self, VolumePath};
use crate::error::{Error, Exit, Result, say_error};
use crate::image::ImagePath;
use crate::mount::options::{subvol_id, subvol_path};
use crate::mount::receive::ServerMessage;
use crate::output::Out;
use crate::sys::to_local;
use btrfs_fs::Subvol;
use btrfs_receiver::{Event, Options};
use btrfs_send::{Alone, Decoder, Dump};
use mount::InMount;
use served::Served;
use spinney::{ReceiveOptions, Receiving, Volume};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

pub const COMMAND: Command = Command {
    name: "receive",
    summary: "make subvolumes from a stream of `send`",
    usage: "[-Ceq] [-E N] [-f FILE] [-m ROOTMOUNT] DIRECTORY\n--dump [-f FILE]",
    help: "\
Makes in DIRECTORY the subvolumes that a stream of `spinney send` or `btrfs send` has, of
protocol 1 to 3. What the stream builds on must be in the same volume, received there or
sent from there, and still be read-only. Each subvolume is read-only when it is complete.
After an error the one that was not completed stays, writable; delete it to try again.

Options
    -f FILE           read from FILE, not from standard input
    -e                end behind the first end command of the stream
    -E, --max-errors N
                      end when N commands have failed (default: 1); 0: however many do.
                      A subvolume of which one did stays writable, and is not taken for
                      received, also where the stream goes on. Damage of the stream itself
                      ends it always
    -C, --chroot      for root: DIRECTORY of a mount becomes the root directory of the
                      process (chroot(2)) before the stream is read; what it builds on is
                      read through the mount, which is open. For an image the root directory
                      is an empty one that is deleted: nothing of the machine is there but
                      what is open, the image and the stream
    -m ROOTMOUNT      where the volume of DIRECTORY is mounted, instead of what
                      /proc/self/mountinfo says; for an image the image itself
    -q, --quiet       say nothing but errors
    -v, --verbose     taken, and without effect: it says what it makes anyway
    --dump            print what the stream says, a line for each command; nothing is changed
    --force-decompress
                      write compressed content (of `send --compressed-data`) by the rules of
                      the volume, where it would be stored as it is
    --subvol PATH, --subvolid ID
                      DIRECTORY in an image starts from this subvolume, not the default one

Examples
    spinney send disk.img:/snap | spinney receive backup.img:/snapshots
    spinney receive --dump -f home.stream
",
    run,
};

struct Wanted {
    dumps: bool,
    file: Option<PathBuf>,
    verbose: bool,
    operands: Vec<OsString>,
    subvol: Subvol,
    options: Options,
    confined: bool,
    /// Where the volume is mounted.
    point: Option<PathBuf>,
}

fn parse(mut args: Args) -> Result<Wanted> {
    let mut wanted = Wanted {
        dumps: false,
        file: None,
        verbose: true,
        operands: Vec::new(),
        subvol: Subvol::Default,
        options: Options::default(),
        confined: false,
        point: None,
    };
    while let Some(arg) = args.next()? {
        match arg {
            Arg::Long("dump") => wanted.dumps = true,
            Arg::Short('f') => wanted.file = Some(args.path()?),
            Arg::Short('e') => wanted.options.only_one = true,
            Arg::Short('E') | Arg::Long("max-errors") => {
                let word = args.text()?;
                let number = word.parse().map_err(|_| Error::usage(format!("{word:?} errors")))?;
                wanted.options.max_errors = number;
            }
            Arg::Short('C') | Arg::Long("chroot") => wanted.confined = true,
            Arg::Short('m') => wanted.point = Some(args.path()?),
            Arg::Long("force-decompress") => wanted.options.decompress = true,
            Arg::Short('v') | Arg::Long("verbose") => wanted.verbose = true,
            Arg::Short('q') | Arg::Long("quiet") => wanted.verbose = false,
            Arg::Long("subvol") => wanted.subvol = subvol_path(&args.text()?)?,
            Arg::Long("subvolid") => wanted.subvol = subvol_id(&args.text()?)?,
            Arg::Value(value) => wanted.operands.push(value),
            other => return Err(args::unexpected(other)),
        }
    }
    Ok(wanted)
}

fn run(args: Args) -> Result<Exit> {
    let wanted = parse(args)?;
    if wanted.dumps {
        let (name, input) = open(wanted.file.as_deref())?;
        return dump(&name, input);
    }
    let place = VolumePath::parse(&args::one(wanted.operands.clone(), "DIRECTORY")?);
    place::at(std::slice::from_ref(&place), wanted.subvol.clone(), true, |all, _| {
        let (name, input) = open(wanted.file.as_deref())?;
        let failed = match &place {
            VolumePath::Image(inside) => {
                let mut input = buffered(&wanted, input);
                into_image(&wanted, all.volume(inside)?, inside, &mut input)?
            }
            VolumePath::Mount(dir) => into_mount(&wanted, dir, (&name, input))?,
        };
        match failed {
            0 => Ok(()),
            1 => Err(Error::about(name, "a command of it failed: what it was for is not complete")),
            n => {
                let what = format!("{n} commands of it failed: what they were for is not complete");
                Err(Error::about(name, what))
            }
        }
    })
}

impl Wanted {
    fn begun(&self, path: &Path) {
        if self.verbose {
            say_error(&format!("At subvol {}", path.display()));
        }
    }
}

/// How many commands failed, where some may.
fn into_image(
    wanted: &Wanted,
    volume: &Volume,
    inside: &ImagePath,
    input: &mut dyn Read,
) -> Result<u64> {
    if let Some(point) = &wanted.point {
        confine::is_image(point, &inside.image)?;
    }
    if wanted.confined {
        confine::to_nothing()?;
    }
    let options = ReceiveOptions::new()
        .only_one(wanted.options.only_one)
        .max_errors(wanted.options.max_errors)
        .decompress(wanted.options.decompress);
    let dir = Path::new(OsStr::from_bytes(&inside.path));
    let failed = volume.receive(dir, input, &options, |told| match told {
        Receiving::Begun(path) => wanted.begun(path),
        Receiving::Failed(path, error) => {
            let image = inside.image.display();
            Error::about(format!("{image}:{}", path.display()), error).print();
        }
        _ => {}
    })?;
    Ok(failed)
}

fn into_mount(wanted: &Wanted, dir: &Path, (name, input): (&str, File)) -> Result<u64> {
    let real = match wanted.confined {
        true => dir.canonicalize().map_err(|e| Error::io(dir, &e))?,
        false => dir.to_owned(),
    };
    let mut target = InMount::new(&real, wanted.point.as_deref())?;
    let served = Served::ask(&real, &wanted.options);
    if wanted.confined {
        target.confine()?;
        if wanted.verbose {
            say_error(&format!("Chroot to {}", real.display()));
        }
    }
    match served {
        Some(served) => by_server(wanted, dir, served, (name, input)),
        None => by_calls(wanted, dir, &mut target, (name, input)),
    }
}

fn by_server(
    wanted: &Wanted,
    dir: &Path,
    served: Served,
    (name, input): (&str, File),
) -> Result<u64> {
    let mut last = dir.to_owned();
    served.send(dir, unbuffered(wanted, input), |told| {
        match told {
            ServerMessage::Begun(name) => {
                last = dir.join(OsStr::from_bytes(&name));
                wanted.begun(&last);
            }
            ServerMessage::Failed(error) => Error::about(last.display(), error).print(),
            ServerMessage::Done(failed) => return Some(Ok(failed)),
            ServerMessage::Stream(error) => return Some(Err(Error::about(name, error))),
            ServerMessage::Ended(error) => return Some(Err(Error::about(last.display(), error))),
        }
        None
    })
}

fn by_calls(
    wanted: &Wanted,
    dir: &Path,
    target: &mut InMount,
    (name, input): (&str, File),
) -> Result<u64> {
    let mut last = dir.to_owned();
    let mut input = buffered(wanted, input);
    let done =
        btrfs_receiver::receive(&mut input, target, wanted.options, &mut |told| match told {
            Event::Begun { name, .. } => {
                last = dir.join(OsStr::from_bytes(name));
                wanted.begun(&last);
            }
            Event::Failed(error) => Error::about(last.display(), error).print(),
        });
    done.map_err(|error| match error {
        btrfs_receiver::Error::Stream(error) => Error::about(name, error),
        error => Error::about(last.display(), error),
    })
}

type Input = Box<dyn Read + Send>;

/// What is behind the end of one stream is left to others.
fn unbuffered(wanted: &Wanted, input: File) -> Input {
    match wanted.options.only_one {
        true => Box::new(Alone::new(input)),
        false => Box::new(input),
    }
}

fn buffered(wanted: &Wanted, input: File) -> BufReader<Input> {
    BufReader::with_capacity(1 << 18, unbuffered(wanted, input))
}

/// Where a stream comes from, and its name.
fn open(file: Option<&Path>) -> Result<(String, File)> {
    let Some(path) = file else {
        let name = "standard input";
        let own = io::stdin().as_fd().try_clone_to_owned();
        return own
            .map(|own| (name.into(), own.into()))
            .map_err(|e| Error::io(Path::new(name), &e));
    };
    let file = File::open(path).map_err(|e| Error::io(path, &e))?;
    Ok((path.display().to_string(), file))
}

fn dump(name: &str, input: impl Read) -> Result<Exit> {
    let mut decoder = Decoder::new(BufReader::with_capacity(1 << 18, input));
    let mut dump = Dump::new(&time);
    let mut out = Out::new();
    loop {
        match decoder.next_command() {
            Ok(Some(command)) => {
                if let Some(line) = dump.line(&command) {
                    out.line(line)?;
                }
                if out.closed() {
                    break;
                }
            }
            Ok(None) => break,
            Err(error) => {
                out.finish()?;
                return Err(Error::about(name, error));
            }
        }
    }
    out.finish_content()?;
    Ok(Exit::Done)
}

/// In local time, as `btrfs receive --dump` has it.
fn time((secs, _): btrfs_send::Time) -> String {
    let Some(t) = to_local(secs) else { return format!("@{secs}") };
    let sign = if t.offset < 0 { '-' } else { '+' };
    let minutes = t.offset.abs() / 60;
    format!(
        "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}{sign}{:02}{:02}",
        t.year,
        t.month,
        t.day,
        t.hour,
        t.minute,
        t.second,
        minutes / 60,
        minutes % 60
    )
}
