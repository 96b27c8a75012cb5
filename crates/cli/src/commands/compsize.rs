//! `spinney compsize`.

use crate::args::{self, Arg, Args, unexpected};
use crate::commands::Command;
use crate::commands::subvolume::place::VolumePath;
use crate::commands::trees::{TreeInode, Trees};
use crate::error::{Error, Exit, Result};
use crate::output::{Json, Out};
use btrfs_disk::Corrupt;
use btrfs_disk::items::{Compression, FileExtent, FileExtentKind, dir_type};
use btrfs_disk::key::kind;
use std::collections::{BTreeMap, HashSet};
use std::ffi::OsString;

pub const COMMAND: Command = Command {
    name: "compsize",
    summary: "tell how much compression saves, by kind",
    usage: "[--json] [-b] [-x] PATH...",
    help: "\
Tells for all files below the paths how much their content takes on the device, how much it
would take uncompressed, and how much of that the files refer to (of shared extents each time
anew), by how it is compressed. PATH is one of a mount, or IMAGE:/PATH from the top level
on. The output is that of compsize(8).

Options
    -b, --bytes             sizes in bytes
    -x, --one-file-system   stay in the subvolume of each path
        --json              as a JSON object, sizes in bytes

Examples
    spinney compsize /mnt/home
    spinney compsize disk.img:/
",
    run,
};

/// Of one way to store content.
#[derive(Clone, Copy, Default)]
struct Sizes {
    disk: u64,
    uncompressed: u64,
    referenced: u64,
}

impl Sizes {
    fn add(&mut self, other: Sizes) {
        // Items may claim any number of bytes.
        self.disk = self.disk.saturating_add(other.disk);
        self.uncompressed = self.uncompressed.saturating_add(other.uncompressed);
        self.referenced = self.referenced.saturating_add(other.referenced);
    }

    /// How much of what it would take uncompressed it takes.
    fn percent(&self) -> u128 {
        u128::from(self.disk) * 100 / u128::from(self.uncompressed.max(1))
    }
}

/// In the order of the table.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Stored {
    As(u8),
    Preallocated,
}

impl Stored {
    fn of(compression: Compression) -> Stored {
        Stored::As(match compression {
            Compression::None => 0,
            Compression::Zlib => 1,
            Compression::Lzo => 2,
            Compression::Zstd => 3,
        })
    }

    fn name(self) -> &'static str {
        match self {
            Stored::As(0) => "none",
            Stored::As(1) => "zlib",
            Stored::As(2) => "lzo",
            Stored::As(_) => "zstd",
            Stored::Preallocated => "prealloc",
        }
    }
}

#[derive(Default)]
struct Found {
    files: u64,
    refs: u64,
    inline: u64,
    extents: HashSet<u64>,
    by: BTreeMap<Stored, Sizes>,
}

fn run(mut args: Args) -> Result<Exit> {
    let (mut operands, mut json) = (Vec::<OsString>::new(), false);
    let (mut raw, mut stay) = (false, false);
    while let Some(arg) = args.next()? {
        match arg {
            Arg::Long("json") => json = true,
            Arg::Short('b') | Arg::Long("bytes") => raw = true,
            Arg::Short('x') | Arg::Long("one-file-system") => stay = true,
            Arg::Value(value) => operands.push(value),
            other => return Err(unexpected(other)),
        }
    }
    let mut found = Found::default();
    for word in args::some(operands, "PATH")? {
        let trees = Trees::open(&VolumePath::of_any_file(&word))?;
        search(&trees, trees.spot()?, stay, &mut found)?;
    }
    if found.files == 0 && !json {
        return Err(Error::new("no files"));
    }
    let mut out = Out::new();
    match json {
        true => out.line(as_json(&found))?,
        false => as_text(&mut out, &found, raw)?,
    }
    out.finish()?;
    Ok(Exit::Done)
}

/// All below, one directory after the other; a file counts for each name that leads to it, a
/// directory once, since in a damaged volume several may, and one from below.
fn search(trees: &Trees, top: TreeInode, stay: bool, found: &mut Found) -> Result<()> {
    if trees.mode(top)? & libc::S_IFMT == libc::S_IFREG {
        return file(trees, top, found);
    }
    let (mut dirs, mut seen) = (vec![top], HashSet::from([top]));
    while let Some(dir) = dirs.pop() {
        for child in trees.children(dir)? {
            match child.kind {
                dir_type::DIR if child.at.tree != dir.tree && stay => {}
                dir_type::DIR if !seen.insert(child.at) => {}
                dir_type::DIR => dirs.push(child.at),
                dir_type::REG_FILE => file(trees, child.at, found)?,
                _ => {}
            }
        }
    }
    Ok(())
}

