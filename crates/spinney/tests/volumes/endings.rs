//! How a volume ends: closed, dropped, on a medium that fails; never silently.

use blocksim::{Access, Fault, GoOn, Hooked, Image, Request, RequestHook, SimDevice, Span};
use btrfs_disk::Superblock;
use btrfs_disk::superblock::{COPIES, SUPER_SIZE};
use parking_lot::Mutex;
use spinney::{FormatOptions, Volume, VolumeOptions};
use std::sync::Arc;
use std::time::{Duration, Instant};
use testkit::oracle::{TempDir, assert_clean};
use tracing::field::{Field, Visit};
use tracing::{Level, Metadata, Subscriber, span};

const NO_FLUSH: Fault = Fault { access: Access::Flush, nth: 0, span: Span::FromThenOn };

/// Keeps what is said as an error while it is the thread's own.
#[derive(Clone, Default)]
struct Errors(Arc<Mutex<Vec<String>>>);

struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        self.0.push_str(&format!("{field}={value:?} "));
    }
}

impl Subscriber for Errors {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() == Level::ERROR
    }
    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }
    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn event(&self, event: &tracing::Event<'_>) {
        let mut text = Text(String::new());
        event.record(&mut text);
        self.0.lock().push(text.0);
    }
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

/// What was said as an error while `work` ran.
fn errors(work: impl FnOnce()) -> Vec<String> {
    let errors = Errors::default();
    tracing::subscriber::with_default(errors.clone(), work);
    std::mem::take(&mut *errors.0.lock())
}

fn device() -> Arc<SimDevice> {
    let device = Arc::new(SimDevice::new(Image::zeros(256 << 20)));
    FormatOptions::new().format(&*device).unwrap();
    device
}

fn writable(device: &Arc<SimDevice>) -> Volume {
    VolumeOptions::new().write(true).open_device(device.clone()).unwrap()
}

/// What the next program finds; `btrfs check` finds nothing there.
fn later(device: &SimDevice) -> Volume {
    judge(&device.image());
    let copy = Arc::new(SimDevice::new(device.image()));
    VolumeOptions::new().open_device(copy).unwrap()
}

/// It reads the first superblock alone: where a write that failed has torn that one, there is nothing to ask.
fn judge(image: &Image) {
    testkit::require!(btrfs_progs);
    let mut bytes = [0; SUPER_SIZE];
    image.read(COPIES[0], &mut bytes).unwrap();
    if Superblock::parse(&bytes, COPIES[0]).is_err() {
        return;
    }
    let dir = TempDir::new("endings").unwrap();
    let path = dir.join("disk.img");
    image.export(&path).unwrap();
    assert_clean(&path);
}

#[test]
fn a_dropped_volume_is_committed() {
    let device = device();
    let said = errors(|| {
        let volume = writable(&device);
        volume.write("kept", b"1").unwrap();
        assert!(!later(&device).exists("kept").unwrap(), "nothing commits by itself");
    });
    assert_eq!(later(&device).read("kept").unwrap(), b"1");
    assert_eq!(said, [""; 0]);
}

#[test]
fn one_that_cannot_be_committed_says_so() {
    let device = device();
    let volume = writable(&device);
    volume.write("lost", b"1").unwrap();
    device.set_faults(&[NO_FLUSH]);
    let said = errors(|| drop(volume));
    assert!(said.iter().any(|line| line.contains("is lost")), "{said:?}");
}

#[test]
fn close_tells_and_ends_all_handles() {
    let device = device();
    let volume = writable(&device);
    let (file, other) = (volume.create("f").unwrap(), volume.clone());
    volume.close().unwrap();
    assert!(file.write_at(0, b"x").is_err() && file.sync_all().is_err());
    assert!(other.write("g", b"x").is_err() && other.sync().is_err());
    let said = errors(|| {
        drop(file);
        other.close().unwrap();
    });
    assert_eq!(said, [""; 0]);

    // As a mount does it at its end.
    let volume = writable(&device);
    volume.write("g", b"1").unwrap();
    let said = errors(|| {
        volume.fs().destroy().unwrap();
        drop(volume);
    });
    assert_eq!((said.len(), later(&device).read("g").unwrap()), (0, b"1".to_vec()));

    let volume = writable(&device);
    volume.write("lost", b"1").unwrap();
    device.set_faults(&[NO_FLUSH]);
    assert!(volume.close().is_err());
}

