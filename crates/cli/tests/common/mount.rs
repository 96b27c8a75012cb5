//! A mount by the program under test, gone when the test is over, also when it failed.

use super::*;
use std::fs;
use std::io::{BufRead, BufReader};
use std::process::Child;

pub const TRANSPORTS: [&str; 2] = ["classic", "uring"];

/// True, with the reason told, where this machine cannot mount.
pub fn lacks_fuse(transport: &str) -> bool {
    if transport != "uring" {
        return false;
    }
    let parameter = std::path::Path::new("/sys/module/fuse/parameters/enable_uring");
    if !parameter.exists() {
        testkit::oracle::record_skip("mounts over io_uring", "the kernel does not offer it");
    }
    !parameter.exists()
}

/// What is mounted on `point`: type and source.
pub fn mounted(point: &Path) -> Option<(String, String)> {
    let table = fs::read_to_string("/proc/self/mounts").expect("mount table");
    let lines: Vec<Vec<&str>> = table.lines().map(|line| line.split(' ').collect()).collect();
    let entry = lines.iter().rfind(|fields| Path::new(fields[1]) == point)?;
    Some((entry[2].to_owned(), entry[0].to_owned()))
}

/// Loop devices whose file is `image`.
pub fn loops_over(image: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/sys/block").expect("block devices").flatten() {
        let backing = fs::read_to_string(entry.path().join("loop/backing_file"));
        if backing.is_ok_and(|file| Path::new(file.trim_end()) == image) {
            found.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    found
}

/// The server of `image`, by its command line.
pub fn server(image: &Path) -> Option<u32> {
    processes_of(image).find(|pid| !is_monitor(*pid))
}

/// The process beside the server.
pub fn monitor(image: &Path) -> Option<u32> {
    processes_of(image).find(|pid| is_monitor(*pid))
}

fn is_monitor(pid: u32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.contains("monitor"))
}

fn processes_of(image: &Path) -> impl Iterator<Item = u32> {
    let image = image.display().to_string();
    fs::read_dir("/proc").expect("proc").flatten().filter_map(move |entry| {
        let pid = entry.file_name().to_string_lossy().parse().ok()?;
        let line = fs::read(entry.path().join("cmdline")).ok()?;
        let exe = fs::read_link(entry.path().join("exe")).ok()?;
        let words: Vec<String> = line.split(|b| *b == 0).map(text).collect();
        (exe == Path::new(PROGRAM) && words.contains(&image)).then_some(pid)
    })
}

pub fn signal(pid: u32, name: &str) {
    let sent = Command::new("kill").args([&format!("-{name}"), &pid.to_string()]).status();
    assert!(sent.expect("kill").success());
}

/// A directory to mount on, and as a word.
pub fn place(image: &Image, name: &str) -> (PathBuf, String) {
    let path = image.dir.join(name);
    fs::create_dir_all(&path).expect("mount point");
    let word = path.display().to_string();
    (path, word)
}

/// Nobody serves the image any more, and nothing is wrong with it.
pub fn gone(image: &Image) {
    eventually("the server is gone", || server(&image.path).is_none());
    eventually("the loop device is gone", || loops_over(&image.path).is_empty());
    assert_clean(&image.path);
}

pub struct Mount {
    pub point: PathBuf,
    /// What the command printed when the mount was ready.
    pub ready: String,
    /// The server, where it was started in the foreground.
    pub child: Option<Child>,
}

impl Mount {
    /// In the background.
    pub fn new(image: &Image, options: &str) -> Mount {
        let point = Mount::directory(image);
        let log = image.dir.join("log").display().to_string();
        let point_word = point.display().to_string();
        let ready = fine(&["mount", "--log", &log, "-o", options, &image.word(), &point_word]);
        Mount { point, ready, child: None }
    }

    /// As a child of the test, so that signals can be sent to it.
    pub fn foreground(image: &Image, options: &str) -> Mount {
        let point = Mount::directory(image);
        let mut child = Command::new(PROGRAM)
            .args(["mount", "-f", "-o", options, &image.word()])
            .arg(&point)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("spinney runs");
        let mut ready = String::new();
        BufReader::new(child.stdout.take().expect("pipe")).read_line(&mut ready).expect("ready");
        let mount = Mount { point, ready, child: Some(child) };
        assert!(mount.ready.contains("is mounted on"), "{}", mount.ready);
        mount
    }

    pub fn directory(image: &Image) -> PathBuf {
        let point = image.dir.join("mnt");
        fs::create_dir_all(&point).expect("mount point");
        point
    }

    pub fn join(&self, name: &str) -> PathBuf {
        self.point.join(name)
    }

    pub fn word(&self) -> String {
        self.point.display().to_string()
    }

    pub fn pid(&self) -> u32 {
        self.child.as_ref().expect("in the foreground").id()
    }

    pub fn umount(self) {
        assert_eq!(fine(&["umount", &self.word()]), "");
    }

    /// Waits for the server's end: its exit code and what it logged.
    pub fn wait(&mut self) -> (Option<i32>, String) {
        let child = self.child.take().expect("in the foreground");
        let output = child.wait_with_output().expect("the server ends");
        (output.status.code(), text(&output.stderr))
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // Where a test failed with the server stopped, ours wakes it.
        let _ = Command::new("timeout")
            .args(["20", PROGRAM, "umount", "-l"])
            .arg(&self.point)
            .stderr(Stdio::null())
            .status();
        while mounted(&self.point).is_some() {
            let done = Command::new("umount").arg("-l").arg(&self.point).status();
            if !done.is_ok_and(|status| status.success()) {
                break;
            }
        }
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
