//! The device, the measures of the file system on it, and what the mount was given.

use std::ops::Range;
use std::sync::Arc;

use bedplate_block::{BlockDevice, DeviceQueue, EngineReport, Geometry, Lent, QueueOptions};

use super::Engine;
use crate::options::Limits;
use crate::statistics::in_device;
use crate::{IoMode, MountOptions, Result};
use bedplate_store::Grid;

impl Engine {
    /// Returns the allocation unit in bytes.
    #[inline]
    pub(crate) fn block_size(&self) -> u32 {
        self.block_size
    }

    /// Returns the measures of blocks and sectors.
    #[inline]
    pub(crate) fn grid(&self) -> &Grid {
        &self.grid
    }

    /// Returns what the device can do.
    #[inline]
    pub(crate) fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Returns the length in bytes of a row of the volume below, which a relayout changes; 0: there
    /// are none.
    pub(crate) fn row_bytes(&self) -> u32 {
        self.device.geometry().row_bytes
    }

    /// Returns the I/O size in bytes that programs are told to prefer for a file of a mode: a power
    /// of two, and at least the allocation unit.
    pub(crate) fn preferred_io(&self, mode: Option<IoMode>) -> u32 {
        let wanted = self.tuning().preferred_io_bytes();
        match mode.unwrap_or_else(|| self.tuning().mode()) {
            mode if !mode.writes_behind() && wanted > self.block_size => 1 << wanted.ilog2(),
            _ => self.block_size,
        }
    }

    /// Returns the options as of the mount; what has changed since is in
    /// [`tuning`](Self::tuning).
    #[inline]
    pub(crate) fn options(&self) -> &MountOptions {
        &self.options
    }

    /// Returns whether the mount changes nothing.
    #[inline]
    pub(crate) fn is_read_only(&self) -> bool {
        self.options.read_only
    }

    /// Returns how much one record of the log carries.
    #[inline]
    pub(crate) fn limits(&self) -> &Limits {
        &self.options.limits
    }

    /// Reads bytes of the device, and what records of the log carry of them.
    #[inline]
    pub(crate) fn read_device(&self, buf: &mut [u8], at: u64) -> Result<()> {
        if self.meta.homes().bytes() > 0 {
            return self.read_overlaid(buf, at);
        }
        Ok(in_device(|| self.device.read_at(buf, at))?)
    }

    #[cold]
    #[inline(never)]
    fn read_overlaid(&self, buf: &mut [u8], at: u64) -> Result<()> {
        let overlay = self.meta.homes().overlay(&(at..at + buf.len() as u64));
        in_device(|| self.device.read_at(buf, at))?;
        if let Some(overlay) = overlay {
            overlay.apply(buf, at);
        }
        Ok(())
    }

    /// Returns whether records of the log carry some of a range of the device, which reads of the
    /// device alone do not see.
    #[inline]
    pub(crate) fn is_carried(&self, range: &Range<u64>) -> bool {
        self.meta.homes().meets(range)
    }

    /// Makes the writes of a range of the device that records carry: another write there, which is
    /// not made by [`write_device`](Self::write_device), comes after them (I-HOM-2).
    #[inline]
    pub(crate) fn settle(&self, range: &Range<u64>) -> Result<()> {
        self.meta.homes().settle(range, &*self.device)
    }

    /// Makes all writes that records of the log carry.
    pub(crate) fn write_homes(&self) -> Result<()> {
        self.meta.write_homes()
    }

    /// Returns whether a record may carry so many bytes of data.
    #[inline]
    pub(crate) fn carries_data(&self, bytes: u64) -> bool {
        self.may_carry && self.meta.carries_data(bytes)
    }

    /// Writes bytes of the device. What vouches for them was asked before
    /// ([`permit_overwrite`](Self::permit_overwrite)).
    #[inline]
    pub(crate) fn write_device(&self, buf: &[u8], at: u64) -> Result<()> {
        self.settle(&(at..at + buf.len() as u64))?;
        Ok(in_device(|| self.device.write_at(buf, at))?)
    }

    /// Opens a queue of the device.
    pub(crate) fn device_queue(&self, options: &QueueOptions) -> Result<Box<dyn DeviceQueue>> {
        Ok(self.device.queue(options)?)
    }

    /// Opens the device for another process, where it can be.
    pub(crate) fn lend_device(&self, read_only: bool) -> Result<Option<Lent>> {
        Ok(self.device.lend(read_only)?)
    }

    /// Returns the device's name, for messages.
    pub(crate) fn device_name(&self) -> &str {
        self.device.name()
    }

    /// Returns which engine serves the device.
    pub(crate) fn device_engine(&self) -> EngineReport {
        self.device.engine()
    }

    /// Returns the device's size as it is known.
    pub(crate) fn device_bytes(&self) -> u64 {
        self.device.size_bytes()
    }

    /// Asks the system for the device's size.
    pub(crate) fn refresh_device_bytes(&self) -> Result<u64> {
        Ok(self.device.refresh_size()?)
    }

    /// Lets the device end where nothing is needed any more; returns whether it did.
    pub(crate) fn cut_device(&self, size_bytes: u64) -> Result<bool> {
        Ok(self.device.cut_off(size_bytes)?)
    }

    /// Returns the device itself.
    pub(crate) fn device(&self) -> &Arc<dyn BlockDevice> {
        &self.device
    }

    /// Returns the device as log and metadata have it: after a flush of one has failed none of
    /// either succeeds.
    pub(crate) fn device_of_records(&self) -> &Arc<dyn BlockDevice> {
        self.meta.device()
    }

    /// Returns the log's own device, where it has one.
    pub(crate) fn log_device(&self) -> Option<Arc<dyn BlockDevice>> {
        self.log_device.lock().clone()
    }

    /// Takes note of the device that the log has from now on; returns the one before.
    pub(crate) fn set_log_device(
        &self,
        device: Option<Arc<dyn BlockDevice>>,
    ) -> Option<Arc<dyn BlockDevice>> {
        std::mem::replace(&mut *self.log_device.lock(), device)
    }
}
