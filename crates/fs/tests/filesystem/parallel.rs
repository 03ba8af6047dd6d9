//! Several threads on one file: locks, claims, queues, and a volume that fills up.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use bedplate_block::{BlockDevice, QueueOptions};
use bedplate_fs::{AllocateMode, ErrorKind, File, FileSystem, IoMode, OpenOptions, Queue};

use crate::common::assert_sound;
use crate::support::{Random, Skewed, device, format, mount_as};

/// Ends the companions of a test's workers, also when a worker failed.
struct Finish<'a>(&'a AtomicBool);

impl Drop for Finish<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

const THREADS: u64 = 4;
/// Not a multiple of any sector, so that neighbours share sectors and blocks.
const STRIPE: u64 = 3000;
const STRIPES: u64 = 120;

/// One thread's stripes of a shared file: what it wrote there.
struct Stripes {
    thread: u64,
    random: Random,
    bytes: Vec<Vec<u8>>,
}

impl Stripes {
    fn new(thread: u64, seed: u64) -> Self {
        Self {
            thread,
            random: Random::new(seed + thread),
            bytes: vec![Vec::new(); (STRIPES / THREADS) as usize],
        }
    }

    fn offset(&self, index: usize) -> u64 {
        (index as u64 * THREADS + self.thread) * STRIPE
    }

    fn write(&mut self, file: &File) {
        let index = self.random.below(STRIPES / THREADS) as usize;
        let len = 1 + self.random.below(STRIPE) as usize;
        let mut data = Skewed::new(len, 0);
        self.random.fill(data.bytes());
        file.write_at(data.bytes(), self.offset(index)).expect("there is room");
        let stripe = &mut self.bytes[index];
        if stripe.len() < len {
            stripe.resize(len, 0);
        }
        stripe[..len].copy_from_slice(data.bytes());
    }

    fn verify(&self, file: &File, index: usize) {
        let mut data = Skewed::new(STRIPE as usize, 0);
        let read = file.read_at(data.bytes(), self.offset(index)).expect("it reads");
        let expected = &self.bytes[index];
        assert!(
            read >= expected.len() && data.bytes()[..expected.len()] == expected[..],
            "stripe {index} of thread {} (S-20, S-31)",
            self.thread
        );
        assert!(data.bytes()[expected.len()..read].iter().all(|byte| *byte == 0), "S-9");
    }
}

fn modes() -> impl Iterator<Item = (IoMode, u32)> {
    IoMode::ALL.into_iter().zip([4096, 512, 4096, 16_384])
}

/// I-IO-2: neighbours that fill one block at once.
#[test]
fn s_31_neighbours_in_one_sector_do_not_harm_each_other() {
    for (mode, block) in modes() {
        let device = device(48 << 20, 512);
        format(&device, block);
        let fs = mount_as(&device, mode);
        let file = fs.open("/shared", &OpenOptions::create()).expect("it opens");
        thread::scope(|scope| {
            for thread in 0..THREADS {
                let file = &file;
                scope.spawn(move || {
                    let mut stripes = Stripes::new(thread, 77);
                    for step in 0..200 {
                        stripes.write(file);
                        let index = stripes.random.below(STRIPES / THREADS) as usize;
                        stripes.verify(file, index);
                        if step % 60 == 0 {
                            file.sync_data().expect("a sync succeeds");
                        }
                    }
                    (0..stripes.bytes.len()).for_each(|index| stripes.verify(file, index));
                });
            }
        });
        drop(file);
        fs.unmount().expect("it unmounts");
        assert_sound(&device);
    }
}

#[test]
fn s_29_s_30_the_mode_changes_under_load_and_no_write_is_lost() {
    let device = device(48 << 20, 512);
    format(&device, 4096);
    let fs = mount_as(&device, IoMode::Concurrent);
    let file = fs.open("/shared", &OpenOptions::create()).expect("it opens");
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let workers: Vec<_> = (0..THREADS)
            .map(|thread| {
                let file = &file;
                scope.spawn(move || {
                    let mut stripes = Stripes::new(thread, 5);
                    for _ in 0..300 {
                        stripes.write(file);
                        let index = stripes.random.below(STRIPES / THREADS) as usize;
                        stripes.verify(file, index);
                    }
                    (0..stripes.bytes.len()).for_each(|index| stripes.verify(file, index));
                })
            })
            .collect();
        scope.spawn(|| {
            // Every mode of the other open meets every mode of the file at least once.
            for round in (0..).take_while(|round| *round < 16 || !done.load(Ordering::Relaxed)) {
                let mode = Some(IoMode::ALL[round % 4]);
                let other = fs
                    .open("/shared", &OpenOptions { mode, ..OpenOptions::read_write() })
                    .expect("it opens twice");
                thread::yield_now();
                drop(other);
                fs.set_io_mode(file.ino(), Some(IoMode::ALL[round / 4 % 4]))
                    .expect("a live change");
            }
        });
        let _finish = Finish(&done);
        workers.into_iter().for_each(|worker| worker.join().expect("no byte is wrong"));
    });
    assert!(file.counters().mode_transitions > 0);
    drop(file);
    fs.unmount().expect("it unmounts");
    assert_sound(&device);
}

