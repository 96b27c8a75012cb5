//! Images made by the kernel, opened by the engine, judged by `btrfs check` and by the
//! kernel again. Everything is undone on drop, also when a test fails.
#![allow(dead_code)]

pub mod derive;
pub mod edit;
pub mod family;
pub mod random;

use blockdev::FileDevice;
use btrfs_disk::items::RootItem;
use btrfs_disk::key::kind;
use btrfs_disk::{Key, TreeId};
use btrfs_space::backrefs::TreeState;
use btrfs_space::{Space, SpaceRoots};
use btrfs_tree::{NodeStore, TreeRoot, scan};
use btrfs_volume::{OpenOptions, Volume};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use testkit::oracle::KernelMount;

/// Why kernel images cannot be made here.
pub fn missing() -> Option<String> {
    if !Command::new("id").arg("-u").output().is_ok_and(|o| o.stdout.starts_with(b"0\n")) {
        return Some("not root".into());
    }
    for tool in ["mkfs.btrfs", "btrfs", "losetup", "mount"] {
        if Command::new(tool).arg("--version").output().is_err() {
            return Some(format!("no {tool}"));
        }
    }
    let filesystems = std::fs::read_to_string("/proc/filesystems").unwrap_or_default();
    let known = filesystems.contains("btrfs")
        || Command::new("modprobe").arg("btrfs").status().is_ok_and(|s| s.success());
    (!known).then(|| "the kernel has no btrfs".into())
}

/// Runs `test` unless kernel images cannot be made here.
pub fn with_kernel(test: impl FnOnce()) {
    match missing() {
        Some(why) => println!("SKIPPED: {why}"),
        None => test(),
    }
}

fn run(command: &mut Command) -> Output {
    let output = command.output().expect("command starts");
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    output
}

/// An image file, in a directory of its own under /tmp/btrfs-space.
pub struct Image {
    pub path: PathBuf,
}

/// A kernel mount of an image; closed when it is dropped.
pub struct Mounted(Option<KernelMount>);

impl Image {
    /// A fresh file system of `size` (as `truncate` reads it).
    pub fn new(size: &str, mkfs: &[&str]) -> Image {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let base = Path::new("/tmp/btrfs-space").join(format!("{}-{number}", std::process::id()));
        std::fs::create_dir_all(&base).expect("directory");
        let image = Image { path: base.join("image") };
        run(Command::new("truncate").args(["-s", size]).arg(&image.path));
        run(Command::new("mkfs.btrfs").args(["-q", "-f"]).args(mkfs).arg(&image.path));
        image
    }

    pub fn mount(&self, options: &str) -> Mounted {
        Mounted(Some(KernelMount::new(&self.path, options).expect("mount")))
    }

    /// Mounts, runs a shell script in the mount point, unmounts.
    pub fn script(&self, options: &str, script: &str) {
        self.mount(options).script(script);
    }

    /// `btrfs check` finds nothing.
    pub fn check(&self) {
        let mut command = Command::new("btrfs");
        let output =
            run(command.args(["check", "--readonly", "--check-data-csum"]).arg(&self.path));
        let text = [output.stdout, output.stderr].concat();
        let text = String::from_utf8_lossy(&text);
        let bad = ["ERROR", "error:", "mismatch", "warning", "WARNING"];
        assert!(!bad.iter().any(|word| text.contains(word)), "btrfs check: {text}");
    }

    /// A tree as `btrfs inspect-internal dump-tree` shows it.
    pub fn dump(&self, tree: u64) -> String {
        let mut command = Command::new("btrfs");
        command.args(["inspect-internal", "dump-tree", "-t", &tree.to_string()]).arg(&self.path);
        String::from_utf8_lossy(&run(&mut command).stdout).into_owned()
    }

    pub fn open(&self) -> Opened {
        let device = FileDevice::open(&self.path, false, false).expect("image opens");
        let volume = Volume::open(Arc::new(device), OpenOptions::default()).expect("volume opens");
        assert_eq!(volume.read_only_reason(), None);
        let volume = Arc::new(volume);
        let store = NodeStore::new(Arc::clone(&volume), 32 << 20);
        Opened { volume, store }
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        if let Some(base) = self.path.parent() {
            let _ = std::fs::remove_dir_all(base);
        }
    }
}

impl Mounted {
    pub fn mount_point(&self) -> &Path {
        self.0.as_ref().map_or(Path::new(""), KernelMount::path)
    }

    pub fn script(&self, script: &str) -> String {
        let mut command = Command::new("bash");
        let output = run(command.args(["-euc", script]).current_dir(self.mount_point()));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Reads everything back with checksums.
    pub fn scrub(&self) {
        let words = format!("{} start -B {}", testkit::oracle::SCRUB, self.mount_point().display());
        let out = run(Command::new("sh").args(["-c", &words]));
        let text = String::from_utf8_lossy(&out.stdout);
        assert!(text.contains("no errors found"), "scrub: {text}");
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let ended = self.0.take().map_or(Ok(()), KernelMount::unmount);
        if !std::thread::panicking() {
            ended.expect("unmounted");
        }
    }
}

/// An image opened by the engine.
pub struct Opened {
    pub volume: Arc<Volume>,
    pub store: NodeStore,
}

impl Opened {
    pub fn root_tree(&self) -> TreeRoot {
        let fields = self.volume.superblock().fields;
        TreeRoot {
            id: TreeId::ROOT,
            logical: fields.root,
            generation: fields.generation,
            level: fields.root_level,
        }
    }

    pub fn chunk_tree(&self) -> TreeRoot {
        let fields = self.volume.superblock().fields;
        TreeRoot {
            id: TreeId::CHUNK,
            logical: fields.chunk_root,
            generation: fields.chunk_root_generation,
            level: fields.chunk_root_level,
        }
    }

    /// All that there are.
    pub fn states(&self) -> BTreeMap<TreeId, TreeState> {
        let top = [self.root_tree(), self.chunk_tree()].map(TreeState::top);
        let named = self.trees().into_iter().map(|(_, item, root)| TreeState::of(root, &item));
        named.chain(top).map(|tree| (tree.root.id, tree)).collect()
    }

    /// All trees that the root tree names.
    pub fn trees(&self) -> Vec<(Key, RootItem, TreeRoot)> {
        let mut out = Vec::new();
        for item in scan(&self.store, &self.root_tree(), Key::MIN..=Key::MAX) {
            let item = item.expect("root tree");
            if item.key().kind == kind::ROOT_ITEM {
                let root = RootItem::parse(item.data()).expect("root item");
                let id = TreeId(item.key().objectid);
                let (logical, generation) = (root.bytenr, root.generation);
                let level = root.level;
                out.push((item.key(), root, TreeRoot { id, logical, generation, level }));
            }
        }
        out
    }

    pub fn tree(&self, id: TreeId) -> TreeRoot {
        self.find_tree(id).unwrap_or_else(|| panic!("no tree {id}"))
    }

    pub fn find_tree(&self, id: TreeId) -> Option<TreeRoot> {
        self.trees().into_iter().map(|(_, _, root)| root).find(|root| root.id == id)
    }

    pub fn space_roots(&self) -> SpaceRoots {
        SpaceRoots {
            extent: self.tree(TreeId::EXTENT),
            block_group: self.find_tree(TreeId::BLOCK_GROUP),
            free_space: self.find_tree(TreeId::FREE_SPACE),
        }
    }

    pub fn space(&self) -> Space {
        Space::load(&self.store, &self.volume, &self.space_roots()).expect("space loads")
    }
}
