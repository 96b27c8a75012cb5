//! What is told to those who look, and only to them: progress on a terminal, the log of a
//! server that nobody watches.

use crate::common;
use common::mount::{Mount, mounted};
use common::{Image, PROGRAM, TempDir, sh, text};
use std::fs;
use std::os::unix::net::UnixDatagram;
use std::process::Command;
use std::time::Duration;
use testkit::require;

/// How a line of progress starts, and how it is wiped.
const LINE: &str = "\r\x1b[K";

/// Runs a command on a terminal of its own: everything that it said there.
fn on_a_terminal(command: &str) -> String {
    let run = format!("script -qec '{command}' /dev/null");
    let output = sh(&run);
    assert!(output.status.success(), "{command}: {}", text(&output.stdout));
    text(&output.stdout)
}

/// The same into pipes.
fn into_pipes(command: &str) -> String {
    let output = sh(command);
    assert!(output.status.success(), "{command}: {}", text(&output.stderr));
    text(&output.stdout) + &text(&output.stderr)
}

#[test]
fn progress_is_for_terminals() {
    require!(btrfs_progs);
    let image = Image::new("progress");
    let host = TempDir::new("progress-host").unwrap();
    let tree = host.join("tree");
    fs::create_dir(&tree).unwrap();
    for number in 0..20 {
        fs::write(tree.join(format!("file{number}")), vec![number; 1 << 20]).unwrap();
    }
    let (word, out) = (tree.display(), host.join("copied.out"));
    let out = out.display();
    // A line drawn at once: whether there is time for another depends on the machine.
    let steps = [
        (format!("{PROGRAM} cp -r {word} {}", image.at("/copied.in")), " B "),
        (format!("{PROGRAM} cp -r {} {out}", image.at("/copied.in")), " B "),
        (format!("{PROGRAM} check --data {}", image.word()), "checking "),
    ];
    for (command, what) in &steps {
        let said = on_a_terminal(command);
        let shown = said.split(LINE).skip(1).any(|line| line.contains(what));
        assert!(shown, "{command}: {said:?}");
        // The last line is wiped before anything else is said.
        let rest = said.rsplit(LINE).next().unwrap();
        assert!(!rest.contains(what), "{command}: {said:?}");
    }
    for (command, _) in &steps {
        let said = into_pipes(&command.replace("copied.", "again."));
        assert!(!said.contains('\r') && !said.contains('\x1b'), "{command}: {said:?}");
    }
}

#[test]
fn servers_in_the_background_log_to_the_system() {
    require!(fuse);
    require!(btrfs_progs);
    let image = Image::new("system-log");
    let socket = image.dir.join("socket");
    let listener = UnixDatagram::bind(&socket).unwrap();
    listener.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let point = Mount::directory(&image);
    let run = |words: &[&str]| {
        let output = Command::new(PROGRAM).args(words).env("SPINNEY_SYSLOG", &socket).output();
        let output = output.unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stdout)
    };
    let ready = run(&["mount", &image.word(), &point.display().to_string()]);
    let mount = Mount { point, ready, child: None };
    assert!(mounted(&mount.point).is_some());
    let hinted = mount.ready.contains("log: ") || mount.ready.contains("no log");
    assert!(!hinted, "a hint where the log is: {}", mount.ready);
    let server = common::mount::server(&image.path).expect("a server");
    let mut heard = String::new();
    let mut until = |what: &str| {
        let mut buffer = [0; 4096];
        while !heard.contains(what) {
            let len = listener.recv(&mut buffer).unwrap_or_else(|e| panic!("{e}: {heard}"));
            heard += &(text(&buffer[..len]) + "\n");
        }
        heard.clone()
    };
    until("is mounted on");
    mount.umount();
    let heard = until("is closed");
    for line in heard.lines() {
        assert!(line.starts_with(&format!("<30>spinney[{server}]: ")), "{heard}");
    }
}
