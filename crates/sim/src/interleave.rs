//! Two threads of which one runs at a time: what another operation does in the middle of one.
//!
//! ```text
//!   first   ──●──●──●┐            ┌●──●──● … to its end
//!   second           └●──●──●──●──┘              … to its end
//! ```
//!
//! A thread gives its turn away only at a *pause*: before a call of a device, and where the file
//! system has one (`bedplate_fs::Pause`: between the records of a long change, and between planning
//! and logging one). The turns are numbers of pauses, so the same numbers make the same order. A
//! thread that waits for a lock comes to no pause; the other one sees that it sleeps, takes the
//! turn, and gives it time whenever it has let go of something. Which of them is first between that
//! and the next pause is the scheduler's: the only thing that does not repeat.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};

/// How often a thread looks whether the other one sleeps.
const LOOK: Duration = Duration::from_micros(200);
/// Between two looks at a thread that must both find it asleep.
const DOZE: Duration = Duration::from_micros(40);
/// When both have made no progress for so long, they wait for each other for ever.
const STUCK: Duration = Duration::from_secs(120);

/// Which of the two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Who {
    First,
    Second,
}

impl Who {
    fn other(self) -> Self {
        if self == Self::First { Self::Second } else { Self::First }
    }

    fn index(self) -> usize {
        self as usize
    }
}

#[derive(Debug)]
struct State {
    turn: Who,
    /// How many pauses the turn still lasts; `None`: to the end.
    left: Option<u16>,
    turns: VecDeque<u16>,
    /// The thread that waits at a pause.
    waiting: [bool; 2],
    over: [bool; 2],
    pauses: [u64; 2],
    /// The entry of each thread in `/proc`.
    entries: [Option<Arc<File>>; 2],
    taken: u64,
}

#[derive(Debug)]
struct Turns {
    state: Mutex<State>,
    changed: Condvar,
}

thread_local! {
    static PLACE: RefCell<Option<(Arc<Turns>, Who)>> = const { RefCell::new(None) };
}

/// How two threads went.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Met {
    /// How many pauses each came to.
    pub(crate) pauses: [u64; 2],
}

/// Lets this thread be held up, if it is one of two.
pub(crate) fn pause() {
    let place = PLACE.with_borrow(Clone::clone);
    if let Some((turns, who)) = place {
        turns.pause(who);
    }
}

/// Runs both, of which the first begins and gives its turn away after so many pauses, the second
/// after so many, and so on.
pub(crate) fn run<A: Send, B: Send>(
    turns: &[u16],
    first: impl FnOnce() -> A + Send,
    second: impl FnOnce() -> B + Send,
) -> Result<(A, B, Met), String> {
    let mut queue: VecDeque<u16> = turns.iter().copied().collect();
    let state = State {
        turn: Who::First,
        left: queue.pop_front(),
        turns: queue,
        waiting: [false; 2],
        over: [false; 2],
        pauses: [0; 2],
        entries: [None, None],
        taken: 0,
    };
    let both = Arc::new(Turns { state: Mutex::new(state), changed: Condvar::new() });
    let (a, b) = std::thread::scope(|scope| {
        let (of_first, of_second) = (bedplate_fs::inherit(), bedplate_fs::inherit());
        let place = |who| (Arc::clone(&both), who);
        let (for_first, for_second) = (place(Who::First), place(Who::Second));
        let first = scope.spawn(move || for_first.0.carry_out(for_first.1, of_first, first));
        let second = scope.spawn(move || for_second.0.carry_out(for_second.1, of_second, second));
        both.watch();
        (first.join(), second.join())
    });
    let met = Met { pauses: both.state.lock().pauses };
    Ok((whole(a)?, whole(b)?, met))
}

/// Makes one sentence of a panic.
fn whole<T>(joined: std::thread::Result<T>) -> Result<T, String> {
    joined.map_err(|panic| {
        let said = panic
            .downcast_ref::<String>()
            .map(String::as_str)
            .or(panic.downcast_ref::<&str>().copied());
        format!("a thread panicked: {}", said.unwrap_or("it did not say why"))
    })
}

/// Ends a thread's part, also by a panic.
struct Ends<'a>(&'a Turns, Who);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        PLACE.set(None);
        bedplate_fs::on_pause(None);
        debug_assert!(
            !self.0.state.lock().over[self.1.index()],
            "each of the two ends once: {:?}",
            self.1
        );
        let mut state = self.0.state.lock();
        state.over[self.1.index()] = true;
        if state.turn == self.1 {
            state.turn = self.1.other();
            state.left = None;
        }
        drop(state);
        self.0.changed.notify_all();
    }
}

impl Turns {
    fn carry_out<T>(
        self: &Arc<Self>,
        who: Who,
        inherit: impl FnOnce(),
        work: impl FnOnce() -> T,
    ) -> T {
        inherit();
        let _ends = Ends(self, who);
        let mut state = self.state.lock();
        state.entries[who.index()] = File::open("/proc/thread-self/stat").ok().map(Arc::new);
        drop(self.wait(state, who));
        PLACE.set(Some((Arc::clone(self), who)));
        bedplate_fs::on_pause(Some(Rc::new(|_| pause())));
        work()
    }

