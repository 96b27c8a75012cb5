//! The records of the protocol, member for member.

use super::wire::wire;

wire! {
    pub struct InHeader {
        len: u32, opcode: u32, unique: u64, nodeid: u64,
        uid: u32, gid: u32, pid: u32, total_extlen: u16, padding: u16,
    }
    pub struct OutHeader { len: u32, error: i32, unique: u64 }

    /// Attributes as every reply but STATX carries them.
    pub struct Attr {
        ino: u64, size: u64, blocks: u64, atime: u64, mtime: u64, ctime: u64,
        atimensec: u32, mtimensec: u32, ctimensec: u32, mode: u32, nlink: u32,
        uid: u32, gid: u32, rdev: u32, blksize: u32, flags: u32,
    }
    pub struct EntryOut {
        nodeid: u64, generation: u64, entry_valid: u64, attr_valid: u64,
        entry_valid_nsec: u32, attr_valid_nsec: u32, attr: Attr,
    }
    pub struct AttrOut { attr_valid: u64, attr_valid_nsec: u32, dummy: u32, attr: Attr }

    pub struct SxTime { tv_sec: i64, tv_nsec: u32, reserved: i32 }
    pub struct Statx {
        mask: u32, blksize: u32, attributes: u64, nlink: u32, uid: u32, gid: u32,
        mode: u16, spare0: u16, ino: u64, size: u64, blocks: u64, attributes_mask: u64,
        atime: SxTime, btime: SxTime, ctime: SxTime, mtime: SxTime,
        rdev_major: u32, rdev_minor: u32, dev_major: u32, dev_minor: u32, spare2: [u64; 14],
    }
    pub struct StatxIn { getattr_flags: u32, reserved: u32, fh: u64, sx_flags: u32, sx_mask: u32 }
    pub struct StatxOut {
        attr_valid: u64, attr_valid_nsec: u32, flags: u32, spare: [u64; 2], stat: Statx,
    }

    pub struct ForgetIn { nlookup: u64 }
    pub struct ForgetOne { nodeid: u64, nlookup: u64 }
    pub struct BatchForgetIn { count: u32, dummy: u32 }

    pub struct GetattrIn { getattr_flags: u32, dummy: u32, fh: u64 }
    pub struct SetattrIn {
        valid: u32, padding: u32, fh: u64, size: u64, lock_owner: u64,
        atime: u64, mtime: u64, ctime: u64, atimensec: u32, mtimensec: u32, ctimensec: u32,
        mode: u32, unused4: u32, uid: u32, gid: u32, unused5: u32,
    }

    pub struct MknodIn { mode: u32, rdev: u32, umask: u32, padding: u32 }
    pub struct MkdirIn { mode: u32, umask: u32 }
    pub struct RenameIn { newdir: u64 }
    pub struct Rename2In { newdir: u64, flags: u32, padding: u32 }
    pub struct LinkIn { oldnodeid: u64 }
    pub struct CreateIn { flags: u32, mode: u32, umask: u32, open_flags: u32 }
    pub struct OpenIn { flags: u32, open_flags: u32 }
    pub struct OpenOut { fh: u64, open_flags: u32, backing_id: i32 }
    pub struct ReleaseIn { fh: u64, flags: u32, release_flags: u32, lock_owner: u64 }
    pub struct FlushIn { fh: u64, unused: u32, padding: u32, lock_owner: u64 }

    pub struct ReadIn {
        fh: u64, offset: u64, size: u32, read_flags: u32, lock_owner: u64, flags: u32, padding: u32,
    }
    pub struct WriteIn {
        fh: u64, offset: u64, size: u32, write_flags: u32, lock_owner: u64, flags: u32, padding: u32,
    }
    pub struct WriteOut { size: u32, padding: u32 }
    pub struct FsyncIn { fh: u64, fsync_flags: u32, padding: u32 }
    pub struct FallocateIn { fh: u64, offset: u64, length: u64, mode: u32, padding: u32 }
    pub struct LseekIn { fh: u64, offset: u64, whence: u32, padding: u32 }
    pub struct LseekOut { offset: u64 }
    pub struct CopyFileRangeIn {
        fh_in: u64, off_in: u64, nodeid_out: u64, fh_out: u64, off_out: u64, len: u64, flags: u64,
    }
    pub struct CopyFileRangeOut { bytes_copied: u64 }
    pub struct SyncfsIn { padding: u64 }

    pub struct KStatfs {
        blocks: u64, bfree: u64, bavail: u64, files: u64, ffree: u64,
        bsize: u32, namelen: u32, frsize: u32, padding: u32, spare: [u32; 6],
    }

    pub struct SetxattrIn { size: u32, flags: u32, setxattr_flags: u32, padding: u32 }
    pub struct GetxattrIn { size: u32, padding: u32 }
    pub struct GetxattrOut { size: u32, padding: u32 }
    pub struct LkIn { fh: u64, owner: u64, start: u64, end: u64, kind: u32, pid: u32, lk_flags: u32, padding: u32 }
    pub struct AccessIn { mask: u32, padding: u32 }
    pub struct InterruptIn { unique: u64 }
    pub struct BmapIn { block: u64, blocksize: u32, padding: u32 }
    pub struct IoctlIn { fh: u64, flags: u32, cmd: u32, arg: u64, in_size: u32, out_size: u32 }
    pub struct TrimRange { start: u64, len: u64, minlen: u64 }
    pub struct IoctlOut { result: i32, flags: u32, in_iovs: u32, out_iovs: u32 }
    pub struct PollIn { fh: u64, kh: u64, flags: u32, events: u32 }

    /// Older kernels send only the first four members.
    pub struct InitIn {
        major: u32, minor: u32, max_readahead: u32, flags: u32, flags2: u32, unused: [u32; 11],
    }
    pub struct InitOut {
        major: u32, minor: u32, max_readahead: u32, flags: u32,
        max_background: u16, congestion_threshold: u16, max_write: u32, time_gran: u32,
        max_pages: u16, map_alignment: u16, flags2: u32, max_stack_depth: u32,
        request_timeout: u16, unused: [u16; 11],
    }

    /// Followed by the name, its length, file type and padding to eight bytes.
    pub struct Dirent { ino: u64, off: u64, namelen: u32, kind: u32 }

    pub struct NotifyInvalInode { nodeid: u64, off: i64, len: i64 }
    /// Followed by the name and a NUL.
    pub struct NotifyInvalEntry { parent: u64, namelen: u32, flags: u32 }
    /// Followed by the bytes.
    pub struct NotifyStore { nodeid: u64, offset: u64, size: u32, padding: u32 }

    pub struct UringEntInOut { flags: u64, commit_id: u64, payload_sz: u32, padding: u32, reserved: u64 }
    pub struct UringCmdReq { flags: u64, commit_id: u64, qid: u16, padding: [u16; 3] }

    /// `struct fsxattr` of FS_IOC_FSGETXATTR.
    pub struct FsXattr {
        xflags: u32, extsize: u32, nextents: u32, projid: u32, cowextsize: u32, pad: [u32; 2],
    }
}

