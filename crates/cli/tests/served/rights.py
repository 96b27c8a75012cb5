# Who may what of control operations, on the kernel's btrfs or on a mount of Spinney's: `rights.py DIR PROGRAM`
# tries the same as several callers, each in a tree that root makes anew, and prints how each attempt ended and
# what is there behind it. Snapshots are made by `PROGRAM subvolume snapshot`: the two doors differ in that.
import ctypes, errno, fcntl, os, struct, subprocess, sys

OVERRIDE, READ, OWN, ADMIN = 1, 2, 3, 21
with open('/proc/self/status') as file:
    mine = next(int(line.split()[1], 16) for line in file if line.startswith('CapEff'))
EVERY = {number for number in range(64) if mine >> number & 1}

# Name, user, further groups, capabilities.
CALLERS = [
    ('owner', 1000, [], set()),
    ('another', 1001, [], set()),
    ('member', 1002, [2000], set()),
    ('root', 0, [], EVERY),
    ('root of a container', 0, [], EVERY - {ADMIN}),
    ('with CAP_DAC_OVERRIDE', 1003, [], {OVERRIDE}),
    ('with CAP_DAC_READ_SEARCH', 1003, [], {READ}),
    ('with CAP_FOWNER', 1003, [], {OWN}),
    ('with CAP_SYS_ADMIN', 1003, [], {ADMIN}),
]

CREATE, DESTROY, DEFRAG, FLAGS, RECEIVED, LOOKUP = 14, 15, 16, 26, 37, 62

def ask(path, number, size, data=b'', direction=1):
    fd = os.open(path, os.O_RDONLY)
    try:
        record = bytearray(data.ljust(size, b'\0'))
        fcntl.ioctl(fd, direction << 30 | size << 16 | 0x94 << 8 | number, record)
        return record
    finally:
        os.close(fd)

def create(path):
    ask(os.path.dirname(path) or '.', CREATE, 4096, bytes(8) + os.path.basename(path).encode())

def destroy(path):
    ask(os.path.dirname(path) or '.', DESTROY, 4096, bytes(8) + os.path.basename(path).encode())

def read_only(path, yes):
    ask(path, FLAGS, 8, struct.pack('<Q', 2 if yes else 0))

def made(path, owner, mode, frozen=False):
    create(path)
    os.chown(path, *owner)
    os.chmod(path, mode)
    if frozen:
        read_only(path, True)

def directory(path, owner, mode):
    os.mkdir(path)
    os.chown(path, *owner)
    os.chmod(path, mode)

def prepare():
    team, his = (0, 2000), (1000, 1000)
    directory('shared', team, 0o2775)
    made('shared/rw', team, 0o2775)
    made('shared/ro', team, 0o2775, frozen=True)
    made('shared/closed', team, 0o755)
    directory('open', (0, 0), 0o1777)
    made('open/his', his, 0o777)
    made('open/roots', (0, 0), 0o777)
    directory('his', his, 0o755)
    for name in ['gone', 'sub', 'got']:
        made('his/' + name, his, 0o755)
    made('his/frozen', his, 0o755, frozen=True)
    made('his/closed', his, 0o555)
    for name, owner, mode in [('file', his, 0o644), ('all', his, 0o666), ('not', his, 0o444), ('still', his, 0o666)]:
        with open('his/' + name, 'w') as file:
            file.write('x' * 10000)
        os.chown('his/' + name, *owner)
        os.chmod('his/' + name, mode)
    subprocess.run(['chattr', '+i', 'his/still'], check=True)
    for name, acl in [('masked', 'u:1001:rwx,g:2000:rwx,m::---,o::rwx'), ('named', 'u:1001:rwx,g:2000:r-x,o::r-x')]:
        directory(name, (0, 0), 0o700)
        subprocess.run(['setfacl', '-m', acl, name], check=True)
    directory('walk', (0, 0), 0o755)
    directory('walk/locked', (0, 0), 0o700)
    directory('walk/locked/deep', (0, 0), 0o755)
    create('walk/locked/deep/in')
    here = ask('walk/locked/deep/in', 18, 4096, struct.pack('<QQ', 0, 256), 3)
    with open('ids', 'w') as file:
        print(os.stat('walk/locked/deep').st_ino, *struct.unpack_from('<Q', here), file=file)

def attempt(name, what, *args):
    words = [name] + [word for word in args if not isinstance(word, (bytes, int))]
    try:
        what(*args)
        print(*words, 'ok')
    except OSError as e:
        print(*words, errno.errorcode[e.errno])

def snapshot(source, to):
    if subprocess.run([sys.argv[2], 'subvolume', 'snapshot', source, to], capture_output=True).returncode:
        raise OSError(errno.EPERM, '')

def lookup():
    with open('ids') as file:
        dir, id = map(int, file.read().split())
    ask('..', LOOKUP, 4096, struct.pack('<QQ', dir, id), 3)

def act():
    for path in ['shared/new', 'open/new', 'his/new', 'masked/new', 'named/new', 'shared/ro/new']:
        attempt('create', create, path)
    attempt('snapshot', snapshot, 'his/sub', 'open/snap')
    attempt('snapshot', snapshot, 'shared/rw', 'shared/snap')
    for path in ['his/sub', 'shared/rw', 'open/roots']:
        attempt('freeze', read_only, path, True)
        attempt('write', create, path + '/in')
        attempt('thaw', read_only, path, False)
    attempt('received', ask, 'his/got', RECEIVED, 200, bytes(range(16)), 3)
    for name in ['file', 'all', 'not', 'still']:
        attempt('defragment', ask, 'his/' + name, DEFRAG, 48, struct.pack('<QQ', 0, 2**64 - 1))
    attempt('defragment', ask, 'his', DEFRAG, 48, struct.pack('<QQ', 0, 2**64 - 1))
    attempt('lookup', lookup)
    for path in ['shared/ro', 'shared/closed', 'shared/rw', 'his/gone', 'his/frozen', 'his/closed',
                 'open/his', 'open/roots', 'open/new', 'masked/new']:
        attempt('destroy', destroy, path)

def become(user, groups, capabilities):
    libc = ctypes.CDLL(None, use_errno=True)
    def done(result):
        if result:
            raise OSError(ctypes.get_errno(), 'not become')
    for capability in EVERY - capabilities:
        libc.prctl(24, capability)
    done(libc.prctl(8, 1))
    os.setgroups(groups)
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
    mask = sum(1 << capability for capability in capabilities)
    halves = [mask & 0xffffffff] * 3 + [mask >> 32] * 3
    head, sets = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)(*halves)
    done(libc.capset(head, sets))
    for capability in capabilities if user else []:
        done(libc.prctl(47, 2, capability, 0, 0))

def behind():
    for at, dirs, files in os.walk('.'):
        for name in dirs + files:
            path = os.path.join(at, name)
            status = os.lstat(path)
            yield '%s %o %d %d' % (path, status.st_mode, status.st_uid, status.st_gid)

def main():
    os.umask(0o022)
    for number, (name, *who) in enumerate(CALLERS):
        os.chdir(sys.argv[1])
        directory(str(number), (0, 0), 0o755)
        os.chdir(str(number))
        prepare()
        print('as', name, flush=True)
        child = os.fork()
        if child == 0:
            become(*who)
            act()
            sys.stdout.flush()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        os.remove('ids')
        print(*sorted(behind()), sep='\n', flush=True)

main()
