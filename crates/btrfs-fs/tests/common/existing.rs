//! Random operations on files that are there already, whoever wrote them.

use testkit::compare::TreeSnapshot;
use testkit::ops::{Bytes, Fill, FillKind, Name, Op, Path, Rng, Target};
use vfs::{Context, FallocateMode, FileKind, RenameMode, XattrMode};

const SECTOR: u64 = 4096;

/// `count` operations on the regular files of `tree`.
pub fn operations(seed: u64, tree: &TreeSnapshot, count: usize) -> Vec<Op> {
    let files = |(path, node): (&Path, &testkit::compare::NodeView)| {
        (node.attr.kind == FileKind::File).then(|| (path.clone(), node.attr.size))
    };
    let files: Vec<(Path, u64)> = tree.nodes.iter().filter_map(files).collect();
    let mut maker = Maker { rng: Rng::new(seed), files: &files };
    (0..count).map(|_| maker.op()).collect()
}

struct Maker<'a> {
    rng: Rng,
    files: &'a [(Path, u64)],
}

impl Maker<'_> {
    /// A file, mostly one with content worth changing.
    fn file(&mut self) -> (Path, u64) {
        for _ in 0..6 {
            let (path, size) = self.rng.pick(self.files);
            if *size > 4 * SECTOR {
                return (path.clone(), *size);
            }
        }
        self.rng.pick(self.files).clone()
    }

    fn offset(&mut self, size: u64) -> u64 {
        let at = self.rng.below(size.min(4 << 20) + 3 * SECTOR);
        if self.rng.chance(50) { at / SECTOR * SECTOR } else { at }
    }

    fn len(&mut self) -> u64 {
        let limit = *self.rng.pick(&[100, 5000, 40_000, 300_000]);
        let len = 1 + self.rng.below(limit);
        if self.rng.chance(50) { len.next_multiple_of(SECTOR) } else { len }
    }

    fn fill(&mut self) -> Fill {
        let kind = *self.rng.pick(&[FillKind::Random, FillKind::Text]);
        Fill { seed: self.rng.next_u64(), len: self.len() as usize, kind }
    }

    fn op(&mut self) -> Op {
        let (path, size) = self.file();
        let target = Target::Path(path.clone());
        match self.rng.below(100) {
            0..35 => {
                let (offset, fill) = (self.offset(size), self.fill());
                Op::Write { target, offset, fill, kill_priv: false }
            }
            35..45 => Op::Truncate { target, size: self.offset(size) },
            45..57 => self.allocate(target, size),
            57..72 => self.transfer(target, size),
            72..78 => Op::Unlink { path },
            78..83 => {
                let (dir, name) = path.split();
                let to = dir.join(&[b"new-", &name[..name.len().min(200)]].concat());
                Op::Rename { from: path.clone(), to, mode: RenameMode::Replace }
            }
            83..86 => Op::Link { from: target, to: self.file().0.join(b"x") },
            86..90 => Op::Link { from: target, to: Path([&path.0[..], b"-link"].concat()) },
            90..94 => {
                let name = Name(format!("user.later{}", self.rng.below(5)).into_bytes());
                let fill = Fill { len: self.rng.below(500) as usize, ..self.fill() };
                let value = Bytes(fill.bytes());
                Op::SetXattr { target, name, value, mode: XattrMode::Set }
            }
            94..96 => {
                let (dir, _) = path.split();
                let name = format!("dir{}", self.rng.below(4));
                let cx = Context { umask: 0o022, ..Context::default() };
                Op::Mkdir { cx, path: dir.join(name.as_bytes()), perm: 0o755 }
            }
            96..98 => Op::Fsync { target, datasync: false },
            98 => Op::Sync,
            _ => Op::Chmod { target, perm: 0o640 },
        }
    }

    fn allocate(&mut self, target: Target, size: u64) -> Op {
        let mode = *self.rng.pick(&[
            FallocateMode::PunchHole,
            FallocateMode::PunchHole,
            FallocateMode::Allocate,
            FallocateMode::KeepSize,
            FallocateMode::ZeroRange { keep_size: false },
        ]);
        Op::Fallocate { target, mode, offset: self.offset(size), len: self.len() }
    }

    fn transfer(&mut self, from: Target, size: u64) -> Op {
        let (to, to_size) = self.file();
        let to = Target::Path(to);
        let round = |at: u64| at / SECTOR * SECTOR;
        let from_offset = round(self.offset(size));
        let to_offset = round(self.offset(to_size));
        match self.rng.below(4) {
            0 => Op::CloneRange { from, from_offset: 0, to, to_offset, len: 0 },
            1 => {
                let (from_offset, to_offset) = (from_offset + 7, to_offset + 7);
                Op::CopyRange { from, from_offset, to, to_offset, len: self.len() }
            }
            _ => {
                let len = self.len().next_multiple_of(SECTOR);
                Op::CloneRange { from, from_offset, to, to_offset, len }
            }
        }
    }
}

/// A directory with `count` short files, every other one deleted again, made durable before
/// and after: free space in many small pieces.
pub fn fragmenting(dir: &Path, count: u64) -> Vec<Op> {
    let cx = Context { umask: 0o022, ..Context::default() };
    let name = |number: u64| dir.join(format!("{number}").as_bytes());
    let mut ops = vec![Op::Mkdir { cx, path: dir.clone(), perm: 0o755 }];
    for number in 0..count {
        let (path, kind) = (name(number), FileKind::File);
        ops.push(Op::Mknod { cx, path: path.clone(), kind, perm: 0o644, rdev: 0 });
        let fill = Fill { seed: number, len: 5000, kind: FillKind::Random };
        let target = Target::Path(path);
        ops.push(Op::Write { target, offset: 0, fill, kill_priv: false });
    }
    ops.push(Op::Sync);
    ops.extend((0..count).step_by(2).map(|number| Op::Unlink { path: name(number) }));
    ops.push(Op::Sync);
    ops
}
