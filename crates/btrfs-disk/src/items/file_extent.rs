//! EXTENT_DATA: what a range of a file is made of.

use crate::error::Corrupt;
use crate::le::FixedSize;
use crate::{Generation, Logical};

/// Bytes of an EXTENT_DATA item in front of inline content.
pub const FILE_EXTENT_INLINE_HEADER: usize = 21;

/// How a file has a range of its content; the discriminant is the format's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
// Exhaustive: the format has these, and each reads in its own way; another one is refused at the
// gate.
pub enum FileExtentKind {
    /// The content is in the item.
    Inline = 0,
    /// The content is in an extent, or it is a hole.
    Regular = 1,
    /// The extent is reserved and reads as zeros.
    Prealloc = 2,
}

impl FileExtentKind {
    #[allow(clippy::as_conversions, reason = "the discriminant is the byte")]
    const fn byte(self) -> u8 {
        self as u8
    }
}

/// How an extent's content is compressed; the discriminant is the format's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
// Exhaustive: the format has these, and each is decoded in its own way; another one is refused at
// the gate.
pub enum Compression {
    /// Not at all.
    None = 0,
    /// One zlib stream.
    Zlib = 1,
    /// Segments of LZO1X, a sector of content each, with their lengths in front.
    Lzo = 2,
    /// One Zstd frame.
    Zstd = 3,
}

impl Compression {
    fn to_disk(self) -> u8 {
        match self {
            Compression::None => 0,
            Compression::Zlib => 1,
            Compression::Lzo => 2,
            Compression::Zstd => 3,
        }
    }

    /// What the format's number means; `Corrupt` if it means nothing.
    pub fn from_disk(value: u8) -> Result<Compression, Corrupt> {
        Ok(match value {
            0 => Compression::None,
            1 => Compression::Zlib,
            2 => Compression::Lzo,
            3 => Compression::Zstd,
            other => return Err(Corrupt::new(format!("compression type {other}"))),
        })
    }
}

le_struct! {
    /// All members of a regular or preallocated extent.
    pub struct FileExtentFields[53] {
        /// The commit that made the extent.
        generation: u64,
        /// Bytes of the whole extent when decompressed.
        ram_bytes: u64,
        /// [`Compression`] as its number.
        compression: u8,
        /// Nobody's yet: 0.
        encryption: u8,
        /// Nobody's yet: 0.
        other_encoding: u16,
        /// [`FileExtentKind`] as its number.
        kind: u8,
        /// 0: a hole.
        disk_bytenr: Logical,
        /// Bytes of the whole extent on disk, as it is compressed.
        disk_num_bytes: u64,
        /// Where in the (decompressed) extent this range begins.
        offset: u64,
        /// Bytes of the file that the item stands for.
        num_bytes: u64,
    }
}

impl FileExtentFields {
    /// All of an extent that has no stream of a compression in it: `len` bytes at `logical`, which
    /// are content ([`FileExtentKind::Regular`]) or reserved for it ([`FileExtentKind::Prealloc`]).
    pub fn stored(
        generation: Generation,
        kind: FileExtentKind,
        logical: Logical,
        len: u64,
    ) -> Self {
        FileExtentFields {
            generation: generation.0,
            ram_bytes: len,
            kind: kind.byte(),
            disk_bytenr: logical,
            disk_num_bytes: len,
            num_bytes: len,
            ..FileExtentFields::default()
        }
    }

    /// An explicit hole of `len` bytes.
    pub fn hole(generation: Generation, len: u64) -> Self {
        let nowhere =
            FileExtentFields::stored(generation, FileExtentKind::Regular, Logical(0), len);
        FileExtentFields { disk_num_bytes: 0, ..nowhere }
    }
}

/// An EXTENT_DATA item, borrowed from its leaf.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
// Exhaustive: an item is one or the other, and no reader may pass one over.
pub enum FileExtent<'a> {
    /// The content is in the item.
    Inline {
        /// The commit that made it.
        generation: u64,
        /// Bytes of the content when decompressed.
        ram_bytes: u64,
        /// How `content` is compressed.
        compression: Compression,
        /// The bytes behind the item's header.
        content: &'a [u8],
    },
    /// Regular or preallocated (see `fields.kind`).
    Extent {
        /// Regular or preallocated; the same as in `fields`.
        kind: FileExtentKind,
        /// How the extent is compressed; the same as in `fields`.
        compression: Compression,
        /// The whole item.
        fields: FileExtentFields,
    },
}

impl<'a> FileExtent<'a> {
    /// Reads an item. `Corrupt` where it is too short, of no kind or compression of the format, or
    /// encrypted.
    pub fn parse(data: &'a [u8]) -> Result<FileExtent<'a>, Corrupt> {
        if data.len() < FILE_EXTENT_INLINE_HEADER {
            return Err(Corrupt::new("file extent is cut short"));
        }
        let compression = Compression::from_disk(data[16])?;
        if data[17] != 0 || data[18] != 0 || data[19] != 0 {
            return Err(Corrupt::new("encrypted or otherwise encoded file extent"));
        }
        let word = |at: usize| u64::from_le_bytes(data[at..at + 8].try_into().expect("8 bytes"));
        let kind = match data[20] {
            0 => {
                return Ok(FileExtent::Inline {
                    generation: word(0),
                    ram_bytes: word(8),
                    compression,
                    content: &data[FILE_EXTENT_INLINE_HEADER..],
                });
            }
            1 => FileExtentKind::Regular,
            2 => FileExtentKind::Prealloc,
            other => return Err(Corrupt::new(format!("file extent of kind {other}"))),
        };
        let fields = FileExtentFields::read(data)?;
        Ok(FileExtent::Extent { kind, compression, fields })
    }

    /// Bytes of the file that the item stands for: inline content takes whole sectors, none if it
    /// is empty.
    pub fn file_len(&self, sector: u64) -> u64 {
        match self {
            FileExtent::Inline { ram_bytes, .. } => {
                ram_bytes.checked_next_multiple_of(sector).unwrap_or(u64::MAX)
            }
            FileExtent::Extent { fields, .. } => fields.num_bytes,
        }
    }

    /// Where the item's part of the file ends that begins at `start`, its key's offset.
    pub fn file_end(&self, start: u64, sector: u64) -> u64 {
        start.saturating_add(self.file_len(sector))
    }

    /// The data of its item.
    pub fn to_vec(&self) -> Vec<u8> {
        match self {
            FileExtent::Extent { fields, .. } => fields.to_vec(),
            FileExtent::Inline { generation, ram_bytes, compression, content } => {
                let mut out = Vec::with_capacity(FILE_EXTENT_INLINE_HEADER + content.len());
                out.extend_from_slice(&generation.to_le_bytes());
                out.extend_from_slice(&ram_bytes.to_le_bytes());
                out.extend_from_slice(&[compression.to_disk(), 0, 0, 0, 0]);
                out.extend_from_slice(content);
                out
            }
        }
    }
}
