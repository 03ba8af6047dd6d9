//! Devices that need root, through the one suite of promises.

use std::path::Path;
use std::sync::Arc;

use bedplate_block::{BlockDevice, DeviceOptions, Result, create_image, open};

use crate::alone;
use crate::conformance::keeps_all_promises;
use crate::image::Image;
use crate::machine::{Loop, Mount};

const SIZE: u64 = 8 << 20;

fn writing(path: &Path) -> Result<Arc<dyn BlockDevice>> {
    open(path, &DeviceOptions::default())
}

#[test]
fn loop_devices_keep_all_promises() {
    let _alone = alone();
    let image = Image::new(SIZE);
    let Some(disk) = Loop::attach(&image.path) else { return };
    for engine in [bedplate_block::Engine::Auto, bedplate_block::Engine::Threads] {
        let options = DeviceOptions { engine, ..DeviceOptions::default() };
        keeps_all_promises(&|| open(&disk.path, &options).unwrap());
    }
}

#[test]
fn a_file_system_without_direct_io_gives_a_buffered_device_that_says_so() {
    let _alone = alone();
    let Some(mount) = Mount::new("ramfs", "mode=0700", "none") else { return };
    let path = mount.path().join("image");
    create_image(&path, SIZE, false).unwrap();
    let make = || -> Arc<dyn BlockDevice> { writing(&path).unwrap() };
    let report = make().engine();
    assert!(report.fallback.as_deref().is_some_and(|reason| reason.contains("O_DIRECT")), "{report:?}");
    keeps_all_promises(&make);
}
