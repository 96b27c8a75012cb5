//! A synthetic source tree: the same directories, names, sizes and text in every run.
//!
//! Shaped after a kernel source: some 8,000 files, most of them a few KiB, few of
//! them large, up to six levels deep, a symbolic link here and there. It is written
//! to a tar file before anything is measured, or unpacked through a `Target`.

use crate::rng::Rng;
use crate::target::{DirId, OpenDir, OpenFile, Target};
use std::ffi::CString;
use std::io::{self, Write};

pub enum Content {
    Dir,
    /// A range of `SourceTree::text`.
    File(std::ops::Range<usize>),
    Link(String),
}

pub struct Node {
    /// Index of the directory it is in, always lower than its own; `None` at the top.
    pub parent: Option<usize>,
    pub name: String,
    /// Relative to the tree's top.
    pub path: String,
    pub content: Content,
}

pub struct SourceTree {
    pub nodes: Vec<Node>,
    text: Vec<u8>,
}

/// Longest path that fits the name field of a tar header with the top directory's name.
const PATH_MAX: usize = 90;
const TOP: &str = "tree";

impl SourceTree {
    pub fn generate(files: usize) -> SourceTree {
        let mut tree = SourceTree { nodes: Vec::new(), text: Vec::new() };
        let mut rng = Rng::new(0x5eed_0001);
        let words: Vec<String> = (0..512).map(|_| word(&mut rng)).collect();
        tree.add(None, TOP.into(), Content::Dir);
        let mut dirs = vec![(0usize, 0u32)];
        for _ in 0..files.div_ceil(16) {
            let (parent, depth) = dirs[rng.below(dirs.len() as u64) as usize];
            let name = format!("{}{}", words[rng.below(512) as usize], tree.nodes.len());
            if depth < 5 && tree.nodes[parent].path.len() + name.len() < PATH_MAX / 2 {
                dirs.push((tree.add(Some(parent), name, Content::Dir), depth + 1));
            }
        }
        for i in 0..files {
            let (parent, _) = dirs[rng.below(dirs.len() as u64) as usize];
            let stem = &words[rng.below(512) as usize];
            let content = if i % 100 == 99 {
                Content::Link(format!("../{stem}.h"))
            } else {
                tree.add_text(&mut rng, &words)
            };
            let suffix = ["c", "h", "txt", "S"][rng.below(4) as usize];
            tree.add(Some(parent), format!("{stem}_{i}.{suffix}"), content);
        }
        tree
    }

    fn add(&mut self, parent: Option<usize>, name: String, content: Content) -> usize {
        let path = match parent {
            Some(p) => format!("{}/{name}", self.nodes[p].path),
            None => name.clone(),
        };
        debug_assert!(path.len() <= PATH_MAX + 10);
        self.nodes.push(Node { parent, name, path, content });
        self.nodes.len() - 1
    }

    /// Text of a size that is small most of the time (half below 6 KiB, mean near 15 KiB).
    fn add_text(&mut self, rng: &mut Rng, words: &[String]) -> Content {
        let octave = 8 + rng.below(5) + rng.below(5);
        let size = ((1 << octave) + rng.below(1 << octave)) as usize;
        let start = self.text.len();
        while self.text.len() < start + size {
            self.text.extend_from_slice(words[rng.below(words.len() as u64) as usize].as_bytes());
            let end = if rng.below(9) == 0 { b'\n' } else { b' ' };
            self.text.push(end);
        }
        self.text.truncate(start + size);
        Content::File(start..start + size)
    }

    fn bytes_of(&self, content: &Content) -> &[u8] {
        match content {
            Content::File(range) => &self.text[range.clone()],
            _ => &[],
        }
    }

    /// Writes the tree as a ustar archive.
    pub fn write_tar(&self, out: &mut dyn Write) -> io::Result<()> {
        for node in &self.nodes {
            let data = self.bytes_of(&node.content);
            out.write_all(&tar_header(node, data.len()))?;
            out.write_all(data)?;
            out.write_all(&[0; 512][..data.len().next_multiple_of(512) - data.len()])?;
        }
        out.write_all(&[0; 1024])
    }

