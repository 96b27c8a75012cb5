//! Commands as lines of text, as `btrfs receive --dump` prints them.
//!
//! Paths begin at `.`, and have the name of the subvolume in front. It does not know where the
//! terminal's day begins: who wants to see times says how.

use crate::command::{Command, Origin, Special, Time, Verity};

/// Tells a stream, command by command.
pub struct Dump<'t> {
    subvolume: Vec<u8>,
    time: &'t dyn Fn(Time) -> String,
}

impl<'t> Dump<'t> {
    /// `time` says how a time is written.
    pub fn new(time: &'t dyn Fn(Time) -> String) -> Dump<'t> {
        Dump { subvolume: Vec::new(), time }
    }

    /// The line of a command, without its end; `None` for the end of a subvolume.
    pub fn line(&mut self, command: &Command<'_>) -> Option<Vec<u8>> {
        let path = match *command {
            Command::Subvol { path, .. } | Command::Snapshot { path, .. } => {
                self.subvolume = [b"./", path].concat();
                self.subvolume.clone()
            }
            Command::End => return None,
            _ => self.full(path(command)),
        };
        let (title, rest) = match command {
            Command::Subvol { .. } | Command::Snapshot { .. } => subvolume(command),
            Command::Write { .. }
            | Command::Clone { .. }
            | Command::Truncate { .. }
            | Command::UpdateExtent { .. }
            | Command::Fallocate { .. }
            | Command::EncodedWrite { .. } => self.content(command),
            Command::Chmod { .. }
            | Command::Chown { .. }
            | Command::Utimes { .. }
            | Command::SetXattr { .. }
            | Command::RemoveXattr { .. }
            | Command::FileAttr { .. }
            | Command::EnableVerity { .. } => self.metadata(command),
            _ => self.name(command),
        };
        let mut line = format!("{title:<16}").into_bytes();
        let before = line.len();
        escape(&path, &mut line);
        if let Some(rest) = rest {
            let shown = line.len() - before;
            line.resize(line.len() + 32usize.saturating_sub(shown).max(1), b' ');
            line.extend(rest);
        }
        Some(line)
    }

    fn full(&self, path: &[u8]) -> Vec<u8> {
        [&self.subvolume, &b"/"[..], path].concat()
    }

    fn escaped(&self, front: &str, path: &[u8]) -> Vec<u8> {
        let mut text = front.as_bytes().to_vec();
        escape(path, &mut text);
        text
    }

    fn name(&self, command: &Command<'_>) -> (&'static str, Option<Vec<u8>>) {
        match *command {
            Command::MkFile { .. } => ("mkfile", None),
            Command::MkDir { .. } => ("mkdir", None),
            Command::MkSpecial { kind: Special::Fifo, .. } => ("mkfifo", None),
            Command::MkSpecial { kind: Special::Socket, .. } => ("mksock", None),
            Command::MkSpecial { mode, rdev, .. } => {
                ("mknod", Some(format!("mode={mode:o} dev={rdev:#x}").into_bytes()))
            }
            Command::Symlink { target, .. } => ("symlink", Some(self.escaped("dest=", target))),
            Command::Rename { to, .. } => ("rename", Some(self.escaped("dest=", &self.full(to)))),
            Command::Link { old, .. } => ("link", Some(self.escaped("dest=", old))),
            Command::Unlink { .. } => ("unlink", None),
            _ => ("rmdir", None),
        }
    }

    fn content(&self, command: &Command<'_>) -> (&'static str, Option<Vec<u8>>) {
        let (title, rest) = match *command {
            Command::Write { offset, data, .. } => {
                ("write", format!("offset={offset} len={}", data.len()))
            }
            Command::Clone { offset, len, from_path, from_offset, .. } => {
                let front = format!("offset={offset} len={len} from=");
                let mut rest = self.escaped(&front, &self.full(from_path));
                rest.extend(format!(" clone_offset={from_offset}").into_bytes());
                return ("clone", Some(rest));
            }
            Command::Truncate { size, .. } => ("truncate", format!("size={size}")),
            Command::UpdateExtent { offset, len, .. } => {
                ("update_extent", format!("offset={offset} len={len}"))
            }
            Command::Fallocate { mode, offset, len, .. } => {
                ("fallocate", format!("mode={mode} offset={offset} len={len}"))
            }
            Command::EncodedWrite { offset, piece, .. } => {
                let (file, all, at) = (piece.file_len, piece.unencoded_len, piece.unencoded_offset);
                let rest = format!(
                    "offset={offset} len={}, unencoded_file_len={file}, unencoded_len={all}, \
                     unencoded_offset={at}, compression={}, encryption=0",
                    piece.data.len(),
                    piece.compression
                );
                ("encoded_write", rest)
            }
            _ => ("", String::new()),
        };
        (title, Some(rest.into_bytes()))
    }

    fn metadata(&self, command: &Command<'_>) -> (&'static str, Option<Vec<u8>>) {
        let (title, rest) = match *command {
            Command::SetXattr { name, value, .. } => {
                let shown = value.split(|byte| *byte == 0).next().unwrap_or_default();
                let len = format!(" len={}", value.len());
                let rest = [b"name=", name, b" data=", shown, len.as_bytes()].concat();
                return ("set_xattr", Some(rest));
            }
            Command::RemoveXattr { name, .. } => {
                return ("remove_xattr", Some([b"name=", name].concat()));
            }
            Command::Chmod { mode, .. } => ("chmod", format!("mode={mode:o}")),
            Command::Chown { uid, gid, .. } => ("chown", format!("gid={gid} uid={uid}")),
            Command::Utimes { atime, mtime, ctime, .. } => {
                let [atime, mtime, ctime] = [atime, mtime, ctime].map(|time| (self.time)(time));
                ("utimes", format!("atime={atime} mtime={mtime} ctime={ctime}"))
            }
            Command::FileAttr { flags, .. } => ("fileattr", format!("fileattr={flags:#x}")),
            Command::EnableVerity {
                verity: Verity { algorithm, block_size, salt, signature },
                ..
            } => {
                let (salt, signature) = (salt.len(), signature.len());
                let rest = format!(
                    "algorithm={algorithm} block_size={block_size} salt_len={salt} sig_len={signature}"
                );
                ("enable_verity", rest)
            }
            _ => ("", String::new()),
        };
        (title, Some(rest.into_bytes()))
    }
}

fn subvolume(command: &Command<'_>) -> (&'static str, Option<Vec<u8>>) {
    let said = |origin: &Origin, front: &str| {
        let Origin { uuid, ctransid } = origin;
        format!("{front}uuid={} {front}transid={ctransid}", hyphened(uuid))
    };
    match command {
        Command::Snapshot { origin, parent, .. } => {
            let rest = format!("{} {}", said(origin, ""), said(parent, "parent_"));
            ("snapshot", Some(rest.into_bytes()))
        }
        Command::Subvol { origin, .. } => ("subvol", Some(said(origin, "").into_bytes())),
        _ => ("", None),
    }
}

fn path<'a>(command: &Command<'a>) -> &'a [u8] {
    match *command {
        Command::Subvol { path, .. }
        | Command::Snapshot { path, .. }
        | Command::MkFile { path, .. }
        | Command::MkDir { path, .. }
        | Command::MkSpecial { path, .. }
        | Command::Symlink { path, .. }
        | Command::Rename { path, .. }
        | Command::Link { path, .. }
        | Command::Unlink { path }
        | Command::RmDir { path }
        | Command::SetXattr { path, .. }
        | Command::RemoveXattr { path, .. }
        | Command::Write { path, .. }
        | Command::Clone { path, .. }
        | Command::Truncate { path, .. }
        | Command::Chmod { path, .. }
        | Command::Chown { path, .. }
        | Command::Utimes { path, .. }
        | Command::UpdateExtent { path, .. }
        | Command::Fallocate { path, .. }
        | Command::FileAttr { path, .. }
        | Command::EncodedWrite { path, .. }
        | Command::EnableVerity { path, .. } => path,
        Command::End => b"",
    }
}

fn hyphened(uuid: &[u8; 16]) -> String {
    let hex: String = uuid.iter().map(|byte| format!("{byte:02x}")).collect();
    [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
}

fn escape(text: &[u8], to: &mut Vec<u8>) {
    for byte in text {
        let letter = match byte {
            7 => b'a',
            8 => b'b',
            9 => b't',
            10 => b'n',
            11 => b'v',
            12 => b'f',
            13 => b'r',
            27 => b'e',
            b' ' | b'\\' => *byte,
            b'!'..=b'~' => {
                to.push(*byte);
                continue;
            }
            _ => {
                to.extend(format!("\\{byte:03o}").into_bytes());
                continue;
            }
        };
        to.extend([b'\\', letter]);
    }
}
