//! `btrfs inspect-internal dump-tree`.

use super::keys::key as key_of;
use super::text::Wishes;
use super::walk::{Order, Printer};
use crate::args::{Arg, Args, show, some, unexpected};
use crate::commands::Command;
use crate::commands::offline::{Offline, uuid};
use crate::error::{Error, Exit, Result};
use crate::image::Access;
use btrfs_disk::items::RootItem;
use btrfs_disk::key::kind;
use btrfs_disk::{Key, TreeId};
use btrfs_tree::{Cursor, TreeRoot};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::Path;

pub const COMMAND: Command = Command {
    name: "inspect-internal dump-tree",
    summary: "print the trees of a volume as btrfs-progs does",
    usage: "[OPTIONS] DEVICE...",
    help: "\
Under the name `btrfs` alone. Prints what btrfs-progs 6.2 prints, line for line but for the
first, which tells the version; `spinney dump-tree` has a format of our own. Volumes have
one device: of several words the first is it. What cannot be read is told on standard error,
the rest is printed, and the exit code is 1.

Options
    -e, --extents       the extent tree and the device tree alone, leaves only
    -d, --device        the root tree, the chunk tree, the log root tree and the device tree
    -r, --roots         where each tree begins
    -R, --backups       the same, and the backups of roots in the superblock
    -u, --uuid          the UUID tree alone
    -b, --block LOGICAL  the node at this address; may be repeated
        --follow        with -b: what is below it as well
    -t, --tree TREE     one tree, by number or name
        --bfs           level by level (default)
        --dfs           each node, then what is below it
        --hide-names    HIDDEN for names and values of xattrs
        --csum-headers  with the checksums of nodes
        --csum-items    with the checksums of data
        --noscan        look for no other devices; never done

Examples
    btrfs inspect-internal dump-tree -t 5 disk.img
    spinney btrfs inspect-internal dump-tree --hide-names disk.img

Exit codes
    0  done
    1  something could not be read, or the command line is wrong
",
    run,
};

#[derive(Default)]
struct Wanted {
    devices: Vec<OsString>,
    extents: bool,
    device: bool,
    uuid: bool,
    roots: bool,
    backups: bool,
    blocks: BTreeSet<u64>,
    follow: bool,
    tree: Option<TreeId>,
    order: Order,
    wishes: Wishes,
}

impl Wanted {
    /// Some trees of all, named by an option of their own.
    fn some(&self) -> bool {
        self.extents || self.device || self.uuid
    }
}

fn parse(mut args: Args) -> Result<Wanted> {
    let mut wanted = Wanted::default();
    while let Some(arg) = args.next()? {
        match arg {
            Arg::Short('e') | Arg::Long("extents") => wanted.extents = true,
            Arg::Short('d') | Arg::Long("device") => wanted.device = true,
            Arg::Short('u') | Arg::Long("uuid") => wanted.uuid = true,
            Arg::Short('r') | Arg::Long("roots") => wanted.roots = true,
            Arg::Short('R') | Arg::Long("backups") => {
                (wanted.roots, wanted.backups) = (true, true);
            }
            Arg::Short('b') | Arg::Long("block") => {
                wanted.blocks.insert(number(&args.text()?)?);
            }
            Arg::Long("follow") => wanted.follow = true,
            Arg::Short('t') | Arg::Long("tree") => wanted.tree = Some(tree_of(&args.text()?)?),
            Arg::Long("bfs") => wanted.order = Order::Breadth,
            Arg::Long("dfs") => wanted.order = Order::Depth,
            Arg::Long("hide-names") => wanted.wishes.hide_names = true,
            Arg::Long("csum-headers") => wanted.wishes.csum_headers = true,
            Arg::Long("csum-items") => wanted.wishes.csum_items = true,
            Arg::Long("noscan") => {}
            Arg::Value(value) => wanted.devices.push(value),
            other => return Err(unexpected(other)),
        }
    }
    wanted.devices = some(wanted.devices, "a device")?;
    Ok(wanted)
}

/// As strtoull(3) with base 0.
pub fn number(word: &str) -> Result<u64> {
    let (digits, base) = match word.as_bytes() {
        [b'0', b'x' | b'X', ..] => (&word[2..], 16),
        [b'0', _, ..] => (&word[1..], 8),
        _ => (word, 10),
    };
    let plain = !digits.starts_with(['+', '-']);
    let number = u64::from_str_radix(digits, base).ok().filter(|_| plain);
    number.ok_or_else(|| Error::usage(format!("{word} is not a valid numeric value")))
}

