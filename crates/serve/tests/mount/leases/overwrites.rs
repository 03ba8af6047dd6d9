//! Programs that write over a file in order and do not sync it, which rests on the mount for it.

use super::*;

const PAGE: usize = 8192;
const PAGES: usize = 256;

/// Pages of a file, each of which says its round and its number.
const BEGIN: &str = "
import os, sys, struct, threading
fd = os.open(os.environ['F'], os.O_RDWR)
P, N = 8192, 256
def page(r, i): return struct.pack('<II', r, i) * (P // 8)
def put(r, i): assert os.pwrite(fd, page(r, i), i * P) == P
def look(r, i): assert os.pread(fd, P, i * P) == page(r, i), (r, i)
";

fn script(rest: &str) -> String {
    format!("{BEGIN}{rest}")
}

fn page(round: u32, number: usize) -> Vec<u8> {
    let one = [round.to_le_bytes(), u32::try_from(number).unwrap().to_le_bytes()].concat();
    one.repeat(PAGE / 8)
}

/// The rounds that the pages of a file are of.
fn rounds(bytes: &[u8]) -> Vec<u32> {
    let round_of = |(number, found): (usize, &[u8])| {
        let round = u32::from_le_bytes(found[..4].try_into().unwrap());
        assert!(found == page(round, number), "S-516: page {number} is of one round");
        round
    };
    bytes.chunks(PAGE).enumerate().map(round_of).collect()
}

/// S-516: a program writes over a file in memory that it shares with the mount; whatever it and others
/// read and write besides is in order with that.
#[test]
fn s_516_a_program_writes_over_its_pages_in_order() {
    let Some(leasing) = Leasing::new(OPTIONS) else { return };
    let file = leasing.filled("f", PAGES * PAGE / 4096);
    let script = script(
        "
for r in range(1, 13):
    for i in range(N):
        put(r, i)
        if i % 50 == 7: look(r, i)
        if i % 60 == 9: put(r, i)
        if r % 4 == 1 and i == 100: os.fdatasync(fd)
        if r % 4 == 2 and i == 100: os.fsync(fd)
        if r % 4 == 3 and i % 9 == 0: os.pwrite(fd, page(r, i)[:700], i * P)
    for i in range(0, N, 17): look(r, i)
    print(r, flush=True)
    sys.stdin.readline()
    look(1000 + r, r)
r = 13
child = os.fork()
if child == 0:
    for i in range(N // 2): put(r, i)
    os._exit(0)
os.waitpid(child, 0)
def half(begin):
    for i in range(begin, N, 2): put(r + i % 2, i)
threads = [threading.Thread(target=half, args=(begin,)) for begin in (0, 1)]
for t in threads: t.start()
for t in threads: t.join()
print('end', flush=True)
",
    );
    let mut program = Running::start(leasing.python(&script, &file, true));
    let other = std::fs::OpenOptions::new().read(true).write(true).open(&file).unwrap();
    while let Ok(round) = program.hear().parse::<u32>() {
        let found = rounds(&std::fs::read(&file).unwrap());
        assert!(found.iter().all(|it| *it == round), "S-516: after round {round}: {found:?}");
        let at = round as usize;
        rustix::io::pwrite(&other, &page(1000 + round, at), (at * PAGE) as u64).unwrap();
        program.tell("on");
    }
    drop(program);
    let found = rounds(&std::fs::read(&file).unwrap());
    let is_last = |(number, round): (usize, &u32)| *round as usize == 13 + number % 2;
    assert!(found.iter().enumerate().all(is_last), "S-516: {found:?}");
    let report = leasing.report();
    assert!(report.buffers > 10 && report.total.writes > 2000, "S-516: {report:?}");
    drop(other);
    leasing.mounted.finish();
}

/// S-517: a program that writes over its pages is killed: all that had returned is there.
#[test]
fn s_517_a_program_is_killed_while_it_writes_over_its_pages() {
    let Some(leasing) = Leasing::new(OPTIONS) else { return };
    let script = script(
        "
n = 0
for r in range(1, 10000):
    for i in range(N):
        put(r, i)
        n += 1
        if n % 20 == 0: print(n, flush=True)
",
    );
    for _ in 0..3 {
        let file = leasing.filled("f", PAGES * PAGE / 4096);
        let mut program = Running::start(leasing.python(&script, &file, true));
        let heard = (0..60).map(|_| program.hear().parse::<usize>().unwrap());
        let mut told = heard.last().unwrap();
        program.signal(rustix::process::Signal::KILL);
        while let Ok(count) = program.hear().parse::<usize>() {
            told = count;
        }
        drop(program);
        let found = rounds(&std::fs::read(&file).unwrap());
        let made: usize = found.iter().map(|round| *round as usize).sum();
        assert!(told > PAGES && made >= told, "S-517: {made} of {told}");
        let newest = found[0];
        let is_newest = |round: &u32| newest - round <= 1;
        assert!(found.iter().all(is_newest) && found.is_sorted_by(|a, b| a >= b), "{found:?}");
    }
    assert!(leasing.report().buffers >= 3, "{:?}", leasing.report());
    leasing.mounted.finish();
}

/// S-518: others make checkpoints, punch holes and sync while a program writes over its pages.
#[test]
fn s_518_others_need_the_file_alone_while_a_program_writes_over_it() {
    let Some(leasing) = Leasing::new(OPTIONS) else { return };
    let file = leasing.filled("f", PAGES * PAGE / 4096);
    let script = script(
        "
for r in range(1, 10000):
    for i in range(N): put(r, i)
    print(r, flush=True)
    if not sys.stdin.readline().strip(): break
",
    );
    let mut program = Running::start(leasing.python(&script, &file, true));
    let other = std::fs::OpenOptions::new().write(true).open(&file).unwrap();
    let mut last = 0;
    for turn in 0..24 {
        let round = program.hear().parse::<u32>().expect("S-518: it goes on");
        if turn % 3 == 0 {
            let name = format!("c{turn}");
            let made = ask(leasing.mounted.root(), &checkpoint(&name));
            assert!(matches!(made, Answer::Done(_)), "{made:?}");
            let past = leasing.mounted.root().join(".checkpoints").join(&name).join("f");
            let found = rounds(&std::fs::read(past).unwrap());
            assert!(found.iter().all(|it| *it == round), "S-518: at {round}: {found:?}");
        }
        program.tell("on");
        match turn % 3 {
            1 => other.sync_all().unwrap(),
            2 => other.set_len((PAGES * PAGE) as u64).unwrap(),
            _ => {}
        }
        last = round;
    }
    let round = program.hear().parse::<u32>().unwrap();
    program.tell("");
    drop(program);
    let found = rounds(&std::fs::read(&file).unwrap());
    assert!(round > last && found.iter().all(|it| *it == round), "S-518: {round}: {found:?}");
    assert!(leasing.report().buffers > 0, "{:?}", leasing.report());
    drop(other);
    leasing.mounted.finish();
}
