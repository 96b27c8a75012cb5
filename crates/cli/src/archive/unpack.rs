//! An archive into a directory of a volume.
//!
//! What is there already is replaced, and goes only when what comes in its place is there;
//! directories are filled. No member leaves the directory: names with `..` are refused, and so
//! are those that lead through a symbolic link which the archive itself made, also where an older
//! link leads to that one. Directories get their attributes at the end: what is made in them must
//! not inherit some, and touches their times. What is unpacked has the attributes that the
//! archive says, and no others.
//!
//! Work and memory go with an archive's length: it is a stranger's.

use super::read::{Member, Reader, is_label};
use super::{LONGEST_NAME, LONGEST_XATTR, acl, pax};
use crate::error::{Error, Result, say_error};
use crate::inside::fill::FileAt;
use crate::inside::path::{find_through, join, push};
use crate::inside::volumes::At;
use crate::inside::{self, Draft, Failures, Node};
use btrfs_image::copy::BUFFER;
use spinney::Volume;
use std::collections::{HashMap, HashSet, hash_map};
use std::io::Read;
use tar::EntryType;
use vfs::{Attr, Context, Entry, Errno, FileKind, FsError, Ino, SetAttr, SetTime, XattrMode};

/// Items of all volumes hold an ACL of this length, also those in nodes of 4 KiB: ENOSPC is of the volume then.
const FITS: usize = 3800;

pub struct Unpacker<'v> {
    volume: &'v Volume,
    top: Ino,
    path: Vec<u8>,
    cx: Context,
    /// Symbolic links of this archive, and older ones that it gave further names.
    links: HashSet<Ino>,
    /// Each once, in the order in which they came first.
    directories: Vec<Directory>,
    /// Where each is in that.
    place_of: HashMap<Ino, usize>,
    /// Directories that were made for what is in them, before any member of their own.
    made_above: HashSet<Ino>,
    /// How many names in front are left off.
    pub strip: usize,
    pub verbose: bool,
}

/// Where a member is to be.
struct MemberPlace<'m> {
    parent: Node,
    name: &'m [u8],
    path: Vec<u8>,
    /// What has the name; nothing refers to it any more, so its room is free once it is replaced.
    old: Option<Attr>,
}

impl MemberPlace<'_> {
    fn draft<'p>(&'p self, volume: &'p Volume) -> Result<Draft<'p>> {
        let draft = Draft::new(volume, &self.parent, self.name, self.old.is_some());
        draft.at(volume, &self.path)
    }
}

struct Directory {
    ino: Ino,
    path: Vec<u8>,
    attributes: Attributes,
    last: SetAttr,
    made: bool,
}

/// Owner and extended attributes.
struct Attributes {
    uid: u32,
    gid: u32,
    xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    /// There is an ACL that is not among them.
    lacks_acl: bool,
}

