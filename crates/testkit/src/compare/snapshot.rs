//! A tree read through `FileSystem`: of an engine, of the model, or, by way of
//! `PosixFs`, of a mounted directory.
//!
//! Content is kept as one hash per 4 KiB block, which is enough to tell where two files
//! differ without holding them.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use vfs::{Attr, Context, Entry, Errno, FileKind, FileSystem, Ino, Result};

use crate::ops::{Path, StatView, hash};
use crate::posix_ops::PosixFs;

const BLOCK: usize = 4096;
const READ_SIZE: usize = 1 << 20;

/// Length and block hashes of a file's bytes. Blocks of zeros hash to 0, so holes and
/// written zeros are the same.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Content {
    pub len: u64,
    /// All names of an inode share them.
    pub blocks: Arc<Vec<u64>>,
}

impl Content {
    pub fn of(bytes: &[u8]) -> Content {
        let blocks = bytes.chunks(BLOCK).map(block_hash).collect();
        Content { len: bytes.len() as u64, blocks: Arc::new(blocks) }
    }

    /// Offset of the first block that differs.
    pub fn first_difference(&self, other: &Content) -> Option<u64> {
        let pairs = self.blocks.iter().zip(other.blocks.iter());
        let common = self.blocks.len().min(other.blocks.len());
        match pairs.into_iter().position(|(a, b)| a != b) {
            Some(block) => Some((block * BLOCK) as u64),
            None if self == other => None,
            None => Some((common * BLOCK) as u64),
        }
    }
}

fn block_hash(block: &[u8]) -> u64 {
    if block.iter().all(|&byte| byte == 0) {
        return 0;
    }
    let words = block.chunks_exact(8);
    let rest = words.remainder();
    let start = hash(rest) ^ block.len() as u64;
    let value = words.fold(start, |hash, word| {
        let word = u64::from_le_bytes(word.try_into().unwrap_or_default());
        (hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29)
    });
    value.max(1)
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NodeView {
    pub attr: Attr,
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// `FS_IOC_GETFLAGS` of files and directories, where the file system has them.
    pub flags: Option<u32>,
    pub content: Option<Content>,
    pub target: Option<Vec<u8>>,
    /// The first path (in order) of this inode; its own for most.
    pub first_path: Path,
}

impl NodeView {
    pub fn stat(&self) -> StatView {
        StatView::of(&self.attr)
    }
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TreeSnapshot {
    pub nodes: BTreeMap<Path, NodeView>,
}

const CX: Context = Context { uid: 0, gid: 0, pid: 0, umask: 0 };

impl TreeSnapshot {
    pub fn of(fs: &dyn FileSystem) -> Result<TreeSnapshot> {
        TreeSnapshot::below(fs, fs.root())
    }

    /// The tree below a directory, which the caller holds a reference on.
    pub fn below(fs: &dyn FileSystem, root: Ino) -> Result<TreeSnapshot> {
        let (nodes, first_paths, contents) = Default::default();
        let mut reader = Reader { fs, nodes, first_paths, contents, buf: vec![0; READ_SIZE] };
        let root = fs.getattr(root)?;
        reader.node(Path::default(), &root)?;
        Ok(TreeSnapshot { nodes: reader.nodes })
    }

    /// The tree below a directory of this machine, e.g. a mount point.
    pub fn of_dir(path: &std::path::Path) -> Result<TreeSnapshot> {
        TreeSnapshot::of(&PosixFs::open(path)?)
    }

    /// What is at a path.
    pub fn node(&self, path: &str) -> Option<&NodeView> {
        self.nodes.get(&Path::new(path))
    }
}

impl TreeSnapshot {
    /// What cannot be in a whole btrfs volume that nobody changes: link counts that
    /// differ from the number of names, directories whose size does not follow from
    /// their names.
    pub fn contradictions(&self) -> Vec<String> {
        let mut names: HashMap<&Path, u32> = HashMap::new();
        let mut name_bytes: HashMap<Path, u64> = HashMap::new();
        for (path, node) in &self.nodes {
            let (parent, name) = path.split();
            *names.entry(&node.first_path).or_default() += 1;
            if *path != Path::default() {
                *name_bytes.entry(parent).or_default() += name.len() as u64;
            }
        }
        let mut wrong = Vec::new();
        for (path, node) in &self.nodes {
            let (links, found) = (node.attr.nlink, names[&node.first_path]);
            if links != found {
                wrong.push(format!("{path:?} has {links} links but {found} names"));
            }
            let size = 2 * name_bytes.get(path).copied().unwrap_or_default();
            if node.attr.kind == FileKind::Dir && node.attr.size != size {
                wrong.push(format!("{path:?} has size {} but should have {size}", node.attr.size));
            }
        }
        wrong
    }
}

/// Shows `see` each name below a directory, which the caller holds a reference on, as (directory, name,
/// what it stands for). Of a tree of millions of names it holds those of the directories on the way.
pub fn walk(
    fs: &dyn FileSystem,
    top: Ino,
    see: &mut dyn FnMut(Ino, &[u8], &NodeView),
) -> Result<()> {
    let (nodes, first_paths, contents) = Default::default();
    let mut reader = Reader { fs, nodes, first_paths, contents, buf: vec![0; READ_SIZE] };
    walk_in(&mut reader, top, see)
}

fn walk_in(
    reader: &mut Reader<'_>,
    dir: Ino,
    see: &mut dyn FnMut(Ino, &[u8], &NodeView),
) -> Result<()> {
    let fs = reader.fs;
    for (name, ..) in reader.names(dir)? {
        let attr = fs.lookup(&CX, dir, &name)?.attr;
        let view = reader.view(&attr, Path::default());
        let below = view.and_then(|view| {
            see(dir, &name, &view);
            if attr.kind == FileKind::Dir { walk_in(reader, attr.ino, see) } else { Ok(()) }
        });
        fs.forget(attr.ino, 1);
        below?;
    }
    Ok(())
}

/// What an inode is, which the caller holds a reference on.
pub fn view(fs: &dyn FileSystem, ino: Ino) -> Result<NodeView> {
    let (nodes, first_paths, contents) = Default::default();
    let mut reader = Reader { fs, nodes, first_paths, contents, buf: vec![0; READ_SIZE] };
    reader.view(&fs.getattr(ino)?, Path::default())
}

struct Reader<'a> {
    fs: &'a dyn FileSystem,
    nodes: BTreeMap<Path, NodeView>,
    first_paths: HashMap<Ino, Path>,
    /// Of files with several names.
    contents: HashMap<Ino, Content>,
    /// What is read: one for all files, of which most are small.
    buf: Vec<u8>,
}

/// "There is none" instead of an error, where the kind of file or the file system has
/// no such thing.
fn optional<T>(result: Result<T>) -> Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if [libc::ENOTTY, libc::EOPNOTSUPP].contains(&error.errno()) => Ok(None),
        Err(error) => Err(error),
    }
}

