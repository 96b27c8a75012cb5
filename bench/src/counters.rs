//! What a side counts about itself, before and after the work.
//!
//! The names are the engine's own and mean nothing here, but for one convention: one
//! with `max` in it is a high-water mark, which has no difference.

use serde_json::Value;
use std::collections::BTreeMap;

pub type Counters = BTreeMap<String, u64>;

/// Of the object that `spinney stats --json` prints, the members that are numbers.
pub fn parse(text: &str) -> Option<Counters> {
    let Value::Object(members) = serde_json::from_str(text).ok()? else { return None };
    let number = |(name, value): (String, Value)| Some((name, value.as_u64()?));
    Some(members.into_iter().filter_map(number).collect())
}

/// How far each counter went; those that did not move are left out.
pub fn difference(before: &Counters, after: &Counters) -> Counters {
    let moved = |(name, after): (&String, &u64)| {
        let before = before.get(name).copied().unwrap_or(0);
        let value = match is_mark(name) {
            true if *after > before => *after,
            true => 0,
            false => after.saturating_sub(before),
        };
        (value > 0).then(|| (name.clone(), value))
    };
    after.iter().filter_map(moved).collect()
}

fn is_mark(name: &str) -> bool {
    name.split(['.', '_']).any(|part| part == "max")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_taken_and_subtracted() {
        let before = parse(r#"{"fuse.transport":"io_uring","a":5,"b.max_ns":9,"c":1}"#).unwrap();
        assert_eq!(before.len(), 3, "a name is no number");
        let after = parse(r#"{"a":12,"b.max_ns":30,"c":1,"new":2,"d_max":0}"#).unwrap();
        let moved: Vec<_> = difference(&before, &after).into_iter().collect();
        let expected = [("a", 7), ("b.max_ns", 30), ("new", 2)];
        assert_eq!(moved, expected.map(|(name, value)| (name.to_string(), value)));
        assert!(difference(&after, &after).is_empty(), "an old mark is not this run's");
        assert!(parse("[1]").is_none() && parse("nothing").is_none());
    }
}
