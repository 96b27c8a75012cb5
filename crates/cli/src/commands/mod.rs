//! The table of commands, and finding the right one.

mod balance;
mod cat;
mod check;
mod chmod;
mod chown;
mod complete;
mod completions;
mod compsize;
mod cp;
mod device;
mod df;
mod du;
mod dump_super;
mod dump_tree;
mod face;
mod filesystem;
mod find;
mod help;
mod info;
mod inspect;
mod ln;
mod ls;
mod manual;
mod mkdir;
mod mkfs;
pub mod mount;
mod mv;
pub mod offline;
mod progs;
mod property;
mod qgroup;
mod quota;
mod receive;
mod rescue;
mod rm;
mod scrub;
mod send;
mod stat;
mod stats;
mod subvolume;
mod tar;
mod target;
mod touch;
mod trees;
mod trim;
mod truncate;
mod umount;
mod verity;
mod version;
mod xattr;

use crate::args::{self, Args};
use crate::error::{Error, Exit, Result};
use crate::words;
use std::ffi::{OsStr, OsString};
use std::path::Path;

/// One command of the program.
pub struct Command {
    pub name: &'static str,
    /// One line for the list of commands.
    pub summary: &'static str,
    /// The words behind the name, one line per form.
    pub usage: &'static str,
    /// Everything else: what it does, its options, examples, exit codes.
    pub help: &'static str,
    pub run: fn(Args) -> Result<Exit>,
}

/// A heading and the commands below it.
pub struct Group {
    pub title: &'static str,
    pub commands: &'static [&'static Command],
}

pub const GROUPS: &[Group] = &[
    Group { title: "Mounting", commands: &[&mount::COMMAND, &umount::COMMAND, &stats::COMMAND] },
    Group {
        title: "Files in a volume that is not mounted",
        commands: &[
            &ls::COMMAND,
            &find::COMMAND,
            &du::COMMAND,
            &cat::COMMAND,
            &stat::COMMAND,
            &cp::COMMAND,
            &tar::COMMAND,
            &mkdir::COMMAND,
            &rm::COMMAND,
            &mv::COMMAND,
            &ln::COMMAND,
            &chmod::COMMAND,
            &chown::COMMAND,
            &touch::COMMAND,
            &truncate::COMMAND,
            &xattr::COMMAND,
        ],
    },
    Group { title: "Subvolumes, in a volume or a mount", commands: subvolume::COMMANDS },
    Group { title: "Quotas, in a volume or a mount", commands: quota::COMMANDS },
    Group { title: "Quota groups, in a volume or a mount", commands: qgroup::COMMANDS },
    Group { title: "Balances, in a volume or a mount", commands: balance::COMMANDS },
    Group { title: "Scrubs, of a volume or a mount", commands: scrub::COMMANDS },
    Group { title: "Whole volumes, in an image or a mount", commands: filesystem::COMMANDS },
    Group { title: "The device of a volume or a mount", commands: device::COMMANDS },
    Group { title: "Inside a volume, in an image or a mount", commands: inspect::COMMANDS },
    Group { title: "Files that are verified, in a volume or a mount", commands: verity::COMMANDS },
    Group { title: "Snapshots elsewhere", commands: &[&send::COMMAND, &receive::COMMAND] },
    Group {
        title: "Whole volumes",
        commands: &[
            &mkfs::COMMAND,
            &check::COMMAND,
            &info::COMMAND,
            &df::COMMAND,
            &compsize::COMMAND,
            &dump_super::COMMAND,
            &dump_tree::COMMAND,
            &trim::COMMAND,
            &rescue::COMMAND,
        ],
    },
    Group { title: "About", commands: &[&help::COMMAND, &completions::COMMAND, &version::COMMAND] },
];

pub fn verbs() -> impl Iterator<Item = &'static Command> {
    GROUPS.iter().flat_map(|group| group.commands).copied()
}

pub fn named(name: &OsStr) -> Option<&'static Command> {
    verbs().find(|command| name == command.name)
}

