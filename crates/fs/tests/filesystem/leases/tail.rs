//! Growth under leases.

use super::*;

/// Blocks of a file that is long enough to begin with.
const START: usize = 4;

impl Client {
    /// Writes where the file ends, without asking for a tail.
    pub(super) fn grow(&self, lease: Lease, block: usize, byte: u8) -> Result<(), Fallback> {
        let io =
            Io { direction: Direction::Write, offset: (block * BLOCK) as u64, len: BLOCK as u64 };
        let permit = self.reader.begin_growth(&self.slots, self.slot, lease, io, 0)?;
        self.device.write_all_at(&aligned(byte), permit.device_offset).unwrap();
        self.slots.wrote(lease.entry, permit.fills_to);
        self.slots.leave(self.slot);
        Ok(())
    }

    pub(super) fn ask(&self, file: &File) -> Result<(), Reason> {
        file.lease_tail(self.slots.client(), file.size(), BLOCK as u64).map(drop)
    }

    pub(super) fn own_end(&self, lease: Lease) -> Option<usize> {
        self.reader.own_end(&self.slots, lease).map(|end| end as usize / BLOCK)
    }
}

/// A volume with a file of [`START`] blocks, and a process that has filled so many blocks behind
/// them, each with its number plus one.
fn grown(blocks: usize) -> (Volume, File, Client, Lease) {
    let volume = Volume::new();
    let file = volume.filled("f", START);
    let client = Client::attach(&volume.fs);
    let lease = file.lease().unwrap();
    assert_eq!(client.grow(lease, START, 1), Err(Fallback::BeyondSize), "it has no tail");
    client.ask(&file).unwrap();
    for block in START..START + blocks {
        client.grow(lease, block, block as u8 + 1).unwrap();
    }
    (volume, file, client, lease)
}

/// Checks a file of so many blocks, each with its number plus one.
fn assert_grown(file: &File, blocks: usize) {
    assert_eq!(file.size(), (blocks * BLOCK) as u64);
    (0..blocks).for_each(|block| assert_eq!(read(file, block), block as u8 + 1));
    let mut buf = aligned(0);
    assert_eq!(file.read_at(&mut buf, (blocks * BLOCK) as u64).unwrap(), 0, "nothing behind it");
}

/// S-354: a process makes a file grow by itself, reads and changes what it wrote; every other one
/// finds the file as long as that, and goes on writing there.
#[test]
fn s_354_a_process_makes_a_file_grow_and_all_see_it() {
    let (volume, file, client, lease) = grown(3);
    assert_eq!((client.own_end(lease), client.read(lease, START + 1)), (Some(7), Ok(6)));
    client.grow(lease, START + 1, 60).unwrap();
    assert_eq!(client.read(lease, START + 1), Ok(60));
    client.grow(lease, START + 1, 6).unwrap();
    assert_eq!(file.size(), 7 * BLOCK as u64, "S-354: before anything is collected");
    assert_eq!(volume.fs.attr(file.ino()).unwrap().size, 7 * BLOCK as u64);
    assert!(file.size_moves(), "S-354: nothing keeps the size");
    let other = Client::attach(&volume.fs);
    assert_eq!(other.read(lease, START), Err(Fallback::BeyondSize), "it asks the mount");
    assert_eq!(other.grow(lease, START + 3, 9), Err(Fallback::BeyondSize));
    assert_grown(&file, 7);
    assert_eq!(other.read(lease, START), Ok(5), "it is the file's now");
    assert_eq!(other.read(lease, START + 2), Ok(7));
    client.grow(lease, START + 3, 8).unwrap();
    assert_eq!(file.seek_hole(0).unwrap(), Some(8 * BLOCK as u64));
    write(&file, START + 4, 9);
    assert_eq!(client.own_end(lease), None, "S-354: another moved the end");
    assert_eq!(client.grow(lease, START + 5, 10), Err(Fallback::BeyondSize));
    other.ask(&file).unwrap();
    assert_eq!(client.grow(lease, START + 5, 10), Err(Fallback::BeyondSize), "the other's");
    other.grow(lease, START + 5, 10).unwrap();
    client.ask(&file).unwrap();
    client.grow(lease, START + 6, 11).unwrap();
    assert_grown(&file, 11);
    assert_eq!(volume.fs.lease_report().unwrap().tails, 3);
    let appending = OpenOptions { append: true, ..OpenOptions::read_write() };
    let appending = volume.fs.open("f", &appending).unwrap();
    client.grow(lease, START + 7, 12).unwrap();
    assert_eq!(appending.write_at(&aligned(13), 0).unwrap(), 12 * BLOCK as u64);
    assert_grown(&file, 13);
    assert!(volume.fs.leased_writes().contains(&file.ino()), "what was told is asked again");
    assert!(!file.size_moves());
    drop((appending, file));
    volume.end();
}

