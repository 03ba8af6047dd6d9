//! Many threads write pages of one file at once, as a database's page cleaners do, and the counters
//! prove that nothing stood in their way.
//!
//! In `concurrent` mode no lock is held between a thread and the device: the file system trusts the
//! program to order its own writes, as databases do. Preallocating first keeps the file in one
//! piece, and writing it once leaves nothing to allocate later.
//!
//! ```sh
//! cargo run --package bedplate --example page_writers
//! ```
#![forbid(unsafe_code)]

use std::sync::Arc;

use bedplate::{
    AlignedBuf, AllocateMode, File, FileSystem, FormatOptions, IoMode, MountOptions, OpenOptions,
    Queue, QueueOptions,
};
use bedplate::{Volume, VolumeOptions, create_image};

const THREADS: u64 = 8;
const PAGE: usize = 8192;
const PAGES: u64 = 2048;

/// Fills the pages that belong to one thread: every eighth, one positioned call each.
fn write_my_pages(file: &File, thread: u64) -> bedplate::Result<()> {
    let mut page = AlignedBuf::zeroed(PAGE);
    for number in (thread..PAGES).step_by(usize::try_from(THREADS).expect("few threads")) {
        page.fill(u8::try_from(number % 251).expect("below 251"));
        page[..8].copy_from_slice(&number.to_le_bytes());
        file.write_at(&page, number * PAGE as u64)?;
    }
    Ok(())
}

/// Reads all pages back through a queue, 32 in flight, and checks them.
fn check_pages(fs: &FileSystem, file: &Arc<File>) -> bedplate::Result<()> {
    let mut queue =
        Queue::new(fs, &QueueOptions { depth_max: 32, buffers: 32, buffer_bytes: PAGE })?;
    let (mut next, mut checked, mut done) = (0, 0, Vec::new());
    while checked < PAGES {
        while next < PAGES
            && let Some(buffer) = queue.take_buffer()
        {
            queue
                .read(file, buffer, next * PAGE as u64, next)
                .expect("there are as many buffers as places");
            next += 1;
        }
        queue.complete(1, &mut done)?;
        for completion in done.drain(..) {
            completion.result?;
            let page = completion.buf.expect("a read hands its buffer back");
            assert_eq!(
                page[..8],
                completion.token.to_le_bytes(),
                "every page is the one its writer wrote"
            );
            queue.give_buffer(page);
            checked += 1;
        }
    }
    Ok(())
}

/// Runs the example and checks what it shows.
///
/// # Errors
/// What the library or the system refuses.
pub fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dir = tempfile::tempdir()?;
    let image = dir.path().join("pages.img");
    create_image(&image, 64 << 20, false)?;
    let device = Volume::open(&image, &VolumeOptions::default())?.device();
    FileSystem::format(&device, None, &FormatOptions::default())?;
    let fs = FileSystem::mount(
        device,
        None,
        MountOptions { mode: IoMode::Concurrent, ..MountOptions::default() },
    )?;

    let file = Arc::new(fs.open("/table.db", &OpenOptions::create())?);
    file.allocate(AllocateMode::Preallocate { keep_size: false }, 0, PAGES * PAGE as u64)?;
    for round in 1..=2 {
        let before = file.counters();
        std::thread::scope(|scope| {
            let writers: Vec<_> = (0..THREADS)
                .map(|thread| {
                    scope.spawn({
                        let file = &file;
                        move || write_my_pages(file, thread)
                    })
                })
                .collect();
            writers
                .into_iter()
                .try_for_each(|writer| writer.join().expect("a writer does not panic"))
        })?;
        file.sync_data()?;
        let after = file.counters();
        let (writes, direct) = (after.writes - before.writes, after.direct - before.direct);
        println!(
            "round {round}: {writes} pages by {THREADS} threads, {direct} of them direct, {} \
             extents",
            file.extents()?.len()
        );
    }
    check_pages(&fs, &file)?;
    assert_eq!(
        file.counters().misaligned,
        0,
        "whole pages from aligned buffers need no bounce buffer"
    );
    drop(file);
    fs.unmount()?;
    Ok(())
}
