//! The words that a verb takes, read from its help: options with their values, operands.
//!
//! The help is the one source: what stands there is what the parser takes (`Args` refuses any
//! other option), what shells complete and what "did you mean" offers. A line of the section
//! `Options` is `-s, --long VALUE   what it does`; two blanks end the words.

/// What stands behind an option.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Value {
    Nothing,
    /// `--name[=VALUE]`.
    Maybe(String),
    Must(String),
}

/// The names of one option, with their dashes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Opt {
    pub names: Vec<String>,
    pub value: Value,
    pub about: String,
}

/// The options that a verb's help has.
pub fn options(help: &str) -> Vec<Opt> {
    let mut all = Vec::new();
    let mut lines = section(help, "Options").into_iter().peekable();
    while let Some(line) = lines.next() {
        if !line.starts_with('-') {
            continue;
        }
        let (words, about) = line.split_once("  ").unwrap_or((line, ""));
        // A line that is full of words has what it does below.
        let below = lines.peek().copied().filter(|next| !next.starts_with('-')).unwrap_or("");
        let about = if about.is_empty() { below } else { about };
        all.extend(of_line(words, about.trim()));
    }
    all
}

/// The names in a list of `-o` options, without their values.
pub fn list_options(help: &str) -> Vec<String> {
    let titles = help.lines().filter(|line| line.ends_with("-o options"));
    let lines = titles.flat_map(|title| indented(help, title));
    let mut all = Vec::new();
    for line in lines.filter(|line| line.starts_with("    ") && !line.starts_with("     ")) {
        let words = line.trim_start().split("  ").next().unwrap_or("");
        for word in words.split(", ") {
            let (name, value) = word.split_once('=').map_or((word, None), |(n, v)| (n, Some(v)));
            match value.filter(|value| value.contains('|')) {
                Some(values) => all.extend(values.split('|').map(|v| format!("{name}={v}"))),
                None if value.is_some() => all.push(format!("{name}=")),
                None => all.push(name.to_owned()),
            }
        }
    }
    all
}

fn section<'h>(help: &'h str, title: &str) -> Vec<&'h str> {
    indented(help, title).map(str::trim_start).collect()
}

/// The indented lines below a title, with or without something behind a comma in it.
fn indented<'h>(help: &'h str, title: &str) -> impl Iterator<Item = &'h str> {
    let is_title = move |line: &str| line.split(',').next() == Some(title);
    let behind = help.lines().skip_while(move |line| !is_title(line)).skip(1);
    behind.take_while(|line| line.starts_with(' '))
}

fn of_line(words: &str, about: &str) -> Vec<Opt> {
    let words: Vec<(&str, Value)> = words.split(", ").map(of_word).collect();
    let with_value = words.iter().filter(|(_, value)| *value != Value::Nothing).count();
    let opt = |names: Vec<String>, value| Opt { names, value, about: about.to_owned() };
    if with_value > 1 {
        return words.into_iter().map(|(name, value)| opt(vec![name.into()], value)).collect();
    }
    let value = words.iter().find(|(_, v)| *v != Value::Nothing).map(|(_, v)| v.clone());
    let names = words.into_iter().map(|(name, _)| name.to_owned()).collect();
    vec![opt(names, value.unwrap_or(Value::Nothing))]
}

fn of_word(word: &str) -> (&str, Value) {
    if let Some((name, value)) = word.split_once("[=") {
        return (name, Value::Maybe(value.trim_end_matches(']').into()));
    }
    match word.split_once(' ') {
        Some((name, value)) => (name, Value::Must(value.into())),
        None => (word, Value::Nothing),
    }
}

/// What may stand at the place `at` among the operands, as the usage has it.
pub fn operands(usage: &str, help: &str, at: usize) -> Vec<String> {
    let options = options(help);
    let takes = |word: &str| {
        options.iter().any(|o| o.names.iter().any(|n| n == word) && o.value != Value::Nothing)
    };
    let mut all: Vec<String> = Vec::new();
    for line in usage.lines() {
        let mut words = Vec::new();
        let line = without_brackets(line);
        let mut left = line.split_whitespace();
        while let Some(word) = left.next() {
            match word.starts_with('-') {
                true if takes(word) => drop(left.next()),
                true => {}
                false => words.push(word),
            }
        }
        // `A... B`: what is many may be in the place of what follows it.
        let many = words.iter().position(|w| w.ends_with("...")).filter(|many| *many <= at);
        for word in [words.get(at), many.map(|many| &words[many])].into_iter().flatten() {
            let word = word.trim_end_matches("...").to_owned();
            if !all.contains(&word) {
                all.push(word);
            }
        }
    }
    all
}

