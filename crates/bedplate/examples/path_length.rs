//! Counts the instructions of one 8 KiB read, write or durable append: it carries out as many as it
//! is told and nothing else that depends on the number.
//!
//! The difference between two numbers, divided by that of the numbers, is what one call costs, the
//! same under every load. `cargo xtask path-length` counts so and compares with a budget; by hand:
//!
//! ```sh
//! cargo build --release --package bedplate --example path_length
//! for n in 1000 11000; do
//!     valgrind --tool=callgrind --callgrind-out-file=/dev/null target/release/examples/path_length write $n
//! done
//! ```
#![forbid(unsafe_code)]

use bedplate::{
    AlignedBuf, AllocateMode, FileSystem, FormatOptions, IoMode, MountOptions, OpenOptions,
};
use bedplate::{Volume, VolumeOptions, create_image};

const PAGE: usize = 8192;
const PAGES: u64 = 512;

/// The kinds of calls.
pub const KINDS: [&str; 3] = ["read", "write", "append"];

/// Carries out the calls that the arguments name, or a few of each kind when they name none.
///
/// # Errors
/// As [`run`]; also a number that is none.
pub fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let kind = arguments.next();
    let count = arguments.next().map_or(Ok(16), |count| count.parse())?;
    match &kind {
        Some(kind) => run(&[kind], count),
        None => run(&KINDS, count),
    }
}

/// Carries out `count` calls of each of `kinds`.
///
/// # Errors
/// What the library or the system refuses, and an unknown kind of call.
pub fn run(kinds: &[&str], count: u64) -> Result<(), Box<dyn std::error::Error>> {
    let dir = tempfile::tempdir()?;
    let image = dir.path().join("pages.img");
    create_image(&image, 256 << 20, false)?;
    let device = Volume::open(&image, &VolumeOptions::default())?.device();
    FileSystem::format(&device, None, &FormatOptions::default())?;
    let fs = FileSystem::mount(
        device,
        None,
        MountOptions { mode: IoMode::Concurrent, ..MountOptions::default() },
    )?;
    let file = fs.open("/table.db", &OpenOptions::create())?;
    file.allocate(AllocateMode::Preallocate { keep_size: false }, 0, PAGES * PAGE as u64)?;
    let mut page = AlignedBuf::zeroed(PAGE);
    page.fill(7);
    for number in 0..PAGES {
        file.write_at(&page, number * PAGE as u64)?;
    }
    file.sync_data()?;
    let log = fs.open("/redo.log", &OpenOptions::create())?;

    for kind in kinds {
        for number in 0..count {
            let at = number % PAGES * PAGE as u64;
            match *kind {
                "read" => drop(file.read_at(&mut page, at)?),
                "write" => drop(file.write_at(&page, at)?),
                "append" => {
                    log.write_at(&page, number * PAGE as u64)?;
                    log.sync_data()?;
                }
                other => {
                    return Err(format!(
                        "{other:?} is not a kind of call; the kinds are read, write and append"
                    )
                    .into());
                }
            }
        }
        println!("{count} calls of the kind {kind}");
    }
    drop((file, log));
    fs.unmount()?;
    Ok(())
}
