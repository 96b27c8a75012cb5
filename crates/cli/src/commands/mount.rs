//! `spinney mount`, also under the names and with the words by which mount(8) calls it.

use super::Command;
use crate::args::{self, Arg, Args};
use crate::error::{Error, Exit, Result, io_text, say_error};
use crate::image::{self, ImageFile};
use crate::mount::again;
use crate::mount::background::{self, Reporter};
use crate::mount::guard::MountTarget;
use crate::mount::options::MountOptions;
use crate::mount::remount;
use crate::mount::request::Request;
use crate::mount::serve::serve;
use crate::mounts;
use crate::output::Out;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

pub const COMMAND: Command = Command {
    name: "mount",
    summary: "mount a volume through FUSE",
    usage: "[-f] [-r] [-q] [--log FILE] [--no-sandbox] [-o OPTION,...] IMAGE DIR",
    help: "\
Mounts the volume in IMAGE (a file or a block device; IMAGE@2 is partition 2 of a whole
disk) on the directory DIR. The command returns when the mount is ready, and a server stays
in the background until the volume is unmounted by `spinney umount`, umount(8) or
fusermount3 -u. If the start fails, the reason is printed and the exit code is 1.

As root the mount is of type fuseblk, over a loop device where IMAGE is a file: syncfs(2)
works, and unmounting returns when everything is on the medium. The loop device is only
the mount's name for the kernel; do not read the volume through it. As an ordinary user
(the package fuse3 must be installed) the mount is of type fuse and only yours; `spinney
umount` waits for the volume to be closed, umount(8) does not.

Once the mount stands the server lets go what it does not need to serve: it can open no file,
make no socket and start no program (Landlock, seccomp, capabilities; its log says what
the kernel lacks). A process beside it, spinney-monitor, unmounts on signals and looks up
callers' groups; it ends with the server.

Mounting changes no parameter of the machine, and no priority, unless an option asks for it
by name.

What root has mounted already root can mount at further places, another subvolume of it too:
they are one mount, and the first one's options hold.

The server commits and unmounts on SIGTERM, SIGINT and SIGHUP. If files are still open, the
tree is detached and closed with the last of them; a second signal does not wait for them
(one that comes a second later: what is sent at once is one; the commit it does wait for).

Options
    -f, --foreground    serve in this process, and log to standard error
    -r, --read-only     as -o ro
    -q, --quiet         print nothing when the mount is ready
    --log FILE          append the server's log to FILE. Without it a server in the
                        background logs to the system's log (/dev/log); where there is
                        none, to /run/spinney/DIR.log, or spinney/DIR.log in
                        $XDG_RUNTIME_DIR for ordinary users
    --no-sandbox        the server keeps all rights that it was started with, for debuggers;
                        its log says so
    -o, --options OPTION,...
                        may be given several times

