//! A volume under another identity, beside the one that it is a copy of.
//!
//! The log names the volume in each of its writes, so it goes on in a new incarnation as if it moved
//! (I-LOG-9), in the place where it is. The head of its own device says both identities before, and
//! the new one alone behind: a cut leaves one that fits the superblock.

use bedplate_store::{LogDeviceHead, LogParts};
use uuid::Uuid;

use crate::Result;
use crate::engine::Engine;

impl Engine {
    /// Gives the volume an identity that nothing else has; returns it.
    pub(crate) fn renew_identity(&self) -> Result<String> {
        self.begin_change()?;
        let shrinking = self.lock_size();
        super::refuse_shrinking(shrinking.is_some())?;
        let superblock = self.superblock();
        let volume = Uuid::new_v4();
        let device = self.log_device();
        let parts = LogParts {
            volume,
            ..self.log_parts(&superblock, device.as_ref(), superblock.log.start, superblock.log.len)
        };
        let head = LogDeviceHead {
            volume: Uuid::from_bytes(superblock.uuid),
            next: Some(volume),
            place: parts.place,
        };
        let write = |head: LogDeviceHead| {
            let written = device.as_ref().map_or(Ok(()), |device| head.write(device));
            // Its device is in use.
            written.inspect_err(|error| self.fail(error.clone()))
        };
        write(head)?;
        self.move_log_to(&parts)?;
        write(LogDeviceHead { volume, next: None, ..head })?;
        Ok(self.superblock().uuid_text())
    }
}
