//! `spinney mv`.

use super::Command;
use crate::args::{self, Arg, Args};
use crate::error::{Error, Exit, Result};
use crate::image::ImagePath;
use crate::inside::path::{join, split};
use crate::inside::volumes::At;
use crate::inside::{Node, Scope};
use crate::mount::options::{subvol_id, subvol_path};
use crate::output::Out;
use btrfs_fs::Subvol;
use spinney::Volume;
use std::collections::HashSet;
use vfs::{Context, Errno, FsError, Ino, RenameMode};

pub const COMMAND: Command = Command {
    name: "mv",
    summary: "rename and move files inside a volume",
    usage: "\
[OPTIONS] IMAGE:/OLD IMAGE:/NEW
[OPTIONS] IMAGE:/PATH... IMAGE:/DIRECTORY",
    help: "\
Renames files in a volume that is not mounted, or moves them into another directory of the
same volume. A file that has the new name already is replaced, unless the same command moved
it there.

Options
    -f, --force                replace files that are there, which is the default
    -n, --no-clobber           leave files that are there alone
    -T, --no-target-directory  NEW is the new name, also if it is a directory
    --exchange                 swap OLD and NEW
    -v, --verbose              name what was moved
    --subvol PATH, --subvolid ID
                               start from this subvolume instead of the volume's default one

Examples
    spinney mv disk.img:/a disk.img:/b
    spinney mv disk.img:/a disk.img:/b disk.img:/directory/
",
    run,
};

#[derive(Clone, Copy, Default)]
struct Options {
    no_clobber: bool,
    exact: bool,
    exchange: bool,
    verbose: bool,
}

fn run(mut args: Args) -> Result<Exit> {
    let (mut operands, mut subvol) = (Vec::new(), Subvol::Default);
    let mut options = Options::default();
    while let Some(arg) = args.next()? {
        match arg {
            Arg::Short('n') | Arg::Long("no-clobber") => options.no_clobber = true,
            Arg::Short('f') | Arg::Long("force") => options.no_clobber = false,
            Arg::Short('T') | Arg::Long("no-target-directory") => options.exact = true,
            Arg::Long("exchange") => options.exchange = true,
            Arg::Short('v') | Arg::Long("verbose") => options.verbose = true,
            Arg::Long("subvol") => subvol = subvol_path(&args.text()?)?,
            Arg::Long("subvolid") => subvol = subvol_id(&args.text()?)?,
            Arg::Value(value) => operands.push(value),
            other => return Err(args::unexpected(other)),
        }
    }
    let (sources, target) = args::sources_and_target(operands)?;
    let target = ImagePath::expect(&target)?;
    let sources = sources.iter().map(|w| ImagePath::expect(w)).collect::<Result<Vec<_>>>()?;
    let mut scope = Scope::of(subvol, &sources, true);
    scope.add(&target, true);
    scope.run(|volumes, failures| {
        let volume = volumes.of(&target)?;
        let into = volume.find(&target.path, true).is_ok_and(|node| node.is_dir());
        let into = into && !options.exact && !options.exchange;
        if sources.len() > 1 && !into {
            return Err(Error::about(target.show(), "several sources need a directory"));
        }
        let mut out = Out::new();
        let mut moves = Moves { volume, target: &target, into, options, made: HashSet::new() };
        for source in &sources {
            let moved = match volumes.same(source, &target) {
                true => moves.one(source),
                false => Err(Error::about(source.show(), "is in another volume")
                    .remedy("copy it with `spinney cp -r`, then remove it")),
            };
            if let Some(Some(path)) = failures.keep(moved)
                && options.verbose
            {
                out.line([b"renamed ", source.path.as_slice(), b" -> ", &path].concat())?;
            }
        }
        out.finish()
    })
}

fn mode(options: Options) -> RenameMode {
    match options {
        Options { exchange: true, .. } => RenameMode::Exchange,
        Options { no_clobber: true, .. } => RenameMode::NoReplace,
        _ => RenameMode::Replace,
    }
}

type Slot<'s> = (&'s Node, &'s [u8], &'s [u8]);

/// Whether `node` has the new name, too; ENOTDIR where a path stands for a directory, and what moves
/// is none.
fn is_of_one_file(
    volume: &Volume,
    (node, old): (&Node, &[u8]),
    (new_parent, new_name, new): Slot<'_>,
) -> Result<bool> {
    if let Some(not) = [old, new].into_iter().find(|path| path.ends_with(b"/"))
        && !node.is_dir()
    {
        return Err(FsError::from(Errno::ENOTDIR)).at(volume, not);
    }
    let there = new_parent.child_if_any(new_name).at(volume, new)?;
    Ok(there.is_some_and(|there| there.ino() == node.ino()))
}

/// What one command moves.
struct Moves<'m> {
    volume: &'m Volume,
    target: &'m ImagePath,
    into: bool,
    options: Options,
    /// Names that it gave to files, each in its directory: of two sources with one last name the second would
    /// replace the first, which has no other name any more.
    made: HashSet<(Ino, Vec<u8>)>,
}

impl Moves<'_> {
    /// The new path, if something was moved.
    fn one(&mut self, source: &ImagePath) -> Result<Option<Vec<u8>>> {
        let (volume, fs, old) = (self.volume, self.volume.fs(), &source.path);
        let new = match (self.into, split(old)) {
            (true, Some((_, name))) => join(&self.target.path, name),
            _ => self.target.path.clone(),
        };
        let (parent, name) = volume.find_parent(old).at(volume, old)?;
        let (new_parent, new_name) = volume.find_parent(&new).at(volume, &new)?;
        let node = parent.child(&name).at(volume, old)?;
        let (from, to) = ((&node, &old[..]), (&new_parent, &new_name[..], &new[..]));
        let (cx, mode) = (Context::default(), mode(self.options));
        let slot = (new_parent.ino(), new_name.clone());
        let replaces = mode == RenameMode::Replace;
        let is_same = is_of_one_file(volume, from, to)? && replaces;
        if is_same && (parent.ino(), &name) == (slot.0, &slot.1) {
            return Err(Error::about(source.show(), "is the same file"));
        }
        if replaces && self.made.contains(&slot) {
            return Err(Error::about(source.show(), "would replace what was just moved there"));
        }
        if is_same {
            // rename(2) leaves both names of one file.
            fs.unlink(&cx, parent.ino(), &name).at(volume, old)?;
            self.made.insert(slot);
            return Ok(Some(new));
        }
        let renamed = fs.rename(&cx, parent.ino(), &name, slot.0, &slot.1, mode);
        if let Err(error) = renamed {
            return self.refused(source, &new, error);
        }
        // Of directories an empty one alone is replaced, as by mv(1).
        if !node.is_dir() {
            self.made.insert(slot);
        }
        Ok(Some(new))
    }

    fn refused(&self, source: &ImagePath, new: &[u8], error: FsError) -> Result<Option<Vec<u8>>> {
        match error {
            FsError::Posix(Errno::EEXIST) if self.options.no_clobber => Ok(None),
            FsError::Posix(Errno::EINVAL) => {
                Err(Error::about(source.show(), "cannot be moved to a place inside itself"))
            }
            FsError::Posix(Errno::EXDEV) => {
                Err(Error::about(source.show(), "the new place is in another subvolume")
                    .remedy("copy it with `spinney cp -r`, then remove it"))
            }
            // The old name is there: the new one is in the way.
            error => Err(error).at(self.volume, new),
        }
    }
}
