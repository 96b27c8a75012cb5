//! `spinney inspect-internal logical-resolve`.

use super::subvolid::number_and_place;
use crate::args::{Arg, Args, unexpected};
use crate::commands::Command;
use crate::commands::subvolume::place::VolumePath;
use crate::commands::trees::{TreeInode, Trees, inode_paths, join, subvolume_path};
use crate::door::Door;
use crate::error::{Error, Exit, Result};
use crate::mounts::{self, MountEntry};
use crate::output::{Json, Out};
use btrfs_disk::items::{ExtentItemFields, FileExtent, extent_flags};
use btrfs_disk::key::kind;
use btrfs_disk::{FixedSize, Key, Logical, TreeId};
use btrfs_tree::{Cursor, TreeRoot};
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

pub const COMMAND: Command = Command {
    name: "inspect-internal logical-resolve",
    summary: "tell the files that have an address of the volume",
    usage: "[--json] [-Pvo] LOGICAL VOLUME",
    help: "\
Prints the paths of all files, in all subvolumes, whose content lies at a logical address
of the volume, as messages of the kernel and of `spinney check` name it. VOLUME is a path of
a mount, by which they can be reached then, or a line says that none leads there; or an
image, and then, as in JSON always, they begin at the top level.

Options
    -P              inode, offset in the file, and subvolume by number instead of paths
    -o              also files that have another part of the extent at that address
    -v, -s SIZE     as `btrfs` has them, to no effect
        --json      as a JSON object

Examples
    spinney inspect-internal logical-resolve 13631488 /mnt
",
    run,
};

/// A file, and where in it the content stands.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Found {
    root: u64,
    ino: u64,
    offset: u64,
}

struct Wanted {
    json: bool,
    numbers: bool,
    all: bool,
}

fn run(mut args: Args) -> Result<Exit> {
    let mut operands = Vec::<OsString>::new();
    let mut wanted = Wanted { json: false, numbers: false, all: false };
    while let Some(arg) = args.next()? {
        match arg {
            Arg::Long("json") => wanted.json = true,
            Arg::Short('P') => wanted.numbers = true,
            Arg::Short('o') => wanted.all = true,
            Arg::Short('v') => {}
            Arg::Short('s') => drop(args.text()?),
            Arg::Value(value) => operands.push(value),
            other => return Err(unexpected(other)),
        }
    }
    let (logical, place) = number_and_place(operands)?;
    let trees = Trees::open(&place)?;
    let extent = extent_at(&trees, &place, Logical(logical))?;
    let at = (!wanted.all).then(|| logical - extent.0);
    let found = files_of(&trees, extent, at)?;
    if found.is_empty() {
        let what = format!("no file of any subvolume has what lies at {logical}");
        return Err(Error::about(place.show(), what));
    }
    let shows_paths = !wanted.json && !wanted.numbers;
    let reach = if shows_paths { Reach::of(&trees, &place) } else { None };
    tell(&trees, &found, &wanted, reach.as_ref())?;
    Ok(Exit::Done)
}

/// What of a volume paths of this machine lead to: the subvolumes that are mounted, from the top level
/// on, and where.
struct Reach(Vec<(Vec<u8>, PathBuf)>);

impl Reach {
    /// `None`: it is an image, or only parts of subvolumes are mounted, or nobody can say: something else is
    /// mounted over them, or there is no list of mounts here.
    fn of(trees: &Trees, place: &VolumePath) -> Option<Reach> {
        let VolumePath::Mount(path) = place else { return None };
        let around = mounts::around(path).ok()??;
        let same = |entry: &MountEntry| entry.device == around.device;
        let all = mounts::all().ok()?.into_iter().rev().filter(same);
        let all: Vec<_> = all.filter_map(|e| Reach::by(trees, e.point).ok().flatten()).collect();
        (!all.is_empty()).then_some(Reach(all))
    }

    /// By what is mounted there.
    fn by(trees: &Trees, point: PathBuf) -> Result<Option<(Vec<u8>, PathBuf)>> {
        let (top, is_root) = Door::open(&point)?.around()?;
        if !is_root {
            return Ok(None);
        }
        let subvolume = subvolume_path(trees, TreeId(top.id.0))?;
        Ok(subvolume.map(|subvolume| (subvolume, point)))
    }

    /// A path from the top level on as one of this machine.
    fn show(&self, path: &[u8]) -> Option<Vec<u8>> {
        self.0.iter().find_map(|(subvolume, point)| {
            let within = match subvolume.as_slice() {
                b"" => path,
                above => path.strip_prefix(above)?.strip_prefix(b"/")?,
            };
            Some(point.join(OsStr::from_bytes(within)).into_os_string().into_vec())
        })
    }
}

