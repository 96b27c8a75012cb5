//! fs-verity through a mount, by the records of the kernel's documentation. The kernel brings salt and
//! signature along behind the record, in the place of its pointers.

use super::wire;
use crate::VerityWish;
use crate::fs::BtrfsFs;
use fs_verity::{MAX_SALT, MAX_SIGNATURE};
use vfs::{Asker, Controlled, Errno, Ino, Result};

const VERSION: u32 = 1;
const RESERVED_1: usize = 28;
const RESERVED_2: usize = 40;

/// `None`: it is none of these.
pub(super) fn control(
    fs: &BtrfsFs,
    asker: &dyn Asker,
    ino: Ino,
    command: u32,
    input: &[u8],
) -> Option<Result<Controlled>> {
    match command {
        wire::ENABLE_VERITY => Some(enable(fs, asker, ino, input)),
        wire::MEASURE_VERITY => Some(measure(fs, ino, input)),
        _ => None,
    }
}

fn enable(fs: &BtrfsFs, asker: &dyn Asker, ino: Ino, input: &[u8]) -> Result<Controlled> {
    let wish = read(input)?;
    let caller = super::caller(asker)?;
    // Who may not makes nobody send or forget anything.
    fs.may_enable_verity(&caller, ino, &wish)?;
    // What a program has written by now is to be in what is verified; what comes later is refused.
    asker.fetch(ino)?;
    fs.enable_verity_while(Some(&caller), ino, &wish, &mut || asker.goes_on())?;
    // What was held from then on is sent, refused and forgotten: nobody reads it for what was verified. It is done by now,
    // so neither a signal nor a long wait is an error.
    let _ = asker.fetch(ino);
    Ok(Controlled::default())
}

fn measure(fs: &BtrfsFs, ino: Ino, input: &[u8]) -> Result<Controlled> {
    let room = input.get(2..4).and_then(|bytes| bytes.try_into().ok());
    let room = u16::from_le_bytes(room.ok_or(Errno::EINVAL)?);
    let descriptor = fs.measure_verity(ino)?;
    let digest = descriptor.digest();
    let len = u16::try_from(digest.as_bytes().len()).expect("64 bytes at most");
    if room < len {
        return Err(Errno::EOVERFLOW.into());
    }
    let number = u16::from(descriptor.params.algorithm().number());
    let head = [number.to_le_bytes(), len.to_le_bytes()].concat();
    Ok(Controlled::answer([&head[..], digest.as_bytes()].concat()))
}

/// Errors in the order of the kernel's.
fn read(input: &[u8]) -> Result<VerityWish> {
    let len = wire::len(wire::ENABLE_VERITY);
    let record = input.get(..len).ok_or(Errno::EINVAL)?;
    let number = |at: usize| {
        u32::from_le_bytes(record[at..at + 4].try_into().expect("four bytes of a record"))
    };
    let reserved = number(RESERVED_1) != 0 || record[RESERVED_2..].iter().any(|byte| *byte != 0);
    if number(0) != VERSION || reserved {
        return Err(Errno::EINVAL.into());
    }
    let size = |at| usize::try_from(number(at)).unwrap_or(usize::MAX);
    let (salt, signature) = (size(12), size(24));
    if salt > MAX_SALT || signature > MAX_SIGNATURE {
        return Err(Errno::EMSGSIZE.into());
    }
    let (salt, signature) = (len..len + salt, len + salt..len + salt + signature);
    let salt = input.get(salt).ok_or(Errno::EINVAL)?;
    let signature = input.get(signature).ok_or(Errno::EINVAL)?;
    VerityWish::of(number(4), number(8), salt, signature)
}

/// A question of [`wire::ENABLE_VERITY`], with nothing behind it that is longer than `salt` and the
/// signature: the kernel puts them there, from where `salt_at` and `signature_at` point.
pub fn write_enable(wish: &VerityWish, salt_at: u64, signature_at: u64) -> Vec<u8> {
    let params = &wish.params;
    let numbers = [
        VERSION,
        params.algorithm().number().into(),
        params.block_size(),
        u32::try_from(params.salt().len()).expect("32 bytes at most"),
    ];
    let mut record: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
    record.extend(salt_at.to_le_bytes());
    record.extend(wire::len64(&wish.signature).to_le_bytes());
    record.extend(signature_at.to_le_bytes());
    record.resize(wire::len(wire::ENABLE_VERITY), 0);
    record
}

#[cfg(test)]
mod tests {
    use super::*;
    use fs_verity::{HashAlgorithm, Params};

    fn question(wish: &VerityWish) -> Vec<u8> {
        let record = write_enable(wish, 1 << 40, 1 << 41);
        [&record[..], wish.params.salt(), &wish.signature].concat()
    }

    #[test]
    fn what_is_asked_for_is_what_is_read() {
        for (salt, signature) in [(&b""[..], 0), (b"salt", 0), (&[7; 32], 16128), (b"", 1)] {
            let params = Params::new(HashAlgorithm::Sha512, 1024, salt).expect("allowed");
            let wish = VerityWish { params, signature: vec![9; signature] };
            assert_eq!(read(&question(&wish)).unwrap(), wish);
        }
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let params = Params::new(HashAlgorithm::Sha256, 4096, b"salt").expect("allowed");
        let wish = VerityWish { params, signature: vec![9; 10] };
        let good = question(&wish);
        let odd: &[(usize, u8, i32)] = &[
            (0, 2, libc::EINVAL),
            (4, 3, libc::EINVAL),
            (8, 1, libc::EINVAL),
            (12, 33, libc::EMSGSIZE),
            (12, 32, libc::EINVAL),
            (25, 255, libc::EMSGSIZE),
            (28, 1, libc::EINVAL),
            (127, 1, libc::EINVAL),
        ];
        for (at, byte, errno) in odd {
            let mut bad = good.clone();
            bad[*at] = *byte;
            assert_eq!(read(&bad).unwrap_err().errno(), *errno, "{byte} at {at}");
        }
        for len in 0..good.len() {
            assert!(read(&good[..len]).is_err(), "{len} bytes");
        }
    }
}
