//! The table of docs/CHECK.md: `| who complains | class | why |`, where a class may have `*`.

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Side {
    Ours,
    Theirs,
}

impl Side {
    pub fn name(self) -> &'static str {
        match self {
            Side::Ours => "ours",
            Side::Theirs => "btrfs check",
        }
    }
}

pub struct Table {
    lines: Vec<(Side, Vec<String>)>,
}

impl Table {
    pub fn read() -> Table {
        Table::parse(include_str!("../../../../docs/CHECK.md"))
    }

    fn parse(text: &str) -> Table {
        let line = |line: &str| {
            let cells: Vec<_> = line.split('|').map(str::trim).collect();
            let [_, side, classes, why, _] = cells[..] else { return None };
            let side = match side {
                "ours" => Side::Ours,
                "btrfs check" => Side::Theirs,
                _ => return None,
            };
            assert!(!why.is_empty(), "no reason: {line}");
            let classes = classes.split(", ").map(|class| class.trim_matches('`').to_owned());
            Some((side, classes.collect()))
        };
        Table { lines: text.lines().filter_map(line).collect() }
    }

    pub fn knows(&self, class: &str, side: Side) -> bool {
        self.lines.iter().any(|line| covers(line, class, side))
    }

    /// Its lines that none of the differences needs.
    pub fn unused<'a>(&self, differ: impl Iterator<Item = &'a (String, Side)> + Clone) -> Table {
        let unused = |line: &&_| !differ.clone().any(|(class, side)| covers(line, class, *side));
        Table { lines: self.lines.iter().filter(unused).cloned().collect() }
    }

    /// Whether any line is of this class.
    pub fn has(&self, class: &str) -> bool {
        [Side::Ours, Side::Theirs].iter().any(|side| self.knows(class, *side))
    }

    pub fn listing(&self) -> Vec<String> {
        let lines = self.lines.iter();
        lines.map(|(side, classes)| format!("{} | {}", side.name(), classes.join(", "))).collect()
    }
}

fn covers(line: &(Side, Vec<String>), class: &str, side: Side) -> bool {
    line.0 == side && line.1.iter().any(|pattern| fits(pattern, class))
}

/// `*` stands for any run of characters.
fn fits(pattern: &str, text: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == text,
        Some((front, rest)) => text.strip_prefix(front).is_some_and(|text| {
            (0..=text.len()).any(|at| text.is_char_boundary(at) && fits(rest, &text[at..]))
        }),
    }
}

#[test]
fn patterns() {
    assert!(fits("a/*/c", "a/b/c") && fits("*", "x") && fits("a*", "a"));
    assert!(!fits("a/*/c", "a/b/d") && !fits("a", "ab"));
    let table = Table::parse("| ours | `x/*`, `y` | because |\n| btrfs check | `z` | so |");
    assert!(table.knows("x/1", Side::Ours) && table.knows("y", Side::Ours));
    assert!(!table.knows("x/1", Side::Theirs) && table.knows("z", Side::Theirs));
    let unused = table.unused([("y".to_owned(), Side::Ours)].iter());
    assert_eq!(unused.listing(), ["btrfs check | z"]);
    assert!(unused.has("z") && !unused.has("y"));
}