/// Without what is optional, but for operands: `[COMMAND]`.
fn without_brackets(line: &str) -> String {
    let mut text = String::new();
    let mut rest = line;
    while let Some((before, behind)) = rest.split_once('[') {
        let (inside, after) = behind.split_once(']').unwrap_or((behind, ""));
        text.push_str(before);
        if inside.chars().all(|c| c.is_ascii_uppercase()) && inside != "OPTIONS" {
            text.push_str(inside);
        }
        rest = after;
    }
    text + rest
}

/// The one of `known` that `word` may have been meant to be.
pub fn similar<'k>(word: &str, known: impl Iterator<Item = &'k str>) -> Option<&'k str> {
    let bare = |word: &str| word.trim_start_matches('-').to_owned();
    let word = bare(word);
    let scored = known.map(|other| (strsim::jaro_winkler(&word, &bare(other)), other));
    let best = scored.max_by(|a, b| a.0.total_cmp(&b.0))?;
    (best.0 > 0.8).then_some(best.1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::{Command, named, verbs};

    fn of(verb: &str) -> &'static Command {
        named(verb.as_ref()).unwrap()
    }

    fn named_operands(verb: &str, at: usize) -> Vec<String> {
        operands(of(verb).usage, of(verb).help, at)
    }

    fn names(verb: &str) -> Vec<String> {
        options(of(verb).help).into_iter().flat_map(|opt| opt.names).collect()
    }

    #[test]
    fn options_are_read_from_the_help() {
        assert_eq!(names("stat"), ["-L", "--dereference", "--json", "--subvol", "--subvolid"]);
        let mkdir = options(of("mkdir").help);
        assert_eq!(mkdir[1].names, ["-m", "--mode"]);
        assert_eq!(mkdir[1].value, Value::Must("MODE".into()));
        assert!(mkdir[2].about.starts_with("start from this subvolume"), "{mkdir:?}");
        assert_eq!(mkdir[3].value, Value::Must("ID".into()));
        let cp = options(of("cp").help);
        let reflink = cp.iter().find(|opt| opt.names == ["--reflink"]).unwrap();
        assert_eq!(reflink.value, Value::Maybe("WHEN".into()));
        for command in verbs() {
            for opt in options(command.help) {
                assert!(!opt.about.is_empty(), "{} {opt:?}", command.name);
                for name in &opt.names {
                    let bare = name.trim_start_matches('-');
                    let plain = bare.chars().all(|c| c.is_ascii_alphanumeric() || c == '-');
                    let long = name.starts_with("--");
                    assert!(plain && long == (bare.len() > 1), "{} {name}", command.name);
                }
            }
        }
    }

    #[test]
    fn lists_of_mount_options() {
        let all = list_options(of("mount").help);
        for name in ["ro", "rw", "subvol=", "discard", "transport=", "nosuid", "sync"] {
            assert!(all.iter().any(|n| n.starts_with(name)), "{name}: {all:?}");
        }
    }

    #[test]
    fn operands_are_read_from_the_usage() {
        assert_eq!(named_operands("ls", 3), ["IMAGE:/PATH"]);
        assert_eq!(named_operands("mount", 0), ["IMAGE"]);
        assert_eq!(named_operands("mount", 1), ["DIR"]);
        assert_eq!(named_operands("xattr", 0), ["list", "get", "set", "rm"]);
        assert_eq!(named_operands("xattr", 1), ["IMAGE:/PATH"]);
        assert_eq!(named_operands("truncate", 0), ["IMAGE:/PATH"]);
        assert_eq!(named_operands("help", 0), ["COMMAND"]);
        assert_eq!(named_operands("cp", 1), ["TARGET", "DIRECTORY", "SOURCE"]);
    }

    #[test]
    fn slips_are_recognised() {
        let verb = |word| similar(word, verbs().map(|c| c.name));
        for (word, meant) in
            [("muont", "mount"), ("chekc", "check"), ("unmount", "umount"), ("mkfs.btrfs", "mkfs")]
        {
            assert_eq!(verb(word), Some(meant));
        }
        assert_eq!(verb("zzz"), None);
    }
}
