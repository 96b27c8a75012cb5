//! A file system and the reference model beside it: what the one acknowledges, the other does.
//!
//! Invariants: the model has what was acknowledged and nothing else, and its numbers stand for
//! the others one to one. What may differ after a crash is `loose`: what was changed since a
//! sync made it durable. Of a call that was refused all that it might have changed is loose.
//!
//! It knows the calls that fillers make, and neither volumes nor crashes. For one caller at a
//! time.

use blocksim::SimDevice;
use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, MutexGuard};
use testkit::RefFs;
use testkit::compare::{NodeView, TreeSnapshot};
use vfs::{
    Attr, Context, DirEntry, Entry, FallocateMode, FileKind, FileSystem, Ino, RenameMode, Result,
    SeekWhence, SetAttr, StatFs, WriteFlags, XattrMode,
};

const CX: Context = Context { uid: 0, gid: 0, pid: 1, umask: 0 };
pub const BLOCK: u64 = 4096;
/// A directory's name, as the hash of it, by the number that the tested file system gave the directory:
/// there may be millions.
pub type Slot = (Ino, u64);

pub fn slot(dir: Ino, name: &[u8]) -> Slot {
    (dir, hash(name))
}

/// Two names of a volume have the same with a chance of one to a million.
pub fn hash(bytes: &[u8]) -> u64 {
    use std::hash::Hasher;
    let mut hasher = std::hash::DefaultHasher::new();
    hasher.write(bytes);
    hasher.finish()
}

/// A value as the seed that makes it, if there is one, and its length.
pub fn short(value: &[u8]) -> Vec<u8> {
    match blocksim::seed_of(value) {
        Some(seed) if value.len() > 16 => {
            [seed.to_le_bytes(), (value.len() as u64).to_le_bytes()].concat()
        }
        _ => value.to_vec(),
    }
}

/// Who may have what value they like: the others mean something.
fn is_free(name: &[u8]) -> bool {
    name.starts_with(b"user.")
}

/// Holds values as the model does.
pub fn shorten(view: &mut NodeView) {
    let free = view.xattrs.iter_mut().filter(|(name, _)| is_free(name));
    free.for_each(|(_, value)| *value = short(value));
}

/// What of an inode no sync has made durable yet.
#[derive(Default)]
pub struct Loose {
    /// It may be anything: it is new.
    pub all: bool,
    pub attr: bool,
    pub size: bool,
    pub blocks: HashSet<u64>,
    /// By the hash of their names.
    pub xattrs: HashSet<u64>,
    /// Names that it got or lost.
    slots: Vec<Slot>,
}

#[derive(Default)]
pub struct State {
    /// The model's numbers of the tested file system's inodes.
    pub numbers: HashMap<Ino, Ino>,
    /// The last name that it got, which is one that it has for all but removed ones.
    named: HashMap<Ino, Slot>,
    pub loose: HashMap<Ino, Loose>,
    /// By the inode that got or lost it last.
    pub slots: HashMap<Slot, Ino>,
    /// Where the device's record was when the last sync had returned.
    pub durable_at: usize,
}

impl State {
    fn of(&mut self, ino: Ino) -> &mut Loose {
        self.loose.entry(ino).or_default()
    }

    /// The name was given to `ino`, or taken from it.
    fn moved(&mut self, slot: Slot, ino: Ino) {
        let inode = self.of(ino);
        inode.attr = true;
        inode.slots.push(slot);
        self.slots.insert(slot, ino);
    }

    fn blocks(&mut self, ino: Ino, from: u64, to: u64) {
        let inode = self.of(ino);
        if !inode.all {
            inode.blocks.extend(from / BLOCK..to.div_ceil(BLOCK));
        }
    }

    /// An fsync makes durable what is the inode's, its names, and the way there.
    fn synced(&mut self, ino: Ino) {
        let slots = self.loose.remove(&ino).unwrap_or_default().slots;
        for slot in slots {
            if self.slots.get(&slot) == Some(&ino) {
                self.slots.remove(&slot);
            }
        }
        let mut at = ino;
        while let Some(slot) = self.named.get(&at) {
            if self.slots.get(slot) == Some(&at) {
                self.slots.remove(slot);
            }
            at = slot.0;
        }
        // A directory's entries are its own.
        self.slots.retain(|slot, _| slot.0 != ino);
    }
}

pub struct Mirror<'a> {
    fs: &'a dyn FileSystem,
    /// What the tested file system writes to, where that records.
    device: Option<&'a SimDevice>,
    model: RefFs,
    /// It takes an fsync for done that it does not pass on: for the test of the tests.
    pub deaf: bool,
    state: Mutex<State>,
}

