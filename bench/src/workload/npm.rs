//! `npm ci` without a network: packages made beforehand, as archives outside of what is measured.
//!
//! One unit of work is one file that is installed.

use super::called::{finish, host_dir, info};
use super::{Cache, Done, Env, Info, Workload};
use std::fmt::Write;
use std::fs;
use std::io;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

/// Of each package.
const FILES: u64 = 50;

pub struct Install;

impl Workload for Install {
    fn info(&self) -> Info {
        info("npm-ci", "npm ci of local packages of 50 files each", Cache::Warm)
    }

    fn setup(&self, env: &Env<'_>) -> io::Result<()> {
        let dir = host_dir(env)?;
        let packages = packages(env);
        let archives = dir.join("archives");
        fs::create_dir(&archives)?;
        let mut wanted = String::new();
        for number in 0..packages {
            make(&archives, number)?;
            let comma = if number == 0 { "" } else { "," };
            let _ = write!(wanted, "{comma}\"p{number}\":\"file:archives/p{number}.tgz\"");
        }
        let manifest =
            format!("{{\"name\":\"b\",\"version\":\"1.0.0\",\"dependencies\":{{{wanted}}}}}");
        fs::write(dir.join("package.json"), manifest)?;
        finish(npm(&dir, &["install", "--package-lock-only"]))
    }

    fn run(&self, env: &Env<'_>) -> io::Result<Done> {
        let command = npm(&host_dir(env)?, &["ci"]);
        let start = Instant::now();
        finish(command)?;
        let elapsed = start.elapsed();
        Ok(Done::new((packages(env) * FILES) as f64, elapsed))
    }
}

fn packages(env: &Env<'_>) -> u64 {
    (env.sizes.tree_files / 2 / FILES).max(2)
}

fn npm(dir: &Path, words: &[&str]) -> Command {
    let mut command = Command::new("npm");
    command.args(words).args(["--offline", "--no-audit", "--no-fund", "--no-update-notifier"]);
    // Its own cache and log are part of what it does.
    command.arg("--cache").arg(dir.join("cache")).current_dir(dir);
    command
}

/// `archives/p{number}.tgz`, a package of `FILES` files.
fn make(archives: &Path, number: u64) -> io::Result<()> {
    let package = archives.join("package");
    fs::create_dir(&package)?;
    let manifest = format!("{{\"name\":\"p{number}\",\"version\":\"1.0.0\"}}");
    fs::write(package.join("package.json"), manifest)?;
    for file in 1..FILES {
        let line = format!("exports.value = {number} * {file};\n");
        fs::write(package.join(format!("file{file}.js")), line.repeat(1 + file as usize % 64))?;
    }
    let mut tar = Command::new("tar");
    tar.arg("-czf").arg(archives.join(format!("p{number}.tgz"))).arg("-C").arg(archives);
    tar.arg("package");
    finish(tar)?;
    fs::remove_dir_all(&package)
}
