//! From both ends of system calls to the events of a trace.

use std::collections::HashMap;

use super::line::{Edge, KernelLine};
use crate::slot::{Call, how};
use crate::trace::{Event, Process, Trace, TracedFile};

/// The numbers of system calls on this processor.
#[derive(Debug, Clone)]
pub struct Numbers(pub Vec<(u64, Kind)>);

/// What a system call does, as far as it is followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A call of a trace: it has a descriptor, and where `placed` an offset as its fourth argument.
    Io {
        /// The call.
        call: Call,
        /// It names its place.
        placed: bool,
        /// Its size is the sum of a list, which only the result tells.
        vector: bool,
    },
    /// It makes a descriptor.
    Open,
    /// It ends one.
    Close,
    /// It moves a descriptor's place.
    Seek,
    /// It makes a second descriptor of one.
    Duplicate,
    /// It may do so (`fcntl`).
    Control,
    /// It maps a descriptor, its fifth argument.
    Map,
    /// It sets up a ring.
    Ring,
}

/// A descriptor, as the system tells of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Descriptor {
    /// Its file.
    pub file: TracedFile,
    /// Where the next call without a place begins.
    pub place: u64,
    /// Its flags.
    pub flags: u32,
    /// When the system was asked, by the clock of the ring.
    pub asked_ns: u64,
}

/// A thread's process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Task {
    /// The process.
    pub process: u32,
    /// It is to be recorded.
    pub is_wanted: bool,
}

/// What a descriptor leads to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LeadsTo {
    /// A regular file or block device.
    File(Descriptor),
    /// Anything else.
    Other,
    /// It was closed, or its process has ended, before the system was asked.
    Gone,
}

/// What the system says of processes and descriptors.
pub trait Descriptors {
    /// Tells of a descriptor.
    fn descriptor(&mut self, process: u32, fd: u32) -> LeadsTo;
    /// Tells which process a thread belongs to; nothing of one that has ended.
    fn task(&mut self, thread: u32) -> Option<Task>;
    /// Tells of a process.
    fn process(&mut self, process: u32) -> Process;
}

/// A call that began.
struct Begun {
    number: u64,
    at_ns: u64,
    arguments: [u64; 6],
}

/// A call on a file that has ended.
struct Io<'a> {
    begun: &'a Begun,
    placed: bool,
    vector: bool,
    result: i64,
}

/// A descriptor of a file of the trace.
#[derive(Clone)]
struct Open {
    file: u32,
    place: u64,
    flags: u32,
    asked_ns: u64,
}

const O_APPEND: u32 = 0o2_000;
const F_DUPFD: u64 = 0;
const F_DUPFD_CLOEXEC: u64 = 1030;

/// Puts calls together.
pub struct Follower<D> {
    numbers: HashMap<u64, Kind>,
    system: D,
    begun: HashMap<u32, Begun>,
    tasks: HashMap<u32, Option<Task>>,
    /// By process and descriptor; nothing of one that leads to no file.
    open: HashMap<(u32, u32), Option<Open>>,
    processes: HashMap<u32, u32>,
    files: HashMap<(u64, u64, String), u32>,
    /// Ends of files, for appends.
    ends: Vec<u64>,
    events_max: usize,
    trace: Trace,
}

impl<D: Descriptors> Follower<D> {
    /// Begins, with room for so many calls.
    #[must_use]
    pub fn new(numbers: &Numbers, system: D, events_max: usize) -> Self {
        Self {
            numbers: numbers.0.iter().copied().collect(),
            system,
            begun: HashMap::new(),
            tasks: HashMap::new(),
            open: HashMap::new(),
            processes: HashMap::new(),
            files: HashMap::new(),
            ends: Vec::new(),
            events_max,
            trace: Trace::default(),
        }
    }

    /// Asks for a descriptor now, so that its place is known when it is used.
    pub fn learn(&mut self, process: u32, fd: u32) {
        self.descriptor(process, fd);
    }

    /// Takes a line in.
    pub fn take(&mut self, line: &KernelLine) {
        match line.what {
            Edge::Enter(arguments) => {
                let begun = Begun { number: line.number, at_ns: line.at_ns, arguments };
                self.begun.insert(line.thread, begun);
            }
            Edge::Exit(result) => {
                let begun = self.begun.remove(&line.thread);
                // A call that began before the recording has no beginning.
                let Some(begun) = begun.filter(|begun| begun.number == line.number) else { return };
                let Some(kind) = self.numbers.get(&line.number).copied() else { return };
                let system = &mut self.system;
                let task =
                    self.tasks.entry(line.thread).or_insert_with(|| system.task(line.thread));
                match *task {
                    Some(task) if task.is_wanted => {
                        self.ended(kind, &begun, task.process, line, result);
                    }
                    Some(_) => {}
                    // Whose it was the system does not know any more.
                    None => self.trace.about.lost += u64::from(matches!(kind, Kind::Io { .. })),
                }
            }
        }
    }

