//! What can stand at the end of a command line: verbs, options, their values, files of this
//! machine, images, and paths in them.
//!
//! Shells ask while somebody types: nothing here fails, waits for a lock or writes. What a
//! volume in use tells may be old. Verbs and options come from the help (`words`).

use super::{Command, offline};
use crate::image::{self, ImagePath};
use crate::mount::options::{subvol_id, subvol_path};
use crate::partitions::{has_superblock, volumes_in};
use crate::words::{self, Opt, Value};
use btrfs_fs::Subvol;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// A whole word in the place of the one that was begun.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Candidate {
    pub word: Vec<u8>,
    pub about: String,
}

impl Candidate {
    fn plain(word: impl Into<Vec<u8>>) -> Candidate {
        Candidate { word: word.into(), about: String::new() }
    }

    fn about(word: &str, about: &str) -> Candidate {
        Candidate { word: word.into(), about: about.to_owned() }
    }
}

/// All that begins as the last of `words` does; the program's own name is not among them.
pub fn candidates(words: &[OsString]) -> Vec<Candidate> {
    let Some((begun, before)) = words.split_last() else { return Vec::new() };
    let mut all = match before.split_first() {
        None => first_word(begun),
        Some((first, _)) => match super::find(before) {
            Some((command, used)) => {
                let rest = &before[used..];
                Line { command, options: words::options(command.help), rest }.end(begun)
            }
            None if before.len() == 1 => second_words(first),
            None => Vec::new(),
        },
    };
    // One line of the answer is one candidate.
    all.retain(|c| c.word.starts_with(begun.as_bytes()) && !c.word.contains(&b'\n'));
    all.sort();
    all.dedup_by(|a, b| a.word == b.word);
    all
}

fn first_word(begun: &OsStr) -> Vec<Candidate> {
    if begun.as_bytes().starts_with(b"-") {
        return vec![Candidate::plain("--help"), Candidate::plain("--version")];
    }
    verbs()
}

fn verbs() -> Vec<Candidate> {
    let ones = super::verbs().filter(|command| !command.name.contains(' '));
    let ones = ones.map(|command| Candidate::about(command.name, command.summary));
    ones.chain(super::first_words().map(Candidate::plain)).collect()
}

fn second_words(first: &OsStr) -> Vec<Candidate> {
    let second = |command: &'static Command| match command.name.split_once(' ') {
        Some((one, second)) if first == one => Some(Candidate::about(second, command.summary)),
        _ => None,
    };
    super::verbs().filter_map(second).collect()
}

/// The words between a verb and the one that was begun.
struct Line<'w> {
    command: &'static Command,
    options: Vec<Opt>,
    rest: &'w [OsString],
}

