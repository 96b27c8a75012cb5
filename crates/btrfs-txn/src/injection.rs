//! What tests make the engine do wrong, and where they look into it.
//!
//! Without the feature `fault-injection`, which only this workspace's tests turn on, nothing can
//! be asked for, and the questions below are constants: a released program has no code for it
//! (`cargo xtask released` holds every package to that).

/// What goes wrong on purpose, to see that the crash tests find it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Defect {
    /// Log replay gives no inode a name.
    ReplaySkipsNames,
    /// The log has no checksums of the extents that it has.
    LogWithoutSums,
    /// A commit leaves the checksums of one extent out.
    CommitSkipsASum,
    /// A commit takes nothing along of what was synced while it was at work.
    CommitForgetsSynced,
    /// A log write panics while it holds the epoch still. The volume turns read-only.
    LogPanics,
    /// Nothing goes wrong: no log can take along what was synced while a commit was at
    /// work, so each time two commits become one.
    DoubledCommits,
    /// No name of a subvolume can be removed: EIO.
    NamesStay,
    /// No thread can be started for a balance or a scrub: EAGAIN.
    NoThreads,
    /// The thread of a balance or a scrub panics.
    WorkPanics,
    /// No room is found to drop items of a file, or trees of a relocation: ENOSPC.
    NoRoomToDrop,
    /// Items of a file are dropped a few at a time, and its space is allocated one extent at a time: there
    /// is room for no more before the next commit.
    RoomForOneStep,
    /// Nothing goes wrong: trees are dropped a few nodes at a time, so that many commits have half of one.
    TinySteps,
}

/// Where a test may look in, or panic.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Place {
    /// Inside an operation, behind a change of an object's items.
    Edited,
    /// Content that is to be compressed, if there is any, is about to be.
    Packs,
    /// A batch of a file's content is about to be written back: it is out of the inode, which is locked.
    Flushes,
    /// A step of what drops the trees of deleted subvolumes.
    Sweeps,
}

#[cfg(feature = "fault-injection")]
type LookAt = std::sync::Arc<dyn Fn(Place) + Send + Sync>;
#[cfg(feature = "fault-injection")]
type Look = std::sync::Arc<dyn Fn() + Send + Sync>;

/// What a test asked for: nothing, as a rule.
#[derive(Clone, Default)]
pub struct Injection {
    #[cfg(feature = "fault-injection")]
    defect: Option<Defect>,
    /// As long as this says so; in any case where there is none.
    #[cfg(feature = "fault-injection")]
    lasts: Option<std::sync::Arc<std::sync::atomic::AtomicBool>>,
    /// Is called behind each durable commit, before the next one can begin.
    #[cfg(feature = "fault-injection")]
    after_commit: Option<Look>,
    /// Is called between two steps of a change of many items of a file, with the file locked.
    #[cfg(feature = "fault-injection")]
    between_steps: Option<Look>,
    /// Is called when others can find a new snapshot, before it is cleaned of what had no name in its source.
    #[cfg(feature = "fault-injection")]
    in_new_snapshot: Option<Look>,
    /// Is called wherever there is a [`Place`].
    #[cfg(feature = "fault-injection")]
    at_places: Option<LookAt>,
}

#[cfg(feature = "fault-injection")]
impl Injection {
    /// Goes wrong in this way.
    pub fn of(defect: Option<Defect>) -> Injection {
        Injection { defect, ..Injection::default() }
    }

    /// Goes wrong in this way as long as `lasts` says so.
    pub fn while_so(
        defect: Defect,
        lasts: &std::sync::Arc<std::sync::atomic::AtomicBool>,
    ) -> Injection {
        Injection { defect: Some(defect), lasts: Some(lasts.clone()), ..Injection::default() }
    }

    /// Calls `look` behind each durable commit, before the next one can begin.
    pub fn after_commit(look: impl Fn() + Send + Sync + 'static) -> Injection {
        Injection { after_commit: Some(std::sync::Arc::new(look)), ..Injection::default() }
    }

    /// Calls `look` between two steps of a change of many items of a file, with the file locked.
    pub fn between_steps(look: impl Fn() + Send + Sync + 'static) -> Injection {
        Injection { between_steps: Some(std::sync::Arc::new(look)), ..Injection::default() }
    }

    /// Calls `look` when others can find a new snapshot, before it is cleaned of what had no name in its source.
    pub fn in_new_snapshot(look: impl Fn() + Send + Sync + 'static) -> Injection {
        Injection { in_new_snapshot: Some(std::sync::Arc::new(look)), ..Injection::default() }
    }

    /// Calls `look` wherever there is a [`Place`].
    pub fn at_places(look: impl Fn(Place) + Send + Sync + 'static) -> Injection {
        Injection::default().looking(look)
    }

    /// The same, and calls `look` wherever there is a [`Place`].
    pub fn looking(self, look: impl Fn(Place) + Send + Sync + 'static) -> Injection {
        Injection { at_places: Some(std::sync::Arc::new(look)), ..self }
    }

    /// Whether this is to go wrong.
    pub fn has(&self, defect: Defect) -> bool {
        let lasts = |lasts: &std::sync::Arc<std::sync::atomic::AtomicBool>| {
            lasts.load(std::sync::atomic::Ordering::SeqCst)
        };
        self.defect == Some(defect) && self.lasts.as_ref().is_none_or(lasts)
    }

    /// A commit is durable.
    pub fn committed(&self) {
        if let Some(look) = &self.after_commit {
            look();
        }
    }

    /// A step has ended, and there are more.
    pub fn stepped(&self) {
        if let Some(look) = &self.between_steps {
            look();
        }
    }

    /// Others can find a new snapshot.
    pub fn entered(&self) {
        if let Some(look) = &self.in_new_snapshot {
            look();
        }
    }

    /// Somebody is there.
    pub fn passes(&self, place: Place) {
        if let Some(look) = &self.at_places {
            look(place);
        }
    }
}

#[cfg(not(feature = "fault-injection"))]
impl Injection {
    /// Never.
    #[inline(always)]
    pub const fn has(&self, _: Defect) -> bool {
        false
    }

    /// Nobody looks.
    #[inline(always)]
    pub const fn committed(&self) {}

    /// Nobody looks.
    #[inline(always)]
    pub const fn stepped(&self) {}

    /// Nobody looks.
    #[inline(always)]
    pub const fn entered(&self) {}

    /// Nobody looks.
    #[inline(always)]
    pub const fn passes(&self, _: Place) {}
}

impl std::fmt::Debug for Injection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Injection")
    }
}
