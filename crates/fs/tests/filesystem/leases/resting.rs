//! Files that are taken back again and again.

use super::*;

/// Appends so many odd pieces; returns how many there were in all.
fn append(file: &File, count: usize) -> usize {
    for _ in 0..count {
        file.write_at(b"odd piece", file.size()).unwrap();
    }
    count
}

/// Changes a file that a process reads by its lease a thousand times on the mount; returns how often
/// it was handed out again. It is not at the end, and the mount serves it.
fn times_handed_out(change: impl Fn(&File)) -> usize {
    let volume = Volume::new();
    let file = volume.filled("log", 2);
    let client = Client::attach(&volume.fs);
    let lease = file.lease().unwrap();
    assert_eq!(client.read(lease, 1), Ok(2));
    let handed_out = || volume.fs.lease_report().unwrap().files[0].handed_out;
    let mut times = 0;
    for _ in 0..1000 {
        change(&file);
        file.sync_data().unwrap();
        times += usize::from(handed_out());
    }
    assert!(!handed_out());
    assert_eq!(client.read(lease, 1), Err(Fallback::Revoked));
    assert_eq!(read(&file, 1), 2, "the mount serves it");
    drop(file);
    volume.end();
    times
}

/// S-303: it is not handed out again for each of them, and comes back once it is left alone.
#[test]
fn s_303_a_file_that_is_taken_back_all_the_time_rests_on_the_mount() {
    let times = times_handed_out(|file| file.write_at(b"odd piece", 5).map(drop).unwrap());
    assert!((10..100).contains(&times), "handed out {times} times");
}

/// S-303: a rollback journal is written so. Before, each of its pieces took the lease back, and went
/// to the device by itself.
#[test]
fn s_303_a_file_that_grows_in_odd_pieces_rests_at_once() {
    let times = times_handed_out(|file| {
        append(file, 1);
    });
    assert!(times <= 2, "handed out {times} times");
}

/// S-303.
#[test]
fn s_303_a_file_that_rested_is_handed_out_again() {
    let volume = Volume::synced_every(Duration::from_millis(50));
    let file = volume.filled("log", 2);
    let client = Client::attach(&volume.fs);
    let lease = file.lease().unwrap();
    append(&file, 300);
    let deadline = Instant::now() + Duration::from_secs(20);
    while client.read(lease, 1) != Ok(2) {
        assert!(Instant::now() < deadline, "S-303: it comes back");
        std::thread::sleep(Duration::from_millis(20));
    }
    drop(file);
    volume.end();
}

/// The byte that fills a block.
fn of(block: usize) -> u8 {
    (block as u8).wrapping_add(1)
}

/// A file that a process makes grow by small writes which nothing syncs, until it is refused a tail;
/// its opens are as those of a mount. Returns how many blocks the file has.
fn loaded(volume: &Volume) -> (File, Client, Lease, usize) {
    drop(volume.filled("f", 2));
    let options =
        OpenOptions { delay_writes: true, read_windows: true, ..OpenOptions::read_write() };
    let file = volume.fs.open("f", &options).unwrap();
    let client = Client::attach(&volume.fs);
    let lease = file.lease().unwrap();
    let block = load(&file, &client, lease);
    (file, client, lease, block)
}

/// Makes a file grow until that is refused; returns how many blocks it has.
fn load(file: &File, client: &Client, lease: Lease) -> usize {
    let mut block = file.size() as usize / BLOCK;
    let end = block + 1000;
    while client.grow(lease, block, of(block)).is_ok() || client.ask(file).is_ok() {
        block = client.own_end(lease).unwrap();
        assert!(block < end, "S-379: the load is noticed");
    }
    block
}

/// S-379: pages of a load wait in memory and are read ahead, as without a lease: each was a write
/// of the device, and a read.
#[test]
fn s_379_i_lea_10_a_file_that_is_loaded_rests_on_the_mount() {
    let volume = Volume::new();
    let (file, client, lease, begin) = loaded(&volume);
    assert!(begin >= 64, "S-379: not before the first {begin} blocks");
    assert_eq!(client.read(lease, 1), Err(Fallback::Revoked), "I-LEA-10");
    assert_eq!(client.ask(&file), Err(Reason::Tail), "it goes on");
    let before = volume.device.counters();
    let end = begin + 512;
    (begin..end).for_each(|block| write(&file, block, of(block)));
    (0..end).for_each(|block| assert_eq!(read(&file, block), of(block)));
    let after = volume.device.counters();
    let (reads, writes) = (after.reads - before.reads, after.writes - before.writes);
    assert!(reads <= 60 && writes <= 20, "{reads} reads and {writes} writes of the device");
    assert_eq!(client.read(lease, 1), Err(Fallback::Revoked), "I-LEA-10: some of it waits");
    file.sync_data().unwrap();
    assert_eq!(client.read(lease, 1), Err(Fallback::Revoked), "it rests on");
    drop(file);
    volume.end();
}

