//! A reader that ends where its stream does: behind the first end command nothing is taken from the input,
//! which may be somebody else's.
//!
//! Invariant: nothing is read that a stream need not have. It does not know what is right: what makes no sense
//! goes on to who decodes it.

use crate::wire::{self, Number};
use std::io::{self, Read};

/// The first of several streams that stand one behind the other.
pub struct Alone<R> {
    from: R,
    /// A header, of which so many bytes were given out.
    header: Vec<u8>,
    given: usize,
    /// Bytes of the command's attributes that are still to come.
    left: usize,
    next: Next,
}

enum Next {
    Stream,
    Command,
    End,
}

impl<R: Read> Alone<R> {
    /// Reads nothing yet.
    pub fn new(from: R) -> Alone<R> {
        Alone { from, header: Vec::new(), given: 0, left: 0, next: Next::Stream }
    }

    /// Reads the next header, unless the stream is at its end.
    fn proceed(&mut self) -> io::Result<()> {
        let len = match std::mem::replace(&mut self.next, Next::End) {
            Next::Stream => wire::STREAM_HEADER,
            Next::Command => wire::COMMAND_HEADER,
            Next::End => return Ok(()),
        };
        (self.given, self.left) = (0, 0);
        self.header.clear();
        self.from.by_ref().take(wire::wide(len)).read_to_end(&mut self.header)?;
        if self.header.len() < len {
            return Ok(());
        }
        self.next = Next::Command;
        if len == wire::COMMAND_HEADER
            && let [a, b, c, d, e, f, ..] = self.header[..]
        {
            self.left = wire::index(u32::from_le_bytes([a, b, c, d]));
            if Number::of(u16::from_le_bytes([e, f])) == Some(Number::End) {
                self.next = Next::End;
            }
        }
        Ok(())
    }
}

impl<R: Read> Read for Alone<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if self.given == self.header.len() && self.left == 0 {
            self.proceed()?;
        }
        let header = &self.header[self.given..];
        if !header.is_empty() {
            let len = header.len().min(buf.len());
            buf[..len].copy_from_slice(&header[..len]);
            self.given += len;
            return Ok(len);
        }
        let most = buf.len().min(self.left);
        let len = self.from.read(&mut buf[..most])?;
        self.left -= len;
        if len == 0 && most > 0 {
            (self.left, self.next) = (0, Next::End);
        }
        Ok(len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Command, Decoder, Encoder, Protocol};

    fn stream(data: &[u8]) -> Vec<u8> {
        let mut encoder = Encoder::new(Vec::new(), Protocol::V1).unwrap();
        encoder.put(&Command::MkFile { path: b"file", ino: 257 }).unwrap();
        encoder.put(&Command::Write { path: b"file", offset: 0, data }).unwrap();
        encoder.put(&Command::End).unwrap();
        encoder.into_inner()
    }

    #[test]
    fn what_is_behind_the_end_stays() {
        let (one, two) = (stream(&[1; 40_000]), stream(b"two"));
        let both = [&one[..], &two, b"rest"].concat();
        let mut input = &both[..];
        for expected in [&one, &two] {
            let mut found = Vec::new();
            Alone::new(&mut input).read_to_end(&mut found).unwrap();
            assert!(found == *expected);
        }
        assert_eq!(input, b"rest");
        let mut decoder = Decoder::new(Alone::new(&both[..]));
        let mut count = 0;
        while decoder.next_command().unwrap().is_some() {
            count += 1;
        }
        assert_eq!(count, 3);
    }

    #[test]
    fn what_is_cut_short_ends_there() {
        let whole = stream(b"content");
        for len in 0..whole.len() {
            let mut found = Vec::new();
            Alone::new(&whole[..len]).read_to_end(&mut found).unwrap();
            assert!(found == whole[..len], "{len}");
        }
    }
}
