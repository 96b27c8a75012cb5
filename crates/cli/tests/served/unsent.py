"""Files whose only content is in pages that the kernel has not sent, and programs that look for holes.

    unsent.py DIR

Each file is made by a process that keeps it open and mapped; closing it would send the pages. Prints what the
file system says of holes and blocks, and a line for each program whose copy differs.
"""

import ctypes
import mmap
import os
import subprocess
import sys
import time

PAGE, SIZE, PUNCH_HOLE, KEEP_SIZE = 4096, 1 << 20, 3, 1
COPIES = {
    # Its own exit code may say that the time of the last change came while it read.
    "tar -S": "mkdir {0}.d; tar -cSf {0}.tar {0}; tar -xf {0}.tar -C {0}.d && cmp {0} {0}.d/{0}",
    "cp": "cp --reflink=never {0} {0}.c && cmp {0} {0}.c",
    "cp --sparse=always": "cp --reflink=never --sparse=always {0} {0}.c && cmp {0} {0}.c",
    "rsync -S": "rsync -S {0} {0}.c && cmp {0} {0}.c",
}
libc = ctypes.CDLL(None, use_errno=True)
libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long]


def grown(fd):
    os.ftruncate(fd, SIZE)


def punched(fd):
    os.pwrite(fd, b"w" * SIZE, 0)
    assert libc.fallocate(fd, PUNCH_HOLE, 0, SIZE) == 0


def reserved(fd):
    assert libc.fallocate(fd, 0, 0, SIZE) == 0


def half(fd):
    os.pwrite(fd, b"w" * (SIZE // 2), 0)
    os.ftruncate(fd, SIZE)


def large(fd):
    os.ftruncate(fd, 1 << 40)


def stored(fd, pages):
    memory = mmap.mmap(fd, SIZE)
    for page in pages:
        memory[page * PAGE : page * PAGE + 4] = b"data"
    return memory


def written(fd):
    os.pwrite(fd, b"w" * 50_000, 0)


def written_behind_a_hole(fd):
    os.ftruncate(fd, 100_000)
    os.pwrite(fd, b"w" * 5_000, 50_000)


def told(name):
    fd, at, found = os.open(name, os.O_RDONLY), 0, []
    size = os.fstat(fd).st_size
    while True:
        try:
            data = os.lseek(fd, at, os.SEEK_DATA)
        except OSError:
            break
        at = os.lseek(fd, data, os.SEEK_HOLE)
        found.append((data // PAGE, at // PAGE))
    hole = os.lseek(fd, 0, os.SEEK_HOLE) // PAGE
    return size, os.stat(name).st_blocks, hole, found


def settled(name):
    """Where the kernel takes long to send its pages, data is told for what may be a hole."""
    answer = None
    for _ in range(100):
        before, answer = answer, told(name)
        if answer == before:
            return answer
        time.sleep(0.02)
    return answer


def kept_open(name, make, pages, use):
    ready, stop = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        os.close(stop[1])
        fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        make(fd)
        memory = stored(fd, pages) if pages else None
        os.write(ready[1], b"r")
        os.read(stop[0], 1)
        os._exit(memory is None and bool(pages))
    os.read(ready[0], 1)
    use()
    os.close(stop[1])
    assert os.waitpid(child, 0)[1] == 0


def copied(name, what, command):
    done = subprocess.run(command.format(name), shell=True, capture_output=True, text=True)
    if done.returncode:
        print("LOST", what, done.stdout, done.stderr)


os.chdir(sys.argv[1])
number = 0
for make in [grown, punched, reserved, half, large]:
    for pages in [[2], [0, 255], [130], range(0, 256, 3)]:
        number += 1
        name = f"{make.__name__}-{number}"
        kept_open(name, make, pages, lambda: print(make.__name__, settled(name)))
for make, pages in [
    (grown, [2]),
    (punched, [5]),
    (half, [200]),
    (written, []),
    (written_behind_a_hole, []),
]:
    for what, command in COPIES.items():
        number += 1
        name = f"copied-{number}"
        kept_open(name, make, pages, lambda: copied(name, f"{make.__name__}: {what}", command))
