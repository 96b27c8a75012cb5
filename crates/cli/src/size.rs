//! Numbers as people write and read them.

/// `4096`, `64K`, `2G`, `1T`; `KiB` and `KB` also count in 1024 and 1000.
pub fn parse(text: &str) -> Option<u64> {
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().ok()?;
    let mut letters = unit.chars();
    let Some(letter) = letters.next() else { return Some(number) };
    let power = match letter.to_ascii_uppercase() {
        'B' if unit.len() == 1 => 0,
        'K' => 1,
        'M' => 2,
        'G' => 3,
        'T' => 4,
        'P' => 5,
        'E' => 6,
        _ => return None,
    };
    let base: u64 = match letters.as_str() {
        "" | "iB" => 1024,
        "B" => 1000,
        _ => return None,
    };
    number.checked_mul(base.pow(power))
}

/// So many of `what`, which is one: `1 chunk`, `2 chunks`.
pub fn count(number: impl Into<u64>, what: &str) -> String {
    match (number.into(), what.strip_suffix('y')) {
        (1, _) => format!("1 {what}"),
        (number, Some(stem)) => format!("{number} {stem}ies"),
        (number, None) => format!("{number} {what}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::{count, parse};

    #[test]
    fn units_are_those_of_btrfs_and_of_truncate() {
        let known = [("1", 1), ("2k", 2048), ("1KB", 1000), ("3MiB", 3 << 20), ("1g", 1 << 30)];
        let large = [("1T", 1 << 40), ("4p", 4 << 50), ("1E", 1 << 60), ("15e", 15 << 60)];
        for (text, bytes) in known.into_iter().chain(large) {
            assert_eq!(parse(text), Some(bytes), "{text}");
        }
        assert_eq!(parse("18EB"), Some(18_000_000_000_000_000_000));
        for text in ["16E", "19EB", "1Z", "", "E", "1EE"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    #[test]
    fn one_is_one() {
        assert_eq!(count(1u32, "chunk"), "1 chunk");
        assert_eq!(count(0u64, "error"), "0 errors");
        assert_eq!(count(2u64, "directory"), "2 directories");
        assert_eq!(count(1u64, "directory"), "1 directory");
    }
}
