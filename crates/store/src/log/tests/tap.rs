//! A device in front of another: notes the moments at which the power may go, and drops flushes on
//! command.

use std::sync::Arc;

use bedplate_block::{BlockDevice, DeviceCall, Hook, HookedDevice, SimulatedDevice};
use parking_lot::Mutex;

/// The moments of a run over one or two devices: how many operations each device had carried out.
#[derive(Debug, Default)]
pub(crate) struct Moments {
    devices: Mutex<Vec<Arc<SimulatedDevice>>>,
    moments: Mutex<Vec<Vec<usize>>>,
}

impl Moments {
    /// Forgets the devices and the moments: another process begins.
    #[allow(dead_code, reason = "the mount's tests in the file system use this source too")]
    pub(crate) fn restart(&self) {
        self.devices.lock().clear();
        self.moments.lock().clear();
    }

    pub(crate) fn note(&self) {
        let now = self.devices.lock().iter().map(|device| device.operation_count()).collect();
        self.moments.lock().push(now);
    }

    pub(crate) fn count(&self) -> usize {
        self.moments.lock().len()
    }

    pub(crate) fn at(&self, index: usize) -> Vec<usize> {
        self.moments.lock()[index].clone()
    }
}

#[derive(Debug)]
pub(crate) struct Tap {
    moments: Arc<Moments>,
    /// The planted bug: flushes are acknowledged and not passed on.
    drop_flushes: bool,
}

impl Tap {
    pub(crate) fn over(
        inner: Arc<SimulatedDevice>,
        moments: &Arc<Moments>,
        drop_flushes: bool,
    ) -> Arc<dyn BlockDevice> {
        moments.devices.lock().push(Arc::clone(&inner));
        HookedDevice::new(inner, Self { moments: Arc::clone(moments), drop_flushes })
    }
}

impl Hook for Tap {
    fn call(
        &self,
        call: DeviceCall<'_>,
        pass: &mut dyn FnMut() -> bedplate_block::Result<()>,
    ) -> bedplate_block::Result<()> {
        if self.drop_flushes && matches!(call, DeviceCall::Flush) {
            return Ok(());
        }
        let result = pass();
        if !matches!(call, DeviceCall::Read { .. }) {
            self.moments.note();
        }
        result
    }
}
