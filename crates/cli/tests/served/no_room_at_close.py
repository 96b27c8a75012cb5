"""A file system that takes all that is written, and tells at each close that it has no room for it.

    no_room_at_close.py POINT COMMAND...

Mounts it at POINT, runs COMMAND, and exits as that does; 77 where it cannot be mounted. NFS with quotas, CIFS
and others answer so: they write back what was written when the file is closed.
"""

import errno
import os
import stat
import struct
import subprocess
import sys
import threading

IN, OUT = struct.Struct("<IIQQIIIHH"), struct.Struct("<IiQ")
LOOKUP, FORGET, GETATTR, SETATTR, MKDIR, UNLINK, RMDIR, RENAME = 1, 2, 3, 4, 9, 10, 11, 12
OPEN, WRITE, STATFS, RELEASE, FLUSH, INIT, OPENDIR, READDIR = 14, 16, 17, 18, 25, 26, 27, 28
RELEASEDIR, CREATE, INTERRUPT, BATCH_FORGET = 29, 35, 36, 42

point, command = sys.argv[1], sys.argv[2:]
# By number: mode and size; by directory and name: number.
nodes, names = {1: [stat.S_IFDIR | 0o755, 0]}, {}


def attr(node):
    mode, size = nodes[node]
    times = (0,) * 3
    return struct.pack("<6Q10I", node, size, 0, *times, *times, mode, 1, 0, 0, 0, 4096, 0)


def entry(node):
    return struct.pack("<4Q2I", node, 0, 0, 0, 0, 0) + attr(node)


def made(parent, name, mode):
    node = max(nodes) + 1
    nodes[node], names[parent, name] = [mode, 0], node
    return entry(node)


def word(body):
    return body.split(b"\0")[0]


def answer(opcode, node, body):
    """What is said, or a number of an error."""
    if opcode == INIT:
        return struct.pack("<4I2H2I2H8I", 7, 31, 0, 0, 8, 8, 1 << 17, 1, 32, 0, *(0,) * 8)
    if opcode == LOOKUP:
        found = names.get((node, word(body)))
        return entry(found) if found else errno.ENOENT
    if opcode in (GETATTR, SETATTR):
        if opcode == SETATTR and struct.unpack_from("<I", body)[0] & 8:
            nodes[node][1] = struct.unpack_from("<Q", body, 16)[0]
        return struct.pack("<Q2I", 0, 0, 0) + attr(node)
    if opcode == MKDIR:
        return made(node, word(body[8:]), stat.S_IFDIR | 0o755)
    if opcode in (UNLINK, RMDIR):
        return b"" if names.pop((node, word(body)), None) else errno.ENOENT
    if opcode == CREATE:
        return made(node, word(body[16:]), stat.S_IFREG | 0o644) + bytes(16)
    if opcode in (OPEN, OPENDIR):
        return bytes(16)
    if opcode == WRITE:
        offset, size = struct.unpack_from("<QI", body, 8)
        nodes[node][1] = max(nodes[node][1], offset + size)
        return struct.pack("<2I", size, 0)
    if opcode == FLUSH:
        return errno.ENOSPC
    return {STATFS: bytes(80), RELEASE: b"", RELEASEDIR: b"", READDIR: b""}.get(opcode, errno.ENOSYS)


def serve(device):
    while True:
        try:
            packet = os.read(device, 1 << 20)
        except OSError:
            return
        _, opcode, unique, node, *_ = IN.unpack_from(packet)
        if opcode in (FORGET, BATCH_FORGET, INTERRUPT):
            continue
        said = answer(opcode, node, packet[IN.size :])
        error, said = (-said, b"") if isinstance(said, int) else (0, said)
        os.write(device, OUT.pack(OUT.size + len(said), error, unique) + said)


device = os.open("/dev/fuse", os.O_RDWR)
options = f"fd={device},rootmode=40000,user_id=0,group_id=0"
mount = ["mount", "-i", "-t", "fuse", "-o", options, "noroom", point]
if subprocess.run(mount, pass_fds=[device]).returncode != 0:
    sys.exit(77)
threading.Thread(target=serve, args=(device,), daemon=True).start()
done = subprocess.run(command).returncode
subprocess.run(["umount", "-l", point])
sys.exit(done)
