//! The five ways of renaming. All checks come first, in the kernel's order; then the
//! names move.

use vfs::{Context, Errno, FileKind, Ino, RenameMode, Result};

use super::names::check_name;
use super::state::State;

/// One side of a rename.
#[derive(Clone, Copy)]
pub(super) struct NameIn<'a> {
    pub dir: Ino,
    pub name: &'a [u8],
}

impl State {
    /// True if `dir` is `above` or lies somewhere below it.
    fn lies_below(&self, mut dir: Ino, above: Ino) -> Result<bool> {
        loop {
            if dir == above {
                return Ok(true);
            }
            let parent = self.dir(dir)?.parent;
            if parent == dir {
                return Ok(false);
            }
            dir = parent;
        }
    }

    pub(super) fn rename(
        &mut self,
        cx: &Context,
        from: NameIn<'_>,
        to: NameIn<'_>,
        mode: RenameMode,
    ) -> Result<()> {
        check_name(from.name)?;
        let source = self.find(from.dir, from.name)?;
        check_name(to.name)?;
        let target = self.dir(to.dir)?.get(to.name);
        self.check_modes(mode, target)?;
        self.check_loops(from, source, to, target, mode)?;
        if target == Some(source) {
            return Ok(());
        }
        self.check_both(from, source, to, target, mode)?;
        match (mode, target) {
            (RenameMode::Exchange, Some(target)) => self.exchange(from, source, to, target),
            _ => self.move_name(cx, from, source, to, target, mode),
        }
    }

    fn check_modes(&self, mode: RenameMode, target: Option<Ino>) -> Result<()> {
        match (mode, target) {
            (RenameMode::NoReplace | RenameMode::NoReplaceWhiteout, Some(_)) => {
                Err(Errno::EEXIST.into())
            }
            (RenameMode::Exchange, None) => Err(Errno::ENOENT.into()),
            _ => Ok(()),
        }
    }

    fn check_loops(
        &self,
        from: NameIn<'_>,
        source: Ino,
        to: NameIn<'_>,
        target: Option<Ino>,
        mode: RenameMode,
    ) -> Result<()> {
        if self.get(source)?.kind == FileKind::Dir && self.lies_below(to.dir, source)? {
            return Err(Errno::EINVAL.into());
        }
        let Some(target) = target else { return Ok(()) };
        if self.get(target)?.kind == FileKind::Dir && self.lies_below(from.dir, target)? {
            let exchange = mode == RenameMode::Exchange;
            return Err(if exchange { Errno::EINVAL } else { Errno::ENOTEMPTY }.into());
        }
        Ok(())
    }

    fn check_both(
        &self,
        from: NameIn<'_>,
        source: Ino,
        to: NameIn<'_>,
        target: Option<Ino>,
        mode: RenameMode,
    ) -> Result<()> {
        let is_dir = |ino| Ok::<_, vfs::FsError>(self.get(ino)?.kind == FileKind::Dir);
        self.check_may_delete(from.dir, source, is_dir(source)?)?;
        let Some(target) = target else { return self.check_may_create(to.dir) };
        if mode == RenameMode::Exchange {
            return self.check_may_delete(to.dir, target, is_dir(target)?);
        }
        self.check_may_delete(to.dir, target, is_dir(source)?)?;
        if is_dir(target)? && !self.dir(target)?.is_empty() {
            return Err(Errno::ENOTEMPTY.into());
        }
        Ok(())
    }

    /// Gives a directory its new parent.
    fn settle(&mut self, ino: Ino, parent: Ino) {
        if let Ok(dir) = self.dir_mut(ino) {
            dir.parent = parent;
        }
    }

    fn move_name(
        &mut self,
        cx: &Context,
        from: NameIn<'_>,
        source: Ino,
        to: NameIn<'_>,
        target: Option<Ino>,
        mode: RenameMode,
    ) -> Result<()> {
        if target.is_some() {
            self.take_name(to.dir, to.name)?;
        }
        let now = self.now();
        self.dir_mut(from.dir)?.remove(from.name);
        self.put_name(to.dir, to.name, source)?;
        self.settle(source, to.dir);
        self.get_mut(from.dir)?.touch(now);
        self.get_mut(to.dir)?.touch(now);
        self.get_mut(source)?.ctime = now;
        if matches!(mode, RenameMode::Whiteout | RenameMode::NoReplaceWhiteout) {
            self.mknod(cx, from.dir, from.name, FileKind::CharDevice, 0, 0)?;
        }
        Ok(())
    }

    fn exchange(
        &mut self,
        from: NameIn<'_>,
        source: Ino,
        to: NameIn<'_>,
        target: Ino,
    ) -> Result<()> {
        let now = self.now();
        self.dir_mut(from.dir)?.remove(from.name);
        self.dir_mut(to.dir)?.remove(to.name);
        self.put_name(from.dir, from.name, target)?;
        self.put_name(to.dir, to.name, source)?;
        self.settle(source, to.dir);
        self.settle(target, from.dir);
        for dir in [from.dir, to.dir] {
            self.get_mut(dir)?.touch(now);
        }
        for ino in [source, target] {
            self.get_mut(ino)?.ctime = now;
        }
        Ok(())
    }
}