#[cfg(test)]
mod tests {
    use super::super::Wire;
    use super::*;

    #[test]
    fn sizes_are_those_of_the_kernel_interface() {
        assert_eq!(InHeader::SIZE, 40);
        assert_eq!(OutHeader::SIZE, 16);
        assert_eq!(Attr::SIZE, 88);
        assert_eq!(EntryOut::SIZE, 128);
        assert_eq!(AttrOut::SIZE, 104);
        assert_eq!(Statx::SIZE, 256);
        assert_eq!(StatxOut::SIZE, 288);
        assert_eq!(SetattrIn::SIZE, 88);
        assert_eq!(WriteIn::SIZE, 40);
        assert_eq!(KStatfs::SIZE, 80);
        assert_eq!(InitIn::SIZE, 64);
        assert_eq!(InitOut::SIZE, 64);
        assert_eq!(Dirent::SIZE, 24);
        assert_eq!(CopyFileRangeIn::SIZE, 56);
        assert_eq!(UringEntInOut::SIZE, 32);
        assert_eq!(UringCmdReq::SIZE, 24);
        assert_eq!(FsXattr::SIZE, 28);
        assert_eq!(super::super::uring_header::LEN, 128 + 128 + UringEntInOut::SIZE);
    }

    #[test]
    fn records_survive_the_wire() {
        let header =
            InHeader { len: 40, opcode: 3, unique: 9, nodeid: 1, uid: 5, ..Default::default() };
        let mut bytes = [0u8; 40];
        assert_eq!(header.write(&mut bytes), Some(40));
        assert_eq!(InHeader::read(&bytes), Some(header));
        assert_eq!(InHeader::read(&bytes[..39]), None);
        assert_eq!(header.write(&mut bytes[..39]), None);
    }
}
