//! What a process appends to a file that rests on the mount, in memory that both share.

use bedplate_fs::{Tunable, TuneOptions};

use super::*;

const LINE: &[u8] = b"a line of a log, ";

impl Client {
    fn give(&self, file: &File, len: u64) -> Result<(), Reason> {
        file.lease_appends(self.slots.client(), file.size(), len).map(drop)
    }

    /// Appends, without asking for a buffer.
    fn append(&self, lease: Lease, bytes: &[u8]) -> bool {
        let Some(room) = self.slots.append_room(lease) else { return false };
        if room.room < bytes.len() as u64 {
            return false;
        }
        self.slots.put_appended(&room, 0, bytes);
        self.slots.touch(lease.entry);
        self.slots.append(&room, bytes.len() as u64)
    }
}

/// What a file holds, as the mount reads it.
fn content(file: &File) -> Vec<u8> {
    let mut buf = vec![0; 1 << 20];
    let len = file.read_at(&mut buf, 0).unwrap();
    buf.truncate(len);
    buf
}

fn lines(count: usize) -> Vec<u8> {
    LINE.repeat(count)
}

/// A file that grows in odd pieces until it rests, of two lines; a process has a buffer for it and has
/// appended so many more.
fn appended(volume: &Volume, count: usize) -> (File, Client, Lease) {
    let file = volume.open("f");
    let client = Client::attach(&volume.fs);
    let lease = file.lease().unwrap();
    assert_eq!(client.give(&file, 10), Err(Reason::Tail), "it is handed out");
    for _ in 0..2 {
        file.write_at(LINE, file.size()).unwrap();
    }
    client.give(&file, LINE.len() as u64).unwrap();
    for _ in 0..count {
        assert!(client.append(lease, LINE));
    }
    (file, client, lease)
}

/// S-288: a process appends by itself, and every reader finds that at once.
#[test]
fn s_288_what_a_process_appends_all_see() {
    let volume = Volume::new();
    let (file, client, lease) = appended(&volume, 1000);
    assert_eq!(file.size(), 1002 * LINE.len() as u64, "S-288: before anything is taken");
    assert!(file.size_moves(), "S-288: nothing keeps the size");
    assert_eq!(content(&file), lines(1002));
    assert!(client.append(lease, LINE), "it has kept its buffer");
    let attr = volume.fs.attr(file.ino()).unwrap();
    assert_eq!(attr.size, 1003 * LINE.len() as u64);
    file.write_at(LINE, 0).unwrap();
    assert_eq!(content(&file).len(), 1003 * LINE.len());
    write(&file, 1, b'a');
    file.write_at(&lines(1003)[BLOCK..2 * BLOCK], BLOCK as u64).unwrap();
    assert!(client.append(lease, LINE), "S-288: what is written before the end leaves it alone");
    file.write_at(LINE, file.size()).unwrap();
    assert!(!client.append(lease, LINE), "S-288: another moved the end");
    assert_eq!(content(&file), lines(1005));
    client.give(&file, 8192).unwrap();
    assert!(client.append(lease, &lines(7000)), "of any length that fits");
    assert!(!client.append(lease, &lines(1000)), "it is full");
    client.give(&file, 8192).unwrap();
    assert!(client.append(lease, &lines(1000)));
    assert_eq!(content(&file), lines(9005));
    assert_eq!(volume.fs.lease_report().unwrap().buffers, 3);
    let other = Client::attach(&volume.fs);
    other.give(&file, 100).unwrap();
    assert!(
        !client.append(lease, LINE) && other.append(lease, LINE),
        "S-288: one process at a time"
    );
    let appending = OpenOptions { append: true, ..OpenOptions::read_write() };
    let appending = volume.fs.open("f", &appending).unwrap();
    assert_eq!(appending.write_at(LINE, 0).unwrap(), 9006 * LINE.len() as u64);
    assert_eq!(content(&file), lines(9007));
    drop((appending, file));
    volume.end();
}