The volume's -o options
    ro, rw              write nothing at all; the default is rw
    subvol=PATH         mount this subvolume, not the volume's default one
    subvolid=ID         the same by number; 5 is the top level; with subvol= both must fit
    commit=SECONDS      longest time between commits (30)
    fsync=log|commit    what an fsync writes: the file to the tree log (the default, also
                        treelog), or a whole commit (also notreelog)
    memory=SIZE         memory for all of the volume: cached metadata, changes, inodes,
                        unwritten content, a commit at work, each of which takes what the
                        others leave. A quarter of the machine's, 512M at most
    cache-size=SIZE     of that, cached metadata at most (512M)
    delta-size=SIZE     changes at most, before a commit starts (256M)
    dirty-size=SIZE     unwritten file content at most, before it is written (256M)
    inode-cache=SIZE    inodes at most (128M), and a quarter of memory=; others are
                        read again when they are asked for, open or not
    discard             tell the device about freed space
    compress, compress=HOW
                        compress new content. HOW is zlib (also without HOW), lzo or zstd,
                        with :LEVEL behind (zlib:1 to 9, zstd:-15 to 15; another one is taken
                        for the nearest, as by the kernel; lzo has none); no and none end it.
                        Files say otherwise by chattr +c and +m and by the attribute
                        btrfs.compression; +C excludes it
    compress-force=HOW  also what a look at a sample, or the file's past, speaks against
    user_subvol_rm_allowed
                        whoever may write to a subvolume, and rmdir(2) it, may delete it
    skip_balance        an interrupted balance stays paused
    nologreplay         with ro: show the last commit, without the fsyncs after it that a
                        crash left in the log. Otherwise every mount replays the log, one
                        with ro in memory alone
    rescue=WORD[:WORD...]
                        with ro, of a damaged volume: usebackuproot (where the last commit's
                        trees are lost, those of an earlier one that the superblock knows;
                        also without rescue=), ignorebadroots (subvolumes that the lost part
                        of the root tree names are not there, all others are),
                        ignoredatacsums (content whose checksum is wrong or lost: nothing
                        says whether it is what was written), nologreplay; all: each of them
    offset=SIZE, sizelimit=SIZE
                        the volume is not all of IMAGE, but what begins there, and so much
                        of it: as IMAGE@@OFFSET, IMAGE@@OFFSET+SIZE
    log=FILE            as --log

Whose the files are (without these: whose they are on the volume)
    map-owner           the files of the top directory's owner and group (root's, mostly)
                        appear to be yours, and what you make or are given is stored as
                        theirs. So an ordinary user can change an image that others made
    uid=USER, gid=GROUP all files appear to be USER's, GROUP's; new ones are stored as those
                        of the directory that they are made in; chown to others is refused
    Permission bits are not changed by either. Both imply nosuid and nodev; suid and dev
    behind them lift that.

FUSE's -o options
    transport=KIND      uring (FUSE over io_uring, Linux 6.14 or newer), classic (/dev/fuse)
                        or auto (the default), which takes uring where it is switched on:
                        `echo Y > /sys/module/fuse/parameters/enable_uring`, or
                        `options fuse enable_uring=Y` in /etc/modprobe.d. Asked for by name,
                        uring is switched on by root's mount, for the whole machine
    writeback           let the kernel gather small writes: faster for these, slower for
                        most else; that the volume is full, fsync and close tell, not
                        write. The kernel lets a FUSE mount have 1 % of the machine's
                        unwritten pages; max-ratio=100,strict-limit=0 lets it have its share
    open-errors         tell each opening of a file by its own fsync of content that the
                        device refused, as the kernel's file systems do, not the first
                        fsync alone. Opens are messages then: 7 microseconds each,
                        instead of one
    read-ahead=KIB, max-ratio=PERCENT, strict-limit=0|1
                        as root, what the kernel keeps for the mount in /sys/class/bdi; left
                        as the kernel made it (128, 1, 1) unless named
    allow_other         let other users in; file modes still decide. The default for root;
                        others need user_allow_other in /etc/fuse.conf
    plain               as root, no loop device and no fuseblk
    no-sandbox          as --no-sandbox
    threads=N           server threads per processor
    poll=MICROSECONDS|auto
                        how long idle processors are kept awake after a request, once they
                        come in quick succession; 0: never. auto (the default): 300 on
                        virtual machines of 2 to 8 processors without a quota, else 0. See
                        docs/SEMANTICS.md
    sync                each write is durable when it returns, as with O_SYNC; names are not
    relatime, strictatime, nodiratime
                        reading changes access times, as the kernel's options say; by
                        default it does not (noatime)
    nosuid, nodev, noexec, nosymfollow, fsname=NAME, max_read=N, max_write=N

`-o remount,ro DIR` makes a mount read-only, and returns when all is on the medium;
remount,rw makes it writable again. remount,compress=HOW (or compress-force=HOW, compress=no)
changes what is compressed from then on; nosuid, nodev, noexec, nosymfollow, sync and their
opposites (suid, ...) change what they name, and what is not named stays. No other option can
be changed: it is refused, unless it says what is so already.

