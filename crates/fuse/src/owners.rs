//! Whose files a mount shows, where that is not whose they are on the volume.
//!
//! Two ways. *Forced*: every file appears to have one owner (or group), whatever is stored;
//! new ones are stored with the owner of the directory that they are made in; no other owner
//! can be given. *Alias*: the stored owner `stored` appears as `seen`, and what `seen` makes
//! or is given is stored as `stored`; all other numbers stay what they are. A file that is
//! stored with the number `seen` keeps it: both appear as `seen`.
//!
//! Permission bits are never changed: the kernel holds them against the owner that is seen.
//! Knows nothing of requests and nothing of who serves.

use vfs::{Attr, NOBODY, posix_acl};

/// Of users, or of groups.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum Map {
    /// As they are.
    #[default]
    AsStored,
    /// All appear as this number.
    Forced(u32),
    /// One number appears as another.
    Alias {
        /// The number on the volume.
        stored: u32,
        /// What the mount shows for it.
        seen: u32,
    },
}

impl Map {
    fn seen(self, stored: u32) -> u32 {
        match self {
            Map::Forced(number) => number,
            Map::Alias { stored: one, seen } if stored == one => seen,
            _ => stored,
        }
    }

    /// What a file is stored with that `maker` makes in a directory of `dir`'s (as stored).
    fn made(self, maker: u32, dir: impl FnOnce() -> vfs::Result<u32>) -> vfs::Result<u32> {
        match self {
            Map::Forced(_) => dir(),
            _ => Ok(self.named(maker)),
        }
    }

    /// As whom `asker` asks about a file of `file`'s (as stored).
    fn asking(self, asker: u32, file: impl FnOnce() -> vfs::Result<u32>) -> vfs::Result<u32> {
        match self {
            Map::Forced(number) if number == asker => file(),
            _ => Ok(self.stranger(asker)),
        }
    }

    /// What `asker` is on the volume who is not made the owner of what he asks about. Nothing
    /// appears to be his whose stored number happens to be his own: that makes him nobody.
    fn stranger(self, asker: u32) -> u32 {
        match self {
            Map::Forced(_) => NOBODY,
            Map::Alias { stored, seen } if asker == stored && stored != seen => NOBODY,
            _ => self.named(asker),
        }
    }

    /// What `seen` is stored as.
    fn named(self, number: u32) -> u32 {
        match self {
            Map::Alias { stored, seen } if number == seen => stored,
            _ => number,
        }
    }

    /// What to store where `wanted` shall be the owner; `None` changes nothing.
    /// EPERM where nobody else can be the owner.
    fn given(self, wanted: Option<u32>) -> Result<Option<u32>, vfs::Errno> {
        match (self, wanted) {
            (Map::Forced(number), Some(wanted)) if wanted != number => Err(vfs::Errno::EPERM),
            (Map::Forced(_), _) => Ok(None),
            (_, wanted) => Ok(wanted.map(|number| self.named(number))),
        }
    }
}

/// Whose files a mount shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Owners {
    /// The users.
    pub users: Map,
    /// The groups.
    pub groups: Map,
}

impl Owners {
    /// Nothing is mapped.
    pub fn are_as_stored(&self) -> bool {
        *self == Owners::default()
    }

    /// As the mount shows it.
    pub(crate) fn show(&self, attr: &Attr) -> Attr {
        Attr { uid: self.users.seen(attr.uid), gid: self.groups.seen(attr.gid), ..*attr }
    }

    /// The owner of what is made in `dir`.
    pub(crate) fn adopt(
        &self,
        cx: &mut vfs::Context,
        dir: impl Fn() -> vfs::Result<Attr>,
    ) -> vfs::Result<()> {
        cx.uid = self.users.made(cx.uid, || Ok(dir()?.uid))?;
        cx.gid = self.groups.made(cx.gid, || Ok(dir()?.gid))?;
        Ok(())
    }

    /// Who asks about a file, as the volume knows him: what appears to be his is.
    pub(crate) fn ask(
        &self,
        who: &mut vfs::Who,
        file: impl Fn() -> vfs::Result<Attr>,
    ) -> vfs::Result<()> {
        who.uid = self.users.asking(who.uid, || Ok(file()?.uid))?;
        who.gid = self.groups.asking(who.gid, || Ok(file()?.gid))?;
        for group in &mut who.groups {
            *group = self.groups.asking(*group, || Ok(file()?.gid))?;
        }
        Ok(())
    }

    /// What is to be stored of what was asked for.
    pub(crate) fn give(&self, set: &mut vfs::SetAttr) -> Result<(), vfs::Errno> {
        (set.uid, set.gid) = (self.users.given(set.uid)?, self.groups.given(set.gid)?);
        Ok(())
    }

    /// The value of the attribute `name` as it is shown.
    pub(crate) fn show_acl(&self, name: &[u8], value: &mut [u8]) {
        self.each_in_acl(name, value, |map, number| match map {
            Map::Alias { .. } => map.seen(number),
            _ => number,
        });
    }

