//! A device in front of another, with a hook in between: what a test wants to see, count, hold up
//! or refuse.

use std::fmt::Debug;
use std::ops::Deref;
use std::sync::Arc;

use crate::{
    BlockDevice, DeviceCounters, DeviceQueue, EngineReport, Geometry, Lent, MemberMap, Operation,
    QueueOptions, Result,
};

/// A call of a device that is about to be made.
#[derive(Debug, Clone, Copy)]
pub enum DeviceCall<'a> {
    /// A read.
    Read {
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u64,
    },
    /// A write.
    Write {
        /// First byte.
        offset: u64,
        /// What is written.
        bytes: &'a [u8],
    },
    /// A write of zeros.
    WriteZeroes {
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u64,
    },
    /// A discard.
    Discard {
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u64,
    },
    /// A flush.
    Flush,
}

impl DeviceCall<'_> {
    /// Returns what an error of it says that it was.
    #[must_use]
    pub fn operation(&self) -> Operation {
        match self {
            Self::Read { .. } => Operation::Read,
            Self::Write { .. } | Self::WriteZeroes { .. } => Operation::Write,
            Self::Discard { .. } => Operation::Discard,
            Self::Flush => Operation::Flush,
        }
    }
}

/// Stands between a device and its user.
pub trait Hook: Send + Sync + Debug {
    /// Is asked to make a call: `pass` makes it, and may be left out, or preceded and followed by
    /// anything.
    ///
    /// # Errors
    /// What `pass` returns, or what the hook makes up.
    fn call(&self, call: DeviceCall<'_>, pass: &mut dyn FnMut() -> Result<()>) -> Result<()>;

    /// Opens a queue; its requests do not come by [`call`](Self::call).
    ///
    /// # Errors
    /// As [`BlockDevice::queue`].
    fn queue(
        &self,
        inner: &Arc<dyn BlockDevice>,
        options: &QueueOptions,
    ) -> Result<Box<dyn DeviceQueue>> {
        inner.queue(options)
    }

    /// Lends the device to another process, whose I/O does not come by [`call`](Self::call).
    ///
    /// # Errors
    /// As [`BlockDevice::lend`].
    fn lend(&self, inner: &Arc<dyn BlockDevice>, read_only: bool) -> Result<Option<Lent>> {
        inner.lend(read_only)
    }

    /// Says which addresses lie on which devices below, and the number that changes with that.
    fn members(&self, inner: &Arc<dyn BlockDevice>) -> (MemberMap, u64) {
        (inner.member_map(), inner.member_map_version())
    }
}

/// A device with a [`Hook`] before it; it derefs to the hook.
#[derive(Debug)]
pub struct HookedDevice<H> {
    name: String,
    inner: Arc<dyn BlockDevice>,
    hook: H,
}

impl<H: Hook> HookedDevice<H> {
    /// Puts a hook before a device, and keeps the device's name.
    pub fn new(inner: Arc<dyn BlockDevice>, hook: H) -> Arc<Self> {
        Self::named(inner.name().to_owned(), inner, hook)
    }

    /// Puts a hook before a device, and gives it a name.
    pub fn named(name: String, inner: Arc<dyn BlockDevice>, hook: H) -> Arc<Self> {
        Arc::new(Self { name, inner, hook })
    }
}

impl<H> Deref for HookedDevice<H> {
    type Target = H;

    fn deref(&self) -> &H {
        &self.hook
    }
}

impl<H: Hook> BlockDevice for HookedDevice<H> {
    fn name(&self) -> &str {
        &self.name
    }

    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn size_bytes(&self) -> u64 {
        self.inner.size_bytes()
    }

    fn refresh_size(&self) -> Result<u64> {
        self.inner.refresh_size()
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        let len = buf.len() as u64;
        self.hook.call(DeviceCall::Read { offset, len }, &mut || self.inner.read_at(buf, offset))
    }

    fn member_map(&self) -> MemberMap {
        self.hook.members(&self.inner).0
    }

    fn member_map_version(&self) -> u64 {
        self.hook.members(&self.inner).1
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> Result<()> {
        self.hook.call(DeviceCall::Write { offset, bytes: buf }, &mut || {
            self.inner.write_at(buf, offset)
        })
    }

    fn flush(&self) -> Result<()> {
        self.hook.call(DeviceCall::Flush, &mut || self.inner.flush())
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> Result<()> {
        self.hook.call(DeviceCall::WriteZeroes { offset, len }, &mut || {
            self.inner.write_zeroes(offset, len)
        })
    }

    fn discard(&self, offset: u64, len: u64) -> Result<bool> {
        let mut taken = false;
        self.hook.call(DeviceCall::Discard { offset, len }, &mut || {
            self.inner.discard(offset, len).map(|done| taken = done)
        })?;
        Ok(taken)
    }

    fn discard_to_zeros(&self, offset: u64, len: u64) -> Result<bool> {
        let mut taken = false;
        self.hook.call(DeviceCall::Discard { offset, len }, &mut || {
            self.inner.discard_to_zeros(offset, len).map(|done| taken = done)
        })?;
        Ok(taken)
    }

    fn queue(&self, options: &QueueOptions) -> Result<Box<dyn DeviceQueue>> {
        self.hook.queue(&self.inner, options)
    }

    fn lend(&self, read_only: bool) -> Result<Option<Lent>> {
        self.hook.lend(&self.inner, read_only)
    }

    fn engine(&self) -> EngineReport {
        self.inner.engine()
    }

    fn counters(&self) -> DeviceCounters {
        self.inner.counters()
    }
}
