//! Programs that want a processor all the time, beside what is measured: `--burners N`.
//!
//! Ordinary processes of normal priority in the session of the benchmark, as a compiler in the
//! same terminal would be. Gone when dropped. All sides of a comparison have the same beside them.

use std::io;
use std::process::{Child, Command, Stdio};

#[derive(Default)]
pub struct Burners(Vec<Child>);

impl Burners {
    pub fn start(count: usize) -> io::Result<Burners> {
        let mut burners = Burners::default();
        for _ in 0..count {
            let mut burn = Command::new("sh");
            burn.args(["-c", "while :; do :; done"]).stdin(Stdio::null());
            burners.0.push(burn.spawn()?);
        }
        Ok(burners)
    }
}

impl Drop for Burners {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // One that has ended already needs neither.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Burners;

    #[test]
    fn they_end_with_their_owner() {
        let burners = Burners::start(2).unwrap();
        let alive = |id: u32| std::path::Path::new(&format!("/proc/{id}")).exists();
        let ids: Vec<u32> = burners.0.iter().map(|child| child.id()).collect();
        assert!(ids.len() == 2 && ids.iter().all(|id| alive(*id)));
        drop(burners);
        assert!(!ids.iter().any(|id| alive(*id)));
    }
}
