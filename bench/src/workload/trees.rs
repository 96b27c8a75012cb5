//! What people do with a source tree: copy it, walk it, search it, ask git what changed, and
//! install packages. Programs on a directory of the host; nothing in the library.
//!
//! One unit of work is one entry of the tree, whatever the program does with it.

use super::called::{finish, host_dir, info};
use super::{Cache, Done, Env, Info, Workload, npm, tree};
use std::io;
use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

pub fn all() -> Vec<Box<dyn Workload>> {
    let cold = Cache::Cold;
    let mut list: Vec<Box<dyn Workload>> = vec![
        program("cp-a", "cp -a of the tree", Cache::Warm, copy),
        program("find-cold", "find -printf %s of the tree, nothing cached", cold, find),
        program("find-warm", "the same again", Cache::Warm, find),
        program("grep-cold", "grep -r through the tree, nothing cached", cold, grep),
        program("grep-warm", "the same again", Cache::Warm, grep),
        Box::new(GitStatus),
    ];
    list.push(Box::new(npm::Install));
    list
}

/// A program of one call.
struct Program {
    info: Info,
    command: fn(PathBuf) -> Command,
}

fn program(
    name: &'static str,
    about: &'static str,
    cache: Cache,
    command: fn(PathBuf) -> Command,
) -> Box<dyn Workload> {
    Box::new(Program { info: info(name, about, cache), command })
}

fn copy(dir: PathBuf) -> Command {
    let mut command = Command::new("cp");
    command.arg("-a").arg(dir.join("tree")).arg(dir.join("copy"));
    command
}

fn find(dir: PathBuf) -> Command {
    let mut command = Command::new("find");
    command.arg(dir.join("tree")).args(["-printf", "%s\n"]);
    command
}

fn grep(dir: PathBuf) -> Command {
    let mut command = Command::new("grep");
    command.args(["-r", "no such word"]).arg(dir.join("tree"));
    command
}

fn git(dir: PathBuf, words: &[&str]) -> Command {
    let mut command = Command::new("git");
    // Nothing of it works on beside what is measured, and nothing comes from the machine's user.
    for setting in ["gc.auto=0", "maintenance.auto=false", "user.name=b", "user.email=b@b"] {
        command.args(["-c", setting]);
    }
    command.args(words).current_dir(dir.join("tree"));
    command.env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_NOSYSTEM", "1");
    command
}

impl Workload for Program {
    fn info(&self) -> Info {
        self.info
    }

    fn setup(&self, env: &Env<'_>) -> io::Result<()> {
        let dir = host_dir(env)?;
        tree::unpack(env)?;
        // Warm is what was asked for once.
        if self.info.name.ends_with("-warm") { finish((self.command)(dir)) } else { Ok(()) }
    }

    fn run(&self, env: &Env<'_>) -> io::Result<Done> {
        let command = (self.command)(host_dir(env)?);
        let start = Instant::now();
        finish(command)?;
        let elapsed = start.elapsed();
        Ok(Done::new(tree::entries(env)?, elapsed))
    }
}

struct GitStatus;

impl Workload for GitStatus {
    fn info(&self) -> Info {
        info("git-status", "git status of the tree, all of it committed", Cache::Warm)
    }

    fn setup(&self, env: &Env<'_>) -> io::Result<()> {
        let dir = host_dir(env)?;
        tree::unpack(env)?;
        let steps: [&[&str]; 4] =
            [&["init", "-q"], &["add", "-A"], &["commit", "-qm", "all"], &["status", "-s"]];
        steps.into_iter().try_for_each(|words| finish(git(dir.clone(), words)))
    }

    fn run(&self, env: &Env<'_>) -> io::Result<Done> {
        let command = git(host_dir(env)?, &["status", "-s"]);
        let start = Instant::now();
        finish(command)?;
        let elapsed = start.elapsed();
        Ok(Done::new(tree::entries(env)?, elapsed))
    }
}
