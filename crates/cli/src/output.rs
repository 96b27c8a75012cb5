//! Standard output: a buffered writer whose reader may go away, tables, and JSON.
//!
//! JSON is serde_json's, in the order in which members were put. Names are bytes; where they
//! are not UTF-8 the member `KEY` has replacement characters and `KEY_hex` the truth.

use crate::error::{Error, Result, io_text};
use btrfs_image::settled;
use serde_json::{Map, Number, Value};
use std::fmt::Write as _;
use std::io::{self, BufWriter, ErrorKind, StdoutLock, Write};

/// Buffered standard output. A closed pipe ends the output silently, not the command: a
/// command that changes an image must finish all the same. Content that is as long as somebody likes ends
/// with it (`content`).
pub struct Out {
    writer: Option<BufWriter<StdoutLock<'static>>>,
    /// Something was to be written.
    used: bool,
}

impl Out {
    pub fn new() -> Out {
        Out { writer: Some(BufWriter::with_capacity(1 << 16, io::stdout().lock())), used: false }
    }

    pub fn bytes(&mut self, bytes: &[u8]) -> Result<()> {
        self.used = true;
        let Some(writer) = &mut self.writer else { return Ok(()) };
        let written = writer.write_all(bytes);
        self.judge(written)
    }

    pub fn line(&mut self, text: impl AsRef<[u8]>) -> Result<()> {
        self.bytes(text.as_ref())?;
        self.bytes(b"\n")
    }

    /// As `bytes`, of a stream: a closed pipe ends it with [`Error::cut`], since there may be no end of it otherwise.
    pub fn content(&mut self, bytes: &[u8]) -> Result<()> {
        self.bytes(bytes)?;
        self.taken()
    }

    /// The end of such a stream, which is cut where the reader went before.
    pub fn finish_content(&mut self) -> Result<()> {
        self.finish()?;
        self.taken()
    }

    fn taken(&self) -> Result<()> {
        if self.closed() { Err(Error::cut()) } else { Ok(()) }
    }

    /// Nobody reads any more.
    pub fn closed(&self) -> bool {
        self.writer.is_none()
    }

