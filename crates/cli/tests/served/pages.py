"""Processes that read and write one file of a mount in every way, page by page.

    pages.py FILE SECONDS SEED owned|any SEEN

owned: each page has one process that writes it; whatever way it is read by, it is what was written last.
any: everybody writes everywhere, cuts the file and makes it longer. Then, when all are done, the file is
the same to who reads it with the page cache, past it, and as memory.

What the file is in the end goes to SEEN.
"""

import ctypes
import mmap
import os
import random
import sys
import time

PAGE, PAGES, WORKERS = 4096, 64, 4
PUNCH_HOLE, ZERO_RANGE, KEEP_SIZE = 3, 17, 1
path, seconds, seed, kind = sys.argv[1], float(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
libc = ctypes.CDLL(None, use_errno=True)
libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long]


def fallocate(fd, mode, at, length):
    if libc.fallocate(fd, mode, at, length):
        raise OSError(ctypes.get_errno(), "fallocate")


class Worker:
    def __init__(self, number):
        self.number, self.count = number, 0
        self.random = random.Random(seed * 100 + number)
        self.file = os.open(path, os.O_RDWR)
        self.direct = os.open(path, os.O_RDWR | os.O_DIRECT)
        self.scratch = os.open(f"{path}.{number}", os.O_RDWR | os.O_CREAT)
        # What is cut off cannot be had as memory.
        self.memory = mmap.mmap(self.file, PAGES * PAGE) if kind == "owned" else None
        self.aligned = mmap.mmap(-1, PAGE)
        self.have = {}
        mine = [page for page in range(PAGES) if page % WORKERS == number]
        self.pages = mine if kind == "owned" else list(range(PAGES))

    def page(self):
        few = self.pages if self.random.random() < 0.5 else self.pages[:4]
        return self.random.choice(few)

    def data(self):
        self.count += 1
        return (f"{self.number:03d}:{self.count:09d}|".encode() * 300)[:PAGE]

    def write(self):
        page, data = self.page(), self.data()
        at, how = page * PAGE, self.random.choice("buffer direct memory copy zeros part".split())
        if how == "buffer":
            os.pwrite(self.file, data, at)
        elif how == "direct":
            self.aligned[:] = data
            os.pwritev(self.direct, [self.aligned], at)
        elif how == "memory" and kind == "owned":
            self.memory[at : at + PAGE] = data
            if self.random.random() < 0.3:
                self.memory.flush(at, PAGE)
        elif how == "copy":
            os.pwrite(self.scratch, data, 0)
            assert os.copy_file_range(self.scratch, self.file, PAGE, 0, at) == PAGE
        elif how == "zeros":
            fallocate(self.file, self.random.choice([PUNCH_HOLE, ZERO_RANGE]), at, PAGE)
            data = bytes(PAGE)
        else:
            part = data[: self.random.randrange(1, PAGE)]
            os.pwrite(self.file, part, at)
            data = part + self.have.get(page, bytes(PAGE))[len(part) :]
        self.have[page] = data
        return page, how

    def beside(self):
        what, page = self.random.randrange(7), self.random.randrange(PAGES)
        if what == 0:
            os.fsync(self.file)
        elif what == 1:
            os.posix_fadvise(self.file, 0, 0, os.POSIX_FADV_DONTNEED)
        elif what == 2:
            os.pread(self.file, self.random.randrange(PAGES) * PAGE, page * PAGE)
        elif what == 3:
            os.lseek(self.file, 0, os.SEEK_HOLE)
        elif what == 4:
            fallocate(self.file, KEEP_SIZE, page * PAGE, 8 * PAGE)
        elif kind == "owned":
            os.ftruncate(self.file, PAGES * PAGE + self.random.randrange(1, 100000))
        elif what == 5:
            os.ftruncate(self.file, self.random.randrange(PAGES * PAGE))
        else:
            os.copy_file_range(self.file, self.file, 3 * PAGE, page * PAGE, (page + 7) % 50 * PAGE)

    def read(self, page, how):
        want, at = self.have.get(page, bytes(PAGE)), page * PAGE
        by = self.random.choice("buffer direct memory".split())
        if by == "buffer":
            got = os.pread(self.file, PAGE, at)
        elif by == "direct":
            os.preadv(self.direct, [self.aligned], at)
            got = self.aligned[:]
        else:
            got = self.memory[at : at + PAGE]
        if got != want:
            sys.exit(f"page {page} by {how}, read by {by}: {got[:20]} for {want[:20]}")

    def run(self):
        end = time.time() + seconds
        while time.time() < end:
            page, how = self.write()
            if kind == "owned":
                self.read(page, how)
                self.read(self.page(), "earlier")
            if self.random.random() < 0.2:
                self.beside()


def work(number):
    status = 1
    try:
        Worker(number).run()
        status = 0
    except SystemExit as error:
        print(error, flush=True)
    except BaseException as error:
        print(f"process {number}: {error!r}", flush=True)
    os._exit(status)


file = os.open(path, os.O_RDWR | os.O_CREAT)
os.ftruncate(file, PAGES * PAGE)
workers = []
for number in range(WORKERS):
    child = os.fork()
    if child == 0:
        work(number)
    workers.append(child)
failed = [child for child in workers if os.waitpid(child, 0)[1] != 0]
if failed:
    sys.exit("a process failed")
size = os.fstat(file).st_size
buffered = os.pread(file, size, 0)
past, room = os.open(path, os.O_RDONLY | os.O_DIRECT), mmap.mmap(-1, size // PAGE * PAGE + PAGE)
assert os.preadv(past, [room], 0) == size
whole = mmap.mmap(file, size)[:] if size else b""
for what, content in [("past the page cache", room[:size]), ("as memory", whole)]:
    at = next((at for at in range(size) if content[at] != buffered[at]), None)
    if at is not None:
        sys.exit(f"{what} it is another file at byte {at} of {size}")
with open(sys.argv[5], "wb") as seen:
    seen.write(buffered)
