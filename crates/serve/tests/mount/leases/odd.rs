//! Programs that write parts of sectors under leases.

use super::*;

/// What a thread of a program does that writes odd pieces of blocks that others write too: it has
/// every so many-th piece, counts in it, and finds its count again. `LANE` of `LANES` is the
/// program's number; it has two threads.
const ODD_PIECES: &str = "
import os, struct, sys, threading, time
PIECE, PIECES = 24, 160
fd = os.open(os.environ['F'], os.O_RDWR)
lane, lanes = int(os.environ['LANE']), int(os.environ['LANES'])
def work(n):
    mine = [i for i in range(PIECES) if i % (lanes * 2) == lane * 2 + n]
    counts = dict.fromkeys(mine, 0)
    round = 0
    while True:
        round += 1
        for i in mine:
            told = struct.pack('<QQQ', lane * 2 + n + 1, i, round)
            if os.pwrite(fd, told, i * PIECE) != PIECE: os._exit(3)
            counts[i] = round
            back = mine[(round + i) % len(mine)]
            seen = struct.unpack('<QQQ', os.pread(fd, PIECE, back * PIECE))
            if counts[back] and seen != (lane * 2 + n + 1, back, counts[back]):
                print('LOST', seen, (lane * 2 + n + 1, back, counts[back]), flush=True)
                os._exit(4)
        os.fdatasync(fd)
        if lane == 2: time.sleep(0.05)
        if n == 0: print(round, flush=True)
for n in range(2): threading.Thread(target=work, args=(n,), daemon=True).start()
sys.stdin.readline()
os._exit(0)
";

/// A program with odd pieces of its own, of so many programs.
fn odd_pieces(
    leasing: &Leasing,
    file: &Path,
    (lane, lanes): (usize, usize),
    leased: bool,
) -> Running {
    let mut command = leasing.python(ODD_PIECES, file, leased);
    command.env("LANE", lane.to_string()).env("LANES", lanes.to_string());
    Running::start(command)
}

/// Hears so many rounds of a program.
fn hear_rounds(program: &mut Running, rounds: usize) {
    for _ in 0..rounds {
        let line = program.hear();
        assert!(line.parse::<u64>().is_ok(), "S-310: {line}");
    }
}

/// S-310, I-LSE-7: threads of one program write odd pieces of the same sectors on the device, and take
/// turns.
#[test]
fn s_310_threads_that_write_odd_pieces_of_one_sector_lose_no_byte() {
    let Some(leasing) = Leasing::new(OPTIONS) else { return };
    let file = leasing.filled("f", 4);
    let mut program = odd_pieces(&leasing, &file, (0, 1), true);
    hear_rounds(&mut program, 30);
    let report = leasing.report();
    assert!(report.total.writes > 4_000, "S-310: they go to the device: {report:?}");
    drop(program);
    leasing.mounted.finish();
}

/// S-310, S-311: two programs with leases and one without write odd pieces of the same blocks, two
/// threads each, beside aligned writes of the mount, truncations and checkpoints; no byte is lost.
/// One of them is killed: all that it had written is there.
#[test]
fn s_310_programs_that_write_odd_pieces_of_one_block_lose_no_byte() {
    let Some(leasing) = Leasing::new(OPTIONS) else { return };
    let file = leasing.filled("f", 4);
    let start = |lane: usize, leased: bool| odd_pieces(&leasing, &file, (lane, 3), leased);
    let mut programs = [start(0, true), start(1, true), start(2, false)];
    let other = std::fs::File::options().read(true).write(true).open(&file).unwrap();
    let mut page = vec![0; 4096];
    for round in 0..12_u8 {
        programs.iter_mut().for_each(|program| hear_rounds(program, 1));
        page.fill(round);
        other.write_all_at(&page, 2 * 4096).unwrap();
        other.set_len(4 * 4096 + u64::from(round) * 4096).unwrap();
        if round % 4 == 0 {
            let made = ask(leasing.mounted.root(), &checkpoint(&format!("c{round}")));
            assert!(matches!(made, Answer::Done(_)), "{made:?}");
        }
        other.read_exact_at(&mut page, 2 * 4096).unwrap();
        assert!(page.iter().all(|&byte| byte == round), "S-310");
    }
    // The last line that it says is of a round that was written whole.
    programs[0].signal(rustix::process::Signal::KILL);
    let mut last = 0;
    while let Ok(round) = programs[0].hear().parse::<u64>() {
        last = round;
    }
    programs[1..].iter_mut().for_each(|program| hear_rounds(program, 20));
    let mut pieces = vec![0; 160 * 24];
    other.read_exact_at(&mut pieces, 0).unwrap();
    for (i, piece) in pieces.chunks(24).enumerate().filter(|(i, _)| i % 6 == 0) {
        let word = |at: usize| u64::from_le_bytes(piece[at * 8..at * 8 + 8].try_into().unwrap());
        assert!(word(0) == 1 && word(1) == i as u64 && word(2) >= last, "S-311: {i} {piece:?}");
    }
    let direct = leasing.report().total.writes;
    assert!(direct > 500, "S-310: some were written on the device: {:?}", leasing.report());
    drop((programs, other));
    leasing.mounted.finish();
}

/// S-310: a program alone with its file writes odd pieces of it on the device, and the file is not
/// taken back for them.
#[test]
fn s_310_a_program_alone_writes_odd_pieces_on_the_device() {
    let Some(leasing) = Leasing::new(OPTIONS) else { return };
    let file = leasing.filled("f", 64);
    let script = "
import os
fd = os.open(os.environ['F'], os.O_RDWR)
at = 32
for i in range(50):
    assert os.pwrite(fd, bytes([i]) * 24, at) == 24
    assert os.pwrite(fd, bytes([i + 100]) * 4096, at + 24) == 4096
    os.fdatasync(fd)
    at += 4120
at = 32
for i in range(50):
    assert os.pread(fd, 4120, at) == bytes([i]) * 24 + bytes([i + 100]) * 4096, i
    at += 4120
";
    let (_, report) = leasing.run(script, &file);
    assert!(count(&report, "writes") >= 99, "S-310: {report}");
    let seen = std::fs::read(&file).unwrap();
    for i in 0..50 {
        let at = 32 + i * 4120;
        assert!(
            seen[at..at + 24] == [i as u8; 24] && seen[at + 24..at + 4120] == [i as u8 + 100; 4096]
        );
    }
    assert!(seen[..32] == [1; 32] && seen[32 + 50 * 4120..].iter().all(|&byte| byte == 1));
    assert!(leasing.report().revocations < 20, "{:?}", leasing.report());
    leasing.mounted.finish();
}