    fn ended(&mut self, kind: Kind, begun: &Begun, process: u32, line: &KernelLine, result: i64) {
        let [first, second, _, _, fifth, _] = begun.arguments;
        let fd = first as u32;
        match kind {
            Kind::Open => {
                let Ok(fd) = u32::try_from(result) else { return };
                self.open.remove(&(process, fd));
                let Some(open) = self.descriptor(process, fd) else { return };
                // Its place is the beginning, whatever came since.
                self.set(process, fd, Open { place: 0, asked_ns: 0, ..open.clone() });
                let event = self.event(Call::Open, begun, process, line);
                self.push(Event { file: Some(open.file), flags: open.flags, ..event });
            }
            Kind::Close => {
                let open = self.open.remove(&(process, fd)).flatten();
                let Some(open) = open else { return };
                let event = self.event(Call::Close, begun, process, line);
                self.push(Event { file: Some(open.file), ..event });
            }
            Kind::Seek => {
                let Ok(place) = u64::try_from(result) else { return };
                if let Some(open) = self.descriptor(process, fd) {
                    self.set(process, fd, Open { place, asked_ns: 0, ..open });
                }
            }
            Kind::Duplicate => self.duplicate(process, fd, result),
            Kind::Control if matches!(second, F_DUPFD | F_DUPFD_CLOEXEC) => {
                self.duplicate(process, fd, result);
            }
            Kind::Control => {}
            Kind::Map => {
                let Some(open) = self.descriptor(process, fifth as u32) else { return };
                let event = self.event(Call::Map, begun, process, line);
                self.push(Event { file: Some(open.file), asked: second, ..failed(event, result) });
            }
            Kind::Ring => {
                let event = self.event(Call::Ring, begun, process, line);
                self.push(failed(event, result));
            }
            Kind::Io { call, placed, vector } => {
                let Some(open) = self.descriptor(process, fd) else {
                    // Whether it was a file the system does not know any more.
                    self.trace.about.lost += u64::from(!self.open.contains_key(&(process, fd)));
                    return;
                };
                let event = failed(self.event(call, begun, process, line), result);
                // The kernel takes this place for none.
                let placed = placed && begun.arguments[3] != u64::MAX;
                self.io(&open, (process, fd), event, &Io { begun, placed, vector, result });
            }
        }
    }

    /// Takes a call on a file: its place and its size.
    fn io(&mut self, open: &Open, key: (u32, u32), event: Event, io: &Io<'_>) {
        let [_, second, third, fourth, ..] = io.begun.arguments;
        let call = event.call;
        let moved = if call.is_move() { u64::try_from(io.result).unwrap_or(0) } else { 0 };
        let (offset, asked) = match call {
            Call::Read | Call::Write if io.placed => (fourth, third),
            Call::Read | Call::Write => (self.placed(key, open, &event, moved), third),
            Call::RangeSync => (second, third),
            Call::Truncate => (0, second),
            Call::Allocate => (third, fourth),
            _ => (0, 0),
        };
        let bits = if io.placed { how::PLACED } else { 0 };
        let bits = bits | if io.vector { how::VECTOR } else { 0 };
        if call == Call::Write {
            let end = &mut self.ends[open.file as usize];
            *end = (*end).max(offset.saturating_add(moved));
        }
        let asked = if io.vector { moved } else { asked };
        self.push(Event { file: Some(open.file), offset, asked, moved, how: bits, ..event });
    }

    /// Returns the place of a call that names none, and moves on.
    fn placed(&mut self, key: (u32, u32), open: &Open, event: &Event, moved: u64) -> u64 {
        let is_append = event.call == Call::Write && open.flags & O_APPEND != 0;
        let place = if is_append { self.ends[open.file as usize] } else { open.place };
        // The place that the system told has this call in it when it was asked later.
        if event.end_ns() < open.asked_ns {
            return place.saturating_sub(moved);
        }
        let moved_on = Open { place: place.saturating_add(moved), ..open.clone() };
        self.set(key.0, key.1, moved_on);
        place
    }

    fn duplicate(&mut self, process: u32, fd: u32, result: i64) {
        if let Ok(second) = u32::try_from(result) {
            let open = self.descriptor(process, fd);
            self.open.insert((process, second), open);
        }
    }

