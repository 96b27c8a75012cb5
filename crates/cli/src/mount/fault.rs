//! Makes a start fail where a test wants it: `SPINNEY_FAULT=STEP=WHAT`. Debug builds only;
//! in others nobody asks.

use std::io;

/// The steps of `serve`; `fuse::Config::STEPS` are those of mounting itself.
#[cfg(debug_assertions)]
const STEPS: &[&str] = &["log", "opened", "listening", "ready"];

/// Work that gets on.
#[cfg(debug_assertions)]
const BUSY: std::time::Duration = std::time::Duration::from_secs(4);

#[cfg(not(debug_assertions))]
pub fn at(_: &'static str) -> io::Result<()> {
    Ok(())
}

#[cfg(debug_assertions)]
pub fn at(step: &'static str) -> io::Result<()> {
    debug_assert!(STEPS.contains(&step) || fuse::Config::STEPS.contains(&step), "{step}");
    let wanted = std::env::var("SPINNEY_FAULT").unwrap_or_default();
    let Some((_, what)) = wanted.split_once('=').filter(|(name, _)| *name == step) else {
        return Ok(());
    };
    match what {
        "panic" => panic!("asked to panic at {step}"),
        "abort" => std::process::abort(),
        "kill" => crate::sys::kill(std::process::id() as i32),
        "stop" => crate::sys::stop_myself(),
        "hang" => loop {
            std::thread::park();
        },
        "busy" => {
            let start = std::time::Instant::now();
            while start.elapsed() < BUSY {}
        }
        _ => return Err(io::Error::other(format!("asked to fail at {step}"))),
    }
    Ok(())
}
