//! A server in the background: the command returns when the mount is ready, or with the
//! server's own error.
//!
//! The child reports once over a pipe: one byte (`R`eady or `E`rror) and a text. A child
//! that dies without a word is reported by how it ended.

use crate::error::{Error, Exit, Result, io_text, say_error};
use crate::sys::{self, Fork};
use std::io::{PipeReader, PipeWriter, Read, Write};
use std::os::fd::AsRawFd;

/// Tells the waiting command how the start went.
pub struct Reporter {
    pipe: Option<PipeWriter>,
    quiet: bool,
    ready: bool,
}

impl Reporter {
    /// In the foreground there is nobody but the terminal.
    pub fn foreground(quiet: bool) -> Reporter {
        Reporter { pipe: None, quiet, ready: false }
    }

    /// The mount answers.
    pub fn ready(&mut self, text: &str) {
        self.ready = true;
        match self.pipe.take() {
            Some(pipe) => tell(pipe, b'R', text),
            None if self.quiet => {}
            None => say(text),
        }
    }

    pub fn was_ready(&self) -> bool {
        self.ready
    }

    /// There will be no mount. Without effect once `ready` was told.
    fn failed(&mut self, text: &str) {
        if let Some(pipe) = self.pipe.take() {
            tell(pipe, b'E', text);
        }
    }
}

/// Standard output may be closed.
fn say(text: &str) {
    let _ = writeln!(std::io::stdout(), "{text}");
}

fn tell(mut pipe: PipeWriter, code: u8, text: &str) {
    // The command may be gone; the server goes on without it.
    let _ = pipe.write_all(&[&[code], text.as_bytes()].concat());
}

/// Runs `serve` in a process of its own. All paths in it must be absolute.
pub fn run(quiet: bool, serve: impl FnOnce(&mut Reporter) -> Result<Exit>) -> Result<Exit> {
    let failed = |error: std::io::Error| {
        Error::new(format!("starting in the background: {}", io_text(&error)))
    };
    let (reader, writer) = std::io::pipe().map_err(failed)?;
    match sys::fork().map_err(failed)? {
        Fork::Parent { child } => {
            drop(writer);
            wait(child, reader, quiet)
        }
        Fork::Child => {
            drop(reader);
            let mut reporter = Reporter { pipe: Some(writer), quiet, ready: false };
            std::process::exit(i32::from(child(&mut reporter, serve)))
        }
    }
}

fn child(reporter: &mut Reporter, serve: impl FnOnce(&mut Reporter) -> Result<Exit>) -> u8 {
    let keep = reporter.pipe.as_ref().map_or(-1, AsRawFd::as_raw_fd);
    let detached = sys::new_session()
        .and_then(|()| sys::null_stdio())
        .and_then(|()| std::env::set_current_dir("/"));
    sys::close_others(keep);
    // A try: without the right, or on kernels without groups, it is served as it is.
    let _ = sys::favour_session();
    let result = match detached {
        Ok(()) => serve(reporter),
        Err(error) => Err(Error::new(format!("leaving the terminal: {}", io_text(&error)))),
    };
    match result {
        Ok(exit) => exit.code(),
        Err(error) => {
            tracing::error!("{}", error.text());
            reporter.failed(&error.to_string());
            Exit::from(&error).code()
        }
    }
}

fn wait(child: i32, mut reader: PipeReader, quiet: bool) -> Result<Exit> {
    let mut report = Vec::new();
    let read = reader.read_to_end(&mut report);
    let text = String::from_utf8_lossy(report.get(1..).unwrap_or_default());
    match (read, report.first()) {
        (Ok(_), Some(b'R')) => {
            if !quiet {
                say(&text);
            }
            Ok(Exit::Done)
        }
        (Ok(_), Some(_)) => {
            say_error(&text);
            Ok(Exit::Failed)
        }
        _ => {
            let how = sys::wait_for(child).unwrap_or_else(|e| io_text(&e));
            Err(Error::new(format!("the server in the background {how} before it was ready")))
        }
    }
}
