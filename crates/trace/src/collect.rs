//! From the arena's bytes to a trace.
//!
//! The bytes were written by processes that may have been killed, and may be anything: what makes
//! no sense is left out.

use std::collections::HashMap;

use crate::arena::{CHUNK_SLOTS, HEADER_BYTES, SLOT_BYTES, TEXT_BYTES, header_of};
use crate::slot::{CHUNK, Call, FILE, PROCESS, Slot, TEXT, WORDS, how};
use crate::trace::{Event, Process, Trace, TracedFile};

/// A trace, and what was not in it.
#[derive(Debug, Default)]
pub struct Collected {
    /// The trace; what it is about is the caller's to add.
    pub trace: Trace,
    /// When its first call began, by the monotonic clock.
    pub origin_ns: u64,
}

/// Reads an arena; nothing of bytes that are none.
#[must_use]
pub fn collected(bytes: &[u8]) -> Option<Collected> {
    let header = header_of(bytes)?;
    let mut parts = Parts::default();
    let chunks = bytes.get(HEADER_BYTES..)?.chunks_exact(CHUNK_SLOTS * SLOT_BYTES);
    for chunk in chunks.take(usize::try_from(header.chunks_taken).unwrap_or(usize::MAX)) {
        parts.add(chunk);
    }
    let mut collected = parts.finished();
    collected.trace.about.lost = header.lost;
    Some(collected)
}

fn words(bytes: &[u8]) -> [u64; WORDS] {
    let mut words = [0; WORDS];
    for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(8)) {
        *word = bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
    }
    words
}

/// A record with the thread that made it.
struct Recorded {
    process: u32,
    thread: u32,
    slot: Slot,
}

#[derive(Default)]
struct Parts {
    processes: HashMap<u32, Process>,
    files: HashMap<u32, TracedFile>,
    records: Vec<Recorded>,
}

impl Parts {
    fn add(&mut self, chunk: &[u8]) {
        let head = words(chunk);
        if head[0] as u8 != CHUNK {
            return;
        }
        let (process, thread) = (head[1] as u32, (head[1] >> 32) as u32);
        let pid = (head[0] >> 32) as u32;
        self.processes.entry(process).or_default().pid = pid;
        let slots: Vec<[u64; WORDS]> = chunk.chunks_exact(SLOT_BYTES).map(words).collect();
        for (at, words) in slots.iter().enumerate().skip(1) {
            match words[0] as u8 {
                FILE => self.add_file(words, text(words, &slots[at + 1..])),
                PROCESS => self.add_process(words, text(words, &slots[at + 1..])),
                _ => {
                    let record = Slot::of(words).map(|slot| Recorded { process, thread, slot });
                    self.records.extend(record);
                }
            }
        }
    }

    fn add_file(&mut self, words: &[u64; WORDS], path: String) {
        let file = TracedFile {
            path,
            device: words[2],
            inode: words[3],
            size_bytes: words[4],
            is_device: (words[0] >> 8) as u8 != 0,
        };
        self.files.insert(words[1] as u32, file);
    }

    fn add_process(&mut self, words: &[u64; WORDS], program: String) {
        let process = Process { pid: words[2] as u32, parent: words[3] as u32, program };
        self.processes.insert(words[1] as u32, process);
    }

    fn finished(mut self) -> Collected {
        self.records.sort_by_key(|record| record.slot.begin_ns);
        let origin_ns = self.records.first().map_or(0, |record| record.slot.begin_ns);
        let mut numbers: Vec<u32> = self.processes.keys().copied().collect();
        numbers.sort_unstable();
        let place = |number: &u32| numbers.binary_search(number).map_or(0, |at| at as u32);
        let (files, file_of) = united(&self.files);
        let mut events = Vec::with_capacity(self.records.len());
        // Requests whose end is still to come, by process and key.
        let mut open: HashMap<(u32, u64), usize> = HashMap::new();
        for Recorded { process, thread, slot } in &self.records {
            let file = file_of.get(&slot.file).copied();
            let mut event = event(slot, place(process), *thread, file, origin_ns);
            match slot.call {
                Call::Submit => {
                    event.call = if slot.flags & 1 == 0 { Call::Read } else { Call::Write };
                    event.how |= how::ASYNC | how::UNFINISHED;
                    (event.moved, event.flags) = (0, 0);
                    open.insert((*process, slot.key), events.len());
                    events.push(event);
                }
                Call::Complete => {
                    let begun = open.remove(&(*process, slot.key));
                    if let Some(begun) = begun.and_then(|at| events.get_mut(at)) {
                        finish(begun, slot, origin_ns);
                    }
                }
                _ => events.push(event),
            }
        }
        let processes = numbers.iter().filter_map(|number| self.processes.remove(number)).collect();
        let trace = Trace { processes, files, events, ..Trace::default() };
        Collected { trace, origin_ns }
    }
}