impl<'a> Mirror<'a> {
    pub fn new(fs: &'a dyn FileSystem, device: Option<&'a SimDevice>) -> Mirror<'a> {
        let model = RefFs::default();
        let numbers = HashMap::from([(fs.root(), model.root())]);
        let state = Mutex::new(State { numbers, ..State::default() });
        Mirror { fs, device, model, deaf: false, state }
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("one caller at a time")
    }

    /// What was done so far is durable: no crash is asked for before that.
    fn durable(&self, state: &mut State) {
        if let Some(device) = self.device {
            state.durable_at = device.position();
            device.forget(state.durable_at);
        }
    }

    fn number(&self, ino: Ino) -> Ino {
        *self.state().numbers.get(&ino).expect("an inode that was made or imported")
    }

    /// The same the other way round.
    pub fn back(state: &State) -> HashMap<Ino, Ino> {
        state.numbers.iter().map(|(real, ours)| (*ours, *real)).collect()
    }

    pub fn model(&self) -> &RefFs {
        &self.model
    }

    /// Gives the model what a directory of the root has.
    pub fn import(&self, name: &[u8]) {
        let dir = self.fs.lookup(&CX, self.fs.root(), name).expect("lookup").attr;
        let made = self.model.mkdir(&CX, self.model.root(), name, dir.perm).expect("mkdir");
        self.state().numbers.insert(dir.ino, made.attr.ino);
        self.import_children(dir.ino, made.attr.ino);
        self.fs.forget(dir.ino, 1);
    }

    fn import_children(&self, dir: Ino, into: Ino) {
        let mut names = Vec::new();
        let list = &mut |entry: &DirEntry<'_>| {
            if !matches!(entry.name, b"." | b"..") {
                names.push(entry.name.to_vec());
            }
            true
        };
        self.fs.readdir(dir, 0, list).expect("readdir");
        for name in names {
            let attr = self.fs.lookup(&CX, dir, &name).expect("lookup").attr;
            assert_eq!(attr.kind, FileKind::File, "nothing else is imported");
            let made = self.model.mknod(&CX, into, &name, attr.kind, attr.perm, 0).expect("mknod");
            let mut content = vec![0; attr.size as usize];
            self.fs.read(attr.ino, 0, &mut content).expect("read");
            let written = self.model.write(&CX, made.attr.ino, 0, &content, WriteFlags::default());
            written.expect("the model's write");
            self.state().numbers.insert(attr.ino, made.attr.ino);
            self.fs.forget(attr.ino, 1);
        }
    }

    /// A new name was acknowledged: the model makes it, too.
    fn made(
        &self,
        (parent, name): (Ino, &[u8]),
        real: Result<Entry>,
        make: impl FnOnce(Ino) -> Result<Entry>,
    ) -> Result<Entry> {
        let entry = real?;
        let ours = make(self.number(parent)).expect("the model makes what was made").attr.ino;
        let (ino, slot) = (entry.attr.ino, slot(parent, name));
        let mut state = self.state();
        state.numbers.insert(ino, ours);
        state.of(ino).all = true;
        state.named.insert(ino, slot);
        state.moved(slot, ino);
        Ok(entry)
    }

    /// What a name stands for.
    fn at(&self, parent: Ino, name: &[u8]) -> Result<Ino> {
        let ino = self.fs.lookup(&CX, parent, name)?.attr.ino;
        self.fs.forget(ino, 1);
        Ok(ino)
    }

    fn size(&self, ino: Ino) -> u64 {
        self.model.getattr(self.number(ino)).expect("an inode of the model").size
    }

    fn removed(&self, parent: Ino, name: &[u8], ino: Ino) {
        self.state().moved(slot(parent, name), ino);
    }

    /// Content from `from` to `to` may change, and the size if that lies behind it.
    fn content(&self, ino: Ino, from: u64, to: u64) {
        let size = self.size(ino);
        let mut state = self.state();
        state.blocks(ino, from, to);
        if to > size {
            // The block at the old end is written anew.
            state.blocks(ino, size, size + 1);
            state.of(ino).size = true;
        }
    }
}

/// Calls `work` with a directory of the root.
pub fn at_top<T>(fs: &dyn FileSystem, name: &[u8], work: impl FnOnce(Ino) -> T) -> T {
    let dir = fs.lookup(&CX, fs.root(), name).expect("lookup").attr.ino;
    let done = work(dir);
    fs.forget(dir, 1);
    done
}

/// What is in a directory of the root.
pub fn below(fs: &dyn FileSystem, name: &[u8]) -> TreeSnapshot {
    at_top(fs, name, |dir| TreeSnapshot::below(fs, dir).expect("walk"))
}

