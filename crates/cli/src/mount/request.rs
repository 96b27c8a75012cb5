//! What a mount is asked for.

use super::options::MountOptions;
use crate::image::{self, Part};
use spinney::Span;
use std::path::PathBuf;

/// What to mount where. Paths are absolute.
pub struct Request {
    /// By its name, as everybody is told it.
    pub image: PathBuf,
    /// What that was when the mount was asked for.
    pub file: PathBuf,
    pub part: Option<Span>,
    pub point: PathBuf,
    pub options: MountOptions,
    pub foreground: bool,
}

impl Request {
    /// The image by a name that means the same whatever becomes of a partition table.
    pub(super) fn fixed(&self) -> PathBuf {
        let bytes = |Span { start, len }| Part::Bytes { start, most: Some(len) };
        image::named(&self.file, self.part.map_or(Part::All, bytes))
    }
}