#[test]
fn s_32_appends_neither_overlap_nor_leave_gaps() {
    const RECORD: usize = 700;
    for (mode, block) in modes() {
        let device = device(48 << 20, 512);
        format(&device, block);
        let fs = mount_as(&device, mode);
        thread::scope(|scope| {
            for thread in 0..THREADS {
                let fs = &fs;
                scope.spawn(move || {
                    let file = fs
                        .open("/log", &OpenOptions { append: true, ..OpenOptions::create() })
                        .expect("it opens");
                    for record in 0..100u64 {
                        let byte = (thread * 100 + record) as u8;
                        let at = file.write_at(&[byte; RECORD], 0).expect("there is room");
                        assert_eq!(at % RECORD as u64, 0, "S-32");
                    }
                });
            }
        });
        let file = fs.open("/log", &OpenOptions::read_only()).expect("it opens");
        assert_eq!(file.size(), THREADS * 100 * RECORD as u64);
        let mut all = vec![0; file.size() as usize];
        assert_eq!(file.read_at(&mut all, 0).expect("it reads"), all.len());
        let mut firsts: Vec<u8> = all.chunks(RECORD).map(|record| record[0]).collect();
        assert!(
            all.chunks(RECORD).all(|record| record.iter().all(|byte| *byte == record[0])),
            "S-32"
        );
        firsts.sort_unstable();
        let mut expected: Vec<u8> = (0..THREADS * 100).map(|n| n as u8).collect();
        expected.sort_unstable();
        assert_eq!(firsts, expected);
        drop(file);
        fs.unmount().expect("it unmounts");
        assert_sound(&device);
    }
}

fn queue(fs: &FileSystem, depth_max: usize) -> Queue {
    Queue::new(fs, &QueueOptions { depth_max, buffers: depth_max, buffer_bytes: 8192 })
        .expect("a queue opens")
}

/// One thread's random page writes and reads through a queue, on pages that are its own.
fn queue_worker(fs: &FileSystem, file: &Arc<File>, thread: u64, pages: u64) {
    let mut queue = queue(fs, 16);
    let mut random = Random::new(thread + 40);
    let mut model = vec![0u8; pages as usize];
    let mut busy = vec![false; pages as usize];
    let mut out = Vec::new();
    for round in 0..60u64 {
        while queue.in_flight() < queue.depth_max() {
            let page = random.below(pages);
            if std::mem::replace(&mut busy[page as usize], true) {
                break;
            }
            let offset = (page * THREADS + thread) * 8192;
            let mut buf = queue.take_buffer().expect("as many as operations");
            if random.chance(2) {
                let byte = (round + 1) as u8;
                buf.fill(byte);
                model[page as usize] = byte;
                queue.write(file, buf, offset, page * 2).expect("there is a slot");
            } else {
                queue.read(file, buf, offset, page * 2 + 1).expect("there is a slot");
            }
        }
        if round % 20 == 0 && queue.in_flight() < queue.depth_max() {
            queue.sync_data(file, u64::MAX).expect("there is a slot");
        }
        queue.complete(1, &mut out).expect("it completes");
        for completion in out.drain(..) {
            let len = completion.result.expect("no operation fails");
            let Some(buf) = completion.buf else { continue };
            let (page, read) = ((completion.token / 2) as usize, completion.token % 2 == 1);
            let expected = model[page];
            assert!(
                !read || buf[..len].iter().all(|byte| *byte == expected),
                "page {page} of thread {thread}: {} instead of {expected}",
                buf[0]
            );
            busy[page] = false;
            queue.give_buffer(buf);
        }
    }
}

/// I-IO-1, I-QUE-1: I/O in flight while blocks leave the file and come back, from queues that wait
/// for each other's locks. Four queues on pages of one file, while another thread changes the file
/// behind them.
fn queues_under_change(device: &Arc<dyn BlockDevice>, mode: IoMode) {
    let fs = mount_as(device, mode);
    let file = Arc::new(fs.open("/pages", &OpenOptions::create()).expect("it opens"));
    let pages = 40;
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let workers: Vec<_> = (0..THREADS)
            .map(|thread| {
                let (fs, file) = (&fs, &file);
                scope.spawn(move || queue_worker(fs, file, thread, pages))
            })
            .collect();
        scope.spawn(|| {
            let end = pages * THREADS * 8192;
            while !done.load(Ordering::Relaxed) {
                file.allocate(AllocateMode::PunchHole, end + 100, 50_000).expect("it punches");
                file.set_size(end + 200_000).expect("it grows");
                file.allocate(AllocateMode::Preallocate { keep_size: true }, end, 100_000)
                    .expect("there is room");
                thread::yield_now();
            }
        });
        let _finish = Finish(&done);
        workers.into_iter().for_each(|worker| worker.join().expect("no page is wrong"));
    });
    drop(file);
    fs.remove("/pages").expect("it is removed");
    fs.unmount().expect("it unmounts");
    assert_sound(device);
}

