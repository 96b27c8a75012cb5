//! Databases, whose whole trade is what fsync promises: PostgreSQL under load on a server that is
//! killed, and RocksDB with direct I/O. They bring their own judges: a transaction that a client was
//! told is committed is there when the database has recovered, on the kernel's mount and on ours.
//!
//! Part of the soak; Debian's packages `postgresql` and `rocksdb-tools`. `SPINNEY_ROUNDS` makes it longer.

use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use suites::{Limited, Volume, assert_sound_after_kill, shell, transports};
use testkit::oracle::{run, with_kernel};
use testkit::skip;

const LIMIT: Duration = Duration::from_secs(300);
const CLIENTS: u64 = 8;

/// Programs of PostgreSQL's server, and a place for its socket and what pgbench notes.
struct Postgres {
    programs: PathBuf,
    scratch: PathBuf,
}

impl Postgres {
    fn new() -> Option<Postgres> {
        let found = run("sh", &["-c", "ls -d /usr/lib/postgresql/*/bin | tail -1"]);
        let programs = PathBuf::from(found.stdout.trim());
        let complete = ["initdb", "pg_ctl", "pgbench"].iter().all(|p| programs.join(p).exists());
        complete.then(|| {
            let made = Limited::new(10, "mktemp").args(["-d", "/tmp/spinney-postgres-XXXXXX"]).ok();
            let scratch = PathBuf::from(made.trim());
            Limited::new(10, "chown").arg("postgres").arg(&scratch).ok();
            Postgres { programs, scratch }
        })
    }

    /// `script` as the user that the server asks for; `$data` is its directory on `root`.
    fn run(&self, seconds: u32, root: &Path, script: &str) -> String {
        let words = format!(
            "set -eu; export PATH={}:$PATH PGHOST={} PGDATABASE=postgres; data={}/data; {script}",
            self.programs.display(),
            self.scratch.display(),
            root.display()
        );
        let user = ["--preserve-environment", "postgres", "-s", "/bin/bash", "-c", &words];
        let program = Limited::new(seconds, "su").args(user);
        program.run().output().unwrap_or_else(|said| panic!("{script}: {said}"))
    }

    fn start(&self, root: &Path) {
        let socket = self.scratch.display();
        let script = format!(
            "rm -f $data/postmaster.pid {socket}/.s.*; cd {socket}
            pg_ctl -w -D $data -l {socket}/log -o \"-k {socket} -c listen_addresses=''\" start >&2
            head -1 $data/postmaster.pid >pid"
        );
        self.run(120, root, &script);
    }

    /// Makes a database on `root`, and starts it.
    fn make(&self, root: &Path) {
        shell(10, root, "install -d -o postgres -m 700 data");
        self.run(120, root, "initdb -D $data -N >&2");
        self.start(root);
        self.run(120, root, "pgbench -i -s 5 -q >&2");
        self.stop(root);
    }

    fn stop(&self, root: &Path) {
        let forget = format!("pg_ctl -D $data -m fast stop >&2; rm {}/pid", self.scratch.display());
        self.run(60, root, &forget);
    }

    /// Transactions whose clients were told that they are committed, until the database is gone.
    fn load(&self, root: &Path) -> u64 {
        let script = format!(
            "cd {}; rm -f acked*; pgbench -c {CLIENTS} -j 2 -T 60 -l --log-prefix=acked >&2 || true
            cat acked* | wc -l",
            self.scratch.display()
        );
        self.run(120, root, &script).trim().parse().expect("a count")
    }

    /// Transactions of the last load that are there, and none of them by half.
    fn committed(&self, root: &Path) -> u64 {
        self.start(root);
        let count = |sql| self.run(60, root, &format!("psql -Atc '{sql}'")).trim().to_owned();
        let all = count("select count(*) from pgbench_history");
        let sums = "select (select sum(abalance) from pgbench_accounts),
            (select sum(tbalance) from pgbench_tellers), (select sum(bbalance) from pgbench_branches)";
        let sums = count(sums);
        let mut parts = sums.split('|');
        let first = parts.next().expect("a sum");
        assert!(parts.all(|part| part == first), "half of a transaction: {sums}");
        self.run(60, root, "pg_dump -f /dev/null postgres >&2");
        self.stop(root);
        all.parse().expect("a count")
    }

