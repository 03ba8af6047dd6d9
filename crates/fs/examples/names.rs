//! Measures names: threads that create, look up and remove files in directories of their own, in
//! the library on a device in memory, or below a directory of any file system.
//!
//! ```sh
//! cargo run --release --package bedplate-fs --example names -- 20000
//! cargo run --release --package bedplate-fs --example names -- 20000 /mnt/xfs /mnt/bedplate
//! ```
#![forbid(unsafe_code)]
#![expect(clippy::print_stdout, reason = "a measurement for people")]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{fs, thread};

use bedplate_block::{BlockDevice, MemoryDevice};
use bedplate_fs::{FileKind, FileSystem, FormatOptions, InodeNo, MountOptions, NewFile};

const THREADS: [usize; 3] = [1, 4, 16];
const DEVICE_BYTES: u64 = 2 << 30;

type Failed = Box<dyn std::error::Error + Send + Sync>;

/// Where names are made.
#[derive(Clone, Copy)]
enum Target<'a> {
    Library(&'a FileSystem),
    Directory(&'a Path),
}

/// The three parts of a run.
const PARTS: [&str; 3] = ["create", "stat", "unlink"];

fn main() -> Result<(), Failed> {
    let mut arguments = std::env::args().skip(1);
    let count = arguments.next().map_or(Ok(1000), |count| count.parse())?;
    let directories: Vec<PathBuf> = arguments.map(PathBuf::from).collect();
    let device: Arc<dyn BlockDevice> = MemoryDevice::new(DEVICE_BYTES);
    FileSystem::format(&device, None, &FormatOptions::default())?;
    let library = FileSystem::mount(device, None, MountOptions::default())?;
    let mut targets = vec![("library", Target::Library(&library))];
    targets.extend(
        directories
            .iter()
            .map(|dir| (dir.to_str().unwrap_or("directory"), Target::Directory(dir.as_path()))),
    );
    for threads in THREADS {
        for (name, target) in &targets {
            for part in PARTS {
                let took = run(*target, threads, count / threads, part)?;
                let rate = count as f64 / took.as_secs_f64();
                println!("{name}: {threads} threads, {part}: {rate:.0} a second");
            }
        }
    }
    library.unmount()?;
    Ok(())
}

fn run(target: Target<'_>, threads: usize, count: usize, part: &str) -> Result<Duration, Failed> {
    let begun = Instant::now();
    thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|thread| {
                scope.spawn(move || -> Result<(), Failed> {
                    let directory = format!("names-{threads}-{thread}");
                    match target {
                        Target::Library(fs) => in_library(fs, &directory, count, part),
                        Target::Directory(root) => below(&root.join(directory), count, part),
                    }
                })
            })
            .collect();
        workers.into_iter().try_for_each(|worker| worker.join().map_err(|_| "a thread failed")?)
    })?;
    Ok(begun.elapsed())
}

fn in_library(fs: &FileSystem, name: &str, count: usize, part: &str) -> Result<(), Failed> {
    let new = NewFile { mode: 0o644, uid: 0, gid: 0, umask: 0 };
    let dir = match fs.lookup(InodeNo::ROOT, name.as_bytes()) {
        Ok(attr) => attr.ino,
        Err(_) => fs.make(InodeNo::ROOT, name.as_bytes(), FileKind::Directory, new, 0)?.ino,
    };
    for number in 0..count {
        let name = format!("file{number}");
        match part {
            "create" => fs.make(dir, name.as_bytes(), FileKind::File, new, 0).map(|_attr| ())?,
            "stat" => fs.lookup(dir, name.as_bytes()).map(|_attr| ())?,
            _ => fs.unlink(dir, name.as_bytes())?,
        }
    }
    if part == "unlink" {
        fs.rmdir(InodeNo::ROOT, name.as_bytes())?;
    }
    Ok(())
}

fn below(dir: &Path, count: usize, part: &str) -> Result<(), Failed> {
    if part == "create" {
        fs::create_dir(dir)?;
    }
    for number in 0..count {
        let path = dir.join(format!("file{number}"));
        match part {
            "create" => drop(fs::File::create_new(path)?),
            "stat" => fs::metadata(path).map(|_attributes| ())?,
            _ => fs::remove_file(path)?,
        }
    }
    if part == "unlink" {
        fs::remove_dir(dir)?;
    }
    Ok(())
}
