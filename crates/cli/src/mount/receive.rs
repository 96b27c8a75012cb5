//! Streams that the server receives into its own volume: `spinney receive` of a mount sends them over
//! the control socket, once a control operation on the directory has found that it may, and got
//! a word for it (`btrfs_fs::control::wire::RECEIVE`).
//!
//! The one who sends says `receive`, the word and how; the answer is a line, `ready` or why not. Behind
//! that he sends pieces of the stream, each behind its length; an empty one is the end of his input,
//! and [`FAILED`] in place of a length says that it could not be read, with the error's number. The
//! server sends what happens: a kind, a length, bytes. Who goes before the end ends it; what was under
//! way stays unfinished.
//!
//! Invariant: no stream is at work when the volume is closed (`Receivers::end`).

use crate::sys;
use btrfs_fs::BtrfsFs;
use btrfs_receiver::{Error, Event, Options};
use std::collections::HashMap;
use std::io::{self, BufReader, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};

/// What a line begins with that asks for it.
pub const RECEIVE: &str = "receive ";
/// The answer.
pub const READY: &str = "ready";
/// See above.
pub const FAILED: u32 = u32::MAX;
/// Bytes of the longest piece.
pub const PIECE: usize = 1 << 18;
/// Longer messages there are none.
const MESSAGE: u32 = 1 << 16;

/// What the server tells.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ServerMessage {
    /// A subvolume of this name began.
    Begun(Vec<u8>),
    /// A command of it failed, and it goes on.
    Failed(String),
    /// All is done; so many commands failed.
    Done(u64),
    /// The stream itself ended it.
    Stream(String),
    /// Something else did.
    Ended(String),
}

impl ServerMessage {
    fn parts(&self) -> (u8, Vec<u8>) {
        match self {
            ServerMessage::Begun(name) => (0, name.clone()),
            ServerMessage::Failed(text) => (1, text.clone().into_bytes()),
            ServerMessage::Done(failed) => (2, failed.to_le_bytes().to_vec()),
            ServerMessage::Stream(text) => (3, text.clone().into_bytes()),
            ServerMessage::Ended(text) => (4, text.clone().into_bytes()),
        }
    }

    fn write(&self, mut to: &UnixStream) -> io::Result<()> {
        let (kind, mut bytes) = self.parts();
        bytes.truncate(MESSAGE as usize);
        let len = (bytes.len() as u32).to_le_bytes();
        to.write_all(&[&[kind][..], &len, &bytes].concat())
    }

