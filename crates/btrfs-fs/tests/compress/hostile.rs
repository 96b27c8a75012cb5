//! Compressed extents that somebody made, each with right checksums: content comes back, or an
//! error that says where, and no more memory is taken than an extent may be long.

use blockdev::{BlockDevice, MemDevice};
use btrfs_disk::items::{Compression, FileExtent};
use btrfs_disk::key::kind::{EXTENT_CSUM, EXTENT_DATA};
use btrfs_disk::{Logical, compress};
use btrfs_fs::{BtrfsFs, Compress, Method, Options};
use fuzzing::hostile::base::Base;
use fuzzing::hostile::disk::Layered;
use fuzzing::hostile::leaf::{Leaf, is_leaf};
use std::sync::Arc;
use vfs::{Context, FileKind, FileSystem, FsError, Ino};

const CX: Context = Context { uid: 0, gid: 0, pid: 1, umask: 0o022 };
const LEN: usize = 128 << 10;
const SECTOR: usize = 4096;

fn text(len: usize) -> Vec<u8> {
    (0u64..).flat_map(|i| format!("line {i} of {}\n", i * i).into_bytes()).take(len).collect()
}

fn noise(len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    testkit::ops::Rng::new(7).fill(&mut bytes);
    bytes
}

/// A volume with one extent, and where that is.
struct Volume {
    base: Base,
    ino: Ino,
    kind: Compression,
    extent: Logical,
    stored: usize,
}

impl Volume {
    fn make(method: &str) -> Volume {
        let device = Arc::new(MemDevice::new(128 << 20));
        btrfs_image::mkfs::make(&*device, &Default::default()).expect("mkfs");
        let method = Method::parse(method).expect("a method");
        let compress = Some(Compress { method, force: true });
        let options = Options { background: false, compress, ..Options::default() };
        let fs = BtrfsFs::open_device(device.clone(), options).expect("open");
        let made = fs.mknod(&CX, fs.root(), b"f", FileKind::File, 0o644, 0).expect("create");
        let ino = made.attr.ino;
        fs.write(&CX, ino, 0, &text(LEN), Default::default()).expect("write");
        fs.destroy().expect("close");
        let base = Base::of(device);
        let mut found = None;
        each_item(&base, &*base.device, |_, item| {
            if let Ok(FileExtent::Extent { compression, fields, .. }) = FileExtent::parse(item) {
                found = Some((compression, fields.disk_bytenr, fields.disk_num_bytes as usize));
            }
        });
        let (kind, extent, stored) = found.expect("an extent");
        assert!(kind != Compression::None);
        Volume { base, ino, kind, extent, stored }
    }

    fn stream(&self) -> Vec<u8> {
        let mut stream = vec![0; self.stored];
        let at = self.base.copies(self.extent)[0];
        self.base.device.read_at(at, &mut stream).expect("read");
        stream
    }

    /// The volume with another stream, and right checksums of it.
    fn with(&self, stream: &[u8]) -> Arc<Layered> {
        let mut stream = stream.to_vec();
        stream.resize(self.stored, 0);
        let device = Arc::new(Layered::new(&self.base.device));
        for at in self.base.copies(self.extent) {
            device.write_at(at, &stream).expect("write");
        }
        let csum = self.base.geometry.csum;
        self.change(&device, EXTENT_CSUM, |key, item| {
            for (i, part) in stream.chunks(SECTOR).enumerate() {
                let at = (self.extent.0 - key) as usize / SECTOR + i;
                let size = csum.size();
                item[at * size..][..size].copy_from_slice(&csum.digest(part)[..size]);
            }
        });
        device
    }

    /// Changes the items of one kind, of which all are in one leaf.
    fn change(&self, device: &Layered, kind: u8, mut how: impl FnMut(u64, &mut Vec<u8>)) {
        for node in &self.base.nodes {
            let bytes = self.base.node_bytes(device, node.logical);
            if !is_leaf(&bytes) {
                continue;
            }
            let mut leaf = Leaf::of(&bytes);
            let of_kind = |(key, _): &&mut (btrfs_disk::Key, Vec<u8>)| key.kind == kind;
            let mut changed = false;
            for (key, item) in leaf.items.iter_mut().filter(of_kind) {
                how(key.offset, item);
                changed = true;
            }
            if changed {
                self.base.put_node(device, node.logical, leaf.bytes());
            }
        }
    }

