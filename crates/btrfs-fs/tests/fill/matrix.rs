//! All kinds on all shapes, in an order that a seed makes: which of them are run, and what came of
//! each.
//!
//! `SPINNEY_FILL` says which: `KIND:SHAPE` by number, `*` for any, several with commas.
//! `SPINNEY_FILL_SECONDS` ends it. `SPINNEY_FILL_RESULTS` is a file that gets a line for each; those
//! that passed in it are not run again, so that a matrix can be run in parts.
//!
//! It knows numbers alone: neither what kinds are nor what shapes have.

use crate::common::number;
use std::collections::HashSet;
use std::fmt;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::{Duration, Instant};
use testkit::ops::Rng;

/// Numbers of a kind and of a shape.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Pair {
    pub kind: usize,
    pub shape: usize,
}

impl fmt::Display for Pair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.kind, self.shape)
    }
}

impl FromStr for Pair {
    type Err = String;

    fn from_str(text: &str) -> Result<Pair, String> {
        let numbers = text.split_once(':').and_then(|(kind, shape)| {
            Some(Pair { kind: kind.parse().ok()?, shape: shape.parse().ok()? })
        });
        numbers.ok_or_else(|| format!("`{text}` is not KIND:SHAPE"))
    }
}

/// Whether `pattern`, one or more of `KIND:SHAPE` where either may be `*`, asks for `pair`.
fn asks_for(pattern: &str, pair: Pair) -> bool {
    let is = |text: &str, number: usize| text == "*" || text.parse() == Ok(number);
    pattern.split(',').any(|one| {
        let (kind, shape) = one.split_once(':').expect("SPINNEY_FILL=KIND:SHAPE");
        is(kind, pair.kind) && is(shape, pair.shape)
    })
}

pub struct Matrix {
    pairs: Vec<Pair>,
    results: Option<PathBuf>,
    limit: Duration,
}

impl Matrix {
    /// As the environment asks for.
    pub fn of(kinds: usize, shapes: usize) -> Matrix {
        let pattern = std::env::var("SPINNEY_FILL").unwrap_or_else(|_| "*:*".into());
        let all = (0..kinds).flat_map(|kind| (0..shapes).map(move |shape| Pair { kind, shape }));
        Matrix {
            pairs: all.filter(|pair| asks_for(&pattern, *pair)).collect(),
            results: std::env::var_os("SPINNEY_FILL_RESULTS").map(PathBuf::from),
            limit: Duration::from_secs(number("SPINNEY_FILL_SECONDS", u64::MAX)),
        }
    }

    /// Those that are asked for.
    pub fn asked(self) -> Vec<Pair> {
        self.pairs
    }

    /// Runs `one` of each pair that has not passed before, and says which of them failed.
    pub fn run(&self, seed: u64, one: impl Fn(Pair)) -> Vec<String> {
        let (start, mut failed) = (Instant::now(), Vec::new());
        let mut passed = self.passed();
        for pair in shuffled(&self.pairs, seed) {
            if start.elapsed() > self.limit || passed.contains(&pair) {
                continue;
            }
            let began = Instant::now();
            let result = catch_unwind(AssertUnwindSafe(|| one(pair)));
            let took = began.elapsed().as_secs();
            match result {
                Ok(()) => {
                    passed.insert(pair);
                    self.write(&format!("{pair} passed, seed {seed}, {took} s"));
                }
                Err(why) => {
                    let why = told(why.as_ref());
                    println!("FAILED SPINNEY_FILL={pair} SPINNEY_SEED={seed}");
                    self.write(&format!("{pair} FAILED, seed {seed}, {took} s: {why:?}"));
                    failed.push(format!("{pair}"));
                }
            }
        }
        let count = self.pairs.iter().filter(|pair| passed.contains(pair)).count();
        println!("{count} of {} have passed, {} failed", self.pairs.len(), failed.len());
        failed
    }

    fn passed(&self) -> HashSet<Pair> {
        let text = self.results.as_ref().and_then(|path| std::fs::read_to_string(path).ok());
        passed_in(&text.unwrap_or_default())
    }

    fn write(&self, line: &str) {
        if let Some(path) = &self.results {
            let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
            writeln!(file.expect("SPINNEY_FILL_RESULTS"), "{line}").expect("write");
        }
    }
}

/// Those that a file of results says passed.
fn passed_in(results: &str) -> HashSet<Pair> {
    let passed = results.lines().filter_map(|line| line.split_once(" passed, seed"));
    passed.filter_map(|(pair, _)| pair.parse().ok()).collect()
}

fn shuffled(pairs: &[Pair], seed: u64) -> Vec<Pair> {
    let mut pairs = pairs.to_vec();
    let mut rng = Rng::new(seed);
    for at in (1..pairs.len()).rev() {
        pairs.swap(at, rng.below(at as u64 + 1) as usize);
    }
    pairs
}

/// What a panic said.
fn told(why: &(dyn std::any::Any + Send)) -> &str {
    let text = why.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| why.downcast_ref::<&str>().copied()).unwrap_or("a panic")
}

#[test]
fn a_pattern_asks_for_rows_and_columns() {
    let pair = Pair { kind: 2, shape: 13 };
    for yes in ["*:*", "2:13", "*:13", "2:*", "1:*,*:13"] {
        assert!(asks_for(yes, pair), "{yes}");
    }
    for no in ["2:1", "1:*,*:3", "13:2"] {
        assert!(!asks_for(no, pair), "{no}");
    }
}

/// What failed runs again, what passed does not.
#[test]
fn a_matrix_goes_on_where_another_run_ended() {
    let text = "2:13 passed, seed 1, 3 s\n4:5 FAILED, seed 1, 3 s: \"not as it passed\"\n";
    assert_eq!(passed_in(text), HashSet::from([Pair { kind: 2, shape: 13 }]));
    let pairs: Vec<Pair> = (0..9).map(|shape| Pair { kind: 1, shape }).collect();
    let order = shuffled(&pairs, 7);
    assert_eq!(order, shuffled(&pairs, 7), "the seed makes the order");
    assert_ne!(order, pairs);
    assert_eq!(order.len(), order.iter().collect::<HashSet<_>>().len());
}
