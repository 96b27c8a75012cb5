//! A file system with next to no work in it: what is measured over it is the transport.
//!
//! One directory level, files of whole 64 KiB chunks in memory, nothing durable. Only
//! the operations that the measurements use are served.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, RwLock};
use std::time::{Duration, Instant};
use vfs::*;

const ROOT: Ino = Ino(1);
const CHUNK: usize = 64 << 10;
const SHARDS: usize = 64;

struct Node {
    attr: Mutex<Attr>,
    data: RwLock<Vec<Box<[u8]>>>,
}

type Shard<K, V> = Mutex<HashMap<K, V>>;

pub struct NullFs {
    nodes: Vec<Shard<u64, std::sync::Arc<Node>>>,
    names: Vec<Shard<Vec<u8>, u64>>,
    next: AtomicU64,
    /// Work pretended in each read, as of checksums or decompression.
    read_ns_per_kib: u32,
}

fn shard_of(name: &[u8]) -> usize {
    name.iter().fold(7usize, |hash, &byte| hash.wrapping_mul(31).wrapping_add(byte.into())) % SHARDS
}

fn attr(ino: Ino, kind: FileKind, perm: u16) -> Attr {
    let now = Timestamp::now();
    Attr {
        ino,
        kind,
        perm,
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        size: 0,
        blocks: 0,
        blksize: 4096,
        atime: now,
        mtime: now,
        ctime: now,
        btime: now,
        attributes: 0,
    }
}

impl NullFs {
    pub fn new() -> NullFs {
        let fs = NullFs {
            nodes: (0..SHARDS).map(|_| Mutex::default()).collect(),
            names: (0..SHARDS).map(|_| Mutex::default()).collect(),
            next: AtomicU64::new(2),
            read_ns_per_kib: std::env::var("LIMITS_READ_NS_PER_KIB")
                .ok()
                .and_then(|text| text.parse().ok())
                .unwrap_or(0),
        };
        fs.adopt(attr(ROOT, FileKind::Dir, 0o755));
        fs
    }

    fn adopt(&self, attr: Attr) {
        let node = Node { attr: Mutex::new(attr), data: RwLock::default() };
        let shard = attr.ino.0 as usize % SHARDS;
        self.nodes[shard].lock().unwrap().insert(attr.ino.0, node.into());
    }

    fn node(&self, ino: Ino) -> Result<std::sync::Arc<Node>> {
        let shard = self.nodes[ino.0 as usize % SHARDS].lock().unwrap();
        shard.get(&ino.0).cloned().ok_or(Errno::ESTALE.into())
    }

    fn make(&self, name: &[u8], kind: FileKind, perm: u16) -> Result<Entry> {
        let ino = Ino(self.next.fetch_add(1, Ordering::Relaxed));
        let mut names = self.names[shard_of(name)].lock().unwrap();
        if names.contains_key(name) {
            return Err(Errno::EEXIST.into());
        }
        names.insert(name.to_vec(), ino.0);
        drop(names);
        let attr = attr(ino, kind, perm);
        self.adopt(attr);
        Ok(Entry { attr, generation: 0 })
    }
}

