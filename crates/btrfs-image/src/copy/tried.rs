//! Extended attributes of one thing, set one after the other: what fails of one costs no other, nor permissions
//! and times.
//!
//! Invariant: where an ACL is lacking nobody gets in by the permissions beside it: of these the group's are its
//! mask, and others may be somebody whom it names and shuts out. So its owner's are left.
//!
//! It does not know what an attribute says.

use super::host::is_acl;
use vfs::posix_acl;

/// What trying came to; the first error stands for all.
#[derive(Debug)]
pub struct Tried<E> {
    first: Option<E>,
    lacks_acl: bool,
}

impl<E> Default for Tried<E> {
    /// Nothing was tried yet.
    fn default() -> Self {
        Tried { first: None, lacks_acl: false }
    }
}

impl<E> Tried<E> {
    /// One attribute.
    pub fn one(&mut self, name: &[u8], result: Result<(), E>) {
        if let Err(error) = result {
            self.lacks_acl |= is_acl(name);
            self.first.get_or_insert(error);
        }
    }

    /// One that the target cannot have, which is no error.
    pub fn left_out(&mut self, name: &[u8]) {
        // A default ACL keeps nobody out of what has it.
        self.lacks_acl |= name == posix_acl::ACCESS;
    }

    /// What all of them need; an ACL may have been among them.
    pub fn all<T>(&mut self, result: Result<T, E>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(error) => {
                self.lacks_acl = true;
                self.first.get_or_insert(error);
                None
            }
        }
    }

    /// Permissions that fit what is there.
    pub fn perm(&self, perm: u32) -> u32 {
        if self.lacks_acl { perm & !0o077 } else { perm }
    }

    /// The first error.
    pub fn result(self) -> Result<(), E> {
        self.first.map_or(Ok(()), Err)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_acl_would_keep_out_stays_out_without_it() {
        let mut tried = Tried::default();
        tried.one(b"user.long", Err(1));
        tried.one(b"system.posix_acl_access", Ok(()));
        assert_eq!(tried.perm(0o4671), 0o4671);
        tried.one(b"system.posix_acl_access", Err(2));
        assert_eq!((tried.perm(0o4671), tried.result()), (0o4600, Err(1)));
        let mut tried = Tried::default();
        assert_eq!(tried.all(Ok::<_, i32>(7)), Some(7));
        assert_eq!(tried.perm(0o644), 0o644);
        assert!(tried.all(Err::<(), _>(3)).is_none());
        assert_eq!((tried.perm(0o644), tried.result()), (0o600, Err(3)));
        for (name, perm) in [
            (&b"user.x"[..], 0o2775),
            (b"system.posix_acl_default", 0o2775),
            (b"system.posix_acl_access", 0o2700),
        ] {
            let mut tried = Tried::<i32>::default();
            tried.left_out(name);
            assert_eq!((tried.perm(0o2775), tried.result()), (perm, Ok(())));
        }
    }
}