fn file(trees: &Trees, at: TreeInode, found: &mut Found) -> Result<()> {
    found.files += 1;
    trees.each_of(at, kind::EXTENT_DATA, |key, data| {
        Ok(extent(data, found).map_err(|corrupt| corrupt.key(key))?)
    })
}

fn extent(data: &[u8], found: &mut Found) -> std::result::Result<(), Corrupt> {
    let (stored, sizes) = match FileExtent::parse(data)? {
        FileExtent::Inline { ram_bytes, compression, content, .. } => {
            found.inline += 1;
            let sizes = Sizes {
                disk: content.len() as u64,
                uncompressed: ram_bytes,
                referenced: ram_bytes,
            };
            (Stored::of(compression), sizes)
        }
        FileExtent::Extent { fields, .. } if fields.disk_bytenr.0 == 0 => return Ok(()),
        FileExtent::Extent { kind, compression, fields } => {
            found.refs += 1;
            let mut sizes = Sizes { referenced: fields.num_bytes, ..Sizes::default() };
            if found.extents.insert(fields.disk_bytenr.0) {
                (sizes.disk, sizes.uncompressed) = (fields.disk_num_bytes, fields.ram_bytes);
            }
            match kind {
                FileExtentKind::Prealloc => (Stored::Preallocated, sizes),
                _ => (Stored::of(compression), sizes),
            }
        }
    };
    found.by.entry(stored).or_default().add(sizes);
    Ok(())
}

fn total(found: &Found) -> Sizes {
    found.by.values().fold(Sizes::default(), |mut total, sizes| {
        total.add(*sizes);
        total
    })
}

fn as_text(out: &mut Out, found: &Found, raw: bool) -> Result<()> {
    let plural = if found.files == 1 { "" } else { "s" };
    out.line(format!(
        "Processed {} file{plural}, {} regular extents ({} refs), {} inline.",
        found.files,
        found.extents.len(),
        found.refs,
        found.inline
    ))?;
    out.line("Type       Perc     Disk Usage   Uncompressed Referenced  ")?;
    let rows = found.by.iter().map(|(stored, sizes)| (stored.name(), *sizes));
    for (name, sizes) in [("TOTAL", total(found))].into_iter().chain(rows) {
        let cells = [sizes.disk, sizes.uncompressed, sizes.referenced];
        let [disk, uncompressed, referenced] = cells.map(|bytes| size(bytes, raw));
        let percent = format!("{:3}%", sizes.percent());
        out.line(format!(
            "{name:<10} {percent:<8} {disk:<12} {uncompressed:<12} {referenced:<12}"
        ))?;
    }
    Ok(())
}

/// As compsize has it: five places, cut and not rounded.
fn size(bytes: u64, raw: bool) -> String {
    if raw {
        return bytes.to_string();
    }
    let (mut scaled, mut rest, mut unit) = (bytes, 0, 0);
    while scaled >= 1024 {
        (scaled, rest, unit) = (scaled >> 10, scaled & 1023, unit + 1);
    }
    let letter = ["B", "K", "M", "G", "T", "P", "E"][unit];
    match unit > 0 && scaled < 10 {
        true => format!("{scaled:2}.{}{letter}", (rest * 10) >> 10),
        false => format!("{scaled:4}{letter}"),
    }
}

fn as_json(found: &Found) -> String {
    Json::object(|o| {
        o.number("files", found.files)
            .number("extents", found.extents.len() as u64)
            .number("refs", found.refs)
            .number("inline", found.inline)
            .array("types", |all| {
                let rows = found.by.iter().map(|(stored, sizes)| (stored.name(), *sizes));
                for (name, sizes) in [("total", total(found))].into_iter().chain(rows) {
                    all.object(|o| {
                        o.text("type", name)
                            .number("disk_usage", sizes.disk)
                            .number("uncompressed", sizes.uncompressed)
                            .number("referenced", sizes.referenced);
                    });
                }
            });
    })
}

#[cfg(test)]
mod tests {
    use super::Sizes;

    #[test]
    fn sizes_that_cannot_be_add_up_to_the_largest() {
        let half = Sizes { disk: 1 << 63, uncompressed: 1 << 63, referenced: 1 << 63 };
        let mut all = half;
        all.add(half);
        assert_eq!((all.disk, all.uncompressed, all.referenced), (u64::MAX, u64::MAX, u64::MAX));
        assert_eq!(all.percent(), 100);
        assert_eq!(Sizes { uncompressed: 1 << 62, ..half }.percent(), 200);
    }
}