/// What a crash of the daemon leaves: the image as it is, mounted again.
fn after_crash(volume: &Volume) -> Vec<u8> {
    let (from, to) = (volume._dir.path().join("image"), volume._dir.path().join("crashed"));
    std::fs::copy(&from, &to).unwrap();
    let device = bedplate_block::open(&to, &DeviceOptions::default()).unwrap();
    let fs = FileSystem::mount(device, None, MountOptions::default()).unwrap();
    let found = content(&fs.open("f", &OpenOptions::read_only()).unwrap());
    fs.unmount().unwrap();
    found
}

/// S-289: a sync by whatever process makes what was appended durable, without waiting for that which
/// appends; what is appended later is not lost with it.
#[test]
fn s_289_a_sync_makes_what_was_appended_durable() {
    let volume = Volume::new();
    let (file, client, lease) = appended(&volume, 3);
    let room = client.slots.append_room(lease).unwrap();
    client.slots.put_appended(&room, 0, LINE);
    file.sync_data().unwrap();
    assert_eq!(after_crash(&volume), lines(5));
    assert!(client.slots.append(&room, LINE.len() as u64), "S-289: it went on meanwhile");
    volume.fs.sync().unwrap();
    assert_eq!(after_crash(&volume), lines(6));
    assert!(client.append(lease, LINE));
    drop(file);
    let file = volume.open("f");
    assert_eq!(content(&file), lines(7), "S-289: the last close");
    drop(file);
    volume.end();
}

/// S-289: of a process that is killed all that had returned is there.
#[test]
fn s_289_a_process_that_is_killed_leaves_what_it_had_appended() {
    let volume = Volume::new();
    let (file, client, lease) = appended(&volume, 3);
    let room = client.slots.append_room(lease).unwrap();
    client.slots.put_appended(&room, 0, b"begun");
    client.alive.store(false, SeqCst);
    volume.fs.lease_detach(&client.client);
    assert_eq!(content(&file), lines(5));
    assert_eq!(client.give(&file, 10), Err(Reason::Request), "it is gone");
    drop(file);
    volume.end();
}

/// S-292, I-LEA-12: whatever moves the end of a file, or needs it as it is, finds what was appended in
/// the file, and the process appends no more.
#[test]
fn s_292_what_moves_the_end_takes_the_buffer() {
    type Act = fn(&Volume, &File);
    let six = 6 * LINE.len();
    let acts: [(Act, usize); 7] = [
        (|_, file| file.set_size(40).unwrap(), 40),
        (|_, file| file.set_size(0).unwrap(), 0),
        (|_, file| file.allocate(AllocateMode::PunchHole, 1 << 20, 4096).unwrap(), six),
        (
            |volume, _| {
                let options = CheckpointOptions::default();
                volume.fs.create_checkpoint("now", &options).unwrap();
                let past = volume.fs.open("/.checkpoints/now/f", &OpenOptions::read_only());
                assert_eq!(content(&past.unwrap()), lines(6));
            },
            six,
        ),
        (|volume, file| volume.fs.set_untorn(file.ino(), Some(8192)).unwrap(), six),
        (|volume, file| volume.fs.set_integrity(file.ino(), true).unwrap(), six),
        (|_, file| file.suspend_lease(), six),
    ];
    for (number, (act, len)) in acts.into_iter().enumerate() {
        let volume = Volume::new();
        let (file, client, lease) = appended(&volume, 4);
        act(&volume, &file);
        assert!(!client.append(lease, LINE), "S-292: act {number}");
        assert_eq!(content(&file), lines(6)[..len], "S-292: act {number}");
        drop(file);
        volume.end();
    }
}

/// S-292: an open in a mode that caches, and the end of the mount.
#[test]
fn s_292_the_buffer_ends_with_the_lease() {
    let volume = Volume::new();
    let (file, client, lease) = appended(&volume, 4);
    let cached = OpenOptions { mode: Some(IoMode::Cached), ..OpenOptions::read_write() };
    let cached = volume.fs.open("f", &cached).unwrap();
    cached.suspend_lease();
    assert!(!client.append(lease, LINE));
    assert_eq!(content(&cached), lines(6));
    drop((cached, file, client));
    let (file, client, lease) = appended(&volume, 0);
    assert_eq!(content(&file), lines(8));
    assert!(client.append(lease, LINE));
    let Volume { fs, device, _dir } = volume;
    fs.unmount().unwrap();
    assert!(!client.append(lease, LINE), "S-292: the mount has ended");
    drop(file);
    let fs = FileSystem::mount(Arc::clone(&device), None, MountOptions::default()).unwrap();
    assert_eq!(content(&fs.open("f", &OpenOptions::read_only()).unwrap()), lines(9));
    Volume { fs, device, _dir }.end();
}

