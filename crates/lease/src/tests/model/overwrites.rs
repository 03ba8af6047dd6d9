//! Threads of one client that write over two files, and a daemon that takes what they wrote, and gives
//! the one buffer to the other file.

use std::ops::Range;

use shuttle::sync::Mutex as Lock;

use super::*;

const BUFFER: usize = 0;
const UNIT: u64 = OVERWRITE_UNIT;
const WRITERS: u64 = 2;
/// Each thread writes to a unit of its own.
const OVER: Range<u64> = 0..WRITERS * UNIT;

/// What the files hold: of each unit the two words.
type Files = [[[u8; 2]; WRITERS as usize]; 2];

/// The daemon's side.
struct Daemon {
    slots: ClientSlots<Memory>,
    files: Files,
    /// The file, how much was taken, and the number.
    open: Option<(usize, u64, u32)>,
    number: u32,
}

fn lease_of(file: usize) -> Lease {
    Lease { entry: file as u32, generation: 7 }
}

impl Daemon {
    fn take_to(&mut self, full: u64) {
        let Some((file, taken, _)) = &mut self.open else { return };
        while *taken < full {
            let found = self.slots.copy_overwrite(BUFFER, *taken, full, &OVER);
            let found = found.expect("I-LSE-13: what lies before the cursor is whole");
            *taken = found.next;
            let unit = (found.place / UNIT) as usize;
            self.files[*file][unit] = [found.bytes[0], found.bytes[8]];
        }
    }

    fn take(&mut self) {
        let full = self.slots.overwritten(BUFFER);
        self.take_to(full);
    }

    fn end(&mut self) {
        let Some((file, _, number)) = self.open else { return };
        let (_, full) = self.slots.close_append(BUFFER, file as u32, number);
        self.take_to(full);
        self.open = None;
    }

    fn give(&mut self, file: usize) {
        self.end();
        self.number += 1;
        self.open = Some((file, 0, self.number));
        self.slots.open_append(BUFFER, lease_of(file), OVER.end, &OVER, self.number);
    }
}

#[derive(Clone)]
struct Shared {
    slots: Slots<Memory>,
    daemon: Arc<Lock<Daemon>>,
    /// A thread has its turn at the buffer.
    turn: Arc<Lock<()>>,
}

impl Shared {
    /// Writes over a unit of a file in the client's memory; `false`: the mount is to do it.
    fn overwrite(&self, file: usize, place: u64, fill: u8) -> bool {
        let Some(room) = self.slots.overwrite_room(lease_of(file)) else { return false };
        let Ok(_turn) = self.turn.try_lock() else { return false };
        let is_same = self.slots.overwrite_room(lease_of(file)) == Some(room);
        if !is_same || !room.allows(place, UNIT) || room.room < UNIT {
            return false;
        }
        self.slots.put_overwrite(&room, 0, &[fill; 8]);
        self.slots.put_overwrite(&room, 8, &[fill; 8]);
        self.slots.overwrite(&room, place, UNIT)
    }

    fn thread(&self, index: u64) -> JoinHandle<()> {
        let shared = self.clone();
        let mut told = [0_u8; 2];
        thread::spawn(move || {
            for round in 1..5 {
                let file = thread_rng().gen_range(0..2);
                if !shared.overwrite(file, index * UNIT, round) {
                    let mut daemon = shared.daemon.lock().unwrap();
                    daemon.take();
                    daemon.files[file][index as usize] = [round; 2];
                }
                told[file] = round;
                let mut daemon = shared.daemon.lock().unwrap();
                daemon.take();
                for (file, told) in told.into_iter().enumerate() {
                    let found = daemon.files[file][index as usize];
                    assert_eq!(found, [told; 2], "I-LSE-13: the last that was told to be done");
                }
            }
        })
    }
}

fn overwrites_of_threads() {
    let memory = Memory::new(slots_words(THREADS, 2));
    let slots = ClientSlots::create(memory.clone(), THREADS, 2, 1).unwrap();
    memory.fence();
    let daemon = Daemon { slots, files: Files::default(), open: None, number: 0 };
    let daemon = Arc::new(Lock::new(daemon));
    let shared = Shared { slots: Slots::open(memory).unwrap(), daemon, turn: Arc::default() };
    shared.daemon.lock().unwrap().give(0);
    let threads = (0..WRITERS).map(|index| shared.thread(index)).collect();
    for _ in 0..4 {
        linger();
        shared.daemon.lock().unwrap().give(thread_rng().gen_range(0..2));
    }
    join(threads);
}

#[test]
fn i_lse_13_what_was_written_over_is_in_its_file() {
    check(overwrites_of_threads);
    finds(Mistake::OverwroteInAClosed, overwrites_of_threads);
    finds(Mistake::AppendNumberKept, overwrites_of_threads);
}