impl Line<'_> {
    fn end(&self, begun: &OsStr) -> Vec<Candidate> {
        let (mut operands, mut waiting, mut ended) = (0, None, false);
        for word in self.rest {
            waiting = match (waiting.take(), ended) {
                (Some(_), _) => None,
                (None, false) if word == "--" => {
                    ended = true;
                    None
                }
                (None, false) if word.len() > 1 && word.as_bytes().starts_with(b"-") => {
                    self.waits(word)
                }
                _ => {
                    operands += 1;
                    None
                }
            };
        }
        if let Some(value) = waiting {
            return self.of_kind(&value, begun.as_bytes(), b"");
        }
        if !ended && begun.as_bytes().starts_with(b"-") {
            return self.options(begun);
        }
        let kinds = words::operands(self.command.usage, self.command.help, operands);
        kinds.iter().flat_map(|kind| self.of_kind(kind, begun.as_bytes(), b"")).collect()
    }

    /// The value that the word behind an option must be.
    fn waits(&self, word: &OsStr) -> Option<String> {
        let word = word.to_str()?;
        let last = word.chars().last()?;
        let name = if word.starts_with("--") { word.to_owned() } else { format!("-{last}") };
        self.named(&name).and_then(|opt| match &opt.value {
            Value::Must(value) => Some(value.clone()),
            _ => None,
        })
    }

    fn named(&self, name: &str) -> Option<&Opt> {
        self.options.iter().find(|opt| opt.names.iter().any(|other| other == name))
    }

    fn options(&self, begun: &OsStr) -> Vec<Candidate> {
        if let Some((name, value)) = begun.to_str().and_then(|word| word.split_once('=')) {
            return match self.named(name).map(|opt| &opt.value) {
                Some(Value::Must(kind) | Value::Maybe(kind)) => {
                    self.of_kind(kind, value.as_bytes(), format!("{name}=").as_bytes())
                }
                _ => Vec::new(),
            };
        }
        // find(1)'s words have one dash; with two they are taken, too.
        let one_dash = self.command.name == "find" && !begun.as_bytes().starts_with(b"--");
        let dashes = |name: &str| usize::from(one_dash && name.starts_with("--"));
        let known = self.options.iter().flat_map(|opt| {
            // With both a long and a short name the long one tells more.
            let long = opt.names.iter().any(|name| name.starts_with("--"));
            let names = opt.names.iter().filter(move |name| !long || name.starts_with("--"));
            names.map(move |name| Candidate::about(&name[dashes(name)..], &opt.about))
        });
        known.chain([Candidate::about("--help", "tell about this command")]).collect()
    }

    /// What a word of the help stands for, behind `before`.
    fn of_kind(&self, kind: &str, begun: &[u8], before: &[u8]) -> Vec<Candidate> {
        let found = match kind {
            "COMMAND" => verbs(),
            "IMAGE" | "FILE" => files(begun, Files::All),
            "DIR" => files(begun, Files::Directories),
            "SOURCE" | "TARGET" | "DIRECTORY" | "SUBVOLUME" | "VOLUME" => {
                let mut all = files(begun, Files::AlsoInImages);
                all.extend(self.inside(begun));
                all
            }
            "OPTION,..." => return listed(&words::list_options(self.command.help), begun),
            kind if kind.contains("IMAGE:/") => {
                let mut all = files(begun, Files::Images);
                all.extend(self.inside(begun));
                all
            }
            kind if kind.chars().any(|c| c.is_ascii_lowercase()) => {
                kind.split('|').map(Candidate::plain).collect()
            }
            kind => values(self.command.name, kind).into_iter().map(Candidate::plain).collect(),
        };
        let word = |c: Candidate| Candidate { word: [before, &c.word].concat(), ..c };
        found.into_iter().map(word).collect()
    }

    /// Names in the directory of a volume that `begun` is in.
    fn inside(&self, begun: &[u8]) -> Vec<Candidate> {
        let Some(at) = ImagePath::parse(OsStr::from_bytes(begun)) else { return Vec::new() };
        if !image::is_image(&at.image) {
            return Vec::new();
        }
        let cut = at.path.iter().rposition(|b| *b == b'/').map_or(0, |slash| slash + 1);
        let (directory, name) = at.path.split_at(cut);
        let Some(volume) = image::peek(&at.image, &self.subvol()) else { return Vec::new() };
        let Ok(node) = volume.find(directory, true) else { return Vec::new() };
        let mut all = Vec::new();
        for child in node.names().unwrap_or_default() {
            if !child.starts_with(name) || (name.is_empty() && child.starts_with(b".")) {
                continue;
            }
            let is_dir = node.child(&child).is_ok_and(|node| node.is_dir());
            let slash: &[u8] = if is_dir { b"/" } else { b"" };
            let image = at.image.as_os_str().as_bytes();
            all.push(Candidate::plain([image, b":", directory, &child, slash].concat()));
        }
        all
    }

    fn subvol(&self) -> Subvol {
        for pair in self.rest.windows(2) {
            let found = match (pair[0].to_str(), pair[1].to_str()) {
                (Some("--subvol"), Some(path)) => subvol_path(path).ok(),
                (Some("--subvolid"), Some(id)) => subvol_id(id).ok(),
                _ => None,
            };
            if let Some(subvol) = found {
                return subvol;
            }
        }
        Subvol::Default
    }
}

/// The values of an option that has few.
fn values(verb: &str, kind: &str) -> Vec<&'static str> {
    match (verb, kind) {
        ("cp", "WHEN") => vec!["auto", "always", "never"],
        ("mkfs", "TYPE") => vec!["crc32c", "xxhash", "sha256", "blake2"],
        ("mkfs", "PROFILE") => vec!["dup", "single"],
        ("dump-tree", "TREE") => offline::tree_names(),
        _ => Vec::new(),
    }
}

