//! A write-ahead log with group commit: eight committers append to one file, and share the flushes
//! that make their records durable.
//!
//! A kernel file system needs two flushes to make an append durable, one for the data and one for
//! the file's size. Here the size travels in the intent log, next to a checksum of the data, and
//! one flush covers both; committers that wait at the same time share it.
//!
//! ```sh
//! cargo run --package bedplate --example wal_group_commit
//! ```
#![forbid(unsafe_code)]

use std::sync::atomic::{AtomicU64, Ordering};

use bedplate::{
    AlignedBuf, FileSystem, FormatOptions, IoMode, MountOptions, OpenOptions, Volume,
    VolumeOptions, create_image,
};

const COMMITTERS: u64 = 8;
const COMMITS: u64 = 50;
/// Records are whole blocks, so that no two of them share one and every append is direct.
const RECORD: usize = 4096;

/// The log of a database: each append gets a place of its own, without a lock.
struct Wal {
    file: bedplate::File,
    end: AtomicU64,
}

impl Wal {
    /// Appends a record and returns once it is durable.
    fn commit(&self, record: &AlignedBuf) -> bedplate::Result<u64> {
        let place = self.end.fetch_add(record.len() as u64, Ordering::Relaxed);
        self.file.write_at(record, place)?;
        self.file.sync_data()?;
        Ok(place)
    }
}

/// Runs the example and checks what it shows.
///
/// # Errors
/// What the library or the system refuses.
pub fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dir = tempfile::tempdir()?;
    let image = dir.path().join("wal.img");
    create_image(&image, 64 << 20, false)?;
    let device = Volume::open(&image, &VolumeOptions::default())?.device();
    FileSystem::format(&device, None, &FormatOptions::default())?;
    let fs = FileSystem::mount(
        device,
        None,
        MountOptions { mode: IoMode::Concurrent, ..MountOptions::default() },
    )?;

    let wal = Wal { file: fs.open("/wal", &OpenOptions::create())?, end: AtomicU64::new(0) };
    let before = fs.info().log;
    std::thread::scope(|scope| {
        let committers: Vec<_> = (0..COMMITTERS)
            .map(|committer| {
                let wal = &wal;
                scope.spawn(move || {
                    let record = AlignedBuf::from_slice(
                        &[u8::try_from(committer + 1).expect("few committers"); RECORD],
                    );
                    (0..COMMITS).try_for_each(|_| wal.commit(&record).map(drop))
                })
            })
            .collect();
        committers
            .into_iter()
            .try_for_each(|committer| committer.join().expect("a committer does not panic"))
    })?;
    let after = fs.info().log;

    let commits = COMMITTERS * COMMITS;
    assert_eq!(wal.file.size(), commits * RECORD as u64, "every record has its place");
    let mut record = AlignedBuf::zeroed(RECORD);
    for place in (0..wal.file.size()).step_by(RECORD) {
        wal.file.read_at(&mut record, place)?;
        assert!(
            record[0] > 0 && record.iter().all(|&byte| byte == record[0]),
            "no record is torn or missing"
        );
    }
    let flushes = after.flushes - before.flushes;
    println!("{commits} durable commits by {COMMITTERS} committers took {flushes} flushes");
    drop(wal);
    fs.unmount()?;
    Ok(())
}
