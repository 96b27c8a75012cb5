//! The names of what is made beside something until it can take that one's place, here and in volumes:
//! `.spinney-PID-N`. Files have one only from when they are whole, where there are files without a name.
//!
//! Invariant: nothing is ever taken away for its name: users may call their own so, and on this machine others in
//! another PID namespace, who share the directory, may be at it still. What is left of who is killed stays.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};

/// A name that nobody else is given, nor can foresee: an archive cannot have it.
pub(super) fn next_name() -> Vec<u8> {
    // Seeded by the system.
    let number = RandomState::new().build_hasher().finish();
    format!(".spinney-{}-{number}", std::process::id()).into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tell_whose_they_are_and_no_two_are_the_same() {
        let (one, other) = (next_name(), next_name());
        let own = format!(".spinney-{}-", std::process::id());
        assert!(one.starts_with(own.as_bytes()) && other.starts_with(own.as_bytes()));
        assert_ne!(one, other);
    }
}