impl<'v> Unpacker<'v> {
    pub fn new(volume: &'v Volume, top: &Node, path: &[u8]) -> Unpacker<'v> {
        Unpacker {
            volume,
            top: top.ino(),
            path: path.to_vec(),
            cx: inside::context(),
            links: HashSet::new(),
            directories: Vec::new(),
            place_of: HashMap::new(),
            made_above: HashSet::new(),
            strip: 0,
            verbose: false,
        }
    }

    /// All members; what becomes of one is told, and the next goes on.
    pub fn all(&mut self, from: impl Read, failures: &Failures) -> Result<()> {
        let mut reader = Reader::new(from);
        let ended = loop {
            match reader.next() {
                Ok(Some(member)) => {
                    if self.verbose {
                        say_error(&String::from_utf8_lossy(&member.name));
                    }
                    failures.keep(self.member(&member, &mut reader));
                }
                Ok(None) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        // Those below first: a change of theirs would touch the times of those above.
        for directory in std::mem::take(&mut self.directories).into_iter().rev() {
            let Directory { ino, path, attributes, last, made } = directory;
            failures.keep(self.attributes((&attributes, &last), ino, &path, made));
        }
        ended
    }

    fn member<R: Read>(&mut self, member: &Member, reader: &mut Reader<R>) -> Result<()> {
        let names = names_of(&member.name)?;
        let Some(names) = names.get(self.strip..) else { return Ok(()) };
        let Some((name, above)) = names.split_last() else { return self.top_itself(member) };
        if self.is_left_out(member, names)? {
            return Ok(());
        }
        let (parent, path) = self.parent(above, true)?;
        let path = join(&path, name);
        let old = parent.child_if_any(name).at(self.volume, &path)?;
        let place = MemberPlace { parent, name, path, old: old.map(|old| old.attr) };
        if member.kind == EntryType::Directory {
            return self.directory(member, &place);
        }
        if place.old.as_ref().is_some_and(is_dir) {
            return Err(FsError::from(Errno::EISDIR)).at(self.volume, &place.path);
        }
        match kind_of(member.kind) {
            Some(kind) => self.file(member, kind, &place, reader),
            None => self.link(member, &place),
        }
    }

    /// It is nothing that a volume holds.
    fn is_left_out(&self, member: &Member, names: &[&[u8]]) -> Result<bool> {
        if member.kind == EntryType::Link || kind_of(member.kind).is_some() {
            return Ok(false);
        }
        let mut path = self.path.clone();
        names.iter().for_each(|name| push(&mut path, name));
        let kind = member.kind.as_byte();
        if kind == b'M' {
            return Err(self.about(&path, "is left out: it began in another archive"));
        }
        let kind_shown = char::from(kind).escape_default();
        let left_out = format!("is left out: a member of the type {kind_shown}");
        let left_out = self.about(&path, &left_out);
        // The archive's own name is nothing that was packed.
        if !is_label(member.kind) {
            return Err(left_out);
        }
        left_out.print();
        Ok(true)
    }

    fn file<R: Read>(
        &mut self,
        member: &Member,
        kind: FileKind,
        place: &MemberPlace<'_>,
        reader: &mut Reader<R>,
    ) -> Result<()> {
        let (fs, cx, path) = (self.volume.fs(), &self.cx, &place.path);
        if kind == FileKind::File && i64::try_from(member.size).is_err() {
            return Err(FsError::from(Errno::EFBIG)).at(self.volume, path);
        }
        if kind == FileKind::Symlink && member.link.contains(&0) {
            return Err(self.about(path, "is a link to a path with a NUL in it"));
        }
        let (attributes, rdev) = (self.attributes_of(member, path)?, self.rdev(member, path)?);
        let parent = place.parent.ino();
        let mut draft = place.draft(self.volume)?;
        let make = |name: &[u8]| match kind {
            FileKind::Symlink => fs.symlink(cx, parent, name, &member.link),
            kind => fs.mknod(cx, parent, name, kind, 0o600, rdev),
        };
        let made = match kind {
            FileKind::File => draft.make_file(cx, 0o600),
            _ => draft.make(make).map(|made| self.volume.hold(made)),
        };
        let node = made.at(self.volume, path)?;
        // Of an archive that ends in the middle of it there is what it has, unless something better is there.
        draft.is_good();
        if node.is_symlink() {
            self.links.insert(node.ino());
        }
        if node.attr.kind == FileKind::File {
            self.content(member, &node, path, reader)?;
        }
        let last = last(member, node.is_symlink());
        self.attributes((&attributes, &last), node.ino(), path, true)?;
        draft.keep().at(self.volume, path)
    }

    /// What `make` makes has the place's name.
    fn put(
        &self,
        place: &MemberPlace<'_>,
        make: impl FnOnce(&[u8]) -> vfs::Result<Entry>,
    ) -> Result<Node> {
        let mut draft = place.draft(self.volume)?;
        let node = self.volume.hold(draft.make(make).at(self.volume, &place.path)?);
        draft.keep().at(self.volume, &place.path)?;
        Ok(node)
    }

    /// `./` of an archive.
    fn top_itself(&mut self, member: &Member) -> Result<()> {
        if member.kind != EntryType::Directory || self.strip > 0 {
            return Ok(());
        }
        let (path, attributes) = (self.path.clone(), self.attributes_of(member, &self.path)?);
        self.later(member, self.top, &path, attributes, false);
        Ok(())
    }

    /// The directory that these names lead to; those that are missing are made if it `makes` some.
    fn parent(&mut self, names: &[&[u8]], makes: bool) -> Result<(Node, Vec<u8>)> {
        let (fs, mut path) = (self.volume.fs(), self.path.clone());
        let mut here = self.find(&path)?;
        for name in names {
            push(&mut path, name);
            here = match here.child_if_any(name).at(self.volume, &path)? {
                Some(node) if node.is_symlink() => self.find(&path)?,
                Some(node) => node,
                None if !makes => return Err(FsError::from(Errno::ENOENT)).at(self.volume, &path),
                None => {
                    let made = fs.mkdir(&self.cx, here.ino(), name, 0o755);
                    let made = self.volume.hold(made.at(self.volume, &path)?);
                    self.made_above.insert(made.ino());
                    made
                }
            };
            if !here.is_dir() {
                return Err(FsError::from(Errno::ENOTDIR)).at(self.volume, &path);
            }
        }
        Ok((here, path))
    }

    /// Links of the volume are followed, those of the archive are not.
    fn find(&self, path: &[u8]) -> Result<Node> {
        let mut is_own = false;
        let found = find_through(self.volume.fs(), path, true, &mut |link| {
            is_own = self.links.contains(&link.ino());
            if is_own { Err(Errno::ELOOP.into()) } else { Ok(()) }
        });
        match is_own {
            true => {
                Err(self.about(path, "is a symbolic link of the archive itself, or leads to one"))
            }
            false => found.at(self.volume, path),
        }
    }

    fn directory(&mut self, member: &Member, place: &MemberPlace<'_>) -> Result<()> {
        let attributes = self.attributes_of(member, &place.path)?;
        if let Some(old) = place.old.as_ref().filter(|old| is_dir(old)) {
            let made = self.made_above.contains(&old.ino);
            self.later(member, old.ino, &place.path, attributes, made);
            return Ok(());
        }
        let (fs, parent) = (self.volume.fs(), place.parent.ino());
        let node = self.put(place, |name| fs.mkdir(&self.cx, parent, name, 0o700))?;
        self.later(member, node.ino(), &place.path, attributes, true);
        Ok(())
    }

    fn later(
        &mut self,
        member: &Member,
        ino: Ino,
        path: &[u8],
        attributes: Attributes,
        made: bool,
    ) {
        let (path, last) = (path.to_vec(), last(member, false));
        let later = Directory { ino, path, attributes, last, made };
        match self.place_of.entry(ino) {
            hash_map::Entry::Vacant(place) => {
                place.insert(self.directories.len());
                self.directories.push(later);
            }
            // Of several members the last one tells; what was made has inherited all the same.
            hash_map::Entry::Occupied(place) => {
                let before = &mut self.directories[*place.get()];
                *before = Directory { made: made || before.made, ..later };
            }
        }
    }

    fn link(&mut self, member: &Member, place: &MemberPlace<'_>) -> Result<()> {
        let path = &place.path;
        let names = names_of(&member.link)?;
        let names = names.get(self.strip..).unwrap_or_default();
        let Some((last, above)) = names.split_last() else {
            return Err(self.about(path, "is a link to nothing"));
        };
        let (directory, to) = self.parent(above, false)?;
        let to = join(&to, last);
        let node = directory.child(last).at(self.volume, &to)?;
        if place.old.as_ref().is_some_and(|old| old.ino == node.ino()) {
            return Ok(());
        }
        let (fs, parent) = (self.volume.fs(), place.parent.ino());
        drop(self.put(place, |name| fs.link(&self.cx, node.ino(), parent, name))?);
        // From elsewhere it leads elsewhere.
        if node.is_symlink() {
            self.links.insert(node.ino());
        }
        Ok(())
    }

    fn rdev(&self, member: &Member, path: &[u8]) -> Result<u32> {
        if !matches!(member.kind, EntryType::Char | EntryType::Block) {
            return Ok(0);
        }
        let numbers = (member.header.device_major(), member.header.device_minor());
        let (Ok(Some(major)), Ok(Some(minor))) = numbers else {
            return Err(self.about(path, "is a device without numbers"));
        };
        crate::show::device_of(major, minor)
            .ok_or_else(|| self.about(path, "has a device number that Linux does not have"))
    }

    /// Blocks of zeros become holes.
    fn content<R: Read>(
        &self,
        member: &Member,
        node: &Node,
        path: &[u8],
        reader: &mut Reader<R>,
    ) -> Result<()> {
        let spot = FileAt::of(self.volume, node, path);
        let mut buffer = vec![0; usize::try_from(member.size).unwrap_or(BUFFER).clamp(1, BUFFER)];
        let mut written = 0;
        for (start, len) in &member.pieces {
            let (mut at, end) = (*start, start + len);
            while at < end {
                let want = buffer.len().min((end - at) as usize);
                let got = reader.read(&mut buffer[..want])?;
                if got == 0 {
                    return Err(self.about(path, "is shorter than the archive says"));
                }
                for (number, block) in buffer[..got].chunks(4096).enumerate() {
                    if block.iter().any(|b| *b != 0) {
                        let offset = at + (number * 4096) as u64;
                        spot.write(offset, block)?;
                        written = offset + block.len() as u64;
                    }
                }
                at += got as u64;
            }
        }
        if written < member.size {
            spot.set_size(member.size)?;
        }
        Ok(())
    }

    fn attributes_of(&self, member: &Member, path: &[u8]) -> Result<Attributes> {
        let (header, records) = (&member.header, &member.records);
        let of_header = |number: std::io::Result<u64>| number.unwrap_or(0);
        let uid = pax::number(records, "uid").unwrap_or_else(|| of_header(header.uid()));
        let gid = pax::number(records, "gid").unwrap_or_else(|| of_header(header.gid()));
        let (Ok(uid), Ok(gid)) = (u32::try_from(uid), u32::try_from(gid)) else {
            return Err(self.about(path, "has an owner that Linux does not have"));
        };
        let has = |name: &str| records.iter().any(|(key, _)| key.starts_with(name.as_bytes()));
        if has("SCHILY.acl.ace") || has("LIBARCHIVE.xattr.") {
            self.about(path, "attributes in a form that is not understood are left out").print();
        }
        if let Some(wrong) = wrong_attribute(records) {
            return Err(self.about(path, wrong));
        }
        let xattrs = records.iter().filter_map(|(key, value)| {
            let name = pax::xattr_name(key)?;
            Some((name, value.clone()))
        });
        let mut set = Attributes { uid, gid, xattrs: xattrs.collect(), lacks_acl: false };
        self.acls_of(member, path, &mut set);
        Ok(set)
    }

    /// Those that are texts alone; one that is an attribute as well is that.
    fn acls_of(&self, member: &Member, path: &[u8], set: &mut Attributes) {
        let lacks = "its ACL is left out, and its owner alone gets at it";
        for (key, name, lacks) in [
            ("SCHILY.acl.access", vfs::posix_acl::ACCESS, lacks),
            ("SCHILY.acl.default", vfs::posix_acl::DEFAULT, "its default ACL is left out"),
        ] {
            let is_access = name == vfs::posix_acl::ACCESS;
            let may_have = match kind_of(member.kind) {
                None | Some(FileKind::Symlink) => false,
                kind => is_access || kind == Some(FileKind::Dir),
            };
            let has = set.xattrs.iter().any(|(other, _)| other == name);
            let text = pax::get(&member.records, key).filter(|text| !text.is_empty());
            let Some(text) = text.filter(|_| may_have && !has) else { continue };
            match acl::value(text) {
                Some(value) => set.xattrs.push((name.to_vec(), value)),
                None => {
                    set.lacks_acl |= is_access;
                    self.about(path, lacks).print();
                }
            }
        }
    }

    /// Owner, then extended attributes: capabilities do not outlive a change of owner. What was
    /// `made` loses what it inherited. Then the `last` ones.
    fn attributes(
        &self,
        (set, last): (&Attributes, &SetAttr),
        ino: Ino,
        path: &[u8],
        made: bool,
    ) -> Result<()> {
        let fs = self.volume.fs();
        let owner = SetAttr { uid: Some(set.uid), gid: Some(set.gid), ..SetAttr::default() };
        self.set(ino, path, &owner)?;
        if made {
            for name in fs.listxattr(ino).at(self.volume, path)? {
                if !set.xattrs.iter().any(|(other, _)| *other == name) {
                    fs.removexattr(&self.cx, ino, &name).at(self.volume, path)?;
                }
            }
        }
        let lacks_acl = !self.xattrs(&set.xattrs, ino, path)? || set.lacks_acl;
        // The group's permissions beside an ACL are what anybody may have whom it names.
        let perm = last.perm.map(|perm| if lacks_acl { perm & 0o7700 } else { perm });
        self.set(ino, path, &SetAttr { perm, ..*last })
    }

    /// False: an ACL among them is left out.
    fn xattrs(&self, xattrs: &[(Vec<u8>, Vec<u8>)], ino: Ino, path: &[u8]) -> Result<bool> {
        let (fs, mut all) = (self.volume.fs(), true);
        for (name, value) in xattrs {
            match fs.setxattr(&self.cx, ino, name, value, XattrMode::Set) {
                Ok(()) => {}
                Err(FsError::Posix(error)) if cannot_be_had(name, value, error) => {
                    let is_acl = name == vfs::posix_acl::ACCESS;
                    all &= !is_acl;
                    let shut = if is_acl { ", and its owner alone gets at it" } else { "" };
                    let name = String::from_utf8_lossy(name);
                    self.about(path, &format!("attribute {name} is left out{shut}")).print();
                }
                Err(error) => return Err(error).at(self.volume, path),
            }
        }
        Ok(all)
    }

    fn set(&self, ino: Ino, path: &[u8], set: &SetAttr) -> Result<()> {
        self.volume.fs().setattr(&self.cx, ino, set).at(self.volume, path).map(drop)
    }

    fn about(&self, path: &[u8], what: &str) -> Error {
        let image = self.volume.name().display();
        Error::about(format!("{image}:{}", String::from_utf8_lossy(path)), what)
    }
}

/// No volume knows it; or it is an ACL that no item holds: other file systems have longer ones.
fn cannot_be_had(name: &[u8], value: &[u8], error: Errno) -> bool {
    let is_long = vfs::posix_acl::is_acl(name) && value.len() > FITS;
    error == Errno::EOPNOTSUPP || is_long && error == Errno::ENOSPC
}

/// What is wrong with an attribute that no system call would take.
fn wrong_attribute(records: &pax::Records) -> Option<&'static str> {
    records.iter().find_map(|(key, value)| match pax::xattr_name(key)? {
        name if name.contains(&0) => Some("has an attribute with a NUL in its name"),
        _ if value.len() > LONGEST_XATTR => {
            Some("has an attribute that is longer than Linux has them")
        }
        _ => None,
    })
}

fn is_dir(attr: &Attr) -> bool {
    attr.kind == FileKind::Dir
}

/// What of a volume such a member is; `None` for links to members as well.
fn kind_of(kind: EntryType) -> Option<FileKind> {
    Some(match kind {
        EntryType::Regular | EntryType::Continuous => FileKind::File,
        EntryType::Directory => FileKind::Dir,
        EntryType::Char => FileKind::CharDevice,
        EntryType::Block => FileKind::BlockDevice,
        EntryType::Fifo => FileKind::Fifo,
        EntryType::Symlink => FileKind::Symlink,
        _ => return None,
    })
}

/// What is set last: permissions, which ACLs touch, and times.
fn last(member: &Member, is_symlink: bool) -> SetAttr {
    let (header, records) = (&member.header, &member.records);
    // GNU tar has times before 1970 in two's complement, of which these are the last 64 bits.
    let secs = header.mtime().map_or(0, u64::cast_signed);
    let mtime = pax::time(records, "mtime").unwrap_or(vfs::Timestamp { secs, nanos: 0 });
    let perm = header.mode().ok().map(|mode| (mode & 0o7777) as u16);
    SetAttr {
        perm: perm.filter(|_| !is_symlink),
        atime: pax::time(records, "atime").map(SetTime::At),
        mtime: Some(SetTime::At(mtime)),
        ..SetAttr::default()
    }
}

/// The names of a path below the directory.
fn names_of(path: &[u8]) -> Result<Vec<&[u8]>> {
    if path.len() > LONGEST_NAME {
        let begins = String::from_utf8_lossy(&path[..100]).into_owned();
        let what = format!("a name of {} bytes that begins so is refused", path.len());
        return Err(Error::about(begins, what));
    }
    let names = path.split(|b| *b == b'/').filter(|name| !name.is_empty() && *name != b".");
    let names: Vec<&[u8]> = names.collect();
    match names.iter().any(|name| *name == b"..") {
        true => Err(Error::about(String::from_utf8_lossy(path), "leads out of the directory")),
        false => Ok(names),
    }
}
