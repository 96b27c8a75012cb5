//! EXTENT_DATA: what a range of a file is made of.

use crate::Logical;
use crate::error::Corrupt;
use crate::le::FixedSize;

/// Bytes of an EXTENT_DATA item in front of inline content.
pub const FILE_EXTENT_INLINE_HEADER: usize = 21;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum FileExtentKind {
    Inline = 0,
    Regular = 1,
    Prealloc = 2,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Compression {
    None = 0,
    Zlib = 1,
    Lzo = 2,
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
        generation: u64,
        /// Bytes of the whole extent when decompressed.
        ram_bytes: u64,
        compression: u8,
        encryption: u8,
        other_encoding: u16,
        kind: u8,
        /// 0: a hole.
        disk_bytenr: Logical,
        disk_num_bytes: u64,
        /// Where in the (decompressed) extent this range begins.
        offset: u64,
        num_bytes: u64,
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FileExtent<'a> {
    Inline {
        generation: u64,
        ram_bytes: u64,
        compression: Compression,
        content: &'a [u8],
    },
    /// Regular or preallocated (see `fields.kind`).
    Extent {
        kind: FileExtentKind,
        compression: Compression,
        fields: FileExtentFields,
    },
}

impl<'a> FileExtent<'a> {
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