const TREES: &[(&str, TreeId)] = &[
    ("ROOT", TreeId::ROOT),
    ("EXTENT", TreeId::EXTENT),
    ("CHUNK", TreeId::CHUNK),
    ("DEVICE", TreeId::DEV),
    ("DEV", TreeId::DEV),
    ("FS", TreeId::FS),
    ("CSUM", TreeId::CSUM),
    ("CHECKSUM", TreeId::CSUM),
    ("QUOTA", TreeId::QUOTA),
    ("UUID", TreeId::UUID),
    ("FREE_SPACE", TreeId::FREE_SPACE),
    ("BLOCK_GROUP", TreeId::BLOCK_GROUP),
    ("TREE_LOG_FIXUP", TreeId::LOG_FIXUP),
    ("TREE_LOG", TreeId::LOG),
    ("TREE_RELOC", TreeId::RELOC),
    ("DATA_RELOC", TreeId::DATA_RELOC),
];

/// A number, or one of the format's names for a tree, in any case, with or without what the
/// format puts around it.
fn tree_of(word: &str) -> Result<TreeId> {
    if let Some(number) = word.parse().ok().filter(|_| !word.starts_with('+')) {
        return Ok(TreeId(number));
    }
    let name = word.to_ascii_uppercase();
    let name = name.strip_prefix("BTRFS_").unwrap_or(&name);
    let name = name.strip_suffix("_OBJECTID").unwrap_or(name);
    let of = |name: &str| TREES.iter().find(|(known, _)| *known == name).map(|(_, tree)| *tree);
    let found = of(name).or_else(|| of(name.strip_suffix("_TREE")?));
    found.ok_or_else(|| Error::usage(format!("unrecognized tree id: {word}")))
}

fn run(args: Args) -> Result<Exit> {
    let wanted = parse(args)?;
    let offline = Offline::open(Path::new(&wanted.devices[0]), Access::Peek)?;
    let mut printer = Printer::new(&offline, wanted.wishes);
    let version = env!("CARGO_PKG_VERSION");
    printer.out.line(format!("spinney v{version}, as btrfs-progs v6.2"))?;
    if !wanted.blocks.is_empty() {
        blocks(&mut printer, &wanted)?;
    } else if !one_of_the_superblock(&mut printer, &wanted)? {
        all(&mut printer, &wanted)?;
    }
    printer.out.finish()?;
    Ok(Exit::failed_if(printer.failed))
}

fn blocks(printer: &mut Printer<'_>, wanted: &Wanted) -> Result<()> {
    let sector = u64::from(printer.offline.volume.geometry().sector_size);
    for block in &wanted.blocks {
        if !block.is_multiple_of(sector) {
            let what = format!("tree block bytenr {block} is not aligned to sectorsize {sector}");
            Error::about(show(&wanted.devices[0]), what).print();
            printer.failed = true;
            continue;
        }
        printer.block(*block, wanted.follow.then_some(wanted.order))?;
    }
    Ok(())
}

/// Trees that no root item names, whatever else is asked for. Whether it was one of them.
fn one_of_the_superblock(printer: &mut Printer<'_>, wanted: &Wanted) -> Result<bool> {
    let (tree, name) = match wanted.tree {
        Some(TreeId::ROOT) => (TreeId::ROOT, "root tree"),
        Some(TreeId::CHUNK) => (TreeId::CHUNK, "chunk tree"),
        Some(TreeId::LOG) => (TreeId::LOG, "log root tree"),
        _ => return Ok(false),
    };
    let Some(root) = printer.offline.root(tree)? else {
        return Err(Error::about(show(&wanted.devices[0]), format!("there is no {name}")));
    };
    printer.out.line(name)?;
    printer.tree(&root, wanted.order)?;
    Ok(true)
}

fn all(printer: &mut Printer<'_>, wanted: &Wanted) -> Result<()> {
    let log = printer.offline.root(TreeId::LOG)?;
    if !wanted.extents && !wanted.uuid && wanted.tree.is_none() {
        for (tree, name) in [
            (TreeId::ROOT, "root tree"),
            (TreeId::CHUNK, "chunk tree"),
            (TreeId::LOG, "log root tree"),
        ] {
            let Some(root) = printer.offline.root(tree)? else { continue };
            if wanted.roots {
                printer.out.line(format!("{name}: {} level {}", root.logical, root.level))?;
            } else {
                printer.out.line(name)?;
                printer.tree(&root, wanted.order)?;
            }
        }
    }
    let root = printer.offline.root(TreeId::ROOT)?;
    for top in root.into_iter().chain(log) {
        for (key, root) in roots_in(printer.offline, &top)? {
            one(printer, wanted, key, &root)?;
        }
    }
    if wanted.some() {
        return Ok(());
    }
    if wanted.backups {
        backups(printer)?;
    }
    let sb = printer.offline.volume.superblock().fields;
    printer.out.line(format!("total bytes {}", sb.total_bytes))?;
    printer.out.line(format!("bytes used {}", sb.bytes_used))?;
    printer.out.line(format!("uuid {}", uuid(&sb.fsid)))
}

