//! Programs that people use, on a mount: what they made is there, they agree that it is,
//! and so do the kernel and btrfs-progs when the volume is closed.

use std::path::Path;
use std::time::Duration;

use suites::{Limited, Mounted, Volume, shell, transports};
use testkit::oracle::run;
use testkit::require;

const LIMIT: Duration = Duration::from_secs(300);

fn installed(program: &str) -> bool {
    run("which", &[program]).success()
}

fn on_mounts(name: &str, work: impl Fn(&Volume, &Mounted)) {
    on_mounts_of(1 << 30, name, work);
}

/// `work` on a mount with each transport, and the judges afterwards.
fn on_mounts_of(size: u64, name: &str, work: impl Fn(&Volume, &Mounted)) {
    for transport in transports() {
        let volume = Volume::new(name, size);
        let mount = volume.mount(transport, LIMIT);
        work(&volume, &mount);
        let seen = mount.unmount_with_tree();
        volume.judge(&seen);
    }
}

/// A repository with a history, made from nothing.
fn repository(dir: &Path) {
    std::fs::create_dir_all(dir).unwrap();
    shell(
        60,
        dir,
        "git init -q -b main .
        git config user.name nobody; git config user.email nobody@localhost
        for round in 1 2 3 4 5; do
            mkdir -p src/$round/deep
            for n in $(seq 40); do seq $((n * round * 7)) >src/$round/deep/f$n; done
            ln -sf deep/f$round src/$round/link; seq $round >>shared; chmod +x shared
            git add -A; git commit -qm \"round $round\"
        done
        git tag five; git checkout -q -b side HEAD~2; echo side >side; git add side
        git commit -qm side; git checkout -q main; git merge -q --no-edit side",
    );
}

#[test]
fn git() {
    require!(installed("git"), "no git");
    on_mounts("git", |volume, mount| {
        let source = volume.beside("source");
        repository(&source);
        let script = format!(
            "git clone -q --no-hardlinks '{0}' clone; cd clone
            git fsck --full --strict 2>&1; git status --porcelain
            git checkout -q five; git checkout -q side; git checkout -q main
            echo change >>shared; git -c user.name=n -c user.email=e commit -qam change
            git repack -adq; git gc -q --prune=now; git fsck --full 2>&1
            git diff --stat five HEAD >/dev/null; git worktree add -q ../tree five
            test -z \"$(git status --porcelain)\"; git rev-parse HEAD~1; git -C '{0}' rev-parse HEAD",
            source.display()
        );
        let said = shell(120, mount.path(), &script);
        let heads: Vec<_> = said.lines().rev().take(2).collect();
        assert_eq!(heads[0], heads[1], "{said}");
    });
}

#[test]
fn cargo_build() {
    require!(installed("cargo"), "no cargo");
    on_mounts("cargo", |_, mount| {
        let script = "cargo init -q --vcs none --name tiny --offline crate; cd crate
            echo 'pub fn answer() -> u32 { 42 }' >src/lib.rs
            echo 'fn main() { println!(\"{}\", tiny::answer()) }' >src/main.rs
            export CARGO_TARGET_DIR=$PWD/target CARGO_INCREMENTAL=1
            cargo build -q --offline; ./target/debug/tiny
            echo 'pub fn answer() -> u32 { 43 }' >src/lib.rs
            cargo build -q --offline; ./target/debug/tiny; cargo build --offline 2>&1";
        let said = shell(200, mount.path(), script);
        assert!(said.starts_with("42\n43\n"), "{said}");
        assert!(!said.contains("Compiling"), "what did not change was built again: {said}");
    });
}

/// Writers that get in each other's way, each with transactions of its own.
fn sqlite_load(mount: &Mounted, journal: &str) {
    let script = format!(
        "db={journal}.db
        sqlite3 $db 'PRAGMA journal_mode={journal}; PRAGMA synchronous=FULL;
            CREATE TABLE t(w INT, n INT, v BLOB, PRIMARY KEY(w, n)); CREATE INDEX i ON t(v);'
        for w in 1 2 3 4; do {{ {{
            echo 'PRAGMA journal_mode={journal}; PRAGMA synchronous=FULL;'
            for n in $(seq 25); do
                echo \"BEGIN IMMEDIATE; INSERT INTO t VALUES($w, $n, randomblob(3000));
                    UPDATE t SET v = randomblob(500) WHERE w = $w AND n = $n - 1; COMMIT;\"
            done; }} | sqlite3 -bail -cmd '.timeout 60000' $db >/dev/null; }} & pids[w]=$!; done
        for w in 1 2 3 4; do wait ${{pids[w]}}; done
        sqlite3 $db 'PRAGMA integrity_check; SELECT count(*), sum(n) FROM t; VACUUM;
            PRAGMA integrity_check;'"
    );
    let said = shell(120, mount.path(), &script);
    let found: Vec<_> = said.lines().skip(1).collect();
    assert_eq!(found, ["ok", "100|1300", "ok"], "{said}");
}

#[test]
fn sqlite() {
    require!(installed("sqlite3"), "no sqlite3");
    on_mounts("sqlite", |volume, mount| {
        for journal in ["wal", "delete", "truncate", "persist"] {
            sqlite_load(mount, journal);
        }
        // Rollback: what a transaction did is gone.
        let script = "sqlite3 delete.db 'BEGIN; DELETE FROM t; ROLLBACK; SELECT count(*) FROM t;'";
        assert_eq!(shell(30, mount.path(), script), "100");
        let copy = volume.beside("copy.db");
        std::fs::copy(mount.join("wal.db"), &copy).unwrap();
        let check = Limited::new(30, "sqlite3").arg(&copy).arg("PRAGMA integrity_check").ok();
        assert_eq!(check, "ok");
    });
}

