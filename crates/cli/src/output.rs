//! Standard output: a buffered writer whose reader may go away, and JSON.
//!
//! JSON is written by hand: a few flat objects need no framework. Names are bytes; where
//! they are not UTF-8 the member `KEY` has replacement characters and `KEY_hex` the truth.

use crate::error::{Error, Result, io_text};
use std::fmt::Write as _;
use std::io::{self, BufWriter, ErrorKind, StdoutLock, Write};

/// Buffered standard output. A closed pipe ends the output silently, not the command: a
/// command that changes an image must finish all the same.
pub struct Out {
    writer: Option<BufWriter<StdoutLock<'static>>>,
}

impl Out {
    pub fn new() -> Out {
        Out { writer: Some(BufWriter::with_capacity(1 << 16, io::stdout().lock())) }
    }

    pub fn bytes(&mut self, bytes: &[u8]) -> Result<()> {
        let Some(writer) = &mut self.writer else { return Ok(()) };
        let written = writer.write_all(bytes);
        self.judge(written)
    }

    pub fn line(&mut self, text: impl AsRef<[u8]>) -> Result<()> {
        self.bytes(text.as_ref())?;
        self.bytes(b"\n")
    }

    /// Nobody reads any more.
    pub fn closed(&self) -> bool {
        self.writer.is_none()
    }

    pub fn finish(&mut self) -> Result<()> {
        let Some(writer) = &mut self.writer else { return Ok(()) };
        let written = writer.flush();
        self.judge(written)
    }

    fn judge(&mut self, written: io::Result<()>) -> Result<()> {
        match written {
            Ok(()) => Ok(()),
            Err(error) => {
                // What is buffered must not be tried again when the buffer is dropped.
                if let Some(writer) = self.writer.take() {
                    let _ = writer.into_parts();
                }
                match error.kind() {
                    ErrorKind::BrokenPipe => Ok(()),
                    _ => Err(Error::about("standard output", io_text(&error))),
                }
            }
        }
    }
}

impl Drop for Out {
    fn drop(&mut self) {
        if let Err(error) = self.finish() {
            error.print();
        }
    }
}

/// Builds one JSON value, member by member.
#[derive(Default)]
pub struct Json {
    text: String,
}

impl Json {
    pub fn object(fill: impl FnOnce(&mut Object<'_>)) -> String {
        let mut json = Json::default();
        json.put_object(fill);
        json.text
    }

    pub fn array(fill: impl FnOnce(&mut Array<'_>)) -> String {
        let mut json = Json::default();
        json.put_array(fill);
        json.text
    }

    fn put_object(&mut self, fill: impl FnOnce(&mut Object<'_>)) {
        self.text.push('{');
        fill(&mut Object { json: self, first: true });
        self.text.push('}');
    }

    fn put_array(&mut self, fill: impl FnOnce(&mut Array<'_>)) {
        self.text.push('[');
        fill(&mut Array { json: self, first: true });
        self.text.push(']');
    }

    fn put_text(&mut self, text: &str) {
        self.text.push('"');
        for c in text.chars() {
            match c {
                '"' => self.text.push_str("\\\""),
                '\\' => self.text.push_str("\\\\"),
                '\n' => self.text.push_str("\\n"),
                c if u32::from(c) < 0x20 || c == '\x7f' => {
                    let _ = write!(self.text, "\\u{:04x}", u32::from(c));
                }
                c => self.text.push(c),
            }
        }
        self.text.push('"');
    }
}

pub struct Object<'a> {
    json: &'a mut Json,
    first: bool,
}

impl Object<'_> {
    fn key(&mut self, key: &str) -> &mut Json {
        if !std::mem::replace(&mut self.first, false) {
            self.json.text.push(',');
        }
        self.json.put_text(key);
        self.json.text.push(':');
        self.json
    }

    pub fn text(&mut self, key: &str, value: &str) -> &mut Self {
        self.key(key).put_text(value);
        self
    }

    /// Bytes that are usually text.
    pub fn bytes(&mut self, key: &str, value: &[u8]) -> &mut Self {
        self.text(key, &String::from_utf8_lossy(value));
        if std::str::from_utf8(value).is_err() {
            self.text(&format!("{key}_hex"), &hex(value));
        }
        self
    }

    pub fn number(&mut self, key: &str, value: impl Into<i128>) -> &mut Self {
        let _ = write!(self.key(key).text, "{}", value.into());
        self
    }

    pub fn bool(&mut self, key: &str, value: bool) -> &mut Self {
        self.key(key).text.push_str(if value { "true" } else { "false" });
        self
    }

    pub fn object(&mut self, key: &str, fill: impl FnOnce(&mut Object<'_>)) -> &mut Self {
        self.key(key).put_object(fill);
        self
    }

    pub fn array(&mut self, key: &str, fill: impl FnOnce(&mut Array<'_>)) -> &mut Self {
        self.key(key).put_array(fill);
        self
    }
}

pub struct Array<'a> {
    json: &'a mut Json,
    first: bool,
}

impl Array<'_> {
    fn next(&mut self) -> &mut Json {
        if !std::mem::replace(&mut self.first, false) {
            self.json.text.push(',');
        }
        self.json
    }

    pub fn text(&mut self, value: &str) -> &mut Self {
        self.next().put_text(value);
        self
    }

    pub fn number(&mut self, value: impl Into<i128>) -> &mut Self {
        let _ = write!(self.next().text, "{}", value.into());
        self
    }

    pub fn object(&mut self, fill: impl FnOnce(&mut Object<'_>)) -> &mut Self {
        self.next().put_object(fill);
        self
    }
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Bytes with a binary unit, for people: `1.5 GiB`.
pub fn human(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1023.95 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    let digits = if value < 9.995 { 2 } else { 1 };
    format!("{value:.digits$} {}", UNITS[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_escaped_and_nested() {
        let json = Json::object(|o| {
            o.text("a\"b", "line\n\u{1}é").number("n", -5).bool("t", true);
            o.bytes("name", b"ok").bytes("raw", b"\xff");
            o.array("list", |a| {
                a.number(1u64).text("x").object(|o| {
                    o.bool("f", false);
                });
            });
            o.object("empty", |_| {});
        });
        let expected = concat!(
            r#"{"a\"b":"line\n\u0001é","n":-5,"t":true,"name":"ok","raw":"�","raw_hex":"ff","#,
            r#""list":[1,"x",{"f":false}],"empty":{}}"#
        );
        assert_eq!(json, expected);
    }

    #[test]
    fn sizes_for_people() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.00 KiB"),
            (1536 << 20, "1.50 GiB"),
            (1_048_575, "1.00 MiB"),
            (100 << 30, "100.0 GiB"),
        ] {
            assert_eq!(human(bytes), text);
        }
    }
}
