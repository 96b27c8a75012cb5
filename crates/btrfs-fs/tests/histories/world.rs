//! The model of a history: subvolumes with files, quota groups and limits; and the history itself,
//! which does the same to the model and to whoever's turn it is.
//!
//! Invariants: what is refused has changed nothing, but for a write that a limit cut short, of which
//! each byte is the old one or the new one. Only limits may refuse what changes files.
//!
//! What it does not know: who carries a step out, and who judges.

use super::side::{Balance, Done, GROUPS, Refused, Side};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use testkit::ops::Rng;

const MIB: u64 = 1 << 20;
/// Sizes that a volume has for a while.
pub const SIZES: [u64; 4] = [700 * MIB, 800 * MIB, 900 * MIB, 1024 * MIB];
const SUBVOLUMES: usize = 9;

pub type Files = BTreeMap<String, Arc<Vec<u8>>>;

#[derive(Clone, Default, PartialEq, Debug)]
pub struct Sub {
    pub read_only: bool,
    pub files: Files,
    limit: Option<u64>,
}

#[derive(Clone, Default, PartialEq, Debug)]
pub struct World {
    /// By name; the top level's is empty.
    pub subs: BTreeMap<String, Sub>,
    pub quotas: bool,
    /// Groups above those of subvolumes, and their limits.
    groups: BTreeMap<&'static str, Option<u64>>,
    /// Who is in them, by the name of a subvolume or group.
    members: BTreeSet<(String, &'static str)>,
}

impl World {
    /// Limits as the model has them, by group.
    pub fn limits(&self, side: &dyn Side) -> BTreeMap<String, Option<u64>> {
        let subs = self.subs.iter().map(|(name, sub)| (side.group_of(name), sub.limit));
        let groups = self.groups.iter().map(|(name, most)| ((*name).to_owned(), *most));
        subs.chain(groups).collect()
    }
}

/// What was done, and how much of it was refused.
#[derive(Default, Debug)]
pub struct Tally {
    pub steps: u64,
    pub syncs: u64,
    pub refused: u64,
    pub deleted: u64,
    pub balances: u64,
    pub resizes: u64,
    pub limits: u64,
    /// Groups that came into groups, or left them.
    pub relations: u64,
    pub destroyed: u64,
    /// Balances that one began and the other ended.
    pub ended_for_others: u64,
}

pub struct History {
    /// Quotas are simple ones, and are there from the beginning.
    pub simple: bool,
    rng: Rng,
    made: u64,
    pub world: World,
    pub tally: Tally,
}

impl History {
    pub fn new(seed: u64) -> History {
        let mut world = World::default();
        world.subs.insert(String::new(), Sub::default());
        History { simple: false, rng: Rng::new(seed), made: 0, world, tally: Tally::default() }
    }

    /// One turn: what is small many times, and something large.
    pub fn turn(&mut self, side: &dyn Side, steps: usize) {
        self.watched_turn(side, steps, &mut |_, _| {});
    }

    /// The same; `seen` hears of the world after each step, and whether all of it is durable.
    pub fn watched_turn(
        &mut self,
        side: &dyn Side,
        steps: usize,
        seen: &mut dyn FnMut(&World, bool),
    ) {
        let large = self.rng.below(steps as u64) as usize;
        for step in 0..steps {
            let durable = self.step(side);
            seen(&self.world, durable);
            if step == large {
                self.large(side);
                seen(&self.world, false);
            }
        }
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.rng.below(bound)
    }

    fn step(&mut self, side: &dyn Side) -> bool {
        self.tally.steps += 1;
        let before = self.tally.syncs;
        match self.rng.below(100) {
            0..38 => self.write(side),
            38..46 => self.cut(side),
            46..56 => self.remove(side),
            56..66 => self.clone_file(side),
            66..68 => self.create(side),
            68..76 => self.snapshot(side),
            76..82 => self.delete(side),
            82..94 => self.quotas(side),
            _ => {
                self.tally.syncs += 1;
                side.sync();
            }
        }
        self.tally.syncs > before
    }