    pub fn finish(&mut self) -> Result<()> {
        let Some(writer) = self.writer.as_mut().filter(|_| self.used) else { return Ok(()) };
        // Of a file the system may tell at a close alone that it has no room for it.
        let written = writer.flush().and_then(|()| settled(io::stdout()));
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

/// A cell of a table: what stands in it, and whether it stands at the right.
pub type Cell = (String, bool);

pub fn left(text: impl Into<String>) -> Cell {
    (text.into(), false)
}

pub fn right(text: impl Into<String>) -> Cell {
    (text.into(), true)
}

/// The lines of a table, whose columns are as wide as what is widest in them and have `gap` between them. Behind
/// the rows that `ruled` counts there is a line of dashes.
pub fn table(rows: &[Vec<Cell>], ruled: &[usize], gap: &str) -> Vec<String> {
    let columns = rows.first().map_or(0, Vec::len);
    let width = |column: usize| rows.iter().map(|row| row[column].0.len()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let rule: Vec<String> = widths.iter().map(|width| "-".repeat(*width)).collect();
    let mut lines = Vec::new();
    for (row, number) in rows.iter().zip(1..) {
        let cells = row.iter().zip(&widths).map(|((text, right), width)| match right {
            true => format!("{text:>width$}"),
            false => format!("{text:<width$}"),
        });
        lines.push(cells.collect::<Vec<_>>().join(gap));
        if ruled.contains(&number) {
            lines.push(rule.join(gap));
        }
    }
    lines
}

impl Drop for Out {
    fn drop(&mut self) {
        if let Err(error) = self.finish() {
            error.print();
        }
    }
}

/// Builds one JSON value, member by member, as text in one line.
pub struct Json;

impl Json {
    pub fn object(fill: impl FnOnce(&mut Object<'_>)) -> String {
        object(fill).to_string()
    }

    pub fn array(fill: impl FnOnce(&mut Array<'_>)) -> String {
        array(fill).to_string()
    }

    /// On many lines, below the header that btrfs-progs gives its own.
    pub fn as_progs(fill: impl FnOnce(&mut Object<'_>)) -> String {
        let all = object(|o| {
            o.object("__header", |o| {
                o.text("version", "1");
            });
            fill(o);
        });
        format!("{all:#}")
    }
}

/// A JSON array whose objects are written as they come: a deep tree has more in its names than memory should
/// hold. It ends as an array also where not all could be read that it tells of.
#[derive(Default)]
pub struct JsonRows {
    begun: bool,
}

impl JsonRows {
    pub fn row(&mut self, out: &mut Out, object: &str) -> Result<()> {
        out.bytes(if std::mem::replace(&mut self.begun, true) { b",\n" } else { b"[" })?;
        out.bytes(object.as_bytes())
    }

    pub fn end(&self, out: &mut Out) -> Result<()> {
        out.line(if self.begun { "]" } else { "[]" })
    }
}

fn object(fill: impl FnOnce(&mut Object<'_>)) -> Value {
    let mut members = Map::new();
    fill(&mut Object(&mut members));
    Value::Object(members)
}

fn array(fill: impl FnOnce(&mut Array<'_>)) -> Value {
    let mut values = Vec::new();
    fill(&mut Array(&mut values));
    Value::Array(values)
}

/// JSON has numbers of any size; what no 64 bits hold is written as the nearest fraction.
fn number(value: i128) -> Value {
    Number::from_i128(value).map_or_else(|| Value::from(value as f64), Value::Number)
}

pub struct Object<'a>(&'a mut Map<String, Value>);

impl Object<'_> {
    fn put(&mut self, key: &str, value: Value) -> &mut Self {
        self.0.insert(key.to_owned(), value);
        self
    }

    pub fn text(&mut self, key: &str, value: &str) -> &mut Self {
        self.put(key, value.into())
    }

    /// Bytes that are usually text.
    pub fn bytes(&mut self, key: &str, value: &[u8]) -> &mut Self {
        self.text(key, &String::from_utf8_lossy(value));
        if std::str::from_utf8(value).is_err() {
            self.text(&format!("{key}_hex"), &hex(value));
        }
        self
    }

    /// A list of such bytes; `KEY_hex` has all of them where one is no text.
    pub fn each_bytes(&mut self, key: &str, values: &[impl AsRef<[u8]>]) -> &mut Self {
        let all = || values.iter().map(AsRef::as_ref);
        self.array(key, |a| all().for_each(|value| _ = a.text(&String::from_utf8_lossy(value))));
        if all().any(|value| std::str::from_utf8(value).is_err()) {
            let key = format!("{key}_hex");
            self.array(&key, |a| all().for_each(|value| _ = a.text(&hex(value))));
        }
        self
    }

    pub fn number(&mut self, key: &str, value: impl Into<i128>) -> &mut Self {
        self.put(key, number(value.into()))
    }

    pub fn bool(&mut self, key: &str, value: bool) -> &mut Self {
        self.put(key, value.into())
    }

    pub fn object(&mut self, key: &str, fill: impl FnOnce(&mut Object<'_>)) -> &mut Self {
        self.put(key, object(fill))
    }

    pub fn array(&mut self, key: &str, fill: impl FnOnce(&mut Array<'_>)) -> &mut Self {
        self.put(key, array(fill))
    }
}

pub struct Array<'a>(&'a mut Vec<Value>);

impl Array<'_> {
    pub fn text(&mut self, value: &str) -> &mut Self {
        self.0.push(value.into());
        self
    }

    pub fn number(&mut self, value: impl Into<i128>) -> &mut Self {
        self.0.push(number(value.into()));
        self
    }

    pub fn object(&mut self, fill: impl FnOnce(&mut Object<'_>)) -> &mut Self {
        self.0.push(object(fill));
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
            o.each_bytes("names", &[b"ok"]).each_bytes("raws", &[&b"ok"[..], b"\xff"]);
        });
        let expected = concat!(
            r#"{"a\"b":"line\n\u0001é","n":-5,"t":true,"name":"ok","raw":"�","raw_hex":"ff","#,
            r#""list":[1,"x",{"f":false}],"empty":{},"names":["ok"],"raws":["ok","�"],"#,
            r#""raws_hex":["6f6b","ff"]}"#
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
