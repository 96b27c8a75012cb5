//! Both targets must answer alike, or a comparison compares different things.

use super::*;
use std::sync::Arc;
use testkit::RefFs;

/// A directory of the host for one test, removed at the end.
pub(crate) struct Scratch(pub std::path::PathBuf);

impl Scratch {
    pub fn new(name: &str) -> Scratch {
        let path =
            std::env::temp_dir().join(format!("spinney-bench-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Scratch(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn tour(target: &dyn Target) -> io::Result<()> {
    let dir = OpenDir::make(target, target.root(), c"d")?;
    let file = OpenFile::create(target, dir.id, c"f")?;
    file.write_at(3, b"hello")?;
    file.fsync()?;
    drop(file);
    assert_eq!(target.stat(dir.id, c"f")?, 8);
    let file = OpenFile::open(target, dir.id, c"f", Access::Read)?;
    let mut buf = [9; 8];
    file.read_exact_at(0, &mut buf)?;
    assert_eq!(&buf, b"\0\0\0hello");
    let short = file.read_exact_at(4, &mut buf).unwrap_err();
    assert_eq!(short.kind(), io::ErrorKind::UnexpectedEof);
    drop(file);

    let file = OpenFile::create_or_truncate(target, dir.id, c"g")?;
    file.write_at(0, b"12345")?;
    file.truncate(3)?;
    assert_eq!(target.stat(dir.id, c"g")?, 3);
    drop(file);
    drop(OpenFile::create_or_truncate(target, dir.id, c"g")?);
    assert_eq!(target.stat(dir.id, c"g")?, 0);
    target.unlink(dir.id, c"g")?;

    assert!(OpenFile::create(target, dir.id, c"f").is_err(), "the name is taken");
    assert!(OpenDir::open(target, dir.id, c"f").is_err(), "a file is no directory");
    let missing = target.stat(dir.id, c"none").unwrap_err();
    assert_eq!(missing.raw_os_error(), Some(libc::ENOENT));

    let file = OpenFile::create(target, dir.id, c"old")?;
    file.write_at(0, b"xy")?;
    file.touch()?;
    assert_eq!(file.size()?, 2);
    drop(file);
    target.rename(dir.id, c"old", dir.id, c"new")?;
    assert!(target.stat(dir.id, c"old").is_err());
    drop(OpenFile::create(target, dir.id, c"other")?);
    target.rename(dir.id, c"new", dir.id, c"other")?;
    assert_eq!(target.stat(dir.id, c"other")?, 2, "what was there is replaced");
    target.unlink(dir.id, c"other")?;
    target.stat_fs()?;

    target.symlink(dir.id, c"l", c"f")?;
    target.mkdir(dir.id, c"sub")?;
    let mut seen = Vec::new();
    target.list(dir.id, &mut |name, is_dir| {
        seen.push((name.to_str().unwrap().to_string(), is_dir));
        Ok(())
    })?;
    seen.sort();
    let expected = [("f", false), ("l", false), ("sub", true)];
    assert_eq!(seen, expected.map(|(name, is_dir)| (name.to_string(), is_dir)));
    assert_eq!(target.list_long(dir.id)?, 3);
    assert_eq!(target.list_long(dir.id)?, 3, "a second listing starts anew");

    drop(dir);
    assert!(target.rmdir(target.root(), c"d").is_err(), "not empty");
    remove_children(target, target.root())?;
    assert_eq!(target.list_long(target.root())?, 0);
    target.sync()
}

#[test]
fn a_directory_answers() {
    let scratch = Scratch::new("posix");
    tour(&PosixDir::open(&scratch.0).unwrap()).unwrap();
}

#[test]
fn the_library_answers_the_same_and_every_reference_comes_back() {
    let fs = Arc::new(RefFs::new());
    tour(&VfsTarget::new(fs.clone())).unwrap();
    assert_eq!(fs.held_references(), 0);
}
