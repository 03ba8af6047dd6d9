//! Programs that append to files in odd pieces, which rest on the mount for it.

use super::*;

/// Pieces of a log, each of a length and a byte of its own.
const BEGIN: &str = "
import os, sys
fd = os.open(os.environ['F'], os.O_RDWR)
def piece(i): return bytes([i % 250 + 1]) * (1 + i * 37 % 900)
def end(): return os.lseek(fd, 0, os.SEEK_END)
";

fn script(rest: &str) -> String {
    format!("{BEGIN}{rest}")
}

/// The pieces of a log behind what it began with, and where they end.
fn pieces(begin: usize) -> impl Iterator<Item = (Vec<u8>, usize)> {
    (0..).scan(begin, |end, i| {
        let piece = vec![(i % 250 + 1) as u8; 1 + i * 37 % 900];
        *end += piece.len();
        Some((piece, *end))
    })
}

fn assert_log(bytes: &[u8], begin: usize) -> usize {
    let mut found = 0;
    for (piece, end) in pieces(begin) {
        let Some(there) = bytes.get(end - piece.len()..end) else {
            assert_eq!(bytes.len(), end - piece.len(), "S-289: a piece is there in part");
            break;
        };
        assert!(there == piece, "S-288: piece {found} is another");
        found += 1;
    }
    found
}

/// S-288: a program appends in memory that it shares with the mount; by whatever call it and another
/// one ask, the file is as long as it has made it, and holds what it wrote.
#[test]
fn s_288_a_program_appends_in_odd_pieces() {
    let Some(leasing) = Leasing::new(OPTIONS) else { return };
    let file = leasing.filled("f", 1);
    let script = script(
        "
at = end()
for i in range(6000):
    assert os.write(fd, piece(i)) == len(piece(i))
    at += len(piece(i))
    if i % 30 == 0: assert os.fstat(fd).st_size == at, i
    if i % 40 == 0: assert end() == at, i
    if i % 90 == 0: assert os.pread(fd, 900, at - len(piece(i))) == piece(i), i
    if i % 300 == 0: os.fdatasync(fd)
    if i % 700 == 0: os.fsync(fd)
    if i % 500 == 0:
        print(i + 1, flush=True)
        sys.stdin.readline()
i = 6000
child = os.fork()
if child == 0:
    os.write(fd, piece(i))
    os._exit(0)
os.waitpid(child, 0)
for i in range(6001, 6200): os.write(fd, piece(i))
copy = os.dup(fd)
os.close(fd)
for i in range(6200, 6400): os.pwrite(copy, piece(i), os.lseek(copy, 0, os.SEEK_END))
print('end', flush=True)
",
    );
    let mut program = Running::start(leasing.python(&script, &file, true));
    let begin = 4096;
    loop {
        let said = program.hear();
        let Ok(count) = said.parse::<usize>() else { break };
        let bytes = std::fs::read(&file).unwrap();
        assert_eq!(assert_log(&bytes, begin), count, "S-288: {said}");
        program.tell("on");
    }
    drop(program);
    assert_eq!(assert_log(&std::fs::read(&file).unwrap(), begin), 6400);
    let report = leasing.report();
    assert!(report.buffers > 3 && report.total.writes > 3000, "S-288: {report:?}");
    leasing.mounted.finish();
}

/// S-289: a program that appends is killed: all that it had written is there, and nothing in part.
#[test]
fn s_289_a_program_is_killed_while_it_appends() {
    let Some(leasing) = Leasing::new(OPTIONS) else { return };
    let script = script(
        "
os.ftruncate(fd, 4096)
i = 0
at = end()
while True:
    os.pwrite(fd, piece(i), at)
    at += len(piece(i))
    i += 1
    if i % 20 == 0: print(i, flush=True)
",
    );
    for _ in 0..3 {
        let file = leasing.filled("f", 1);
        let mut program = Running::start(leasing.python(&script, &file, true));
        (0..30).for_each(|_| drop(program.hear()));
        program.signal(rustix::process::Signal::KILL);
        let mut last = 0;
        while let Ok(count) = program.hear().parse::<usize>() {
            last = count;
        }
        drop(program);
        let found = assert_log(&std::fs::read(&file).unwrap(), 4096);
        assert!(found >= last, "S-289: {found} of {last}");
    }
    assert!(leasing.report().buffers >= 3, "{:?}", leasing.report());
    leasing.mounted.finish();
}

/// S-292: others truncate the file, append to it and make checkpoints while a program appends.
#[test]
fn s_292_others_change_the_end_of_a_file_that_a_program_appends_to() {
    let Some(leasing) = Leasing::new(OPTIONS) else { return };
    let file = leasing.filled("f", 1);
    let script = script(
        "
i = 0
while True:
    os.pwrite(fd, b'0123456789abcdef\\n', end())
    i += 1
    if i % 64 == 0: print(i, flush=True)
",
    );
    let mut program = Running::start(leasing.python(&script, &file, true));
    let other = std::fs::OpenOptions::new().append(true).open(&file).unwrap();
    for round in 0..30_u64 {
        program.hear().parse::<u64>().expect("S-292: it goes on");
        match round % 4 {
            0 => other.set_len(4096 + 17 * 10 * round).unwrap(),
            1 => {
                let made = ask(leasing.mounted.root(), &checkpoint(&format!("c{round}")));
                assert!(matches!(made, Answer::Done(_)), "{made:?}");
            }
            2 => {
                let line = b"ABCDEFGHIJKLMNOP\n";
                assert_eq!(rustix::io::write(&other, line).unwrap(), line.len());
            }
            _ => other.sync_all().unwrap(),
        }
    }
    drop(program);
    let bytes = std::fs::read(&file).unwrap();
    // Where the end was cut behind a write's back, the write left a hole.
    for line in bytes[4096..].chunks(17) {
        let is_right = line == b"0123456789abcdef\n" || line == b"ABCDEFGHIJKLMNOP\n";
        assert!(is_right || line.iter().all(|byte| *byte == 0), "S-292: {line:?}");
    }
    assert!(leasing.report().buffers > 0, "{:?}", leasing.report());
    drop(other);
    leasing.mounted.finish();
}
