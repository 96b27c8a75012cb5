//! Sticky failure: after one failed write or flush nothing is written any more.
//!
//! Invariant: once `failed` is set it stays set, and every later write, flush and
//! discard fails with the first reason. A flush never "succeeds" on a retry, since the
//! kernel may have dropped the dirty pages of the failed one. Reads go on.
//!
//! After that what the machine has cached may be what the medium does not have: it is forgotten when the
//! device is given back.
//!
//! A failed discard is told to its caller and sets nothing: what it was about holds
//! nothing that anybody needs. Nor does a failed `write_apart`: its writer knows what was not
//! written, has it still, and nothing refers to it.

use crate::BlockDevice;
use std::io;
use std::sync::OnceLock;

/// A device whose failures stay: see the module.
pub struct Sticky<D: BlockDevice> {
    device: D,
    failed: OnceLock<(io::ErrorKind, String)>,
}

impl<D: BlockDevice> Sticky<D> {
    /// Around `device`, which has not failed yet.
    pub fn new(device: D) -> Sticky<D> {
        Sticky { device, failed: OnceLock::new() }
    }

    /// Why the device was given up, if it was.
    pub fn failure(&self) -> Option<&str> {
        self.failed.get().map(|(_, why)| why.as_str())
    }

    /// Where it was given up: whoever opens it next is not to believe what it failed to write, which the
    /// machine may have cached. Done when it is dropped, too; for who ends without that.
    pub fn forget_failed(&self) {
        if self.failed.get().is_some() {
            self.device.uncache(0, self.device.len());
        }
    }

    /// The device below.
    pub fn device(&self) -> &D {
        &self.device
    }

    fn check(&self) -> io::Result<()> {
        let Some((kind, why)) = self.failed.get() else { return Ok(()) };
        Err(io::Error::new(*kind, format!("given up after an earlier failure: {why}")))
    }

    fn guard(&self, what: &str, run: impl FnOnce(&D) -> io::Result<()>) -> io::Result<()> {
        self.check()?;
        run(&self.device).inspect_err(|e| {
            let _ = self.failed.set((e.kind(), format!("{what}: {e}")));
        })
    }
}

impl<D: BlockDevice> BlockDevice for Sticky<D> {
    fn len(&self) -> u64 {
        self.device.len()
    }

    fn grow_to_now(&self) -> io::Result<()> {
        self.device.grow_to_now()
    }

    fn read_only(&self) -> bool {
        self.device.read_only()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.device.read_at(offset, buf)
    }

    fn read_medium(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.device.read_medium(offset, buf)
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
        self.guard("write", |d| d.write_at(offset, buf))
    }

    fn write_vectored_at(&self, offset: u64, bufs: &[&[u8]]) -> io::Result<()> {
        self.guard("write", |d| d.write_vectored_at(offset, bufs))
    }

    fn write_apart(&self, offset: u64, bufs: &[&[u8]], through: bool) -> io::Result<()> {
        self.check()?;
        self.device.write_apart(offset, bufs, through)
    }

    fn tells_late(&self) -> bool {
        self.device.tells_late()
    }

    fn start_writing(&self) -> io::Result<()> {
        self.guard("write", |d| d.start_writing())
    }

    fn flush(&self) -> io::Result<()> {
        self.guard("flush", |d| d.flush())
    }

    fn uncache(&self, offset: u64, len: u64) {
        self.device.uncache(offset, len);
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        self.check()?;
        self.device.discard(offset, len)
    }

    fn name(&self) -> String {
        self.device.name()
    }
}

impl<D: BlockDevice> Drop for Sticky<D> {
    fn drop(&mut self) {
        self.forget_failed();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes no discards, and flushes as long as it is told to.
    struct Device(std::sync::atomic::AtomicBool);

    impl BlockDevice for Device {
        fn len(&self) -> u64 {
            1 << 20
        }

        fn read_only(&self) -> bool {
            false
        }

        fn read_at(&self, _: u64, _: &mut [u8]) -> io::Result<()> {
            Ok(())
        }

        fn write_at(&self, _: u64, _: &[u8]) -> io::Result<()> {
            Ok(())
        }

        fn flush(&self) -> io::Result<()> {
            match self.0.load(std::sync::atomic::Ordering::Relaxed) {
                true => Ok(()),
                false => Err(io::Error::other("worn out")),
            }
        }

        fn discard(&self, _: u64, _: u64) -> io::Result<()> {
            Err(io::Error::other("no"))
        }

        fn name(&self) -> String {
            "device".into()
        }
    }

    #[test]
    fn a_failed_discard_ends_nothing_and_a_failed_flush_everything() {
        let device = Sticky::new(Device(true.into()));
        assert!(device.discard(0, 4096).is_err());
        assert!(device.failure().is_none());
        device.write_at(0, &[1]).unwrap();
        device.flush().unwrap();
        device.device.0.store(false, std::sync::atomic::Ordering::Relaxed);
        assert!(device.flush().is_err());
        device.device.0.store(true, std::sync::atomic::Ordering::Relaxed);
        for again in [device.flush(), device.write_at(0, &[1]), device.discard(0, 4096)] {
            let why = again.unwrap_err().to_string();
            assert!(why.contains("flush: worn out"), "{why}");
        }
        device.read_at(0, &mut [0]).unwrap();
    }
}
