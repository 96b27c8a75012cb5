//! Commands on images that SIGINT (Ctrl-C) ends in the midst of their work: a shell sees 130, the image
//! is sound and can be used at once, and the same command done again does all of it.

use crate::common;
use common::{Image, PROGRAM, assert_clean, eventually, fine, sh, text};
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use testkit::require;

/// What a shell says of a command that SIGINT has ended.
const INTERRUPTED: i32 = 130;

/// A command as a terminal starts it, with SIGINT not ignored, whatever the tests were started with.
fn start(words: &[&str], stdin: Stdio) -> Child {
    let mut command = Command::new("env");
    // A shell in front, for its exit code.
    command.args(["--default-signal=INT", "sh", "-c", r#""$@"; exit $?"#, "sh", PROGRAM]);
    command.args(words).stdin(stdin).stdout(Stdio::null()).stderr(Stdio::piped());
    command.spawn().expect("env and sh")
}

/// The program itself, the shell's only child.
fn program_of(shell: u32) -> Option<u32> {
    let children = fs::read_to_string(format!("/proc/{shell}/task/{shell}/children")).ok()?;
    let child: u32 = children.split_whitespace().next()?.parse().ok()?;
    let link = fs::read_link(format!("/proc/{child}/exe")).ok()?;
    (link == fs::canonicalize(PROGRAM).ok()?).then_some(child)
}

/// Sends SIGINT to the program, unless it has ended; its exit code, as the shell has it.
fn interrupt(shell: Child) -> i32 {
    if let Some(program) = program_of(shell.id()) {
        sh(&format!("kill -INT {program}"));
    }
    let output = shell.wait_with_output().expect("the shell");
    output.status.code().unwrap_or_else(|| panic!("{:?}: {}", output.status, text(&output.stderr)))
}

fn is_sound(image: &Image) {
    assert_clean(&image.path);
    fine(&["check", &image.word()]);
}

/// 40 MiB in files of many sizes.
fn tree(dir: &Path) -> String {
    let made = sh(&format!(
        "mkdir -p {0}/t/deep/er && cd {0}/t && for i in $(seq 400); do head -c $((i * 500)) /dev/urandom \
         >deep/f$i; ln deep/f$i deep/er/l$i; done && tar -C .. -cf ../t.tar t",
        dir.display()
    ));
    assert!(made.status.success(), "{}", text(&made.stderr));
    dir.join("t").display().to_string()
}

fn same_as(tree: &str, image: &Image, out: &str) {
    fine(&["cp", "-r", &image.at("/t"), out]);
    let differs = sh(&format!("diff -r {tree} {out}"));
    assert!(differs.status.success(), "{}", text(&differs.stdout));
}

/// Half of `input` through a pipe, until the program waits for the rest of it.
fn interrupt_half_way(words: &[&str], input: &[u8]) -> i32 {
    let mut shell = start(words, Stdio::piped());
    let mut pipe = shell.stdin.take().expect("a pipe");
    eventually("it has begun", || program_of(shell.id()).is_some());
    pipe.write_all(&input[..input.len() / 2]).expect("half of it");
    // No more than a pipe holds is not read yet.
    std::thread::sleep(Duration::from_millis(200));
    let code = interrupt(shell);
    drop(pipe);
    code
}

#[test]
fn what_comes_in_through_a_pipe() {
    require!(btrfs_progs);
    let image = Image::new("interrupted-pipe");
    let source = tree(image.dir.path());
    let archive = fs::read(image.dir.join("t.tar")).unwrap();
    let into = image.at("/");
    let code = interrupt_half_way(&["tar", "-x", "-f", "-", &into], &archive);
    assert_eq!(code, INTERRUPTED, "tar");
    is_sound(&image);
    fine(&["tar", "-x", "-f", &image.dir.join("t.tar").display().to_string(), &into]);
    same_as(&source, &image, &image.dir.join("out").display().to_string());
    let stream = image.dir.join("stream").display().to_string();
    fine(&["subvolume", "snapshot", "-r", &into, &image.at("/snap")]);
    sh(&format!("{PROGRAM} send -f {stream} {}", image.at("/snap")));
    let other = Image::new("interrupted-receive");
    let into = other.at("/");
    let code = interrupt_half_way(&["receive", &into], &fs::read(&stream).unwrap());
    assert_eq!(code, INTERRUPTED, "receive");
    is_sound(&other);
    let left = fine(&["subvolume", "list", "-r", &into]);
    assert_eq!(left, "", "nothing is taken for received");
    if !fine(&["ls", &into]).is_empty() {
        fine(&["subvolume", "delete", &other.at("/snap")]);
    }
    let received = sh(&format!("{PROGRAM} receive -f {stream} {into}"));
    assert!(received.status.success(), "{}", text(&received.stderr));
    fine(&["cp", "-r", &other.at("/snap/t"), &other.dir.join("out").display().to_string()]);
    let differs = sh(&format!("diff -r {source} {}", other.dir.join("out").display()));
    assert!(differs.status.success(), "{}", text(&differs.stdout));
    is_sound(&other);
}

/// Commands that cannot be held: ended so many milliseconds behind their start.
#[test]
fn whenever_it_comes() {
    require!(btrfs_progs);
    let image = Image::new("interrupted-anywhere");
    let source = tree(image.dir.path());
    fine(&["cp", "-r", &source, &image.at("/t")]);
    let full = image.dir.join("full.img");
    fs::copy(&image.path, &full).unwrap();
    let (word, there) = (image.word(), image.at("/t"));
    let more = image.at("/more");
    let commands: [&[&str]; 4] = [
        &["cp", "-r", &source, &more],
        &["cp", "-r", &there, &more],
        &["rm", "-r", &there],
        &["balance", "start", "--full-balance", &word],
    ];
    let mut interrupted = 0;
    for words in commands {
        for after in [5, 20, 50, 100, 200] {
            fs::copy(&full, &image.path).unwrap();
            let mut shell = start(words, Stdio::null());
            // Between two looks it may have begun and ended.
            eventually("it has begun", || {
                program_of(shell.id()).is_some() || shell.try_wait().expect("a child").is_some()
            });
            std::thread::sleep(Duration::from_millis(after));
            match interrupt(shell) {
                0 => {}
                code => {
                    assert_eq!(code, INTERRUPTED, "{words:?} after {after} ms");
                    interrupted += 1;
                }
            }
            is_sound(&image);
            again(words, &image, &source);
        }
    }
    assert!(interrupted > 0, "all had ended before");
}

/// What was interrupted goes on, or is done anew.
fn again(words: &[&str], image: &Image, source: &str) {
    match words[0] {
        "balance" => {
            sh(&format!("{PROGRAM} balance resume {}", image.word()));
            same_as(source, image, &image.dir.join("out").display().to_string());
            fs::remove_dir_all(image.dir.join("out")).unwrap();
        }
        "rm" => assert_eq!(fine(&["rm", "-rf", &image.at("/t")]), ""),
        _ => {
            fine(&["rm", "-rf", &image.at("/more")]);
            fine(words);
        }
    }
    is_sound(image);
}