/// What a crash of the daemon leaves: the image as it is, mounted again.
fn after_crash(volume: &Volume) -> FileSystem {
    let (from, to) = (volume._dir.path().join("image"), volume._dir.path().join("crashed"));
    std::fs::copy(&from, &to).unwrap();
    let device = bedplate_block::open(&to, &DeviceOptions::default()).unwrap();
    let fs = FileSystem::mount(device, None, MountOptions::default()).unwrap();
    let found = fs.open("f", &OpenOptions::read_only()).unwrap().attr().unwrap();
    assert_eq!(found.allocated_bytes, found.size, "S-356: no block of a tail stays");
    fs
}

/// S-355: a sync by whatever process makes what was written behind the end durable, also when
/// the daemon dies then; S-356: what was not synced is not there, and no block is lost.
#[test]
fn s_355_a_sync_makes_what_a_file_grew_by_durable() {
    let (volume, file, client, lease) = grown(3);
    let size = |fs: &FileSystem| fs.open("f", &OpenOptions::read_only()).unwrap().size();
    assert_eq!(size(&after_crash(&volume)), START as u64 * BLOCK as u64, "S-356");
    assert_eq!(client.sync(lease), Err(Fallback::Unsynced), "S-355: a flush is not enough");
    let other = Client::attach(&volume.fs);
    assert_eq!(other.sync(lease), Err(Fallback::Unsynced), "S-355: nor to others");
    file.sync_data().unwrap();
    assert_eq!(client.sync(lease), Ok(()), "nothing new");
    client.grow(lease, START, 55).unwrap();
    client.grow(lease, START, 5).unwrap();
    assert_eq!(client.sync(lease), Ok(()), "in place");
    let crashed = after_crash(&volume);
    assert_grown(&crashed.open("f", &OpenOptions::read_only()).unwrap(), START + 3);
    crashed.unmount().unwrap();
    client.grow(lease, START + 3, 8).unwrap();
    volume.fs.sync().unwrap();
    let crashed = after_crash(&volume);
    assert_grown(&crashed.open("f", &OpenOptions::read_only()).unwrap(), START + 4);
    crashed.unmount().unwrap();
    drop(file);
    volume.end();
}

/// S-356: of a process that is killed every write that had returned is there, and nothing more; its
/// blocks go back.
#[test]
fn s_356_a_process_that_is_killed_leaves_what_it_had_written() {
    let (volume, file, client, lease) = grown(3);
    let free = || volume.fs.statfs().free_bytes;
    let before = free();
    let at = (START + 3) * BLOCK;
    let io = Io { direction: Direction::Write, offset: at as u64, len: BLOCK as u64 };
    let permit = client.reader.begin_growth(&client.slots, client.slot, lease, io, 0).unwrap();
    client.device.write_all_at(&aligned(66), permit.device_offset).unwrap();
    client.alive.store(false, SeqCst);
    volume.fs.lease_detach(&client.client);
    assert_grown(&file, START + 3);
    assert!(free() > before, "S-356: what it did not fill is free");
    assert_eq!(client.ask(&file), Err(Reason::Request), "it is gone");
    drop(file);
    let file = volume.open("f");
    assert_grown(&file, START + 3);
    drop(file);
    volume.end();
}

/// S-357, I-LEA-9: whatever moves the end of a file, or needs it as it is, finds what was written there in
/// the file, and the process has no tail any more.
#[test]
fn s_357_what_moves_the_end_takes_the_tail() {
    type Act = fn(&Volume, &File);
    let acts: [(Act, usize); 8] = [
        (|_, file| file.set_size(5 * BLOCK as u64).unwrap(), 5),
        (|_, file| file.set_size(2 * BLOCK as u64).unwrap(), 2),
        (|_, file| file.set_size(7 * BLOCK as u64).unwrap(), 7),
        (
            |_, file| {
                let keep = AllocateMode::Preallocate { keep_size: true };
                file.allocate(keep, 0, 20 * BLOCK as u64).unwrap();
            },
            7,
        ),
        (
            |volume, _| {
                let options = CheckpointOptions::default();
                volume.fs.create_checkpoint("now", &options).unwrap();
                let past = volume.fs.open("/.checkpoints/now/f", &OpenOptions::read_only());
                assert_grown(&past.unwrap(), 7);
            },
            7,
        ),
        (|volume, file| volume.fs.set_untorn(file.ino(), Some(8192)).unwrap(), 7),
        (|volume, file| volume.fs.set_integrity(file.ino(), true).unwrap(), 7),
        (|_, file| file.suspend_lease(), 7),
    ];
    for (number, (act, blocks)) in acts.into_iter().enumerate() {
        let (volume, file, client, lease) = grown(3);
        act(&volume, &file);
        assert_eq!(client.own_end(lease), None, "S-357: act {number}");
        let end = blocks.max(START + 3);
        assert!(client.grow(lease, end, 9).is_err(), "S-357: act {number}");
        assert_grown(&file, blocks);
        drop(file);
        volume.end();
    }
}