#[test]
fn queues_in_every_mode_read_what_they_wrote_while_the_file_changes() {
    for (mode, block) in modes() {
        let device = device(64 << 20, 512);
        format(&device, block);
        queues_under_change(&device, mode);
    }
}

#[test]
fn queues_do_so_on_every_engine() {
    let directory = tempfile::tempdir().expect("there is a place for temporary files");
    for (name, engine) in
        [("uring", bedplate_block::Engine::Auto), ("threads", bedplate_block::Engine::Threads)]
    {
        let path = directory.path().join(name);
        bedplate_block::create_image(&path, 64 << 20, false).expect("an image is made");
        let device = bedplate_block::open(
            &path,
            &bedplate_block::DeviceOptions { engine, ..bedplate_block::DeviceOptions::default() },
        )
        .expect("it opens");
        format(&device, 4096);
        for mode in [IoMode::Concurrent, IoMode::Direct] {
            queues_under_change(&device, mode);
        }
    }
}

#[test]
fn completions_that_nobody_fetches_do_not_stop_a_writer() {
    for mode in [IoMode::Concurrent, IoMode::Direct] {
        let device = device(48 << 20, 512);
        format(&device, 4096);
        let fs = mount_as(&device, mode);
        let file = Arc::new(fs.open("/pages", &OpenOptions::create()).expect("it opens"));
        file.write_at(&[1; 65_536], 0).expect("there is room");
        let (mut first, mut second) = (queue(&fs, 4), queue(&fs, 4));
        let buf = first.take_buffer().expect("it has four");
        first.write(&file, buf, 0, 1).expect("there is a slot");
        first.submit().expect("it submits");
        let buf = second.take_buffer().expect("it has four");
        second.write(&file, buf, 4096, 2).expect("there is a slot");
        second.submit().expect("it submits");
        file.set_size(100).expect("the lock comes free without a look at the queues");
        file.set_size(65_536).expect("it grows");
        let mut out = Vec::new();
        assert_eq!(first.complete(1, &mut out).expect("it completes"), 1);
        assert_eq!(second.complete(1, &mut out).expect("it completes"), 1);
        assert!(out.iter().all(|completion| matches!(completion.result, Ok(8192))));
    }
}

#[test]
fn a_file_whose_last_handle_is_in_a_queue_is_closed_without_a_deadlock() {
    let device = device(48 << 20, 512);
    format(&device, 4096);
    let fs = mount_as(&device, IoMode::Concurrent);
    let create = |mode| {
        Arc::new(
            fs.open("/pages", &OpenOptions { mode: Some(mode), ..OpenOptions::create() })
                .expect("it opens"),
        )
    };
    let direct = create(IoMode::Direct);
    let concurrent = create(IoMode::Concurrent);
    concurrent.write_at(&[1; 65_536], 0).expect("there is room");
    assert_eq!(concurrent.effective_mode(), IoMode::Direct, "the stricter lock holds");
    let mut queue = queue(&fs, 4);
    for (token, file) in [(1, &direct), (2, &concurrent)] {
        let buf = queue.take_buffer().expect("it has four");
        queue.write(file, buf, token * 8192, token).expect("there is a slot");
    }
    drop(direct);
    let mut out = Vec::new();
    while out.len() < 2 {
        // Completing the first closes its file and serves the other one another way, which waits
        // for I/O in flight.
        queue.complete(1, &mut out).expect("it completes");
    }
    assert_eq!(concurrent.effective_mode(), IoMode::Concurrent);
}

#[test]
fn s_34_a_full_volume_says_so_stays_sound_and_recovers() {
    for (mode, block) in modes() {
        let device = device(40 << 20, 512);
        format(&device, block);
        let fs = mount_as(&device, mode);
        for round in 0..2 {
            let file = fs.open("/big", &OpenOptions::create()).expect("it opens");
            let chunk = vec![round + 1; 300_000];
            let mut size = 0;
            let refused = loop {
                match file.write_at(&chunk, size) {
                    Ok(_) => size += chunk.len() as u64,
                    Err(error) => break error,
                }
            };
            assert_eq!(refused.kind, ErrorKind::NoSpace, "{refused}");
            assert!(size > 20 << 20, "most of the volume was used: {size}");
            file.sync_data().expect("S-12: what was accepted finds its blocks");
            assert_eq!(
                file.allocate(AllocateMode::Preallocate { keep_size: true }, size, 20 << 20)
                    .expect_err("it is full")
                    .kind,
                ErrorKind::NoSpace
            );
            let mut found = vec![0; chunk.len()];
            file.read_at(&mut found, size - chunk.len() as u64).expect("it reads");
            assert!(found == chunk);
            drop(file);
            fs.remove("/big").expect("a full volume can still delete");
            let small = fs.open("/small", &OpenOptions::create()).expect("there is room again");
            small.write_at(&vec![9; 1 << 20], u64::from(round) << 20).expect("there is room again");
            small.sync_data().expect("a sync succeeds");
        }
        fs.unmount().expect("it unmounts");
        assert_sound(&device);
    }
}