    fn set(&mut self, process: u32, fd: u32, open: Open) {
        self.open.insert((process, fd), Some(open));
    }

    fn descriptor(&mut self, process: u32, fd: u32) -> Option<Open> {
        if let Some(known) = self.open.get(&(process, fd)) {
            return known.clone();
        }
        let found = match self.system.descriptor(process, fd) {
            LeadsTo::File(found) => Some(found),
            LeadsTo::Other => None,
            LeadsTo::Gone => return None,
        };
        let open = found.map(|found| {
            let key = (found.file.device, found.file.inode, found.file.path.clone());
            let trace = &mut self.trace;
            let ends = &mut self.ends;
            let file = *self.files.entry(key).or_insert_with(|| {
                ends.push(found.file.size_bytes);
                trace.files.push(found.file);
                trace.files.len() as u32 - 1
            });
            Open { file, place: found.place, flags: found.flags, asked_ns: found.asked_ns }
        });
        self.open.insert((process, fd), open.clone());
        open
    }

    fn event(&mut self, call: Call, begun: &Begun, process: u32, line: &KernelLine) -> Event {
        let (system, trace) = (&mut self.system, &mut self.trace);
        let number = *self.processes.entry(process).or_insert_with(|| {
            trace.processes.push(system.process(process));
            trace.processes.len() as u32 - 1
        });
        let is_move = call.is_move();
        Event {
            process: number,
            thread: line.thread,
            call,
            how: 0,
            errno: 0,
            file: None,
            flags: 0,
            begin_ns: begun.at_ns,
            took_ns: line.at_ns.saturating_sub(begun.at_ns),
            offset: 0,
            asked: 0,
            moved: 0,
            memory_align: if is_move {
                1 << begun.arguments[1].trailing_zeros().min(12)
            } else {
                1
            },
        }
    }

    fn push(&mut self, event: Event) {
        if self.trace.events.len() < self.events_max {
            self.trace.events.push(event);
        } else {
            self.trace.about.lost += 1;
        }
    }

    /// Returns the trace; its times begin with its first call.
    #[must_use]
    pub fn finished(mut self) -> Trace {
        self.trace.events.sort_by_key(|event| event.begin_ns);
        let origin = self.trace.events.first().map_or(0, |event| event.begin_ns);
        self.trace.events.iter_mut().for_each(|event| event.begin_ns -= origin);
        self.trace
    }
}

