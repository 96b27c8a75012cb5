"""System calls one after the other, and which attributes of which files each of them changes.

    calls.py DIR

Prints a line for each call: what it answered, and for each name m (mtime), c (ctime), s (size), n (links), M (mode)
where it has changed. Two file systems that behave alike print the same.
"""

import ctypes
import errno
import mmap
import os
import struct
import sys
import time

AT_SYMLINK_FOLLOW = 0x400
AT_FDCWD, UTIME_NOW, UTIME_OMIT = -100, (1 << 30) - 1, (1 << 30) - 2
NOREPLACE, EXCHANGE, WHITEOUT = 1, 2, 4
CREATE, REPLACE = os.XATTR_CREATE, os.XATTR_REPLACE
FALLOCATE = {"allocate": 0, "keep": 1, "punch": 3, "zero": 16, "zero keep": 17, "collapse": 8, "insert": 32,
             "punch alone": 2}
CAPABILITY = "security.capability", struct.pack("<IIIII", 0x02000001, 1, 0, 0, 0)
# Longer than the clock's tick, so that a stamp is seen.
TICK = 0.008
NAMES = ["a", "b", "a/f", "a/g", "a/sub", "a/link", "a/full", "b/h"]
libc = ctypes.CDLL(None, use_errno=True)


def checked(answer):
    if answer < 0:
        raise OSError(ctypes.get_errno(), "")
    return answer


def fallocate(fd, mode, offset, length):
    long = ctypes.c_long
    return checked(libc.fallocate(fd, mode, long(offset), long(length)))


def renameat2(old, new, flags):
    return checked(libc.renameat2(AT_FDCWD, old.encode(), AT_FDCWD, new.encode(), flags))


def utimens(path, access, change):
    times = struct.pack("qqqq", *access, *change)
    return checked(libc.utimensat(AT_FDCWD, path.encode(), times, 0))


def setxattr(path, name, value, flags=0):
    return checked(libc.setxattr(path.encode(), name.encode(), value, len(value), flags))


def removexattr(path, name):
    return checked(libc.removexattr(path.encode(), name.encode()))


def getxattr(path, name):
    return checked(libc.getxattr(path.encode(), name.encode(), None, 0))


def acl(*entries):
    nobody = 0xFFFFFFFF
    rows = [struct.pack("<HHI", tag, perm, nobody if uid is None else uid) for tag, perm, uid in entries]
    return struct.pack("<I", 2) + b"".join(rows)


def seen(path):
    try:
        s = os.lstat(path)
    except OSError as error:
        return errno.errorcode[error.errno]
    return {"m": s.st_mtime_ns, "c": s.st_ctime_ns, "s": s.st_size, "n": s.st_nlink, "M": s.st_mode}


def changed(before, after):
    if before == after:
        return None
    if isinstance(before, str) or isinstance(after, str):
        return "comes" if isinstance(before, str) else "goes"
    return "".join(key for key in before if before[key] != after[key])


def call(label, work):
    time.sleep(TICK)
    before = {name: seen(name) for name in NAMES}
    time.sleep(TICK)
    try:
        answer = work()
        answer = len(answer) if isinstance(answer, bytes) else answer
    except OSError as error:
        answer = errno.errorcode[error.errno]
    what = {name: changed(old, seen(name)) for name, old in before.items()}
    print(f"{label}: {answer} {({name: how for name, how in what.items() if how})}", flush=True)


def reopened(path, flags):
    os.close(os.open(path, flags))


