//! Where the program under test and the outside suites are.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The workspace's directory.
fn workspace() -> &'static Path {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).unwrap_or(here)
}

fn target() -> PathBuf {
    let set = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    set.unwrap_or_else(|| workspace().join("target"))
}

/// The newest build is the one that somebody just made to have it tested.
fn newest_build() -> Option<PathBuf> {
    let builds = ["release", "debug"].map(|profile| target().join(profile).join("spinney"));
    let age = |path: &PathBuf| path.metadata().and_then(|meta| meta.modified()).ok();
    builds.into_iter().filter(|path| age(path).is_some()).max_by_key(age)
}

fn build() -> PathBuf {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let args = ["build", "--quiet", "--package", "spinney-cli"];
    let status = Command::new(cargo).args(args).current_dir(workspace()).status();
    assert!(status.is_ok_and(|status| status.success()), "spinney cannot be built");
    target().join("debug/spinney")
}

/// The `spinney` program: what `SPINNEY` names, or the newest build, or a new one.
///
/// `cargo test` of this package builds no other package's program, so `SPINNEY_BUILD=1`
/// asks for a fresh build before the tests.
pub fn spinney() -> &'static Path {
    static FOUND: OnceLock<PathBuf> = OnceLock::new();
    FOUND.get_or_init(|| {
        if let Some(path) = std::env::var_os("SPINNEY") {
            return std::fs::canonicalize(path).expect("SPINNEY names the program");
        }
        let fresh = std::env::var_os("SPINNEY_BUILD").is_some();
        newest_build().filter(|_| !fresh).unwrap_or_else(build)
    })
}

/// A suite from crates.io, which `scripts/setup.sh` installs under `target/tools`.
pub struct Tool {
    pub name: &'static str,
    pub version: &'static str,
}

/// The tool's program, or why it is not there.
pub fn tool(tool: &Tool) -> Result<PathBuf, String> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut places: Vec<_> = std::env::split_paths(&path).collect();
    places.insert(0, workspace().join("target/tools/bin"));
    let found = places.iter().map(|dir| dir.join(tool.name)).find(|path| path.is_file());
    found.ok_or_else(|| {
        let Tool { name, version } = tool;
        format!("no {name}: cargo install {name} --version {version} --root target/tools")
    })
}
