//! Completions in real shells, and what is said of words that were slips.

use crate::common;
use common::{Image, PROGRAM, failing, fine, json, sh, text};
use std::fs;
use std::io::Write;
use std::os::unix::fs::symlink;
use std::process::{Command, Stdio};
use testkit::{require, skip};

/// An image with things to complete, and `spinney` on the path.
fn filled() -> Image {
    let image = Image::new("shells");
    let host = image.dir.join("content");
    fs::write(&host, "found\n").unwrap();
    fine(&["mkdir", "-p", &image.at("/directory/below")]);
    fine(&["cp", &host.display().to_string(), &image.at("/directory/file with blanks")]);
    fs::create_dir(image.dir.join("bin")).unwrap();
    symlink(PROGRAM, image.dir.join("bin/spinney")).unwrap();
    image
}

/// What is on the terminal of a shell that got these keys.
fn typed(image: &Image, shell: &str, keys: &str) -> String {
    let dir = image.dir.path();
    let mut child = Command::new("timeout")
        .args(["60", "script", "-qec", shell, "/dev/null"])
        .current_dir(dir)
        .env("PATH", format!("{}/bin:{}", dir.display(), std::env::var("PATH").unwrap()))
        .env("HOME", dir)
        .env("TERM", "dumb")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(keys.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    text(&output.stdout)
}

#[test]
fn bash_completes() {
    require!(btrfs_progs);
    let image = filled();
    let keys = "eval \"$(spinney completions bash)\"\n\
        spinney ca\tdis\tdir\tfi\t\n\
        spinney ca\t\"disk.img:/directory/fi\t\n\
        spinney st\t --js\tdis\tdir\tbe\t| grep -o '\"type\":\"[a-z]*\"'\n\
        echo ends-$((40+2))\nexit\n";
    let said = typed(&image, "bash --norc --noprofile -i", keys);
    assert_eq!(said.matches("found\r\n").count(), 2, "{said}");
    assert!(said.contains("\"type\":\"directory\"") && said.contains("ends-42"), "{said}");
}

#[test]
fn zsh_completes() {
    require!(btrfs_progs);
    if !sh("command -v zsh").status.success() {
        skip!("no zsh here");
    }
    let image = filled();
    // zsh's editor throws away what came before it: each line waits for the prompt.
    let script = "zmodload zsh/zpty; zpty z zsh -f -i; zpty -w z 'PS1=ready%%; autoload -U compinit; compinit -u; \
        eval \"$(spinney completions zsh)\"'\n\
        send() { zpty -r z out '*ready%*'; print -r -- $out; zpty -w -n z $1 }\n\
        zpty -r z out '*ready%*'\n\
        send $'spinney ca\\tdis\\tdir\\tfi\\t\\n'\n\
        send $'spinney st\\t --js\\tdis\\tdir\\tbe\\t\\n'\n\
        send $'exit\\n'; zpty -r z out; print -r -- $out\n";
    fs::write(image.dir.join("script"), script).unwrap();
    let said = typed(&image, "zsh -f script", "");
    assert_eq!(said.matches("found\r").count(), 1, "{said}");
    assert!(said.contains("\"type\":\"directory\""), "{said}");
}

#[test]
fn fish_completes() {
    require!(btrfs_progs);
    if !sh("command -v fish").status.success() {
        skip!("no fish here");
    }
    let image = filled();
    let dir = image.dir.path().display();
    let complete = |line: &str| {
        let output = sh(&format!(
            "cd {dir} && PATH={dir}/bin:$PATH HOME={dir} fish --no-config -c \
             'spinney completions fish | source; complete -C \"{line}\"'"
        ));
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stdout)
    };
    assert_eq!(complete("spinney cat disk.img:/dir"), "disk.img:/directory/\n");
    assert_eq!(
        complete("spinney cat disk.img:/directory/f"),
        "disk.img:/directory/file with blanks\n"
    );
    assert!(complete("spinney ca").starts_with("cat\twrite files"));
    assert!(complete("spinney ls --js").starts_with("--json\t"));
    assert!(complete("spinney ls ").contains("disk.img:/\n"));
}

#[test]
fn what_shells_ask_for() {
    require!(btrfs_progs);
    let image = filled();
    let ask = |words: &[&str]| fine(&[&["completions", "--words", "--"], words].concat());
    assert_eq!(ask(&["ls", &image.at("/d")]), format!("{}\n", image.at("/directory/")));
    assert_eq!(ask(&["ls", &image.at("/none/x")]), "");
    assert_eq!(ask(&["ls", "/none/x"]), "");
    let word = image.word();
    assert!(ask(&["cp", &word]).contains(&format!("{word}:/\n")));
    // Files that are no volume are for commands that take any.
    let content = image.dir.join("content").display().to_string();
    assert_eq!(ask(&["ls", &content]), "");
    assert_eq!(ask(&["cp", &content]), format!("{content}\n"));
    assert_eq!(ask(&["umount", &content]), "");
    // A file that is being written: nothing waits.
    let garbage = image.dir.join("garbage.img");
    let mut bytes = fs::read(&image.path).unwrap()[..128 << 10].to_vec();
    bytes.resize(1 << 20, 7);
    fs::write(&garbage, bytes).unwrap();
    assert_eq!(ask(&["ls", &format!("{}:/", garbage.display())]), "");
}

#[test]
fn slips_are_answered_with_what_was_meant() {
    let (code, why) = failing(&["chekc", "x"]);
    assert!(code == 2 && why.contains("did you mean `spinney check`?"), "{why}");
    let (code, why) = failing(&["ls", "--recursiv", "x:/"]);
    assert!(code == 2 && why.contains("ls has no option --recursiv"), "{why}");
    assert!(why.contains("did you mean --recursive?"), "{why}");
    let (_, why) = failing(&["df", "-B", "x"]);
    assert!(why.contains("did you mean -b?"), "{why}");
    let (_, why) = failing(&["qqqq"]);
    assert!(!why.contains("did you mean"), "{why}");
}

/// Each option that the help names is one that its verb takes.
#[test]
fn verbs_take_what_their_help_names() {
    let help = json(&fine(&["help", "--json"]));
    let mut count = 0;
    for command in help.as_array().unwrap() {
        let verb = command["name"].as_str().unwrap();
        for option in command["options"].as_array().unwrap() {
            for name in option["names"].as_array().unwrap() {
                let name = name.as_str().unwrap();
                if (verb, name) == ("help", "--man") {
                    // Answers without a look at what follows.
                    continue;
                }
                let mut words = vec![verb, name];
                words.extend(option["value"].as_str().map(|_| "1"));
                words.push("--nonsense");
                let (code, why) = failing(&words);
                let judged = why.contains("has no option --nonsense")
                    || (!why.contains("has no option") && !why.contains("invalid option"));
                assert!(code == 2 && judged, "{words:?}: {why}");
                count += 1;
            }
        }
    }
    assert!(count > 100, "{count}");
}