fn event(slot: &Slot, process: u32, thread: u32, file: Option<u32>, origin_ns: u64) -> Event {
    Event {
        process,
        thread,
        call: slot.call,
        how: slot.how,
        errno: slot.errno,
        file,
        flags: slot.flags,
        begin_ns: slot.begin_ns.saturating_sub(origin_ns),
        took_ns: slot.took_ns,
        offset: slot.offset,
        asked: slot.asked,
        moved: if slot.call.is_move() { slot.result.max(0) as u64 } else { 0 },
        memory_align: 1 << slot.key.trailing_zeros().min(12),
    }
}

/// Enters the end of a request into its beginning.
fn finish(event: &mut Event, end: &Slot, origin_ns: u64) {
    event.how &= !how::UNFINISHED;
    let at = end.begin_ns.saturating_add(end.took_ns).saturating_sub(origin_ns);
    event.took_ns = at.saturating_sub(event.begin_ns);
    if end.result < 0 {
        event.errno = u16::try_from(end.result.unsigned_abs()).unwrap_or(u16::MAX);
    } else {
        event.moved = end.result as u64;
    }
}

/// The text behind a head, as far as it is there.
fn text(head: &[u64; WORDS], following: &[[u64; WORDS]]) -> String {
    let len = (head[0] >> 32) as u32 as usize;
    let mut bytes = Vec::new();
    let parts = following.iter().take(len.div_ceil(TEXT_BYTES));
    for part in parts.take_while(|part| part[0] as u8 == TEXT) {
        bytes.extend(part[1..].iter().flat_map(|word| word.to_le_bytes()));
    }
    bytes.truncate(len);
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Each open gave its file a number: those of one file become one.
fn united(seen: &HashMap<u32, TracedFile>) -> (Vec<TracedFile>, HashMap<u32, u32>) {
    let mut numbers: Vec<u32> = seen.keys().copied().collect();
    numbers.sort_unstable();
    let mut files: Vec<TracedFile> = Vec::new();
    let mut known: HashMap<(u64, u64, String), u32> = HashMap::new();
    let mut file_of = HashMap::new();
    for number in numbers {
        let Some(file) = seen.get(&number) else { continue };
        // A path that an open in vain named has neither device nor inode.
        let path = file.path.clone();
        let place = *known.entry((file.device, file.inode, path)).or_insert_with(|| {
            files.push(file.clone());
            files.len() as u32 - 1
        });
        file_of.insert(number, place);
    }
    (files, file_of)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use super::*;
    use crate::arena::{Arena, Who};
    use crate::slot::Identity;

    const CHUNKS: usize = 2;

    /// Memory for an arena, and what it holds as bytes.
    fn memory() -> Vec<AtomicU64> {
        let words = (HEADER_BYTES + CHUNKS * CHUNK_SLOTS * SLOT_BYTES) / 8;
        let memory: Vec<AtomicU64> = (0..words).map(|_| AtomicU64::new(0)).collect();
        for (word, bytes) in memory.iter().zip(Arena::header(false).chunks_exact(8)) {
            word.store(u64::from_le_bytes(bytes.try_into().unwrap()), Relaxed);
        }
        memory
    }
    use std::sync::atomic::Ordering::Relaxed;

    fn bytes(memory: &[AtomicU64]) -> Vec<u8> {
        memory.iter().flat_map(|word| word.load(Relaxed).to_le_bytes()).collect()
    }

    fn slot(call: Call, begin_ns: u64, key: u64) -> Slot {
        Slot {
            call,
            how: 0,
            errno: 0,
            fd: 3,
            begin_ns,
            took_ns: 10,
            file: 1,
            flags: 1,
            offset: 8192,
            asked: 4096,
            result: 4096,
            key,
        }
    }

    #[test]
    fn what_is_recorded_is_collected_in_the_order_of_time() {
        let memory = memory();
        let arena = Arena::open(&memory).unwrap();
        let who = Who { process: arena.next_process(), pid: 70, thread: 71 };
        let chunk = arena.take(&who).unwrap();
        let path = vec![b'p'; 100];
        let file = Identity { file: arena.next_file(), device: 5, inode: 6, ..Identity::default() };
        arena.record_file(chunk.first, &file, &path);
        let at = chunk.first + Arena::slots_of(&path);
        arena.record(at, &slot(Call::Write, 300, 8192));
        arena.record(at + 1, &slot(Call::Submit, 100, 0xabc));
        arena.record(at + 2, &slot(Call::Complete, 250, 0xabc));
        arena.record(at + 3, &slot(Call::Submit, 270, 0xabc));
        let found = collected(&bytes(&memory)).unwrap();
        let trace = &found.trace;
        assert_eq!(trace.files[0].path.as_bytes(), path);
        assert_eq!(trace.processes[0].pid, 70);
        let told: Vec<_> =
            trace.events.iter().map(|e| (e.call, e.begin_ns, e.took_ns, e.how)).collect();
        assert_eq!(
            told,
            [
                (Call::Write, 0, 160, how::ASYNC),
                (Call::Write, 170, 10, how::ASYNC | how::UNFINISHED),
                (Call::Write, 200, 10, 0)
            ]
        );
        assert_eq!(trace.events[2].memory_align, 4096);
    }

    #[test]
    fn i_trc_1_no_two_threads_have_a_slot_in_common() {
        let memory = memory();
        let arena = Arena::open(&memory).unwrap();
        let take = |thread| arena.take(&Who { process: 1, pid: 7, thread });
        let (one, other) = (take(7).unwrap(), take(8).unwrap());
        assert!(one.end <= other.first && one.first < one.end && other.first < other.end);
        (one.first..one.end).for_each(|at| arena.record(at, &slot(Call::Read, at, 1)));
        (other.first..other.end).for_each(|at| arena.record(at, &slot(Call::Write, at, 1)));
        let trace = collected(&bytes(&memory)).unwrap().trace;
        let of = |thread| trace.events.iter().filter(move |event| event.thread == thread);
        assert!(of(7).all(|event| event.call == Call::Read));
        assert_eq!((of(7).count(), of(8).count()), (CHUNK_SLOTS - 1, CHUNK_SLOTS - 1));
    }

    #[test]
    fn what_finds_no_room_is_counted() {
        let memory = memory();
        let arena = Arena::open(&memory).unwrap();
        let who = Who { process: 1, pid: 7, thread: 7 };
        assert!(arena.take(&who).is_some() && arena.take(&who).is_some());
        assert_eq!(arena.take(&who), None);
        arena.lose(3);
        assert_eq!(collected(&bytes(&memory)).unwrap().trace.about.lost, 3);
    }

    #[test]
    fn i_trc_2_a_slot_without_its_first_word_is_none() {
        let memory = memory();
        let arena = Arena::open(&memory).unwrap();
        let who = Who { process: 1, pid: 7, thread: 7 };
        let chunk = arena.take(&who).unwrap();
        (0..3).for_each(|i| arena.record(chunk.first + i, &slot(Call::Read, i, 1)));
        memory[(chunk.first as usize + 1) * WORDS].store(0, Relaxed);
        let trace = collected(&bytes(&memory)).unwrap().trace;
        assert_eq!(trace.events.iter().map(|e| e.begin_ns).collect::<Vec<_>>(), [0, 2]);
    }

    #[test]
    fn only_the_first_process_records_where_that_is_asked_for() {
        let memory = memory();
        memory[5].store(1, Relaxed);
        let arena = Arena::open(&memory).unwrap();
        assert!(arena.admits(9) && arena.admits(9) && !arena.admits(10));
    }

    #[test]
    fn any_bytes_are_collected_without_harm() {
        let memory = memory();
        let mut state = 1_u64;
        let mut bytes = bytes(&memory);
        bytes[8] = 0xff;
        for byte in &mut bytes[HEADER_BYTES..] {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695);
            *byte = (state >> 59) as u8;
        }
        bytes[HEADER_BYTES] = CHUNK;
        assert!(collected(&bytes).is_some());
        assert!(collected(&bytes[..HEADER_BYTES + 9]).is_some());
        assert!(collected(&bytes[..3]).is_none());
    }
}
