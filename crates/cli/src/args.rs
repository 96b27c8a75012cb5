//! Reading a command's words: options anywhere, operands in order, `--` ends options.
//!
//! A thin layer over `lexopt`; a command loops over `next` and matches. An option that the
//! command's help does not have is refused, with the one that may have been meant.

use crate::error::{Error, Result};
use crate::size::count;
use crate::words;
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

pub use lexopt::Arg;

/// The words behind a command's name.
pub struct Args {
    parser: lexopt::Parser,
    /// The verb whose words they are, and its help; `None` where mount(8) chose them.
    verb: Option<(&'static str, &'static str)>,
    /// Letters that look like options and are none.
    letters: &'static str,
}

impl Args {
    pub fn new(words: Vec<OsString>) -> Args {
        Args { parser: lexopt::Parser::from_args(words), verb: None, letters: "" }
    }

    pub fn of(verb: &'static str, help: &'static str, words: Vec<OsString>) -> Args {
        Args { verb: Some((verb, help)), ..Args::new(words) }
    }

    pub fn taking(self, letters: &'static str) -> Args {
        Args { letters, ..self }
    }

    /// Takes long options behind one dash as well, as find(1) does.
    pub fn with_one_dash(mut self) -> Args {
        let options = self.verb.map(|(_, help)| words::options(help)).unwrap_or_default();
        let is_long = |word: &str| options.iter().any(|o| o.names.contains(&format!("-{word}")));
        let mut takes_value = false;
        let mut words = Vec::new();
        while let Some(word) = self.parser.raw_args().ok().and_then(|mut raw| raw.next()) {
            let long = word.to_str().filter(|word| !takes_value && is_long(word));
            let long = long.map(|word| format!("-{word}"));
            let name = long.as_deref().or(word.to_str());
            takes_value = !takes_value
                && options.iter().any(|o| {
                    o.names.iter().any(|n| Some(&**n) == name)
                        && matches!(o.value, words::Value::Must(_))
                });
            words.push(long.map_or(word, OsString::from));
        }
        Args { parser: lexopt::Parser::from_args(words), ..self }
    }

    pub fn next(&mut self) -> Result<Option<Arg<'_>>> {
        let arg = self.parser.next()?;
        let name = match (&arg, self.verb) {
            (Some(Arg::Long(name)), Some(verb)) => Some((format!("--{name}"), verb)),
            (Some(Arg::Short(letter)), Some(verb)) if !self.letters.contains(*letter) => {
                Some((format!("-{letter}"), verb))
            }
            _ => None,
        };
        match name {
            Some((name, verb)) => refuse_unknown(&name, verb).map(|()| arg),
            None => Ok(arg),
        }
    }

    /// The value of the option that `next` returned last.
    pub fn value(&mut self) -> Result<OsString> {
        Ok(self.parser.value()?)
    }

    /// The value behind `=`, if the option that `next` returned last has one.
    pub fn optional_value(&mut self) -> Option<OsString> {
        self.parser.optional_value()
    }

    pub fn text(&mut self) -> Result<String> {
        text(self.value()?)
    }

    pub fn path(&mut self) -> Result<PathBuf> {
        Ok(self.value()?.into())
    }

    /// A number of bytes with a unit, as in `512M`.
    pub fn size(&mut self) -> Result<u64> {
        size(&self.text()?)
    }
}

fn refuse_unknown(name: &str, (verb, help): (&str, &str)) -> Result<()> {
    let options = words::options(help);
    let mut known = options.iter().flat_map(|opt| &opt.names).map(String::as_str);
    if known.clone().any(|other| other == name) {
        return Ok(());
    }
    let error = Error::usage(format!("{verb} has no option {name}"));
    let meant = match name.starts_with("--") {
        // `-long` for `--long` is a slip of its own.
        true => words::similar(name, known.filter(|other| other.starts_with("--"))),
        false => known.find(|other| other.eq_ignore_ascii_case(name)),
    };
    Err(match meant {
        Some(meant) => error.remedy(format!("did you mean {meant}?")),
        None => error,
    })
}

pub fn unexpected(arg: Arg<'_>) -> Error {
    arg.unexpected().into()
}

/// A user's or group's number; the last one stands for none (chown(2)).
pub fn id(text: &str) -> Option<u32> {
    text.parse().ok().filter(|id| *id != u32::MAX)
}

pub fn text(value: OsString) -> Result<String> {
    value.into_string().map_err(|v| Error::usage(format!("not text: {}", v.to_string_lossy())))
}

/// Exactly one operand, named `what` in the message if it is missing.
pub fn one(operands: Vec<OsString>, what: &str) -> Result<OsString> {
    let [one] = exactly(operands, what)?;
    Ok(one)
}

/// Exactly `N` operands, `what` in the message if there are more or fewer. It begins as that of
/// btrfs-progs, which scripts look for.
pub fn exactly<const N: usize>(operands: Vec<OsString>, what: &str) -> Result<[OsString; N]> {
    <[OsString; N]>::try_from(operands).map_err(|all| {
        let wanted = count(N as u64, "argument");
        Error::usage(format!("exactly {wanted} expected, {} given: {what}", all.len()))
    })
}

/// The one word of a command that has no options.
pub fn only(mut args: Args, what: &str) -> Result<OsString> {
    let mut operands = Vec::new();
    while let Some(arg) = args.next()? {
        match arg {
            Arg::Value(value) => operands.push(value),
            other => return Err(unexpected(other)),
        }
    }
    one(operands, what)
}

/// At least one operand; in the words of btrfs-progs, too.
pub fn some<T>(operands: Vec<T>, what: &str) -> Result<Vec<T>> {
    if operands.is_empty() {
        let few = "not enough arguments: 0 but at least 1 expected";
        return Err(Error::usage(format!("{few}: {what} is missing")));
    }
    Ok(operands)
}

/// The last operand apart from those before it, as `cp` and `mv` need it.
pub fn sources_and_target(mut operands: Vec<OsString>) -> Result<(Vec<OsString>, OsString)> {
    match operands.pop() {
        Some(target) if !operands.is_empty() => Ok((operands, target)),
        Some(only) => {
            Err(Error::usage(format!("where to? nothing follows {}", only.to_string_lossy())))
        }
        None => Err(Error::usage("source and target are missing")),
    }
}

/// Bytes, with or without a unit.
pub fn size(text: &str) -> Result<u64> {
    let wrong = || Error::usage(format!("{text:?} is no size; write 4096, 64K, 512M, 2G"));
    crate::size::parse(text).ok_or_else(wrong)
}

/// A copy for messages.
pub fn show(word: &OsStr) -> String {
    word.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        for (text, bytes) in
            [("0", 0), ("4096", 4096), ("2k", 2048), ("2G", 2 << 30), ("3MB", 3_000_000)]
        {
            assert_eq!(size(text).unwrap(), bytes);
        }
        for wrong in ["", "K", "1X", "1KX", "-1", "99999999999999999999", "99999999P", "1 K"] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
    }
}
