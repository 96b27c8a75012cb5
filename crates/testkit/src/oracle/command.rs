//! Running the system's tools and keeping what they said.

use std::process::Command;

/// What a tool said and how it ended.
#[derive(Clone, Debug)]
pub struct Report {
    /// The command line, for messages.
    pub command: String,
    /// `None` if a signal ended it or it could not be started.
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Report {
    pub fn success(&self) -> bool {
        self.code == Some(0)
    }

    /// Everything at once, for a failure message.
    pub fn text(&self) -> String {
        let Report { command, code, stdout, stderr } = self;
        format!("$ {command}\nexit code {code:?}\n{stdout}{stderr}")
    }

    /// Standard output without the final newline, or the whole report as the error.
    pub fn output(self) -> Result<String, String> {
        if self.success() { Ok(self.stdout.trim_end().to_owned()) } else { Err(self.text()) }
    }
}

/// Runs `program`, in the C locale, without input.
pub fn run<S: AsRef<std::ffi::OsStr>>(program: &str, args: &[S]) -> Report {
    let mut command = Command::new(program);
    command.args(args).env("LC_ALL", "C").stdin(std::process::Stdio::null());
    let words = args.iter().map(|arg| arg.as_ref().to_string_lossy().into_owned());
    let line = std::iter::once(program.to_owned()).chain(words).collect::<Vec<_>>().join(" ");
    match command.output() {
        Ok(output) => Report {
            command: line,
            code: output.status.code(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        },
        Err(error) => {
            let stderr = format!("cannot be run: {error}\n");
            Report { command: line, code: None, stdout: String::new(), stderr }
        }
    }
}

/// As `run`; its output, or the whole report as the error.
pub fn sh<S: AsRef<std::ffi::OsStr>>(program: &str, args: &[S]) -> Result<String, String> {
    run(program, args).output()
}
