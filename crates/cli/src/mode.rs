//! Permission changes as `chmod` takes them: octal, or `u+rwX,go=`.

/// A change that can be applied to many files.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Change {
    /// These bits and no others; of a directory's set-ID bits none but those that are `named`.
    Exact {
        bits: u16,
        named: u16,
    },
    Steps(Vec<Step>),
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Step {
    /// Bits that the step is about.
    who: u16,
    /// Nobody was named: the umask has a say.
    masked: bool,
    operator: char,
    what: What,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum What {
    Bits {
        all: u16,
        x_if_any: bool,
    },
    /// The bits of the user (6), the group (3) or the others (0) now.
    Copy(u16),
}

/// The bits of a mode that `u`, `g` and `o` of a symbolic one are.
const USER: u16 = 0o4700;
const GROUP: u16 = 0o2070;
const OTHER: u16 = 0o1007;
const ALL: u16 = 0o7777;
const SET_IDS: u16 = 0o6000;

impl Change {
    pub fn parse(text: &str) -> Option<Change> {
        if text.starts_with(|c: char| c.is_ascii_digit()) {
            let bits = u16::from_str_radix(text, 8).ok().filter(|bits| *bits <= 0o7777)?;
            // As in coreutils: short numbers leave a directory's set-ID bits alone that they do not have.
            let named = if text.len() < 5 { bits | !SET_IDS & ALL } else { ALL };
            return Some(Change::Exact { bits, named });
        }
        let mut steps = Vec::new();
        for clause in text.split(',') {
            parse_clause(clause, &mut steps)?;
        }
        Some(Change::Steps(steps))
    }

    pub fn apply(&self, perm: u16, is_dir: bool, umask: u16) -> u16 {
        match self {
            Change::Exact { bits, named } if is_dir => bits | perm & !named,
            Change::Exact { bits, .. } => *bits,
            Change::Steps(steps) => steps.iter().fold(perm, |perm, s| s.apply(perm, is_dir, umask)),
        }
    }

    /// What it makes of a directory that anybody may use, and which bits it says something about, as mkdir(1) has it.
    pub fn of_new_directory(&self, umask: u16) -> (u16, u16) {
        let steps = match self {
            Change::Exact { bits, named } => return (*bits, *named),
            Change::Steps(steps) => steps,
        };
        let (mut perm, mut named) = (0o777, 0);
        for step in steps {
            named |= step.named(perm, umask);
            perm = step.apply(perm, true, umask);
        }
        (perm, named)
    }
}

fn parse_clause(clause: &str, steps: &mut Vec<Step>) -> Option<()> {
    let at = clause.find(['+', '-', '='])?;
    let (named, mut rest) = clause.split_at(at);
    let mut who = 0;
    for letter in named.chars() {
        who |= match letter {
            'u' => USER,
            'g' => GROUP,
            'o' => OTHER,
            'a' => 0o7777,
            _ => return None,
        };
    }
    let masked = named.is_empty();
    let who = if masked { 0o7777 } else { who };
    while let Some(operator) = rest.chars().next() {
        let end = rest[1..].find(['+', '-', '=']).map_or(rest.len(), |at| at + 1);
        steps.push(Step { who, masked, operator, what: parse_what(&rest[1..end])? });
        rest = &rest[end..];
    }
    Some(())
}

fn parse_what(letters: &str) -> Option<What> {
    match letters {
        "u" => return Some(What::Copy(6)),
        "g" => return Some(What::Copy(3)),
        "o" => return Some(What::Copy(0)),
        _ => {}
    }
    let (mut all, mut x_if_any) = (0, false);
    for letter in letters.chars() {
        match letter {
            'r' => all |= 0o444,
            'w' => all |= 0o222,
            'x' => all |= 0o111,
            's' => all |= 0o6000,
            't' => all |= 0o1000,
            'X' => x_if_any = true,
            _ => return None,
        }
    }
    Some(What::Bits { all, x_if_any })
}

impl Step {
    /// What is added, taken away or set.
    fn bits(&self, perm: u16, is_dir: bool, umask: u16) -> u16 {
        let bits = match self.what {
            What::Copy(shift) => (perm >> shift & 7) * 0o111,
            What::Bits { all, x_if_any } => {
                let x = x_if_any && (is_dir || perm & 0o111 != 0);
                all | if x { 0o111 } else { 0 }
            }
        };
        bits & self.who & if self.masked { !umask } else { ALL }
    }

    /// Of a directory's bits those that it says something about.
    fn named(&self, perm: u16, umask: u16) -> u16 {
        let bits = self.bits(perm, true, umask);
        match self.operator {
            '+' | '-' => bits,
            _ => self.who & !SET_IDS | bits,
        }
    }

    fn apply(&self, perm: u16, is_dir: bool, umask: u16) -> u16 {
        let bits = self.bits(perm, is_dir, umask);
        match self.operator {
            '+' => perm | bits,
            '-' => perm & !bits,
            _ => {
                // `=` on a directory leaves set-ID bits that were not named.
                let kept = if is_dir { self.who & !0o6000 } else { self.who };
                perm & !kept | bits
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_do_what_chmod_does() {
        for (text, perm, is_dir, result) in [
            ("755", 0o600, false, 0o755),
            ("4755", 0o600, false, 0o4755),
            ("755", 0o2700, true, 0o2755),
            ("2755", 0o4700, true, 0o6755),
            ("00755", 0o6700, true, 0o755),
            ("0", 0o777, false, 0),
            ("u+x", 0o644, false, 0o744),
            ("go-rwx", 0o777, false, 0o700),
            ("a=r", 0o777, false, 0o444),
            ("+x", 0o644, false, 0o755),
            ("+w", 0o444, false, 0o644),
            ("-w", 0o666, false, 0o466),
            ("u+X", 0o644, false, 0o644),
            ("a+X", 0o644, true, 0o755),
            ("a+X", 0o744, false, 0o755),
            ("g=u", 0o741, false, 0o771),
            ("o=g-w", 0o770, false, 0o775),
            ("u+s,g+s", 0o755, false, 0o6755),
            ("+t", 0o777, true, 0o1777),
            ("u=rwx,go=", 0o666, false, 0o700),
            ("ug+rw,o-r", 0o4, false, 0o660),
            ("g=rx", 0o2777, true, 0o2757),
        ] {
            let change = Change::parse(text).unwrap_or_else(|| panic!("{text}"));
            let got = change.apply(perm, is_dir, 0o022);
            assert_eq!(got, result, "{text} on {perm:o}: {got:o}");
        }
    }

    #[test]
    fn nonsense_is_refused() {
        for text in ["", "9", "77777", "u", "z+r", "u+q", "u+r,", "0x7", "ugo"] {
            assert_eq!(Change::parse(text), None, "{text}");
        }
    }
}