/// The last of a list that commas separate.
fn listed(names: &[String], begun: &[u8]) -> Vec<Candidate> {
    let cut = begun.iter().rposition(|b| *b == b',').map_or(0, |comma| comma + 1);
    let word = |name: &String| Candidate::plain([&begun[..cut], name.as_bytes()].concat());
    names.iter().map(word).collect()
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Files {
    All,
    Directories,
    /// Paths in images begin with these.
    Images,
    AlsoInImages,
}

/// Files of this machine; an image that can be gone into ends with `:/`.
fn files(begun: &[u8], which: Files) -> Vec<Candidate> {
    let cut = begun.iter().rposition(|b| *b == b'/').map_or(0, |slash| slash + 1);
    let (directory, name) = begun.split_at(cut);
    let Ok(entries) = fs::read_dir(directory_of(directory)) else { return Vec::new() };
    let mut all = Vec::new();
    for entry in entries.flatten() {
        let file = entry.file_name().into_vec();
        // Of a whole disk `name` may be a partition.
        let of_disk = !file.is_empty() && name.strip_prefix(&file[..]).is_some_and(is_part);
        if !file.starts_with(name) && !of_disk || (name.is_empty() && file.starts_with(b".")) {
            continue;
        }
        let (path, word) = (entry.path(), [directory, &file].concat());
        if path.is_dir() {
            all.push(Candidate::plain([&word, &b"/"[..]].concat()));
            continue;
        }
        let in_images = matches!(which, Files::Images | Files::AlsoInImages);
        if in_images && is_btrfs(&path) {
            all.push(Candidate::plain([&word, &b":/"[..]].concat()));
        }
        if which != Files::Directories && (in_images || of_disk || file == name) {
            all.extend(partitions(&path, &word, in_images));
        }
        if matches!(which, Files::All | Files::AlsoInImages) {
            all.push(Candidate::plain(word));
        }
    }
    all
}

fn is_part(behind: &[u8]) -> bool {
    behind.starts_with(b"@")
}

/// The volumes in a whole disk, whose word on the line is `word`.
fn partitions(disk: &Path, word: &[u8], in_images: bool) -> Vec<Candidate> {
    let behind: &[u8] = if in_images { b":/" } else { b"" };
    let len = disk.as_os_str().len();
    let part = |name: PathBuf| [word, &name.as_os_str().as_bytes()[len..], behind].concat();
    volumes_in(disk).into_iter().map(part).map(Candidate::plain).collect()
}

fn directory_of(word: &[u8]) -> PathBuf {
    if let (Some(rest), Some(home)) = (word.strip_prefix(b"~/"), std::env::var_os("HOME")) {
        return Path::new(&home).join(OsStr::from_bytes(rest));
    }
    let word = if word.is_empty() { b"." } else { word };
    PathBuf::from(OsStr::from_bytes(word))
}

fn is_btrfs(path: &Path) -> bool {
    // A pipe would keep the opener waiting.
    if !path.is_file() && !image::is_block(path) {
        return false;
    }
    File::open(path).is_ok_and(|file| has_superblock(&file, 0))
}

/// The words of a line up to its end, as a shell splits it, and whether the last is open in
/// quotes. What shells would put in the place of variables and patterns stays as it is.
pub fn split(line: &[u8]) -> (Vec<OsString>, bool) {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<Vec<u8>>, None);
    let mut bytes = line.iter().copied();
    while let Some(byte) = bytes.next() {
        match (quote, byte) {
            (Some(open), byte) if byte == open => quote = None,
            (Some(b'\''), byte) => word.get_or_insert_default().push(byte),
            (_, b'\\') => {
                let next = bytes.next();
                let kept = quote.is_some() && !matches!(next, Some(b'"' | b'\\' | b'$' | b'`'));
                let word = word.get_or_insert_default();
                word.extend(kept.then_some(b'\\').into_iter().chain(next));
            }
            (None, b'\'' | b'"') => {
                quote = Some(byte);
                word.get_or_insert_default();
            }
            (None, b' ' | b'\t' | b'\n') => {
                words.extend(word.take());
            }
            (None, b';' | b'|' | b'&') => {
                // Another command begins.
                words.clear();
                word = None;
            }
            (_, byte) => word.get_or_insert_default().push(byte),
        }
    }
    words.push(word.unwrap_or_default());
    (words.into_iter().map(OsString::from_vec).collect(), quote.is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends(line: &str) -> Vec<String> {
        let (words, _) = split(line.as_bytes());
        let found = candidates(&words[1..]);
        found.into_iter().map(|c| String::from_utf8(c.word).unwrap()).collect()
    }

    #[test]
    fn verbs_options_and_values() {
        assert_eq!(ends("spinney mk"), ["mkdir", "mkfs"]);
        assert_eq!(ends("spinney ls --rec"), ["--recursive"]);
        assert_eq!(ends("spinney find -ina"), ["-iname"]);
        assert_eq!(ends("spinney find --ina"), ["--iname"]);
        assert_eq!(ends("spinney cp --reflink=al"), ["--reflink=always"]);
        assert_eq!(ends("spinney mkfs --csum "), ["blake2", "crc32c", "sha256", "xxhash"]);
        assert_eq!(ends("spinney mkfs --csum=x"), ["--csum=xxhash"]);
        assert_eq!(ends("spinney dump-tree -t bl"), ["block-group"]);
        assert_eq!(ends("spinney xattr s"), ["set"]);
        assert_eq!(ends("spinney rescue z"), ["zero-log"]);
        assert_eq!(ends("spinney help mk"), ["mkdir", "mkfs"]);
        assert_eq!(ends("spinney mount -o ro,nosu"), ["ro,nosuid"]);
        assert_eq!(ends("spinney ls -- --rec"), [""; 0]);
        assert_eq!(ends("spinney nonsense --"), [""; 0]);
        assert!(ends("x && spinney ls --").contains(&"--json".into()));
    }

    #[test]
    fn lines_are_split_as_by_a_shell() {
        let words = |line: &str| split(line.as_bytes());
        let strings = |words: &[&str]| words.iter().map(OsString::from).collect::<Vec<_>>();
        assert_eq!(words("a b "), (strings(&["a", "b", ""]), false));
        assert_eq!(words(r#"a\ b 'c d' "e\"f"#), (strings(&["a b", "c d", "e\"f"]), true));
        assert_eq!(words("cat x | spinney l"), (strings(&["spinney", "l"]), false));
    }
}
