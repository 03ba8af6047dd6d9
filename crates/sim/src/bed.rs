//! What a volume lies on: one simulated device, or two with one power supply where the log has one of its own.
//!
//! ```text
//!   file system ─► Wire ─► data device ─┐
//!              └─► Wire ─► log device ──┴─► clock: operation 1, 2, 3 … of both, in the order in which they came
//! ```
//!
//! A cut after operation `n` is one moment of both devices. What each of them had not flushed by then arrives or not on its own.

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use block::{
    BlockDevice, CrashChoice, CrashStep, DeviceCall, DeviceQueue, Error, ErrorKind, Geometry, Hook, HookedDevice, MemoryDevice, Operation,
    QueueOptions, Result, SimulatedDevice, SimulatedOptions, Snapshot,
};
use fs::{FileSystem, MountOptions};
use parking_lot::Mutex;

/// The simulated devices of a volume.
#[derive(Debug, Clone)]
pub struct Bed {
    data: Arc<SimulatedDevice>,
    log: Option<Arc<SimulatedDevice>>,
    /// For each operation of either device, how many of those up to it were the data device's. Empty where there is one device.
    clock: Arc<Mutex<Vec<usize>>>,
}

/// What a power cut left on the devices of a volume.
#[derive(Debug, Clone)]
pub struct Remains {
    /// The data device.
    pub data: Arc<MemoryDevice>,
    /// The log's own device.
    pub log: Option<Arc<MemoryDevice>>,
}

impl Bed {
    /// Makes devices with these contents.
    pub(crate) fn over(data: &Snapshot, log: Option<&Snapshot>, geometry: Geometry, seed: u64) -> Self {
        let device = |content: &Snapshot| SimulatedDevice::over(content, &SimulatedOptions { geometry, seed, ..SimulatedOptions::default() });
        Self { data: device(data), log: log.map(device), clock: Arc::default() }
    }

    /// Makes devices that go on with what a cut left.
    pub(crate) fn again(remains: &Remains, seed: u64) -> Self {
        let log = remains.log.as_ref().map(|log| log.snapshot());
        Self::over(&remains.data.snapshot(), log.as_ref(), remains.data.geometry(), seed)
    }

    /// The device that holds the data.
    #[must_use]
    pub fn data(&self) -> &Arc<SimulatedDevice> {
        &self.data
    }

    /// Each device.
    pub(crate) fn devices(&self) -> impl Iterator<Item = &Arc<SimulatedDevice>> {
        std::iter::once(&self.data).chain(&self.log)
    }

    /// The device whose failures matter: the log's own, or the only one.
    pub(crate) fn weakest(&self) -> &Arc<SimulatedDevice> {
        self.log.as_ref().unwrap_or(&self.data)
    }

    /// Contents as they are, caches included.
    pub(crate) fn snapshots(&self) -> (Snapshot, Option<Snapshot>) {
        (self.data.snapshot(), self.log.as_ref().map(|log| log.snapshot()))
    }

    /// How many operations the devices saw.
    #[must_use]
    pub fn operation_count(&self) -> usize {
        if self.log.is_some() { self.clock.lock().len() } else { self.data.operation_count() }
    }

    /// How many operations each device had seen when `after` were through.
    fn moments(&self, after: usize) -> (usize, usize) {
        if self.log.is_none() {
            return (after, 0);
        }
        let data = after.checked_sub(1).map_or(0, |last| self.clock.lock()[last]);
        (data, after - data)
    }

    /// Each device with its moment, and what becomes of what it had not flushed.
    fn fates(&self, after: usize, choice: &CrashChoice) -> Vec<(&Arc<SimulatedDevice>, usize, CrashChoice)> {
        let Some(log) = &self.log else { return vec![(&self.data, after, choice.clone())] };
        let (on_data, on_log) = self.moments(after);
        let (data_choice, log_choice) = apart(choice);
        let next = self.moments((after + 1).min(self.operation_count()));
        // Without a cache only one write is on its way when the power goes, though there be two devices.
        let on_its_way =
            |now: usize, next: usize, choice| if self.data.geometry().volatile_cache || now < next { choice } else { CrashChoice::LoseAll };
        vec![(&self.data, on_data, on_its_way(on_data, next.0, data_choice)), (log, on_log, on_its_way(on_log, next.1, log_choice))]
    }

    /// How many writes a cut after so many operations may take back.
    pub(crate) fn unflushed(&self, after: usize) -> usize {
        self.fates(after, &CrashChoice::LoseAll).into_iter().map(|(device, at, _)| device.unflushed(at).len()).sum()
    }

