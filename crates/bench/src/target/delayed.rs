//! A device that is as slow as it is told: what a lock held during an I/O costs depends on how long
//! the I/O takes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use bedplate::{
    BlockDevice, DeviceError, DeviceErrorKind, DeviceQueue, MemoryDevice, QueueOptions,
};
use bedplate_block::{BusyMeter, DeviceCall, Hook, HookedDevice, Operation};

use crate::measure::DeviceTime;

type DeviceResult<T> = std::result::Result<T, DeviceError>;

/// Below this a delay is spun away: a sleep takes longer to come back than it lasts.
const SPIN_MAX: Duration = Duration::from_micros(60);

/// Memory with a delay before every operation; any number of operations wait side by side, as on a
/// disk with deep queues.
pub(crate) type DelayedDevice = HookedDevice<Delay>;

/// Makes such a device.
pub(crate) fn delayed(size_bytes: u64, latency: Duration) -> Arc<DelayedDevice> {
    let delay = Delay { latency_ns: AtomicU64::new(0), meter: BusyMeter::default() };
    delay.set_latency(latency);
    HookedDevice::named("memory".to_owned(), MemoryDevice::new(size_bytes), delay)
}

/// How long every operation takes.
#[derive(Debug)]
pub(crate) struct Delay {
    latency_ns: AtomicU64,
    /// How busy it is; without a latency it is not a device that could be.
    meter: BusyMeter,
}

impl Delay {
    /// Returns how busy it was; `None` without a latency.
    pub(crate) fn time(&self) -> Option<DeviceTime> {
        let told = self.meter.time();
        (self.latency_ns.load(Relaxed) > 0).then(|| DeviceTime {
            name: "memory".to_owned(),
            busy: told.busy,
            queued: told.queued,
        })
    }

    /// Sets how long every operation takes from now on.
    pub(crate) fn set_latency(&self, latency: Duration) {
        self.latency_ns.store(u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX), Relaxed);
    }

    fn wait(&self) {
        let latency = Duration::from_nanos(self.latency_ns.load(Relaxed));
        if latency.is_zero() {
            return;
        }
        if latency > SPIN_MAX {
            std::thread::sleep(latency);
            return;
        }
        let until = Instant::now() + latency;
        while Instant::now() < until {
            std::thread::yield_now();
        }
    }
}

impl Hook for Delay {
    fn call(
        &self,
        call: DeviceCall<'_>,
        pass: &mut dyn FnMut() -> DeviceResult<()>,
    ) -> DeviceResult<()> {
        if matches!(call, DeviceCall::Discard { .. }) || self.latency_ns.load(Relaxed) == 0 {
            return pass();
        }
        self.meter.begin(1);
        self.wait();
        let passed = pass();
        self.meter.end(1);
        passed
    }

    fn queue(
        &self,
        memory: &Arc<dyn BlockDevice>,
        options: &QueueOptions,
    ) -> DeviceResult<Box<dyn DeviceQueue>> {
        if self.latency_ns.load(Relaxed) == 0 {
            return memory.queue(options);
        }
        Err(DeviceError {
            kind: DeviceErrorKind::Unsupported,
            operation: Operation::Queue,
            device: memory.name().to_owned(),
            offset: None,
            detail: "memory with an added latency serves threads only: leave out --depth"
                .to_owned(),
            errno: None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operation_takes_at_least_the_latency_and_data_arrives() {
        let device = delayed(1 << 20, Duration::from_millis(2));
        let start = Instant::now();
        device.write_at(&bedplate::AlignedBuf::from_slice(&[7; 4096]), 4096).unwrap();
        let mut buf = bedplate::AlignedBuf::zeroed(4096);
        device.read_at(&mut buf, 4096).unwrap();
        device.flush().unwrap();
        assert!(start.elapsed() >= Duration::from_millis(6));
        assert_eq!(buf[100], 7);
        assert_eq!(device.counters().writes, 1);
        assert!(device.queue(&QueueOptions::default()).is_err());
        // S-504: busy while something was under way, and one thing at a time.
        let time = device.time().unwrap();
        assert!(time.busy >= Duration::from_millis(6) && time.queued == time.busy, "{time:?}");
        assert!(time.busy <= start.elapsed(), "{time:?}");
        device.set_latency(Duration::ZERO);
        assert!(device.queue(&QueueOptions::default()).is_ok());
        assert_eq!(device.time(), None);
    }
}
