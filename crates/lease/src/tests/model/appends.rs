//! Threads of one client that append to two files, and a daemon that takes what they appended and
//! gives the one buffer to the other file.

use shuttle::sync::Mutex as Lock;

use super::*;

/// The daemon's side: what the files hold, and for which one the buffer is open.
struct Daemon {
    slots: ClientSlots<Memory>,
    files: [Vec<u8>; 2],
    open: Option<Open>,
    number: u32,
}

struct Open {
    file: usize,
    base: u64,
    taken: u64,
    number: u32,
}

const BUFFER: usize = 0;

fn lease_of(file: usize) -> Lease {
    Lease { entry: file as u32, generation: 7 }
}

impl Daemon {
    fn take_to(&mut self, to: u64) {
        let Some(open) = &mut self.open else { return };
        let bytes = self.slots.copy_appended(BUFFER, open.taken, to.max(open.taken));
        assert_eq!(open.base + open.taken, self.files[open.file].len() as u64);
        open.taken += bytes.len() as u64;
        self.files[open.file].extend(bytes);
    }

    fn take(&mut self) {
        let appended = self.slots.appended(BUFFER);
        self.take_to(appended);
    }

    fn end(&mut self) {
        let Some(Open { file, number, .. }) = self.open else { return };
        let (appended, _) = self.slots.close_append(BUFFER, file as u32, number);
        self.take_to(appended);
        self.open = None;
    }

    fn give(&mut self, file: usize) {
        self.end();
        self.number += 1;
        let (base, taken, number) = (self.files[file].len() as u64, 0, self.number);
        self.open = Some(Open { file, base, taken, number });
        self.slots.open_append(BUFFER, lease_of(file), base, &(0..0), number);
    }
}

#[derive(Clone)]
struct Shared {
    slots: Slots<Memory>,
    daemon: Arc<Lock<Daemon>>,
    /// A thread has its turn at the buffer.
    turn: Arc<Lock<()>>,
    told: Arc<Mutex<[Vec<u8>; 2]>>,
}

impl Shared {
    /// Appends two bytes to a file in the client's memory; `false`: the mount is to do it.
    fn append(&self, file: usize, bytes: [u8; 2]) -> bool {
        let Some(room) = self.slots.append_room(lease_of(file)) else { return false };
        let Ok(_turn) = self.turn.try_lock() else { return false };
        if self.slots.append_room(lease_of(file)) != Some(room) || room.room < 2 {
            return false;
        }
        self.slots.put_appended(&room, 0, &bytes[..1]);
        self.slots.put_appended(&room, 1, &bytes[1..]);
        self.slots.append(&room, 2)
    }

    fn thread(&self, index: u8) -> JoinHandle<()> {
        let shared = self.clone();
        thread::spawn(move || {
            for round in 0..4 {
                let (file, id) = (thread_rng().gen_range(0..2), 1 + index * 4 + round);
                if !shared.append(file, [id; 2]) {
                    let mut daemon = shared.daemon.lock().unwrap();
                    daemon.end();
                    daemon.files[file].extend([id; 2]);
                }
                shared.told.lock().unwrap()[file].push(id);
            }
        })
    }
}

fn appends_of_threads() {
    let memory = Memory::new(slots_words(THREADS, 2));
    let slots = ClientSlots::create(memory.clone(), THREADS, 2, 1).unwrap();
    memory.fence();
    let daemon = Daemon { slots, files: Default::default(), open: None, number: 0 };
    let daemon = Arc::new(Lock::new(daemon));
    let slots = Slots::open(memory).unwrap();
    let shared = Shared { slots, daemon, turn: Arc::default(), told: Arc::default() };
    shared.daemon.lock().unwrap().give(0);
    let threads = (0..2).map(|index| shared.thread(index)).collect();
    for step in 0..6 {
        linger();
        let mut daemon = shared.daemon.lock().unwrap();
        if step % 2 == 0 { daemon.take() } else { daemon.give(thread_rng().gen_range(0..2)) }
    }
    join(threads);
    let mut daemon = shared.daemon.lock().unwrap();
    daemon.end();
    let told = shared.told.lock().unwrap();
    for (file, ids) in daemon.files.iter().zip(told.iter()) {
        let whole = file.chunks(2).all(|two| two.len() == 2 && two[0] == two[1]);
        let mut found: Vec<u8> = file.chunks(2).map(|two| two[0]).collect();
        let mut ids = ids.clone();
        found.sort_unstable();
        ids.sort_unstable();
        assert!(whole && found == ids, "I-LSE-12: {ids:?} were appended, and {file:?} are there");
    }
}

#[test]
fn i_lse_12_what_was_appended_is_in_its_file_once() {
    check(appends_of_threads);
    finds(Mistake::AppendedToAClosed, appends_of_threads);
    finds(Mistake::AppendNumberKept, appends_of_threads);
}
