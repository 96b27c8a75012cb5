//! Operation numbers, and how long the fixed record of each is.

use super::record::*;
use super::wire::Wire;

macro_rules! opcodes {
    ($($name:ident = $number:literal, $arg:expr;)*) => {
        /// What a request asks for.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub(crate) enum Opcode { $($name),* }

        impl Opcode {
            pub(crate) const ALL: &'static [Opcode] = &[$(Opcode::$name),*];

            pub(crate) fn from_number(number: u32) -> Option<Opcode> {
                Some(match number { $($number => Opcode::$name,)* _ => return None })
            }
            pub(crate) fn number(self) -> u32 {
                match self { $(Opcode::$name => $number),* }
            }
            /// Bytes of the fixed record that stands before names and data.
            pub(crate) fn arg_len(self) -> usize {
                match self { $(Opcode::$name => $arg),* }
            }
        }
    };
}

opcodes! {
    Lookup = 1, 0;
    Forget = 2, ForgetIn::SIZE;
    Getattr = 3, GetattrIn::SIZE;
    Setattr = 4, SetattrIn::SIZE;
    Readlink = 5, 0;
    Symlink = 6, 0;
    Mknod = 8, MknodIn::SIZE;
    Mkdir = 9, MkdirIn::SIZE;
    Unlink = 10, 0;
    Rmdir = 11, 0;
    Rename = 12, RenameIn::SIZE;
    Link = 13, LinkIn::SIZE;
    Open = 14, OpenIn::SIZE;
    Read = 15, ReadIn::SIZE;
    Write = 16, WriteIn::SIZE;
    Statfs = 17, 0;
    Release = 18, ReleaseIn::SIZE;
    Fsync = 20, FsyncIn::SIZE;
    Setxattr = 21, SetxattrIn::SIZE;
    Getxattr = 22, GetxattrIn::SIZE;
    Listxattr = 23, GetxattrIn::SIZE;
    Removexattr = 24, 0;
    Flush = 25, FlushIn::SIZE;
    Init = 26, 0;
    Opendir = 27, OpenIn::SIZE;
    Readdir = 28, ReadIn::SIZE;
    Releasedir = 29, ReleaseIn::SIZE;
    Fsyncdir = 30, FsyncIn::SIZE;
    Getlk = 31, LkIn::SIZE;
    Setlk = 32, LkIn::SIZE;
    Setlkw = 33, LkIn::SIZE;
    Access = 34, AccessIn::SIZE;
    Create = 35, CreateIn::SIZE;
    Interrupt = 36, InterruptIn::SIZE;
    Bmap = 37, BmapIn::SIZE;
    Destroy = 38, 0;
    Ioctl = 39, IoctlIn::SIZE;
    Poll = 40, PollIn::SIZE;
    NotifyReply = 41, 0;
    BatchForget = 42, BatchForgetIn::SIZE;
    Fallocate = 43, FallocateIn::SIZE;
    Readdirplus = 44, ReadIn::SIZE;
    Rename2 = 45, Rename2In::SIZE;
    Lseek = 46, LseekIn::SIZE;
    CopyFileRange = 47, CopyFileRangeIn::SIZE;
    SetupMapping = 48, 0;
    RemoveMapping = 49, 0;
    Syncfs = 50, SyncfsIn::SIZE;
    Tmpfile = 51, CreateIn::SIZE;
    Statx = 52, StatxIn::SIZE;
    CopyFileRange64 = 53, CopyFileRangeIn::SIZE;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_unambiguous() {
        for &op in Opcode::ALL {
            assert_eq!(Opcode::from_number(op.number()), Some(op));
            assert!(op.arg_len() <= crate::abi::uring_header::OP_LEN);
        }
        assert_eq!(Opcode::from_number(4096), None);
    }
}
