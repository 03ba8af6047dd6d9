//! Programs that read files in `concurrent+cache` in the cache of the mount.

use std::os::unix::fs::FileExt;

use rustix::process::Signal;

use super::*;

const OPTIONS: &str = "mode=concurrent+cache,lease=owner,sync=200ms";

/// S-422: a program as it is, with the library, finds in the cache what was read before, of any
/// place and length and in every process; what others write it reads at once.
#[test]
fn s_422_a_program_reads_in_the_cache() {
    let Some(leasing) = Leasing::new(OPTIONS) else { return };
    let file = leasing.filled("f", 64);
    let script = "
import os, sys
fd = os.open(os.environ['F'], os.O_RDWR)
def look():
    return [os.pread(fd, 8192, i * 8192) for i in range(32)]
assert look() == [b'\\1' * 8192] * 32
assert look() == [b'\\1' * 8192] * 32
print('read', flush=True)
sys.stdin.readline()
assert os.pread(fd, 8192, 4096 * 3) == b'\\1' * 4096 + b'\\7' * 4096
assert os.pread(fd, 300, 4096 * 5 - 100) == b'\\7' * 100 + b'\\1' * 200
parts = [bytearray(4096), bytearray(8192)]
assert os.preadv(fd, parts, 4096 * 3) == 12288
assert parts == [b'\\1' * 4096, b'\\7' * 4096 + b'\\1' * 4096]
assert os.pwrite(fd, b'\\x09' * 4096, 4096 * 6) == 4096
assert os.pread(fd, 4096, 4096 * 6) == b'\\x09' * 4096
assert os.read(fd, 8192) == b'\\1' * 8192 and os.lseek(fd, 0, os.SEEK_CUR) == 8192
child = os.fork()
if child == 0:
    assert look()[2] == b'\\7' * 4096 + b'\\1' * 4096 and look()[9] == b'\\1' * 8192
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
print('cut', flush=True)
sys.stdin.readline()
assert os.pread(fd, 8192, 4096 * 10) == b'\\1' * 4096 + b'\\1' * 5
assert os.pread(fd, 8192, 4096 * 20) == b''
";
    let mut program = Running::start(leasing.python(script, &file, true));
    let other = std::fs::OpenOptions::new().read(true).write(true).open(&file).unwrap();
    assert_eq!(program.hear(), "read");
    other.write_all_at(&[7; 4096], 4096 * 4).unwrap();
    program.tell("on");
    assert_eq!(program.hear(), "cut");
    other.set_len(4096 * 11 + 5).unwrap();
    let told = leasing.report();
    assert!(told.total.hits >= 60, "S-422: {told:?}");
    assert_eq!((told.total.reads, told.total.writes), (0, 0), "nothing goes to the device");
    program.tell("on");
    assert!(program.child.wait().unwrap().success(), "S-422");
    let report = std::fs::read_to_string(leasing.says()).unwrap();
    assert!(count(&report, "hits") >= 32 && count(&report, "uncached") >= 1, "{report}");
    drop((program, other));
    leasing.mounted.finish();
}

/// S-422, S-424: programs read beside one that writes and one that was stopped. None sees half of a
/// write or goes back to an older one, and nothing waits for them.
#[test]
fn s_424_nothing_waits_for_programs_that_read_in_the_cache() {
    let Some(leasing) = Leasing::new(OPTIONS) else { return };
    let file = leasing.filled("f", 16);
    let script = "
import os, sys
fd = os.open(os.environ['F'], os.O_RDONLY)
print('on', flush=True)
last = [0] * 8
while True:
    for i in range(8):
        unit = os.pread(fd, 8192, i * 8192)
        assert len(unit) == 8192 and unit == unit[:4] * 2048, (unit[:4], unit[-4:])
        now = int.from_bytes(unit[:4], 'little')
        assert now >= last[i] or last[i] == 0x01010101, (now, last[i])
        last[i] = now
";
    let mut programs: Vec<_> =
        (0..3).map(|_| Running::start(leasing.python(script, &file, true))).collect();
    programs.iter_mut().for_each(|program| assert_eq!(program.hear(), "on"));
    let writer = std::fs::OpenOptions::new().write(true).open(&file).unwrap();
    programs[0].signal(Signal::STOP);
    let deadline = Instant::now() + Duration::from_secs(4);
    let mut stamp = 0x0200_0000_u32;
    while Instant::now() < deadline {
        for unit in 0..8 {
            writer.write_all_at(&stamp.to_le_bytes().repeat(2048), unit * 8192).unwrap();
        }
        stamp += 1;
        std::thread::sleep(Duration::from_millis(2));
    }
    for program in &mut programs {
        assert!(program.child.try_wait().unwrap().is_none(), "S-422: each reads on");
    }
    assert!(matches!(ask(leasing.mounted.root(), &checkpoint("c")), Answer::Done(_)));
    programs.iter().for_each(|program| program.signal(Signal::STOP));
    let began = Instant::now();
    writer.set_len(0).unwrap();
    assert!(began.elapsed() < Duration::from_secs(10), "S-424");
    let told = leasing.report();
    assert!(told.total.hits > 1000 && told.long_waits == 0, "S-424: {told:?}");
    drop((programs, writer));
    leasing.until("their end is noticed", |report| report.clients.is_empty());
    leasing.mounted.finish();
}

/// S-423: a file that is mapped, or open with a suffix, is read on the mount.
#[test]
fn s_423_a_file_that_is_mapped_is_read_on_the_mount() {
    let Some(leasing) = Leasing::new(OPTIONS) else { return };
    let file = leasing.filled("f", 16);
    let script = "
import mmap, os
fd = os.open(os.environ['F'], os.O_RDWR)
for i in range(2):
    assert os.pread(fd, 8192, 0) == b'\\1' * 8192
memory = mmap.mmap(fd, 8192, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
memory[100:104] = b'seen'
assert os.pread(fd, 4, 100) == b'seen'
memory.flush()
assert os.pread(fd, 4, 100) == b'seen'
";
    let (_, report) = leasing.run(script, &file);
    assert!(count(&report, "hits") >= 1, "{report}");
    leasing.mounted.finish();
}