fn failed(event: Event, result: i64) -> Event {
    let errno = if result < 0 { result.unsigned_abs() } else { 0 };
    Event { errno: u16::try_from(errno).unwrap_or(u16::MAX), ..event }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One process with a file at 3, which the system was asked about at 100, and a pipe at 4.
    struct System;

    impl Descriptors for System {
        fn descriptor(&mut self, _: u32, fd: u32) -> LeadsTo {
            let file = |path: &str| TracedFile {
                path: path.into(),
                device: 1,
                inode: u64::from(fd),
                size_bytes: 1000,
                is_device: false,
            };
            let of = |file, place, flags| Descriptor { file, place, flags, asked_ns: 100 };
            match fd {
                3 => LeadsTo::File(of(file("/three"), 500, 0)),
                5 => LeadsTo::File(of(file("/five"), 77, 0)),
                6 => LeadsTo::File(of(file("/six"), 0, O_APPEND)),
                4 => LeadsTo::Other,
                _ => LeadsTo::Gone,
            }
        }
        fn task(&mut self, thread: u32) -> Option<Task> {
            (thread < 90).then_some(Task { process: 10, is_wanted: thread < 80 })
        }
        fn process(&mut self, pid: u32) -> Process {
            Process { pid, parent: 1, program: "/p".into() }
        }
    }

    fn io(call: Call, placed: bool) -> Kind {
        Kind::Io { call, placed, vector: false }
    }

    fn numbers() -> Numbers {
        Numbers(vec![
            (0, io(Call::Read, false)),
            (1, io(Call::Write, false)),
            (2, Kind::Open),
            (3, Kind::Close),
            (8, Kind::Seek),
            (33, Kind::Duplicate),
            (72, Kind::Control),
            (17, io(Call::Read, true)),
            (74, io(Call::Sync, false)),
        ])
    }

    fn followed(calls: &[(u32, u64, u64, [u64; 4], i64)]) -> Trace {
        let mut follower = Follower::new(&numbers(), System, 100);
        follower.learn(10, 3);
        for (thread, number, at_ns, [a, b, c, d], result) in calls {
            let line = |at_ns, what| KernelLine { thread: *thread, at_ns, number: *number, what };
            follower.take(&line(*at_ns, Edge::Enter([*a, *b, *c, *d, 0, 0])));
            follower.take(&line(at_ns + 5, Edge::Exit(*result)));
        }
        follower.finished()
    }

    #[test]
    fn s_454_places_that_calls_do_not_name_are_followed() {
        let trace = followed(&[
            // Before the system was asked: its answer has this call in it.
            (10, 0, 40, [3, 0, 100, 0], 100),
            (10, 0, 200, [3, 0, 100, 0], 100),
            (11, 0, 300, [3, 0, 100, 0], 50),
            (10, 8, 400, [3, 0, 0, 0], 8),
            (10, 1, 500, [3, 0, 30, 0], 30),
            (10, 17, 600, [3, 4096, 64, 9000], 64),
            (10, 0, 700, [3, 0, 10, 0], -5),
        ]);
        let told: Vec<_> = trace.events.iter().map(|e| (e.offset, e.moved, e.errno)).collect();
        assert_eq!(
            told,
            [(400, 100, 0), (500, 100, 0), (600, 50, 0), (8, 30, 0), (9000, 64, 0), (38, 0, 5)]
        );
        assert_eq!((trace.events[0].begin_ns, trace.events[1].begin_ns), (0, 160));
        assert_eq!(trace.events[4].memory_align, 4096);
    }

    #[test]
    fn s_454_opens_begin_at_their_beginning_and_appends_at_the_end() {
        let trace = followed(&[
            (10, 2, 10, [0, 0, 0, 0], 5),
            (10, 0, 20, [5, 0, 40, 0], 40),
            (10, 2, 30, [0, 0, 0, 0], 6),
            (10, 1, 40, [6, 0, 24, 0], 24),
            (10, 1, 150, [6, 0, 24, 0], 24),
            (10, 74, 160, [6, 0, 0, 0], 0),
            (10, 3, 170, [6, 0, 0, 0], 0),
        ]);
        let told: Vec<_> = trace.events.iter().map(|e| (e.call, e.offset)).collect();
        assert_eq!(
            told,
            [
                (Call::Open, 0),
                (Call::Read, 0),
                (Call::Open, 0),
                (Call::Write, 1000),
                (Call::Write, 1024),
                (Call::Sync, 0),
                (Call::Close, 0)
            ]
        );
        assert_eq!(trace.files.len(), 3);
        assert_eq!(trace.processes.len(), 1);
    }

    #[test]
    fn s_454_a_second_descriptor_goes_on_where_the_first_is() {
        let trace = followed(&[
            (10, 0, 200, [3, 0, 100, 0], 100),
            (10, 33, 210, [3, 1, 0, 0], 1),
            (10, 3, 220, [3, 0, 0, 0], 0),
            (10, 1, 230, [1, 0, 50, 0], 50),
            (10, 72, 240, [1, 1030, 0, 0], 9),
            (10, 72, 245, [1, 3, 0, 0], 7),
            (10, 1, 250, [9, 0, 50, 0], 50),
        ]);
        let told: Vec<_> = trace.events.iter().map(|e| (e.call, e.offset)).collect();
        let expected =
            [(Call::Read, 500), (Call::Close, 0), (Call::Write, 600), (Call::Write, 650)];
        assert_eq!(told, expected);
        assert_eq!(trace.about.lost, 0);
    }

    #[test]
    fn s_455_calls_on_what_was_closed_too_soon_are_counted() {
        let trace = followed(&[
            (10, 2, 10, [0, 0, 0, 0], 8),
            (10, 1, 20, [8, 0, 24, 0], 24),
            (10, 3, 30, [8, 0, 0, 0], 0),
            (10, 1, 40, [4, 0, 24, 0], 24),
        ]);
        assert_eq!((trace.events.len(), trace.about.lost), (0, 1));
    }

    #[test]
    fn what_is_no_file_of_the_processes_is_left_out() {
        let trace = followed(&[
            (10, 0, 10, [4, 0, 1, 0], 1),
            (85, 0, 20, [3, 0, 1, 0], 1),
            (95, 0, 30, [3, 0, 1, 0], 1),
            (10, 999, 40, [3, 0, 1, 0], 1),
        ]);
        assert!(trace.events.is_empty(), "{:?}", trace.events);
        let mut follower = Follower::new(&numbers(), System, 0);
        let line = |what| KernelLine { thread: 10, at_ns: 7, number: 0, what };
        // An end without a beginning is none; a call without room is counted.
        follower.take(&line(Edge::Exit(1)));
        follower.take(&line(Edge::Enter([3, 0, 1, 0, 0, 0])));
        follower.take(&line(Edge::Exit(1)));
        assert_eq!(follower.finished().about.lost, 1);
    }
}
