//! One copy of what has two goes bad, anywhere and all the time.
//!
//! Invariant: the other copy is good, since a place is spoilt only where both are the same at that moment.
//!
//! What it does not know: what stands there, and who reads it.

use crate::common;
use btrfs_disk::ids::block_group::DATA;
use btrfs_space::GroupInfo;
use btrfs_volume::{OpenOptions, Volume};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use testkit::ops::Rng;

pub struct Spoiler {
    path: PathBuf,
    file: File,
    rng: Rng,
    pub spoilt: u64,
}

impl Spoiler {
    pub fn new(image: &Path, rng: Rng) -> Spoiler {
        let file = File::options().read(true).write(true).open(image).expect("open");
        Spoiler { path: image.to_path_buf(), file, rng, spoilt: 0 }
    }

    /// The volume as it is now; `None`: it changes at this moment.
    fn volume(&self) -> Option<Volume> {
        let open = OpenOptions { read_only: true, ..OpenOptions::default() };
        Volume::open(Arc::new(common::open_device(&self.path, true)), open).ok()
    }

    /// Where the two copies of `logical` lie; `None`: there are none, or one.
    fn copies(volume: &Volume, logical: u64) -> Option<[u64; 2]> {
        let chunks = volume.chunks();
        let chunk = chunks.iter().find(|c| (c.logical.0..c.end()).contains(&logical))?;
        let at = |stripe: usize| chunk.stripes[stripe].1.0 + logical - chunk.logical.0;
        (chunk.stripes.len() == 2).then(|| [at(0), at(1)])
    }

    /// Something in use, if it has two good copies.
    pub fn one(&mut self, groups: &[GroupInfo]) {
        let used: Vec<_> = groups.iter().filter(|group| group.used > 0).collect();
        let group = *self.rng.pick(&used);
        let Some(volume) = self.volume() else { return };
        let geometry = volume.geometry();
        let is_content = group.flags & DATA != 0;
        let unit = if is_content { geometry.sector_size } else { geometry.node_size };
        let unit = u64::from(unit);
        let used = used_in(group);
        if used.is_empty() {
            return;
        }
        let (start, len) = *self.rng.pick(&used);
        let at = start + self.rng.below(len.div_ceil(unit)) * unit;
        let Some(copies) = Spoiler::copies(&volume, at) else { return };
        let [mut one, mut other] = [vec![0; unit as usize], vec![0; unit as usize]];
        self.file.read_exact_at(&mut one, copies[0]).expect("read");
        self.file.read_exact_at(&mut other, copies[1]).expect("read");
        if one == other && one.iter().any(|byte| *byte != 0) {
            let (which, byte) = (self.rng.below(2) as usize, self.rng.below(unit) as usize);
            let bad = [one[byte] ^ 0x10];
            self.file.write_all_at(&bad, copies[which] + byte as u64).expect("write");
            self.spoilt += 1;
        }
    }
}

/// (start, length) of what cannot be allocated: what is in use, for the most part.
fn used_in(group: &GroupInfo) -> Vec<(u64, u64)> {
    let end = group.logical.0 + group.len;
    let starts =
        std::iter::once(group.logical.0).chain(group.free.iter().map(|(at, len)| at + len));
    let ends = group.free.iter().map(|(at, _)| *at).chain([end]);
    starts.zip(ends).filter(|(start, end)| start < end).map(|(at, end)| (at, end - at)).collect()
}
