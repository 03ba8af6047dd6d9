//! The device of a conversion: opened for this process alone, and the volume on it looked at.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bedplate_block::{BlockDevice, DeviceOptions, InPlaceHeader, show_in_place};
use bedplate_fs::FileSystem;

use crate::error::{Error, ErrorKind, Result};

/// How long a device may take to be free again after an unmount.
const FREE_WITHIN: Duration = Duration::from_secs(20);

/// Opens a device for writing.
pub(crate) fn open(path: &Path) -> Result<Arc<dyn BlockDevice>> {
    Ok(bedplate_block::open(path, &DeviceOptions::default())?)
}

/// Tries again as long as a device is busy: a loop device lets go of an image a moment after it was
/// unmounted.
pub(crate) fn when_free<T>(path: &Path, mut attempt: impl FnMut() -> Result<T>) -> Result<T> {
    let started = Instant::now();
    loop {
        let result = attempt();
        let is_busy = result.as_ref().is_err_and(|error| error.kind == ErrorKind::Busy);
        if !is_busy || started.elapsed() > FREE_WITHIN || !path.exists() {
            return result;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Returns an identity as people read it.
pub(crate) fn uuid_text(uuid: [u8; 16]) -> String {
    let hex: String = uuid.iter().map(|byte| format!("{byte:02x}")).collect();
    [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
}

/// Refuses to commit a volume that is not sound.
pub(crate) fn verify(device: &Arc<dyn BlockDevice>, header: &InPlaceHeader) -> Result<()> {
    let name = bedplate_block::in_place_path(Path::new(device.name())).display().to_string();
    let shown = show_in_place(name, device, header);
    let report = FileSystem::check(&shown, None, false)?;
    match report.findings.first() {
        None => Ok(()),
        Some(finding) => Err(Error::new(
            ErrorKind::Damaged,
            format!(
                "{}: the volume that was made of it is not sound ({}): run 'bedplate convert --abandon \
                 {0}', then convert it again",
                device.name(),
                finding.message
            ),
        )),
    }
}
