//! Directories alone: ten thousand in a chain, each in the one above, and ten thousand beside each
//! other. Everybody goes from one to the next, so no path is longer than a name.

use super::pace::Pace;
use super::{Aims, Cache, Detail, Done, Env, Info, Workload, numbered};
use crate::memory::Watch;
use crate::target::{DirId, OpenDir, Target};
use std::ffi::{CStr, CString};
use std::io;
use std::time::Duration;

pub fn all() -> Vec<Box<dyn Workload>> {
    let new = |name, about, shape, cache| -> Box<dyn Workload> {
        Box::new(Directories { name, about, shape, cache })
    };
    vec![
        new(
            "deep-dirs",
            "10,000 directories, each in the one before: made, asked for, walked from the top, \
             removed from the bottom; each step on its own below",
            Shape::Deep,
            Cache::Warm,
        ),
        new(
            "deep-dirs-cold",
            "the same, walked and removed with nothing cached",
            Shape::Deep,
            Cache::Cold,
        ),
        new(
            "wide-dirs",
            "10,000 directories beside each other: made, asked for, entered and listed, removed",
            Shape::Wide,
            Cache::Warm,
        ),
        new(
            "wide-dirs-cold",
            "the same, entered and removed with nothing cached",
            Shape::Wide,
            Cache::Cold,
        ),
    ]
}

#[derive(Clone, Copy, PartialEq)]
enum Shape {
    Deep,
    Wide,
}

struct Directories {
    name: &'static str,
    about: &'static str,
    shape: Shape,
    cache: Cache,
}

/// Of each directory in a chain.
const NAME: &CStr = c"directory";

fn count(env: &Env<'_>) -> u64 {
    env.sizes.files / 5
}

fn found(dirs: u64, wanted: u64) -> io::Result<()> {
    match dirs == wanted {
        true => Ok(()),
        false => Err(io::Error::other(format!("{dirs} directories of {wanted}"))),
    }
}

/// A chain, open down to some depth.
struct Chain<'e> {
    target: &'e dyn Target,
    top: DirId,
    open: Vec<OpenDir<'e>>,
}

impl<'e> Chain<'e> {
    fn new(env: &Env<'e>) -> Chain<'e> {
        Chain { target: env.target, top: env.dir, open: Vec::new() }
    }

    fn last(&self) -> DirId {
        self.open.last().map_or(self.top, |dir| dir.id)
    }

    fn at(&self, depth: usize) -> DirId {
        if depth == 0 { self.top } else { self.open[depth - 1].id }
    }

    fn descend(&mut self) -> io::Result<()> {
        self.open.push(OpenDir::open(self.target, self.last(), NAME)?);
        Ok(())
    }

    /// Goes down, and reads what is there.
    fn walk(&mut self) -> io::Result<()> {
        found(self.target.list_long(self.last())?, 1)?;
        self.descend()
    }

    /// Removes the lowest that is open.
    fn remove(&mut self) -> io::Result<()> {
        drop(self.open.pop());
        self.target.rmdir(self.last(), NAME)
    }
}

fn make_chain(env: &Env<'_>, watch: &Watch) -> io::Result<Pace> {
    let mut chain = Chain::new(env);
    Pace::of(watch, count(env), |_| {
        env.target.mkdir(chain.last(), NAME)?;
        chain.descend()
    })
}

fn make_wide(env: &Env<'_>, watch: &Watch, names: &[CString]) -> io::Result<Pace> {
    Pace::of(watch, names.len() as u64, |at| env.target.mkdir(env.dir, &names[at]))
}

impl Directories {
    fn deep(&self, env: &Env<'_>, watch: &Watch) -> io::Result<Vec<(&'static str, Pace)>> {
        let (count, mut paces) = (count(env), Vec::new());
        if self.cache == Cache::Warm {
            paces.push(("create", make_chain(env, watch)?));
        }
        let mut chain = Chain::new(env);
        paces.push(("walk", Pace::of(watch, count, |_| chain.walk())?));
        let stat = |at: usize| env.target.stat(chain.at(at), NAME).map(drop);
        if self.cache == Cache::Warm {
            paces.push(("stat", Pace::of(watch, count, stat)?));
        }
        paces.push(("remove", Pace::of(watch, count, |_| chain.remove())?));
        Ok(paces)
    }

    fn wide(&self, env: &Env<'_>, watch: &Watch) -> io::Result<Vec<(&'static str, Pace)>> {
        let (names, mut paces) = (numbered("directory", count(env)), Vec::new());
        let count = names.len() as u64;
        if self.cache == Cache::Warm {
            paces.push(("create", make_wide(env, watch, &names)?));
        }
        let enter = |at: usize| {
            let dir = OpenDir::open(env.target, env.dir, &names[at])?;
            found(env.target.list_long(dir.id)?, 0)
        };
        paces.push(("walk", Pace::of(watch, count, enter)?));
        let stat = |at: usize| env.target.stat(env.dir, &names[at * 7919 % names.len()]).map(drop);
        if self.cache == Cache::Warm {
            paces.push(("stat", Pace::of(watch, count, stat)?));
        }
        let remove = |at: usize| env.target.rmdir(env.dir, &names[at]);
        paces.push(("remove", Pace::of(watch, count, remove)?));
        Ok(paces)
    }
}

impl Workload for Directories {
    fn info(&self) -> Info {
        let (name, about, cache, aims) = (self.name, self.about, self.cache, Aims::NONE);
        Info { name, about, unit: "dirs/s", cache, aims, standard: false }
    }

    fn setup(&self, env: &Env<'_>) -> io::Result<()> {
        let watch = Watch::on(env.target.host_path())?;
        match (self.cache, self.shape) {
            (Cache::Warm, _) => return Ok(()),
            (Cache::Cold, Shape::Deep) => make_chain(env, &watch)?,
            (Cache::Cold, Shape::Wide) => {
                make_wide(env, &watch, &numbered("directory", count(env)))?
            }
        };
        Ok(())
    }

    fn run(&self, env: &Env<'_>) -> io::Result<Done> {
        let watch = Watch::on(env.target.host_path())?;
        let paces = match self.shape {
            Shape::Deep => self.deep(env, &watch)?,
            Shape::Wide => self.wide(env, &watch)?,
        };
        let elapsed: Duration = paces.iter().map(|(_, pace)| pace.elapsed()).sum();
        let mut done = Done::new(count(env) as f64, elapsed);
        done.details = paces.iter().map(|(name, pace)| pace.detail(name)).collect::<Vec<Detail>>();
        Ok(done)
    }
}
