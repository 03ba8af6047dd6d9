//! A volume made of one device: the device itself.

use std::path::Path;
use std::sync::Arc;

use block::{BlockDevice, DeviceOptions, MemoryDevice, Result};

/// How to open a volume.
#[derive(Debug, Clone, Default)]
pub struct VolumeOptions {
    /// How each of its devices is opened.
    pub device: DeviceOptions,
}

/// One linear address space over devices. Cheap to clone; the devices close with the last clone and the last [`device`](Self::device).
#[derive(Debug, Clone)]
pub struct Volume {
    device: Arc<dyn BlockDevice>,
}

impl Volume {
    /// Opens the volume on a block device or an image file.
    ///
    /// # Errors
    /// Those of [`block::open`].
    pub fn open(path: impl AsRef<Path>, options: &VolumeOptions) -> Result<Self> {
        Ok(Self { device: block::open(path, &options.device)? })
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

    /// Returns the volume as a block device: with one device that very device, with nothing in between.
    #[must_use]
    pub fn device(&self) -> Arc<dyn BlockDevice> {
        Arc::clone(&self.device)
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
    fn a_volume_opens_with_the_options_of_its_device() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image");
        block::create_image(&path, 1 << 20, false).unwrap();
        let options = VolumeOptions { device: DeviceOptions { read_only: true, ..DeviceOptions::default() } };
        let device = Volume::open(&path, &options).unwrap().device();
        assert!(device.geometry().read_only);
        assert_eq!(Volume::open(dir.path().join("none"), &options).unwrap_err().kind, block::ErrorKind::NotFound);
    }
}
