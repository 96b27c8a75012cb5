"""What is said of files of a mount into which a program has stored through a map.

    beside_maps.py WHAT DIRECTORY
"""

import ctypes
import errno
import fcntl
import mmap
import os
import struct
import sys

what, top = sys.argv[1], sys.argv[2]
libc = ctypes.CDLL(None, use_errno=True)
libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long]
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


def new(name, content):
    file = os.open(f"{top}/{name}", os.O_RDWR | os.O_CREAT | os.O_EXCL)
    os.write(file, content)
    return file


def mapped(file):
    """A whole page: Python's own maps end with the file."""
    at = libc.mmap(None, 4096, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, file, 0)
    assert at != ctypes.c_void_p(-1).value
    return at


def call(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), "a call")


def copy(file, to):
    source = new("source", b"S" * 4096)
    os.unlink(f"{top}/source")
    assert os.copy_file_range(source, file, 4096, 0, to) == 4096


GROWTH = {
    "truncate": lambda file, near: os.ftruncate(file, 105 if near else 8192),
    "page": lambda file, near: os.ftruncate(file, 4096),
    "write": lambda file, near: os.pwrite(file, b"E", 200 if near else 9000),
    "append": lambda file, near: os.pwrite(file, b"E", 100),
    "over": lambda file, near: os.pwrite(file, b"E" * 20, 90),
    "fallocate": lambda file, near: call(libc.fallocate(file, 0, 0, 200 if near else 9000)),
    "zeros": lambda file, near: call(libc.fallocate(file, 16, 150, 50 if near else 9000)),
    "keep": lambda file, near: call(libc.fallocate(file, 1, 0, 9000)),
    "copy": lambda file, near: copy(file, 4096 if near else 16384),
    "cut": lambda file, near: (os.ftruncate(file, 50), os.ftruncate(file, 200)),
}


def behind():
    """A store behind the end, then a growth; whoever reads afterwards, and stores that come behind it."""
    for how, grow in GROWTH.items():
        for near in (True, False):
            for again in (False, True):
                name = f"{how}-{near}-{again}"
                file = new(name, b"X" * 100)
                at = mapped(file)
                ctypes.memmove(at + 100, b"YYYYYYYYYYYYYYYYYYYYYYYYYYYYYYYYYY", 34)
                ctypes.memmove(at + 10, b"stored", 6)
                grow(file, near)
                if again:
                    ctypes.memmove(at + 102, b"later", 5)
                print(name, os.fstat(file).st_size, os.pread(file, 40, 96), os.pread(file, 16, 4))
                os.fsync(file)
                libc.munmap(at, 4096)
                os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
                print(name, os.pread(file, 40, 96), os.pread(file, 16, 4), os.pread(file, 9, 196))
                os.close(file)


def cut():
    """The page in which a file ends from now on stays in memory: as it was written, or read, when the file was longer."""
    for how in ("written", "read"):
        for size in (8192, 8000):
            file = new(f"{how}-{size}", b"X" * size)
            if how == "read":
                os.fsync(file)
                os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
                os.pread(file, size, 0)
            os.ftruncate(file, 100)
            at = mapped(file)
            ctypes.memmove(at + 150, b"YYYY", 4)
            os.pwrite(file, b"E", 300)
            print(how, size, os.pread(file, 60, 96))
            os.fsync(file)
            libc.munmap(at, 4096)
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
            print(how, size, os.pread(file, 60, 96), os.pread(file, 9, 296))
            os.close(file)


def refused():
    """A copy over the end of a file that was read, which fails; then one byte more, without a question between."""
    file, source = new("file", b"X" * 100), new("source", b"S" * 4096)
    os.pread(file, 4096, 0)
    fcntl.ioctl(file, 0x40086602, struct.pack("<Q", 0x20))
    try:
        print(os.copy_file_range(source, file, 50, 0, 200))
    except OSError as error:
        print(errno.errorcode[error.errno])
    os.write(os.open(f"{top}/file", os.O_WRONLY | os.O_APPEND), b"a")
    print(os.stat(f"{top}/file").st_size, open(f"{top}/file", "rb").read()[96:])