    fn pick(&mut self, writable: bool) -> String {
        let all = self.world.subs.iter().filter(|(_, sub)| !writable || !sub.read_only);
        let names: Vec<String> = all.map(|(name, _)| name.clone()).collect();
        self.rng.pick(&names).clone()
    }

    /// A file of some subvolume, if there is one.
    fn file(&mut self, writable: bool) -> Option<(String, String)> {
        let sub = self.pick(writable);
        let names: Vec<String> = self.world.subs[&sub].files.keys().cloned().collect();
        let name = (!names.is_empty()).then(|| self.rng.pick(&names).clone())?;
        Some((sub, name))
    }

    fn files(&mut self, sub: &str) -> &mut Files {
        &mut self.world.subs.get_mut(sub).expect("known").files
    }

    /// Counts what a limit refused; everything else that is refused is a defect.
    fn may(&mut self, done: Done) -> bool {
        match done {
            Ok(()) => true,
            Err(Refused::Quota) => {
                self.tally.refused += 1;
                false
            }
            Err(other) => panic!("refused: {other:?}"),
        }
    }

    /// The same, where something else may be the right answer. The kernel's limits refuse everything.
    fn answers(&mut self, done: Done, expected: Done) -> bool {
        done != Err(Refused::Quota) && {
            assert_eq!(done, expected);
            done.is_ok()
        }
    }

    fn content(&mut self) -> Vec<u8> {
        let most = [200, 4096, 20_000, 60_000, 300_000][self.rng.below(5) as usize];
        let mut content = vec![self.rng.below(255) as u8; 1 + self.rng.below(most) as usize];
        if self.rng.below(2) == 0 {
            self.rng.fill(&mut content);
        }
        content
    }

    fn write(&mut self, side: &dyn Side) {
        let sub = self.pick(true);
        let (name, content) = (format!("f{}", self.rng.below(40)), self.content());
        let old = self.files(&sub).get(&name).cloned();
        let len = old.as_ref().map_or(0, |old| old.len()) as u64;
        let at = if self.rng.chance(50) { self.rng.below(len + 1) } else { len } as usize;
        let mut new = old.as_deref().cloned().unwrap_or_default();
        new.resize(new.len().max(at + content.len()), 0);
        new[at..at + content.len()].copy_from_slice(&content);
        if !self.may(side.write(&sub, &name, at as u64, &content)) {
            let Some(there) = side.read(&sub, &name) else {
                assert!(old.is_none(), "{sub}/{name} is gone");
                return;
            };
            let old = old.as_deref().cloned().unwrap_or_default();
            assert!((old.len()..=new.len()).contains(&there.len()), "{sub}/{name}: its size");
            let strange =
                |i: &usize| there[*i] != new[*i] && Some(&there[*i]) != old.get(*i).or(Some(&0));
            assert_eq!((0..there.len()).find(strange), None, "{sub}/{name}: neither old nor new");
            new = there;
        }
        self.files(&sub).insert(name, Arc::new(new));
    }

    fn cut(&mut self, side: &dyn Side) {
        let Some((sub, name)) = self.file(true) else { return };
        let len = self.rng.below(self.world.subs[&sub].files[&name].len() as u64 + 1);
        let len = len / side.cut_unit() * side.cut_unit();
        let is_cut = self.may(side.cut(&sub, &name, len));
        let file = self.files(&sub).get_mut(&name).expect("known");
        if is_cut {
            *file = Arc::new(file[..len as usize].to_vec());
        } else if side.forgets_by_a_refused_cut() {
            let there = side.read(&sub, &name).expect("it is there");
            assert!(there.len() as u64 >= len && file.starts_with(&there), "{sub}/{name}: cut");
            *file = Arc::new(there);
        }
    }

    fn remove(&mut self, side: &dyn Side) {
        let Some((sub, name)) = self.file(true) else { return };
        if self.may(side.remove(&sub, &name)) {
            self.files(&sub).remove(&name);
        }
    }

