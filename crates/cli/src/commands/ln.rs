//! `spinney ln`.

use super::Command;
use crate::args::{self, Arg, Args};
use crate::error::{Error, Exit, Result};
use crate::image::ImagePath;
use crate::inside::path::{join, split};
use crate::inside::volumes::At;
use crate::inside::{self, Draft, Node, Scope, Volumes};
use crate::mount::options::{subvol_id, subvol_path};
use btrfs_fs::Subvol;
use spinney::Volume;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use vfs::{Context, Errno, FsError};

pub const COMMAND: Command = Command {
    name: "ln",
    summary: "make links in a volume",
    usage: "\
[-f] IMAGE:/FILE IMAGE:/LINK
-s [-f] TEXT IMAGE:/LINK",
    help: "\
Makes another name of a file in a volume that is not mounted, or with -s a symbolic link
that holds TEXT as it is. If LINK is a directory, the link goes into it, under the same name.

Options
    -s, --symbolic             a symbolic link
    -f, --force                replace a file that is there
    -n, -T, --no-target-directory
                               LINK is the link's own name, also if it is a directory
    --subvol PATH, --subvolid ID
                               start from this subvolume instead of the volume's default one

Examples
    spinney ln disk.img:/bin/busybox disk.img:/bin/sh
    spinney ln -s ../usr/bin disk.img:/bin
",
    run,
};

#[derive(Clone, Copy, Default)]
struct Options {
    symbolic: bool,
    force: bool,
    exact: bool,
}

fn run(mut args: Args) -> Result<Exit> {
    let (mut operands, mut subvol) = (Vec::new(), Subvol::Default);
    let mut options = Options::default();
    while let Some(arg) = args.next()? {
        match arg {
            Arg::Short('s') | Arg::Long("symbolic") => options.symbolic = true,
            Arg::Short('f') | Arg::Long("force") => options.force = true,
            Arg::Short('n' | 'T') | Arg::Long("no-target-directory") => options.exact = true,
            Arg::Long("subvol") => subvol = subvol_path(&args.text()?)?,
            Arg::Long("subvolid") => subvol = subvol_id(&args.text()?)?,
            Arg::Value(value) => operands.push(value),
            other => return Err(args::unexpected(other)),
        }
    }
    let [target, link] = <[OsString; 2]>::try_from(operands)
        .map_err(|_| Error::usage("expected what to link to, and the link"))?;
    let link = ImagePath::expect(&link)?;
    let mut scope = Scope::new(subvol);
    scope.add(&link, true);
    if options.symbolic {
        let text = target.into_vec();
        return scope.run(|volumes, _| symbolic(volumes.of(&link)?, &text, &link, options));
    }
    let target = ImagePath::expect(&target)?;
    scope.add(&target, true);
    scope.run(|volumes, _| hard(volumes, &target, &link, options))
}

fn symbolic(volume: &Volume, text: &[u8], link: &ImagePath, options: Options) -> Result<()> {
    let (parent, name, path) = place(volume, text, link, options)?;
    make(volume, &parent, &name, &path, options, &|cx, parent, name| {
        volume.fs().symlink(cx, parent.ino(), name, text)
    })
}

fn hard(volumes: &Volumes, target: &ImagePath, link: &ImagePath, options: Options) -> Result<()> {
    if !volumes.same(target, link) {
        return Err(Error::about(link.show(), "a hard link must be in the file's own volume"));
    }
    let volume = volumes.of(link)?;
    let node = volume.find(&target.path, false).at(volume, &target.path)?;
    if node.is_dir() {
        return Err(Error::about(target.show(), "is a directory, which has one name only")
            .remedy("-s makes a symbolic link"));
    }
    let (parent, name, path) = place(volume, &target.path, link, options)?;
    if parent.child(&name).is_ok_and(|old| old.ino() == node.ino()) {
        // With -f another name of the file is what was asked for.
        let old = volume.find_parent(&target.path).at(volume, &target.path)?;
        if options.force && (old.0.ino(), &old.1) != (parent.ino(), &name) {
            return Ok(());
        }
        return Err(Error::about(link.show(), "is the same file already"));
    }
    make(volume, &parent, &name, &path, options, &|cx, parent, name| {
        volume.fs().link(cx, node.ino(), parent.ino(), name)
    })
}

/// The directory, the name in it, and both as a path.
fn place(
    volume: &Volume,
    target: &[u8],
    link: &ImagePath,
    options: Options,
) -> Result<(Node, Vec<u8>, Vec<u8>)> {
    let path = &link.path;
    if !options.exact
        && let Ok(node) = volume.find(path, true)
        && node.is_dir()
        && let Some((_, name)) = split(target)
    {
        return Ok((node, name.to_vec(), join(path, name)));
    }
    let (parent, name) = volume.find_parent_of_file(path).at(volume, path)?;
    Ok((parent, name, path.clone()))
}

type Maker<'m> = &'m dyn Fn(&Context, &Node, &[u8]) -> vfs::Result<vfs::Entry>;

fn make(
    volume: &Volume,
    parent: &Node,
    name: &[u8],
    path: &[u8],
    options: Options,
    maker: Maker<'_>,
) -> Result<()> {
    let cx = inside::context();
    match maker(&cx, parent, name) {
        Err(FsError::Posix(Errno::EEXIST)) if options.force => {
            let mut draft = Draft::new(volume, parent, name, true).at(volume, path)?;
            let made = draft.make(|name| maker(&cx, parent, name)).at(volume, path)?;
            drop(volume.hold(made));
            draft.keep().at(volume, path)
        }
        made => made.map(|made| drop(volume.hold(made))).at(volume, path),
    }
}
