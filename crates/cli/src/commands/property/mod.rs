//! `spinney property ...`: what `btrfs property` has of subvolumes, volumes and files.

mod compression;
pub mod get;
pub mod list;
pub mod set;

use crate::args::{Arg, Args, unexpected};
use crate::commands::subvolume::place::{Open, VolumePath};
use crate::error::{Error, Result};
use crate::mount::options::{subvol_id, subvol_path};
use crate::mounts;
use btrfs_fs::Subvol;
use std::ffi::OsString;

/// What has properties; a path can be several of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Subvolume,
    Volume,
    File,
}

/// In the order in which they are told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Property {
    ReadOnly,
    Label,
    Compression,
}

const ALL: [Property; 3] = [Property::ReadOnly, Property::Label, Property::Compression];

impl Property {
    fn named(name: &str) -> Result<Property> {
        ALL.into_iter().find(|property| property.name() == name).ok_or_else(|| {
            Error::usage(format!("there is no property {name}: ro, label and compression are"))
        })
    }

    fn name(self) -> &'static str {
        match self {
            Property::ReadOnly => "ro",
            Property::Label => "label",
            Property::Compression => compression::NAME,
        }
    }

    fn about(self) -> &'static str {
        match self {
            Property::ReadOnly => "read-only status of a subvolume",
            Property::Label => "label of the filesystem",
            Property::Compression => "compression algorithm for the file or directory",
        }
    }

    fn kind(self) -> Kind {
        match self {
            Property::ReadOnly => Kind::Subvolume,
            Property::Label => Kind::Volume,
            Property::Compression => Kind::File,
        }
    }
}

/// The word behind `-t`, which may be cut.
fn kind_named(word: &str) -> Result<Kind> {
    let kinds = [
        ("subvolume", Kind::Subvolume),
        ("filesystem", Kind::Volume),
        ("device", Kind::Volume),
        ("inode", Kind::File),
    ];
    let found = kinds.iter().find(|(name, _)| !word.is_empty() && name.starts_with(word));
    found.map(|(_, kind)| *kind).ok_or_else(|| {
        Error::usage(format!("-t {word}: properties are of a subvol, a filesystem or an inode"))
    })
}

/// What `get` and `list` are asked.
struct Words {
    operands: Vec<OsString>,
    subvol: Subvol,
    json: bool,
    kind: Option<Kind>,
}

fn words(mut args: Args) -> Result<Words> {
    let subvol = Subvol::Default;
    let mut words = Words { operands: Vec::new(), subvol, json: false, kind: None };
    while let Some(arg) = args.next()? {
        match arg {
            Arg::Short('t') => words.kind = Some(kind_named(&args.text()?)?),
            Arg::Long("json") => words.json = true,
            Arg::Long("subvol") => words.subvol = subvol_path(&args.text()?)?,
            Arg::Long("subvolid") => words.subvol = subvol_id(&args.text()?)?,
            Arg::Value(value) => words.operands.push(value),
            other => return Err(unexpected(other)),
        }
    }
    Ok(words)
}

/// What the place is.
fn kinds_of(open: &Open<'_>, place: &VolumePath) -> Result<Vec<Kind>> {
    let mut kinds = vec![Kind::File];
    if open.around(place)?.1 {
        kinds.push(Kind::Subvolume);
    }
    let top = match place {
        VolumePath::Image(inside) => inside.path == b"/",
        VolumePath::Mount(path) => {
            let failed = |e| Error::io(path, &e);
            let entry = mounts::around(path).map_err(failed)?;
            let path = path.canonicalize().map_err(failed)?;
            entry.is_some_and(|entry| entry.point == path)
        }
    };
    if top {
        kinds.push(Kind::Volume);
    }
    Ok(kinds)
}

/// Refuses to take the place for what has the property, or for what it was said to be, where it is not.
fn must_have(
    open: &Open<'_>,
    place: &VolumePath,
    (kind, property): (Option<Kind>, Property),
) -> Result<()> {
    let of = property.kind();
    // Everything is a file, and not all may be opened.
    let is = of == Kind::File || kinds_of(open, place)?.contains(&of);
    match is && kind.is_none_or(|kind| kind == of) {
        true => Ok(()),
        false => Err(incompatible(property)),
    }
}

fn incompatible(property: Property) -> Error {
    Error::new(format!("object is not compatible with property: {}", property.name()))
}
