//! The manual page, made of the commands' help.
//!
//! `docs/man/spinney.1` is what `spinney help --man` prints; a test keeps them equal.

use super::{Command, GROUPS};

const HEAD: &str = r#".SH NAME
spinney \- btrfs volumes without the kernel's btrfs
.SH SYNOPSIS
.B spinney
.I COMMAND
.RI [ OPTIONS ]
.IR WORDS ...
.SH DESCRIPTION
Reads, writes, mounts and checks volumes of the btrfs file system as an ordinary program.
A volume is an image file, a block device, or a part of one:
.I disk.img@2
is partition 2 of a whole disk (MBR with logical partitions, or GPT),
.I disk.img@@1M
what begins at 1 MiB, and
.I disk.img@@1M+4G
so much of it. What exists by such a name is itself meant. Paths in a volume that is not mounted are
written
.I disk.img:/path
or
.IR disk.img@2:/path .
.PP
Called by the name
.B btrfs
(a link, or
.BR "spinney btrfs" " ...)"
the program takes the command lines of btrfs-progs that it has, with their output and exit codes: among them
.BR "rescue super-recover" ,
.B rescue fix-device-size
and
.BR "inspect-internal dump-tree" .
.B check \-\-repair
is refused.
"#;

const TAIL: &str = r#".SH EXIT STATUS
.TP
0
Done.
.TP
1
Something failed, or a check found damage; standard error names the file and what to do.
.TP
2
The command line is wrong.
.SH SEE ALSO
.BR btrfs (5),
.BR mount (8),
.BR fusermount3 (1),
.BR btrfs (8)
.PP
docs/SEMANTICS.md (what a mount promises, and where it differs from the kernel's) and docs/RECOVERY.md (what to do when something goes
wrong) in the sources, or in /usr/share/doc/spinney.
"#;

pub fn page() -> String {
    let version = env!("CARGO_PKG_VERSION");
    let mut page = format!(".TH SPINNEY 1 \"\" \"spinney {version}\" \"User commands\"\n{HEAD}");
    for group in GROUPS {
        page.push_str(&format!(".SH {}\n", escape(&group.title.to_uppercase())));
        for command in group.commands {
            section(&mut page, command);
        }
    }
    page.push_str(TAIL);
    page
}

fn section(page: &mut String, command: &Command) {
    let (name, summary) = (command.name, escape(command.summary));
    page.push_str(&format!(".SS spinney {} \\- {summary}\n", escape(name)));
    page.push_str(".nf\n");
    for line in command.usage.lines() {
        page.push_str(&format!("\\fBspinney {}\\fR {}\n", escape(name), escape(line)));
    }
    page.push('\n');
    for line in command.help.lines() {
        page.push_str(&escape(line));
        page.push('\n');
    }
    page.push_str(".fi\n");
}

/// Text that roff prints as it is.
fn escape(line: &str) -> String {
    let text = line.replace('\\', "\\e").replace('-', "\\-");
    match text.starts_with(['.', '\'']) {
        true => format!("\\&{text}"),
        false => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_in_docs_is_this_programs() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/man/spinney.1");
        let stored = std::fs::read_to_string(path).unwrap_or_default();
        assert!(stored == page(), "run: spinney help --man > docs/man/spinney.1");
    }

    #[test]
    fn roff_characters_are_escaped() {
        assert_eq!(escape(".x -o a\\b"), "\\&.x \\-o a\\eb");
    }
}
