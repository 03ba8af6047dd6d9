//! What a process writes over a file that rests on the mount, in memory that both share.

use bedplate_block::QueueOptions;
use bedplate_fs::{CloneSource, Queue};

use super::*;

const BLOCKS: usize = 64;

impl Client {
    /// Asks for a buffer for writes over a file that go on at a block.
    fn stream(&self, file: &File, block: usize) -> Result<(), Reason> {
        let (offset, len) = ((block * BLOCK) as u64, BLOCK as u64);
        file.lease_appends(self.slots.client(), offset, len).map(drop)
    }

    /// Writes over a block, without asking for a buffer.
    fn overwrite(&self, lease: Lease, block: usize, byte: u8) -> bool {
        let Some(room) = self.slots.overwrite_room(lease) else { return false };
        let (place, len) = ((block * BLOCK) as u64, BLOCK as u64);
        if !room.allows(place, len) || room.room < len {
            return false;
        }
        self.slots.put_overwrite(&room, 0, &[byte; BLOCK]);
        self.slots.touch(lease.entry);
        self.slots.overwrite(&room, place, len)
    }
}

fn options() -> OpenOptions {
    OpenOptions { delay_writes: true, ..OpenOptions::read_write() }
}

/// A file whose blocks are all written and its own, and a process that writes over it.
fn streamed(volume: &Volume) -> (File, Client, Lease) {
    drop(volume.filled("f", BLOCKS));
    let file = volume.fs.open("f", &options()).unwrap();
    let client = Client::attach(&volume.fs);
    let lease = file.lease().unwrap();
    client.write(lease, 0, 100).expect("it is handed out");
    client.stream(&file, 1).unwrap();
    (file, client, lease)
}

/// S-516: what a process has written over a file it finds again, and so does everything else, at once.
#[test]
fn s_516_what_a_process_writes_over_all_see() {
    let volume = Volume::new();
    let (file, client, lease) = streamed(&volume);
    assert_eq!(client.read(lease, 1), Err(Fallback::Revoked), "S-516: the file rests");
    for block in 1..40 {
        assert!(client.overwrite(lease, block, 100 + block as u8));
        assert_eq!(read(&file, block), 100 + block as u8, "S-516: block {block}");
    }
    assert!(client.overwrite(lease, 3, 7) && client.overwrite(lease, 3, 8));
    assert_eq!([read(&file, 3), read(&file, 4), read(&file, 50)], [8, 104, 51], "S-516: the last");
    assert!(!client.overwrite(lease, 0, 1), "before where it was asked for");
    assert!(!client.overwrite(lease, BLOCKS, 1), "S-516: behind the end");
    assert_eq!(file.size(), (BLOCKS * BLOCK) as u64);
    drop(file);
    volume.end();
}

/// S-516, I-LEA-13: of two writes the later one stays, whichever way each of them goes.
#[test]
fn s_516_i_lea_13_writes_of_both_ways_stay_in_order() {
    let volume = Volume::new();
    let (file, client, lease) = streamed(&volume);
    let other = volume.fs.open("f", &OpenOptions::read_write()).unwrap();
    for (turn, file) in [&file, &other, &file, &other].into_iter().enumerate() {
        let byte = 10 * turn as u8;
        assert!(client.overwrite(lease, 5, byte + 1) && client.overwrite(lease, 6, byte + 1));
        write(file, 5, byte + 2);
        assert_eq!([read(file, 5), read(file, 6)], [byte + 2, byte + 1], "S-516: turn {turn}");
        assert!(client.overwrite(lease, 5, byte + 3), "it has kept its buffer");
        file.write_at(&[byte + 4; 100], (6 * BLOCK) as u64).unwrap();
        assert!(client.overwrite(lease, 6, byte + 5));
        assert_eq!([read(file, 5), read(file, 6)], [byte + 3, byte + 5], "S-516: turn {turn}");
    }
    // Out of order, and so many that pieces that wait are written in between.
    for block in (1..BLOCKS).rev() {
        if !client.overwrite(lease, block, 200) {
            client.stream(&file, 1).unwrap();
            assert!(client.overwrite(lease, block, 200));
        }
        if block % 3 == 0 {
            write(&other, block, 201);
        }
    }
    for block in 1..BLOCKS {
        assert_eq!(read(&file, block), 200 + u8::from(block % 3 == 0), "S-516: block {block}");
    }
    drop((file, other));
    volume.end();
}

