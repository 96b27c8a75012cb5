//! A request as both loops deliver it, and the careful reading of its parts.
//!
//! `arg` is the operation's fixed record, `payload` what follows it (names, data).
//! Nothing here trusts lengths: a short record or a missing NUL is EINVAL.

use super::failure::{Answer, Failure};
use super::pages::Origin;
use crate::abi::record::InHeader;
use crate::abi::{Opcode, Wire};
use vfs::{Context, Errno, NAME_MAX};

#[derive(Clone, Copy)]
pub(crate) struct Request<'a> {
    pub header: InHeader,
    pub arg: &'a [u8],
    pub payload: &'a [u8],
    pub origin: Origin,
}

impl<'a> Request<'a> {
    /// Takes a message apart as `/dev/fuse` delivers it.
    pub(crate) fn parse(message: &'a [u8]) -> Option<Request<'a>> {
        let header = InHeader::read(message)?;
        let len = (header.len as usize).min(message.len());
        let rest = message.get(InHeader::SIZE..len)?;
        let arg_len = match Opcode::from_number(header.opcode) {
            Some(op) => op.arg_len(),
            None => 0,
        };
        let (arg, payload) = rest.split_at(arg_len.min(rest.len()));
        Some(Request { header, arg, payload, origin: Origin::Device })
    }

    pub(crate) fn arg<T: Wire>(&self) -> Answer<T> {
        T::read(self.arg).ok_or(Failure::from(Errno::EINVAL))
    }

    /// The payload's only name.
    pub(crate) fn name(&self) -> Answer<&'a [u8]> {
        let (name, _) = split_nul(self.payload)?;
        check_name(name)
    }

    /// The payload's two names.
    pub(crate) fn two_names(&self) -> Answer<(&'a [u8], &'a [u8])> {
        let (first, rest) = split_nul(self.payload)?;
        let (second, _) = split_nul(rest)?;
        Ok((check_name(first)?, check_name(second)?))
    }

    pub(crate) fn context(&self, umask: u32) -> Context {
        Context {
            uid: self.header.uid,
            gid: self.header.gid,
            pid: self.header.pid,
            umask: (umask & 0o777) as u16,
        }
    }
}

/// A C string and what follows it.
pub(super) fn split_nul(bytes: &[u8]) -> Answer<(&[u8], &[u8])> {
    let end = bytes.iter().position(|&b| b == 0).ok_or(Failure::from(Errno::EINVAL))?;
    Ok((&bytes[..end], &bytes[end + 1..]))
}

/// The kernel lets names of up to 1024 bytes (newer ones: a path's length) through.
fn check_name(name: &[u8]) -> Answer<&[u8]> {
    if name.len() > NAME_MAX {
        return Err(Errno::ENAMETOOLONG.into());
    }
    if name.is_empty() || name.contains(&b'/') {
        return Err(Errno::EINVAL.into());
    }
    Ok(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(opcode: Opcode, body: &[u8]) -> Vec<u8> {
        let header = InHeader {
            len: (InHeader::SIZE + body.len()) as u32,
            opcode: opcode.number(),
            ..Default::default()
        };
        let mut bytes = vec![0; InHeader::SIZE];
        header.write(&mut bytes).unwrap();
        bytes.extend_from_slice(body);
        bytes
    }

    #[test]
    fn splits_record_and_names() {
        let bytes = message(Opcode::Rename, b"\x05\0\0\0\0\0\0\0old\0new\0");
        let request = Request::parse(&bytes).unwrap();
        assert_eq!(request.arg::<crate::abi::record::RenameIn>().unwrap().newdir, 5);
        assert_eq!(request.two_names().unwrap(), (&b"old"[..], &b"new"[..]));
    }

    #[test]
    fn refuses_what_is_cut_off() {
        let bytes = message(Opcode::Rename, b"\x05\0\0");
        let request = Request::parse(&bytes).unwrap();
        assert!(request.arg::<crate::abi::record::RenameIn>().is_err());
        assert!(request.two_names().is_err());
        assert!(Request::parse(&bytes[..39]).is_none());
        let mut lying = bytes.clone();
        lying[0] = 200;
        assert!(Request::parse(&lying).is_some());
        lying[0] = 3;
        assert!(Request::parse(&lying).is_none());
    }

    #[test]
    fn long_names_are_too_long() {
        let mut body = vec![b'x'; 255];
        body.push(0);
        assert!(Request::parse(&message(Opcode::Lookup, &body)).unwrap().name().is_ok());
        body.insert(0, b'x');
        let bytes = message(Opcode::Lookup, &body);
        let failure = Request::parse(&bytes).unwrap().name().unwrap_err();
        assert_eq!(failure.errno(), libc::ENAMETOOLONG);
    }
}
