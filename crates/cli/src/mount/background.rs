//! A server in the background: the command returns when the mount is ready, or with the
//! server's own error. `guard` says how it learns of it, and for how long it waits.

use super::guard::{self, Deputy, MountTarget, Start, Teller};
use crate::error::{Error, Exit, Result, io_text, say_error};
use crate::sys::{self, Fork};
use std::io::{self, PipeReader, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Tells who waits how the start goes.
pub struct Reporter {
    guard: Option<Teller>,
    /// The terminal is whoever waits on the other side; else nobody, or this one.
    background: bool,
    quiet: bool,
    ready: bool,
}

impl Reporter {
    pub fn foreground(place: &MountTarget, quiet: bool) -> Reporter {
        let guard = guard::from_a_process_apart(place);
        if let Err(error) = &guard {
            say_error(&format!("spinney: nobody watches over the start: {}", io_text(error)));
        }
        Reporter { guard: guard.ok(), background: false, quiet, ready: false }
    }

    /// The volume is open; from here on it takes no time.
    pub fn mounting(&mut self) {
        self.tell(b'M', "");
    }

    /// The mount answers.
    pub fn ready(&mut self, text: &str) {
        self.ready = true;
        self.tell(b'R', text);
        self.guard = None;
        if !self.background && !self.quiet {
            say(text);
        }
    }

    pub fn was_ready(&self) -> bool {
        self.ready
    }

    /// There will be no mount. Without effect once `ready` was told.
    fn failed(&mut self, text: &str) {
        self.tell(b'E', text);
        self.guard = None;
    }

    fn tell(&mut self, code: u8, text: &str) {
        if let Some(guard) = &mut self.guard {
            guard.tell(code, text);
        }
    }
}

/// Standard output may be closed.
fn say(text: &str) {
    let _ = writeln!(io::stdout(), "{text}");
}

/// Runs `serve` in a process of its own. All paths in it must be absolute.
pub fn run(
    place: &MountTarget,
    quiet: bool,
    serve: impl FnOnce(&mut Reporter) -> Result<Exit>,
) -> Result<Exit> {
    let failed =
        |error: io::Error| Error::new(format!("starting in the background: {}", io_text(&error)));
    let (teller, reader) = Teller::pair().map_err(failed)?;
    match sys::fork().map_err(failed)? {
        Fork::Parent { child } => {
            drop(teller);
            wait(child, reader, place, quiet)
        }
        Fork::Child => {
            drop(reader);
            let mut reporter =
                Reporter { guard: Some(teller), background: true, quiet, ready: false };
            std::process::exit(i32::from(child(&mut reporter, serve)))
        }
    }
}

fn child(reporter: &mut Reporter, serve: impl FnOnce(&mut Reporter) -> Result<Exit>) -> u8 {
    let keep = reporter.guard.as_ref().map_or(-1, Teller::descriptor);
    let detached = sys::new_session()
        .and_then(|()| sys::null_stdio())
        .and_then(|()| std::env::set_current_dir("/"));
    sys::close_others(&mut [keep]);
    let result = match detached {
        Ok(()) => catch_unwind(AssertUnwindSafe(|| serve(reporter)))
            .unwrap_or_else(|_| Err(Error::new("the server panicked; its log says where"))),
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

fn wait(child: i32, reader: PipeReader, place: &MountTarget, quiet: bool) -> Result<Exit> {
    let deputy = Deputy::new(child, &reader, place);
    if let Err(error) = &deputy {
        let error = io_text(error);
        say_error(&format!("spinney: if this command is killed, the start goes on: {error}"));
    }
    let mut how = None;
    let start = guard::watch(child, reader, place, |limit| {
        guard::eventually(limit, || {
            how = sys::ended(child);
            how.is_some()
        })
    });
    if let Ok(deputy) = deputy {
        deputy.dismiss();
    }
    match start {
        Start::Ready(text) => {
            if !quiet {
                say(&text);
            }
            Ok(Exit::Done)
        }
        Start::Failed(text) => {
            say_error(&text);
            Ok(Exit::Failed)
        }
        Start::Died => {
            let how = how.unwrap_or_else(|| "closed its pipe".into());
            Err(Error::new(format!("the server in the background {how} before it was ready")))
        }
        Start::TooLong(doing, seconds) => {
            say_error(&guard::too_long(doing, seconds));
            Ok(Exit::Failed)
        }
    }
}
