//! Running a program that measures by its own clock. It works in a directory of the
//! host only; where it is not installed the workload does not apply.

use super::{Env, not_here};
use std::io;
use std::process::{Command, Stdio};

/// Runs `program` with the words of `arguments` in the workload's directory, and returns
/// what it printed. The words go by relative paths: fs_mark refuses long ones.
pub fn run(env: &Env<'_>, program: &str, arguments: &str) -> io::Result<String> {
    let dir = env.host_dir().ok_or_else(|| not_here("needs a directory of the host"))?;
    let mut command = Command::new(program);
    command.args(arguments.split_whitespace()).current_dir(dir).stdin(Stdio::null());
    let output = match command.output() {
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            return Err(not_here(format!("{program} is not installed")));
        }
        other => other?,
    };
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        return Ok(text);
    }
    let message = String::from_utf8_lossy(&output.stderr).into_owned() + &text;
    let first = message.lines().find(|line| !line.trim().is_empty()).unwrap_or("no message");
    Err(io::Error::other(format!("{program}: {} ({first})", output.status)))
}

pub fn not_understood(program: &str) -> io::Error {
    io::Error::other(format!("{program} printed no result that we understand"))
}
