//! The order of the check: what is needed to judge comes before what is judged.

use crate::chunks::Layout;
use crate::compare::{self, Known};
use crate::csums::Csums;
use crate::extents::ExtentTree;
use crate::free_space::FreeSpace;
use crate::inodes::{Inodes, Shared};
use crate::log::Log;
use crate::qgroups::Quotas;
use crate::reach::Reached;
use crate::refs::TreeStart;
use crate::refs::{RefRecord, Usage};
use crate::roots::Roots;
use crate::source::Context;
use crate::uuids::Uuids;
use crate::verity::{self, Sealed};
use crate::walk::{Again, Leaf, walk_as};
use crate::{CheckOptions, Finding, FindingKind, Phase, Report, data, supers};
use btrfs_disk::ids::{compat_ro, incompat};
use btrfs_disk::key::kind;
use btrfs_disk::{Result, TreeId};
use btrfs_volume::Volume;
use std::collections::HashSet;
use std::sync::Arc;

/// Checks the whole volume as of its last commit. Damage is in the report; `Err` means
/// that the check itself could not run.
pub fn check(volume: Arc<Volume>, options: &CheckOptions<'_>) -> Result<Report> {
    let mut run = Run {
        cx: Context::new(&volume, options),
        usage: Usage::default(),
        roots: Roots::default(),
        layout: Layout::default(),
        extents: ExtentTree::default(),
        free_space: None,
        csums: Csums::default(),
        quotas: None,
        known: Known { extent_tree: true, trees: true },
        unread: HashSet::new(),
    };
    run.cx.begin(Phase::Superblocks, None);
    supers::check(&mut run.cx);
    run.layout_trees();
    run.space_trees();
    let mut shared = run.file_trees();
    let log = Log::read(&mut run.cx);
    let refs = run.references();
    unwritten(&mut run.cx, &mut shared, &refs, &log);
    run.free_space();
    run.checksums(&log);
    run.cx.begin(Phase::Roots, None);
    run.roots.check(&mut run.cx, &shared.named, &run.unread);
    let extents = run.known.extent_tree.then_some(&run.extents);
    log.check(&mut run.cx, extents, &run.csums);
    run.verify_data(&shared.sealed);
    Ok(run.cx.report.finish())
}

struct Run<'a> {
    cx: Context<'a>,
    usage: Usage,
    roots: Roots,
    layout: Layout,
    extents: ExtentTree,
    /// `None`: there is no free-space tree, or not all of it could be read.
    free_space: Option<FreeSpace>,
    csums: Csums,
    /// `None`: there are none, or not all of them could be read.
    quotas: Option<Quotas>,
    known: Known,
    /// File trees that could not be read wholly.
    unread: HashSet<TreeId>,
}

