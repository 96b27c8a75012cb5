//! States of the kernel's balances with trees of its own, and what these say.

use crate::common::kernel::btrfs;
use crate::common::{self, dump};
use btrfs_disk::items::{ExtentItemFields, RootItem};
use btrfs_disk::key::kind;
use btrfs_disk::{Expect, FixedSize, Key, Logical, Node, TreeId};
use btrfs_volume::{OpenOptions, Volume};
use fuzzing::patch::Patch;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use testkit::compare::TreeSnapshot;
use testkit::oracle::{self, KernelMount};

const WANTED: usize = 2;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Quotas {
    Off,
    Full,
    Simple,
}

impl Quotas {
    /// The program that knows them.
    fn btrfs(self) -> String {
        match self {
            Quotas::Simple => oracle::newer_btrfs().expect("there").to_string_lossy().into_owned(),
            _ => "btrfs".to_owned(),
        }
    }

    /// `btrfs check` finds nothing, and the numbers right where it counts them.
    pub fn assert_checked(self, image: &Path) {
        match self {
            Quotas::Simple => oracle::newer_btrfs_check(image).expect("a sound volume"),
            _ => oracle::assert_clean(image),
        }
    }

    /// Nor does our own check.
    pub fn assert_sound(self, image: &Path) {
        self.assert_checked(image);
        common::check_ourselves(image);
    }
}

/// Many small nodes, shared by snapshots that were changed a little.
pub fn populate(mount: &KernelMount, quotas: Quotas) -> TreeSnapshot {
    if quotas != Quotas::Off {
        let path = mount.path().to_string_lossy();
        let simple: &[&str] = if quotas == Quotas::Simple { &["--simple"] } else { &[] };
        let words = [&["quota", "enable"], simple, &[&path]].concat();
        oracle::sh(&quotas.btrfs(), &words).expect("on");
    }
    btrfs(mount, &["subvolume", "create", "/s"]);
    for dir in 0..30 {
        let dir = mount.join(&format!("s/{dir}"));
        std::fs::create_dir(&dir).expect("mkdir");
        for file in 0..200_usize {
            std::fs::write(dir.join(file.to_string()), vec![7; file * 37 % 9000]).expect("write");
        }
    }
    for snapshot in 0..5 {
        btrfs(mount, &["subvolume", "snapshot", "/s", &format!("/snapshot{snapshot}")]);
        for file in 0..6 {
            let path = format!("snapshot{snapshot}/{}/{file}", snapshot * 5 + file);
            std::fs::write(mount.join(&path), path.as_bytes()).expect("write");
        }
    }
    btrfs(mount, &["filesystem", "sync", "/"]);
    TreeSnapshot::of_dir(mount.path()).expect("walk the kernel's mount")
}

/// Copies of the image from the midst of a balance, with trees that it had left.
pub fn interrupted(image: &Path, what: &str, quotas: Quotas) -> Vec<PathBuf> {
    let script = format!(
        "set -e
        image={image}; dir=$image.d; mkdir -p $dir/ext4 $dir/btrfs; rm -f $dir/end
        trap 'set +e; exec 2> /dev/null; fsfreeze -u $dir/ext4; touch $dir/end
              btrfs balance cancel $dir/btrfs; wait; umount $dir/btrfs; umount $dir/ext4' EXIT
        truncate -s 2G $dir/outer; mkfs.ext4 -q -F $dir/outer; mount -o loop $dir/outer $dir/ext4
        cp --sparse=always $image $dir/ext4/image; mount -o loop $dir/ext4/image $dir/btrfs
        (for i in $(seq 40); do [ -e $dir/end ] || btrfs balance start {what} $dir/btrfs; done) > /dev/null 2>&1 &
        balance=$!
        # Trees are on the volume where it commits meanwhile.
        (while [ ! -e $dir/end ]; do btrfs filesystem sync $dir/btrfs; done) > /dev/null 2>&1 &
        found=0
        while kill -0 $balance 2> /dev/null && [ $found -lt {WANTED} ]; do
            fsfreeze -f $dir/ext4
            cp --sparse=always $dir/ext4/image $image.$found
            fsfreeze -u $dir/ext4
            if {program} inspect-internal dump-tree -t 1 $image.$found 2> /dev/null |
                grep -q 'key (TREE_RELOC ROOT_ITEM'; then found=$((found + 1)); fi
            sleep 0.0$((found * 2 + 1))
        done
        echo found $found",
        image = image.display(),
        program = quotas.btrfs()
    );
    let said = oracle::sh("sh", &["-c", &script]).expect("a balance that is interrupted");
    let found = said.lines().find_map(|line| line.strip_prefix("found ")?.parse().ok());
    let found: usize = found.expect("how many were found");
    (0..found).map(|number| PathBuf::from(format!("{}.{number}", image.display()))).collect()
}

