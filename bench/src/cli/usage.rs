//! What `--help` prints.

pub const USAGE: &str = "\
spinney-bench: workloads on file systems, side by side

  spinney-bench --list
      show the workloads and the ratios that are aimed at
  spinney-bench run --dir PATH [OPTIONS]
      run them in one directory and print the rates
  spinney-bench compare [SIDES] [OPTIONS]
      run them on two or more sides in alternating rounds and print the ratios
  spinney-bench fsync [SIDES] [OPTIONS]
      compare: fio's fsync rows by number of jobs, and fsync during a big commit
  spinney-bench dbench [SIDES] [OPTIONS]
      compare: dbench with 8 and 16 clients, and its table of operations
  spinney-bench orphans [SIDES] [OPTIONS]
      compare: files cut byte by byte, and one name made and cut again and again, by
      more and more threads
  spinney-bench send --spinney PROGRAM [--dir DIR] [--content BYTES] [OPTIONS]
      streams of snapshots made and received by the kernel and by Spinney, in turn
  spinney-bench balance --spinney PROGRAM [--dir DIR] [--content BYTES] [OPTIONS]
      balances of metadata and data and a shrink, on copies of one image, by the
      kernel and by Spinney
  spinney-bench subvolumes --spinney PROGRAM [--dir DIR] [--snapshots N] [OPTIONS]
      ten thousand snapshots made, listed and deleted, what quotas cost, and how long
      creations and fsyncs take beside a balance, by the kernel and by Spinney
  spinney-bench compress [SIDES] [OPTIONS]
      compare: files of /usr written and read, and what they take of the volume; with
      --kernel-opts, --spinney-opts and --library-opts compress=TYPE[:LEVEL]
  spinney-bench inodes [SIDES] [OPTIONS]
      compare: fs_mark, and the time of each of many creations
  spinney-bench many [SIDES] [OPTIONS]
      compare: a million files in rounds, a million in one directory, and single
      operations while a million items are committed
  spinney-bench limits [SIDES] [OPTIONS]
      compare: 10,000 directories deep and wide, renames between two directories by 64
      threads, a million files and 200 writers in the memory that --variant gives
  spinney-bench trees [SIDES] [OPTIONS]
      compare: a tree of 19,600 files unpacked, copied, walked, searched, removed; git
      status, npm ci
  spinney-bench contention [--files N] [--markdown FILE.md]
      how often each kind of operation waits for a lock in the library, and where, by 1, 2, 8
      and 64 threads in directories of their own; built with --features count-contention
  spinney-bench inode-memory --spinney PROGRAM [--files N] [--mounted N]
      bytes of memory of an inode that is held: in the library, in a mount's server and in the
      kernel beside it, in the kernel's btrfs
  spinney-bench index [--scale F] [--plot FILE.svg] [--markdown FILE.md]
      the index of open inodes alone, beside what it could have been: time of each of
      5 million inserts, rates of inserts and lookups by 1 to 64 threads

Sides of a comparison (the kernel is the baseline; at least one other is needed)
  --spinney PROGRAM        an image mounted by this `spinney`
  --transport T            uring, classic or both (default: what `spinney` chooses)
  --spinney-opts OPTS      more mount options for `spinney mount -o`
  --variant NAME=OPTS      a column of its own with these options added, instead of the
                           plain one; may be repeated; NAME= is the plain one
  --spinney-dir PATH       a directory that is already mounted, instead
  --kernel-dir PATH        the same for the baseline
  --kernel-opts OPTS       mount options for the kernel beside loop,noatime
  --kernel-variant NAME=OPTS
                           a second kernel mount with these options added
  --control                a second kernel mount: its ratios show the noise
  --null                   a file system in memory behind the same transport, in a process
                           of its own: what FUSE costs by itself
  --null-opts OPTS         what its mount has behind -o (transport=, writeback, poll=, ...)
  --ext4                   the kernel's ext4 with an orphan file
  --library                the engine in this process, without FUSE; once for each
                           variant whose options it has too
  --tracking               the library twice more, with each truncation noted beside the
                           engine's own work: in the table of orphans, in a locked list
  --library-opts OPTS      more options for it, written as for a mount

Images
  --image-size SIZE        default 8G, sparse
  --backing WHERE          ram (/dev/shm, the default), disk, both (one after the
                           other, a report for each) or a directory
  --disk DIR               where disk is, default /var/tmp
  --mkfs OPTS              more options for mkfs.btrfs, separated by blanks

Work
  --workloads A,B,...      default: all standard ones; `unlink-*` works too
  --jobs N,M,...           of rows that go by jobs, threads or clients, only these
  --rounds N               default 3
  --scale F                0.1 does a tenth of everything
  --file-size SIZE         of sequential and random I/O, default 256M
  --seconds N              for what goes by time (fio, dbench); default 10, for fsync 5,
                           for dbench 30
  --loadfile FILE          of dbench, default /usr/share/dbench/client.txt
  --timeout SECONDS        for one sample, default 300
  --burners N              N programs that take what processors they get, beside all of it
  --check                  btrfs check of every image at the end of every round
  --quick                  seconds in all: shows that it works, measures nothing; what
                           follows it may change what it sets

Results
  --json FILE   --plot FILE.svg   --markdown FILE.md
                           with two backings, -ram and -disk are added to the names of
                           JSON and plot; the Markdown has both
  --gate                   end with 1 if an aim is missed";
