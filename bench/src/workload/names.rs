//! Making and removing names: empty files, one directory per thread.

use super::{Aims, Cache, Done, Env, Info, Workload, in_parallel, numbered};
use crate::target::{OpenDir, OpenFile};
use std::ffi::{CStr, CString};
use std::io;

pub fn all() -> Vec<Box<dyn Workload>> {
    use Kind::*;
    let new = |kind, threads, name, about, aims| -> Box<dyn Workload> {
        Box::new(Names { kind, threads, name, about, aims })
    };
    vec![
        new(Create, 1, "create-1t", "create and close empty files", Aims::mount(0.35)),
        new(Create, 2, "create-2t", "the same, 2 threads", Aims::mount(0.6)),
        new(Unlink, 1, "unlink-1t", "unlink empty files", Aims::mount(1.0)),
        new(Unlink, 2, "unlink-2t", "the same, 2 threads", Aims::NONE),
        new(
            CreateUnlink,
            1,
            "create-unlink-1t",
            "create, close and unlink one name after the other",
            Aims { library: Some(3.0), ..Aims::NONE },
        ),
        new(
            CreateUnlink,
            2,
            "create-unlink-2t",
            "the same, 2 threads",
            Aims { library: Some(3.0), ..Aims::NONE },
        ),
    ]
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Create,
    Unlink,
    CreateUnlink,
}

struct Names {
    kind: Kind,
    threads: u64,
    name: &'static str,
    about: &'static str,
    aims: Aims,
}

impl Names {
    fn files_per_thread(&self, env: &Env<'_>) -> Vec<CString> {
        numbered("file", env.sizes.files / self.threads)
    }

    /// One directory per thread, made or opened.
    fn dirs<'a>(&self, env: &Env<'a>, make: bool) -> io::Result<Vec<OpenDir<'a>>> {
        let open = |name: &CString| match make {
            true => OpenDir::make(env.target, env.dir, name),
            false => OpenDir::open(env.target, env.dir, name),
        };
        numbered("thread", self.threads).iter().map(open).collect()
    }

    fn one(&self, env: &Env<'_>, dir: &OpenDir<'_>, name: &CStr) -> io::Result<()> {
        if self.kind != Kind::Unlink {
            drop(OpenFile::create(env.target, dir.id, name)?);
        }
        if self.kind != Kind::Create {
            env.target.unlink(dir.id, name)?;
        }
        Ok(())
    }
}

impl Workload for Names {
    fn info(&self) -> Info {
        Info {
            name: self.name,
            about: self.about,
            unit: "files/s",
            cache: Cache::Warm,
            aims: self.aims,
            standard: true,
        }
    }

    fn setup(&self, env: &Env<'_>) -> io::Result<()> {
        let dirs = self.dirs(env, true)?;
        if self.kind == Kind::Unlink {
            let names = self.files_per_thread(env);
            for dir in &dirs {
                for name in &names {
                    drop(OpenFile::create(env.target, dir.id, name)?);
                }
            }
        }
        Ok(())
    }

    fn run(&self, env: &Env<'_>) -> io::Result<Done> {
        let dirs = self.dirs(env, false)?;
        let names = self.files_per_thread(env);
        let elapsed = in_parallel(self.threads, |thread| {
            let dir = &dirs[thread as usize];
            names.iter().try_for_each(|name| self.one(env, dir, name))
        })?;
        Ok(Done::new((names.len() as u64 * self.threads) as f64, elapsed))
    }
}