Options of the kernel's btrfs without effect here (autodefrag, ssd, ...) are told in a line.

fstab(5) and mount(8)
What lines have for mount(8) and systemd (defaults, noauto, user, nofail, _netdev, x-...) is
accepted. mount(8) takes no notice of the caller's PATH. It calls the first of these:
    /sbin/mount.fuse.spinney      a link to this program: ln -s \"$(command -v spinney)\" ...
    /sbin/mount.fuse              (package fuse3), which needs `spinney` in /usr/local/bin,
                                  /usr/bin or /bin; else it says \"spinney: not found\"
Whoever mounts must be allowed to execute the program that the link names: with `user` in
the line that is an ordinary user, who must also own image and directory. A second link,
/sbin/mount.fuseblk.spinney, lets `mount -o remount` wait for the server.

Environment
    SPINNEY_LOG         error, warn, info (the default), debug or trace
    SPINNEY_SYSLOG      the socket of the system's log, if it is not /dev/log
    SPINNEY_START_LIMIT seconds (20) after which a start that hangs is given up; as long as
                        opening the volume gets on (replaying a log, say) it may take

Examples
    spinney mount disk.img /mnt
    spinney mount -o ro,subvol=home /dev/sdb1 /mnt
    spinney mount -f -o transport=classic disk.img ~/mnt
    spinney mount whole-disk.img@2 /mnt
    spinney mount -o offset=1M,sizelimit=4G whole-disk.img /mnt
    /etc/fstab:  /srv/disk.img  /mnt  fuse.spinney  commit=5,nofail  0  0
    /etc/fstab:  /home/me/disk.img  /home/me/mnt  fuse.spinney  noauto,user  0  0
",
    run,
};

struct Words {
    operands: Vec<OsString>,
    options: MountOptions,
    foreground: bool,
    quiet: bool,
}

impl Words {
    fn new() -> Words {
        let options = MountOptions::listed_in(COMMAND.help);
        Words { operands: Vec::new(), options, foreground: false, quiet: false }
    }
}

fn run(mut args: Args) -> Result<Exit> {
    let mut words = Words::new();
    while let Some(arg) = args.next()? {
        match arg {
            Arg::Short('f') | Arg::Long("foreground") => words.foreground = true,
            Arg::Short('r') | Arg::Long("read-only") => words.options.read_only(),
            Arg::Short('q') | Arg::Long("quiet") => words.quiet = true,
            Arg::Long("no-sandbox") => words.options.no_sandbox = true,
            Arg::Long("log") => {
                let path = args.path()?;
                words.options.log = Some(absolute(&path)?);
            }
            Arg::Short('o') | Arg::Long("options") => {
                let list = args.text()?;
                words.options.apply(&list, false)?;
            }
            Arg::Value(value) => words.operands.push(value),
            other => return Err(args::unexpected(other)),
        }
    }
    start(words)
}

/// As `mount.fuse.spinney IMAGE DIR [-sfnvrw] [-t TYPE] [-o OPTIONS]`.
pub fn run_as_helper(mut args: Args) -> Result<Exit> {
    let mut words = Words { quiet: true, ..Words::new() };
    let (mut fake, mut lenient, mut lists) = (false, false, Vec::new());
    while let Some(arg) = args.next()? {
        match arg {
            Arg::Short('f') => fake = true,
            Arg::Short('s') => lenient = true,
            Arg::Short('n' | 'v' | 'w') => {}
            Arg::Short('r') => words.options.read_only(),
            Arg::Short('t' | 'N') => drop(args.value()?),
            Arg::Short('o') => lists.push(args.text()?),
            Arg::Value(value) => words.operands.push(value),
            other => return Err(args::unexpected(other)),
        }
    }
    for list in lists {
        words.options.apply(&list, lenient)?;
    }
    words.options.by_mount8 = true;
    if fake { Ok(Exit::Done) } else { start(words) }
}

