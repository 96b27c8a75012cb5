//! Running a program to its end, with a limit on how long that may take.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Runs `command`; fails with what it printed if it fails, and kills it at `limit`.
/// Its output goes to a file in `scratch`, not a pipe: a server that it leaves behind
/// inherits the output, and a pipe would not end before the server does.
pub fn run(command: &mut Command, scratch: &Path, limit: Duration) -> io::Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    let log_path = scratch.join("command.log");
    let mut log = File::options().read(true).append(true).create(true).open(&log_path)?;
    let start_of_log = log.seek(SeekFrom::End(0))?;
    command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log.try_clone()?);
    let mut child =
        command.spawn().map_err(|e| io::Error::new(e.kind(), format!("{name}: {e}")))?;
    let start = Instant::now();
    let mut pause = Duration::from_micros(200);
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if start.elapsed() > limit {
            child.kill()?;
            child.wait()?;
            return Err(io::Error::new(
                io::ErrorKind::TimedOut,
                format!("{command:?}: no end after {} s", limit.as_secs()),
            ));
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(10));
    };
    if status.success() {
        return Ok(());
    }
    log.seek(SeekFrom::Start(start_of_log))?;
    let mut said = Vec::new();
    log.take(64 << 10).read_to_end(&mut said)?;
    let said = String::from_utf8_lossy(&said);
    Err(io::Error::other(format!("{command:?}: {status}: {}", said.trim())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::tests::Scratch;

    #[test]
    fn failures_carry_what_was_said_and_hangs_end() {
        let scratch = Scratch::new("command");
        let sh = |script: &str, limit: Duration| {
            run(Command::new("sh").args(["-c", script]), &scratch.0, limit)
        };
        let long = Duration::from_secs(60);
        sh("true", long).unwrap();
        // A process left behind that holds the output does not hold us up.
        let start = Instant::now();
        sh("sleep 5 & true", long).unwrap();
        assert!(start.elapsed() < Duration::from_secs(4));
        let error = sh("echo broken >&2; exit 3", long).unwrap_err().to_string();
        assert!(error.contains("broken") && error.contains('3'), "{error}");
        let error = sh("exec sleep 60", Duration::from_millis(50)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        let missing = run(&mut Command::new("/nonexistent/program"), &scratch.0, long);
        assert_eq!(missing.unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