impl Run<'_> {
    /// Walks a tree of the root tree if it is there; notes what is not known wholly.
    fn tree(&mut self, id: TreeId, visit: &mut dyn FnMut(&mut Context<'_>, &Leaf<'_>)) -> bool {
        let Some(start) = self.roots.start(id) else { return false };
        self.start(&start, visit)
    }

    fn start(
        &mut self,
        start: &TreeStart,
        visit: &mut dyn FnMut(&mut Context<'_>, &Leaf<'_>),
    ) -> bool {
        self.start_as(Again::Visit, start, visit)
    }

    fn start_as(
        &mut self,
        again: Again,
        start: &TreeStart,
        visit: &mut dyn FnMut(&mut Context<'_>, &Leaf<'_>),
    ) -> bool {
        let complete = walk_as(again, &mut self.cx, &mut self.usage, start, visit);
        if !complete {
            self.known.trees = false;
            self.unread.insert(start.id);
        }
        complete
    }

    /// Root tree, chunk tree, device tree.
    fn layout_trees(&mut self) {
        self.cx.begin(Phase::ChunkTree, None);
        let sb = self.cx.volume.superblock().fields;
        let (root, chunk) = (
            TreeStart {
                id: TreeId::ROOT,
                logical: sb.root,
                generation: self.cx.volume.root_generation(),
                level: sb.root_level,
                drop: None,
            },
            TreeStart {
                id: TreeId::CHUNK,
                logical: sb.chunk_root,
                generation: sb.chunk_root_generation,
                level: sb.chunk_root_level,
                drop: None,
            },
        );
        let mut roots = std::mem::take(&mut self.roots);
        if self.start(&root, &mut |cx, leaf| roots.leaf(cx, leaf)) {
            roots.mandatory(&mut self.cx);
        }
        self.roots = roots;
        let mut layout = std::mem::take(&mut self.layout);
        let chunks = self.start(&chunk, &mut |cx, leaf| layout.chunk_leaf(cx, leaf));
        let devices = self.tree(TreeId::DEV, &mut |cx, leaf| layout.dev_leaf(cx, leaf));
        self.layout = layout;
        self.cx.report.totals.chunks = self.layout.chunk_count();
        self.known.extent_tree = chunks;
        self.extent_tree(chunks && devices);
    }

    /// Extent tree and block groups.
    fn extent_tree(&mut self, devices: bool) {
        self.cx.begin(Phase::ExtentTree, None);
        let mut extents = std::mem::take(&mut self.extents);
        let mut known = self.tree(TreeId::EXTENT, &mut |cx, leaf| extents.leaf(cx, leaf));
        let flags = self.cx.volume.superblock().fields.compat_ro_flags;
        if flags & compat_ro::BLOCK_GROUP_TREE != 0 {
            known &= self.tree(TreeId::BLOCK_GROUP, &mut |cx, leaf| {
                for (key, data) in leaf.node.items() {
                    let kind = if key.kind != kind::BLOCK_GROUP_ITEM {
                        FindingKind::ItemUnknown
                    } else if let Err(c) = extents.block_group(key, data) {
                        FindingKind::ItemMalformed { why: c.what }
                    } else {
                        continue;
                    };
                    cx.add(Finding::new(kind).tree(leaf.tree).key(key));
                }
            });
        }
        self.usage.full = std::mem::take(&mut extents.full);
        self.known.extent_tree &= known;
        if self.known.extent_tree {
            self.layout.check(&mut self.cx, &extents.block_groups, devices);
        }
        self.extents = extents;
    }

    /// Free-space tree, checksum tree, and the trees that are walked for their blocks.
    fn space_trees(&mut self) {
        let mut free_space = FreeSpace::default();
        let whole = self.tree(TreeId::FREE_SPACE, &mut |cx, leaf| free_space.leaf(cx, leaf));
        self.free_space = whole.then_some(free_space);
        let mut csums = std::mem::take(&mut self.csums);
        csums.complete = self.tree(TreeId::CSUM, &mut |cx, leaf| csums.leaf(cx, leaf));
        self.csums = csums;
        self.cx.report.totals.csum_bytes = self.csums.total();
        let mut quotas = Quotas::default();
        let whole = self.tree(TreeId::QUOTA, &mut |cx, leaf| quotas.leaf(cx, leaf));
        if whole {
            let alive = self.roots.subvolumes().0.into_iter().map(|start| start.id);
            quotas.check_items(&mut self.cx, alive);
        }
        self.quotas = whole.then_some(quotas);
        let mut uuids = Uuids::default();
        if self.tree(TreeId::UUID, &mut |cx, leaf| uuids.leaf(cx, leaf)) {
            uuids.check(&mut self.cx, &self.roots);
        }
    }

    fn file_trees(&mut self) -> Shared {
        let blocks = self.extents.extents.iter().filter(|e| e.is_block()).count() as u64;
        self.cx.begin(Phase::Trees, Some(blocks));
        let flags = self.cx.volume.superblock().fields.incompat_flags;
        let mut shared = Shared {
            csums: std::mem::take(&mut self.csums),
            no_holes: flags & incompat::NO_HOLES != 0,
            named: HashSet::new(),
            fresh: false,
            unwritten: Vec::new(),
            sealed: Vec::new(),
        };
        let (alive, dead) = self.roots.subvolumes();
        self.cx.report.totals.subvolumes = alive.len() as u64;
        self.cx.report.totals.dead_subvolumes = dead.len() as u64;
        let relocations = self.roots.relocations();
        let quotas = self.quotas.as_ref();
        let full = quotas.filter(|quotas| quotas.simple.is_none());
        let trusted = full.is_some_and(|quotas| quotas.trusted(&self.cx));
        let judge = trusted && dead.is_empty() && relocations.is_empty();
        let wanted = judge || self.cx.asks_who_reaches(full.is_some());
        self.usage.reached = wanted.then(Reached::default);
        for start in &alive {
            self.files(start, &mut shared);
        }
        self.reached(judge);
        if let Some(start) = self.roots.start(TreeId::DATA_RELOC) {
            self.files(&start, &mut shared);
        }
        let half = dead.iter().chain(&relocations).any(|start| start.drop.is_some());
        let stored = || self.extents.refs.iter().filter(|r| r.len == 0);
        self.usage.stored = (half && self.known.extent_tree)
            .then(|| stored().map(|r| (r.start, r.owner)).collect());
        for start in dead.into_iter().chain(relocations) {
            self.start_as(Again::Pass, &start, &mut |_, _| ());
        }
        self.usage.stored = None;
        self.csums = std::mem::take(&mut shared.csums);
        shared
    }

    fn files(&mut self, start: &TreeStart, shared: &mut Shared) {
        let mut inodes = Inodes::new(start.id, shared);
        let complete = self.start(start, &mut |cx, leaf| inodes.leaf(cx, leaf));
        let entries = inodes.finish(&mut self.cx, complete);
        // Snapshots have the entries of subvolumes that are not theirs as well: of those nothing is kept.
        shared.named.extend(entries.iter().filter_map(|entry| self.roots.named_by(entry)));
    }

    /// What the subvolumes reach is known.
    fn reached(&mut self, judge: bool) {
        let Some(reached) = self.usage.reached.take() else { return };
        if reached.too_many() {
            self.cx.report.uncounted = true;
            self.cx.add(Finding::new(FindingKind::SharingUncounted));
            return;
        }
        self.cx.report.sharing = self.cx.sharing(&reached);
        let Some(quotas) = self.quotas.as_ref().filter(|q| q.simple.is_none()) else { return };
        let counted = quotas.count(&reached);
        if judge && self.known.trees {
            quotas.check(&mut self.cx, &counted);
        }
        self.cx.report.quotas = Some(quotas.report(&counted));
    }

    fn simple_quotas(&mut self) {
        let quotas = self.quotas.as_ref().filter(|quotas| quotas.trusted(&self.cx));
        let Some((quotas, since)) = quotas.and_then(|q| Some((q, q.simple?))) else { return };
        if self.known.trees && self.known.extent_tree {
            let counted = quotas.check_simple(&mut self.cx, since, &self.extents, &self.usage);
            self.cx.report.quotas = Some(quotas.report(&counted));
        }
    }

    fn references(&mut self) -> Vec<RefRecord> {
        self.cx.begin(Phase::References, None);
        let refs = self.usage.take_refs();
        let (cx, known) = (&mut self.cx, self.known);
        compare::compare(cx, &mut self.extents, &refs, &self.usage, known);
        compare::placement(cx, &self.extents, &self.layout, known);
        self.simple_quotas();
        let totals = &mut self.cx.report.totals;
        totals.tree_blocks = self.usage.blocks.len() as u64;
        totals.tree_bytes = totals.tree_blocks * u64::from(self.cx.geometry.node_size);
        totals.referenced_bytes = self.usage.referenced_bytes;
        totals.allocated_bytes = self.usage.allocated_bytes;
        totals.waste_bytes = self.usage.waste_bytes;
        let of = |wanted: &dyn Fn(TreeId) -> bool| {
            let blocks = self.usage.blocks.values().filter(|block| wanted(block.owner)).count();
            blocks as u64 * u64::from(self.cx.geometry.node_size)
        };
        totals.fs_tree_bytes = of(&|tree| tree.holds_files());
        totals.extent_tree_bytes = of(&|tree| tree == TreeId::EXTENT);
        for extent in self.extents.extents.iter().filter(|extent| !extent.is_block()) {
            totals.data_extents += 1;
            totals.data_bytes = totals.data_bytes.saturating_add(extent.len);
        }
        refs
    }

    fn free_space(&mut self) {
        self.cx.begin(Phase::FreeSpace, None);
        let flags = self.cx.volume.superblock().fields.compat_ro_flags;
        let valid = compat_ro::FREE_SPACE_TREE | compat_ro::FREE_SPACE_TREE_VALID;
        if flags & valid != valid || !self.known.extent_tree {
            return;
        }
        if let Some(free_space) = &self.free_space {
            let extents = &self.extents;
            free_space.check(&mut self.cx, &extents.block_groups, &extents.extents);
        }
    }

    fn checksums(&mut self, log: &Log) {
        self.cx.begin(Phase::Checksums, None);
        if self.known.extent_tree && self.csums.complete {
            let explained = |start, end| log.explains(start, end);
            self.csums.strays(&mut self.cx, &self.extents.extents, &explained);
        }
    }

    fn verify_data(&mut self, sealed: &[(TreeId, Sealed)]) {
        if !self.cx.verify_data() {
            return;
        }
        let total = self.csums.total();
        let sizes = sealed.iter().map(|(_, file)| file.descriptor.data_size);
        self.cx.begin(Phase::Data, Some(sizes.fold(total, u64::saturating_add)));
        self.tree(TreeId::CSUM, &mut |cx, leaf| data::leaf(cx, leaf));
        for (tree, file) in sealed {
            if let Some(start) = self.roots.start(*tree) {
                verity::check(&mut self.cx, &start, file);
            }
        }
    }
}

/// Preallocated extents with checksums are fine where another file wrote to them.
fn unwritten(cx: &mut Context<'_>, shared: &mut Shared, refs: &[RefRecord], log: &Log) {
    for found in std::mem::take(&mut shared.unwritten) {
        let first = refs.partition_point(|r| r.start < found.extent);
        let mut same = refs[first..].iter().take_while(|r| r.start == found.extent);
        let end = found.extent.saturating_add(1);
        if !same.any(|r| r.written) && !log.explains(found.extent, end) {
            let kind = FindingKind::CsumUnwritten { ino: found.ino };
            cx.add(Finding::new(kind).tree(found.tree).at(found.extent));
        }
    }
}