    fn pause(&self, who: Who) {
        let mut state = self.state.lock();
        state.pauses[who.index()] += 1;
        if state.turn == who {
            state = self.let_wake(state, who);
            match &mut state.left {
                None => return,
                Some(left) if *left > 1 => {
                    *left -= 1;
                    return;
                }
                Some(_) => {}
            }
            state.left = state.turns.pop_front();
            if state.over[who.other().index()] {
                return;
            }
            state.turn = who.other();
            self.changed.notify_all();
        }
        drop(self.wait(state, who));
    }

    /// Waits for the turn, and takes it when the other one is over or sleeps elsewhere.
    fn wait<'a>(&'a self, mut state: MutexGuard<'a, State>, who: Who) -> MutexGuard<'a, State> {
        let other = who.other().index();
        state.waiting[who.index()] = true;
        self.changed.notify_all();
        while state.turn != who {
            self.changed.wait_for(&mut state, LOOK);
            if state.turn == who {
                break;
            }
            // One that has not come to its beginning yet has no entry.
            let sleeps = |state: &State| {
                !state.waiting[other] && !state.over[other] && state.entries[other].is_some()
            };
            if state.over[other]
                || (sleeps(&state)
                    && self.is_asleep(&mut state, other)
                    && state.turn != who
                    && sleeps(&state))
            {
                debug_assert!(state.waiting[who.index()], "a turn is taken by what waits for it");
                state.turn = who;
                state.left = state.turns.pop_front();
                state.taken += 1;
            }
        }
        state.waiting[who.index()] = false;
        state
    }

    /// A thread that waited for what this one released comes to its own next pause first.
    fn let_wake<'a>(&'a self, mut state: MutexGuard<'a, State>, who: Who) -> MutexGuard<'a, State> {
        let other = who.other().index();
        while !state.waiting[other]
            && !state.over[other]
            && state.entries[other].is_some()
            && !self.is_asleep(&mut state, other)
        {
            self.changed.wait_for(&mut state, LOOK);
        }
        state
    }

    /// Whether a thread sleeps, as two looks find it. Nothing is held meanwhile.
    fn is_asleep(&self, state: &mut MutexGuard<'_, State>, index: usize) -> bool {
        let Some(entry) = state.entries[index].clone() else { return false };
        MutexGuard::unlocked(state, || {
            let asleep = || {
                let mut line = [0; 256];
                let len = entry.read_at(&mut line, 0).unwrap_or(0);
                let state = line[..len]
                    .iter()
                    .rposition(|byte| *byte == b')')
                    .and_then(|at| line.get(at + 2));
                state == Some(&b'S')
            };
            asleep() && {
                std::thread::sleep(DOZE);
                asleep()
            }
        })
    }

    /// Waits until both are over. Two that wait for each other never are: nothing but the end of
    /// the process helps then.
    fn watch(&self) {
        let mut state = self.state.lock();
        let (mut known, mut since) = (state.pauses, Instant::now());
        while state.over != [true; 2] {
            self.changed.wait_for(&mut state, STUCK / 8);
            if state.pauses != known {
                (known, since) = (state.pauses, Instant::now());
            }
            if state.over != [true; 2] && since.elapsed() > STUCK {
                eprintln!(
                    "two operations wait for each other, or for something that never comes: \
                     {state:?}"
                );
                std::process::abort();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    /// The order in which two threads passed their pauses.
    fn order(turns: &[u16]) -> String {
        let order = Mutex::new(String::new());
        let work = |name: char| {
            let order = &order;
            move || {
                for _ in 0..4 {
                    order.lock().push(name);
                    pause();
                }
            }
        };
        run(turns, work('a'), work('b')).expect("neither panics");
        order.into_inner()
    }

    #[test]
    fn the_turns_say_who_goes_on() {
        assert_eq!(order(&[]), "aaaabbbb");
        assert_eq!(order(&[1]), "abbbbaaa");
        assert_eq!(order(&[2, 1, 1]), "aababbba");
        assert_eq!(order(&[9]), "aaaabbbb");
    }

    /// The second one waits for a lock that the first one holds over its pauses: the first goes on,
    /// and the second as soon as it can.
    #[test]
    fn a_thread_that_waits_for_a_lock_does_not_hold_the_other_one_up() {
        for _ in 0..20 {
            let (lock, order) = (Mutex::new(()), Mutex::new(String::new()));
            let note = |what: char| order.lock().push(what);
            let first = || {
                let held = lock.lock();
                note('a');
                pause();
                note('a');
                pause();
                note('a');
                drop(held);
                pause();
                note('z');
            };
            let second = || {
                let _held = lock.lock();
                note('b');
            };
            let (_, _, met) = run(&[1], first, second).expect("neither panics");
            assert_eq!(*order.lock(), "aaabz");
            assert_eq!(met.pauses, [3, 0]);
        }
    }

    #[test]
    fn a_panic_of_one_ends_both() {
        let count = AtomicU64::new(0);
        let first = || {
            pause();
            count.fetch_add(1, Ordering::SeqCst);
        };
        let said = run(&[1], first, || -> () { panic!("this one fails") })
            .expect_err("one of them panics");
        assert!(said.ends_with("this one fails"), "{said}");
        assert_eq!(count.into_inner(), 1);
    }
}
