//! `spinney xattr`.

use super::Command;
use crate::args::{self, Arg, Args};
use crate::error::{Error, Exit, Result};
use crate::image::ImagePath;
use crate::inside::volumes::At;
use crate::inside::{self, Node, Scope};
use crate::mount::options::{subvol_id, subvol_path};
use crate::output::{Json, Object, Out, hex};
use btrfs_fs::Subvol;
use spinney::Volume;
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use vfs::{Errno, FileKind, FsError, XattrMode};

pub const COMMAND: Command = Command {
    name: "xattr",
    summary: "read and change extended attributes in a volume",
    usage: "\
list [-h] [--json] IMAGE:/PATH
get  [-h] [--hex] [--json] IMAGE:/PATH NAME
set  [-h] IMAGE:/PATH NAME VALUE
rm   [-h] IMAGE:/PATH NAME",
    help: "\
Works on the extended attributes of a file in a volume that is not mounted. Names have their
class in front: user., trusted., security., system.posix_acl_access and so on.

`list` prints one name per line; `get` the value as it is. VALUE is text, or bytes as 0x and
hexadecimal digits.

Options
    -h, --no-dereference   of a symbolic link itself
    --hex                  print the value as 0x and hexadecimal digits
    --json                 an array of objects with `name` and `value` (of `get`: the one
                           object); of what is no text `name_hex` and `value_hex`, too
    --subvol PATH, --subvolid ID
                           start from this subvolume instead of the volume's default one

Examples
    spinney xattr list disk.img:/file
    spinney xattr set disk.img:/file user.origin 'a backup'
    spinney xattr get --hex disk.img:/bin/ping security.capability
",
    run,
};

#[derive(Default)]
struct Options {
    no_follow: bool,
    hex: bool,
    json: bool,
}

fn run(mut args: Args) -> Result<Exit> {
    let (mut words, mut subvol) = (Vec::new(), Subvol::Default);
    let mut options = Options::default();
    while let Some(arg) = args.next()? {
        match arg {
            Arg::Short('h') | Arg::Long("no-dereference") => options.no_follow = true,
            Arg::Long("hex") => options.hex = true,
            Arg::Long("json") => options.json = true,
            Arg::Long("subvol") => subvol = subvol_path(&args.text()?)?,
            Arg::Long("subvolid") => subvol = subvol_id(&args.text()?)?,
            Arg::Value(value) => words.push(value),
            other => return Err(args::unexpected(other)),
        }
    }
    let mut words = words.into_iter();
    let verb = words.next().ok_or_else(|| Error::usage("list, get, set or rm?"))?;
    let rest: Vec<OsString> = words.collect();
    let count = match verb.as_bytes() {
        b"list" | b"ls" => 1,
        b"get" | b"rm" | b"remove" => 2,
        b"set" => 3,
        _ => return Err(Error::usage("list, get, set or rm?")),
    };
    if rest.len() != count {
        return Err(Error::usage(format!(
            "expected {} behind {}",
            crate::size::count(count as u64, "word"),
            args::show(&verb)
        )));
    }
    let path = ImagePath::expect(&rest[0])?;
    let write = matches!(verb.as_bytes(), b"set" | b"rm" | b"remove");
    Scope::of(subvol, std::slice::from_ref(&path), write).run(|volumes, _| {
        let volume = volumes.of(&path)?;
        work(volume, &path, verb.as_bytes(), &rest[1..], &options)
    })
}

/// The kernel neither sets nor reads others.
fn may_have(node: &Node, name: &[u8], operand: &ImagePath) -> Result<()> {
    match node.attr.kind {
        FileKind::File | FileKind::Dir => Ok(()),
        _ if !name.starts_with(b"user.") => Ok(()),
        _ => {
            let what = "only files and directories have attributes of the class user.";
            Err(Error::about(operand.show(), what).remedy("trusted. is possible, for root"))
        }
    }
}

fn work(
    volume: &Volume,
    operand: &ImagePath,
    verb: &[u8],
    words: &[OsString],
    options: &Options,
) -> Result<()> {
    let (fs, path) = (volume.fs(), &operand.path);
    let node = volume.find(path, !options.no_follow).at(volume, path)?;
    let (ino, cx) = (node.ino(), inside::context());
    let name = words.first().map_or(&b""[..], |word| word.as_bytes());
    let about = |error: FsError| match error {
        FsError::Posix(Errno::ENODATA) => {
            let name = String::from_utf8_lossy(name);
            Error::about(operand.show(), format!("no attribute {name}"))
        }
        FsError::Posix(Errno::EOPNOTSUPP) => {
            Error::about(operand.show(), "no such class of attributes")
                .remedy("names begin with user., trusted., security. or system.posix_acl_")
        }
        error => Error::fs(operand.show(), volume.name(), &error),
    };
    match verb {
        b"get" => {
            let value = fs.getxattr(ino, name).map_err(about)?;
            print(name, &value, options)
        }
        b"set" => {
            let value = value(words.get(1).cloned().unwrap_or_default())?;
            may_have(&node, name, operand)?;
            fs.setxattr(&cx, ino, name, &value, XattrMode::Set).map_err(about)
        }
        b"rm" | b"remove" => fs.removexattr(&cx, ino, name).map_err(about),
        _ => {
            let mut names = fs.listxattr(ino).map_err(about)?;
            names.sort();
            let mut values = Vec::new();
            for name in &names {
                values.push(fs.getxattr(ino, name).map_err(about)?);
            }
            list(&names, &values, options.json)
        }
    }
}

fn print(name: &[u8], value: &[u8], options: &Options) -> Result<()> {
    let mut out = Out::new();
    match options {
        Options { json: true, .. } => out.line(Json::object(|o| attribute(o, name, value)))?,
        Options { hex: true, .. } => out.line(format!("0x{}", hex(value)))?,
        _ => out.line(value)?,
    }
    out.finish()
}

fn list(names: &[Vec<u8>], values: &[Vec<u8>], json: bool) -> Result<()> {
    let mut out = Out::new();
    if json {
        out.line(Json::array(|all| {
            for (name, value) in names.iter().zip(values) {
                all.object(|o| attribute(o, name, value));
            }
        }))?;
    } else {
        for name in names {
            out.line(name)?;
        }
    }
    out.finish()
}

/// Names are no keys: two that are no text could be the same one, or that of another one's bytes.
fn attribute(object: &mut Object<'_>, name: &[u8], value: &[u8]) {
    object.bytes("name", name).bytes("value", value);
}

/// Text, or bytes behind `0x`.
fn value(word: OsString) -> Result<Vec<u8>> {
    let bytes = word.into_vec();
    let Some(digits) = bytes.strip_prefix(b"0x").or(bytes.strip_prefix(b"0X")) else {
        return Ok(bytes);
    };
    let wrong = || Error::usage("behind 0x, hexadecimal digits come in pairs");
    let pairs = digits.chunks(2).map(|pair| {
        let text = std::str::from_utf8(pair).ok().filter(|text| text.len() == 2)?;
        u8::from_str_radix(text, 16).ok().filter(|_| !text.starts_with('+'))
    });
    pairs.collect::<Option<Vec<u8>>>().ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_text_or_digits() {
        assert_eq!(value("a b".into()).unwrap(), b"a b");
        assert_eq!(value("0x00fF".into()).unwrap(), [0, 255]);
        assert_eq!(value("0x".into()).unwrap(), b"");
        assert!(value("0x0".into()).is_err() && value("0xzz".into()).is_err());
        assert!(value("0x+1".into()).is_err());
    }
}
