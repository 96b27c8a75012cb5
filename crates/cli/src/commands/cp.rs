//! `spinney cp`: into a volume, out of it, inside it, and from one to another.

use super::Command;
use crate::args::{self, Arg, Args};
use crate::error::{Error, Exit, Result};
use crate::image::ImagePath;
use crate::inside::fill::{FileAt, Reflink};
use crate::inside::path::{join, split};
use crate::inside::volumes::At;
use crate::inside::{self, CopyRules, Failures, Node, Scope, Transfer, TreeCopy, Volumes};
use crate::mount::options::{method, subvol_id, subvol_path};
use crate::output::Out;
use crate::rescue_options::RescueOptions;
use btrfs_fs::{Compress, Subvol};
use spinney::Volume;
use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use vfs::FileKind;

pub const COMMAND: Command = Command {
    name: "cp",
    summary: "copy files into, out of and inside a volume",
    usage: "\
[-r] [-a] [OPTIONS] SOURCE TARGET
[-r] [-a] [OPTIONS] SOURCE... DIRECTORY",
    help: "\
Copies files and trees. SOURCE and TARGET are paths of this machine or IMAGE:/PATH; one side
at least is in a volume. If TARGET is a directory, the copies go into it; directories that
are there already are merged into, files overwritten. A source that ends with `/.` (or is a
volume's root) stands for what is in the directory. `-` is standard input as the SOURCE, and
standard output as the TARGET.

With -r copies are as their source: owners, permissions, times to the nanosecond, extended
attributes with ACLs, hard links between the files that are copied. On this machine only root
gives files away; other callers own what they copy out, and it loses its set-user-ID,
set-group-ID and sticky bits. With --no-preserve, and without -r or -p, copies are new: they
belong to the caller, with the current time, and the permissions of the source less the
umask. Sparse files stay sparse. Inside a volume the data is shared, not copied.

What is in the way is treated as cp(1) does: content goes where a symbolic link leads, and
into devices and fifos of this machine; in a volume these are refused. Nothing is written
through links that lead nowhere.

What replaces something (files with several names, links, devices) is made beside it first,
and needs room for both meanwhile. Of links and devices, and of files where the file system
has none without a name, it may stay there as `.spinney-PID-N` when the command is killed:
remove it then; nothing is taken away for its name. (Of a file from a volume, in the place of
another in a volume, nothing stays.)

What fails of one file or directory is told, and the others are copied; where no room is
left that ends the command. Files of this machine that tell no size are read to their end:
those of /proc and /sys may fill the volume. -x leaves out what is mounted there.

All changes of one command are one commit: after a crash, and where the device, or the file
system that the image lies on, refuses content, all are there or none, unless they are larger
than the memory for uncommitted changes (256 MiB of content).

Options
    -r, -R, --recursive      directories and what is below; symbolic links, devices, fifos
                             and sockets as such, not what they lead to
    -a, --archive            the same
    -p, --preserve           keep owners, permissions, times, attributes; as -r does
    --no-preserve            make new files and directories, also with -r
    -n, --no-clobber         leave files that are there alone
    -T, --no-target-directory
                             TARGET is the copy's own name, also if it is a directory
    -t, --target-directory DIRECTORY
                             where to, before the sources
    -x, --one-file-system    leave out what is mounted below SOURCE on this machine
    --reflink[=WHEN]         inside a volume: auto shares where it can, always (also without
                             WHEN) fails where it cannot, never copies
    --compress[=HOW]         compress new content in the TARGET's volume. HOW is zlib, lzo or
                             zstd (the default), with :LEVEL behind: zlib:9, zstd:-15
    -f, -d, -P               taken for the sake of cp(1), without effect
    -v, --verbose            name each source and where it went
    --subvol PATH, --subvolid ID
                             start from this subvolume instead of the volume's default one
    --rescue WORD[:WORD...]
                             make do with a damaged volume, as mount -o ro,rescue=
                             does: usebackuproot:ignorebadroots first. With
                             ignoredatacsums (and all) what is copied without a
                             checksum that fits is named, and the exit code is 1

Examples
    spinney cp notes.txt disk.img:/home/
    spinney cp -r rootfs/. disk.img:/
    spinney cp -r --compress=zstd:9 rootfs/. disk.img:/
    spinney cp -r disk.img:/home ./saved
    spinney cp -r --no-preserve disk.img:/etc ./etc
    spinney cp --reflink disk.img:/vm.raw disk.img:/vm-copy.raw
    curl https://example.org/x | spinney cp - disk.img:/x
    spinney cp disk.img:/vm.raw - | sha256sum
",
    run,
};

#[derive(Default)]
struct Words {
    rules: CopyRules,
    verbose: bool,
    exact: bool,
    compress: Option<Compress>,
    into: Option<OsString>,
    rescue: RescueOptions,
    operands: Vec<OsString>,
}

/// A path of this machine or one in a volume.
#[derive(Clone, Debug)]
enum Operand {
    Host(PathBuf),
    Image(ImagePath),
    /// Standard input or output.
    Stream,
}

impl Operand {
    fn of(word: &OsStr) -> Operand {
        match ImagePath::parse(word) {
            None if word == "-" => Operand::Stream,
            Some(path) if path.image.exists() || !Path::new(word).exists() => Operand::Image(path),
            _ => Operand::Host(word.into()),
        }
    }

    fn show(&self) -> String {
        match self {
            Operand::Host(path) => path.display().to_string(),
            Operand::Image(path) => path.show(),
            Operand::Stream => "-".into(),
        }
    }

    fn bytes(&self) -> &[u8] {
        match self {
            Operand::Host(path) => path.as_os_str().as_bytes(),
            Operand::Image(path) => &path.path,
            Operand::Stream => b"/",
        }
    }

    /// The last name; `None` where the path stands for a directory's content.
    fn name(&self) -> Option<Vec<u8>> {
        let (_, name) = split(self.bytes())?;
        Some(name.to_vec())
    }
}

fn run(mut args: Args) -> Result<Exit> {
    let (mut words, mut subvol) = (Words::default(), Subvol::Default);
    let mut preserve = None;
    while let Some(arg) = args.next()? {
        let rules = &mut words.rules;
        match arg {
            Arg::Short('r' | 'R' | 'a') | Arg::Long("recursive" | "archive") => {
                rules.recursive = true;
            }
            Arg::Short('p') | Arg::Long("preserve") => preserve = Some(true),
            Arg::Long("no-preserve") => preserve = Some(false),
            Arg::Short('n') | Arg::Long("no-clobber") => rules.no_clobber = true,
            Arg::Short('x') | Arg::Long("one-file-system") => rules.one_file_system = true,
            Arg::Short('f' | 'd' | 'P') => {}
            Arg::Short('v') | Arg::Long("verbose") => words.verbose = true,
            Arg::Short('T') | Arg::Long("no-target-directory") => words.exact = true,
            Arg::Short('t') | Arg::Long("target-directory") => words.into = Some(args.value()?),
            Arg::Long("reflink") => rules.reflink = reflink(args.optional_value())?,
            Arg::Long("compress") => words.compress = Some(compress(args.optional_value())?),
            Arg::Long("subvol") => subvol = subvol_path(&args.text()?)?,
            Arg::Long("subvolid") => subvol = subvol_id(&args.text()?)?,
            Arg::Long("rescue") => words.rescue = RescueOptions::parse(&args.text()?)?,
            Arg::Value(value) => words.operands.push(value),
            other => return Err(args::unexpected(other)),
        }
    }
    // A tree that goes into an image or out of it is to be the same tree.
    words.rules.preserve = preserve.unwrap_or(words.rules.recursive);
    copy(words, subvol)
}

fn compress(how: Option<OsString>) -> Result<Compress> {
    let how = how.map_or("zstd".into(), |how| how.to_string_lossy().into_owned());
    Ok(Compress { method: method("--compress", &how)?, force: false })
}

fn reflink(when: Option<OsString>) -> Result<Reflink> {
    match when.as_deref().map(OsStr::as_bytes) {
        None | Some(b"always") => Ok(Reflink::Always),
        Some(b"auto") => Ok(Reflink::Auto),
        Some(b"never") => Ok(Reflink::Never),
        Some(_) => Err(Error::usage("--reflink takes always, auto or never")),
    }
}

fn copy(words: Words, subvol: Subvol) -> Result<Exit> {
    // Each directory that is merged into is open until that is done.
    crate::sys::allow_descriptors();
    let (sources, target) = match &words.into {
        Some(directory) => (args::some(words.operands, "the source")?, directory.clone()),
        None => args::sources_and_target(words.operands)?,
    };
    let sources: Vec<Operand> = sources.iter().map(|word| Operand::of(word)).collect();
    let target = Operand::of(&target);
    let mut scope = Scope::new(subvol).rescue(words.rescue);
    scope.compress(words.compress);
    for source in &sources {
        match (source, &target) {
            (Operand::Image(path), _) => scope.add(path, false),
            (_, Operand::Image(_)) => {}
            (source, _) => {
                return Err(Error::about(source.show(), "neither side is in a volume")
                    .remedy("a path in a volume is written disk.img:/PATH; else use cp(1)"));
            }
        }
    }
    if let Operand::Image(path) = &target {
        scope.add(path, true);
    }
    let several = sources.len() > 1 || words.into.is_some();
    let plan = Plan { rules: words.rules, verbose: words.verbose, exact: words.exact, several };
    scope.run(|volumes, failures| plan.run(volumes, &sources, &target, failures))
}

/// What the sources of one command share.
#[derive(Default)]
struct Copies<'v> {
    transfers: Vec<Transfer<'v>>,
    trees: Vec<TreeCopy<'v>>,
    /// What was copied into the target directory, of the sources that have a name.
    names: HashSet<Vec<u8>>,
}