impl FileSystem for Mirror<'_> {
    fn root(&self) -> Ino {
        self.fs.root()
    }

    fn lookup(&self, cx: &Context, parent: Ino, name: &[u8]) -> Result<Entry> {
        self.fs.lookup(cx, parent, name)
    }

    fn forget(&self, ino: Ino, count: u64) {
        self.fs.forget(ino, count);
    }

    fn getattr(&self, ino: Ino) -> Result<Attr> {
        self.fs.getattr(ino)
    }

    fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        self.fs.readlink(ino)
    }

    fn setattr(&self, cx: &Context, ino: Ino, set: &SetAttr) -> Result<Attr> {
        match set.size {
            Some(size) => {
                let old = self.size(ino);
                self.content(ino, old.min(size), old.max(size).max(1));
                self.state().of(ino).size = true;
            }
            None => self.state().of(ino).attr = true,
        }
        if set.perm.is_some() {
            // The mode is in an ACL as well.
            self.xattr(ino, b"system.posix_acl_access");
        }
        let attr = self.fs.setattr(cx, ino, set)?;
        self.model.setattr(cx, self.number(ino), set).expect("the model's setattr");
        Ok(attr)
    }

    fn mknod(
        &self,
        cx: &Context,
        parent: Ino,
        name: &[u8],
        kind: FileKind,
        perm: u16,
        rdev: u32,
    ) -> Result<Entry> {
        let real = self.fs.mknod(cx, parent, name, kind, perm, rdev);
        let make = |dir| self.model.mknod(cx, dir, name, kind, perm, rdev);
        self.made((parent, name), real, make)
    }

    fn mkdir(&self, cx: &Context, parent: Ino, name: &[u8], perm: u16) -> Result<Entry> {
        let real = self.fs.mkdir(cx, parent, name, perm);
        self.made((parent, name), real, |dir| self.model.mkdir(cx, dir, name, perm))
    }

    fn symlink(&self, cx: &Context, parent: Ino, name: &[u8], target: &[u8]) -> Result<Entry> {
        let real = self.fs.symlink(cx, parent, name, target);
        self.made((parent, name), real, |dir| self.model.symlink(cx, dir, name, target))
    }

    fn link(&self, cx: &Context, ino: Ino, parent: Ino, name: &[u8]) -> Result<Entry> {
        let entry = self.fs.link(cx, ino, parent, name)?;
        let (ours, dir) = (self.number(ino), self.number(parent));
        self.model.link(cx, ours, dir, name).expect("the model's link");
        let mut state = self.state();
        state.named.insert(ino, slot(parent, name));
        state.moved(slot(parent, name), ino);
        Ok(entry)
    }

    fn tmpfile(&self, _: &Context, _: Ino, _: u16) -> Result<Entry> {
        unimplemented!("no filler does")
    }

    fn unlink(&self, cx: &Context, parent: Ino, name: &[u8]) -> Result<()> {
        let ino = self.at(parent, name)?;
        self.fs.unlink(cx, parent, name)?;
        self.model.unlink(cx, self.number(parent), name).expect("the model's unlink");
        self.removed(parent, name, ino);
        Ok(())
    }

    fn rmdir(&self, cx: &Context, parent: Ino, name: &[u8]) -> Result<()> {
        let ino = self.at(parent, name)?;
        self.fs.rmdir(cx, parent, name)?;
        self.model.rmdir(cx, self.number(parent), name).expect("the model's rmdir");
        self.removed(parent, name, ino);
        Ok(())
    }

    fn rename(
        &self,
        cx: &Context,
        parent: Ino,
        name: &[u8],
        new_parent: Ino,
        new_name: &[u8],
        mode: RenameMode,
    ) -> Result<()> {
        let ino = self.at(parent, name)?;
        let other = self.at(new_parent, new_name).ok();
        self.fs.rename(cx, parent, name, new_parent, new_name, mode)?;
        let (dir, new_dir) = (self.number(parent), self.number(new_parent));
        let done = self.model.rename(cx, dir, name, new_dir, new_name, mode);
        done.expect("the model's rename");
        let (old, new) = (slot(parent, name), slot(new_parent, new_name));
        let mut state = self.state();
        if let Some(other) = other {
            state.moved(new, other);
        }
        state.named.insert(ino, new);
        state.moved(old, ino);
        state.moved(new, ino);
        if let (RenameMode::Exchange, Some(other)) = (mode, other) {
            state.named.insert(other, old);
            state.moved(old, other);
        }
        Ok(())
    }

    fn read(&self, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.fs.read(ino, offset, buf)
    }

    fn write(
        &self,
        cx: &Context,
        ino: Ino,
        offset: u64,
        data: &[u8],
        flags: WriteFlags,
    ) -> Result<usize> {
        self.content(ino, offset, offset + data.len() as u64);
        let written = self.fs.write(cx, ino, offset, data, flags)?;
        let done = self.model.write(cx, self.number(ino), offset, &data[..written], flags);
        assert_eq!(done.expect("the model's write"), written);
        Ok(written)
    }

    fn fallocate(
        &self,
        cx: &Context,
        ino: Ino,
        mode: FallocateMode,
        offset: u64,
        len: u64,
    ) -> Result<()> {
        self.content(ino, offset, offset + len);
        self.fs.fallocate(cx, ino, mode, offset, len)?;
        let done = self.model.fallocate(cx, self.number(ino), mode, offset, len);
        done.expect("the model's fallocate");
        Ok(())
    }

    fn copy_range(&self, _: &Context, _: Ino, _: u64, _: Ino, _: u64, _: u64) -> Result<u64> {
        unimplemented!("no filler does")
    }

    /// The model copies: for its own clone it would take all of the source.
    fn clone_range(
        &self,
        cx: &Context,
        from: Ino,
        from_offset: u64,
        to: Ino,
        to_offset: u64,
        len: u64,
    ) -> Result<()> {
        self.content(to, to_offset, to_offset + len);
        self.fs.clone_range(cx, from, from_offset, to, to_offset, len)?;
        let mut content = vec![0; len as usize];
        let (from, to) = (self.number(from), self.number(to));
        let read = self.model.read(from, from_offset, &mut content).expect("the model's read");
        let content = &content[..read];
        self.model.write(cx, to, to_offset, content, WriteFlags::default()).expect("a copy");
        Ok(())
    }

    fn seek(&self, ino: Ino, offset: u64, whence: SeekWhence) -> Result<u64> {
        self.fs.seek(ino, offset, whence)
    }

    fn fsync(&self, ino: Ino, datasync: bool) -> Result<()> {
        assert!(!datasync, "no filler does");
        if !self.deaf {
            self.fs.fsync(ino, datasync)?;
        }
        let mut state = self.state();
        state.synced(ino);
        self.durable(&mut state);
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        self.fs.sync()?;
        let mut state = self.state();
        state.loose.clear();
        state.slots.clear();
        self.durable(&mut state);
        Ok(())
    }

    fn readdir(
        &self,
        dir: Ino,
        offset: u64,
        emit: &mut dyn FnMut(&DirEntry<'_>) -> bool,
    ) -> Result<()> {
        self.fs.readdir(dir, offset, emit)
    }

    fn readdir_plus(
        &self,
        dir: Ino,
        offset: u64,
        emit: &mut dyn FnMut(&DirEntry<'_>, Option<&Entry>) -> bool,
    ) -> Result<()> {
        self.fs.readdir_plus(dir, offset, emit)
    }

    fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        self.fs.getxattr(ino, name)
    }

    fn listxattr(&self, ino: Ino) -> Result<Vec<Vec<u8>>> {
        self.fs.listxattr(ino)
    }

    fn setxattr(
        &self,
        cx: &Context,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<()> {
        self.xattr(ino, name);
        self.fs.setxattr(cx, ino, name, value, mode)?;
        let value = if is_free(name) { short(value) } else { value.to_vec() };
        let done = self.model.setxattr(cx, self.number(ino), name, &value, mode);
        done.expect("the model's setxattr");
        Ok(())
    }

    fn removexattr(&self, cx: &Context, ino: Ino, name: &[u8]) -> Result<()> {
        self.xattr(ino, name);
        self.fs.removexattr(cx, ino, name)?;
        self.model.removexattr(cx, self.number(ino), name).expect("the model's removexattr");
        Ok(())
    }

    fn flags(&self, ino: Ino) -> Result<u32> {
        self.fs.flags(ino)
    }

    fn set_flags(&self, cx: &Context, ino: Ino, flags: u32) -> Result<()> {
        self.state().of(ino).attr = true;
        self.fs.set_flags(cx, ino, flags)?;
        self.model.set_flags(cx, self.number(ino), flags).expect("the model's set_flags");
        Ok(())
    }

    fn statfs(&self) -> Result<StatFs> {
        self.fs.statfs()
    }

    fn destroy(&self) -> Result<()> {
        self.fs.destroy()
    }
}

impl Mirror<'_> {
    fn xattr(&self, ino: Ino, name: &[u8]) {
        let mut state = self.state();
        let inode = state.of(ino);
        if !inode.all {
            inode.xattrs.insert(hash(name));
        }
        // An ACL is in the mode as well.
        inode.attr |= name.starts_with(b"system.");
    }
}