/// The trees of a relocation that the root tree names.
fn left(patch: &Patch) -> Vec<(u64, RootItem)> {
    let ours =
        |(key, _): &(Key, Vec<u8>)| key.objectid == TreeId::RELOC.0 && key.kind == kind::ROOT_ITEM;
    let items = patch.items(TreeId::ROOT).into_iter().filter(ours);
    items.map(|(key, data)| (key.offset, RootItem::parse(&data).expect("a root item"))).collect()
}

/// How many trees of a relocation are left, and how many of them are half dropped. What is said of
/// those must be what a kernel would say, or it may not be mounted: where a kernel goes on is a key that the
/// node of that level has, the level is one of nodes and of the tree, and nobody else holds the nodes above.
/// `btrfs` must read the same.
pub fn positions(image: &Path, quotas: Quotas) -> (usize, usize) {
    let (patch, mut half) = (Patch::new(image), 0);
    let left = left(&patch);
    assert_eq!(
        said_by_btrfs(image, quotas),
        left.iter().map(|(_, item)| position(item)).collect::<Vec<_>>()
    );
    for (tree, item) in left.iter().filter(|(_, item)| item.refs == 0) {
        let (level, key) = (item.drop_level, item.drop_progress);
        if key == Key::MIN {
            assert_eq!(level, 0, "of tree {tree}, which is whole");
            continue;
        }
        half += 1;
        assert!((1..=item.level).contains(&level), "tree {tree} of level {}: {level}", item.level);
        let mut node = node(image, item.bytenr, item.level);
        loop {
            assert_eq!(references(&patch, &node), 1, "a node above {level} {key} of tree {tree}");
            if node.level() == level {
                break;
            }
            node = self::node(image, node.child(node.child_slot(&key)).logical, node.level() - 1);
        }
        assert!(
            node.search(&key).is_ok(),
            "tree {tree} goes on at {level} {key}, which is no node"
        );
    }
    (left.len(), half)
}

fn position(item: &RootItem) -> (u8, u64, u64) {
    (item.drop_level, item.drop_progress.objectid, item.drop_progress.offset)
}

fn said_by_btrfs(image: &Path, quotas: Quotas) -> Vec<(u8, u64, u64)> {
    let items = dump::items_by(&quotas.btrfs(), image, TreeId::ROOT.0).into_iter();
    let ours = items.filter(|((id, kind, _), _)| *id == u64::MAX && kind == "ROOT_ITEM");
    // DATA_RELOC_TREE and others are words as well; only those of a relocation are of a subvolume.
    let ours = ours.filter(|((_, _, offset), _)| *offset != 0);
    ours.map(|(_, body)| {
        let key = body.split("drop_progress key (").nth(1).expect("a position");
        let words: Vec<&str> = key.split(')').next().expect("a key").split(' ').collect();
        let number = |word: &str| word.parse().expect("a number");
        (dump::number_after(&body, "drop_level") as u8, number(words[0]), number(words[2]))
    })
    .collect()
}

fn node(image: &Path, logical: Logical, level: u8) -> Node {
    let device = Arc::new(crate::common::open_device(image, true));
    let options = OpenOptions { read_only: true, ..OpenOptions::default() };
    let volume = Volume::open(device, options).expect("open");
    let expect = Expect { logical, level, generation: None, owner: None, first_key: None };
    volume.read_node(&expect).expect("a node")
}

fn references(patch: &Patch, node: &Node) -> u64 {
    let key = Key::new(node.logical().0, kind::METADATA_ITEM, node.level().into());
    let (found, data) = patch.find(TreeId::EXTENT, key).expect("an extent");
    assert_eq!(found, key);
    ExtentItemFields::read(&data).expect("an extent item").refs
}
