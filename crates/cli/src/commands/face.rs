//! The program under the name `btrfs`: command lines of btrfs-progs, with its exit codes.
//!
//! Invariants: a command line is one of ours as it stands, or is refused by name; none does half of
//! what it says. Groups and verbs may be cut as btrfs-progs lets them be: as long as one alone begins so.
//!
//! It does not know what the commands do, nor their options: those are btrfs-progs' already.

use super::{Command, asks_for_help, help, named, progs, version};
use crate::args::{self, Args};
use crate::error::{Error, Exit, Result};
use crate::words;
use std::ffi::{OsStr, OsString};
use std::path::Path;

/// A group of btrfs-progs and its verbs.
struct Family {
    name: &'static str,
    /// Each as one of ours, or as what is lacking.
    verbs: &'static [&'static str],
}

/// All of btrfs-progs 6; what is not among our commands is told as lacking.
const FAMILIES: &[Family] = &[
    Family { name: "balance", verbs: &["start", "pause", "cancel", "resume", "status"] },
    Family {
        name: "device",
        verbs: &["add", "delete", "remove", "ready", "scan", "stats", "usage"],
    },
    Family {
        name: "filesystem",
        verbs: &[
            "df",
            "du",
            "show",
            "sync",
            "defragment",
            "resize",
            "label",
            "usage",
            "balance",
            "mkswapfile",
            "commit-stats",
        ],
    },
    Family {
        name: "inspect-internal",
        verbs: &[
            "inode-resolve",
            "logical-resolve",
            "subvolid-resolve",
            "rootid",
            "map-swapfile",
            "min-dev-size",
            "dump-tree",
            "dump-super",
            "tree-stats",
            "list-chunks",
        ],
    },
    Family { name: "property", verbs: &["get", "set", "list"] },
    Family {
        name: "qgroup",
        verbs: &["assign", "remove", "create", "destroy", "clear-stale", "show", "limit"],
    },
    Family { name: "quota", verbs: &["enable", "disable", "rescan", "status"] },
    Family { name: "replace", verbs: &["start", "status", "cancel"] },
    Family {
        name: "rescue",
        verbs: &[
            "chunk-recover",
            "super-recover",
            "zero-log",
            "fix-device-size",
            "create-control-device",
            "clear-uuid-tree",
            "clear-space-cache",
            "clear-ino-cache",
        ],
    },
    Family { name: "scrub", verbs: &["start", "cancel", "resume", "status", "limit"] },
    Family {
        name: "subvolume",
        verbs: &[
            "create",
            "delete",
            "list",
            "snapshot",
            "get-default",
            "set-default",
            "find-new",
            "show",
            "sync",
        ],
    },
];

/// Commands of one word.
const ALONE: &[&str] = &["check", "restore", "send", "receive"];

/// Whether the program was started under this name.
pub fn is_called(called: &OsStr) -> bool {
    Path::new(called).file_name().is_some_and(|name| name == "btrfs")
}

/// As `btrfs`: 0 done, 1 everything else.
pub fn run(words: Vec<OsString>) -> Result<Exit> {
    let ended = dispatch(words);
    match ended {
        Ok(Exit::Usage) => Ok(Exit::Failed),
        Err(error) if Exit::from(&error) == Exit::Usage => {
            error.print();
            Ok(Exit::Failed)
        }
        ended => ended,
    }
}

fn dispatch(mut words: Vec<OsString>) -> Result<Exit> {
    let global = global_options(&mut words)?;
    let Some(first) = words.first().map(|word| args::show(word)) else {
        return help::overview().map(|_| Exit::Failed);
    };
    match first.as_str() {
        "help" | "--help" | "-h" => return help::overview(),
        "version" | "--version" | "-V" => return version::print_as_btrfs(),
        _ => {}
    }
    if words.get(1).is_some_and(|word| word == "--help" || word == "-h")
        && let Some(family) = family(&first)?
    {
        return help::say(&family.help());
    }
    let (name, used) = match as_it_was_once_said(&words)? {
        Some(old) => old,
        None => full_name(&first, words.get(1))?,
    };
    words.drain(..used);
    // Theirs of the same words come first.
    let command = progs::named(&name).or_else(|| named(name.as_ref()));
    let command = command.ok_or_else(|| lacking(&name))?;
    if asks_for_help(&words) {
        return help::of(command);
    }
    words.splice(0..0, global.of(command)?.into_iter().map(OsString::from));
    let ended = (command.run)(Args::of(command.name, command.help, words));
    ended.map_err(|error| error.called(&format!("btrfs {name}")))
}

