//! A source tree: unpacked and removed. On a directory by `tar` and `rm`, in the
//! library by the same operations in this process.

use super::{Aims, Cache, Done, Env, Info, Workload};
use crate::target::{OpenDir, remove_children};
use std::io;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

pub fn all() -> Vec<Box<dyn Workload>> {
    vec![Box::new(Untar), Box::new(Remove)]
}

struct Untar;
struct Remove;

fn info(name: &'static str, about: &'static str) -> Info {
    Info { name, about, unit: "files/s", cache: Cache::Warm, aims: Aims::NONE, standard: true }
}

fn run(program: &str, args: &[&Path]) -> io::Result<()> {
    let output = Command::new(program).args(args).stdin(Stdio::null()).output()?;
    if output.status.success() {
        return Ok(());
    }
    let message = String::from_utf8_lossy(&output.stderr);
    let first = message.lines().next().unwrap_or("no message");
    Err(io::Error::other(format!("{program}: {} ({first})", output.status)))
}

pub(super) fn unpack(env: &Env<'_>) -> io::Result<()> {
    let (tree, tar) = env.material.tree()?;
    match env.host_dir() {
        Some(dir) => run("tar", &["-xf".as_ref(), tar, "-C".as_ref(), &dir]),
        None => tree.unpack(env.target, env.dir),
    }
}

pub(super) fn entries(env: &Env<'_>) -> io::Result<f64> {
    Ok(env.material.tree()?.0.nodes.len() as f64)
}

impl Workload for Untar {
    fn info(&self) -> Info {
        info("untar", "tar x of a source tree")
    }

    fn setup(&self, env: &Env<'_>) -> io::Result<()> {
        env.material.tree().map(drop)
    }

    fn run(&self, env: &Env<'_>) -> io::Result<Done> {
        let start = Instant::now();
        unpack(env)?;
        let elapsed = start.elapsed();
        Ok(Done::new(entries(env)?, elapsed))
    }
}

impl Workload for Remove {
    fn info(&self) -> Info {
        info("rm-rf", "rm -rf of a source tree")
    }

    fn setup(&self, env: &Env<'_>) -> io::Result<()> {
        unpack(env)
    }

    fn run(&self, env: &Env<'_>) -> io::Result<Done> {
        let start = Instant::now();
        match env.host_dir() {
            Some(dir) => run("rm", &["-rf".as_ref(), &dir.join("tree")])?,
            None => {
                let tree = OpenDir::open(env.target, env.dir, c"tree")?;
                remove_children(env.target, tree.id)?;
                drop(tree);
                env.target.rmdir(env.dir, c"tree")?;
            }
        }
        let elapsed = start.elapsed();
        Ok(Done::new(entries(env)?, elapsed))
    }
}