    fn read(&self, device: Arc<Layered>, at: u64, len: usize) -> Result<Vec<u8>, FsError> {
        let options = Options { background: false, read_only: true, ..Options::default() };
        let fs = BtrfsFs::open_device(device, options).expect("open");
        let mut out = vec![0xEE; len];
        let read = fs.read(self.ino, at, &mut out);
        fs.destroy().expect("close");
        read.map(|len| out[..len].to_vec())
    }

    /// Neither a part nor the whole can be had, and it is said of which extent.
    fn refuses(&self, device: &Arc<Layered>, what: &str) {
        for (at, len) in [(0, LEN), (100_000, 500)] {
            match self.read(device.clone(), at, len) {
                Err(error @ FsError::Corrupt(_)) => {
                    let FsError::Corrupt(damage) = &error else { unreachable!() };
                    assert_eq!(error.errno(), libc::EIO, "{what}: {error}");
                    assert_eq!(damage.address, Some(self.extent.0), "{what}: {error}");
                }
                other => panic!("{:?}, {what}: {:?}", self.kind, other.map(|read| read.len())),
            }
        }
    }
}

fn each_item(base: &Base, device: &dyn BlockDevice, mut each: impl FnMut(u64, &[u8])) {
    for node in &base.nodes {
        let bytes = base.node_bytes(device, node.logical);
        if is_leaf(&bytes) {
            let items = Leaf::of(&bytes).items.into_iter();
            items.filter(|(key, _)| key.kind == EXTENT_DATA).for_each(|(k, i)| each(k.offset, &i));
        }
    }
}

#[test]
fn streams_that_are_cut_or_noise_are_refused_with_their_address() {
    for method in ["zlib", "lzo", "zstd"] {
        let volume = Volume::make(method);
        let stream = volume.stream();
        assert!(volume.read(volume.with(&stream), 0, LEN).expect("whole") == text(LEN));
        volume.refuses(&volume.with(&noise(volume.stored)), "noise");
        volume.refuses(&volume.with(&[]), "zeros");
        volume.refuses(&volume.with(&stream[..stream.len() / 3]), "a third");
    }
}

/// What decompresses to more than the extent is long is read as far as the extent goes.
#[test]
fn bombs_take_no_more_than_an_extent() {
    for (method, name) in [("zlib", "zlib"), ("zstd", "zstd"), ("lzo", "lzo")] {
        let volume = Volume::make(method);
        // Each stream of ours holds 128 KiB; the item says that there is less.
        let device = volume.with(&volume.stream());
        volume.change(&device, EXTENT_DATA, |_, item| {
            item[8..16].copy_from_slice(&8192u64.to_le_bytes());
            item[45..53].copy_from_slice(&8192u64.to_le_bytes());
        });
        let read = volume.read(device, 0, LEN).expect("read");
        assert!(read[..8192] == text(8192) && read[8192..].iter().all(|b| *b == 0), "{name}");
    }
    let volume = Volume::make("zstd");
    // Magic, no content size, a window of 2^41 bytes, a block that repeats a byte.
    let bomb = [0x28, 0xb5, 0x2f, 0xfd, 0x00, 31 << 3, 0xfb, 0xff, 0xff, b'x'];
    volume.refuses(&volume.with(&bomb), "a window of terabytes");
}

#[test]
fn what_follows_a_stream_is_ignored() {
    for method in ["zlib", "lzo", "zstd"] {
        let volume = Volume::make(method);
        let (kind, limit) = (volume.kind, volume.stored - SECTOR);
        let short = text(LEN / 4);
        let made = compress::compress(kind, 3, SECTOR, &short, limit).expect("shorter");
        let mut stream = made.clone();
        stream.extend(noise(volume.stored - made.len()));
        let read = volume.read(volume.with(&stream), 0, LEN).expect("read");
        assert!(read[..LEN / 4] == short && read[LEN / 4..].iter().all(|b| *b == 0), "{method}");
    }
}

/// Lengths that no compressed extent has: refused by whoever looks first.
#[test]
fn absurd_lengths_are_refused() {
    for method in ["zlib", "lzo", "zstd"] {
        let volume = Volume::make(method);
        for ram in [(LEN + SECTOR) as u64, 1 << 40, u64::MAX - 4095] {
            let device = volume.with(&volume.stream());
            volume.change(&device, EXTENT_DATA, |_, item| {
                item[8..16].copy_from_slice(&ram.to_le_bytes());
            });
            let read = volume.read(device, 0, LEN);
            assert!(matches!(read, Err(FsError::Corrupt(_))), "{method}: {ram} bytes");
        }
    }
}
