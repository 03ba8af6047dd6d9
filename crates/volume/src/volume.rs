//! A volume made of one device: the device itself.

use std::path::Path;
use std::sync::Arc;

use bedplate_block::{BlockDevice, DeviceOptions, MemoryDevice, Result};

use crate::{ErrorKind, Label};

/// How to open a volume.
#[derive(Debug, Clone, Default)]
pub struct VolumeOptions {
    /// How each of its devices is opened.
    pub device: DeviceOptions,
}

/// One linear address space over devices. Cheap to clone; the devices close with the last clone and
/// the last [`device`](Self::device).
#[derive(Debug, Clone)]
pub struct Volume {
    device: Arc<dyn BlockDevice>,
}

impl Volume {
    /// Opens the volume on a block device or an image file. A member of a group is no volume by
    /// itself: see [`Group`](crate::Group).
    ///
    /// # Errors
    /// Those of [`bedplate_block::open`]; `Unsupported` for a member of a group, which names the
    /// group.
    pub fn open(path: impl AsRef<Path>, options: &VolumeOptions) -> Result<Self> {
        let device = bedplate_block::open(path, &options.device)?;
        match Label::read(&*device) {
            Ok(label) => Err(member_alone(
                &*device,
                &format!("it is a member of the group {}; open the group", label.config.name),
            )),
            Err(error) if matches!(error.kind, ErrorKind::NewerFormat | ErrorKind::Divided) => {
                Err(member_alone(&*device, &error.message))
            }
            Err(_) => Ok(Self { device }),
        }
    }

    /// Makes a volume of `size_bytes` bytes in memory, sparse, gone with the process.
    #[must_use]
    pub fn memory(size_bytes: u64) -> Self {
        Self { device: MemoryDevice::new(size_bytes) }
    }

    /// Makes the volume that a device is by itself.
    #[must_use]
    pub fn over(device: Arc<dyn BlockDevice>) -> Self {
        Self { device }
    }

    /// Returns the volume as a block device: with one device that very device, with nothing in
    /// between.
    #[must_use]
    pub fn device(&self) -> Arc<dyn BlockDevice> {
        Arc::clone(&self.device)
    }
}

fn member_alone(device: &dyn BlockDevice, detail: &str) -> bedplate_block::Error {
    bedplate_block::Error {
        kind: bedplate_block::ErrorKind::Unsupported,
        operation: bedplate_block::Operation::Open,
        device: device.name().to_owned(),
        offset: None,
        detail: detail.to_owned(),
        errno: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn over_one_device_a_volume_is_that_device() {
        let device: Arc<dyn BlockDevice> = MemoryDevice::new(1 << 20);
        assert!(Arc::ptr_eq(&Volume::over(Arc::clone(&device)).device(), &device));
        assert_eq!(Volume::memory(1 << 30).device().size_bytes(), 1 << 30);
    }

    #[test]
    fn a_member_of_a_group_is_no_volume_by_itself() {
        let dir = tempfile::tempdir().unwrap();
        let paths: Vec<_> = (0..2).map(|n| dir.path().join(format!("m{n}"))).collect();
        paths.iter().for_each(|path| bedplate_block::create_image(path, 8 << 20, false).unwrap());
        let members = paths
            .iter()
            .map(|path| bedplate_block::open(path, &DeviceOptions::default()).unwrap())
            .collect();
        let data = crate::Arrangement {
            shape: crate::Shape::Mirror,
            unit_bytes: crate::UNIT_BYTES_DEFAULT,
            plexes: 2,
        };
        let name = "tank".to_owned();
        let new = crate::NewGroup {
            name,
            data,
            members,
            log_members: Vec::new(),
            spares: Vec::new(),
            region_bytes: None,
            reserve_bytes: 0,
            force: false,
        };
        crate::create(&new).unwrap();
        drop(new);
        let error = Volume::open(&paths[0], &VolumeOptions::default()).unwrap_err();
        assert!(
            error.kind == bedplate_block::ErrorKind::Unsupported
                && error.to_string().contains("group tank"),
            "{error}"
        );
    }

    #[test]
    fn a_volume_opens_with_the_options_of_its_device() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image");
        bedplate_block::create_image(&path, 1 << 20, false).unwrap();
        let options =
            VolumeOptions { device: DeviceOptions { read_only: true, ..DeviceOptions::default() } };
        let device = Volume::open(&path, &options).unwrap().device();
        assert!(device.geometry().read_only);
        assert_eq!(
            Volume::open(dir.path().join("none"), &options).unwrap_err().kind,
            bedplate_block::ErrorKind::NotFound
        );
    }
}
