//! Verbs with a command line of their own: each option has a value, and the verb ends as the program does.

use std::path::PathBuf;
use std::process::ExitCode;

/// An option and its value.
pub struct Given<'w> {
    pub option: &'w str,
    pub value: &'w str,
}

impl Given<'_> {
    pub fn path(&self) -> PathBuf {
        self.value.into()
    }

    /// `8G`, `256M`, `64k`, `4096`.
    pub fn bytes(&self) -> Result<u64, String> {
        let Given { option, value } = self;
        super::bytes(value).ok_or_else(|| format!("{option} {value}: no number"))
    }

    /// A number of `least` or more.
    pub fn at_least(&self, least: u64) -> Result<u64, String> {
        let Given { option, value } = self;
        let number = value.parse().ok().filter(|n| *n >= least);
        number.ok_or_else(|| format!("{option} {value}: a number of {least} or more is wanted"))
    }

    /// `16,64`.
    pub fn numbers(&self) -> Result<Vec<u64>, String> {
        let Given { option, value } = self;
        let all = value.split(',').map(str::parse).collect::<Result<_, _>>();
        all.map_err(|_| format!("{option} {value}: no numbers"))
    }

    pub fn is_unknown(&self) -> Result<(), String> {
        Err(format!("unknown option {}", self.option))
    }
}

/// Hands each option to `take`.
pub fn each<'w>(
    words: &'w [String],
    mut take: impl FnMut(Given<'w>) -> Result<(), String>,
) -> Result<(), String> {
    let mut words = words.iter();
    while let Some(option) = words.next() {
        let value = words.next().ok_or_else(|| format!("{option} wants a value"))?;
        take(Given { option, value })?;
    }
    Ok(())
}

/// What verbs take that measure Spinney beside the kernel on content of this machine.
pub struct Common {
    pub spinney: PathBuf,
    pub dir: PathBuf,
    /// Bytes.
    pub content: u64,
    pub rounds: usize,
    pub markdown: Option<PathBuf>,
}

impl Common {
    /// Hands each option that is not one of these to `other`.
    pub fn parse<'w>(
        words: &'w [String],
        mut other: impl FnMut(Given<'w>) -> Result<(), String>,
    ) -> Result<Common, String> {
        let mut options = Common {
            spinney: PathBuf::new(),
            dir: "/dev/shm".into(),
            content: 768 << 20,
            rounds: 3,
            markdown: None,
        };
        each(words, |given| {
            match given.option {
                "--spinney" => options.spinney = given.path(),
                "--dir" => options.dir = given.path(),
                "--content" => options.content = given.bytes()?,
                "--rounds" => options.rounds = given.at_least(1)? as usize,
                "--markdown" => options.markdown = Some(given.path()),
                _ => return other(given),
            }
            Ok(())
        })?;
        match options.spinney.as_os_str().is_empty() {
            true => Err("--spinney PROGRAM is missing".into()),
            false => Ok(options),
        }
    }
}

/// Does `work` with what `parsed` is: 2 where the words make no sense, 1 where it fails.
pub fn main<O>(
    verb: &str,
    usage: &str,
    parsed: Result<O, String>,
    work: impl FnOnce(O) -> std::io::Result<()>,
) -> ExitCode {
    let options = match parsed {
        Ok(options) => options,
        Err(message) => {
            eprintln!("spinney-bench {verb}: {message}\n{usage}");
            return ExitCode::from(2);
        }
    };
    match work(options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("spinney-bench {verb}: {error}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        line.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn values_are_what_their_options_want() {
        let given = |value| Given { option: "--n", value };
        assert_eq!(given("4k").bytes(), Ok(4096));
        assert!(given("k").bytes().is_err());
        assert_eq!(given("64").at_least(64), Ok(64));
        assert!(given("63").at_least(64).is_err());
        assert_eq!(given("16,64").numbers(), Ok(vec![16, 64]));
        assert!(given("16,").numbers().is_err());
    }

    #[test]
    fn what_is_common_is_taken_and_the_rest_handed_on() {
        let line = words("--spinney a --rounds 5 --plot p");
        let mut seen = Vec::new();
        let common = Common::parse(&line, |given| {
            seen.push(given.option);
            Ok(())
        });
        let common = common.expect("options");
        assert_eq!((common.spinney, common.rounds, common.content), ("a".into(), 5, 768 << 20));
        assert_eq!(seen, ["--plot"]);
        let unknown = |line| Common::parse(&words(line), |given| given.is_unknown()).err();
        assert_eq!(unknown("--spinney a --x 1"), Some("unknown option --x".into()));
        assert_eq!(unknown("--dir d"), Some("--spinney PROGRAM is missing".into()));
        assert!(unknown("--spinney a --rounds 0").is_some());
    }

    #[test]
    fn each_option_has_a_value() {
        let mut seen = Vec::new();
        let line = words("--a 1 --b 2");
        let done = each(&line, |given| {
            seen.push((given.option, given.value));
            Ok(())
        });
        assert_eq!((done, seen), (Ok(()), vec![("--a", "1"), ("--b", "2")]));
        assert_eq!(each(&words("--a"), |_| Ok(())), Err("--a wants a value".into()));
        assert!(each(&words("--a 1"), |given| given.is_unknown()).is_err());
    }
}
