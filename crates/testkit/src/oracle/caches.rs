//! Making the kernel forget what it caches, without being held up for ever.
//!
//! The switch goes through every mount of the machine and waits for each; one that hangs,
//! whoever's it is, makes the writer wait where not even a signal reaches it. So a
//! process of its own turns it, and is left alone if it does not come back.

use super::record_skip;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Far more than it takes on a busy machine.
const LIMIT: Duration = Duration::from_secs(30);

/// Drops clean pages (1), names and inodes (2) or both (3), of all mounts. Where that is
/// not possible the test goes on warm, and what it lacks is recorded.
pub fn drop_caches(what: u8) {
    static STUCK: AtomicBool = AtomicBool::new(false);
    if STUCK.load(Ordering::Relaxed) {
        return;
    }
    if let Err(why) = turn(&format!("echo {what} >/proc/sys/vm/drop_caches"), LIMIT) {
        STUCK.store(true, Ordering::Relaxed);
        record_skip("cold caches", &why);
    }
}

fn turn(script: &str, limit: Duration) -> Result<(), String> {
    let mut command = Command::new("sh");
    command.args(["-c", script]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn().map_err(|e| format!("sh: {e}"))?;
    let start = Instant::now();
    loop {
        match child.try_wait().map_err(|e| format!("sh: {e}"))? {
            Some(status) if status.success() => return Ok(()),
            Some(_) => return Err("caches cannot be dropped (not root?)".into()),
            None if start.elapsed() < limit => std::thread::sleep(Duration::from_millis(2)),
            None => {
                // Without waiting: it may never end.
                let _ = child.kill();
                return Err("caches cannot be dropped: a mount of this machine hangs".into());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_come_back_is_left_alone() {
        assert_eq!(turn("true", LIMIT), Ok(()));
        assert!(turn("exit 1", LIMIT).unwrap_err().contains("root"));
        let start = Instant::now();
        assert!(turn("exec sleep 60", Duration::from_millis(50)).unwrap_err().contains("hangs"));
        assert!(start.elapsed() < Duration::from_secs(30));
    }
}
