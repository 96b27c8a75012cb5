//! Extended attributes, and two virtual ones that tell about the mount itself.
//!
//! `spinney.stats` (the engine's counters and ours as JSON) and `spinney.transport` exist on
//! every inode, are not listed and cannot be written.

use super::Dispatcher;
use super::failure::{Answer, Failure};
use super::reply::Out;
use super::request::{Request, split_nul};
use crate::abi::SETXATTR_ACL_KILL_SGID;
use crate::abi::record::*;
use std::borrow::Cow;
use std::fmt::Write;
use vfs::{Context, Errno, Ino, NAME_MAX, SetAttr, Stat, XattrMode};

const VIRTUAL_PREFIX: &[u8] = b"spinney.";
const BOTH: i32 = libc::XATTR_CREATE | libc::XATTR_REPLACE;
/// Room for numbers that grow until the caller asks again: a digit more in each of 250.
const SLACK: usize = 256;

impl Dispatcher {
    pub(super) fn getxattr(&self, request: &Request<'_>, out: &mut Out<'_>) -> Answer<()> {
        let arg: GetxattrIn = request.arg()?;
        let name = xattr_name(request)?;
        let mut value = match name {
            // Numbers grow until the caller comes back with room for what it was told.
            b"spinney.stats" if arg.size == 0 => vec![0; self.stats_json().len() + SLACK],
            b"spinney.stats" => self.stats_json().into_bytes(),
            b"spinney.transport" => self.transport().as_bytes().to_vec(),
            _ => self.fs.getxattr(self.ino(request), name)?,
        };
        self.owners.show_acl(name, &mut value);
        sized(arg.size, &value, out)
    }

    fn stats_json(&self) -> String {
        let mut json = format!("{{\"fuse.transport\":{:?}", self.transport());
        self.counters.write_json(&mut json);
        append_stats(&mut json, &self.fs.stats());
        json.push('}');
        json
    }

    pub(super) fn listxattr(&self, request: &Request<'_>, out: &mut Out<'_>) -> Answer<()> {
        let arg: GetxattrIn = request.arg()?;
        let names = self.fs.listxattr(self.ino(request))?;
        sized(arg.size, &listed(&names), out)
    }

    pub(super) fn setxattr(&self, request: &Request<'_>) -> Answer<()> {
        let arg: SetxattrIn = request.arg()?;
        let name = writable_name(request)?;
        let (_, rest) = split_nul(request.payload)?;
        let value = rest.get(..arg.size as usize).ok_or(Failure::from(Errno::EINVAL))?;
        let mode = match arg.flags as i32 {
            0 => XattrMode::Set,
            libc::XATTR_CREATE => XattrMode::Create,
            libc::XATTR_REPLACE => XattrMode::Replace,
            // It never is there and not there: the kernel looks whether it is there first.
            BOTH => {
                self.fs.getxattr(self.ino(request), name)?;
                return Err(Errno::EEXIST.into());
            }
            _ => return Err(Errno::EINVAL.into()),
        };
        let (cx, ino) = (request.context(0), self.ino(request));
        let mut value = Cow::Borrowed(value);
        if !self.owners.are_as_stored() {
            self.owners.store_acl(name, value.to_mut());
        }
        if arg.setxattr_flags & SETXATTR_ACL_KILL_SGID != 0 {
            // First: where the one fails that comes behind, nobody has a bit beside an ACL that takes it away.
            self.take_set_gid(&cx, ino)?;
        }
        Ok(self.fs.setxattr(&cx, ino, name, &value, mode)?)
    }

    fn take_set_gid(&self, cx: &Context, ino: Ino) -> vfs::Result<()> {
        let perm = self.fs.getattr(ino)?.perm;
        if perm & 0o2000 != 0 {
            // The kernel refetches all attributes after an ACL was set.
            let set = SetAttr { perm: Some(perm & !0o2000), ..Default::default() };
            self.fs.setattr(cx, ino, &set)?;
        }
        Ok(())
    }

    pub(super) fn removexattr(&self, request: &Request<'_>) -> Answer<()> {
        let name = writable_name(request)?;
        Ok(self.fs.removexattr(&request.context(0), self.ino(request), name)?)
    }
}

fn xattr_name<'a>(request: &Request<'a>) -> Answer<&'a [u8]> {
    let (name, _) = split_nul(request.payload)?;
    // xattr(7): a name outside 1..=255 bytes is ERANGE.
    if name.is_empty() || name.len() > NAME_MAX {
        return Err(Errno::ERANGE.into());
    }
    Ok(name)
}

fn writable_name<'a>(request: &Request<'a>) -> Answer<&'a [u8]> {
    let name = xattr_name(request)?;
    if name.starts_with(VIRTUAL_PREFIX) {
        return Err(Errno::EOPNOTSUPP.into());
    }
    Ok(name)
}

/// The protocol of sizes: 0 asks how much there is, too little is ERANGE.
fn sized(size: u32, value: &[u8], out: &mut Out<'_>) -> Answer<()> {
    if size == 0 {
        let size = u32::try_from(value.len()).map_err(|_| Errno::E2BIG)?;
        return out.put(&GetxattrOut { size, padding: 0 });
    }
    if value.len() > size as usize {
        return Err(Errno::ERANGE.into());
    }
    out.bytes(value)
}

/// Counter names come from the program and need no escaping beyond quotes, which
/// `{:?}` gives to ASCII text.
fn append_stats(json: &mut String, stats: &[Stat]) {
    for stat in stats {
        let _ = write!(json, ",{:?}:{}", stat.name, stat.value);
    }
}

/// As a listing has them. One with a NUL in it would be taken for several, and nobody can ask for it.
fn listed(names: &[Vec<u8>]) -> Vec<u8> {
    let mut list = Vec::with_capacity(names.iter().map(|name| name.len() + 1).sum());
    for name in names.iter().filter(|name| !name.contains(&0)) {
        list.extend_from_slice(name);
        list.push(0);
    }
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stats_are_json() {
        let mut json = String::new();
        append_stats(&mut json, &[]);
        assert_eq!(json, "");
        let stats = [Stat { name: "a.b", value: 1 }, Stat { name: "c_ns", value: u64::MAX }];
        append_stats(&mut json, &stats);
        assert_eq!(json, r#","a.b":1,"c_ns":18446744073709551615"#);
    }

    #[test]
    fn a_name_with_a_nul_in_it_is_not_listed() {
        let names = [&b"user.a"[..], b"user.b\0", b"user.\0c", b"user.d"].map(<[u8]>::to_vec);
        assert_eq!(listed(&names), b"user.a\0user.d\0");
    }

    #[test]
    fn sizes_follow_the_protocol() {
        let mut buf = [0u8; 64];
        let mut out = Out::new(&mut buf);
        sized(0, b"value", &mut out).unwrap();
        assert_eq!(out.len(), 8);
        assert_eq!(buf[0], 5);
        let mut out = Out::new(&mut buf);
        assert_eq!(sized(4, b"value", &mut out).unwrap_err().errno(), libc::ERANGE);
        sized(5, b"value", &mut out).unwrap();
        assert_eq!(&buf[..5], b"value");
    }
}