    /// As it is stored.
    pub(crate) fn store_acl(&self, name: &[u8], value: &mut [u8]) {
        self.each_in_acl(name, value, Map::named);
    }

    fn each_in_acl(&self, name: &[u8], value: &mut [u8], new: impl Fn(Map, u32) -> u32) {
        if self.are_as_stored() || !name.starts_with(b"system.posix_acl_") {
            return;
        }
        for entry in
            value.get_mut(posix_acl::HEAD..).unwrap_or_default().chunks_exact_mut(posix_acl::ENTRY)
        {
            let map = match u16::from_le_bytes([entry[0], entry[1]]) {
                posix_acl::USER => self.users,
                posix_acl::GROUP => self.groups,
                _ => continue,
            };
            let number = u32::from_le_bytes([entry[4], entry[5], entry[6], entry[7]]);
            entry[4..].copy_from_slice(&new(map, number).to_le_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALIAS: Map = Map::Alias { stored: 0, seen: 1000 };

    #[test]
    fn an_alias_goes_both_ways() {
        assert_eq!([0, 1000, 7].map(|n| ALIAS.seen(n)), [1000, 1000, 7]);
        assert_eq!([0, 1000, 7].map(|n| ALIAS.made(n, || Ok(9)).unwrap()), [0, 0, 7]);
        assert_eq!(ALIAS.given(Some(1000)), Ok(Some(0)));
        assert_eq!(ALIAS.given(Some(7)), Ok(Some(7)));
        assert_eq!(ALIAS.given(None), Ok(None));
    }

    #[test]
    fn a_forced_owner_is_everybodys_and_stays() {
        let forced = Map::Forced(5);
        assert_eq!([0, 5, 7].map(|n| forced.seen(n)), [5, 5, 5]);
        assert_eq!(forced.made(5, || Ok(9)).unwrap(), 9);
        assert_eq!((forced.given(Some(5)), forced.given(None)), (Ok(None), Ok(None)));
        assert_eq!(forced.given(Some(6)), Err(vfs::Errno::EPERM));
    }

    /// As whom one with that number, as user, group and further group, asks about a file that
    /// is stored with 1001.
    fn asked(map: Map, number: u32) -> [u32; 3] {
        let owners = Owners { users: map, groups: map };
        let mut who = vfs::Who {
            uid: number,
            gid: number,
            groups: vec![number],
            umask: 0o022,
            admin: false,
            unknown: false,
            exempt: Default::default(),
        };
        let of_1001 = Attr {
            ino: vfs::Ino(1),
            kind: vfs::FileKind::File,
            perm: 0o644,
            nlink: 1,
            uid: 1001,
            gid: 1001,
            rdev: 0,
            size: 0,
            blocks: 0,
            blksize: 4096,
            atime: Default::default(),
            mtime: Default::default(),
            ctime: Default::default(),
            btime: Default::default(),
            attributes: 0,
        };
        owners.ask(&mut who, || Ok(of_1001)).unwrap();
        [who.uid, who.gid, who.groups[0]]
    }

    #[test]
    fn who_has_the_stored_owners_number_is_a_stranger() {
        let alias = Map::Alias { stored: 1001, seen: 1000 };
        for map in [Map::Forced(1000), alias] {
            assert_eq!(asked(map, 1001), [NOBODY; 3], "{map:?}");
            assert_eq!(asked(map, 1000), [1001; 3], "{map:?}");
        }
        assert_eq!(asked(Map::Forced(1000), 7), [NOBODY; 3]);
        assert_eq!(asked(alias, 7), [7; 3]);
        let same = Map::Alias { stored: 1001, seen: 1001 };
        for map in [Map::AsStored, same, Map::Forced(1001)] {
            assert_eq!(asked(map, 1001), [1001; 3], "{map:?}");
        }
    }

    #[test]
    fn acls_name_those_who_are_seen() {
        let owners = Owners { users: ALIAS, groups: Map::AsStored };
        let entry = |tag: u16, number: u32| {
            [&tag.to_le_bytes()[..], &[6, 0], &number.to_le_bytes()].concat()
        };
        let acl = |number| {
            let entries =
                [entry(1, u32::MAX), entry(posix_acl::USER, number), entry(posix_acl::GROUP, 0)];
            [&[2, 0, 0, 0][..], &entries.concat()].concat()
        };
        let mut value = acl(0);
        owners.show_acl(b"system.posix_acl_access", &mut value);
        assert_eq!(value, acl(1000));
        owners.store_acl(b"system.posix_acl_default", &mut value);
        assert_eq!(value, acl(0));
        owners.show_acl(b"user.x", &mut value);
        assert_eq!(value, acl(0));
        owners.show_acl(b"system.posix_acl_access", &mut [1, 2]);
    }
}
