//! What the workloads share that call a program of everyday use, whose time is measured here.

use super::{Aims, Cache, Env, Info, not_here};
use std::io;
use std::path::PathBuf;
use std::process::{Command, Stdio};

pub(super) fn info(name: &'static str, about: &'static str, cache: Cache) -> Info {
    Info { name, about, unit: "files/s", cache, aims: Aims::NONE, standard: false }
}

pub(super) fn host_dir(env: &Env<'_>) -> io::Result<PathBuf> {
    env.host_dir().ok_or_else(|| not_here("programs need a directory of the host"))
}

/// What it says goes nowhere. A search that finds nothing ends with 1.
pub(super) fn finish(mut command: Command) -> io::Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).output();
    let output = match output {
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            return Err(not_here(format!("{name} is not installed")));
        }
        other => other?,
    };
    let code = output.status.code();
    if code == Some(0) || code == Some(1) && output.stderr.is_empty() {
        return Ok(());
    }
    let message = String::from_utf8_lossy(&output.stderr);
    let first = message.lines().next().unwrap_or("no message");
    Err(io::Error::other(format!("{name}: {} ({first})", output.status)))
}