/// `balance PATH`, `balance --full-balance PATH`, and both behind `filesystem`: what btrfs-progs takes still.
fn as_it_was_once_said(words: &[OsString]) -> Result<Option<(String, usize)>> {
    let shown: Vec<String> = words.iter().map(|word| args::show(word)).collect();
    let Some(group) = family(&shown[0])? else { return Ok(None) };
    let verb = |group: &'static Family, at: usize| {
        let verbs = group.verbs.iter().copied();
        shown.get(at).and_then(|word| whole(word, verbs).ok())
    };
    let balance = match group.name {
        "balance" => 0,
        "filesystem" if verb(group, 1) == Some("balance") => 1,
        _ => return Ok(None),
    };
    let group = family("balance")?.expect("it is a group");
    if let Some(verb) = verb(group, balance + 1) {
        return Ok((balance > 0).then(|| (format!("balance {verb}"), balance + 2)));
    }
    let all = shown.get(balance + 1).is_some_and(|word| word == "--full-balance");
    let is_old = all || shown.len() == balance + 2 && !asks_for_help(&words[balance + 1..]);
    Ok(is_old.then(|| ("balance start".to_owned(), balance + 1)))
}

fn lacking(name: &str) -> Error {
    let error = Error::new(format!("`btrfs {name}` is not there yet"));
    match name {
        "rescue chunk-recover" => error.remedy(
            "`btrfs check --chunk-root` looks by another chunk tree, `dump-super -f` tells older ones",
        ),
        "rescue create-control-device" => error.remedy(
            "Spinney needs none; `mknod /dev/btrfs-control c 10 234` makes it for the kernel's btrfs",
        ),
        _ => error,
    }
}

/// What stands before the group.
#[derive(Default)]
struct Global {
    json: bool,
    quiet: bool,
    verbose: bool,
    dry_run: bool,
}

impl Global {
    /// In words of ours: quiet and loud is what can be, but nobody is to believe that it is a dry run.
    fn of(&self, command: &Command) -> Result<Vec<&'static str>> {
        let options = words::options(command.help);
        let has = |name: &str| options.iter().any(|option| option.names.iter().any(|n| n == name));
        if self.dry_run && !has("--dry-run") {
            let what = format!("--dry-run is not supported by `btrfs {}`", command.name);
            return Err(Error::new(what));
        }
        let asked = [
            (self.json, "--json"),
            (self.quiet && has("--quiet"), "--quiet"),
            (self.verbose && !self.quiet && has("--verbose"), "--verbose"),
            (self.dry_run, "--dry-run"),
        ];
        Ok(asked.into_iter().filter(|(asked, _)| *asked).map(|(_, word)| word).collect())
    }

    fn log(&mut self, level: &str) -> Result<()> {
        match level {
            "quiet" => self.quiet = true,
            "verbose" | "debug" => self.verbose = true,
            "default" | "info" => {}
            _ => return Err(Error::usage(format!("unrecognized log level: {level}"))),
        }
        Ok(())
    }
}

/// Takes those off that stand before the group.
fn global_options(words: &mut Vec<OsString>) -> Result<Global> {
    let mut global = Global::default();
    while let Some(word) = words.first().map(|word| args::show(word)) {
        let (name, mut value) = match word.split_once('=') {
            Some((name, value)) => (name.to_owned(), Some(value.to_owned())),
            None => (word, None),
        };
        if matches!(name.as_str(), "--format" | "--log") && value.is_none() {
            words.remove(0);
            value = Some(words.first().map(|word| args::show(word)).unwrap_or_default());
        }
        let value = value.unwrap_or_default();
        match name.as_str() {
            "-q" | "--quiet" => global.quiet = true,
            "-v" | "--verbose" => global.verbose = true,
            "--dry-run" => global.dry_run = true,
            "--format" => global.json = format(&value)?,
            "--log" => global.log(&value)?,
            _ => return Ok(global),
        }
        words.drain(..words.len().min(1));
    }
    Ok(global)
}

fn format(name: &str) -> Result<bool> {
    match name {
        "json" => Ok(true),
        "text" => Ok(false),
        _ => Err(Error::usage(format!("unknown output format: {name}"))),
    }
}

