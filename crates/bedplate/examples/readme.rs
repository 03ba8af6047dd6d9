//! The example of the README, word for word: an image that is made once, formatted, and opened
//! again.
//!
//! ```sh
//! cargo run --package bedplate --example readme
//! ```
#![forbid(unsafe_code)]

use bedplate::{
    AlignedBuf, FileSystem, FormatOptions, IoMode, MountOptions, OpenOptions, Volume,
    VolumeOptions, create_image,
};

/// Runs the example in the working directory, where it leaves `disk.img`.
///
/// # Errors
/// What the library or the system refuses.
pub fn main() -> Result<(), Box<dyn std::error::Error>> {
    let first = !std::fs::exists("disk.img")?;
    if first {
        create_image("disk.img", 1 << 30, false)?; // sparse: takes space as it is written
    }
    let device = Volume::open("disk.img", &VolumeOptions::default())?.device();
    if first {
        FileSystem::format(&device, None, &FormatOptions::default())?;
    }
    let options = MountOptions { mode: IoMode::Concurrent, ..Default::default() };
    let fs = FileSystem::mount(device, None, options)?;
    let pages = fs.open("/pages.db", &OpenOptions::create())?;
    pages.write_at(&AlignedBuf::from_slice(&[7; 8192]), 0)?; // &self: from any number of threads at once
    pages.sync_data()?; // one flush: the page and the file's new size are durable
    drop(pages);
    Ok(fs.unmount()?)
}
