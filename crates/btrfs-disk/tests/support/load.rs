//! Work for the kernel, so that its trees hold every item type in many shapes.

use super::mount::Mount;
use btrfs_disk::checksum::name_hash;
use std::collections::HashMap;

/// Pairs of names with the same hash, which share one item.
pub fn colliding_names() -> Vec<(String, String)> {
    let mut seen = HashMap::new();
    let mut pairs = Vec::new();
    for i in 0u64..400_000 {
        let name = format!("{:x}", i.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        if let Some(other) = seen.insert(name_hash(name.as_bytes()), name.clone()) {
            pairs.push((other, name));
        }
    }
    assert!(!pairs.is_empty(), "400000 names and no collision");
    pairs
}

/// Files of every type, names of every length, links, attributes.
pub fn names(mount: &Mount) {
    let pairs = colliding_names();
    let collide: String = pairs
        .iter()
        .map(|(a, b)| {
            format!(
                "echo x > names/{a}; echo y > names/{b}; \
                 setfattr -n user.{a} -v 1 names/{a}; setfattr -n user.{a} -v 1 types/file\n"
            )
        })
        .collect();
    mount.run(&format!(
        r#"
        mkdir -p names types many deep/a/b/c
        touch types/file
        {collide}
        long=$(printf 'n%.0s' $(seq 255))
        echo long > names/$long
        mkfifo types/fifo; mknod types/char c 1 3; mknod types/block b 7 99
        python3 -c 'import socket; s = socket.socket(socket.AF_UNIX); s.bind("types/sock")' || true
        ln -s target types/short
        ln -s $(printf 't%.0s' $(seq 2000)) types/long
        for i in $(seq 600); do echo $i > many/file-number-$i; done
        for i in $(seq 400); do ln many/file-number-1 many/link-to-the-first-one-of-them-all-$i || break; done 2> /dev/null
        rm many/file-number-5*
        mv many/file-number-2 deep/a/b/c/moved
        setfattr -n user.big -v $(printf 'v%.0s' $(seq 3000)) types/file
        setfattr -n user.with/slash -v 0x000102 types/file
        setfattr -n user.empty types/file
        setfacl -m u:1000:rwx,g:1001:r types/file; setfacl -d -m u:1000:rwx deep
        chattr +S +A +d types/file; chattr +D deep; chattr +C types/short 2>/dev/null || true
        touch types/immutable types/append types/nocow
        chattr +C types/nocow; chattr +i types/immutable; chattr +a types/append
        head -c 100000 /dev/urandom > types/nocow
        chattr -i types/immutable
        chmod 7777 types/file
        "#
    ));
}

/// Extents: inline, regular, preallocated, punched, compressed, shared, sparse.
pub fn extents(mount: &Mount) {
    mount.run(
        r#"
        mkdir -p data
        head -c 1000 /dev/urandom > data/inline
        seq 200 > data/inline-text
        head -c 3000000 /dev/urandom > data/regular
        seq 400000 > data/text
        xfs_io -f -c 'falloc 0 4m' -c 'pwrite 1m 300k' -c 'fpunch 512k 256k' data/prealloc > /dev/null
        xfs_io -f -c 'pwrite 0 2000' -c 'truncate 1m' -c 'pwrite 900k 10' data/sparse > /dev/null
        xfs_io -f -c 'falloc -k 0 1m' -c 'pwrite 0 5000' data/keep > /dev/null
        xfs_io -f -c 'falloc 0 1m' -c fsync -c 'pwrite 4096 4096' -c fsync -c 'pwrite 12288 100' data/pieces > /dev/null
        xfs_io -f -c 'pwrite 0 1m' -c fsync -c 'fzero 100k 300k' -c 'truncate 777777' data/zeroed > /dev/null
        for i in $(seq 0 60); do
            xfs_io -c "pwrite -S $i $((i * 40960 + 4096)) 8192" data/regular > /dev/null
        done
        cp --reflink=always data/regular data/clone
        xfs_io -c 'reflink data/text 65536 131072 262144' data/clone > /dev/null
        for i in $(seq 0 40); do cp --reflink=always data/text data/shared-$i; done
        for algo in zlib lzo zstd; do
            mkdir data/$algo; chattr +c data/$algo
            btrfs property set data/$algo compression $algo
            seq 300000 > data/$algo/text
            seq 300 > data/$algo/small
            (seq 50000; head -c 200000 /dev/urandom; seq 50000) > data/$algo/mixed
            sync data/$algo/text
            xfs_io -c 'pwrite 50000 70000' -c 'fpunch 200k 100k' data/$algo/text > /dev/null
            head -c 1000000 /dev/zero > data/$algo/zeros
        done
        sync -f .
        "#,
    );
}

/// Subvolumes, snapshots and their renames and deletion, default, send and receive.
pub fn subvolumes(mount: &Mount) {
    mount.run(
        r#"
        btrfs -q subvolume create sub; btrfs -q subvolume create sub/nested
        cp -r data/zlib names sub/
        btrfs -q subvolume snapshot . snap-of-top
        btrfs -q subvolume snapshot -r sub sub-ro
        btrfs -q subvolume snapshot sub sub-rw
        mv sub-rw deep/renamed-snapshot; mv sub/nested sub/nested-renamed
        echo change > deep/renamed-snapshot/change; rm -r deep/renamed-snapshot/zlib
        btrfs -q subvolume set-default deep/renamed-snapshot
        sync -f .
        btrfs send -q sub-ro 2>/dev/null > /tmp/btrfs-disk/send.$$ || true
        mkdir received; btrfs receive -q -f /tmp/btrfs-disk/send.$$ received || true
        rm -f /tmp/btrfs-disk/send.$$
        for i in $(seq 12); do btrfs -q subvolume snapshot sub snap-$i; echo $i > snap-$i/own; done
        sync -f .
        btrfs -q subvolume delete snap-3 snap-4 > /dev/null
        sync -f .
        "#,
    );
}

/// Quota groups; a hierarchy with limits.
pub fn quota(mount: &Mount) {
    mount.run(
        r#"
        btrfs quota enable .
        btrfs quota rescan -w . > /dev/null || true
        btrfs qgroup create 1/100 .
        btrfs qgroup assign --no-rescan 0/5 1/100 . || true
        btrfs qgroup limit 100m 1/100 .
        sync -f .
        "#,
    );
}

/// Relocation leaves reloc trees, shared references and a balance item behind.
pub fn balance(mount: &Mount) {
    mount.run(
        r#"
        btrfs balance start --full-balance . > /dev/null 2>&1 || true
        # What is kept of it goes with the command.
        mkdir -p /var/lib/btrfs && unshare -m sh -c \
            'mount -t tmpfs none /var/lib/btrfs && exec btrfs scrub start -B .' > /dev/null
        sync -f .
        "#,
    );
}
