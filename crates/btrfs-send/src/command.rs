//! What a stream says: one command after the other.
//!
//! All paths are relative to the subvolume that the last `Subvol` or `Snapshot` named.

/// Seconds since 1970, nanoseconds.
pub type Time = (i64, u32);

/// Which subvolume, as both sides know it: its UUID, and the commit that changed it last.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Origin {
    /// Of the subvolume that it was made from first.
    pub uuid: [u8; 16],
    /// Of the volume that it was sent from.
    pub ctransid: u64,
}

/// What a file is that has no content.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
// Exhaustive: streams have no other.
pub enum Special {
    /// A device; mode and number say which.
    Node,
    /// A pipe with a name.
    Fifo,
    /// A socket.
    Socket,
}

/// Compressed content, as an extent has it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CompressedPiece<'a> {
    /// How much of the file it is.
    pub file_len: u64,
    /// Bytes that come out of it.
    pub unencoded_len: u64,
    /// The first of them that the file has.
    pub unencoded_offset: u64,
    /// 1: zlib, 2: zstd, 3 to 7: LZO with sectors of 4 to 64 KiB.
    pub compression: u32,
    /// Whether it is said that it is not encrypted; the kernel does not, of content that stands
    /// among the structures.
    pub says_plain: bool,
    /// As it is stored.
    pub data: &'a [u8],
}

/// What a file is to be verified by (fs-verity).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Verity<'a> {
    /// The number of the hash.
    pub algorithm: u8,
    /// Bytes that are hashed at a time.
    pub block_size: u32,
    /// What each block has in front.
    pub salt: &'a [u8],
    /// Kept with the file.
    pub signature: &'a [u8],
}

/// One step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // The names are the format's own.
// Exhaustive: who plays or prints a stream must know each command; one passed over is a change
// lost.
pub enum Command<'a> {
    /// A new subvolume; all that follows is in it.
    Subvol {
        path: &'a [u8],
        origin: Origin,
    },
    /// The same as a snapshot of one that the receiver has.
    Snapshot {
        path: &'a [u8],
        origin: Origin,
        parent: Origin,
    },
    MkFile {
        path: &'a [u8],
        ino: u64,
    },
    MkDir {
        path: &'a [u8],
        ino: u64,
    },
    MkSpecial {
        kind: Special,
        path: &'a [u8],
        ino: u64,
        mode: u64,
        rdev: u64,
    },
    Symlink {
        path: &'a [u8],
        ino: u64,
        target: &'a [u8],
    },
    Rename {
        path: &'a [u8],
        to: &'a [u8],
    },
    /// `path` is the new name of what `old` stands for.
    Link {
        path: &'a [u8],
        old: &'a [u8],
    },
    Unlink {
        path: &'a [u8],
    },
    RmDir {
        path: &'a [u8],
    },
    SetXattr {
        path: &'a [u8],
        name: &'a [u8],
        value: &'a [u8],
    },
    RemoveXattr {
        path: &'a [u8],
        name: &'a [u8],
    },
    Write {
        path: &'a [u8],
        offset: u64,
        data: &'a [u8],
    },
    /// The content of another file, which may be in another subvolume.
    Clone {
        path: &'a [u8],
        offset: u64,
        len: u64,
        from: Origin,
        from_path: &'a [u8],
        from_offset: u64,
    },
    Truncate {
        path: &'a [u8],
        size: u64,
    },
    Chmod {
        path: &'a [u8],
        mode: u64,
    },
    Chown {
        path: &'a [u8],
        uid: u64,
        gid: u64,
    },
    /// `otime`, when it was made, is protocol 2's.
    Utimes {
        path: &'a [u8],
        atime: Time,
        mtime: Time,
        ctime: Time,
        otime: Option<Time>,
    },
    /// Content that was left out.
    UpdateExtent {
        path: &'a [u8],
        offset: u64,
        len: u64,
    },
    /// Modes as fallocate(2) has them.
    Fallocate {
        path: &'a [u8],
        mode: u32,
        offset: u64,
        len: u64,
    },
    /// The flags of the inode, as the volume has them.
    FileAttr {
        path: &'a [u8],
        flags: u64,
    },
    EncodedWrite {
        path: &'a [u8],
        offset: u64,
        piece: CompressedPiece<'a>,
    },
    /// Protocol 3's: the file's content is complete, and stays.
    EnableVerity {
        path: &'a [u8],
        verity: Verity<'a>,
    },
    /// The subvolume is complete.
    End,
}