/// The data extent that has this address.
fn extent_at(trees: &Trees, place: &VolumePath, logical: Logical) -> Result<Logical> {
    let nothing = |what: &str| Err(Error::about(place.show(), format!("{what} {}", logical.0)));
    let root = trees.must(TreeId::EXTENT)?;
    let mut cursor = Cursor::new(trees.reader(), &root);
    trees.explain(cursor.seek_back(&Key::new(logical.0, kind::METADATA_ITEM, u64::MAX)))?;
    while let Some((key, data)) = cursor.item() {
        match key.kind {
            kind::METADATA_ITEM if key.objectid == logical.0 => {
                return nothing("a node of a tree lies at");
            }
            kind::EXTENT_ITEM if key.objectid.saturating_add(key.offset) > logical.0 => {
                let fields = ExtentItemFields::read(data).map_err(|c| c.key(key).into());
                let is_node = trees.explain(fields)?.flags & extent_flags::TREE_BLOCK != 0;
                return match is_node {
                    true => nothing("a node of a tree lies at"),
                    false => Ok(Logical(key.objectid)),
                };
            }
            kind::EXTENT_ITEM | kind::METADATA_ITEM => break,
            // References that stand alone, and block groups.
            _ => trees.explain(cursor.prev())?,
        }
    }
    nothing("nothing lies at")
}

/// Files with something of an extent; with the byte `at` of it, if that is said.
fn files_of(trees: &Trees, extent: Logical, at: Option<u64>) -> Result<BTreeSet<Found>> {
    let mut found = BTreeSet::new();
    for root in trees.subvolumes()? {
        for_each_leaf(trees, &root, extent, at, &mut found)?;
    }
    Ok(found)
}

/// Every item of a subvolume is looked at: who refers to an extent the extent tree says in terms of
/// leaves, which many subvolumes may share.
fn for_each_leaf(
    trees: &Trees,
    root: &TreeRoot,
    extent: Logical,
    at: Option<u64>,
    found: &mut BTreeSet<Found>,
) -> Result<()> {
    for item in btrfs_tree::scan(trees.reader(), root, Key::MIN..=Key::MAX) {
        let item = trees.explain(item)?;
        let (key, data) = (item.key(), item.data());
        if key.kind != kind::EXTENT_DATA {
            continue;
        }
        let parsed = trees.explain(FileExtent::parse(data).map_err(|c| c.key(key).into()))?;
        let FileExtent::Extent { fields, .. } = parsed else { continue };
        if fields.disk_bytenr != extent {
            continue;
        }
        let within = at.map(|at| at.checked_sub(fields.offset));
        let offset = match within {
            None => key.offset,
            Some(Some(within)) if within < fields.num_bytes => key.offset + within,
            Some(_) => continue,
        };
        found.insert(Found { root: root.id.0, ino: key.objectid, offset });
    }
    Ok(())
}

fn tell(
    trees: &Trees,
    found: &BTreeSet<Found>,
    wanted: &Wanted,
    reach: Option<&Reach>,
) -> Result<()> {
    let mut out = Out::new();
    let mut rows = Vec::new();
    for file in found {
        let spot = TreeInode { tree: TreeId(file.root), ino: file.ino };
        let above = subvolume_path(trees, spot.tree)?;
        let paths = inode_paths(trees, spot)?.into_iter();
        let paths: Vec<Vec<u8>> =
            above.map_or_else(Vec::new, |above| paths.map(|path| join(&above, &path)).collect());
        rows.push((*file, paths));
    }
    if wanted.json {
        out.line(as_json(&rows))?;
        return out.finish();
    }
    for (file, paths) in &rows {
        if wanted.numbers {
            let Found { root, ino, offset } = file;
            out.line(format!("inode {ino} offset {offset} root {root}"))?;
            continue;
        }
        for path in paths {
            let shown = reach.map_or_else(|| Some(path.clone()), |reach| reach.show(path));
            match shown {
                Some(shown) => out.line(shown)?,
                None => {
                    let (ino, path) = (file.ino, String::from_utf8_lossy(path));
                    out.line(format!("inode {ino}, {path}: not in what is mounted"))?;
                }
            }
        }
    }
    out.finish()
}

fn as_json(rows: &[(Found, Vec<Vec<u8>>)]) -> String {
    Json::object(|o| {
        o.array("files", |all| {
            for (file, paths) in rows {
                all.object(|o| {
                    o.number("inode", file.ino).number("offset", file.offset);
                    o.number("rootid", file.root).each_bytes("paths", paths);
                });
            }
        });
    })
}
