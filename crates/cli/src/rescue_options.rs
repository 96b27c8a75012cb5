//! What a damaged volume is opened without: `-o rescue=`, `--rescue`. The words are the kernel's.

use crate::error::{Error, Result};
use btrfs_fs::Rescue;

/// The log of fsyncs is a matter of its own: it may be left out of sound volumes, too.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct RescueOptions {
    pub rescue: Rescue,
    pub ignore_log: bool,
}

impl RescueOptions {
    /// Each of them.
    pub const ALL: RescueOptions = RescueOptions {
        rescue: Rescue { backup_root: true, bad_roots: true, data_sums: true },
        ignore_log: true,
    };

    /// Words with colons between.
    pub fn parse(words: &str) -> Result<RescueOptions> {
        let mut all = RescueOptions::default();
        all.add(words).map(|()| all)
    }

    /// As `parse`, beside what was said before.
    pub fn add(&mut self, words: &str) -> Result<()> {
        words.split(':').try_for_each(|word| self.one(word))
    }

    fn one(&mut self, word: &str) -> Result<()> {
        let Rescue { backup_root, bad_roots, data_sums } = &mut self.rescue;
        match word {
            "nologreplay" => self.ignore_log = true,
            "usebackuproot" => *backup_root = true,
            "ignorebadroots" | "ibadroots" => *bad_roots = true,
            "ignoredatacsums" | "idatacsums" => *data_sums = true,
            "all" => *self = RescueOptions::ALL,
            "ignoremetacsums" | "imetacsums" | "ignoresuperflags" | "isuperflags" => {
                return Err(Error::usage(format!(
                    "rescue={word} of the kernel's btrfs is not supported"
                )));
            }
            _ => {
                return Err(Error::usage(format!(
                    "rescue takes usebackuproot, nologreplay, ignorebadroots, ignoredatacsums, \
                     several with colons between, or all; not {word:?}"
                )));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_the_kernels() {
        let all = RescueOptions::parse("all").unwrap();
        let each = "usebackuproot:nologreplay:ibadroots:idatacsums";
        assert_eq!(RescueOptions::parse(each).unwrap(), all);
        let one = RescueOptions::parse("ignoredatacsums").unwrap();
        assert!(one.rescue.data_sums && !one.rescue.bad_roots && !one.ignore_log);
        for wrong in ["", "all:", "everything", "imetacsums"] {
            assert!(RescueOptions::parse(wrong).is_err(), "{wrong}");
        }
    }
}