/// S-357: an open in a mode that caches, the end of the last open, and that of the mount.
#[test]
fn s_357_the_tail_ends_with_the_lease() {
    let (volume, file, client, lease) = grown(3);
    let cached = OpenOptions { mode: Some(IoMode::Cached), ..OpenOptions::read_write() };
    let cached = volume.fs.open("f", &cached).unwrap();
    assert_eq!(client.grow(lease, START + 3, 9), Err(Fallback::Revoked));
    assert_grown(&cached, START + 3);
    drop((cached, file));
    let file = volume.open("f");
    let lease = file.lease().unwrap();
    client.ask(&file).unwrap();
    client.grow(lease, START + 3, 8).unwrap();
    drop(file);
    let file = volume.open("f");
    assert_grown(&file, START + 4);
    let lease = file.lease().unwrap();
    client.ask(&file).unwrap();
    client.grow(lease, START + 4, 9).unwrap();
    let Volume { fs, device, _dir } = volume;
    fs.unmount().unwrap();
    drop(file);
    let fs = FileSystem::mount(Arc::clone(&device), None, MountOptions::default()).unwrap();
    assert_grown(&fs.open("f", &OpenOptions::read_only()).unwrap(), START + 5);
    Volume { fs, device, _dir }.end();
}

/// S-357: a file without a name that is closed takes its tail with it.
#[test]
fn s_357_a_removed_file_takes_its_tail_with_it() {
    let (volume, file, client, lease) = grown(3);
    let free = volume.fs.statfs().free_bytes;
    volume.fs.remove("f").unwrap();
    client.grow(lease, START + 3, 8).unwrap();
    drop(file);
    volume.seal();
    assert!(volume.fs.statfs().free_bytes > free);
    volume.end();
}

/// S-358: blocks that a process may never fill are given back before a write fails for want of
/// them; a volume with little room gives none.
#[test]
fn s_358_a_full_volume_takes_the_tails_back() {
    let (volume, file, client, lease) = grown(3);
    let rest = volume.fs.statfs().available_bytes / BLOCK as u64;
    let (other, block) = volume.fill();
    assert!(block > rest, "S-358: {block} blocks, and {rest} were free beside the tail");
    assert!(client.grow(lease, START + 3, 8).is_err());
    assert_eq!(client.ask(&file), Err(Reason::Tail), "S-358");
    assert_grown(&file, START + 3);
    drop((file, other));
    volume.end();
}