impl FileSystem for NullFs {
    fn root(&self) -> Ino {
        ROOT
    }
    fn lookup(&self, _: &Context, _: Ino, name: &[u8]) -> Result<Entry> {
        let ino = self.names[shard_of(name)].lock().unwrap().get(name).copied();
        let node = self.node(Ino(ino.ok_or(Errno::ENOENT)?))?;
        let attr = *node.attr.lock().unwrap();
        Ok(Entry { attr, generation: 0 })
    }
    fn forget(&self, ino: Ino, _: u64) {
        let mut shard = self.nodes[ino.0 as usize % SHARDS].lock().unwrap();
        let gone = shard.get(&ino.0).is_some_and(|node| node.attr.lock().unwrap().nlink == 0);
        let _dropped_unlocked = if gone { shard.remove(&ino.0) } else { None };
        drop(shard);
    }
    fn getattr(&self, ino: Ino) -> Result<Attr> {
        Ok(*self.node(ino)?.attr.lock().unwrap())
    }
    fn setattr(&self, _: &Context, ino: Ino, set: &SetAttr) -> Result<Attr> {
        let node = self.node(ino)?;
        let mut attr = node.attr.lock().unwrap();
        if let Some(size) = set.size {
            attr.size = size;
            node.data.write().unwrap().truncate((size as usize).div_ceil(CHUNK));
        }
        Ok(*attr)
    }
    fn mknod(
        &self,
        _: &Context,
        _: Ino,
        name: &[u8],
        kind: FileKind,
        perm: u16,
        _: u32,
    ) -> Result<Entry> {
        self.make(name, kind, perm)
    }
    fn unlink(&self, _: &Context, _: Ino, name: &[u8]) -> Result<()> {
        let ino = self.names[shard_of(name)].lock().unwrap().remove(name);
        self.node(Ino(ino.ok_or(Errno::ENOENT)?))?.attr.lock().unwrap().nlink = 0;
        Ok(())
    }
    fn read(&self, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let begin = Instant::now();
        let node = self.node(ino)?;
        let size = node.attr.lock().unwrap().size;
        let len = buf.len().min(size.saturating_sub(offset) as usize);
        let data = node.data.read().unwrap();
        let mut done = 0;
        while done < len {
            let at = offset as usize + done;
            let take = (CHUNK - at % CHUNK).min(len - done);
            match data.get(at / CHUNK) {
                Some(chunk) => {
                    buf[done..done + take].copy_from_slice(&chunk[at % CHUNK..at % CHUNK + take])
                }
                None => buf[done..done + take].fill(0),
            }
            done += take;
        }
        let work = Duration::from_nanos(u64::from(self.read_ns_per_kib)) * (len as u32 / 1024);
        while begin.elapsed() < work {
            std::hint::spin_loop();
        }
        Ok(len)
    }
    fn write(
        &self,
        _: &Context,
        ino: Ino,
        offset: u64,
        from: &[u8],
        _: WriteFlags,
    ) -> Result<usize> {
        let node = self.node(ino)?;
        let end = offset + from.len() as u64;
        let mut data = node.data.write().unwrap();
        while data.len() < (end as usize).div_ceil(CHUNK) {
            data.push(vec![0; CHUNK].into());
        }
        let mut done = 0;
        while done < from.len() {
            let at = offset as usize + done;
            let take = (CHUNK - at % CHUNK).min(from.len() - done);
            data[at / CHUNK][at % CHUNK..at % CHUNK + take]
                .copy_from_slice(&from[done..done + take]);
            done += take;
        }
        drop(data);
        let mut attr = node.attr.lock().unwrap();
        attr.size = attr.size.max(end);
        Ok(from.len())
    }
    fn fsync(&self, _: Ino, _: bool) -> Result<()> {
        Ok(())
    }
    fn sync(&self) -> Result<()> {
        Ok(())
    }
    fn getxattr(&self, _: Ino, _: &[u8]) -> Result<Vec<u8>> {
        Err(Errno::ENODATA.into())
    }
    fn listxattr(&self, _: Ino) -> Result<Vec<Vec<u8>>> {
        Ok(Vec::new())
    }
    fn statfs(&self) -> Result<StatFs> {
        Ok(StatFs { block_size: 4096, name_max: 255, ..Default::default() })
    }
    fn destroy(&self) -> Result<()> {
        Ok(())
    }

    fn mkdir(&self, _: &Context, _: Ino, _: &[u8], _: u16) -> Result<Entry> {
        Err(Errno::EOPNOTSUPP.into())
    }
    fn readlink(&self, _: Ino) -> Result<Vec<u8>> {
        Err(Errno::EOPNOTSUPP.into())
    }
    fn symlink(&self, _: &Context, _: Ino, _: &[u8], _: &[u8]) -> Result<Entry> {
        Err(Errno::EOPNOTSUPP.into())
    }
    fn link(&self, _: &Context, _: Ino, _: Ino, _: &[u8]) -> Result<Entry> {
        Err(Errno::EOPNOTSUPP.into())
    }
    fn tmpfile(&self, _: &Context, _: Ino, _: u16) -> Result<Entry> {
        Err(Errno::EOPNOTSUPP.into())
    }
    fn rmdir(&self, _: &Context, _: Ino, _: &[u8]) -> Result<()> {
        Err(Errno::EOPNOTSUPP.into())
    }
    fn rename(&self, _: &Context, _: Ino, _: &[u8], _: Ino, _: &[u8], _: RenameMode) -> Result<()> {
        Err(Errno::EOPNOTSUPP.into())
    }
    fn fallocate(&self, _: &Context, _: Ino, _: FallocateMode, _: u64, _: u64) -> Result<()> {
        Err(Errno::EOPNOTSUPP.into())
    }
    fn copy_range(&self, _: &Context, _: Ino, _: u64, _: Ino, _: u64, _: u64) -> Result<u64> {
        Err(Errno::EOPNOTSUPP.into())
    }
    fn clone_range(&self, _: &Context, _: Ino, _: u64, _: Ino, _: u64, _: u64) -> Result<()> {
        Err(Errno::EOPNOTSUPP.into())
    }
    fn seek(&self, _: Ino, _: u64, _: SeekWhence) -> Result<u64> {
        Err(Errno::EOPNOTSUPP.into())
    }
    fn readdir(&self, _: Ino, _: u64, _: &mut dyn FnMut(&DirEntry<'_>) -> bool) -> Result<()> {
        Ok(())
    }
    fn readdir_plus(
        &self,
        _: Ino,
        _: u64,
        _: &mut dyn FnMut(&DirEntry<'_>, Option<&Entry>) -> bool,
    ) -> Result<()> {
        Ok(())
    }
    fn setxattr(&self, _: &Context, _: Ino, _: &[u8], _: &[u8], _: XattrMode) -> Result<()> {
        Err(Errno::EOPNOTSUPP.into())
    }
    fn removexattr(&self, _: &Context, _: Ino, _: &[u8]) -> Result<()> {
        Err(Errno::ENODATA.into())
    }
}
