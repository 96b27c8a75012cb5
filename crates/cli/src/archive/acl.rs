//! ACLs as texts: what GNU tar, bsdtar and star write with `--acls`, into the form of attributes.
//!
//! Entries are `WHO:NAME:PERMISSIONS`, apart by commas or line feeds; behind a `#` a line is a comment. libacl, and so
//! GNU tar, quotes what it must in names (`\134` for a backslash, as in those of Windows domains). bsdtar and star put
//! the number behind it, which counts, as that of an owner does: names are those of this machine, and of others where
//! it was packed.
//!
//! A text is a stranger's: as many names are looked up as this machine has, and one more, and no more entries are
//! taken than an attribute can have.

use crate::{args, sys};
use std::collections::BTreeMap;
use vfs::posix_acl::{ENTRY, GROUP, GROUP_OBJ, HEAD, MASK, NO_ID, OTHER, USER, USER_OBJ, to_bytes};

/// As many entries are in an attribute of the greatest length that Linux has.
const MOST: usize = (super::LONGEST_XATTR - HEAD) / ENTRY;

/// The attribute's value. `None`: it is no ACL, longer than any, or names somebody whom this machine does not know.
pub fn value(text: &[u8]) -> Option<Vec<u8>> {
    let text = std::str::from_utf8(text).ok()?;
    let entries = text.split('\n').flat_map(|line| without_comment(line).split(','));
    let entries = entries.map(str::trim).filter(|entry| !entry.is_empty());
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
    Some(to_bytes(all.into_iter().map(|((tag, id), perm)| (tag, perm, id))))
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
        None => args::id(name).or_else(|| known(name)).or_else(|| known(&unquoted(name)?)),
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

/// Of a line. Names may have a `#` in them, and not in front of it what a comment has there.
fn without_comment(line: &str) -> &str {
    let begins = |at: usize| line[..at].chars().next_back().is_none_or(char::is_whitespace);
    let comment = line.match_indices('#').find(|(at, _)| begins(*at));
    comment.map_or(line, |(at, _)| &line[..at])
}

/// With the bytes that libacl writes as a backslash and three octal digits. `None`: there are none.
fn unquoted(name: &str) -> Option<String> {
    let (mut bytes, mut rest) = (Vec::new(), name.as_bytes());
    while let Some((&first, behind)) = rest.split_first() {
        let octal = |b: &u8| (b'0'..=b'7').contains(b);
        let digits = behind.get(..3).filter(|digits| first == b'\\' && digits.iter().all(octal));
        let digits = digits.and_then(|digits| str::from_utf8(digits).ok());
        let quoted = digits.and_then(|digits| u8::from_str_radix(digits, 8).ok());
        bytes.push(quoted.unwrap_or(first));
        rest = if quoted.is_some() { &behind[3..] } else { behind };
    }
    String::from_utf8(bytes).ok().filter(|unquoted| unquoted != name)
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
    use vfs::posix_acl::VERSION;

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
            // As libacl quotes names, and with its comments.
            "# file: f\nuser::rw-\nuser:r\\157ot:r--\t\t#effective:---\nuser:7:rw-\ngroup::---\n\
             group:4000000000:--x\nmask::rw-\nother::---\n",
        ] {
            assert_eq!(entries(text).as_deref(), Some(&expected[..]), "{text}");
        }
        assert_eq!(entries("user::rwx\ngroup::r-x\nother::---").map(|all| all.len()), Some(3));
    }

    #[test]
    fn names_are_what_libacl_quoted() {
        for (text, name) in [
            ("DOM\\134user", Some("DOM\\user")),
            ("domain\\040users", Some("domain users")),
            ("\\303\\244\\054", Some("ä,")),
            ("DOM\\user", None),
            ("\\13", None),
            ("\\+12", None),
            ("\\777", None),
            ("\\377", None),
            ("root", None),
        ] {
            assert_eq!(unquoted(text).as_deref(), name, "{text}");
        }
        assert_eq!(without_comment("user:a#b:r-- #effective:---"), "user:a#b:r-- ");
    }

    #[test]
    fn what_is_no_acl_is_refused() {
        let plain = "user::rw-,group::---,other::---";
        for more in [
            "user:not-here:rw-",
            "user:not\\055here:rw-",
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