/// S-292: a file without a name that is closed takes its buffer with it.
#[test]
fn s_292_a_removed_file_takes_its_buffer_with_it() {
    let volume = Volume::new();
    let (file, client, lease) = appended(&volume, 4);
    volume.fs.remove("f").unwrap();
    assert!(client.append(lease, LINE));
    drop(file);
    assert!(!client.append(lease, LINE));
    volume.end();
}

/// S-292: what was appended finds blocks however full the volume becomes, and those that nothing was
/// appended for are given back before a change is refused for want of them.
#[test]
fn s_292_what_was_appended_has_its_blocks() {
    let volume = Volume::new();
    let free = || volume.fs.statfs().free_bytes;
    let (file, client, lease) = appended(&volume, 4);
    assert!(client.append(lease, &lines(1000)));
    let rest = volume.fs.statfs().available_bytes / BLOCK as u64;
    let (other, block) = volume.fill();
    assert!(block > rest, "S-292: {block} blocks, and {rest} were free beside the buffer");
    assert_eq!(content(&file), lines(1006));
    assert_eq!(client.give(&file, 10), Err(Reason::Tail), "little is free");
    assert!(!client.append(lease, LINE));
    file.sync_all().unwrap();
    drop((file, other));
    volume.fs.remove("other").unwrap();
    volume.seal();
    assert!(free() > 0);
    volume.end();
}

/// S-288: files and writes that get none.
#[test]
fn s_288_what_gets_no_buffer_is_appended_through_the_mount() {
    let volume = Volume::new();
    let (file, client, _) = appended(&volume, 0);
    let end = file.size();
    let asked = |client, at, len| file.lease_appends(client, at, len).map(drop);
    let me = client.slots.client();
    assert_eq!(asked(me, end - 1, 10), Err(Reason::Tail), "lies within the file");
    assert_eq!(asked(me, end + 1, 10), Err(Reason::Tail), "leaves a gap");
    assert_eq!(asked(me, end, 1 << 20), Err(Reason::Tail), "long writes");
    assert_eq!(asked(99, end, 10), Err(Reason::Request), "no client");
    assert_eq!(asked(me, end, 10), Ok(()));
    // As many as a process has.
    let more: Vec<File> = (0..16)
        .map(|number| {
            let file = volume.open(&format!("more-{number}"));
            file.lease().unwrap();
            (0..2).for_each(|_| assert!(file.write_at(LINE, file.size()).is_ok()));
            file
        })
        .collect();
    let given: Vec<bool> = more.iter().map(|file| client.give(file, 10).is_ok()).collect();
    assert_eq!(given.iter().position(|given| !given), Some(15), "with the one before");
    drop(more);
    drop(file);
    volume.end();
}

/// S-288: where little or nothing may wait in memory, what is taken is written at once, and is there.
#[test]
fn s_288_what_may_not_wait_is_written_when_it_is_taken() {
    for bytes in [0, 16 << 10] {
        let volume = Volume::new();
        let (file, client, lease) = appended(&volume, 4);
        assert!(client.append(lease, &lines(6000)));
        let changes = vec![(Tunable::DelayWrites, Some(bytes))];
        volume.fs.tune(&TuneOptions { changes, live_only: true }).unwrap();
        assert_eq!(content(&file), lines(6006), "{bytes} bytes may wait");
        assert!(client.append(lease, LINE));
        file.sync_data().unwrap();
        assert_eq!(after_crash(&volume), lines(6007));
        assert_eq!(client.give(&file, 10).is_ok(), bytes > 0, "S-288: {bytes} bytes may wait");
        drop(file);
        volume.end();
    }
}
