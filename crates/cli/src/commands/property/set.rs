//! `spinney property set`.

use super::{Property, compression, kind_named, must_have};
use crate::args::{self, Arg, Args};
use crate::commands::Command;
use crate::commands::filesystem::label;
use crate::commands::subvolume::place::{self, Open, VolumePath};
use crate::error::{Error, Exit, Result};
use crate::mount::options::{subvol_id, subvol_path};
use btrfs_fs::Subvol;
use std::ffi::{OsStr, OsString};

pub const COMMAND: Command = Command {
    name: "property set",
    summary: "change a property of a subvolume or a file",
    usage: "\
[-f] [-t subvol] SUBVOLUME ro true|false
[-t inode] PATH compression TYPE[:LEVEL]|no
[-t filesystem] VOLUME label LABEL",
    help: "\
With `ro true` nothing in the subvolume can be changed any more, with `ro false` it can
again. In a mount, who owns the subvolume's root directory may do so. `spinney subvolume
property set` is the same.

`compression` says how the content of a file is compressed from now on, or that of what is
made in a directory: zlib, lzo, zstd, or not at all (no, none); \"\" takes the property away.

`label` is that of a volume, as `spinney filesystem label` has it.

Options
    -f                also of a subvolume that was received, which is then no longer what was
                      sent, so that nothing that builds on it can be received
    -t TYPE           the kind of what has the property: subvol, inode or filesystem
    --subvol PATH, --subvolid ID
                      paths in an image start from this subvolume, not the default one

Examples
    spinney property set disk.img:/home.monday ro true
    spinney property set disk.img:/var/log compression zstd
",
    run,
};

fn run(mut args: Args) -> Result<Exit> {
    let (mut operands, mut subvol) = (Vec::<OsString>::new(), Subvol::Default);
    let (mut force, mut kind) = (false, None);
    while let Some(arg) = args.next()? {
        match arg {
            Arg::Short('f') => force = true,
            Arg::Short('t') => kind = Some(kind_named(&args.text()?)?),
            Arg::Long("subvol") => subvol = subvol_path(&args.text()?)?,
            Arg::Long("subvolid") => subvol = subvol_id(&args.text()?)?,
            Arg::Value(value) => operands.push(value),
            other => return Err(args::unexpected(other)),
        }
    }
    let [place, name, value] = args::exactly(operands, "an object, a property and its value")?;
    let property = Property::named(&name.to_string_lossy())?;
    let place = match property {
        Property::Compression => VolumePath::of_any_file(&place),
        Property::Label | Property::ReadOnly => VolumePath::parse(&place),
    };
    let value = Value::of(property, &value)?;
    place::at(std::slice::from_ref(&place), subvol, true, |open, _| {
        must_have(open, &place, (kind, property))?;
        match &value {
            Value::Compression(value) => compression::set(open, &place, value),
            Value::Label(value) => label::set_in(open, &place, value),
            Value::ReadOnly(value) => set_read_only(open, &place, *value, force),
        }
    })
}

enum Value {
    Compression(String),
    Label(OsString),
    ReadOnly(bool),
}

impl Value {
    fn of(property: Property, word: &OsStr) -> Result<Value> {
        Ok(match property {
            Property::Compression => {
                let text = word.to_string_lossy().into_owned();
                compression::judge(&text)?;
                Value::Compression(text)
            }
            Property::Label => Value::Label(word.to_owned()),
            Property::ReadOnly => match word.to_str() {
                Some("true") => Value::ReadOnly(true),
                Some("false") => Value::ReadOnly(false),
                _ => return Err(Error::usage("ro is true or false")),
            },
        })
    }
}

fn set_read_only(open: &Open<'_>, place: &VolumePath, value: bool, force: bool) -> Result<()> {
    let info = open.rooted(place)?;
    if info.read_only && !value && info.received_uuid != [0; 16] && !force {
        let what = "was received: what is changed can no longer be what was sent";
        return Err(Error::about(place.show(), what).remedy("-f makes it writable anyway"));
    }
    open.set_read_only(place, value)
}
