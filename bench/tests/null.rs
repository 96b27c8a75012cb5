//! The null server answers as the tests' model does: what is measured over it does the same work.
//!
//! `SPINNEY_SEED` and `SPINNEY_STEPS` choose others and more.

use fuse::{Config, Session, Transport};
use spinney_bench::null::NullFs;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use testkit::ops::{
    Config as Ops, OpKind, Tolerance, check_private_trees, check_shared_tree, explain, generate,
    lockstep,
};
use testkit::{PosixFs, Profile, RefFs, skip};

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// What it does not know: flags, compression, ACLs of more than three entries.
fn known(ops: Ops) -> Ops {
    use OpKind::{Acl, Compression, Flags};
    Ops { freeze: false, ..ops.without(&[Acl, Compression, Flags]) }
}

struct Mount {
    at: PathBuf,
    session: Option<Session>,
}

impl Mount {
    /// `None` where this machine cannot.
    fn new(name: &str, transport: Transport) -> Option<Mount> {
        let at = std::env::temp_dir().join(format!("spinney-null-{name}-{}", std::process::id()));
        fs::create_dir_all(&at).unwrap();
        let config = Config { transport, noatime: true, ..Config::default() };
        let session = Session::mount(Arc::new(NullFs::new()), &at, &config).ok();
        let mount = Mount { at, session };
        mount.session.is_some().then_some(mount)
    }

    fn dir(&self, name: &str) -> PathBuf {
        let path = self.at.join(name);
        fs::create_dir(&path).unwrap();
        path
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        drop(self.session.take());
        let _ = fs::remove_dir(&self.at);
    }
}

fn tolerance() -> Tolerance {
    Tolerance { profile: Profile::FUSE, tree_every: 500, ..Tolerance::default() }
}

fn in_lockstep(name: &str, transport: Transport, ops: &Ops) {
    let Some(mount) = Mount::new(name, transport) else { skip!("no {name} here") };
    let (seed, steps) = (number("SPINNEY_SEED", 1), number("SPINNEY_STEPS", 3000) as usize);
    for seed in [seed, seed + 1] {
        let ops = generate(seed, steps, ops);
        let mut runs = 0;
        let mut run = |ops: &[testkit::ops::Op]| {
            runs += 1;
            let path = mount.dir(&format!("{seed}.{runs}"));
            let tested = PosixFs::open(&path).unwrap();
            lockstep(&RefFs::like(Profile::FUSE), &tested, ops, &tolerance())
        };
        if let Err(divergence) = run(&ops) {
            panic!("{}", explain(seed, &ops, divergence, run));
        }
    }
}

#[test]
fn it_answers_as_the_model_does() {
    testkit::require!(fuse);
    in_lockstep("uring", Transport::Uring, &known(Ops::fuse()));
    in_lockstep(
        "classic",
        Transport::Classic,
        &known(Ops::metadata().without(&[OpKind::CloneRange])),
    );
}

#[test]
fn content_is_what_the_model_says() {
    testkit::require!(fuse);
    in_lockstep("content", Transport::Auto, &known(Ops::data().without(&[OpKind::CloneRange])));
}

#[test]
fn many_clients_are_served_at_once() {
    testkit::require!(fuse);
    let Some(mount) = Mount::new("clients", Transport::Auto) else { skip!("no mount here") };
    let steps = number("SPINNEY_STEPS", 1500) as usize;
    let seed = number("SPINNEY_SEED", 1);
    let ops = known(Ops::fuse());
    let private = PosixFs::open(&mount.dir("private")).unwrap();
    check_private_trees(&private, 169 + seed, 4, steps, &ops, &tolerance()).unwrap();
    let shared = PosixFs::open(&mount.dir("shared")).unwrap();
    check_shared_tree(&shared, 179 + seed, 4, steps, &ops).unwrap();
}