def content(fd, other):
    call("write nothing", lambda: os.write(fd, b""))
    call("write", lambda: os.pwrite(fd, b"a", 10))
    call("write nothing behind the end", lambda: os.pwrite(fd, b"", 50_000))
    call("read", lambda: os.pread(fd, 10, 0))
    call("truncate to the same", lambda: os.ftruncate(fd, os.fstat(fd).st_size))
    call("truncate to more", lambda: os.ftruncate(fd, 20_000))
    call("truncate to less", lambda: os.ftruncate(fd, 9_000))
    call("truncate by name", lambda: os.truncate("a/f", 20_000))
    for flags, word in [(os.O_TRUNC, "truncating"), (os.O_TRUNC, "truncating what is empty"), (os.O_CREAT, "creating")]:
        call(f"open {word}", lambda: reopened("a/g", os.O_RDWR | flags))
    os.pwrite(other, b"y" * 5_000, 0)
    for word, mode in FALLOCATE.items():
        call(f"{word}: whole sectors", lambda: fallocate(fd, mode, 4096, 4096))
        call(f"{word}: within a sector", lambda: fallocate(fd, mode, 100, 50))
        call(f"{word}: behind the end", lambda: fallocate(fd, mode, 1 << 20, 4096))
        call(f"{word}: nothing", lambda: fallocate(fd, mode, 0, 0))
        call(f"{word}: again", lambda: fallocate(fd, mode, 4096, 4096))
    call("copy_file_range", lambda: os.copy_file_range(fd, other, 100, 0, 0))
    call("copy_file_range of nothing", lambda: os.copy_file_range(fd, other, 0, 0, 0))


def seeks():
    empty, holes = (os.open(name, os.O_RDWR | os.O_CREAT, 0o644) for name in ("empty", "holes"))
    os.ftruncate(holes, 1 << 20)
    os.pwrite(holes, b"x" * 4096, 1 << 16)
    for word, whence in [("data", os.SEEK_DATA), ("hole", os.SEEK_HOLE)]:
        for at in [0, -1, -(1 << 62), 1 << 16, 1 << 40, (1 << 63) - 1]:
            call(f"seek {word} from {at}", lambda: os.lseek(holes, at, whence))
            call(f"seek {word} of nothing from {at}", lambda: os.lseek(empty, at, whence))
    for fd in (empty, holes):
        os.close(fd)


def mapped(fd):
    """Neither set-ID bits nor a capability go with what is stored through a map."""
    memory = mmap.mmap(fd, 4096)
    os.chmod("a/f", 0o6755)
    setxattr("a/f", *CAPABILITY)
    call("store through a map", lambda: (memory.write_byte(65), memory.flush())[0])
    call("a capability is there", lambda: getxattr("a/f", CAPABILITY[0]))
    os.chmod("a/f", 0o755)
    call("write to what has one", lambda: os.pwrite(fd, b"a", 10))
    call("a capability is there still", lambda: getxattr("a/f", CAPABILITY[0]))
    memory.close()
    os.chmod("a/f", 0o600)


def deleted():
    """What can be made in a directory that is gone."""
    os.mkdir("gone")
    gone = os.open("gone", os.O_RDONLY | os.O_DIRECTORY)
    os.rmdir("gone")
    path = f"/proc/self/fd/{gone}"
    call("create in what is gone", lambda: reopened(path + "/x", os.O_CREAT | os.O_RDWR))
    call("mkdir in what is gone", lambda: os.mkdir(path + "/x"))
    call("rename into what is gone", lambda: os.rename("a/g", path + "/x"))
    unnamed = os.open(path, os.O_TMPFILE | os.O_RDWR, 0o600)
    call("write to what is made without a name there", lambda: os.write(unnamed, b"x"))
    at = f"/proc/self/fd/{unnamed}".encode()
    call("link of it", lambda: checked(libc.linkat(AT_FDCWD, at, AT_FDCWD, b"b/h", AT_SYMLINK_FOLLOW)))
    call("unlink of it", lambda: os.unlink("b/h"))
    os.close(unnamed)
    os.close(gone)


def attributes():
    call("chmod to the same", lambda: os.chmod("a/f", 0o644))
    call("chmod", lambda: os.chmod("a/f", 0o600))
    call("chown to the same", lambda: os.chown("a/f", 0, 0))
    call("chown to nobody", lambda: os.chown("a/f", -1, -1))
    call("chown of a directory to nobody", lambda: os.chown("a/sub", -1, -1))
    call("chown of a link", lambda: os.lchown("a/link", 1, 1))
    omit, now = (0, UTIME_OMIT), (0, UTIME_NOW)
    call("utimens of nothing", lambda: utimens("a/f", omit, omit))
    call("utimens of atime", lambda: utimens("a/f", now, omit))
    call("utimens of mtime", lambda: utimens("a/f", omit, now))
    call("utimens", lambda: utimens("a/f", (1, 1), (2, 2)))
    call("utimens to the same", lambda: utimens("a/f", (1, 1), (2, 2)))
    call("utimens before 1970", lambda: utimens("a/f", (-100, 1), (-5, 999_999_999)))
    call("utimens that cannot be", lambda: utimens("a/f", (0, 1_000_000_000), (0, 0)))


