//! Flushes one at a time, and none that succeeds after one failed.

use std::ops::Range;
use std::sync::Arc;

use crate::sync::{Mutex, rank};
use crate::{
    BlockDevice, Copies, DeviceCounters, DeviceQueue, EngineReport, Error, Geometry, Lent,
    MemberMap, QueueOptions, Result,
};

/// A device whose flushes are made one at a time, and fail for ever once one has failed.
///
/// The system reports a failed flush once, and to one caller. What other writers had handed over
/// before it may be lost with it, and a flush of theirs that begins beside it or later succeeds all
/// the same. So those that share a device share this, and a flush that succeeds says of everything
/// that was written before it that it is durable.
///
/// Flushes of a [queue](BlockDevice::queue) and of processes that the device was
/// [lent](BlockDevice::lend) to pass it.
#[derive(Debug)]
pub struct OneFlush {
    device: Arc<dyn BlockDevice>,
    /// The first failure. Rank 7.5, held while the device flushes.
    failed: Mutex<Option<Error>, { rank::FLUSH }>,
}

impl OneFlush {
    /// Puts it before a device.
    pub fn over(device: Arc<dyn BlockDevice>) -> Arc<dyn BlockDevice> {
        Arc::new(Self { device, failed: Mutex::new(None) })
    }
}

impl BlockDevice for OneFlush {
    fn name(&self) -> &str {
        self.device.name()
    }

    fn geometry(&self) -> Geometry {
        self.device.geometry()
    }

    fn size_bytes(&self) -> u64 {
        self.device.size_bytes()
    }

    fn refresh_size(&self) -> Result<u64> {
        self.device.refresh_size()
    }

    fn cut_off(&self, size_bytes: u64) -> Result<bool> {
        self.device.cut_off(size_bytes)
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.device.read_at(buf, offset)
    }

    fn read_right(
        &self,
        buf: &mut [u8],
        offset: u64,
        is_right: &dyn Fn(&[u8]) -> bool,
    ) -> Result<Copies> {
        self.device.read_right(buf, offset, is_right)
    }

    fn hold_copies(&self, held: bool) -> bool {
        self.device.hold_copies(held)
    }

    fn ranges_in_doubt(&self) -> Vec<Range<u64>> {
        self.device.ranges_in_doubt()
    }

    fn member_map(&self) -> MemberMap {
        self.device.member_map()
    }

    fn member_map_version(&self) -> u64 {
        self.device.member_map_version()
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> Result<()> {
        self.device.write_at(buf, offset)
    }

    fn flush(&self) -> Result<()> {
        let mut failed = self.failed.lock();
        if let Some(error) = &*failed {
            return Err(error.clone());
        }
        self.device.flush().inspect_err(|error| *failed = Some(error.clone()))
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> Result<()> {
        self.device.write_zeroes(offset, len)
    }

    fn discard(&self, offset: u64, len: u64) -> Result<bool> {
        self.device.discard(offset, len)
    }

    fn discard_to_zeros(&self, offset: u64, len: u64) -> Result<bool> {
        self.device.discard_to_zeros(offset, len)
    }

    fn queue(&self, options: &QueueOptions) -> Result<Box<dyn DeviceQueue>> {
        self.device.queue(options)
    }

    fn lend(&self, read_only: bool) -> Result<Option<Lent>> {
        self.device.lend(read_only)
    }

    fn engine(&self) -> EngineReport {
        self.device.engine()
    }

    fn counters(&self) -> DeviceCounters {
        self.device.counters()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;
    use crate::{DeviceCall, ErrorKind, Hook, HookedDevice, MemoryDevice, Operation};

    /// The first flush waits until the second one has had time to overtake it, and fails.
    #[derive(Debug)]
    struct FirstFails {
        flushes: AtomicU32,
        begun: Barrier,
    }

    impl Hook for FirstFails {
        fn call(&self, call: DeviceCall<'_>, pass: &mut dyn FnMut() -> Result<()>) -> Result<()> {
            if matches!(call, DeviceCall::Flush) && self.flushes.fetch_add(1, Ordering::SeqCst) == 0
            {
                self.begun.wait();
                std::thread::yield_now();
                return Err(Error {
                    kind: ErrorKind::Io,
                    operation: Operation::Flush,
                    device: "memory".to_owned(),
                    offset: None,
                    detail: "the medium failed".to_owned(),
                    errno: None,
                });
            }
            pass()
        }
    }

    #[test]
    fn s_33_a_flush_beside_one_that_fails_does_not_succeed() {
        let hook = FirstFails { flushes: AtomicU32::new(0), begun: Barrier::new(2) };
        let hooked = HookedDevice::new(MemoryDevice::new(1 << 20), hook);
        let device = OneFlush::over(Arc::clone(&hooked) as _);
        std::thread::scope(|scope| {
            let first = scope.spawn(|| device.flush());
            hooked.begun.wait();
            let second = device.flush();
            assert!(first.join().expect("it does not panic").is_err());
            assert!(second.is_err(), "what was written before it may be lost");
        });
        assert!(device.flush().is_err(), "it stays so");
        assert_eq!(hooked.flushes.load(Ordering::SeqCst), 1, "the device is not asked again");
    }
}
