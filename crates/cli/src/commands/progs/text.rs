//! Lines to be printed: text, and names that are bytes.
//!
//! Invariant: with `hide_names` no byte of a name or of an xattr's value is in the text.

use std::fmt::{self, Write as _};

/// What of the lines somebody asked for.
#[derive(Clone, Copy, Default)]
pub struct Wishes {
    pub hide_names: bool,
    pub csum_headers: bool,
    pub csum_items: bool,
}

/// Lines that are collected before they are printed.
#[derive(Default)]
pub struct Text {
    pub bytes: Vec<u8>,
    pub wishes: Wishes,
}

impl Text {
    pub fn new(wishes: Wishes) -> Text {
        Text { bytes: Vec::new(), wishes }
    }

    /// Text without an end of line.
    pub fn put(&mut self, text: fmt::Arguments<'_>) {
        self.write_fmt(text).expect("memory takes all");
    }

    /// A line.
    pub fn line(&mut self, text: fmt::Arguments<'_>) {
        self.put(text);
        self.bytes.push(b'\n');
    }

    /// A line that ends with a name, or a value: up to its first NUL, as printf(3) prints it.
    pub fn named(&mut self, text: fmt::Arguments<'_>, name: &[u8]) {
        self.put(text);
        let shown = name.split(|byte| *byte == 0).next().unwrap_or(&[]);
        self.bytes.extend_from_slice(if self.wishes.hide_names { b"HIDDEN" } else { shown });
        self.bytes.push(b'\n');
    }
}

impl fmt::Write for Text {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.bytes.extend_from_slice(text.as_bytes());
        Ok(())
    }
}

/// `line!(text, "format", ...)`.
macro_rules! line {
    ($text:expr, $($words:tt)+) => { $text.line(format_args!($($words)+)) };
}
pub(super) use line;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_end_at_nul_and_can_be_hidden() {
        let mut text = Text::new(Wishes::default());
        text.named(format_args!("name: "), b"a\xff\0b");
        assert_eq!(text.bytes, b"name: a\xff\n");
        let mut text = Text::new(Wishes { hide_names: true, ..Wishes::default() });
        text.named(format_args!("name: "), b"secret");
        assert_eq!(text.bytes, b"name: HIDDEN\n");
    }
}