/// The exit code that mount(8) wants: 1 for wrong words, 32 for a mount that failed.
pub fn exit_of_helper(result: Result<Exit>) -> Exit {
    let exit = result.unwrap_or_else(|error| {
        error.print();
        Exit::from(&error)
    });
    match exit {
        Exit::Failed => Exit::Code(32),
        Exit::Usage => Exit::Code(1),
        exit => exit,
    }
}

/// True for the words by which mount.fuse calls a file system: a volume and a directory
/// in the place of a command.
pub fn looks_like_mount(first: &OsStr, rest: &[OsString]) -> bool {
    let path = Path::new(first);
    image::is_image(path) && rest.first().is_some_and(|point| Path::new(point).is_dir())
}

fn start(mut words: Words) -> Result<Exit> {
    words.options.settle()?;
    if words.options.remount {
        return change(words);
    }
    let [image, point] = <[OsString; 2]>::try_from(words.operands)
        .map_err(|_| Error::usage("expected an image and a directory"))?;
    let image = words.options.slice.of(Path::new(&image))?;
    let real = ImageFile::of(&image).real().map_err(|e| Error::io(&image, &e))?;
    let (file, part) = image::identity(&real)?;
    let request = Request {
        image: real,
        file,
        part,
        point: real_point(Path::new(&point))?,
        options: words.options,
        foreground: words.foreground,
    };
    // There the log says it.
    let on_terminal = request.foreground && request.options.log.is_none();
    if let Some(warning) = request.options.warning().filter(|_| !on_terminal) {
        say_error(&format!("spinney: {warning}"));
    }
    if let Some(shared) = again::share(&request)? {
        if !words.quiet {
            Out::new().line(shared)?;
        }
        return Ok(Exit::Done);
    }
    let fsname = request.options.config.fsname.clone();
    let place = MountTarget::new(request.image.clone(), request.point.clone(), fsname);
    if request.foreground {
        return serve(&request, &mut Reporter::foreground(&place, words.quiet));
    }
    background::run(&place, words.quiet, |reporter| serve(&request, reporter))
}

/// `-o remount`.
fn change(words: Words) -> Result<Exit> {
    let point = args::some(words.operands, "the mount point")?.pop().unwrap_or_default();
    let point = mounts::real_path(Path::new(&point));
    let point = point.map_err(|e| Error::io(Path::new("the mount point"), &e))?;
    if let Some(warning) = words.options.warning() {
        say_error(&format!("spinney: {warning}"));
    }
    remount::remount(&point, &words.options)
}

fn absolute(path: &Path) -> Result<PathBuf> {
    std::path::absolute(path).map_err(|e| Error::io(path, &e))
}

fn real_point(point: &Path) -> Result<PathBuf> {
    match point.metadata() {
        Ok(meta) if meta.is_dir() => point.canonicalize().map_err(|e| Error::io(point, &e)),
        Ok(_) => Err(Error::about(point.display(), "not a directory")),
        Err(error) => {
            let told = Error::about(point.display(), format!("mount point: {}", io_text(&error)));
            let dead = mounts::real_path(point).ok().and_then(|p| mounts::on(&p).ok()?);
            Err(match (error.kind(), dead) {
                (std::io::ErrorKind::NotFound, _) => told.remedy("make the directory first"),
                (_, Some(entry)) if entry.is_fuse() => told.remedy(format!(
                    "a mount whose server is gone is there: `spinney umount {}` first",
                    point.display()
                )),
                _ => told,
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn volumes_and_directories_are_told_from_commands() {
        let me = std::env::current_exe().unwrap().into_os_string();
        let dir = [OsString::from("/"), "-o".into(), "rw".into()];
        assert!(looks_like_mount(&me, &dir));
        assert!(!looks_like_mount(&me, &[]));
        assert!(!looks_like_mount(&me, &["-o".into()]));
        assert!(!looks_like_mount(OsStr::new("lss"), &dir));
    }
}