/// S-516, I-LEA-13: so does what goes through a queue, which asks the device by itself.
#[test]
fn s_516_i_lea_13_a_queue_finds_and_follows_what_was_written_over() {
    let volume = Volume::new();
    let (file, client, lease) = streamed(&volume);
    let file = Arc::new(file);
    let mut queue = Queue::new(&volume.fs, &QueueOptions::default()).unwrap();
    let complete = |queue: &mut Queue| {
        let mut done = Vec::new();
        queue.complete(1, &mut done).unwrap();
        let done = done.pop().unwrap();
        done.result.unwrap();
        done.buf.unwrap()
    };
    for block in 5..9 {
        let (at, byte) = ((block * BLOCK) as u64, 100 + block as u8);
        assert!(client.overwrite(lease, block, byte));
        queue.read(&file, aligned(0), at, 1).unwrap();
        assert_eq!(complete(&mut queue)[..], [byte; BLOCK], "S-516: block {block}");
        assert!(client.overwrite(lease, block, 1));
        queue.write(&file, aligned(byte + 50), at, 2).unwrap();
        complete(&mut queue);
        assert_eq!(read(&file, block), byte + 50, "S-516: the queue's write came later");
    }
    drop((queue, file));
    volume.end();
}

/// S-516: a full buffer is taken when the process asks again, from where its writes go on.
#[test]
fn s_516_writes_go_on_in_the_next_buffer() {
    let volume = Volume::new();
    let (file, client, lease) = streamed(&volume);
    let before = volume.device.counters().writes;
    let mut asked = 0;
    for round in 0..8 {
        for block in 1..BLOCKS {
            if !client.overwrite(lease, block, round) {
                client.stream(&file, block).unwrap();
                file.lease_appends_given();
                asked += 1;
                assert!(client.overwrite(lease, block, round));
            }
        }
        client.stream(&file, 1).unwrap();
    }
    (1..BLOCKS).for_each(|block| assert_eq!(read(&file, block), 7));
    let writes = volume.device.counters().writes - before;
    assert!(asked <= 16 && writes <= 16, "S-516: {asked} buffers, {writes} writes of the device");
    // What is appended goes on beside it.
    let mut end = file.size();
    for round in 0..3 {
        file.lease_appends(client.slots.client(), end, 10).unwrap();
        let room = client.slots.append_room(lease).unwrap();
        client.slots.put_appended(&room, 0, &[9; 1000]);
        assert!(client.slots.append(&room, 1000));
        end += 1000;
        assert!(client.overwrite(lease, 20 + round, 77), "S-516: it may go on, round {round}");
        assert_eq!((file.size(), read(&file, 20 + round)), (end, 77));
    }
    drop(file);
    volume.end();
}

/// What a crash of the daemon leaves of blocks: the image as it is, mounted again.
fn after_crash(volume: &Volume, blocks: &[usize]) -> Vec<u8> {
    let (from, to) = (volume._dir.path().join("image"), volume._dir.path().join("crashed"));
    std::fs::copy(&from, &to).unwrap();
    let device = bedplate_block::open(&to, &DeviceOptions::default()).unwrap();
    let fs = FileSystem::mount(device, None, MountOptions::default()).unwrap();
    let file = fs.open("f", &OpenOptions::read_only()).unwrap();
    let found = blocks.iter().map(|block| read(&file, *block)).collect();
    drop(file);
    fs.unmount().unwrap();
    found
}

