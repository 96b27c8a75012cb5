//! Asking for attributes: by name, and of a whole directory as `ls -l` does.
//! All files are empty and in one directory.

use super::{Aims, Cache, Done, Env, Info, Workload, in_parallel, numbered};
use crate::target::{OpenDir, OpenFile};
use std::ffi::CString;
use std::io;

pub fn all() -> Vec<Box<dyn Workload>> {
    use Kind::*;
    let new = |kind, cache, name, about, aims| -> Box<dyn Workload> {
        Box::new(Stat { kind, cache, name, about, aims })
    };
    vec![
        new(ByName, Cache::Cold, "stat-cold", "stat every file of a directory", Aims::mount(0.5)),
        new(ByName, Cache::Warm, "stat-hot", "the same, seen before", Aims::mount(1.0)),
        new(
            Walk,
            Cache::Cold,
            "ls-l-cold",
            "readdir and stat of every entry, as ls -l",
            Aims::both(1.0, 1.0),
        ),
        new(Walk, Cache::Warm, "ls-l-hot", "the same, seen before", Aims::NONE),
    ]
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    ByName,
    Walk,
}

struct Stat {
    kind: Kind,
    cache: Cache,
    name: &'static str,
    about: &'static str,
    aims: Aims,
}

impl Stat {
    fn pass(&self, env: &Env<'_>, dir: &OpenDir<'_>, names: &[CString]) -> io::Result<()> {
        match self.kind {
            Kind::ByName => {
                names.iter().try_for_each(|name| env.target.stat(dir.id, name).map(drop))
            }
            Kind::Walk => match env.target.list_long(dir.id)? {
                n if n == names.len() as u64 => Ok(()),
                n => Err(io::Error::other(format!("{n} entries listed of {}", names.len()))),
            },
        }
    }
}

impl Workload for Stat {
    fn info(&self) -> Info {
        Info {
            name: self.name,
            about: self.about,
            unit: "files/s",
            cache: self.cache,
            aims: self.aims,
            standard: true,
        }
    }

    fn setup(&self, env: &Env<'_>) -> io::Result<()> {
        let dir = OpenDir::make(env.target, env.dir, c"files")?;
        for name in numbered("file", env.sizes.walk_files) {
            drop(OpenFile::create(env.target, dir.id, &name)?);
        }
        Ok(())
    }

    fn run(&self, env: &Env<'_>) -> io::Result<Done> {
        let dir = OpenDir::open(env.target, env.dir, c"files")?;
        let names = numbered("file", env.sizes.walk_files);
        let passes = match self.cache {
            Cache::Cold => 1,
            Cache::Warm => {
                self.pass(env, &dir, &names)?;
                3
            }
        };
        let elapsed =
            in_parallel(1, |_| (0..passes).try_for_each(|_| self.pass(env, &dir, &names)))?;
        Ok(Done::new((names.len() * passes) as f64, elapsed))
    }
}
