//! `spinney property get`.

use super::{ALL, Kind, Property, Words, compression, incompatible, kinds_of, words};
use crate::args::Args;
use crate::commands::Command;
use crate::commands::filesystem::label;
use crate::commands::subvolume::place::{self, Open, VolumePath};
use crate::error::{Error, Exit, Result};
use crate::output::{Json, Out};
use crate::size::count;

pub const COMMAND: Command = Command {
    name: "property get",
    summary: "tell the properties of a subvolume, a volume or a file",
    usage: "[--json] [-t subvol|filesystem|inode] PATH [ro|label|compression]",
    help: "\
Prints one property, or all that PATH has. `ro`, of a subvolume: `ro=true` if nothing in it
can be changed. `label`, of the top of an image or a mount. `compression`, of a file or a
directory: how its content, or that of what is made in it, is compressed; nothing is printed
where it has none. `spinney subvolume property get` is the same.

Options
    --json            as a JSON object
    -t TYPE           properties of that kind alone: subvol, filesystem (or device), inode
    --subvol PATH, --subvolid ID
                      paths in an image start from this subvolume, not the default one

Examples
    spinney property get disk.img:/home.monday ro
    spinney property get disk.img:/home/notes compression
",
    run,
};

fn run(args: Args) -> Result<Exit> {
    let Words { operands, subvol, json, kind } = words(args)?;
    let (place, name) = match operands.as_slice() {
        [place] => (VolumePath::of_any_file(place), None),
        [place, name] => {
            let property = Property::named(&name.to_string_lossy())?;
            (VolumePath::of_any_file(place), Some(property))
        }
        all => {
            return Err(Error::usage(format!(
                "expected a path, got {}",
                count(all.len() as u64, "word")
            )));
        }
    };
    place::at(std::slice::from_ref(&place), subvol, false, |open, _| {
        let wanted = wanted(open, &place, (kind, name))?;
        let mut told = Vec::new();
        for property in wanted {
            told.extend(value_of(open, &place, property)?.map(|value| (property, value)));
        }
        tell(&told, json)
    })
}

/// Which properties are asked for, of those that the place has.
fn wanted(
    open: &Open<'_>,
    place: &VolumePath,
    (kind, name): (Option<Kind>, Option<Property>),
) -> Result<Vec<Property>> {
    let is = kinds_of(open, place)?;
    let has = |property: &Property| {
        is.contains(&property.kind()) && kind.is_none_or(|kind| kind == property.kind())
    };
    match name {
        None => Ok(ALL.into_iter().filter(has).collect()),
        Some(property) if has(&property) => Ok(vec![property]),
        Some(property) => Err(incompatible(property)),
    }
}

fn value_of(open: &Open<'_>, place: &VolumePath, property: Property) -> Result<Option<String>> {
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    match property {
        Property::ReadOnly => Ok(Some(open.rooted(place)?.read_only.to_string())),
        Property::Label => label::get(place).map(text).map(Some),
        Property::Compression => compression::get(open, place),
    }
}

fn tell(told: &[(Property, String)], json: bool) -> Result<()> {
    let mut out = Out::new();
    if json {
        out.line(Json::object(|o| {
            for (property, value) in told {
                match property {
                    Property::ReadOnly => o.bool(property.name(), value == "true"),
                    _ => o.text(property.name(), value),
                };
            }
        }))?;
    } else {
        for (property, value) in told {
            out.line(format!("{}={value}", property.name()))?;
        }
    }
    out.finish()
}
