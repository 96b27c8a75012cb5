//! `btrfs rescue`: what of it can be done in place, with what btrfs-progs 6.14 prints.
//!
//! What changes a volume is the library's, whose invariants say what an interruption leaves.

use crate::args::{self, Arg, Args, one, unexpected};
use crate::commands::Command;
use crate::commands::offline::Offline;
use crate::error::{Error, Exit, Result};
use crate::image::{self, Access};
use crate::output::Out;
use btrfs_disk::ids::{FREE_INO_OBJECTID, FREE_SPACE_OBJECTID};
use btrfs_disk::{Key, TreeId};
use btrfs_tree::{Cursor, TreeRoot};
use spinney::rescue::{self, Superblocks};
use std::io::{BufRead as _, Write as _};
use std::path::{Path, PathBuf};

pub const ZERO_LOG: Command = Command {
    name: "rescue zero-log",
    summary: "give up the log of a volume",
    usage: "DEVICE",
    help: "\
The volume forgets what fsync wrote after the last commit: see `spinney help rescue`.

Examples
    btrfs rescue zero-log disk.img
",
    run: zero_log,
};

pub const SUPER_RECOVER: Command = Command {
    name: "rescue super-recover",
    summary: "put good copies of the superblock in the place of bad ones",
    usage: "[-y] [-v] DEVICE",
    help: "\
The newest valid copy is written over those that are damaged, missing, or of an older commit,
and nothing else is.

Options
    -y            do not ask
    -v, --verbose  tell of each copy

Examples
    btrfs rescue super-recover -v disk.img

Exit codes
    0  all copies are good
    1  none is, or one could not be written
    2  bad copies were written over
    4  the answer was no
",
    run: super_recover,
};

pub const FIX_DEVICE_SIZE: Command = Command {
    name: "rescue fix-device-size",
    summary: "make the sizes of device and volume one number of whole sectors",
    usage: "DEVICE",
    help: "\
Volumes of old programs may have a device of an odd size, or another sum in the superblock;
newer kernels complain of it, or do not mount them.

Examples
    btrfs rescue fix-device-size disk.img
",
    run: fix_device_size,
};

pub const CLEAR_SPACE_CACHE: Command = Command {
    name: "rescue clear-space-cache",
    summary: "make what a volume knows of its free space anew",
    usage: "v1|v2 DEVICE",
    help: "\
v2 gives the free-space tree up and makes another from the extents. v1 is done where there is
nothing to clear; a version 1 cache goes with the first mount that writes, which makes a
free-space tree in its place.

Examples
    btrfs rescue clear-space-cache v2 disk.img
",
    run: clear_space_cache,
};

pub const CLEAR_UUID_TREE: Command = Command {
    name: "rescue clear-uuid-tree",
    summary: "take the UUID tree away, of which the next mount makes another",
    usage: "DEVICE",
    help: "\
The UUID tree says of UUIDs whose subvolumes they are. Where it is damaged the kernel may
refuse the volume, and what comes or goes with Spinney is not noted in it. It goes as a whole,
also where it cannot be read, and its space comes back. The next mount that writes makes another, of what the
subvolumes say themselves: the kernel's does, and Spinney's. A log is replayed first.

Examples
    btrfs rescue clear-uuid-tree disk.img

Exit codes
    0  the volume has no UUID tree now; nothing is printed
    1  it could not be changed; the message says why
",
    run: clear_uuid_tree,
};

pub const CLEAR_INO_CACHE: Command = Command {
    name: "rescue clear-ino-cache",
    summary: "tell whether subvolumes have caches of inode numbers",
    usage: "DEVICE",
    help: "\
Old kernels kept those with -o inode_cache. A volume without them is told as cleared; of one
with them nothing is changed.

Examples
    btrfs rescue clear-ino-cache disk.img
",
    run: clear_ino_cache,
};

fn zero_log(args: Args) -> Result<Exit> {
    let device = args::only(args, "an image")?;
    let medium = image::open(Path::new(&device), Access::Write)?;
    let log = rescue::zero_log(medium.device())?;
    let (shown, root, level) = (args::show(&device), log.root, log.level);
    say(&format!("Clearing log on {shown}, previous log_root {root}, level {level}"))
}

fn say(line: &str) -> Result<Exit> {
    let mut out = Out::new();
    out.line(line)?;
    out.finish()?;
    Ok(Exit::Done)
}

fn super_recover(mut args: Args) -> Result<Exit> {
    let (mut sure, mut verbose, mut operands) = (false, false, Vec::new());
    while let Some(arg) = args.next()? {
        match arg {
            Arg::Short('y') => sure = true,
            Arg::Short('v') | Arg::Long("verbose") => verbose = true,
            Arg::Value(value) => operands.push(value),
            other => return Err(unexpected(other)),
        }
    }
    let path = PathBuf::from(one(operands, "a device")?);
    let medium = image::open(&path, Access::Write)?;
    let copies = Superblocks::survey(medium.device())?;
    let mut out = Out::new();
    if verbose {
        tell_copies(&mut out, &path, &copies)?;
    }
    if copies.bad().is_empty() {
        out.line("All supers are valid, no need to recover")?;
        out.finish()?;
        return Ok(Exit::Done);
    }
    out.finish()?;
    if !sure && !is_sure()? {
        say("Aborted to recover bad superblocks")?;
        return Ok(Exit::Code(4));
    }
    copies.recover()?;
    say("Recovered bad superblocks successful")?;
    Ok(Exit::Code(2))
}