    /// This one alone: whoever runs the soak may have a database of his own.
    fn kill(&self) {
        let script = format!(
            "cd {}; pid=$(cat pid 2>/dev/null) || exit 0; rm pid; kill -9 $pid $(pgrep -P $pid)",
            self.scratch.display()
        );
        let report = run("sh", &["-c", &script]);
        if !report.success() {
            eprintln!("{}", report.text());
        }
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        self.kill();
        if let Err(error) = std::fs::remove_dir_all(&self.scratch) {
            eprintln!("{}: {error}", self.scratch.display());
        }
    }
}

/// Ends within a load; what it promised is there by both replays of the log.
fn killed(volume: &Volume, postgres: &Postgres, transport: &str, number: u64) {
    let mount = volume.mount(transport, LIMIT);
    postgres.start(mount.path());
    let acked = thread::scope(|scope| {
        let load = scope.spawn(|| postgres.load(mount.path()));
        thread::sleep(Duration::from_millis(3000 + number * 373 % 900));
        mount.kill_server();
        thread::sleep(Duration::from_millis(300));
        postgres.kill();
        load.join().expect("the load ends")
    });
    drop(mount);
    assert_sound_after_kill(&volume.image());
    let copy = volume.beside("copy.img");
    Limited::new(60, "cp").arg("--sparse=always").args([&volume.image(), &copy]).ok();
    let kernel = with_kernel(&copy, "noatime", |kernel| postgres.committed(kernel.path())).unwrap();
    let mount = volume.mount(transport, LIMIT);
    let ours = postgres.committed(mount.path());
    mount.unmount();
    println!("{transport}, round {number}: {acked} promised, {kernel} and {ours} there");
    assert!(acked > 0, "nothing was promised");
    for (there, who) in [(kernel, "the kernel"), (ours, "a new mount")] {
        assert!((acked..=acked + CLIENTS).contains(&there), "{acked} promised, {there} to {who}");
    }
}

#[test]
#[ignore = "a soak: wants PostgreSQL"]
fn postgres_on_a_server_that_is_killed() {
    let Some(postgres) = Postgres::new() else {
        skip!("postgresql is not installed");
    };
    let rounds = suites::number("SPINNEY_ROUNDS", 3);
    for transport in transports() {
        let volume = Volume::new("postgres", 4 << 30);
        let mount = volume.mount(transport, LIMIT);
        postgres.make(mount.path());
        mount.unmount();
        for number in 0..rounds {
            killed(&volume, &postgres, transport, number);
        }
    }
}

/// Its own checksums are right after compactions by direct I/O, and the judges' are afterwards.
#[test]
#[ignore = "a soak: wants RocksDB's db_bench"]
fn rocksdb_with_direct_io() {
    if !run("which", &["db_bench"]).success() {
        skip!("db_bench of rocksdb-tools is not installed");
    }
    for transport in transports() {
        let volume = Volume::new("rocksdb", 4 << 30);
        let mount = volume.mount(transport, LIMIT);
        for direct in [true, false] {
            let said = rocksdb(mount.path(), direct);
            assert!(said.contains("verifychecksum"), "{said}");
        }
        let seen = mount.unmount_with_tree();
        volume.judge(&seen);
    }
}

fn rocksdb(root: &Path, direct: bool) -> String {
    shell(
        240,
        root,
        &format!(
            "db_bench --db=$PWD/db-{direct} --num=200000 --value_size=400 --compression_type=none \\
                --use_direct_io_for_flush_and_compaction={direct} --use_direct_reads={direct} \\
                --benchmarks=fillrandom,overwrite,deleterandom,compact,verifychecksum,fillsync 2>&1"
        ),
    )
}
