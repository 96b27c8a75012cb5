//! Programs that bring their own clock: dbench, fs_mark, fio. They run in a directory
//! of the host only, are not part of the standard run, and do not apply where the
//! program is not installed.

use super::{Aims, Cache, Done, Env, Info, Workload, not_here};
use std::io;
use std::process::{Command, Stdio};

pub fn all() -> Vec<Box<dyn Workload>> {
    let fio = |name, about, rw, direct| -> Box<dyn Workload> {
        Box::new(External { name, about, unit: "ops/s", program: Program::Fio { rw, direct } })
    };
    vec![
        Box::new(External {
            name: "dbench",
            about: "dbench, 8 clients",
            unit: "MB/s",
            program: Program::Dbench,
        }),
        Box::new(External {
            name: "fs-mark",
            about: "fs_mark -S 0 -s 0 -t 2",
            unit: "files/s",
            program: Program::FsMark,
        }),
        fio("fio-randread-direct", "fio 4 KiB random read, O_DIRECT", "randread", true),
        fio("fio-randwrite-direct", "fio 4 KiB random write, O_DIRECT", "randwrite", true),
        fio("fio-randwrite", "fio 4 KiB random write, buffered", "randwrite", false),
    ]
}

#[derive(Clone, Copy)]
enum Program {
    Dbench,
    FsMark,
    Fio { rw: &'static str, direct: bool },
}

struct External {
    name: &'static str,
    about: &'static str,
    unit: &'static str,
    program: Program,
}

impl External {
    fn command(&self, dir: &str, env: &Env<'_>) -> (&'static str, Vec<String>) {
        let seconds = env.sizes.program_seconds;
        let (program, args) = match self.program {
            Program::Dbench => ("dbench", format!("-t {seconds} -D {dir} 8")),
            Program::FsMark => {
                ("fs_mark", format!("-S 0 -s 0 -t 2 -n {} -d {dir}", env.sizes.files / 2))
            }
            Program::Fio { rw, direct } => (
                "fio",
                format!(
                    "--name=f --directory={dir} --rw={rw} --bs=4k --ioengine=psync --direct={} \
                     --size={} --time_based --runtime={seconds} --output-format=json",
                    u8::from(direct),
                    env.sizes.file_bytes
                ),
            ),
        };
        (program, args.split(' ').map(str::to_string).collect())
    }

    fn rate(&self, output: &str) -> Option<f64> {
        match self.program {
            Program::Dbench => dbench_rate(output),
            Program::FsMark => fs_mark_rate(output),
            Program::Fio { rw, .. } => fio_rate(output, rw),
        }
    }
}

impl Workload for External {
    fn info(&self) -> Info {
        Info {
            name: self.name,
            about: self.about,
            unit: self.unit,
            cache: Cache::Warm,
            aims: Aims::NONE,
            standard: false,
        }
    }

    fn run(&self, env: &Env<'_>) -> io::Result<Done> {
        let dir = env.host_dir().ok_or_else(|| not_here("needs a directory of the host"))?;
        let dir = dir.to_str().ok_or_else(|| not_here("needs a path in UTF-8"))?;
        let (program, args) = self.command(dir, env);
        let output = match Command::new(program).args(&args).stdin(Stdio::null()).output() {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                return Err(not_here(format!("{program} is not installed")));
            }
            other => other?,
        };
        let text = String::from_utf8_lossy(&output.stdout);
        if !output.status.success() {
            let message = String::from_utf8_lossy(&output.stderr).into_owned() + &text;
            let last = message.lines().last().unwrap_or("no message");
            return Err(io::Error::other(format!("{program}: {} ({last})", output.status)));
        }
        let rate = self.rate(&text).ok_or_else(|| {
            io::Error::other(format!("{program} printed no result that we understand"))
        })?;
        Ok(Done::from_rate(rate))
    }
}

/// `Throughput 814.21 MB/sec  8 clients  8 procs  max_latency=12.3 ms`
fn dbench_rate(output: &str) -> Option<f64> {
    let line = output.lines().rev().find_map(|line| line.trim().strip_prefix("Throughput "))?;
    line.split_whitespace().next()?.parse().ok()
}

/// The row below the heading `FSUse% Count Size Files/sec App Overhead`.
fn fs_mark_rate(output: &str) -> Option<f64> {
    let mut lines = output.lines().skip_while(|line| !line.contains("Files/sec"));
    lines.next()?;
    let row = lines.find(|line| !line.trim().is_empty())?;
    row.split_whitespace().nth(3)?.parse().ok()
}

fn fio_rate(output: &str, rw: &str) -> Option<f64> {
    // fio may say something before its JSON.
    let json: serde_json::Value = serde_json::from_str(output.get(output.find('{')?..)?).ok()?;
    let side = if rw.ends_with("read") { "read" } else { "write" };
    json["jobs"][0][side]["iops"].as_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_of_the_programs_are_found() {
        let dbench = " Deltree 2 1.0 2.0\n\nThroughput 814.21 MB/sec  8 clients  8 procs\n";
        assert_eq!(dbench_rate(dbench), Some(814.21));
        let fs_mark = "#  fs_mark\n\nFSUse%        Count         Size    Files/sec     App Overhead\n     \
                       1        40000            0      89123.4           412345\n";
        assert_eq!(fs_mark_rate(fs_mark), Some(89123.4));
        let fio = "note: x\n{\"jobs\": [{\"read\": {\"iops\": 5.5}, \"write\": {\"iops\": 0.0}}]}";
        assert_eq!(fio_rate(fio, "randread"), Some(5.5));
        assert_eq!(dbench_rate("nothing"), None);
        assert_eq!(fs_mark_rate("nothing"), None);
        assert_eq!(fio_rate("nothing", "randread"), None);
    }
}
