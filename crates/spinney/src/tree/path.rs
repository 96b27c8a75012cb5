//! From paths to nodes, by the rules of POSIX: symbolic links are followed inside the
//! volume (absolute ones from its root), `..` of the root is the root.

use super::node::Node;
use std::collections::VecDeque;
use std::sync::Arc;
use vfs::{Errno, FileSystem, Result};

/// As many links as the kernel follows.
const MAX_LINKS: usize = 40;

/// What `path` stands for; a symbolic link at its end is followed if `follow`.
pub fn find(fs: &Arc<dyn FileSystem>, path: &[u8], follow: bool) -> Result<Node> {
    find_through(fs, path, follow, &mut |_| Ok(()))
}

/// As `find`; every symbolic link on the way is shown to `link` before it is followed, whose error
/// ends the search.
pub fn find_through(
    fs: &Arc<dyn FileSystem>,
    path: &[u8],
    follow: bool,
    link: &mut dyn FnMut(&Node) -> Result<()>,
) -> Result<Node> {
    let follow = follow || path.ends_with(b"/");
    let mut chain = walk(fs, path, follow, link)?;
    let node = chain.pop().ok_or(Errno::ENOENT)?;
    if path.ends_with(b"/") && !node.is_dir() {
        return Err(Errno::ENOTDIR.into());
    }
    Ok(node)
}

/// The directory that the last name of `path` is or would be in, and that name. EINVAL
/// where the path ends with no name: `/`, `.` or `..`.
pub fn find_parent(fs: &Arc<dyn FileSystem>, path: &[u8]) -> Result<(Node, Vec<u8>)> {
    let (parent, name) = split(path).ok_or(Errno::EINVAL)?;
    let parent = find(fs, parent, true)?;
    if !parent.is_dir() {
        return Err(Errno::ENOTDIR.into());
    }
    Ok((parent, name.to_vec()))
}

/// The same for what is no directory: a path with a `/` at its end stands for one, so this is
/// ENOTDIR.
pub fn find_parent_of_file(fs: &Arc<dyn FileSystem>, path: &[u8]) -> Result<(Node, Vec<u8>)> {
    let found = find_parent(fs, path)?;
    if path.ends_with(b"/") { Err(Errno::ENOTDIR.into()) } else { Ok(found) }
}

/// The path before the last name, and the name; `None` for `/`, `.` and `..`.
pub fn split(path: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = path.iter().rposition(|b| *b != b'/')? + 1;
    let start = path[..end].iter().rposition(|b| *b == b'/').map_or(0, |at| at + 1);
    match &path[start..end] {
        b"." | b".." => None,
        name => Some((&path[..start], name)),
    }
}

/// `name` in `directory`, with one `/` between them.
pub fn join(directory: &[u8], name: &[u8]) -> Vec<u8> {
    let mut path = directory.to_vec();
    push(&mut path, name);
    path
}

/// What was the path of a directory becomes that of `name` in it.
pub fn push(path: &mut Vec<u8>, name: &[u8]) {
    if !path.ends_with(b"/") {
        path.push(b'/');
    }
    path.extend_from_slice(name);
}

/// The nodes from the root to the path's end.
fn walk(
    fs: &Arc<dyn FileSystem>,
    path: &[u8],
    follow: bool,
    link: &mut dyn FnMut(&Node) -> Result<()>,
) -> Result<Vec<Node>> {
    let mut chain = vec![Node::root(fs)?];
    let mut left: VecDeque<Vec<u8>> = parts(path).collect();
    let mut links = 0;
    while let Some(name) = left.pop_front() {
        let Some(here) = chain.last() else { return Err(Errno::ENOENT.into()) };
        if !here.is_dir() {
            return Err(Errno::ENOTDIR.into());
        }
        match name.as_slice() {
            b"." => continue,
            b".." => {
                chain.truncate((chain.len() - 1).max(1));
                continue;
            }
            _ => {}
        }
        let node = here.child(&name)?;
        if !node.is_symlink() || (left.is_empty() && !follow) {
            chain.push(node);
            continue;
        }
        link(&node)?;
        links += 1;
        if links > MAX_LINKS {
            return Err(Errno::ELOOP.into());
        }
        let target = fs.readlink(node.ino())?;
        if target.starts_with(b"/") {
            chain.truncate(1);
        }
        left = parts(&target).chain(left).collect();
    }
    Ok(chain)
}

fn parts(path: &[u8]) -> impl Iterator<Item = Vec<u8>> {
    path.split(|b| *b == b'/').filter(|part| !part.is_empty()).map(<[u8]>::to_vec)
}

#[cfg(test)]
mod tests {
    use super::*;
    use testkit::RefFs;
    use vfs::{Context, FileKind};

    const CX: Context = Context { uid: 0, gid: 0, pid: 0, umask: 0 };

    fn filled() -> Arc<dyn FileSystem> {
        let fs: Arc<dyn FileSystem> = Arc::new(RefFs::default());
        let root = fs.root();
        let a = fs.mkdir(&CX, root, b"a", 0o755).unwrap().attr.ino;
        let b = fs.mkdir(&CX, a, b"b", 0o755).unwrap().attr.ino;
        fs.mknod(&CX, b, b"file", FileKind::File, 0o644, 0).unwrap();
        fs.symlink(&CX, root, b"abs", b"/a/b").unwrap();
        fs.symlink(&CX, b, b"rel", b"../b/file").unwrap();
        fs.symlink(&CX, root, b"loop", b"loop").unwrap();
        fs.symlink(&CX, root, b"up", b"../../a").unwrap();
        fs
    }

    #[test]
    fn paths_lead_where_the_kernel_would_go() {
        let fs = filled();
        let ino = |path: &str| find(&fs, path.as_bytes(), true).map(|n| n.ino());
        let file = ino("/a/b/file").unwrap();
        for path in ["/a//b/./file", "/abs/file", "/a/b/rel", "/abs/../b/rel", "/up/b/file"] {
            assert_eq!(ino(path).unwrap(), file, "{path}");
        }
        assert_eq!(ino("/").unwrap(), fs.root());
        assert_eq!(ino("/../..").unwrap(), fs.root());
        assert!(find(&fs, b"/abs", false).unwrap().is_symlink());
        assert!(find(&fs, b"/abs/", false).unwrap().is_dir());
        let errno = |path: &str| ino(path).unwrap_err().errno();
        assert_eq!(errno("/a/none"), libc::ENOENT);
        assert_eq!(errno("/a/b/file/x"), libc::ENOTDIR);
        assert_eq!(errno("/a/b/file/"), libc::ENOTDIR);
        assert_eq!(errno("/a/b/file/."), libc::ENOTDIR);
        assert_eq!(errno("/loop"), libc::ELOOP);
    }

    #[test]
    fn the_last_name_is_split_off() {
        assert_eq!(split(b"/a/b"), Some((&b"/a/"[..], &b"b"[..])));
        assert_eq!(split(b"/a//"), Some((&b"/"[..], &b"a"[..])));
        for nameless in [&b"/"[..], b"", b"/.", b"/a/.."] {
            assert_eq!(split(nameless), None);
        }
        let fs = filled();
        let (parent, name) = find_parent(&fs, b"/abs/new").unwrap();
        assert_eq!(
            (parent.ino(), name),
            (find(&fs, b"/a/b", true).unwrap().ino(), b"new".to_vec())
        );
        assert_eq!(find_parent(&fs, b"/").err().unwrap().errno(), libc::EINVAL);
    }
}