    fn clone_file(&mut self, side: &dyn Side) {
        let (Some(from), to) = (self.file(false), self.pick(true)) else { return };
        self.made += 1;
        let new = format!("c{}", self.made);
        let content = self.files(&from.0)[&from.1].clone();
        if self.may(side.clone_file(&from.0, &from.1, &to, &new)) {
            self.files(&to).insert(new, content);
        } else if let Some(there) = side.read(&to, &new) {
            // What a limit leaves of it is a front part, or nothing that has been copied.
            assert!(content.starts_with(&there) || there.iter().all(|byte| *byte == 0));
            self.files(&to).insert(new, Arc::new(there));
        }
    }

    fn create(&mut self, side: &dyn Side) {
        self.made += 1;
        let name = format!("v{}", self.made);
        if self.world.subs.len() < SUBVOLUMES && self.may(side.create(&name)) {
            self.joins(&name);
            self.world.subs.insert(name, Sub::default());
        }
    }

    /// With simple quotas a new subvolume comes into the groups of the one that it lies in.
    fn joins(&mut self, name: &str) {
        let of_top =
            self.world.members.iter().filter(|(member, _)| self.simple && member.is_empty());
        let new: Vec<_> = of_top.map(|(_, high)| (name.to_owned(), *high)).collect();
        self.world.members.extend(new);
    }

    fn snapshot(&mut self, side: &dyn Side) {
        self.made += 1;
        let (source, name) = (self.pick(false), format!("v{}", self.made));
        let read_only = self.rng.chance(30);
        if self.world.subs.len() < SUBVOLUMES && self.may(side.snapshot(&source, &name, read_only))
        {
            // Limits are a snapshot's as well, if quotas are not simple.
            let mut copy = Sub { read_only, ..self.world.subs[&source].clone() };
            copy.limit.take_if(|_| self.simple);
            self.joins(&name);
            self.world.subs.insert(name, copy);
        }
    }

    fn delete(&mut self, side: &dyn Side) {
        let name = self.pick(false);
        if name.is_empty() || self.world.subs.len() < 4 {
            return;
        }
        if self.may(side.delete(&name)) {
            self.tally.deleted += 1;
            self.world.subs.remove(&name);
            self.world.members.retain(|(member, _)| *member != name);
        }
    }

    /// Groups and limits, and now and then quotas on or off.
    fn quotas(&mut self, side: &dyn Side) {
        if !self.world.quotas {
            self.may(side.quotas(true));
            self.world.quotas = true;
            return;
        }
        match self.rng.below(44) {
            // Simple ones stay: where they begin on a volume that has had deleted subvolumes, a balance of the
            // kernel's (6.18) charges groups that are not there, and it gives up.
            0 | 1 if self.simple => {}
            0 => {
                self.may(side.quotas(false));
                self.world.quotas = false;
                self.no_groups();
            }
            1 => side.rescan(),
            2..6 => {
                let group = *self.rng.pick(&GROUPS);
                self.create_group(side, group);
            }
            6..26 => self.relate(side),
            26..36 => self.limit_subvolume(side),
            36 | 37 => self.destroy_group(side),
            _ => self.limit_group(side),
        }
    }

    fn no_groups(&mut self) {
        self.world.groups.clear();
        self.world.members.clear();
        self.world.subs.values_mut().for_each(|sub| sub.limit = None);
    }

    pub fn begin_quotas_anew(&mut self, side: &dyn Side) {
        assert_eq!((side.quotas(false), side.quotas(true)), (Ok(()), Ok(())));
        self.no_groups();
    }

    fn create_group(&mut self, side: &dyn Side, group: &'static str) {
        let known = self.world.groups.contains_key(group);
        let expected = if known { Err(Refused::Exists) } else { Ok(()) };
        if self.answers(side.group(group), expected) {
            self.world.groups.insert(group, None);
        }
    }