impl Reader<'_> {
    fn node(&mut self, path: Path, attr: &Attr) -> Result<()> {
        let ino = attr.ino;
        let first_path = self.first_paths.entry(ino).or_insert_with(|| path.clone()).clone();
        let view = self.view(attr, first_path)?;
        self.nodes.insert(path.clone(), view);
        if attr.kind == FileKind::Dir { self.children(&path, ino) } else { Ok(()) }
    }

    fn view(&mut self, attr: &Attr, first_path: Path) -> Result<NodeView> {
        let (fs, ino) = (self.fs, attr.ino);
        let with_flags = matches!(attr.kind, FileKind::File | FileKind::Dir);
        Ok(NodeView {
            attr: *attr,
            xattrs: self.xattrs(ino)?,
            flags: if with_flags { optional(fs.flags(ino))? } else { None },
            content: match attr.kind {
                FileKind::File => Some(self.content_once(attr)?),
                _ => None,
            },
            target: match attr.kind {
                FileKind::Symlink => Some(fs.readlink(ino)?),
                _ => None,
            },
            first_path,
        })
    }

    fn xattrs(&self, ino: Ino) -> Result<BTreeMap<Vec<u8>, Vec<u8>>> {
        let mut xattrs = BTreeMap::new();
        for name in optional(self.fs.listxattr(ino))?.unwrap_or_default() {
            let value = self.fs.getxattr(ino, &name)?;
            xattrs.insert(name, value);
        }
        Ok(xattrs)
    }

    fn content_once(&mut self, attr: &Attr) -> Result<Content> {
        if let Some(known) = self.contents.get(&attr.ino) {
            return Ok(known.clone());
        }
        let content = self.content(attr.ino)?;
        if attr.nlink > 1 {
            self.contents.insert(attr.ino, content.clone());
        }
        Ok(content)
    }

    fn content(&mut self, ino: Ino) -> Result<Content> {
        let (mut len, mut blocks) = (0, Vec::new());
        loop {
            let read = self.fs.read(ino, len, &mut self.buf)?;
            len += read as u64;
            blocks.extend(self.buf[..read].chunks(BLOCK).map(block_hash));
            if read < READ_SIZE {
                return Ok(Content { len, blocks: Arc::new(blocks) });
            }
        }
    }

    /// In order, so that the first path of a hard link is the same everywhere.
    fn names(&self, dir: Ino) -> Result<Vec<(Vec<u8>, Ino, FileKind)>> {
        let mut names = Vec::new();
        self.fs.readdir(dir, 0, &mut |entry| {
            if !matches!(entry.name, b"." | b"..") {
                names.push((entry.name.to_vec(), entry.ino, entry.kind));
            }
            true
        })?;
        names.sort_by(|a, b| a.0.cmp(&b.0));
        Ok(names)
    }

    fn children(&mut self, path: &Path, dir: Ino) -> Result<()> {
        for (name, ino, kind) in self.names(dir)? {
            let entry = self.fs.lookup(&CX, dir, &name)?;
            let result = self.child(path.join(&name), entry, ino, kind);
            self.fs.forget(entry.attr.ino, 1);
            result?;
        }
        Ok(())
    }

    fn child(&mut self, path: Path, entry: Entry, ino: Ino, kind: FileKind) -> Result<()> {
        if (entry.attr.ino, entry.attr.kind) != (ino, kind) {
            let what = format!(
                "{path:?}: readdir says {ino:?} {kind:?}, lookup says {:?} {:?}",
                entry.attr.ino, entry.attr.kind
            );
            return Err(vfs::Damage::new(what).into());
        }
        match self.fs.getattr(ino) {
            Ok(attr) => self.node(path, &attr),
            Err(_) => Err(Errno::ESTALE.into()),
        }
    }
}