/// S-359: a file that ends within a block, whose end another process writes odd, that is written
/// untorn or has blocks behind its end grows through the mount.
#[test]
fn s_359_what_cannot_have_a_tail_grows_through_the_mount() {
    let volume = Volume::new();
    let client = Client::attach(&volume.fs);
    let file = volume.filled("f", START);
    file.write_at(&[1; 100], (START * BLOCK) as u64).unwrap();
    assert_eq!(client.ask(&file), Err(Reason::Suspended), "it is not leased");
    let lease = file.lease().unwrap();
    assert_eq!(client.ask(&file), Err(Reason::Tail), "ends within a block");
    file.set_size((START * BLOCK) as u64).unwrap();
    let end = file.size();
    let gap = file.lease_tail(client.slots.client(), end + (1 << 20) + 4096, 4096);
    assert_eq!(gap, Err(Reason::Tail), "leaves a wide gap");
    let behind = file.lease_tail(client.slots.client(), end - 4096, 4096);
    assert_eq!(behind, Err(Reason::Tail), "lies within the file");
    assert_eq!(file.lease_tail(99, end, 4096), Err(Reason::Request), "no client");
    assert_eq!(
        file.lease_tail(client.slots.client(), end, 5 << 20),
        Err(Reason::Tail),
        "long writes"
    );
    file.allocate(AllocateMode::Preallocate { keep_size: true }, 0, 1 << 20).unwrap();
    assert_eq!(client.ask(&file), Err(Reason::Tail), "has blocks there");
    file.allocate(AllocateMode::PunchHole, (START * BLOCK) as u64, 1 << 20).unwrap();
    file.lease_odd_writes(client.slots.client()).unwrap();
    assert_eq!(client.ask(&file), Err(Reason::Tail), "odd writes");
    write(&file, 0, 1);
    client.ask(&file).unwrap();
    client.grow(lease, START, START as u8 + 1).unwrap();
    let sector = Io { direction: Direction::Write, offset: 5 * BLOCK as u64, len: 512 };
    let permit = client.reader.begin_growth(&client.slots, client.slot, lease, sector, 0).unwrap();
    client.device.write_all_at(&aligned(6)[..512], permit.device_offset).unwrap();
    client.slots.wrote(lease.entry, permit.fills_to);
    client.slots.leave(client.slot);
    assert_eq!(file.size(), 5 * BLOCK as u64 + 512);
    file.sync_data().unwrap();
    client.grow(lease, 6, 7).expect_err("S-359: leaves a gap");
    let mut buf = aligned(9);
    assert_eq!(file.read_at(&mut buf, 5 * BLOCK as u64).unwrap(), 512);
    assert!(buf[..512].iter().all(|byte| *byte == 6));
    let second = Io { offset: sector.offset + 512, ..sector };
    let permit = client.reader.begin_growth(&client.slots, client.slot, lease, second, 0).unwrap();
    client.device.write_all_at(&aligned(7)[..512], permit.device_offset).unwrap();
    client.slots.wrote(lease.entry, permit.fills_to);
    client.slots.leave(client.slot);
    file.set_size(6 * BLOCK as u64).unwrap();
    assert_eq!(file.read_at(&mut buf, 5 * BLOCK as u64).unwrap(), BLOCK);
    assert!(buf[512..1024].iter().all(|byte| *byte == 7), "it goes on within the block");
    assert!(buf[1024..].iter().all(|byte| *byte == 0), "S-9: nothing stale");
    drop(file);
    volume.end();
}

/// S-355, S-354: what others ask of a file does not wait for a process that is stopped in the midst of
/// a write behind its end, and the process goes on where it was.
#[test]
fn s_355_a_sync_does_not_wait_for_a_process_that_is_writing() {
    let (volume, file, client, lease) = grown(3);
    let offset = ((START + 3) * BLOCK) as u64;
    let io = Io { direction: Direction::Write, offset, len: BLOCK as u64 };
    let permit = client.reader.begin_growth(&client.slots, client.slot, lease, io, 0).unwrap();
    file.sync_data().unwrap();
    volume.fs.sync().unwrap();
    assert_grown(&file, START + 3);
    client.device.write_all_at(&aligned(8), permit.device_offset).unwrap();
    client.slots.wrote(lease.entry, permit.fills_to);
    client.slots.leave(client.slot);
    assert_grown(&file, START + 4);
    client.grow(lease, START + 4, 9).unwrap();
    assert_grown(&file, START + 5);
    assert_eq!(volume.fs.lease_report().unwrap().tails, 1, "S-354: it has kept its tail");
    drop(file);
    volume.end();
}

/// S-357: a file system becomes smaller than where a tail lies, which no survey of rows finds.
#[test]
fn s_357_a_file_system_becomes_smaller_under_a_tail() {
    let volume = Volume::new();
    let large = volume.open("large");
    let low = |file: &File| file.extents().unwrap().iter().map(|it| it.len).sum::<u64>() < 44 << 20;
    while low(&large) {
        let all = AllocateMode::Preallocate { keep_size: false };
        large.allocate(all, large.size(), 64 << 10).unwrap();
    }
    let file = volume.filled("f", START);
    let client = Client::attach(&volume.fs);
    let lease = file.lease().unwrap();
    client.ask(&file).unwrap();
    client.grow(lease, START, START as u8 + 1).unwrap();
    let at = |block: usize| {
        let io = Io { direction: Direction::Read, offset: (block * BLOCK) as u64, len: 4096 };
        let permit = client.reader.begin_growth(&client.slots, client.slot, lease, io, 0);
        client.slots.leave(client.slot);
        permit.map(|permit| permit.device_offset)
    };
    assert!(at(START).unwrap() > 40 << 20, "the tail lies behind what goes: {:?}", at(START));
    drop(large);
    volume.fs.remove("large").unwrap();
    let deadline = Instant::now() + Duration::from_secs(30);
    while !volume.fs.shrink(40 << 20).unwrap().is_done {
        assert!(Instant::now() < deadline, "S-357: the shrink ends");
    }
    assert_grown(&file, START + 1);
    client.ask(&file).unwrap();
    client.grow(lease, START + 1, START as u8 + 2).unwrap();
    assert!(at(START + 1).unwrap() < 40 << 20);
    assert_grown(&file, START + 2);
    drop(file);
    volume.end();
}