/// S-517: a sync by whatever process makes what was written over durable, without waiting for that
/// which writes; a kill loses nothing.
#[test]
fn s_517_a_sync_makes_what_was_written_over_durable() {
    let volume = Volume::new();
    let (file, client, lease) = streamed(&volume);
    assert!(client.overwrite(lease, 7, 70));
    let room = client.slots.overwrite_room(lease).unwrap();
    client.slots.put_overwrite(&room, 0, &[80; BLOCK]);
    file.sync_data().unwrap();
    assert_eq!(after_crash(&volume, &[7, 8]), [70, 9], "S-517");
    assert!(client.slots.overwrite(&room, (8 * BLOCK) as u64, BLOCK as u64), "it went on");
    volume.fs.sync().unwrap();
    assert_eq!(after_crash(&volume, &[7, 8]), [70, 80], "S-517: a sync of everything");
    assert!(client.overwrite(lease, 9, 90));
    let room = client.slots.overwrite_room(lease).unwrap();
    client.slots.put_overwrite(&room, 0, &[99; BLOCK]);
    client.alive.store(false, SeqCst);
    volume.fs.lease_detach(&client.client);
    assert_eq!([read(&file, 9), read(&file, 10)], [90, 11], "S-517: of one that was killed");
    drop(file);
    volume.end();
}

/// S-517: the last close finds all that was written over.
#[test]
fn s_517_the_last_close_ends_the_buffer() {
    let volume = Volume::new();
    let (file, client, lease) = streamed(&volume);
    assert!(client.overwrite(lease, 2, 20));
    drop(file);
    assert!(!client.overwrite(lease, 3, 30), "the last close");
    let file = volume.fs.open("f", &options()).unwrap();
    assert_eq!([read(&file, 2), read(&file, 3)], [20, 4], "S-517");
    drop(file);
    volume.end();
}

/// S-518, I-LEA-13: what needs the file alone finds all that was written over before it, and the
/// process writes no more there.
#[test]
fn s_518_what_needs_the_file_alone_takes_the_buffer() {
    type Act = fn(&Volume, &File);
    let acts: [Act; 9] = [
        |_, file| file.set_size((BLOCKS * BLOCK) as u64 - 1).unwrap(),
        |_, file| file.set_size((BLOCKS * BLOCK) as u64 + 1).unwrap(),
        |_, file| file.allocate(AllocateMode::PunchHole, (20 * BLOCK) as u64, 4096).unwrap(),
        |volume, _| {
            let options = CheckpointOptions::default();
            volume.fs.create_checkpoint("now", &options).unwrap();
            let past = volume.fs.open("/.checkpoints/now/f", &OpenOptions::read_only()).unwrap();
            assert_eq!(read(&past, 5), 50, "S-518: the checkpoint has it");
        },
        |volume, file| volume.fs.set_untorn(file.ino(), Some(8192)).unwrap(),
        |volume, file| volume.fs.set_integrity(file.ino(), true).unwrap(),
        |_, file| file.suspend_lease(),
        |volume, _| {
            volume.fs.clone_files(&CloneSource::Present("/f".into()), "/clone").unwrap();
            let clone = volume.fs.open("/clone", &OpenOptions::read_only()).unwrap();
            assert_eq!(read(&clone, 5), 50, "S-518: the clone has it");
        },
        |volume, file| {
            let cached = OpenOptions { mode: Some(IoMode::Cached), ..OpenOptions::read_write() };
            let cached = volume.fs.open("f", &cached).unwrap();
            assert_eq!(read(&cached, 5), 50, "S-518: through the cache");
            assert_eq!(read(file, 5), 50);
        },
    ];
    for (number, act) in acts.into_iter().enumerate() {
        let volume = Volume::new();
        let (file, client, lease) = streamed(&volume);
        assert!(client.overwrite(lease, 5, 50));
        act(&volume, &file);
        assert!(!client.overwrite(lease, 6, 60), "S-518: act {number}");
        assert_eq!([read(&file, 5), read(&file, 6)], [50, 7], "S-518: act {number}");
        drop(file);
        volume.end();
    }
}

