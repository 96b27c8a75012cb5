//! Control operations that are the file system's own: passed on with who asks.
//!
//! What the kernel remembers of names that such an operation changed is gone before the caller
//! hears the answer. The kernel holds no lock of the directory meanwhile, but others may, who
//! wait for us: so another thread tells it, and is not waited for longer than a moment.

// Where bytes become numbers a cut one is a wrong answer.
#![cfg_attr(not(test), deny(clippy::as_conversions))]

use super::failure::Answer;
use super::pages::ForLong;
use super::reply::Out;
use super::request::Request;
use super::waits::Listening;
use super::{Dispatcher, caller};
use crate::abi::record::{IoctlIn, IoctlOut};
use std::cell::{Cell, RefCell};
use vfs::{Asker, Errno, Ino, Result, Who};

/// Work of more steps counts among what takes long.
/// Chosen, not measured.
const SHORT: u32 = 32;

struct Asking<'a> {
    dispatcher: &'a Dispatcher,
    /// From before the operation begins: a signal may come before it has come to wait.
    listening: Listening<'a>,
    request: &'a Request<'a>,
    ino: Ino,
    command: u32,
    /// Steps of work so far.
    steps: Cell<u32>,
    /// Held from when there were many.
    place: RefCell<Option<ForLong<'a>>>,
}

impl Asker for Asking<'_> {
    fn who(&self) -> Result<Who> {
        let Dispatcher { callers, owners, fs, server, .. } = self.dispatcher;
        let mut who =
            caller::who(&**callers, &self.request.header, (self.command, self.ino), *server);
        owners.ask(&mut who, || fs.getattr(self.ino))?;
        Ok(who)
    }

    fn wait(&self, done: &mut dyn FnMut() -> Result<bool>) -> Result<()> {
        let waiters = &self.dispatcher.waiters;
        let _place = waiters.enter_for_long(self.request.origin).ok_or(Errno::EBUSY)?;
        self.listening.wait(done)
    }

    fn fetch(&self, ino: Ino) -> Result<()> {
        // One place is enough for one thread. What comes behind this takes its own again.
        drop(self.place.take());
        match self.dispatcher.pages_sent(&self.listening, self.request, ino)? {
            true => Ok(()),
            false => Err(Errno::ETXTBSY.into()),
        }
    }

    fn goes_on(&self) -> Result<()> {
        self.steps.set(self.steps.get().saturating_add(1));
        let mut place = self.place.borrow_mut();
        if self.steps.get() > SHORT && place.is_none() {
            let waiters = &self.dispatcher.waiters;
            *place = Some(waiters.enter_for_long(self.request.origin).ok_or(Errno::EBUSY)?);
        }
        self.listening.goes_on()
    }
}

impl Dispatcher {
    pub(super) fn control(
        &self,
        request: &Request<'_>,
        ino: Ino,
        arg: &IoctlIn,
        input: &[u8],
        out: &mut Out<'_>,
    ) -> Answer<()> {
        let control = self.control.as_ref().ok_or(Errno::ENOTTY)?;
        if self.notifier.has_many_names(ino) {
            return Err(Errno::EBUSY.into());
        }
        let listening = self.waits.listen(request.header.unique);
        let (steps, place) = Default::default();
        let command = arg.cmd;
        let asker = Asking { dispatcher: self, listening, request, ino, command, steps, place };
        let done = control.control(&asker, ino, arg.cmd, input)?;
        done.names.iter().for_each(|(dir, name)| self.notifier.name_changed(*dir, name));
        let dirs: Vec<Ino> = done.names.iter().map(|(dir, _)| *dir).collect();
        self.notifier.names_sent(&dirs);
        out.put_first(&IoctlOut { result: done.result, ..IoctlOut::default() })?;
        let room = usize::try_from(arg.out_size).unwrap_or(usize::MAX).min(done.answer.len());
        out.bytes(&done.answer[..room])
    }
}