    /// The next one.
    pub fn read(mut from: impl Read) -> io::Result<ServerMessage> {
        let mut head = [0; 5];
        from.read_exact(&mut head)?;
        let [kind, len @ ..] = head;
        let len = u32::from_le_bytes(len);
        if len > MESSAGE {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut bytes = vec![0; len as usize];
        from.read_exact(&mut bytes)?;
        let text = || String::from_utf8_lossy(&bytes).into_owned();
        Ok(match kind {
            0 => ServerMessage::Begun(bytes),
            1 => ServerMessage::Failed(text()),
            2 => ServerMessage::Done(bytes.try_into().map(u64::from_le_bytes).unwrap_or(0)),
            3 => ServerMessage::Stream(text()),
            _ => ServerMessage::Ended(text()),
        })
    }
}

/// How a stream is to be played, in words.
fn words(options: &Options) -> String {
    let Options { only_one, max_errors, decompress } = options;
    format!("{} {max_errors} {}", u8::from(*only_one), u8::from(*decompress))
}

/// The word and the rest of a line.
pub fn line(word: &[u8], options: &Options) -> String {
    format!("{RECEIVE}{} {}", hex(word), words(options))
}

/// A word that is no text, in a line.
pub(super) fn hex(word: &[u8]) -> String {
    word.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// It again.
pub(super) fn word_of(hex: &str) -> Option<Vec<u8>> {
    let byte = |at: usize| u8::from_str_radix(hex.get(at..at + 2)?, 16).ok();
    (0..hex.len()).step_by(2).map(byte).collect()
}

fn parse(line: &str) -> Option<(Vec<u8>, Options)> {
    let mut words = line.strip_prefix(RECEIVE)?.split(' ');
    let word = word_of(words.next()?)?;
    let mut number = || words.next()?.parse::<u64>().ok();
    let (only_one, max_errors, decompress) = (number()? != 0, number()?, number()? != 0);
    Some((word, Options { only_one, max_errors, decompress }))
}

/// The server's side.
pub struct Receivers {
    fs: Weak<BtrfsFs>,
    work: Mutex<Work>,
    less: Condvar,
}

#[derive(Default)]
struct Work {
    count: usize,
    open: HashMap<usize, UnixStream>,
    ended: bool,
}

impl Receivers {
    pub fn new(fs: &Arc<BtrfsFs>) -> Receivers {
        Receivers { fs: Arc::downgrade(fs), work: Mutex::default(), less: Condvar::new() }
    }

    /// Plays what comes behind `line`, to its end.
    pub fn serve(&self, line: &str, stream: &UnixStream) {
        let answer = |text: &str| (&*stream).write_all(format!("{text}\n").as_bytes());
        let refused = |text: &str| _ = answer(text);
        let Some((word, options)) = parse(line) else { return refused("it cannot do that") };
        let Some(_inside) = self.enter(stream) else { return refused("it has ended") };
        let Some(fs) = self.fs.upgrade() else { return refused("it has ended") };
        // It goes before `_inside` does: who waits for that may close the volume.
        match fs.take_ticket(&word) {
            Some(dir) if answer(READY).is_ok() => play(&fs, dir, stream, options),
            Some(_) => {}
            None => refused("ask the directory first"),
        }
    }

    fn enter(&self, stream: &UnixStream) -> Option<Inside<'_>> {
        let copy = stream.try_clone().ok()?;
        let mut work = self.work.lock().unwrap_or_else(PoisonError::into_inner);
        if work.ended {
            return None;
        }
        work.count += 1;
        let number = work.count;
        work.open.insert(number, copy);
        Some(Inside(self, number))
    }

    /// The mount is gone: what is under way stays unfinished. Returns when nobody is at work.
    pub fn end(&self) {
        let mut work = self.work.lock().unwrap_or_else(PoisonError::into_inner);
        work.ended = true;
        work.open.values().for_each(|stream| _ = stream.shutdown(Shutdown::Both));
        while !work.open.is_empty() {
            work = self.less.wait(work).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// One that is at work.
struct Inside<'r>(&'r Receivers, usize);

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        let mut work = self.0.work.lock().unwrap_or_else(PoisonError::into_inner);
        work.open.remove(&self.1);
        self.0.less.notify_all();
    }
}

fn play(fs: &Arc<BtrfsFs>, dir: vfs::Ino, stream: &UnixStream, options: Options) {
    tracing::info!("a stream is received");
    // Who does not read what he is told holds up nobody but himself.
    let _ = stream.set_write_timeout(None);
    let pieces = Pieces { stream, left: 0, ended: false };
    let mut input = BufReader::with_capacity(PIECE, pieces);
    let told = &mut |event: Event<'_>| {
        // If he is gone, the stream ends as well.
        let _ = match event {
            Event::Begun { name, .. } => ServerMessage::Begun(name.to_vec()).write(stream),
            Event::Failed(error) => ServerMessage::Failed(error.to_string()).write(stream),
        };
    };
    let gone = || sys::has_hung_up(stream);
    let done = spinney::receive_live(fs, dir, &mut input, options, told, &gone);
    let end = match done {
        Ok(Ok(failed)) => ServerMessage::Done(failed),
        Ok(Err(error @ Error::Stream(_))) => ServerMessage::Stream(error.to_string()),
        Ok(Err(error)) => ServerMessage::Ended(error.to_string()),
        Err(error) => ServerMessage::Ended(error.to_string()),
    };
    match &end {
        ServerMessage::Stream(why) | ServerMessage::Ended(why) => {
            tracing::info!("the stream ended: {why}")
        }
        _ => tracing::info!("the stream is complete"),
    }
    let _ = end.write(stream);
    // He may be sending still; an end with something unread would take the message with it.
    let _ = stream.shutdown(Shutdown::Write);
    let _ = io::copy(&mut &*stream, &mut io::sink());
}

/// The stream, as it was before it was cut.
struct Pieces<'s> {
    stream: &'s UnixStream,
    /// Of the piece that has begun.
    left: usize,
    ended: bool,
}

impl Pieces<'_> {
    fn number(&mut self) -> io::Result<u32> {
        let mut bytes = [0; 4];
        let gone = || io::Error::other("who sent it has ended");
        self.stream.read_exact(&mut bytes).map_err(|_| gone())?;
        Ok(u32::from_le_bytes(bytes))
    }
}

impl Read for Pieces<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if self.left == 0 && !self.ended {
            match self.number()? {
                0 => self.ended = true,
                FAILED => {
                    let code = self.number()?;
                    return Err(io::Error::from_raw_os_error(code as i32));
                }
                len => self.left = len as usize,
            }
        }
        if self.ended || buf.is_empty() {
            return Ok(0);
        }
        let most = buf.len().min(self.left);
        match self.stream.read(&mut buf[..most])? {
            0 => Err(io::Error::other("who sent it has ended")),
            some => {
                self.left -= some;
                Ok(some)
            }
        }
    }
}