def names():
    call("link", lambda: os.link("a/f", "b/h"))
    call("rename onto the same inode", lambda: os.rename("a/f", "b/h"))
    call("exchange of the same inode", lambda: renameat2("a/f", "b/h", EXCHANGE))
    call("unlink of a link", lambda: os.unlink("b/h"))
    call("rename onto itself", lambda: os.rename("a/f", "a/f"))
    call("exchange", lambda: renameat2("a/f", "a/g", EXCHANGE))
    call("exchange back", lambda: renameat2("a/g", "a/f", EXCHANGE))
    call("exchange with a directory", lambda: renameat2("a/f", "a/sub", EXCHANGE))
    call("exchange with a directory back", lambda: renameat2("a/f", "a/sub", EXCHANGE))
    call("rename onto what is there", lambda: renameat2("a/f", "a/g", NOREPLACE))
    call("rename elsewhere", lambda: os.rename("a/f", "b/h"))
    call("rename back", lambda: os.rename("b/h", "a/f"))
    call("rename of a directory", lambda: os.rename("a/sub", "b/h"))
    call("rename of a directory back", lambda: os.rename("b/h", "a/sub"))
    call("whiteout", lambda: renameat2("a/f", "b/h", WHITEOUT))
    call("over a whiteout", lambda: os.rename("b/h", "a/f"))
    call("rmdir of a full one", lambda: os.rmdir("a/full"))
    call("rename onto a full one", lambda: os.rename("a/sub", "a/full"))


def xattrs():
    for flags, word in [(REPLACE, "replace"), (CREATE | REPLACE, "both"), (CREATE, "create"), (0, "set")]:
        call(f"setxattr, {word}, missing", lambda: setxattr("a/f", f"user.{word}", b"1", flags))
        call(f"setxattr, {word}, there", lambda: setxattr("a/f", "user.set", b"1", flags))
        os.setxattr("a/f", "user.set", b"2")
    for name in ["user.", "btrfs.", "btrfs.foo", "foo.bar", "user.none", "security.x", "trusted.x", "system.x"]:
        call(f"getxattr {name}", lambda: getxattr("a/f", name))
        call(f"setxattr {name}", lambda: setxattr("a/f", name, b"1"))
        call(f"setxattr {name} of a link", lambda: os.setxattr("a/link", name, b"1", follow_symlinks=False))
        call(f"removexattr {name}", lambda: removexattr("a/f", name))
        call(f"removexattr {name} again", lambda: removexattr("a/f", name))
    for value in [b"zstd", b"zstd", b"nonsense", b""]:
        call(f"btrfs.compression {value}", lambda: setxattr("a/f", "btrfs.compression", value))
    call("btrfs.compression goes", lambda: removexattr("a/f", "btrfs.compression"))
    owner, group, mask, other = (1, 6, None), (4, 4, None), (16, 4, None), (32, 4, None)
    lists = {"full": acl(owner, (2, 4, 1000), group, mask, other), "trivial": acl(owner, group, other),
             "empty": acl(), "garbage": b"abc"}
    for word, value in lists.items():
        for kind, path in [("access", "a/f"), ("access", "a/sub"), ("default", "a/sub"), ("default", "a/f")]:
            call(f"{word} {kind} list of {path}", lambda: setxattr(path, f"system.posix_acl_{kind}", value))
    for kind, path in [("access", "a/f"), ("default", "a/sub"), ("default", "a/sub")]:
        call(f"{kind} list of {path} goes", lambda: removexattr(path, f"system.posix_acl_{kind}"))


def main():
    os.chdir(sys.argv[1])
    os.umask(0o022)
    for name in ["a", "b", "a/sub", "a/full", "a/full/x"]:
        os.mkdir(name)
    os.symlink("f", "a/link")
    fd, other = (os.open(name, os.O_RDWR | os.O_CREAT, 0o644) for name in ("a/f", "a/g"))
    os.pwrite(fd, b"x" * 10_000, 0)
    os.pwrite(other, b"y" * 5_000, 0)
    content(fd, other)
    seeks()
    attributes()
    mapped(fd)
    deleted()
    names()
    xattrs()


main()