/// The command that the first one or two words name, and how many they are.
pub fn find(words: &[OsString]) -> Option<(&'static Command, usize)> {
    let first = words.first()?;
    if let Some(command) = named(first) {
        return Some((command, 1));
    }
    let (first, second) = (full(first)?, words.get(1)?.to_str()?);
    if let Some(command) = named(format!("{first} {second}").as_ref()) {
        return Some((command, 2));
    }
    let third = words.get(2)?.to_str()?;
    let command = named(format!("{second} {third}").as_ref())?;
    (first == SUBVOLUME && command.name.starts_with("property ")).then_some((command, 3))
}

const SUBVOLUME: &str = "subvolume";

/// The first word of commands of two, which may be cut as `btrfs` lets it.
fn full(word: &OsStr) -> Option<&'static str> {
    let word = word.to_str().filter(|word| word.len() >= 3)?;
    first_words().find(|first| first.starts_with(word))
}

/// The first words of commands of two words.
pub fn first_words() -> impl Iterator<Item = &'static str> {
    let mut last = "";
    let firsts = verbs().filter_map(|command| Some(command.name.split_once(' ')?.0));
    firsts.filter(move |first| std::mem::replace(&mut last, first) != *first)
}

/// `called` is the name under which the program was started.
pub fn dispatch(called: &OsStr, mut words: Vec<OsString>) -> Result<Exit> {
    if is_mount_helper(called) {
        return Ok(mount::exit_of_helper(mount::run_as_helper(Args::new(words))));
    }
    if face::is_called(called) {
        return face::run(words);
    }
    if words.first().is_some_and(|word| word == "btrfs") {
        return face::run(words.split_off(1));
    }
    if words.is_empty() {
        help::overview()?;
        return Ok(Exit::Usage);
    }
    match words[0].to_str() {
        Some("--help" | "-h") => return help::overview(),
        Some("--version" | "-V") => return version::print(),
        _ => {}
    }
    let Some((command, used)) = find(&words) else {
        if mount::looks_like_mount(&words[0], &words[1..]) {
            return mount::run_as_helper(Args::new(words));
        }
        return match full(&words[0]) {
            Some(first) => of_a_family(first, &words[1..]),
            None => Err(unknown(&words[0])),
        };
    };
    words.drain(..used);
    if asks_for_help(&words) {
        return help::of(command);
    }
    (command.run)(Args::of(command.name, command.help, words))
}

/// What to say where the second word of a command is missing or unknown.
fn of_a_family(first: &'static str, rest: &[OsString]) -> Result<Exit> {
    match rest.first().and_then(|word| word.to_str()) {
        None => help::family(first).map(|_| Exit::Usage),
        Some("--help" | "-h") => help::family(first),
        Some(second) => Err(unknown(format!("{first} {second}").as_ref())),
    }
}

pub fn unknown(word: &OsStr) -> Error {
    let word = args::show(word);
    let error = Error::usage(format!("unknown command: {word}"));
    match words::similar(&word, verbs().map(|command| command.name)) {
        Some(meant) => error.remedy(format!("did you mean `spinney {meant}`?")),
        None => error,
    }
}

/// Started by mount(8) under one of its names; the last one is that of a mount which is there,
/// for remounts.
fn is_mount_helper(called: &OsStr) -> bool {
    let name = Path::new(called).file_name().unwrap_or_default();
    ["mount.spinney", "mount.fuse.spinney", "mount.fuseblk.spinney"].iter().any(|n| name == *n)
}

/// `--help` anywhere before `--`.
fn asks_for_help(words: &[OsString]) -> bool {
    words.iter().take_while(|word| *word != "--").any(|word| word == "--help")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_command_has_a_name_of_its_own_and_help() {
        let mut seen = HashSet::new();
        for command in GROUPS.iter().flat_map(|group| group.commands) {
            assert!(seen.insert(command.name), "{} twice", command.name);
            let full = help::text(command);
            assert!(command.summary.len() < 60 && !command.summary.ends_with('.'));
            let long = full.lines().find(|line| line.chars().count() > 93);
            assert_eq!(long, None, "{}", command.name);
            assert!(full.contains("Examples"), "{} has no examples", command.name);
        }
    }
}
