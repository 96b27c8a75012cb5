//! A loadfile of dbench: a plain text of operations as a file server saw them, one a
//! line, `NAME operands... STATUS`, paths with backslashes and in quotes.

use std::collections::HashMap;
use std::ffi::CString;
use std::io;
use std::path::Path;

/// Index into `Load::paths`.
pub type PathId = usize;
/// The client's own number for an open file.
pub type Handle = u32;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op {
    Create {
        path: PathId,
        how: How,
        handle: Handle,
    },
    Close(Handle),
    Rename(PathId, PathId),
    Unlink(PathId),
    Deltree(PathId),
    Mkdir(PathId),
    Qpathinfo(PathId),
    Qfileinfo(Handle),
    Qfsinfo,
    Sfileinfo(Handle),
    Find(PathId),
    Write {
        handle: Handle,
        offset: u64,
        len: usize,
    },
    /// `got` is how much the server had.
    Read {
        handle: Handle,
        offset: u64,
        len: usize,
        got: usize,
    },
    Lock(Handle),
    Unlock(Handle),
    Flush(Handle),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum How {
    Open,
    OpenOrCreate,
    Truncate,
    Directory,
}

/// What the table calls them, in its order.
pub const KINDS: [&str; 16] = [
    "NTCreateX",
    "Close",
    "Rename",
    "Unlink",
    "Deltree",
    "Mkdir",
    "Qpathinfo",
    "Qfileinfo",
    "Qfsinfo",
    "Sfileinfo",
    "Find",
    "WriteX",
    "ReadX",
    "LockX",
    "UnlockX",
    "Flush",
];

impl Op {
    /// Index into `KINDS`.
    pub fn kind(&self) -> usize {
        match self {
            Op::Create { .. } => 0,
            Op::Close(_) => 1,
            Op::Rename(..) => 2,
            Op::Unlink(_) => 3,
            Op::Deltree(_) => 4,
            Op::Mkdir(_) => 5,
            Op::Qpathinfo(_) => 6,
            Op::Qfileinfo(_) => 7,
            Op::Qfsinfo => 8,
            Op::Sfileinfo(_) => 9,
            Op::Find(_) => 10,
            Op::Write { .. } => 11,
            Op::Read { .. } => 12,
            Op::Lock(_) => 13,
            Op::Unlock(_) => 14,
            Op::Flush(_) => 15,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Step {
    pub op: Op,
    /// The server answered with success, so must we.
    pub succeeds: bool,
}

#[derive(Debug, Default)]
pub struct Load {
    pub steps: Vec<Step>,
    /// As components, for client 1.
    paths: Vec<Vec<String>>,
}

impl Load {
    pub fn read(path: &Path) -> io::Result<Load> {
        let text = std::fs::read(path)
            .map_err(|e| io::Error::new(e.kind(), format!("{}: {e}", path.display())))?;
        parse(&String::from_utf8_lossy(&text))
            .map_err(|e| io::Error::other(format!("{}: {e}", path.display())))
    }

    /// The paths as client `number` has them.
    pub fn paths_of(&self, number: u64) -> io::Result<Vec<Vec<CString>>> {
        let own = format!("client{number}");
        let component = |part: &String| {
            let part = if part == "client1" { &own } else { part };
            CString::new(part.as_str()).map_err(io::Error::other)
        };
        self.paths.iter().map(|path| path.iter().map(component).collect()).collect()
    }
}

fn parse(text: &str) -> Result<Load, String> {
    let (mut load, mut known) = (Load::default(), HashMap::new());
    for (number, line) in text.lines().enumerate() {
        let words = words(line);
        if words.is_empty() || words[0].starts_with('#') {
            continue;
        }
        let mut path = |text: &str| {
            *known.entry(text.to_string()).or_insert_with(|| {
                let parts = text.split(['\\', '/']).filter(|part| !part.is_empty());
                load.paths.push(parts.map(str::to_string).collect());
                load.paths.len() - 1
            })
        };
        let op = operation(&words, &mut path)
            .ok_or_else(|| format!("line {}: not understood: {line}", number + 1))?;
        let succeeds = words.last().is_some_and(|status| status == "NT_STATUS_OK");
        load.steps.push(Step { op, succeeds });
    }
    if load.steps.is_empty() { Err("no operations".into()) } else { Ok(load) }
}

/// Separated by blanks, but for those in quotes.
fn words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    for (i, part) in line.split('"').enumerate() {
        match i % 2 {
            0 => words.extend(part.split_whitespace().map(str::to_string)),
            _ => words.push(part.to_string()),
        }
    }
    words
}

fn operation(words: &[String], path: &mut dyn FnMut(&str) -> PathId) -> Option<Op> {
    let word = |i: usize| words.get(i).map(String::as_str);
    let number = |i: usize| -> Option<u64> {
        let text = word(i)?;
        match text.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16).ok(),
            None => text.parse().ok(),
        }
    };
    let handle = |i: usize| number(i).map(|n| n as Handle);
    let len = |i: usize| number(i).map(|n| n as usize).filter(|n| *n <= MAX_LEN);
    Some(match word(0)? {
        "NTCreateX" => {
            let how = how(number(2)?, number(3)?);
            Op::Create { path: path(word(1)?), how, handle: handle(4)? }
        }
        "Close" => Op::Close(handle(1)?),
        "Rename" => Op::Rename(path(word(1)?), path(word(2)?)),
        "Unlink" => Op::Unlink(path(word(1)?)),
        "Deltree" => Op::Deltree(path(word(1)?)),
        "Mkdir" => Op::Mkdir(path(word(1)?)),
        "QUERY_PATH_INFORMATION" => Op::Qpathinfo(path(word(1)?)),
        "QUERY_FILE_INFORMATION" => Op::Qfileinfo(handle(1)?),
        "QUERY_FS_INFORMATION" => Op::Qfsinfo,
        "SET_FILE_INFORMATION" => Op::Sfileinfo(handle(1)?),
        "FIND_FIRST" => Op::Find(path(word(1)?)),
        "WriteX" => Op::Write { handle: handle(1)?, offset: number(2)?, len: len(3)? },
        "ReadX" => Op::Read { handle: handle(1)?, offset: number(2)?, len: len(3)?, got: len(4)? },
        "LockX" => Op::Lock(handle(1)?),
        "UnlockX" => Op::Unlock(handle(1)?),
        "Flush" => Op::Flush(handle(1)?),
        _ => return None,
    })
}

/// More in one operation is no file server's.
pub const MAX_LEN: usize = 1 << 20;

/// From the options (bit 0: a directory) and the disposition of the protocol (2, 3: make
/// it if it is missing, 4 and 5: cut an existing one to nothing).
fn how(options: u64, disposition: u64) -> How {
    match (options & 1, disposition) {
        (1, _) => How::Directory,
        (_, 4 | 5) => How::Truncate,
        (_, 2 | 3) => How::OpenOrCreate,
        _ => How::Open,
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Lines of the loadfile of dbench 4.0, one of each kind.
    pub const SAMPLE: &str = r#"Deltree "\clients\client1" NT_STATUS_OK
Mkdir "\clients" NT_STATUS_OK
NTCreateX "\clients\client1" 0x1 0x2 16385 NT_STATUS_OK
Close 16385 NT_STATUS_OK
NTCreateX "\clients\client1\mixfile" 0x40 0x1 9935 NT_STATUS_OBJECT_NAME_NOT_FOUND
QUERY_PATH_INFORMATION "\clients\client1\~dmtmp" 1004 NT_STATUS_OBJECT_NAME_NOT_FOUND
FIND_FIRST "\clients\client1\FILLER.*" 260 1366 0 NT_STATUS_NO_SUCH_FILE
NTCreateX "\clients\client1\filler 000" 0x40 0x2 9938 NT_STATUS_OK
QUERY_FS_INFORMATION 1 NT_STATUS_OK
WriteX 9938 65534 1 1 NT_STATUS_OK
ReadX 9938 0 65536 65535 NT_STATUS_OK
QUERY_FILE_INFORMATION 9938 258 NT_STATUS_OK
SET_FILE_INFORMATION 9938 1004 NT_STATUS_OK
LockX 9938 0 10 NT_STATUS_OK
UnlockX 9938 0 10 NT_STATUS_OK
Flush 9938 NT_STATUS_OK
Close 9938 NT_STATUS_OK
Rename "\clients\client1\FILLER 000" "\clients\client1\b" NT_STATUS_OK
Unlink "\clients\client1\b" 0x6 NT_STATUS_OK
"#;

    #[test]
    fn each_kind_is_understood() {
        let load = parse(SAMPLE).unwrap();
        assert_eq!(load.steps.len(), 19);
        let kinds: std::collections::BTreeSet<_> =
            load.steps.iter().map(|step| step.op.kind()).collect();
        assert_eq!(kinds.len(), KINDS.len());
        let failing = load.steps.iter().filter(|step| !step.succeeds).count();
        assert_eq!(failing, 3);
        let write = Op::Write { handle: 9938, offset: 65534, len: 1 };
        assert_eq!(load.steps[9].op, write);
        let Op::Create { how, path, .. } = load.steps[7].op else { panic!("{:?}", load.steps[7]) };
        assert_eq!(how, How::OpenOrCreate);
        let own = &load.paths_of(12).unwrap()[path];
        assert_eq!(own, &[c"clients".into(), c"client12".into(), CString::from(c"filler 000")]);
    }

    #[test]
    fn nonsense_is_refused_with_its_line() {
        assert!(parse("Close 1 NT_STATUS_OK\nFly 7\n").unwrap_err().starts_with("line 2"));
        assert!(parse("WriteX 1 0 99999999999 1 NT_STATUS_OK").is_err());
        assert!(parse("").is_err());
    }
}