    fn relate(&mut self, side: &dyn Side) {
        // The kernel counts what comes into a group by two ways twice, where quotas are simple.
        let groups = if self.simple { &GROUPS[..2] } else { &GROUPS[..] };
        let (sub, high) = (self.pick(false), *self.rng.pick(groups));
        let comes = self.rng.chance(70);
        let some = self.rng.below(self.world.members.len() as u64 + 1) as usize;
        if !comes && let Some((member, high)) = self.world.members.iter().nth(some).cloned() {
            let group = if member == "1/1" { member.clone() } else { side.group_of(&member) };
            return self.relates(side, (member, group, high), false);
        }
        let (member, group, high) = match self.rng.chance(60) {
            true => (sub.clone(), side.group_of(&sub), high),
            false => ("1/1".to_owned(), "1/1".to_owned(), "2/1"),
        };
        for missing in [high, "1/1"] {
            let wanted = missing == high || missing == group;
            if comes && wanted && !self.world.groups.contains_key(missing) && self.rng.chance(60) {
                self.create_group(side, missing);
            }
        }
        self.relates(side, (member, group, high), comes);
    }

    /// A group comes into another, or leaves it.
    fn relates(
        &mut self,
        side: &dyn Side,
        (member, group, high): (String, String, &'static str),
        comes: bool,
    ) {
        let there = |group: &str| self.world.groups.contains_key(group);
        let known = there(high) && (member != "1/1" || there("1/1"));
        let is = self.world.members.contains(&(member.clone(), high));
        let expected = match (comes, known, is) {
            (true, false, _) => Err(Refused::Invalid),
            (true, true, true) => Err(Refused::Exists),
            (false, _, false) => Err(Refused::NotThere),
            _ => Ok(()),
        };
        if self.answers(side.relate(&group, high, comes), expected) {
            self.tally.relations += 1;
            match comes {
                true => _ = self.world.members.insert((member, high)),
                false => _ = self.world.members.remove(&(member, high)),
            }
        }
    }

    fn destroy_group(&mut self, side: &dyn Side) {
        let group = *self.rng.pick(&GROUPS);
        let done = side.no_group(group);
        if !self.world.groups.contains_key(group) {
            self.answers(done, Err(Refused::NotThere));
        } else if self.world.members.iter().any(|(_, high)| *high == group) {
            self.answers(done, Err(Refused::Busy));
        } else if done != Err(Refused::Busy) && self.may(done) {
            // It is busy as long as a subvolume in it is deleted and not dropped.
            self.tally.destroyed += 1;
            self.world.groups.remove(group);
            self.world.members.retain(|(member, _)| member != group);
        }
    }

    /// Below what it has, about what it has, or none.
    fn some_limit(&mut self) -> Option<u64> {
        self.tally.limits += 1;
        let most = [MIB / 2, MIB, 3 * MIB, 20 * MIB];
        self.rng.chance(60).then(|| *self.rng.pick(&most))
    }

    fn limit_subvolume(&mut self, side: &dyn Side) {
        let (sub, most) = (self.pick(false), self.some_limit());
        if self.may(side.limit(&side.group_of(&sub), most, false)) {
            self.world.subs.get_mut(&sub).expect("known").limit = most;
        }
    }

    fn limit_group(&mut self, side: &dyn Side) {
        let (group, most) = (*self.rng.pick(&GROUPS), self.some_limit());
        let known = self.world.groups.contains_key(group);
        let expected = if known { Ok(()) } else { Err(Refused::NotThere) };
        if self.answers(side.limit(group, most, true), expected) {
            self.world.groups.insert(group, most);
        }
    }

    fn large(&mut self, side: &dyn Side) {
        let done = if self.rng.chance(40) {
            self.tally.resizes += 1;
            side.resize(*self.rng.pick(&SIZES))
        } else {
            self.tally.balances += 1;
            side.balance(*self.rng.pick(&Balance::ALL))
        };
        self.may(done);
    }
}
