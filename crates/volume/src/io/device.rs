//! A volume as a block device.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bedplate_block::{
    BlockDevice, Copies, DeviceCounters, DeviceQueue, EngineReport, Geometry, MemberMap,
    QueueOptions, RequestKind, Result,
};

use super::KeepOpen;
use super::queue::VolumeQueue;
use super::volume_io::VolumeIo;

/// A volume of an open group. The group stays open, and claims its members, as long as any of its
/// volumes does.
#[derive(Debug)]
pub(crate) struct VolumeDevice {
    pub io: Arc<VolumeIo>,
    pub open: KeepOpen,
}

impl BlockDevice for VolumeDevice {
    fn name(&self) -> &str {
        &self.io.name
    }

    fn geometry(&self) -> Geometry {
        // Relayouts change both.
        let untorn_unit = self.io.untorn_unit.load(Ordering::Relaxed);
        Geometry { untorn_unit, row_bytes: self.io.epochs.peek().row_bytes(), ..self.io.geometry }
    }

    fn size_bytes(&self) -> u64 {
        self.io.epochs.peek().size_bytes
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.io.meter.time(RequestKind::Read, buf.len() as u64, || self.io.read_at(buf, offset))
    }

    fn read_right(
        &self,
        buf: &mut [u8],
        offset: u64,
        is_right: &dyn Fn(&[u8]) -> bool,
    ) -> Result<Copies> {
        let len = buf.len() as u64;
        self.io.meter.time(RequestKind::Read, len, || self.io.read_right(buf, offset, is_right))
    }

    fn hold_copies(&self, held: bool) -> bool {
        self.io.hold_copies(held)
    }

    fn ranges_in_doubt(&self) -> Vec<Range<u64>> {
        self.io.ranges_in_doubt()
    }

    fn member_map(&self) -> MemberMap {
        self.io.member_map()
    }

    fn member_map_version(&self) -> u64 {
        self.io.member_map_version()
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> Result<()> {
        self.io.meter.time(RequestKind::Write, buf.len() as u64, || self.io.write_at(buf, offset))
    }

    fn flush(&self) -> Result<()> {
        self.io.meter.time(RequestKind::Flush, 0, || self.io.flush())
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> Result<()> {
        self.io.meter.time(RequestKind::Write, len, || self.io.write_zeroes(offset, len))
    }

    fn discard(&self, offset: u64, len: u64) -> Result<bool> {
        self.io.discard(offset, len)
    }

    fn queue(&self, options: &QueueOptions) -> Result<Box<dyn DeviceQueue>> {
        Ok(Box::new(VolumeQueue::new(Arc::clone(&self.io), Arc::clone(&self.open), options)))
    }

    fn engine(&self) -> EngineReport {
        let (epoch, handles) = (self.io.epochs.peek(), self.io.group_state.handles());
        let reports: Vec<EngineReport> = epoch
            .members
            .iter()
            .filter_map(|member| handles[*member].as_ref())
            .map(|handle| handle.device.engine())
            .collect();
        let fallback = reports.iter().find_map(|report| report.fallback.clone());
        let slowest = reports.iter().find(|report| report.fallback.is_some()).or(reports.first());
        let threads: Vec<_> = reports.iter().filter_map(|report| report.threads).collect();
        let threads = (!threads.is_empty()).then(|| threads.into_iter().sum());
        EngineReport { name: slowest.map_or("volume", |report| report.name), fallback, threads }
    }

    fn counters(&self) -> DeviceCounters {
        let (epoch, handles) = (self.io.epochs.peek(), self.io.group_state.handles());
        let open = epoch.members.iter().filter_map(|member| handles[*member].as_ref());
        open.map(|handle| handle.device.counters()).sum()
    }
}