    /// What a choice means for a cut after so many operations: for each device what arrives.
    pub(crate) fn crash_steps(&self, after: usize, choice: &CrashChoice) -> Vec<Vec<CrashStep>> {
        self.fates(after, choice).into_iter().map(|(device, at, choice)| device.crash_steps(at, &choice)).collect()
    }

    /// What a cut after so many operations leaves.
    pub(crate) fn cut(&self, after: usize, choice: &CrashChoice) -> Remains {
        let mut left = self.fates(after, choice).into_iter().map(|(device, at, choice)| device.crash_image(at, &choice));
        let data = left.next().expect("there is a data device");
        Remains { data, log: left.next() }
    }

    /// Connects a process to the devices.
    pub(crate) fn connect(&self) -> Wires {
        let closed = Arc::new(AtomicBool::new(false));
        let wire = |inner: &Arc<SimulatedDevice>| {
            let wire = Wire { bed: self.clone(), closed: Arc::clone(&closed) };
            HookedDevice::new(Arc::clone(inner) as _, wire) as Arc<dyn BlockDevice>
        };
        Wires { data: wire(&self.data), log: self.log.as_ref().map(wire), closed }
    }

    /// Runs a call of one of the devices, and lets the clock run by the operations that it made.
    fn timed<T>(&self, call: impl FnOnce() -> T) -> T {
        let Some(log) = &self.log else { return call() };
        let mut clock = self.clock.lock();
        let result = call();
        let (data, log) = (self.data.operation_count(), log.operation_count());
        let mut known = clock.last().copied().unwrap_or(0);
        while clock.len() < data + log {
            known = (known + 1).min(data);
            clock.push(known);
        }
        result
    }
}

/// Each device has a choice of its own; that one of them keeps all and the other nothing is what their order stands against.
fn apart(choice: &CrashChoice) -> (CrashChoice, CrashChoice) {
    match choice {
        CrashChoice::Seeded(seed) => match seed % 8 {
            0 => (CrashChoice::LoseAll, CrashChoice::KeepAll),
            1 => (CrashChoice::KeepAll, CrashChoice::LoseAll),
            2 => (CrashChoice::LoseAll, CrashChoice::Seeded(*seed)),
            _ => (CrashChoice::Seeded(*seed), CrashChoice::Seeded(seed.rotate_left(32) ^ 0x9e37_79b9)),
        },
        other => (other.clone(), other.clone()),
    }
}

impl Remains {
    /// Makes others of the same content.
    pub(crate) fn copy(&self) -> Self {
        let copy = |device: &Arc<MemoryDevice>| MemoryDevice::from_snapshot(&device.snapshot(), device.geometry());
        Self { data: copy(&self.data), log: self.log.as_ref().map(copy) }
    }

    /// Writes the contents as images, `volume` and, of a log's own device, `log`, into a directory.
    ///
    /// # Errors
    /// Those of the files.
    pub fn save(&self, dir: &Path) -> std::io::Result<()> {
        std::fs::create_dir_all(dir)?;
        save(&self.data.snapshot(), &dir.join("volume"))?;
        self.log.as_ref().map_or(Ok(()), |log| save(&log.snapshot(), &dir.join("log")))
    }

    /// The device that holds the data.
    pub(crate) fn device(&self) -> Arc<dyn BlockDevice> {
        Arc::clone(&self.data) as _
    }

    /// The log's own device.
    pub(crate) fn log(&self) -> Option<Arc<dyn BlockDevice>> {
        self.log.as_ref().map(|log| Arc::clone(log) as _)
    }

    pub(crate) fn mount(&self, options: MountOptions) -> fs::Result<FileSystem> {
        FileSystem::mount(self.device(), self.log(), options)
    }

    /// The first byte that differs from other contents.
    pub(crate) fn first_difference(&self, (data, log): &(Snapshot, Option<Snapshot>)) -> Option<u64> {
        let on_log = || self.log.as_ref().zip(log.as_ref()).and_then(|(now, then)| now.snapshot().first_difference(then));
        self.data.snapshot().first_difference(data).or_else(on_log)
    }

    pub(crate) fn snapshots(&self) -> (Snapshot, Option<Snapshot>) {
        (self.data.snapshot(), self.log.as_ref().map(|log| log.snapshot()))
    }
}