/// One of everything that an archive or a copy has to carry.
fn menagerie(dir: &Path) {
    std::fs::create_dir_all(dir).unwrap();
    shell(
        60,
        dir,
        "mkdir -p a/b/c 'a name' empty; seq 20000 >a/numbers; seq 10 >'a name/x y'
        ln a/numbers a/b/hard; ln -s ../numbers a/b/soft; ln -s /nowhere dangling
        mkfifo fifo; mknod null c 1 3; mknod disk b 7 200
        truncate -s 3M sparse; printf end | dd of=sparse bs=1 seek=2000000 conv=notrunc status=none
        printf '' >nothing; touch -d '2001-02-03 04:05:06.789012345' a/numbers a/b nothing
        chmod 4755 nothing; chmod 2770 empty; chmod 1777 a; chown 1000:1001 'a name/x y'
        setfattr -n user.note -v hello a/numbers; setfattr -n trusted.t -v 1 a
        setfattr -n user.long -v \"$(seq 900 | tr -d '\\n')\" nothing
        setfacl -m u:daemon:rw,g:games:r a/numbers; setfacl -d -m u:daemon:rwx a/b
        for n in $(seq 300); do echo $n >a/b/c/file$n; done; chown -h 5:6 dangling",
    );
}

#[test]
fn tar() {
    require!(installed("setfattr") && installed("setfacl"), "no attr or acl");
    on_mounts("tar", |volume, mount| {
        let source = volume.beside("source");
        menagerie(&source);
        let script = format!(
            "flags='--acls --xattrs --xattrs-include=* --numeric-owner --sparse'
            tar -C '{0}' $flags -cf in.tar .; mkdir out
            tar -C out $flags -xpf in.tar; tar -C out $flags --compare -f in.tar
            tar -C out $flags -cf back.tar .; tar -C '{0}' $flags --compare -f back.tar
            rsync -aHAXn --checksum --delete --itemize-changes '{0}/' out/",
            source.display()
        );
        assert_eq!(shell(120, mount.path(), &script), "");
    });
}

#[test]
fn rsync() {
    require!(installed("rsync") && installed("setfattr") && installed("setfacl"), "no rsync");
    on_mounts("rsync", |volume, mount| {
        let source = volume.beside("source");
        menagerie(&source);
        let script = format!(
            "rsync -aHAX --numeric-ids '{0}/' copy/
            rsync -aHAX --numeric-ids --itemize-changes '{0}/' copy/
            rsync -aHAXn --checksum --delete --numeric-ids --itemize-changes '{0}/' copy/
            echo more >>copy/a/b/c/file7; rm copy/nothing; mkdir copy/extra
            rsync -aHAX --numeric-ids --delete --inplace '{0}/' copy/
            rsync -aHAXn --checksum --delete --numeric-ids --itemize-changes copy/ '{0}/'",
            source.display()
        );
        assert_eq!(shell(120, mount.path(), &script), "");
    });
}

/// Blocks that know where they belong, written and read back in every way there is.
#[test]
fn fio() {
    require!(installed("fio"), "no fio");
    on_mounts("fio", |_, mount| {
        let common = "--size=24m --rw=randrw --verify=crc32c --verify_fatal=1 --do_verify=1 \
            --verify_backlog=64 --randrepeat=1 --group_reporting --minimal --thread";
        let script = format!(
            "fio --name=direct --direct=1 --ioengine=libaio --iodepth=8 --bs=4k-256k {common} \
                --numjobs=2 >/dev/null
            fio --name=buffered --ioengine=psync --bsrange=512-192k --bs_unaligned=1 {common} \
                --fdatasync=50 >/dev/null
            fio --name=mapped --ioengine=mmap --bs=4k-64k {common} >/dev/null
            fio --name=together --filename=shared --ioengine=psync --direct=1 --bs=16k --numjobs=3 \
                --offset_increment=24m {common} >/dev/null
            dd if=direct.0.0 of=copy bs=1M iflag=direct oflag=direct status=none
            cmp direct.0.0 copy; dd if=copy of=again bs=100001 status=none; cmp copy again"
        );
        assert_eq!(shell(120, mount.path(), &script), "");
    });
}

/// Full volumes say so, keep what they have, and can be emptied.
#[test]
fn a_full_volume() {
    on_mounts_of(128 << 20, "full", |volume, mount| {
        let script = format!(
            "said='{}'; mkdir keep; # No cp: it would share extents for ever.
             seq 100000 >keep/numbers; sync -f .
            fill() {{ n=0; while dd if=keep/numbers of=big$n bs=600K status=none 2>$said; do n=$((n + 1)); done; }}
            fill; first=$n; grep -q 'No space left' $said; test $first -gt 40
            seq 100000 | cmp - keep/numbers
            rm big1 big2 big3 big4; sync -f .; cp keep/numbers again; cmp keep/numbers again
            rm -f big* again; sync -f .; fill; test $n -ge $((first * 9 / 10)); rm -f big*
            mkdir s; n=0; text=$(head -c 1500 keep/numbers)
            while echo \"$text\" 2>$said >s/$n; do n=$((n + 1)); done
            sync -f .; test $n -gt 5000; rm -rf s; sync -f .
            fill; test $n -ge $((first * 8 / 10)); rm -f big*
            seq 100000 | cmp - keep/numbers; echo fine",
            volume.beside("said").display()
        );
        assert_eq!(shell(200, mount.path(), &script), "fine");
    });
}