impl Copies<'_> {
    fn has(&self, source: &Operand) -> bool {
        source.name().is_some_and(|name| self.names.contains(&name))
    }
}

fn is_directory(volumes: &Volumes, operand: &Operand, follow: bool) -> Result<bool> {
    match operand {
        Operand::Stream => Ok(false),
        Operand::Host(path) if follow => Ok(path.is_dir()),
        Operand::Host(path) => Ok(path.symlink_metadata().is_ok_and(|meta| meta.is_dir())),
        Operand::Image(path) => {
            let found = volumes.of(path)?.find(&path.path, follow);
            Ok(found.is_ok_and(|node| node.is_dir()))
        }
    }
}

struct Plan {
    rules: CopyRules,
    verbose: bool,
    exact: bool,
    several: bool,
}

impl Plan {
    fn run<'v>(
        &self,
        volumes: &'v Volumes,
        sources: &[Operand],
        target: &Operand,
        failures: &'v Failures,
    ) -> Result<()> {
        let into = is_directory(volumes, target, true)?;
        if self.several && (!into || self.exact) {
            return Err(Error::about(target.show(), "several sources need a directory"));
        }
        let mut out = Out::new();
        let mut copies = Copies::default();
        for source in sources {
            let into = into && !self.exact;
            let copied = self.one(volumes, &mut copies, source, target, into, failures);
            let told = self.verbose && !matches!(target, Operand::Stream);
            if failures.keep(copied).is_none() {
                continue;
            }
            copies.names.extend(source.name().filter(|_| into));
            if told {
                out.line(format!("{} -> {}", source.show(), target.show()))?;
            }
        }
        out.finish()
    }

    fn one<'v>(
        &self,
        volumes: &'v Volumes,
        copies: &mut Copies<'v>,
        source: &Operand,
        target: &Operand,
        into: bool,
        failures: &'v Failures,
    ) -> Result<()> {
        let follow = !self.rules.recursive;
        let is_new = |copies: &Copies<'_>| self.rules.no_clobber || !copies.has(source);
        if into && !is_new(copies) && !is_directory(volumes, source, follow)? {
            let what = "something of its name was just made there, of another source";
            return Err(
                Error::about(source.show(), what).remedy("copy it by itself, to another name")
            );
        }
        match (source, target) {
            (Operand::Host(from), Operand::Image(to)) => {
                let transfer = self.transfer(&mut copies.transfers, volumes.of(to)?, failures);
                self.import(volumes, transfer, source, from, to, into)
            }
            (Operand::Image(from), Operand::Host(to)) => {
                let transfer = self.transfer(&mut copies.transfers, volumes.of(from)?, failures);
                self.export(volumes, transfer, source, from, to, into)
            }
            (Operand::Image(from), Operand::Image(to)) => {
                self.inside(volumes, copies, source, (from, to), into, failures)
            }
            (Operand::Stream, Operand::Image(to)) => {
                let transfer = self.transfer(&mut copies.transfers, volumes.of(to)?, failures);
                self.import_stream(volumes, transfer, source, to, into)
            }
            (Operand::Image(from), Operand::Stream) => self.to_output(volumes, source, from),
            (_, Operand::Host(_) | Operand::Stream) => {
                Err(Error::new("neither side is in a volume"))
            }
        }
    }

    /// One for each volume: it knows the hard links of all sources.
    fn transfer<'t, 'v>(
        &self,
        all: &'t mut Vec<Transfer<'v>>,
        volume: &'v Volume,
        failures: &'v Failures,
    ) -> &'t Transfer<'v> {
        let found = all.iter().position(|transfer| transfer.is_of(volume));
        let at = found.unwrap_or_else(|| {
            let transfer = inside::transfer(volume, self.rules).beside(all.first());
            let transfer = transfer.on_failure(|error| failures.tell(&error.into()));
            all.push(transfer);
            all.len() - 1
        });
        &all[at]
    }

    /// A directory is only copied by those who asked for it.
    fn may_copy(&self, source: &Operand, is_dir: bool) -> Result<()> {
        match is_dir && !self.rules.recursive {
            true => Err(Error::about(source.show(), "is a directory").remedy("-r copies it")),
            false => Ok(()),
        }
    }

    fn import<'v>(
        &self,
        volumes: &'v Volumes,
        transfer: &Transfer<'v>,
        source: &Operand,
        from: &Path,
        to: &ImagePath,
        into: bool,
    ) -> Result<()> {
        let meta = from.metadata().or_else(|_| from.symlink_metadata());
        let is_dir = meta.map_err(|e| Error::io(from, &e))?.is_dir();
        self.may_copy(source, is_dir)?;
        let volume = volumes.of(to)?;
        if into && source.name().is_none() {
            let node = volume.find(&to.path, true).at(volume, &to.path)?;
            return Ok(transfer.import_into(from, &node, &to.path)?);
        }
        let (parent, name, path) = slot(volume, source, to, (into, is_dir))?;
        Ok(transfer.import(from, &parent, &name, &path)?)
    }

    /// From the descriptor itself: what was read of it before is not read again.
    fn import_stream<'v>(
        &self,
        volumes: &'v Volumes,
        transfer: &Transfer<'v>,
        source: &Operand,
        to: &ImagePath,
        into: bool,
    ) -> Result<()> {
        if into {
            return Err(Error::about(to.show(), "is a directory, and standard input has no name")
                .remedy("name the file: IMAGE:/DIRECTORY/NAME"));
        }
        let (parent, name, path) = slot(volumes.of(to)?, source, to, (false, false))?;
        let input = Path::new("standard input");
        let file = std::io::stdin().as_fd().try_clone_to_owned();
        let mut file = File::from(file.map_err(|e| Error::io(input, &e))?);
        Ok(transfer.import_open(&mut file, input, &parent, &name, &path)?)
    }

    fn to_output(&self, volumes: &Volumes, source: &Operand, from: &ImagePath) -> Result<()> {
        let (volume, path) = (volumes.of(from)?, &from.path);
        let node = volume.find(path, true).at(volume, path)?;
        if node.attr.kind != FileKind::File {
            return Err(Error::about(source.show(), "is no file")
                .remedy("`spinney tar` writes trees to standard output"));
        }
        let mut out = Out::new();
        FileAt::of(volume, &node, path).bytes_around(&mut |bytes| out.content(bytes))?;
        out.finish_content()
    }

    fn export<'v>(
        &self,
        volumes: &'v Volumes,
        transfer: &Transfer<'v>,
        source: &Operand,
        from: &ImagePath,
        to: &Path,
        into: bool,
    ) -> Result<()> {
        let (volume, path) = (volumes.of(from)?, &from.path);
        let node = volume.find(path, !self.rules.recursive).at(volume, path)?;
        self.may_copy(source, node.is_dir())?;
        let copied = match (into, source.name()) {
            (true, Some(name)) => transfer.export(&node, path, &to.join(OsStr::from_bytes(&name))),
            (true, None) => transfer.export_into(&node, path, to),
            (false, _) => transfer.export(&node, path, to),
        };
        Ok(copied?)
    }

    fn inside<'v>(
        &self,
        volumes: &'v Volumes,
        copies: &mut Copies<'v>,
        source: &Operand,
        (from, to): (&ImagePath, &ImagePath),
        into: bool,
        failures: &'v Failures,
    ) -> Result<()> {
        let (from_volume, to_volume) = (volumes.of(from)?, volumes.of(to)?);
        let follow = !self.rules.recursive;
        let node = from_volume.find(&from.path, follow).at(from_volume, &from.path)?;
        self.may_copy(source, node.is_dir())?;
        let copy = self.tree_copy(copies, (from_volume, to_volume), failures);
        if into && source.name().is_none() {
            let target = to_volume.find(&to.path, true).at(to_volume, &to.path)?;
            return Ok(copy.contents(node, from.path.clone(), target, to.path.clone())?);
        }
        let (parent, name, path) = slot(to_volume, source, to, (into, node.is_dir()))?;
        Ok(copy.entry(node, &from.path, &parent, &name, path)?)
    }

    /// One for each pair of volumes: it knows the hard links of all sources.
    fn tree_copy<'t, 'v>(
        &self,
        copies: &'t mut Copies<'v>,
        (from, to): (&'v Volume, &'v Volume),
        failures: &'v Failures,
    ) -> &'t mut TreeCopy<'v> {
        let found = copies.trees.iter().position(|copy| copy.is_between(from, to));
        let at = found.unwrap_or_else(|| {
            let beside = self.transfer(&mut copies.transfers, to, failures);
            let (copy, skipped) = (TreeCopy::new(from, to, self.rules), inside::skipped_xattrs());
            let copy = copy.beside(beside).on_skipped_xattr(move |path, name| {
                let (image, path) = (from.name().display(), String::from_utf8_lossy(path));
                skipped(&format!("{image}:{path}"), name);
            });
            copies.trees.push(copy.on_failure(|error| failures.tell(&error.into())));
            copies.trees.len() - 1
        });
        &mut copies.trees[at]
    }
}

/// The directory of a volume that a copy goes to, the name there, and both as a path.
fn slot(
    volume: &Volume,
    source: &Operand,
    to: &ImagePath,
    (into, is_dir): (bool, bool),
) -> Result<(Node, Vec<u8>, Vec<u8>)> {
    match (into, source.name()) {
        (true, Some(name)) => {
            let parent = volume.find(&to.path, true).at(volume, &to.path)?;
            let path = join(&to.path, &name);
            Ok((parent, name, path))
        }
        _ => {
            let found = match is_dir {
                true => volume.find_parent(&to.path),
                false => volume.find_parent_of_file(&to.path),
            };
            let (parent, name) = found.at(volume, &to.path)?;
            Ok((parent, name, to.path.clone()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_have_last_names() {
        let name = |word: &str| Operand::of(OsStr::new(word)).name();
        assert_eq!(name("dir/file"), Some(b"file".to_vec()));
        assert_eq!(name("dir/"), Some(b"dir".to_vec()));
        assert_eq!(name("dir/."), None);
        assert_eq!(name("disk.img:/"), None);
        assert_eq!(name("disk.img:/a/b"), Some(b"b".to_vec()));
        assert!(matches!(Operand::of(OsStr::new("/dev")), Operand::Host(_)));
    }
}