/// Writes a content as a file with holes where it is zeros.
fn save(content: &Snapshot, path: &Path) -> std::io::Result<()> {
    let file = std::fs::File::create(path)?;
    file.set_len(content.size_bytes())?;
    let mut part = vec![0; 64 << 10];
    for offset in (0..content.size_bytes()).step_by(part.len()) {
        let len = usize::try_from(content.size_bytes() - offset).map_or(part.len(), |left| left.min(part.len()));
        content.read(&mut part[..len], offset);
        if part[..len].iter().any(|byte| *byte != 0) {
            file.write_all_at(&part[..len], offset)?;
        }
    }
    Ok(())
}

/// The way from one process to its devices, which ends when it dies.
#[derive(Debug)]
pub(crate) struct Wires {
    pub(crate) data: Arc<dyn BlockDevice>,
    pub(crate) log: Option<Arc<dyn BlockDevice>>,
    closed: Arc<AtomicBool>,
}

impl Wires {
    /// Nothing gets through any more.
    pub(crate) fn cut(&self) {
        self.closed.store(true, Ordering::SeqCst);
    }

    pub(crate) fn mount(&self, options: MountOptions) -> fs::Result<FileSystem> {
        FileSystem::mount(Arc::clone(&self.data), self.log.clone(), options)
    }
}

/// What stands on the way to one device.
#[derive(Debug)]
struct Wire {
    bed: Bed,
    closed: Arc<AtomicBool>,
}

impl Wire {
    fn open(&self, operation: Operation) -> Result<()> {
        if !self.closed.load(Ordering::SeqCst) {
            return Ok(());
        }
        let (device, detail) = ("simulated".to_owned(), "the process is dead".to_owned());
        Err(Error { kind: ErrorKind::Io, operation, device, offset: None, errno: None, detail })
    }
}

impl Hook for Wire {
    fn call(&self, call: DeviceCall<'_>, pass: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        self.open(call.operation())?;
        self.bed.timed(pass)
    }

    fn queue(&self, inner: &Arc<dyn BlockDevice>, options: &QueueOptions) -> Result<Box<dyn DeviceQueue>> {
        assert!(self.bed.log.is_none(), "the operations of a queue are not ordered among two devices");
        self.open(Operation::Queue)?;
        inner.queue(options)
    }
}

#[cfg(test)]
mod tests {
    use block::AlignedBuf;

    use super::*;

    /// Each device loses what it had not flushed itself: a flush of one says nothing of the other, and both are cut at one moment.
    #[test]
    fn a_cut_is_one_moment_of_both_devices() {
        let geometry = Geometry { volatile_cache: true, ..MemoryDevice::GEOMETRY };
        let empty = Snapshot::empty(1 << 20);
        let bed = Bed::over(&empty, Some(&empty), geometry, 1);
        let wires = bed.connect();
        let log = wires.log.clone().expect("it has one");
        let page = |fill: u8| AlignedBuf::from_slice(&[fill; 4096]);
        wires.data.write_at(&page(1), 0).expect("it takes it");
        log.write_at(&page(2), 0).expect("it takes it");
        log.flush().expect("it flushes");
        wires.data.write_at(&page(3), 4096).expect("it takes it");
        wires.data.flush().expect("it flushes");
        let first = |device: &Arc<MemoryDevice>, at: u64| {
            let mut page = page(0);
            device.read_at(&mut page, at).expect("it reads");
            page[0]
        };
        let shows = |after: usize, choice: &CrashChoice| {
            let left = bed.cut(after, choice);
            (first(&left.data, 0), first(&left.data, 4096), first(left.log.as_ref().expect("it has one"), 0))
        };
        assert_eq!(bed.operation_count(), 5);
        assert_eq!(shows(0, &CrashChoice::KeepAll), (0, 0, 0));
        assert_eq!(shows(2, &CrashChoice::KeepAll), (1, 0, 2));
        assert_eq!(shows(3, &CrashChoice::LoseAll), (0, 0, 2), "the log's flush is the log's");
        assert_eq!(shows(4, &CrashChoice::LoseAll), (0, 0, 2));
        assert_eq!(shows(5, &CrashChoice::LoseAll), (1, 3, 2));
        assert_eq!(shows(2, &CrashChoice::Seeded(8)), (0, 0, 2), "one keeps all, the other nothing");
        assert_eq!(shows(2, &CrashChoice::Seeded(9)), (1, 0, 0));
        assert_eq!((bed.unflushed(2), bed.unflushed(3), bed.unflushed(5)), (2, 1, 0));
    }
}
