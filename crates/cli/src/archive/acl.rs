//! ACLs as texts: what GNU tar, bsdtar and star write with `--acls`, into the form of attributes.
//!
//! Entries are `WHO:NAME:PERMISSIONS`, apart by commas or line feeds. bsdtar and star put the number behind it, which
//! counts, as that of an owner does: names are those of this machine, and of others where it was packed.
//!
//! A text is a stranger's: as many names are looked up as this machine has, and one more, and no more entries are
//! taken than an attribute can have.

use crate::{args, sys};
use std::collections::BTreeMap;
use vfs::posix_acl::{ENTRY, GROUP, GROUP_OBJ, HEAD, MASK, NO_ID, OTHER, USER, USER_OBJ, VERSION};

/// As many entries are in an attribute of the greatest length that Linux has.
const MOST: usize = (super::LONGEST_XATTR - HEAD) / ENTRY;

/// The attribute's value. `None`: it is no ACL, longer than any, or names somebody whom this machine does not know.
pub fn value(text: &[u8]) -> Option<Vec<u8>> {
    let text = std::str::from_utf8(text).ok()?;
    let entries = text.split([',', '\n']).map(str::trim).filter(|entry| !entry.is_empty());
    // As an ACL has them: in order, and each once.
    let mut all = BTreeMap::new();
    for entry in entries {
        let (key, perm) = self::entry(entry)?;
        if all.insert(key, perm).is_some() || all.len() > MOST {
            return None;
        }
    }
    let has = |tag| all.contains_key(&(tag, NO_ID));
    let names = all.keys().any(|(tag, _)| matches!(*tag, USER | GROUP));
    if ![USER_OBJ, GROUP_OBJ, OTHER].into_iter().all(has) || names && !has(MASK) {
        return None;
    }
    let mut value = Vec::with_capacity(HEAD + all.len() * ENTRY);
    value.extend(VERSION.to_le_bytes());
    for ((tag, id), perm) in all {
        value.extend(tag.to_le_bytes());
        value.extend(perm.to_le_bytes());
        value.extend(id.to_le_bytes());
    }
    Some(value)
}

/// Tag and number, and what they may do.
fn entry(text: &str) -> Option<((u16, u32), u16)> {
    let fields: Vec<&str> = text.splitn(5, ':').collect();
    let (who, name, perm, number) = match fields[..] {
        [who @ ("mask" | "m" | "other" | "o"), perm] => (who, "", perm, None),
        [who, name, perm] => (who, name, perm, None),
        [who, name, perm, number] => (who, name, perm, Some(number)),
        _ => return None,
    };
    let id = |known: fn(&str) -> Option<u32>| match number {
        Some(number) => args::id(number),
        None => args::id(name).or_else(|| known(name)),
    };
    let key = match (who, name) {
        ("user" | "u", "") => (USER_OBJ, NO_ID),
        ("user" | "u", _) => (USER, id(|name| Some(sys::user_id_and_group(name)?.0))?),
        ("group" | "g", "") => (GROUP_OBJ, NO_ID),
        ("group" | "g", _) => (GROUP, id(sys::group_id)?),
        ("mask" | "m", "") => (MASK, NO_ID),
        ("other" | "o", "") => (OTHER, NO_ID),
        _ => return None,
    };
    Some((key, permissions(perm)?))
}

fn permissions(letters: &str) -> Option<u16> {
    let bit = |letter| match letter {
        'r' => Some(4),
        'w' => Some(2),
        'x' => Some(1),
        '-' => Some(0),
        _ => None,
    };
    if letters.len() > 3 {
        return None;
    }
    letters.chars().try_fold(0, |all, letter| Some(all | bit(letter)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(text: &str) -> Option<Vec<(u16, u16, u32)>> {
        let value = value(text.as_bytes())?;
        assert_eq!(value[..HEAD], VERSION.to_le_bytes());
        let entry = |bytes: &[u8]| {
            let half = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
            let id = bytes[4..].try_into().map(u32::from_le_bytes);
            (half(0), half(2), id.expect("four bytes"))
        };
        Some(value[HEAD..].chunks(ENTRY).map(entry).collect())
    }

    #[test]
    fn texts_of_all_programs_are_the_same_acl() {
        let expected = [
            (USER_OBJ, 6, NO_ID),
            (USER, 4, 0),
            (USER, 6, 7),
            (GROUP_OBJ, 0, NO_ID),
            (GROUP, 1, 4_000_000_000),
            (MASK, 6, NO_ID),
            (OTHER, 0, NO_ID),
        ];
        for text in [
            // GNU tar.
            "user::rw-\nuser:root:r--\nuser:7:rw-\ngroup::---\ngroup:4000000000:--x\nmask::rw-\nother::---\n",
            // bsdtar and star; nobody is called so here.
            "user::rw-,group::---,mask::rw-,other::---,user:not-here:rw-:7,\
             user:root:r--:0,group:not-here:--x:4000000000",
            "u::rw, u:0:r, u:7:rw-, g::, g:4000000000:x, m:wr, o:---",
        ] {
            assert_eq!(entries(text).as_deref(), Some(&expected[..]), "{text}");
        }
        assert_eq!(entries("user::rwx\ngroup::r-x\nother::---").map(|all| all.len()), Some(3));
    }

    #[test]
    fn what_is_no_acl_is_refused() {
        let plain = "user::rw-,group::---,other::---";
        for more in [
            "user:not-here:rw-",
            "user:7:rw-",
            "mask::rw-,user:7:rw-,user:7:r--",
            "mask::rw-,user:7:rw-:seven",
            "mask::rw-,user:7:rw-:4294967295",
            "mask::rw-,user:7:rw-:7:7",
            "mask:7:rw-",
            "mask::rwxx",
            "mask::rq",
            "other::r--",
            "nobody::r--",
            "user:r--",
            "mask",
        ] {
            assert_eq!(entries(&format!("{plain},{more}")), None, "{more}");
        }
        for text in ["", "user::rw-,group::---", "user::rw-,other::---", "x", "\u{0}"] {
            assert_eq!(entries(text), None, "{text}");
        }
        assert_eq!(value(b"user::rw-,group::---,other::---,\xff"), None);
        let long = |count| {
            let more = (0..count).map(|id| format!("user:{id}:r--\n"));
            value(format!("{plain},mask::rw-,{}", more.collect::<String>()).as_bytes())
        };
        assert_eq!(long(MOST - 4).map(|value| value.len()), Some(HEAD + MOST * ENTRY));
        assert_eq!(long(MOST - 3), None);
    }
}
