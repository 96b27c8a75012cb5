//! Whole images: making a fresh volume, and copying trees between it and the host.
//!
//! `mkfs` writes a volume's bytes from nothing; `import_tree` and `export_tree` copy
//! through any [`vfs::FileSystem`] and know nothing of the format below it.

pub mod mkfs;