#[test]
fn what_was_synced_survives_whatever_happens_to_the_program() {
    let device = device();
    let volume = writable(&device);
    volume.write("a", b"1").unwrap();
    volume.sync().unwrap();
    volume.write("b", b"2").unwrap();
    let file = volume.create("c").unwrap();
    file.write_at(0, b"3").unwrap();
    file.sync_all().unwrap();
    // As after a crash: the last commit, and the log of what was synced alone.
    let now = later(&device);
    assert_eq!((now.read("a").unwrap(), now.read("c").unwrap()), (b"1".to_vec(), b"3".to_vec()));
    assert!(!now.exists("b").unwrap());
    drop((file, volume));
}

/// What a write at the device of a volume with the files `old` and `other` leaves of both, where writes `nth` and
/// what follows to `last` fail; and what `close_whole` said. `None`: there are not so many writes.
fn closed_whole(image: &Image, nth: u64, last: u64) -> Option<(bool, [Vec<u8>; 2])> {
    let device = Arc::new(SimDevice::new(image.clone()));
    let volume = writable(&device);
    volume.write("old", &AFTER).unwrap();
    volume.write("other", &AFTER).unwrap();
    let counts = device.counts();
    let fault = |nth| Fault { access: Access::Write, nth: counts.writes + nth, span: Span::Once };
    device.set_faults(&(nth..=last).map(fault).collect::<Vec<_>>());
    let done = volume.close_whole();
    if device.counts().failed == counts.failed {
        return None;
    }
    let left = later(&device);
    if let Err(error) = &done {
        let (text, before) = (error.to_string(), left.read("old").unwrap() == BEFORE);
        // Behind the superblock all is kept, and only what follows failed.
        assert!(!text.contains("nothing was changed") || before, "{nth}..{last}: {text}");
    }
    Some((done.is_ok(), ["old", "other"].map(|name| left.read(name).unwrap_or_default())))
}

const BEFORE: &[u8] = b"what was there";
/// More than an item holds.
static AFTER: [u8; 50_000] = [7; 50_000];

/// A content write that is refused is tried once more, elsewhere; where that is refused, too, the file that
/// was to be written over has what it had, and nothing of the command is there.
#[test]
fn a_volume_closed_whole_keeps_all_or_nothing() {
    let device = Arc::new(SimDevice::new(Image::zeros(128 << 20)));
    FormatOptions::new().format(&*device).unwrap();
    writable(&device).write("old", BEFORE).unwrap();
    let (image, mut outcomes) = (device.image(), [0; 2]);
    for tries in [1, 2, 4] {
        for nth in 0.. {
            let told = closed_whole(&image, nth, nth + tries - 1);
            let Some((done, [old, other])) = told else { break };
            let (all, nothing) =
                (old == AFTER && other == AFTER, old == BEFORE && other.is_empty());
            assert!(all || !done && nothing, "{nth} {tries}: {done} {} {}", old.len(), other.len());
            outcomes[usize::from(nothing)] += 1;
        }
    }
    // Done at the second try, or without a copy of the superblock; given up.
    assert!(outcomes.iter().all(|&count| count > 0), "{outcomes:?}");
}

/// A device that takes its time for what makes things durable.
struct Slow;

impl RequestHook for Slow {
    fn ask(&self, request: Request<'_>, go_on: GoOn<'_>) -> std::io::Result<()> {
        if let Request::Flush = request {
            std::thread::sleep(Duration::from_millis(30));
        }
        go_on()
    }
}