/// S-518: blocks that a checkpoint needs are not written over, nor are holes.
#[test]
fn s_518_only_written_blocks_of_its_own_are_written_over() {
    let volume = Volume::new();
    let (file, client, lease) = streamed(&volume);
    assert!(client.overwrite(lease, 30, 90));
    volume.fs.create_checkpoint("now", &CheckpointOptions::default()).unwrap();
    client.stream(&file, 1).unwrap();
    assert!(!client.overwrite(lease, 1, 91), "S-518: the checkpoint has these");
    write(&file, 10, 92);
    write(&file, 11, 93);
    client.stream(&file, 10).unwrap();
    assert!(client.overwrite(lease, 10, 94) && client.overwrite(lease, 11, 95));
    assert!(!client.overwrite(lease, 12, 96), "S-518: only those that were written since");
    let past = volume.fs.open("/.checkpoints/now/f", &OpenOptions::read_only()).unwrap();
    assert_eq!([10, 11, 30].map(|block| read(&past, block)), [11, 12, 90], "S-518");
    assert_eq!([10, 11, 12].map(|block| read(&file, block)), [94, 95, 13], "S-518");
    drop((past, file));
    volume.end();
}

/// S-516: opens and files that get no buffer for this.
#[test]
fn s_516_what_gets_no_buffer_is_written_as_before() {
    let volume = Volume::new();
    drop(volume.filled("f", BLOCKS));
    let file = volume.open("f");
    let client = Client::attach(&volume.fs);
    file.lease().unwrap();
    assert_eq!(client.stream(&file, 1), Err(Reason::Tail), "writes of this open do not wait");
    drop(file);
    let file = volume.fs.open("f", &options()).unwrap();
    let lease = file.lease().unwrap();
    let asked = |at: u64, len| file.lease_appends(client.slots.client(), at, len).map(drop);
    assert_eq!(asked(1, 4096), Err(Reason::Tail), "no whole sectors");
    assert_eq!(asked(4096, 4000), Err(Reason::Tail), "no whole sectors");
    assert_eq!(asked(4096, 1 << 20), Err(Reason::Tail), "long writes");
    assert_eq!(asked(((BLOCKS - 1) * BLOCK) as u64, 8192), Err(Reason::Tail), "passes the end");
    client.write(lease, 1, 200).expect("S-516: it is handed out as before");
    file.allocate(AllocateMode::PunchHole, (8 * BLOCK) as u64, 4096).unwrap();
    assert_eq!(asked((8 * BLOCK) as u64, 4096), Err(Reason::Tail), "a hole");
    volume.seal();
    client.write(lease, 1, 201).expect("S-516: it is handed out as before");
    drop(file);
    volume.end();
}

/// S-516: a file that nothing writes over so any more gets its lease back, with all that was written.
#[test]
fn s_516_the_lease_comes_back() {
    let volume = Volume::synced_every(Duration::from_millis(50));
    let (file, client, lease) = streamed(&volume);
    (1..BLOCKS).for_each(|block| {
        if !client.overwrite(lease, block, 200) {
            client.stream(&file, block).unwrap();
            assert!(client.overwrite(lease, block, 200));
        }
    });
    let deadline = Instant::now() + Duration::from_secs(20);
    while client.read(lease, 9) != Ok(200) {
        assert!(Instant::now() < deadline, "S-516: it comes back");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(!client.overwrite(lease, 9, 1), "S-516: there is no buffer then");
    (1..BLOCKS).for_each(|block| assert_eq!(client.read(lease, block), Ok(200)));
    drop(file);
    volume.end();
}

/// Rubbish that a process writes into its own memory takes nothing but its own later writes.
#[test]
fn rubbish_among_overwrites_is_taken_no_notice_of() {
    let volume = Volume::new();
    let (file, client, lease) = streamed(&volume);
    assert!(client.overwrite(lease, 5, 50));
    let room = client.slots.overwrite_room(lease).unwrap();
    // A place that was not given, which the process says it has written over.
    assert!(client.slots.overwrite(&room, (BLOCKS * BLOCK) as u64, BLOCK as u64));
    assert!(client.overwrite(lease, 6, 60));
    assert_eq!([read(&file, 5), read(&file, 6)], [50, 7], "what follows rubbish is not read");
    write(&file, 5, 51);
    file.sync_all().unwrap();
    assert_eq!((read(&file, 5), file.size()), (51, (BLOCKS * BLOCK) as u64));
    drop(file);
    volume.end();
}