    /// Unpacks the tree below `dir`, in this process.
    pub fn unpack(&self, target: &dyn Target, dir: DirId) -> io::Result<()> {
        let mut open: Vec<Option<OpenDir<'_>>> = Vec::with_capacity(self.nodes.len());
        for node in &self.nodes {
            let parent = node.parent.and_then(|p| open[p].as_ref()).map_or(dir, |d| d.id);
            let name = CString::new(node.name.as_str())?;
            open.push(match &node.content {
                Content::Dir => Some(OpenDir::make(target, parent, &name)?),
                Content::Link(to) => {
                    target.symlink(parent, &name, &CString::new(to.as_str())?)?;
                    None
                }
                Content::File(_) => {
                    let file = OpenFile::create(target, parent, &name)?;
                    file.write_at(0, self.bytes_of(&node.content))?;
                    None
                }
            });
        }
        Ok(())
    }
}

fn word(rng: &mut Rng) -> String {
    let syllables =
        ["ba", "cor", "dex", "fi", "gra", "hul", "in", "ko", "lum", "net", "pri", "sys"];
    (0..2 + rng.below(2)).map(|_| syllables[rng.below(12) as usize]).collect()
}

fn tar_header(node: &Node, size: usize) -> [u8; 512] {
    let mut header = [0u8; 512];
    let (mode, kind, link) = match &node.content {
        Content::Dir => (0o755, b'5', ""),
        Content::File(_) => (0o644, b'0', ""),
        Content::Link(to) => (0o777, b'2', to.as_str()),
    };
    let mut put = |at: usize, bytes: &[u8]| header[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, node.path.as_bytes());
    put(100, format!("{mode:07o}").as_bytes());
    put(108, b"0000000");
    put(116, b"0000000");
    put(124, format!("{size:011o}").as_bytes());
    put(136, format!("{:011o}", 1_600_000_000).as_bytes());
    put(148, b"        ");
    put(156, &[kind]);
    put(157, link.as_bytes());
    put(257, b"ustar\x0000");
    let sum: u32 = header.iter().map(|b| u32::from(*b)).sum();
    header[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
    header
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn the_tree_is_the_same_every_time_and_has_the_files_asked_for() {
        let (a, b) = (SourceTree::generate(500), SourceTree::generate(500));
        assert_eq!(a.text, b.text);
        let paths: BTreeSet<&str> = a.nodes.iter().map(|n| n.path.as_str()).collect();
        assert_eq!(paths.len(), a.nodes.len(), "paths are unique");
        assert!(paths.iter().all(|p| p.len() < 100), "fit a tar header");
        let files = a.nodes.iter().filter(|n| !matches!(n.content, Content::Dir)).count();
        assert_eq!(files, 500);
        let mean = a.text.len() / 495;
        assert!((4096..20480).contains(&mean), "mean size {mean}");
    }

    #[test]
    fn tar_unpacks_what_unpack_makes() {
        let scratch = crate::target::tests::Scratch::new("tar");
        let tree = SourceTree::generate(120);
        let tar = scratch.0.join("t.tar");
        tree.write_tar(&mut std::fs::File::create(&tar).unwrap()).unwrap();
        let (by_tar, by_us) = (scratch.0.join("a"), scratch.0.join("b"));
        std::fs::create_dir(&by_tar).unwrap();
        std::fs::create_dir(&by_us).unwrap();
        let run = |program: &str, args: &[&std::path::Path]| {
            assert!(std::process::Command::new(program).args(args).status().unwrap().success());
        };
        run("tar", &["-xf".as_ref(), &tar, "-C".as_ref(), &by_tar]);
        let target = crate::target::PosixDir::open(&by_us).unwrap();
        tree.unpack(&target, target.root()).unwrap();
        run("diff", &["-r".as_ref(), "--no-dereference".as_ref(), &by_tar, &by_us]);
    }
}