fn tell_copies(out: &mut Out, path: &Path, copies: &Superblocks) -> Result<()> {
    let shown = path.display();
    let (devid, place) = (copies.devid(), |at: &u64| {
        format!("\t\tdevice name = {shown}\n\t\tsuperblock bytenr = {at}\n")
    });
    out.line(format!("All Devices:\n\tDevice: id = {devid}, name = {shown}\n"))?;
    out.line("Before Recovering:\n\t[All good supers]:")?;
    copies.good().iter().try_for_each(|at| out.line(place(at)))?;
    out.line("\t[All bad supers]:")?;
    copies.bad().iter().try_for_each(|at| out.line(place(at)))?;
    out.line("")
}

fn is_sure() -> Result<bool> {
    let asked = "Make sure this is a btrfs disk otherwise the tool will destroy other fs, Are you \
                 sure? [y/N]: ";
    let mut out = std::io::stdout();
    let told = out.write_all(asked.as_bytes()).and_then(|()| out.flush()).and_then(|()| {
        let mut answer = String::new();
        std::io::stdin().lock().read_line(&mut answer).map(|_| answer)
    });
    let answer = told.map_err(|e| Error::new(format!("no answer: {e}")))?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes" | "Yes" | "YES"))
}

fn fix_device_size(args: Args) -> Result<Exit> {
    let word = args::only(args, "a device")?;
    let path = Path::new(&word);
    let medium = image::open(path, Access::Write)?;
    let found = rescue::fix_device_size(medium.device())?;
    image::tell_converted(path, found.made_free_space_tree);
    let (devid, new) = (found.devid, found.whole);
    if (found.device, found.superblock, found.total) == (new, new, new) {
        return say("No device size related problem found");
    }
    let mut out = Out::new();
    if found.device != new {
        let was = found.device;
        out.line(format!("Fixed device size for devid {devid}, old size: {was} new size: {new}"))?;
    }
    if found.total != new {
        out.line(format!("Fixed super total bytes, old size: {} new size: {new}", found.total))?;
    }
    out.line("Fixed unaligned/mismatched total_bytes for super block and device items")?;
    out.finish()?;
    Ok(Exit::Done)
}

fn clear_space_cache(mut args: Args) -> Result<Exit> {
    let mut operands = Vec::new();
    while let Some(arg) = args.next()? {
        match arg {
            Arg::Value(value) => operands.push(value),
            other => return Err(unexpected(other)),
        }
    }
    let [version, device] = args::exactly(operands, "v1 or v2, and a device")?;
    match args::show(&version).as_str() {
        "v1" => clear_v1(Path::new(&device)),
        "v2" => clear_v2(Path::new(&device)),
        other => Err(Error::usage(format!("invalid version {other:?}, expected v1 or v2"))),
    }
}

fn clear_v1(path: &Path) -> Result<Exit> {
    let offline = Offline::open(path, Access::Write)?;
    let root = offline.root(TreeId::ROOT)?.expect("the superblock names it");
    if has_items_of(&offline, &root, FREE_SPACE_OBJECTID)? {
        let what = "`btrfs rescue clear-space-cache v1` is not there yet";
        return Err(Error::about(path.display(), what).remedy(
            "a mount that writes makes a free-space tree in the cache's place: `spinney mount`, or \
             `mount -o space_cache=v2`",
        ));
    }
    say("Free space cache cleared")
}

fn clear_v2(path: &Path) -> Result<Exit> {
    let medium = image::open(path, Access::Write)?;
    if !rescue::clear_free_space_tree(medium.device())? {
        return say("no free space cache v2 to clear");
    }
    say("Clear free space cache v2\nfree space cache v2 cleared")
}

fn clear_uuid_tree(args: Args) -> Result<Exit> {
    let word = args::only(args, "a device")?;
    let path = Path::new(&word);
    let medium = image::open(path, Access::Write)?;
    let cleared = rescue::clear_uuid_tree(medium.device())?;
    image::tell_converted(path, cleared.made_free_space_tree);
    Ok(Exit::Done)
}

fn clear_ino_cache(args: Args) -> Result<Exit> {
    let word = args::only(args, "a device")?;
    let path = Path::new(&word);
    let offline = Offline::open(path, Access::Write)?;
    let mut trees = offline.roots()?;
    trees.retain(|root| root.id.is_subvolume());
    let mut lines = Vec::new();
    for root in &trees {
        if has_items_of(&offline, root, FREE_INO_OBJECTID)? {
            let what = format!("`btrfs rescue clear-ino-cache` is not there yet: tree {}", root.id);
            let error = Error::about(path.display(), what);
            return Err(error.remedy("that of btrfs-progs clears it; the kernel does without"));
        }
        lines.push(format!("Successfully cleaned up ino cache for root id: {}", root.id));
    }
    lines.push("Successfully cleared ino cache".into());
    say(&lines.join("\n"))
}

fn has_items_of(offline: &Offline, root: &TreeRoot, objectid: u64) -> Result<bool> {
    let mut cursor = Cursor::new(&offline.store, root);
    offline.explain(cursor.seek(&Key { objectid, kind: 0, offset: 0 }))?;
    Ok(cursor.item().is_some_and(|(key, _)| key.objectid == objectid))
}