/// Who writes by another handle while the volume is closed hears an error, or finds it there.
#[test]
fn a_write_beside_the_close_is_kept_or_refused() {
    let below = SimDevice::new(Image::zeros(128 << 20));
    FormatOptions::new().format(&below).unwrap();
    let device = Arc::new(Hooked { below, hook: Slow });
    for round in 0..4 {
        let name = format!("file-{round}");
        let volume = VolumeOptions::new().write(true).open_device(device.clone()).unwrap();
        let file = volume.create(&name).unwrap();
        let (done, writes) = std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                let writes = |n: &u64| file.write_at(*n, &[round + 1]).is_ok();
                (0..).take_while(writes).last()
            });
            std::thread::sleep(Duration::from_millis(20));
            volume.clone().close().unwrap();
            (volume, writer.join().unwrap())
        });
        drop((done, file));
        let there = later(&device.below).read(&name).unwrap();
        assert_eq!(there.len() as u64, writes.map_or(0, |last| last + 1), "round {round}");
    }
}

/// `waits` is at work, step by step, while the volume is closed. It ends with that, and nothing is written behind it.
fn ends_with_the_close(
    device: &Arc<Hooked<SimDevice, Slow>>,
    waits: impl FnOnce(&Volume) -> spinney::Result<()> + Send,
) {
    let volume = VolumeOptions::new().write(true).open_device(device.clone()).unwrap();
    let other = volume.clone();
    let said = errors(|| {
        std::thread::scope(|scope| {
            let (writes, begun) = (device.below.counts().writes, Instant::now());
            let waiter = scope.spawn(move || waits(&other));
            while device.below.counts().writes == writes && !waiter.is_finished() {
                assert!(begun.elapsed() < Duration::from_secs(60), "it does not begin");
                std::thread::sleep(Duration::from_millis(1));
            }
            assert!(!waiter.is_finished(), "there is too little to do for this test");
            volume.close().unwrap();
            let writes = device.below.counts().writes;
            let waited = waiter.join().unwrap();
            assert_eq!(device.below.counts().writes - writes, 0, "writes behind the end");
            let error = waited.expect_err("there is too little to do for this test").to_string();
            assert!(error.contains("closed"), "{error}");
        });
    });
    assert_eq!(said, [""; 0]);
    let report = later(&device.below).check(true).unwrap();
    assert!(report.findings.is_empty(), "{:?}", report.findings);
}

fn slow_device() -> Arc<Hooked<SimDevice, Slow>> {
    let below = SimDevice::new(Image::zeros(256 << 20));
    FormatOptions::new().single_metadata().format(&below).unwrap();
    Arc::new(Hooked { below, hook: Slow })
}

/// Who waits until all is counted takes one step after the other.
#[test]
fn a_rescan_that_is_waited_for_ends_with_the_close() {
    let device = slow_device();
    let volume = VolumeOptions::new().write(true).open_device(device.clone()).unwrap();
    let file = volume.create("in pieces").unwrap();
    for piece in 0..20_000 {
        file.write_at(piece * 8192, &[1; 4096]).unwrap();
    }
    drop(file);
    volume.close().unwrap();
    ends_with_the_close(&device, Volume::enable_quotas);
}

#[test]
fn a_deletion_that_is_waited_for_ends_with_the_close() {
    let device = slow_device();
    let volume = VolumeOptions::new().write(true).open_device(device.clone()).unwrap();
    volume.create_subvolume("sub").unwrap();
    for n in 0..20_000 {
        volume.write(format!("sub/{n}"), &[1; 1800]).unwrap();
    }
    volume.sync().unwrap();
    volume.delete_subvolume("sub").unwrap();
    volume.close().unwrap();
    ends_with_the_close(&device, |volume| volume.wait_for_deleted(&[], None).map(drop));
}

/// So does who makes things durable.
#[test]
fn a_sync_beside_the_close_writes_nothing_behind_it() {
    let device = slow_device();
    for round in 0..3 {
        ends_with_the_close(&device, |volume| {
            let file = volume.create(format!("file-{round}"))?;
            for n in 0.. {
                file.write_at(n, &[round])?;
                if round == 0 { volume.sync()? } else { file.sync_all()? }
            }
            Ok(())
        });
    }
}