/// S-379: once nothing streams any more the lease comes back, with all that waited.
#[test]
fn s_379_the_lease_comes_back_after_the_load() {
    let volume = Volume::synced_every(Duration::from_millis(50));
    let (file, client, lease, begin) = loaded(&volume);
    let end = begin + 100;
    (begin..end).for_each(|block| write(&file, block, of(block)));
    let deadline = Instant::now() + Duration::from_secs(20);
    while client.read(lease, end - 1) != Ok(of(end - 1)) {
        assert!(Instant::now() < deadline, "S-379: it comes back");
        std::thread::sleep(Duration::from_millis(20));
    }
    (0..end).for_each(|block| assert_eq!(client.read(lease, block), Ok(of(block))));
    client.write(lease, 1, 200).unwrap();
    assert_eq!(read(&file, 1), 200);
    drop(file);
    volume.end();
}

/// I-LEA-10: what the mount had read ahead of a file that rested is not what it reads of it when it
/// rests again: a process wrote there in between.
#[test]
fn i_lea_10_no_window_outlives_a_rest() {
    let volume = Volume::new();
    let (file, client, lease, _) = loaded(&volume);
    (0..40).for_each(|block| assert_eq!(read(&file, block), of(block)));
    file.lease_odd_writes(client.slots.client()).unwrap();
    client.write(lease, 41, 200).expect("it is handed out");
    write(&file, 0, of(0));
    load(&file, &client, lease);
    assert_eq!(client.read(lease, 1), Err(Fallback::Revoked), "it rests again");
    assert_eq!(read(&file, 40), of(40));
    assert_eq!(read(&file, 41), 200, "I-LEA-10");
    drop(file);
    volume.end();
}

/// S-379: PostgreSQL closes the table that it has loaded, and opens it again to read it.
#[test]
fn s_379_a_file_that_is_loaded_rests_on_over_a_close() {
    let volume = Volume::new();
    let (file, client, ..) = loaded(&volume);
    drop(file);
    let options = OpenOptions { read_windows: true, ..OpenOptions::read_write() };
    let file = volume.fs.open("f", &options).unwrap();
    let lease = file.lease().unwrap();
    assert_eq!(client.read(lease, 1), Err(Fallback::Revoked));
    let before = volume.device.counters().reads;
    let blocks = file.size() as usize / BLOCK;
    (0..blocks).for_each(|block| assert_eq!(read(&file, block), of(block)));
    let reads = volume.device.counters().reads - before;
    assert!(reads <= 30, "{reads} reads of the device");
    drop(file);
    volume.end();
}

/// S-382: PostgreSQL names pages before it reads them, and the kernel keeps some: from then on each
/// page that it read was a read of the device.
#[test]
fn s_382_a_file_that_stays_on_the_mount_is_as_without_a_lease() {
    let volume = Volume::new();
    drop(volume.filled("f", 200));
    let options =
        OpenOptions { delay_writes: true, read_windows: true, ..OpenOptions::read_write() };
    let file = volume.fs.open("f", &options).unwrap();
    let client = Client::attach(&volume.fs);
    let lease = file.lease().unwrap();
    client.write(lease, 100, 7).unwrap();
    file.suspend_lease();
    let before = volume.device.counters();
    (200..400).for_each(|block| write(&file, block, of(block)));
    assert_eq!(client.read(lease, 1), Err(Fallback::Revoked));
    let seen = |block| if block == 100 { 7 } else { of(block) };
    (0..400).for_each(|block| assert_eq!(read(&file, block), seen(block)));
    let after = volume.device.counters();
    let (reads, writes) = (after.reads - before.reads, after.writes - before.writes);
    assert!(reads <= 60 && writes <= 10, "{reads} reads and {writes} writes of the device");
    drop(file);
    let file = volume.fs.open("f", &options).unwrap();
    let before = volume.device.counters().reads;
    (0..400).for_each(|block| assert_eq!(read(&file, block), seen(block)));
    let reads = volume.device.counters().reads - before;
    assert!(reads <= 60, "{reads} reads of the device");
    assert_eq!(client.read(file.lease().unwrap(), 100), Ok(7), "a new lease");
    drop(file);
    volume.end();
}

/// S-380: what is synced as it grows, and what grows by large writes, keeps its lease.
#[test]
fn s_380_a_log_that_is_synced_is_no_load() {
    let volume = Volume::new();
    let file = volume.filled("f", 2);
    let client = Client::attach(&volume.fs);
    let lease = file.lease().unwrap();
    client.ask(&file).unwrap();
    for block in 2..500 {
        if client.grow(lease, block, of(block)).is_err() {
            client.ask(&file).expect("S-380: it is given a tail");
            client.grow(lease, block, of(block)).unwrap();
        }
        if block % 10 == 0 {
            file.sync_data().unwrap();
        }
    }
    assert_eq!(client.read(lease, 499), Ok(of(499)));
    drop(file);
    volume.end();
}
