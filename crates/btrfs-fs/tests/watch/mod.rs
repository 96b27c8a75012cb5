//! Runs a case in a thread of its own: a panic and a hang become failures with the case's
//! name.
#![allow(dead_code)]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

/// Far more than any case needs on a busy machine.
const LIMIT: Duration = Duration::from_secs(120);

pub fn watched<T: Send + 'static>(
    case: &str,
    run: impl FnOnce() -> T + Send + 'static,
) -> Result<T, String> {
    let (send, receive) = channel();
    let body = move || {
        // The receiver has gone only if the case took too long.
        let _ = send.send(catch_unwind(AssertUnwindSafe(run)));
    };
    let builder = std::thread::Builder::new().name(case.chars().take(60).collect());
    builder.spawn(body).expect("a thread");
    match receive.recv_timeout(LIMIT) {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(panic)) => Err(format!("{case}: panic: {}", text_of(&*panic))),
        Err(RecvTimeoutError::Timeout) => Err(format!("{case}: no answer in {LIMIT:?}")),
        Err(RecvTimeoutError::Disconnected) => Err(format!("{case}: the thread vanished")),
    }
}

fn text_of(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned())).unwrap_or_default()
}

/// All cases run; the test fails at the end with the list.
#[derive(Default)]
pub struct Failures(Vec<String>);

impl Failures {
    pub fn note<T>(&mut self, result: Result<T, String>) -> Option<T> {
        result.map_err(|why| self.add(why)).ok()
    }

    pub fn add(&mut self, why: String) {
        println!("FAILED {why}");
        self.0.push(why);
    }

    pub fn assert_none(self) {
        assert!(self.0.is_empty(), "{} cases failed: {:#?}", self.0.len(), self.0);
    }
}