/// The root items of a tree of roots.
fn roots_in(offline: &Offline, top: &TreeRoot) -> Result<Vec<(Key, TreeRoot)>> {
    let mut cursor = Cursor::new(&offline.store, top);
    let mut roots = Vec::new();
    offline.explain(cursor.first())?;
    while let Some((key, data)) = cursor.item() {
        if key.kind == kind::ROOT_ITEM {
            let item = offline.explain(RootItem::parse(data).map_err(|c| c.key(key).into()))?;
            let (id, logical, generation) = (TreeId(key.objectid), item.bytenr, item.generation);
            roots.push((key, TreeRoot { id, logical, generation, level: item.level }));
        }
        offline.explain(cursor.next())?;
    }
    Ok(roots)
}

/// Whether an option that names some trees leaves this one out.
fn left_out(wanted: &Wanted, tree: TreeId) -> bool {
    match tree {
        _ if !wanted.some() => false,
        TreeId::EXTENT => wanted.device || wanted.uuid,
        TreeId::DEV => wanted.uuid,
        TreeId::UUID => wanted.extents || wanted.device,
        _ => true,
    }
}

fn one(printer: &mut Printer<'_>, wanted: &Wanted, key: Key, root: &TreeRoot) -> Result<()> {
    let unwanted = wanted.tree.is_some_and(|tree| tree != root.id);
    if unwanted || left_out(wanted, root.id) {
        return Ok(());
    }
    let named = format!("{} tree key {}", tree_word(root.id), key_of(&key));
    if wanted.extents {
        printer.out.line(named)?;
        return printer.tree(root, Order::Leaves);
    }
    if wanted.roots {
        return printer.out.line(format!("{named} {} level {}", root.logical, root.level));
    }
    printer.out.line(format!("{named} "))?;
    printer.tree(root, wanted.order)
}

fn tree_word(tree: TreeId) -> &'static str {
    match tree {
        TreeId::EXTENT => "extent",
        TreeId::DEV => "device",
        TreeId::FS => "fs",
        TreeId::CSUM => "checksum",
        TreeId::QUOTA => "quota",
        TreeId::UUID => "uuid",
        TreeId::FREE_SPACE => "free space",
        TreeId::BLOCK_GROUP => "block group",
        TreeId::LOG => "log",
        TreeId::LOG_FIXUP => "log fixup",
        TreeId::RELOC => "reloc",
        TreeId::DATA_RELOC => "data reloc",
        _ => "file",
    }
}

fn backups(printer: &mut Printer<'_>) -> Result<()> {
    for (slot, b) in printer.offline.volume.superblock().backups.iter().enumerate() {
        let out = &mut printer.out;
        out.line(format!("btrfs root backup slot {slot}"))?;
        out.line(format!("\ttree root gen {} block {}", b.tree_root_gen, b.tree_root))?;
        for (name, generation, block) in [
            ("extent", b.extent_root_gen, b.extent_root),
            ("chunk", b.chunk_root_gen, b.chunk_root),
            ("device", b.dev_root_gen, b.dev_root),
            ("csum", b.csum_root_gen, b.csum_root),
            ("fs", b.fs_root_gen, b.fs_root),
        ] {
            out.line(format!("\t\t{name} root gen {generation} block {block}"))?;
        }
        let (used, total, devices) = (b.bytes_used, b.total_bytes, b.num_devices);
        out.line(format!("\t\t{used} used {total} total {devices} devices"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trees_by_the_names_that_btrfs_progs_takes() {
        for (word, tree) in [
            ("fs", TreeId::FS),
            ("FS_TREE", TreeId::FS),
            ("BTRFS_ROOT_TREE_OBJECTID", TreeId::ROOT),
            ("checksum", TreeId::CSUM),
            ("tree_log_fixup", TreeId::LOG_FIXUP),
            ("data_reloc_tree", TreeId::DATA_RELOC),
            ("18446744073709551607", TreeId::DATA_RELOC),
            ("256", TreeId(256)),
        ] {
            assert_eq!(tree_of(word).expect(word), tree);
        }
        for word in ["fs-tree", "free-space", "ROOT_TREE_DIR", "-9", "0x100", "5x", "", "TREE"] {
            assert!(tree_of(word).is_err(), "{word}");
        }
    }

    #[test]
    fn numbers_are_those_of_c() {
        for (word, value) in [("0", 0), ("4096", 4096), ("0x10", 16), ("010", 8)] {
            assert_eq!(number(word).expect(word), value);
        }
        for word in ["", "4k", "xyz", "-1", "0x", "+5", "0x-1", "09"] {
            assert!(number(word).is_err(), "{word}");
        }
    }
}