def listed(at, directory):
    """Names behind a position, by a descriptor of its own."""
    file = os.open(directory, os.O_RDONLY)
    os.lseek(file, at, os.SEEK_SET)
    room = ctypes.create_string_buffer(65536)
    names, left = [], libc.syscall(217, file, room, len(room))
    while left > 0:
        here = 0
        while here < left:
            _, after, length, _ = struct.unpack_from("<QqHB", room.raw, here)
            names.append((room.raw[here + 19 : here + length].split(b"\0")[0].decode(), after))
            here += length
        left = libc.syscall(217, file, room, len(room))
    os.close(file)
    return names


CHANGES = {
    "unlink": lambda d: os.unlink(f"{d}/n5"),
    "rmdir": lambda d: os.rmdir(f"{d}/d"),
    "rename": lambda d: os.rename(f"{d}/n5", f"{top}/moved"),
}


def listing():
    """A position that was kept, and what comes behind it when names are gone. (What has come is in no listing that
    began before, as SEMANTICS says.)"""
    for how, change in CHANGES.items():
        d = f"{top}/{how}"
        os.mkdir(d)
        for number in range(10):
            os.mknod(f"{d}/n{number}")
        os.mkdir(f"{d}/d")
        for _ in range(2):
            whole = listed(0, d)
        at = dict(whole)["n3"]
        change(d)
        print(how, [name for name, _ in listed(at, d)])
        os.unlink(f"{d}/n8")
        print(how, [name for name, _ in listed(at, d)])


def verity():
    """Stores, and writes, before a file is closed to changes: those are in it, and nothing else is read afterwards."""
    for how in ("store", "write"):
        file = new(how, b"X" * 100)
        os.fsync(file)
        at = mapped(file)
        if how == "store":
            ctypes.memmove(at + 10, b"stored", 6)
        else:
            os.pwrite(file, b"stored", 10)
        enable = struct.pack("<IIIIQIIQ11Q", 1, 1, 4096, 0, 0, 0, 0, 0, *[0] * 11)
        reader = os.open(f"{top}/{how}", os.O_RDONLY)
        fcntl.ioctl(reader, 0x40806685, enable)
        print(how, os.pread(reader, 16, 4))
        libc.munmap(at, 4096)
        os.close(file)
        os.posix_fadvise(reader, 0, 0, os.POSIX_FADV_DONTNEED)
        print(how, os.pread(reader, 16, 4))


def times():
    """A time that is set between a store and the end of its map; and a store behind that."""
    for how in ("path", "file", "later"):
        file = new(how, b"X" * 100)
        os.fsync(file)
        at = mapped(file)
        ctypes.memmove(at + 10, b"stored", 6)
        os.utime(file if how == "file" else f"{top}/{how}", (7, 7))
        if how == "later":
            os.fsync(file)
            os.utime(file, (8, 8))
            ctypes.memmove(at + 10, b"latest", 6)
        libc.munmap(at, 4096)
        os.fsync(file)
        os.close(file)
        print(how, os.stat(f"{top}/{how}").st_mtime < 9, open(f"{top}/{how}").read(20))


def blocks():
    """Of a file that stays open."""
    file = new("file", b"")
    print(os.fstat(file).st_size)
    for size in (16, 1, 256, 1024):
        os.write(file, os.urandom(size << 12))
        os.fsync(file)
        print(os.fstat(file).st_blocks, os.stat(f"{top}/file").st_blocks)
    os.ftruncate(file, 8192)
    os.fsync(file)
    print(os.fstat(file).st_blocks)


SAID = {
    "behind": behind,
    "blocks": blocks,
    "cut": cut,
    "listing": listing,
    "refused": refused,
    "times": times,
    "verity": verity,
}
SAID[what]()
