//! Reading and writing the fixed-size records of the protocol without `unsafe`.
//!
//! Every record of the FUSE protocol is explicitly padded, so its bytes are its
//! members one after the other in native byte order. The macro derives size, reader
//! and writer from the member list. Knows nothing of the records' meaning.

/// A value with a fixed number of bytes on the wire.
pub(crate) trait Wire: Sized {
    const SIZE: usize;

    /// Reads from the first `SIZE` bytes; callers have checked the length.
    fn load(bytes: &[u8]) -> Self;

    /// Writes to the first `SIZE` bytes; callers have checked the length.
    fn store(&self, bytes: &mut [u8]);

    /// Reads from the start of `bytes`, or nothing if they are too few.
    fn read(bytes: &[u8]) -> Option<Self> {
        (bytes.len() >= Self::SIZE).then(|| Self::load(bytes))
    }

    /// Writes to the start of `bytes`; the bytes used, or nothing if they are too few.
    fn write(&self, bytes: &mut [u8]) -> Option<usize> {
        (bytes.len() >= Self::SIZE).then(|| {
            self.store(bytes);
            Self::SIZE
        })
    }
}

macro_rules! integer {
    ($($ty:ty),*) => { $(
        impl Wire for $ty {
            const SIZE: usize = size_of::<$ty>();
            #[inline]
            fn load(bytes: &[u8]) -> Self {
                let mut raw = [0u8; size_of::<$ty>()];
                raw.copy_from_slice(&bytes[..size_of::<$ty>()]);
                <$ty>::from_ne_bytes(raw)
            }
            #[inline]
            fn store(&self, bytes: &mut [u8]) {
                bytes[..size_of::<$ty>()].copy_from_slice(&self.to_ne_bytes());
            }
        }
    )* };
}
integer!(u16, u32, u64, i32, i64);

impl<T: Wire + Copy + Default, const N: usize> Wire for [T; N] {
    const SIZE: usize = T::SIZE * N;
    fn load(bytes: &[u8]) -> Self {
        let mut out = [T::default(); N];
        for (slot, chunk) in out.iter_mut().zip(bytes.chunks_exact(T::SIZE)) {
            *slot = T::load(chunk);
        }
        out
    }
    fn store(&self, bytes: &mut [u8]) {
        for (value, chunk) in self.iter().zip(bytes.chunks_exact_mut(T::SIZE)) {
            value.store(chunk);
        }
    }
}

/// Declares records: `wire! { /// doc  pub struct Name { member: type, ... } ... }`.
macro_rules! wire {
    ($($(#[$meta:meta])* pub struct $name:ident { $($field:ident : $ty:ty),* $(,)? })*) => { $(
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub(crate) struct $name { $(pub $field: $ty),* }

        impl $crate::abi::wire::Wire for $name {
            const SIZE: usize = 0 $(+ <$ty as $crate::abi::wire::Wire>::SIZE)*;
            #[inline]
            #[allow(unused_assignments)]
            fn load(bytes: &[u8]) -> Self {
                let bytes = &bytes[..Self::SIZE];
                let mut at = 0;
                $(
                    let $field = <$ty as $crate::abi::wire::Wire>::load(&bytes[at..]);
                    at += <$ty as $crate::abi::wire::Wire>::SIZE;
                )*
                $name { $($field),* }
            }
            #[inline]
            #[allow(unused_assignments)]
            fn store(&self, bytes: &mut [u8]) {
                let bytes = &mut bytes[..Self::SIZE];
                let mut at = 0;
                $(
                    $crate::abi::wire::Wire::store(&self.$field, &mut bytes[at..]);
                    at += <$ty as $crate::abi::wire::Wire>::SIZE;
                )*
            }
        }
    )* };
}
pub(crate) use wire;
