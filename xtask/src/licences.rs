//! Are all dependencies under licences that `deny.toml` allows, and from crates.io?
//!
//! A stand-in for `cargo deny check licenses sources` that needs no installation. It
//! believes the `license` member of each crate and does not read licence files.

use serde_json::Value;
use std::process::Command;

const REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";

pub fn run() -> Result<bool, String> {
    let config = std::fs::read_to_string("deny.toml").map_err(|e| format!("deny.toml: {e}"))?;
    let allowed = allowed_licences(&config).ok_or("deny.toml: no list of allowed licences")?;
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let platform = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let output = Command::new(cargo)
        .args(["metadata", "--format-version", "1", "--filter-platform", &platform])
        .output()
        .map_err(|e| format!("cargo metadata: {e}"))?;
    if !output.status.success() {
        return Err(format!("cargo metadata: {}", String::from_utf8_lossy(&output.stderr)));
    }
    let metadata: Value =
        serde_json::from_slice(&output.stdout).map_err(|e| format!("cargo metadata: {e}"))?;
    let packages = metadata["packages"].as_array().ok_or("cargo metadata: no packages")?;
    let complaints: Vec<String> = packages.iter().filter_map(|p| complaint(p, &allowed)).collect();
    for complaint in &complaints {
        println!("licences: {complaint}");
    }
    println!("licences: {} crates, {} not allowed", packages.len(), complaints.len());
    Ok(complaints.is_empty())
}

/// The strings of the first `allow = [ ... ]`.
fn allowed_licences(config: &str) -> Option<Vec<String>> {
    let (_, rest) = config.split_once("\nallow = [")?;
    let (list, _) = rest.split_once(']')?;
    Some(list.split('"').skip(1).step_by(2).map(str::to_string).collect())
}

fn complaint(package: &Value, allowed: &[String]) -> Option<String> {
    let name = format!("{} {}", package["name"].as_str()?, package["version"].as_str()?);
    if let Some(source) = package["source"].as_str().filter(|source| *source != REGISTRY) {
        return Some(format!("{name} comes from {source}"));
    }
    let Some(licence) = package["license"].as_str() else {
        return Some(format!("{name} names no licence"));
    };
    match Expression::parse(licence).map(|mut e| e.allows(allowed)) {
        Some(true) => None,
        Some(false) => Some(format!("{name} is under {licence}")),
        None => Some(format!("{name}: cannot read the licence {licence:?}")),
    }
}

/// An SPDX expression as a row of words; `/` is the old way to write OR.
struct Expression {
    words: std::vec::IntoIter<String>,
    next: Option<String>,
}

impl Expression {
    fn parse(text: &str) -> Option<Expression> {
        let spaced = text.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
        let words: Vec<String> = spaced.split_whitespace().map(str::to_string).collect();
        let depth = words.iter().try_fold(0u32, |depth, word| match word.as_str() {
            "(" => Some(depth + 1),
            ")" => depth.checked_sub(1),
            _ => Some(depth),
        });
        if words.is_empty() || depth != Some(0) {
            return None;
        }
        let mut words = words.into_iter();
        let next = words.next();
        Some(Expression { words, next })
    }

    fn take(&mut self, word: &str) -> bool {
        let hit = self.next.as_deref() == Some(word);
        if hit {
            self.next = self.words.next();
        }
        hit
    }

    fn allows(&mut self, allowed: &[String]) -> bool {
        let mut any = self.all_of(allowed);
        while self.take("OR") {
            any |= self.all_of(allowed);
        }
        any
    }

    fn all_of(&mut self, allowed: &[String]) -> bool {
        let mut all = self.one(allowed);
        while self.take("AND") {
            all &= self.one(allowed);
        }
        all
    }

    fn one(&mut self, allowed: &[String]) -> bool {
        if self.take("(") {
            let inner = self.allows(allowed);
            return self.take(")") && inner;
        }
        let name = self.next.take().unwrap_or_default();
        self.next = self.words.next();
        if self.take("WITH") {
            // An exception gives more rights, never fewer.
            self.next = self.words.next();
        }
        allowed.contains(&name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn allows(licence: &str) -> Option<bool> {
        let allowed = ["MIT", "Apache-2.0", "Zlib"].map(str::to_string);
        Expression::parse(licence).map(|mut e| e.allows(&allowed))
    }

    #[test]
    fn expressions() {
        for good in [
            "MIT",
            "MIT OR GPL-2.0-only",
            "GPL-2.0-only OR MIT",
            "MIT/Apache-2.0",
            "(MIT OR GPL-3.0-only) AND Zlib",
            "Apache-2.0 WITH LLVM-exception OR GPL-2.0-only",
            "GPL-2.0-only OR MIT AND Zlib",
        ] {
            assert_eq!(allows(good), Some(true), "{good}");
        }
        for bad in [
            "GPL-2.0-only",
            "MIT AND GPL-2.0-only",
            "(MIT OR Zlib) AND GPL-2.0-only",
            "GPL-2.0-only WITH Linux-syscall-note",
            "(MIT OR Apache-2.0) AND (GPL-3.0-only OR AGPL-3.0-only)",
        ] {
            assert_eq!(allows(bad), Some(false), "{bad}");
        }
        for nonsense in ["", "(MIT", "MIT)"] {
            assert_eq!(allows(nonsense), None, "{nonsense}");
        }
    }

    #[test]
    fn complaints_name_the_crate_and_the_reason() {
        let allowed = ["MIT".to_string()];
        let of = |package: Value| complaint(&package, &allowed);
        let base = json!({"name": "a", "version": "1.0.0", "source": REGISTRY, "license": "MIT"});
        assert_eq!(of(base.clone()), None);
        let with = |member: &str, value: Value| {
            let mut package = base.clone();
            package[member] = value;
            of(package).unwrap()
        };
        assert_eq!(with("license", json!("GPL-2.0-only")), "a 1.0.0 is under GPL-2.0-only");
        assert_eq!(with("license", Value::Null), "a 1.0.0 names no licence");
        assert_eq!(with("source", json!("git+https://x")), "a 1.0.0 comes from git+https://x");
    }

    #[test]
    fn the_list_comes_from_deny_toml() {
        let config = "[licenses]\nallow = [\n  \"MIT\",\n  \"ISC\",\n]\n[sources]\nallow-x = []";
        assert_eq!(allowed_licences(config), Some(vec!["MIT".to_string(), "ISC".to_string()]));
        assert_eq!(allowed_licences("[licenses]"), None);
    }
}
