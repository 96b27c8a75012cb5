//! `spinney help`: what the program and each command can do.

use super::{Command, GROUPS, manual, verbs};
use crate::args::{Arg, Args, unexpected};
use crate::error::{Error, Exit, Result};
use crate::output::{Json, Object, Out};
use crate::words::{self, Opt, Value};
use std::ffi::OsStr;

pub const COMMAND: Command = Command {
    name: "help",
    summary: "tell about a command",
    usage: "\
[COMMAND]
--man
--json [COMMAND]",
    help: "\
Without a word, lists the commands; with one, tells all about it. `spinney COMMAND --help`
is the same.

Options
    --man     print the manual page, with all commands, in roff
    --json    an array of objects, one for each command: its forms, and its options with the
              names of their values

Examples
    spinney help mount
    spinney help --man | man -l -
",
    run,
};

const HEAD: &str = "\
spinney - btrfs volumes without the kernel's btrfs

Usage
    spinney COMMAND [OPTIONS] WORDS...

A volume is an image file, a block device, or a part of one: `disk.img@2` is partition 2
of a whole disk, `disk.img@@1M` what begins at 1 MiB, `disk.img@@1M+4G` so much of it.
Paths in a volume that is not mounted are written `disk.img:/path`, `disk.img@2:/path`.
";

const TAIL: &str = "
Exit codes
    0  done
    1  something failed; standard error names the file and what to do
    2  the command line is wrong

`spinney help COMMAND` tells all about a command.
";

fn run(mut args: Args) -> Result<Exit> {
    let (mut names, mut json) = (Vec::new(), false);
    while let Some(arg) = args.next()? {
        match arg {
            Arg::Long("man") => return say(&manual::page()),
            Arg::Long("json") => json = true,
            Arg::Value(name) => names.push(name),
            other => return Err(unexpected(other)),
        }
    }
    match names.as_slice() {
        [] if json => say(&as_json(verbs())),
        [] => overview(),
        names => match super::find(names) {
            Some((command, used)) if used == names.len() => {
                if json {
                    say(&as_json(std::iter::once(command)))
                } else {
                    of(command)
                }
            }
            Some(_) => Err(Error::usage("one command at a time")),
            None => match super::first_words().find(|first| names == [*first]) {
                Some(first) if !json => family(first),
                _ => Err(super::unknown(&names.join(OsStr::new(" ")))),
            },
        },
    }
}

pub fn overview() -> Result<Exit> {
    let mut text = String::from(HEAD);
    for group in GROUPS {
        text.push_str(&format!("\n{}\n", group.title));
        let longest = group.commands.iter().map(|command| command.name.len()).max();
        let width = longest.unwrap_or(0).max(12);
        for command in group.commands {
            text.push_str(&format!("    {:<width$} {}\n", command.name, command.summary));
        }
    }
    text.push_str(TAIL);
    say(&text)
}

/// The commands whose first word is `first`.
pub fn family(first: &str) -> Result<Exit> {
    let mut text = format!("Usage\n    spinney {first} COMMAND [OPTIONS] WORDS...\n\n");
    let is_one = |command: &&Command| command.name.split_once(' ').is_some_and(|n| n.0 == first);
    for command in verbs().filter(is_one) {
        text.push_str(&format!("    {:<22} {}\n", command.name, command.summary));
    }
    text.push_str(&format!("\n`spinney help {first} COMMAND` tells all about a command.\n"));
    say(&text)
}

pub fn of(command: &Command) -> Result<Exit> {
    say(&text(command))
}

pub fn text(command: &Command) -> String {
    let mut text = format!("spinney {} - {}\n\nUsage\n", command.name, command.summary);
    for line in command.usage.lines() {
        text.push_str(&format!("    spinney {} {line}\n", command.name));
    }
    text.push('\n');
    text.push_str(command.help);
    text
}

fn as_json(commands: impl Iterator<Item = &'static Command>) -> String {
    let mut text = Json::array(|all| {
        for command in commands {
            all.object(|o| {
                o.text("name", command.name).text("summary", command.summary);
                o.array("usage", |forms| {
                    for form in command.usage.lines() {
                        forms.text(form);
                    }
                });
                o.array("options", |options| {
                    for opt in words::options(command.help) {
                        options.object(|o| option(o, &opt));
                    }
                });
            });
        }
    });
    text.push('\n');
    text
}

fn option(o: &mut Object<'_>, opt: &Opt) {
    o.array("names", |names| {
        for name in &opt.names {
            names.text(name);
        }
    });
    match &opt.value {
        Value::Nothing => &mut *o,
        Value::Must(name) => o.text("value", name),
        Value::Maybe(name) => o.text("optional_value", name),
    }
    .text("about", &opt.about);
}

pub(super) fn say(text: &str) -> Result<Exit> {
    let mut out = Out::new();
    out.bytes(text.as_bytes())?;
    out.finish()?;
    Ok(Exit::Done)
}
