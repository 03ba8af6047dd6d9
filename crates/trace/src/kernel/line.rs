//! Lines of the kernel's event ring (`trace_pipe` of tracefs): beginnings and ends of system calls.
//!
//! ```text
//!    postgres-4711    [001] .....  5021.803211: sys_enter: NR 17 (5, 7f0c1000, 2000, 8000, 0, 0)
//!    postgres-4711    [001] .....  5021.803244: sys_exit: NR 17 = 8192
//! ```
//!
//! The name of a task is its own choice and may hold anything, so a line is read from its end.

/// A system call began or ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KernelLine {
    /// The thread.
    pub thread: u32,
    /// When, by the clock of the ring.
    pub at_ns: u64,
    /// The call's number.
    pub number: u64,
    /// What it is.
    pub what: Edge,
}

/// Which end of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Edge {
    /// It began, with these arguments.
    Enter([u64; 6]),
    /// It ended with this result.
    Exit(i64),
}

/// Reads a line; nothing of any other one.
#[must_use]
pub fn kernel_line(line: &str) -> Option<KernelLine> {
    const ENTER: &str = ": sys_enter: NR ";
    const EXIT: &str = ": sys_exit: NR ";
    let (head, number, what) = if let Some((head, rest)) = line.rsplit_once(ENTER) {
        let (number, arguments) = rest.trim_end().split_once(" (")?;
        (head, number, Edge::Enter(arguments_of(arguments.strip_suffix(')')?)?))
    } else {
        let (head, rest) = line.rsplit_once(EXIT)?;
        let (number, result) = rest.trim_end().split_once(" = ")?;
        (head, number, Edge::Exit(result.parse().ok()?))
    };
    let (rest, time) = head.rsplit_once(' ')?;
    let (task, _) = rest.rsplit_once(" [")?;
    let (_, thread) = task.trim_end().rsplit_once('-')?;
    Some(KernelLine {
        thread: thread.parse().ok()?,
        at_ns: nanoseconds(time)?,
        number: number.parse().ok()?,
        what,
    })
}

fn arguments_of(text: &str) -> Option<[u64; 6]> {
    let mut arguments = [0; 6];
    let mut words = text.split(", ");
    for argument in &mut arguments {
        *argument = u64::from_str_radix(words.next()?, 16).ok()?;
    }
    words.next().is_none().then_some(arguments)
}

/// Seconds with six digits behind the point.
fn nanoseconds(text: &str) -> Option<u64> {
    let (seconds, micros) = text.split_once('.')?;
    let is_whole = micros.len() == 6 && micros.bytes().all(|byte| byte.is_ascii_digit());
    let micros: u64 = micros.parse().ok().filter(|_| is_whole)?;
    seconds.parse::<u64>().ok()?.checked_mul(1_000_000)?.checked_add(micros)?.checked_mul(1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ends_of_a_call_are_read_whatever_the_task_is_called() {
        let line = "    a-1 [9] b-4711    [001] .....  5021.803211: sys_enter: NR 17 (5, 7f0c, \
                    2000, 8000, 0, ffffffffffffffff)";
        let read = kernel_line(line).unwrap();
        assert_eq!((read.thread, read.at_ns, read.number), (4711, 5_021_803_211_000, 17));
        assert_eq!(read.what, Edge::Enter([5, 0x7f0c, 0x2000, 0x8000, 0, u64::MAX]));
        let line = "   <...>-22      [000] d..1.    0.000001: sys_exit: NR 1 = -28\n";
        let read = kernel_line(line).unwrap();
        assert_eq!((read.thread, read.at_ns, read.what), (22, 1000, Edge::Exit(-28)));
    }

    #[test]
    fn any_other_line_is_none() {
        for line in [
            "",
            "CPU:0 [LOST 7 EVENTS]",
            "a-1 [0] ..... 1.000001: sys_enter: NR 0 (1, 2)",
            "a-1 [0] ..... 1.000001: sys_enter: NR 0 (1, 2, 3, 4, 5, 6, 7)",
            "a-1 [0] ..... 1.01: sys_exit: NR 0 = 1",
            "a-x [0] ..... 1.000001: sys_exit: NR 0 = 1",
            "a-1 [0] ..... 99999999999999999999.000001: sys_exit: NR 0 = 1",
            "a-1 [0] ..... 1.000001: sched_switch: prev",
        ] {
            assert_eq!(kernel_line(line), None, "{line}");
        }
    }
}
