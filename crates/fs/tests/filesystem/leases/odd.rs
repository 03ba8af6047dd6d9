//! Writes of parts of sectors under leases.

use super::*;

/// S-310, I-LEA-7: a write through the mount does not come between what a process reads of a sector
/// and what it writes: it waits, and ends the process's right.
#[test]
fn s_310_a_write_through_the_mount_waits_for_an_odd_one_under_a_lease() {
    let volume = Volume::new();
    let file = Arc::new(volume.filled("f", 4));
    let client = Client::attach(&volume.fs);
    let lease = file.lease().unwrap();
    assert_eq!(client.begin_odd(lease, 100, 24), Err(Fallback::Unaligned), "it has no right");
    assert_eq!(file.lease_odd_writes(99), Err(Reason::Request), "no client");
    file.lease_odd_writes(client.slots.client()).unwrap();
    let at = client.begin_odd(lease, 100, 24).unwrap();
    let mut sector = AlignedBuf::zeroed(512);
    client.device.read_exact_at(&mut sector, at).unwrap();
    sector[100..124].fill(7);
    let writing = {
        let file = Arc::clone(&file);
        std::thread::spawn(move || write(&file, 0, 9))
    };
    let deadline = Instant::now() + Duration::from_secs(10);
    while volume.fs.lease_report().unwrap().waits.is_empty() && !writing.is_finished() {
        assert!(Instant::now() < deadline, "S-211: the wait is told of");
        std::thread::sleep(Duration::from_millis(5));
    }
    client.device.write_all_at(&sector, at).unwrap();
    client.end(lease, Direction::Write);
    writing.join().unwrap();
    assert_eq!(read(&file, 0), 9, "S-310: no byte of the later write is lost");
    assert_eq!(client.begin_odd(lease, 100, 24), Err(Fallback::Unaligned), "the right has ended");
    client.write(lease, 1, 10).unwrap();
    assert_eq!(read(&file, 1), 10);
    drop(file);
    volume.end();
}

/// S-310: one process at a time; what it wrote odd a checkpoint keeps, and odd writes through the
/// mount, and growth, take the right from none.
#[test]
fn s_310_the_right_to_odd_writes_goes_from_one_process_to_another() {
    let volume = Volume::new();
    let file = volume.filled("f", 4);
    let (first, second) = (Client::attach(&volume.fs), Client::attach(&volume.fs));
    let lease = file.lease().unwrap();
    file.lease_odd_writes(first.slots.client()).unwrap();
    first.write_odd(lease, 10, 70).unwrap();
    assert_eq!(second.write(lease, 1, 71), Err(Fallback::Forbidden), "S-310");
    assert_eq!(second.read(lease, 1), Ok(2));
    file.write_at(&[72], 11).unwrap();
    file.sync_data().unwrap();
    file.write_at(&[73], 20_000).unwrap();
    file.sync_data().unwrap();
    first.write_odd(lease, 12, 74).unwrap();
    file.lease_odd_writes(second.slots.client()).unwrap();
    assert_eq!(first.begin_odd(lease, 10, 1), Err(Fallback::Unaligned));
    assert_eq!(first.write(lease, 1, 71), Err(Fallback::Forbidden), "S-310");
    second.write_odd(lease, 13, 75).unwrap();
    volume.fs.create_checkpoint("before", &CheckpointOptions::default()).unwrap();
    assert!(refused(second.write_odd(lease, 13, 76)), "S-172");
    let head = |file: &File| {
        let mut buf = [0; 16];
        assert_eq!(file.read_at(&mut buf, 0).unwrap(), 16);
        buf[9..15].to_vec()
    };
    assert_eq!(head(&file), [1, 70, 72, 74, 75, 1]);
    file.write_at(&[77], 13).unwrap();
    file.sync_data().unwrap();
    let past = volume.fs.open("/.checkpoints/before/f", &OpenOptions::read_only()).unwrap();
    assert_eq!(
        (head(&past), head(&file)),
        (vec![1, 70, 72, 74, 75, 1], vec![1, 70, 72, 74, 77, 1])
    );
    drop((past, file));
    volume.end();
}

/// S-311: a process that ended with the right holds nothing up, and what it wrote is there.
#[test]
fn s_311_the_right_of_a_process_that_ended_is_given_to_others() {
    let volume = Volume::new();
    let file = volume.filled("f", 4);
    let (first, second) = (Client::attach(&volume.fs), Client::attach(&volume.fs));
    let lease = file.lease().unwrap();
    file.lease_odd_writes(first.slots.client()).unwrap();
    first.write_odd(lease, 10, 70).unwrap();
    first.begin_odd(lease, 11, 1).unwrap();
    first.alive.store(false, SeqCst);
    volume.fs.lease_detach(&first.client);
    assert_eq!(file.lease_odd_writes(first.slots.client()), Err(Reason::Request));
    file.lease_odd_writes(second.slots.client()).unwrap();
    second.write_odd(lease, 12, 71).unwrap();
    let mut buf = [0; 4];
    file.read_at(&mut buf, 9).unwrap();
    assert_eq!(buf, [1, 70, 1, 71], "S-311");
    drop(file);
    volume.end();
}
