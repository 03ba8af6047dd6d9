//! The intent log that a superblock asks for, on the volume or on a device of its own.

use std::sync::Arc;

use bedplate_block::BlockDevice;
use uuid::Uuid;

use crate::{Error, ErrorKind, Result};
use bedplate_store::{LogDeviceHead, LogParts, LogPlace, Superblock};

/// Finds the log the superblock asks for.
pub(crate) fn attach_log(
    device: &Arc<dyn BlockDevice>,
    log: Option<Arc<dyn BlockDevice>>,
    superblock: &Superblock,
) -> Result<LogParts> {
    let volume = Uuid::from_bytes(superblock.uuid);
    let place = LogPlace {
        separate: superblock.log_separate,
        start_byte: superblock.log.start,
        len_bytes: superblock.log.len,
    };
    let log = match (superblock.log_separate, log) {
        (false, None) => None,
        (false, Some(log)) => {
            return Err(Error::new(
                ErrorKind::Invalid,
                format!(
                    "{} has its intent log on itself: mount it without the log device {}",
                    device.name(),
                    log.name()
                ),
            ));
        }
        (true, None) => {
            return Err(Error::new(
                ErrorKind::NotFound,
                format!(
                    "{} has its intent log on a device of its own: name that device (-o log=PATH)",
                    device.name()
                ),
            ));
        }
        (true, Some(log)) => {
            match LogDeviceHead::read(&log)? {
                Some(head) if head.is_of(volume) => {}
                Some(head) => {
                    let (found, wanted) = (head.volume, volume);
                    let name = log.name();
                    return Err(Error::new(
                        ErrorKind::NotFound,
                        format!(
                            "{name} is the log of volume {found}, not of {wanted}: name the right \
                             device"
                        ),
                    ));
                }
                None => {
                    return Err(Error::new(
                        ErrorKind::NotFound,
                        format!("{} holds no intent log: name the right device", log.name()),
                    ));
                }
            }
            Some(log)
        }
    };
    Ok(LogParts { data: Arc::clone(device), log, volume, place })
}