/// The command in full, and how many words said it.
fn full_name(first: &str, second: Option<&OsString>) -> Result<(String, usize)> {
    let Some(family) = family(first)? else { return Ok((first.to_owned(), 1)) };
    let second = second.map(|word| args::show(word)).unwrap_or_default();
    if second.is_empty() {
        return Err(Error::usage(format!("`btrfs {}` needs a command", family.name)));
    }
    let verb = whole(&second, family.verbs.iter().copied())?;
    Ok((format!("{} {verb}", family.name), 2))
}

/// The group that a word is, or begins; `None`: it is a command by itself.
fn family(word: &str) -> Result<Option<&'static Family>> {
    if ALONE.contains(&word) {
        return Ok(None);
    }
    let name = whole(word, FAMILIES.iter().map(|family| family.name))?;
    Ok(FAMILIES.iter().find(|family| family.name == name))
}

impl Family {
    /// Its commands, those that are lacking among them.
    fn help(&self) -> String {
        let mut text = format!("Usage\n    btrfs {} COMMAND [OPTIONS] WORDS...\n\n", self.name);
        for verb in self.verbs {
            let name = format!("{} {verb}", self.name);
            let command = progs::named(&name).or_else(|| named(name.as_ref()));
            let summary = command.map_or("(is not there yet)", |command| command.summary);
            text.push_str(&format!("    {name:<34} {summary}\n"));
        }
        text.push_str(&format!(
            "\n`btrfs {} COMMAND --help` tells all about a command.\n",
            self.name
        ));
        text
    }
}

/// The one name that begins with `begun`, or is it.
fn whole(begun: &str, names: impl Iterator<Item = &'static str>) -> Result<&'static str> {
    let mut found: Vec<_> = names.filter(|name| name.starts_with(begun)).collect();
    if let Some(exact) = found.iter().find(|name| **name == begun) {
        return Ok(exact);
    }
    match found.as_slice() {
        [] => Err(Error::usage(format!("unknown command: {begun}"))),
        [_] => Ok(found.remove(0)),
        _ => Err(Error::usage(format!("{begun} may be {}", found.join(" or ")))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn full(words: &str) -> String {
        let words: Vec<&str> = words.split(' ').collect();
        let second = words.get(1).map(OsString::from);
        full_name(words[0], second.as_ref()).map_or_else(|e| format!("{e:?}"), |(name, _)| name)
    }

    #[test]
    fn words_may_be_cut_as_long_as_one_alone_begins_so() {
        assert_eq!(full("sub list"), "subvolume list");
        assert_eq!(full("fi us"), "filesystem usage");
        assert_eq!(full("inspect dump-t"), "inspect-internal dump-tree");
        assert_eq!(full("qg show"), "qgroup show");
        assert!(full("q show").contains("qgroup or quota"));
        assert!(full("sub s").contains("snapshot or set-default or show or sync"));
        assert!(full("nothing at").contains("unknown command"));
    }

    #[test]
    fn balances_are_begun_as_they_once_were() {
        let old = |words: &str| {
            let words: Vec<OsString> = words.split(' ').map(OsString::from).collect();
            as_it_was_once_said(&words)
                .expect("a group")
                .map(|(name, used)| format!("{used} {name}"))
        };
        for (words, meant) in [
            ("balance /mnt", Some("1 balance start")),
            ("balance --full-balance /mnt", Some("1 balance start")),
            ("bal --full-balance /mnt", Some("1 balance start")),
            ("fi balance /mnt", Some("2 balance start")),
            ("filesystem balance start /mnt", Some("3 balance start")),
            ("filesystem balance status /mnt", Some("3 balance status")),
            ("balance status /mnt", None),
            ("balance status", None),
            ("balance what /mnt", None),
            ("balance", None),
            ("filesystem df /mnt", None),
            ("send /mnt", None),
        ] {
            assert_eq!(old(words).as_deref(), meant, "{words}");
        }
    }

    #[test]
    fn each_command_of_ours_in_a_family_of_theirs_is_one_of_theirs() {
        let theirs = |first: &str, second: &str| {
            let family = FAMILIES.iter().find(|family| family.name == first);
            family.is_none_or(|family| family.verbs.contains(&second))
        };
        for command in super::super::verbs() {
            if let Some((first, second)) = command.name.split_once(' ') {
                assert!(theirs(first, second), "{} is not btrfs-progs'", command.name);
            }
        }
    }
}
