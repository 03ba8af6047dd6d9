//! A store of pages in ten lines: make a volume, write a page, make it durable, read it back after
//! everything was closed.
//!
//! ```sh
//! cargo run --package bedplate --example ten_line_store
//! ```
#![forbid(unsafe_code)]

use bedplate::{
    AlignedBuf, FileSystem, FormatOptions, IoMode, MountOptions, OpenOptions, Volume,
    VolumeOptions, create_image,
};

const PAGE: usize = 8192;

/// Runs the example and checks what it shows.
///
/// # Errors
/// What the library or the system refuses.
pub fn main() -> Result<(), Box<dyn std::error::Error>> {
    // An image file stands for the device here; a block device is opened the same way.
    let dir = tempfile::tempdir()?;
    let image = dir.path().join("store.img");
    create_image(&image, 64 << 20, false)?;

    // Format once. `mount` takes the device over, recovers what a crash left, and is ready.
    let device = Volume::open(&image, &VolumeOptions::default())?.device();
    FileSystem::format(&device, None, &FormatOptions::default())?;
    let options = MountOptions { mode: IoMode::Concurrent, ..MountOptions::default() };
    let fs = FileSystem::mount(device, None, options.clone())?;

    // A file takes `&self` everywhere: any number of threads may use it at once. An aligned buffer
    // goes to the device without a copy.
    let pages = fs.open("/pages.db", &OpenOptions::create())?;
    pages.write_at(&AlignedBuf::from_slice(&[7; PAGE]), 0)?;
    pages.sync_data()?; // One flush: the page and the file's new size are durable.
    drop(pages);
    fs.unmount()?;

    // Another day: the page is there.
    let fs = FileSystem::mount(
        Volume::open(&image, &VolumeOptions::default())?.device(),
        None,
        options,
    )?;
    let mut page = AlignedBuf::zeroed(PAGE);
    let read = fs.open("/pages.db", &OpenOptions::read_only())?.read_at(&mut page, 0)?;
    assert!(
        read == PAGE && page.iter().all(|&byte| byte == 7),
        "the page came back as it was written"
    );
    fs.unmount()?;

    println!("one page of {PAGE} bytes, written, closed and read back");
    Ok(())
}
