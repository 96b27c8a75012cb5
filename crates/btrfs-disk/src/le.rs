//! Fixed-size little-endian structs: one line a member, read and written in order.
//!
//! Invariant: the sum of the members' sizes equals the size named in brackets; a unit
//! test of each struct's user would not compile or would fail otherwise (asserted in
//! `read` and `write` by constant slicing).

use crate::error::Corrupt;

/// A 32-bit length or number of the format as an index into memory.
#[allow(clippy::as_conversions, reason = "no target that this is for has smaller indices")]
pub(crate) const fn index(number: u32) -> usize {
    const { assert!(usize::BITS >= u32::BITS) };
    number as usize
}

/// A length in memory among the format's 64-bit ones.
#[allow(clippy::as_conversions, reason = "no target has longer indices")]
pub(crate) const fn wide(len: usize) -> u64 {
    const { assert!(usize::BITS <= u64::BITS) };
    len as u64
}

/// A length that the format has 16 bits for: of a name or a value, which fit an item.
pub(crate) fn len16(bytes: &[u8]) -> u16 {
    u16::try_from(bytes.len()).expect("names and values fit their items")
}

/// A length or place that the format has 32 bits for: inside a node or the superblock.
pub(crate) fn len32(len: usize) -> u32 {
    u32::try_from(len).expect("nodes are short")
}

/// A struct of the format with one size.
pub trait FixedSize: Sized {
    /// Bytes that it takes, its members without gaps.
    const SIZE: usize;
    /// Name and size of each member, in order: for whoever shows or damages them one by one.
    const MEMBERS: &'static [(&'static str, usize)];
    /// Reads from the first `SIZE` bytes; `Err` if there are fewer.
    fn read(bytes: &[u8]) -> Result<Self, Corrupt>;
    /// Writes into the first `SIZE` bytes of `out`.
    fn write(&self, out: &mut [u8]);
    /// Its bytes.
    fn to_vec(&self) -> Vec<u8> {
        let mut out = vec![0; Self::SIZE];
        self.write(&mut out);
        out
    }
}

/// One member type.
pub(crate) trait Member: Sized {
    const SIZE: usize;
    fn get(bytes: &[u8]) -> Self;
    fn put(&self, out: &mut [u8]);
}

macro_rules! int_members {
    ($($t:ty),*) => {$(
        impl Member for $t {
            const SIZE: usize = size_of::<$t>();
            fn get(bytes: &[u8]) -> Self {
                <$t>::from_le_bytes(bytes[..Self::SIZE].try_into().expect("sized"))
            }
            fn put(&self, out: &mut [u8]) {
                out[..Self::SIZE].copy_from_slice(&self.to_le_bytes());
            }
        }
    )*};
}
int_members!(u8, u16, u32, u64, i64);

impl<const N: usize> Member for [u8; N] {
    const SIZE: usize = N;
    fn get(bytes: &[u8]) -> Self {
        bytes[..N].try_into().expect("sized")
    }
    fn put(&self, out: &mut [u8]) {
        out[..N].copy_from_slice(self);
    }
}

impl Member for crate::Key {
    const SIZE: usize = crate::key::KEY_SIZE;
    fn get(bytes: &[u8]) -> Self {
        crate::Key::read(bytes[..Self::SIZE].try_into().expect("sized"))
    }
    fn put(&self, out: &mut [u8]) {
        out[..Self::SIZE].copy_from_slice(&self.to_bytes());
    }
}

macro_rules! newtype_members {
    ($($t:ident),*) => {$(
        impl Member for crate::$t {
            const SIZE: usize = 8;
            fn get(bytes: &[u8]) -> Self {
                crate::$t(u64::get(bytes))
            }
            fn put(&self, out: &mut [u8]) {
                self.0.put(out);
            }
        }
    )*};
}
newtype_members!(Logical, Generation, TreeId, Physical);

macro_rules! le_struct {
    ($(#[$doc:meta])* pub struct $name:ident[$size:literal] {
        $($(#[$fdoc:meta])* $field:ident: $ty:ty),* $(,)?
    }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub struct $name { $($(#[$fdoc])* pub $field: $ty),* }

        impl Default for $name {
            fn default() -> Self {
                <Self as $crate::le::FixedSize>::read(&[0; $size]).expect("sized")
            }
        }

        impl $crate::le::FixedSize for $name {
            const SIZE: usize = $size;
            const MEMBERS: &'static [(&'static str, usize)] =
                &[$((stringify!($field), <$ty as $crate::le::Member>::SIZE)),*];

            fn read(bytes: &[u8]) -> Result<Self, $crate::error::Corrupt> {
                const _: () = assert!(
                    0 $(+ <$ty as $crate::le::Member>::SIZE)* == $size
                );
                if bytes.len() < $size {
                    return Err($crate::error::Corrupt::new(format!(
                        "{} needs {} bytes, {} are there",
                        stringify!($name), $size, bytes.len()
                    )));
                }
                let mut _at = 0;
                Ok($name { $($field: {
                    let value = <$ty as $crate::le::Member>::get(&bytes[_at..]);
                    _at += <$ty as $crate::le::Member>::SIZE;
                    value
                }),* })
            }

            fn write(&self, out: &mut [u8]) {
                let mut _at = 0;
                $(
                    <$ty as $crate::le::Member>::put(&self.$field, &mut out[_at..]);
                    _at += <$ty as $crate::le::Member>::SIZE;
                )*
            }
        }

        impl $crate::le::Member for $name {
            const SIZE: usize = $size;
            fn get(bytes: &[u8]) -> Self {
                <Self as $crate::le::FixedSize>::read(bytes).expect("sized by the outer struct")
            }
            fn put(&self, out: &mut [u8]) {
                $crate::le::FixedSize::write(self, out);
            }
        }
    };
}
