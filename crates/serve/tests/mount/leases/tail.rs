//! Programs that make files grow under leases.

use super::*;

/// Begins a file of 64 KiB under a lease: what grows behind it goes to the device.
const BEGIN: &str = "
import ctypes, mmap, os, sys, time
fd = os.open(os.environ['F'], os.O_RDWR)
BLOCK = 8192
def page(i): return bytes([i % 250 + 1]) * BLOCK
def put(i): assert os.pwrite(fd, page(i), i * BLOCK) == BLOCK
def get(i): return os.pread(fd, BLOCK, i * BLOCK)
def end(): return os.lseek(fd, 0, os.SEEK_END)
";

fn script(rest: &str) -> String {
    format!("{BEGIN}{rest}")
}

/// Checks blocks of a file that programs made as `page` says.
fn assert_pages(bytes: &[u8], pages: std::ops::Range<usize>) {
    for i in pages {
        let expected = (i % 250 + 1) as u8;
        let page = &bytes[i * 8192..(i + 1) * 8192];
        assert!(page.iter().all(|&byte| byte == expected), "S-354: page {i} has {}", page[0]);
    }
}

/// S-354: a program makes a file grow from its own thread; by whatever call it and another one ask,
/// the file is as long as it has made it, and holds what it wrote.
#[test]
fn s_354_a_program_makes_a_file_grow_on_the_device() {
    let Some(leasing) = Leasing::new(OPTIONS) else { return };
    let file = leasing.filled("f", 16);
    let script = script(
        "
put(0)
for i in range(8, 400):
    assert end() == i * BLOCK, (i, end())
    put(i)
    if i % 3 == 0: assert os.fstat(fd).st_size == (i + 1) * BLOCK, i
    if i % 5 == 0: assert get(i - 1) == page(i - 1), i
    if i % 7 == 0: os.pwrite(fd, b'x' * BLOCK, (i - 2) * BLOCK); put(i - 2)
    if i % 25 == 0: os.fdatasync(fd)
    if i % 20 == 0:
        print(i + 1, flush=True)
        sys.stdin.readline()
assert os.pread(fd, 2 * BLOCK, 399 * BLOCK) == page(399)
os.lseek(fd, 0, os.SEEK_END)
for i in range(400, 500):
    assert os.write(fd, page(i)) == BLOCK
    if i % 25 == 0: os.fdatasync(fd)
assert os.lseek(fd, -BLOCK, os.SEEK_END) == 499 * BLOCK and os.read(fd, BLOCK) == page(499)
to = os.open(os.environ['F'] + '-copy', os.O_RDWR | os.O_CREAT)
assert os.copy_file_range(fd, to, BLOCK, 499 * BLOCK, 0) == BLOCK
os.close(to)
with open('/proc/self/mountinfo') as f: pass
seen = mmap.mmap(fd, 500 * BLOCK, mmap.MAP_SHARED, mmap.PROT_READ)
assert seen[499 * BLOCK:] == page(499)
",
    );
    let mut program = Running::start(leasing.python(&script, &file, true));
    let other = std::fs::File::open(&file).unwrap();
    let mut seen = vec![0; 8192];
    while let Ok(pages) = program.hear().parse::<usize>() {
        assert_eq!(file.metadata().unwrap().len(), pages as u64 * 8192, "S-354");
        assert_eq!(other.metadata().unwrap().len(), pages as u64 * 8192, "S-354");
        other.read_exact_at(&mut seen, (pages as u64 - 1) * 8192).unwrap();
        assert!(seen.iter().all(|&byte| byte == ((pages - 1) % 250 + 1) as u8), "S-354: {pages}");
        program.tell("on");
    }
    assert!(program.child.wait().unwrap().success(), "S-354: the program found it so");
    let said = std::fs::read_to_string(leasing.says()).unwrap();
    assert!(count(&said, "writes") > 450, "S-354: {said}");
    let bytes = std::fs::read(&file).unwrap();
    assert_eq!(bytes.len(), 500 * 8192);
    assert_pages(&bytes, 8..500);
    assert_pages(&bytes, 0..1);
    let copy = std::fs::read(leasing.mounted.path("f-copy")).unwrap();
    assert!(copy == [250; 8192], "S-354: 499 % 250 + 1 of {}", copy[0]);
    drop(other);
    leasing.mounted.finish();
}

/// S-354: programs that make one file grow by turns, beside one without a lease that appends, lose
/// nothing and leave no gap.
#[test]
fn s_354_programs_make_one_file_grow_by_turns() {
    let Some(leasing) = Leasing::new(OPTIONS) else { return };
    let file = leasing.filled("f", 16);
    let script = script(
        "
import fcntl
flags = os.environ.get('APPEND')
if flags: fd = os.open(os.environ['F'], os.O_RDWR | os.O_APPEND)
lock = os.open(os.environ['F'] + '-lock', os.O_RDWR | os.O_CREAT)
done = 0
while done < 150:
    fcntl.lockf(lock, fcntl.LOCK_EX)
    for turn in range(1 + done % 7):
        i = end() // BLOCK
        if flags: assert os.write(fd, page(i)) == BLOCK
        else: put(i)
        done += 1
    assert os.fstat(fd).st_size == (i + 1) * BLOCK
    fcntl.lockf(lock, fcntl.LOCK_UN)
print(done, flush=True)
",
    );
    let mut programs: Vec<Running> = (0..3)
        .map(|n| {
            let mut command = leasing.python(&script, &file, n < 2);
            if n == 2 {
                command.env("APPEND", "1");
            }
            Running::start(command)
        })
        .collect();
    let done =
        |program: &mut Running| program.hear().parse::<usize>().expect("S-354: it ends well");
    let sum: usize = programs.iter_mut().map(done).sum();
    drop(programs);
    let bytes = std::fs::read(&file).unwrap();
    assert_eq!(bytes.len(), (8 + sum) * 8192, "S-354");
    assert_pages(&bytes, 8..8 + sum);
    leasing.mounted.finish();
}

/// S-354: programs that ask for the end of a file by `lseek` never see it before a write that had
/// returned, with a lease or without one, while others ask for its attributes: the kernel drops
/// answers then.
#[test]
fn s_354_the_end_of_a_file_is_never_older_than_a_write_that_returned() {
    let Some(leasing) = Leasing::new(OPTIONS) else { return };
    let file = leasing.filled("f", 16);
    let shared = tempfile::NamedTempFile::new().unwrap();
    shared.as_file().set_len(4096).unwrap();
    let run = |rest: &str, has_lease| {
        let script = script(&format!(
            "
import struct
at = os.open(os.environ['COUNT'], os.O_RDWR)
shared = mmap.mmap(at, 4096)
get = lambda i: struct.unpack_from('<Q', shared, 8 * i)[0]
set = lambda i, value: struct.pack_into('<Q', shared, 8 * i, value)
{rest}"
        ));
        let mut command = leasing.python(&script, &file, has_lease);
        command.env("COUNT", shared.path());
        Running::start(command)
    };
    let ask = "
asked = 0
while not get(1):
    pages = get(0)
    at = end()
    assert at >= pages * BLOCK, (at, pages * BLOCK)
    asked += 1
print(asked, flush=True)
";
    let look = "
while not get(1): os.fstat(fd)
print(1, flush=True)
";
    let mut programs = [run(ask, true), run(ask, false), run(look, true), run(look, false)];
    let grow = "
for i in range(8, 3000):
    put(i)
    set(0, i + 1)
    if i % 25 == 0: os.fdatasync(fd)
    if i % 4 == 0: time.sleep(0.0005)
set(1, 1)
print(3000, flush=True)
";
    let mut grower = run(grow, true);
    assert_eq!(grower.hear(), "3000");
    for program in &mut programs {
        let asked: u64 = program.hear().parse().expect("S-354: what it saw was never too old");
        assert!(asked > 0);
    }
    assert!(grower.child.wait().unwrap().success(), "S-354: it grew");
    drop(programs);
    let said = std::fs::read_to_string(leasing.says()).unwrap();
    assert!(count(&said, "writes") > 2500, "S-354: {said}");
    leasing.mounted.finish();
}

/// S-356, S-355: a program that makes a file grow is killed: all that it had written is there, and the
/// blocks behind it are free.
#[test]
fn s_356_a_program_is_killed_while_it_makes_a_file_grow() {
    let Some(leasing) = Leasing::new(OPTIONS) else { return };
    let file = leasing.filled("f", 16);
    let script = script(
        "
i = end() // BLOCK
while True:
    put(i)
    i += 1
    if i % 10 == 0: os.fdatasync(fd)
    print(i, flush=True)
",
    );
    for _ in 0..4 {
        let mut program = Running::start(leasing.python(&script, &file, true));
        (0..100).for_each(|_| drop(program.hear()));
        let mut last = program.hear().parse::<usize>().expect("S-356: it goes on");
        program.signal(rustix::process::Signal::KILL);
        while let Ok(pages) = program.hear().parse::<usize>() {
            last = pages;
        }
        drop(program);
        let bytes = std::fs::read(&file).unwrap();
        assert!(bytes.len() / 8192 == last || bytes.len() / 8192 == last + 1, "S-356: {last}");
        assert!(bytes.len().is_multiple_of(8192));
        assert_pages(&bytes, 8..bytes.len() / 8192);
        leasing.until("its end is noticed", |report| report.clients.is_empty());
        let found = file.metadata().unwrap();
        assert_eq!((found.len(), found.blocks() * 512), (bytes.len() as u64, bytes.len() as u64));
    }
    assert!(leasing.report().tails >= 4, "{:?}", leasing.report());
    leasing.mounted.finish();
}

/// S-357: others truncate, allocate and make checkpoints while a program makes a file grow.
#[test]
fn s_357_others_change_the_end_of_a_file_that_grows() {
    let Some(leasing) = Leasing::new(OPTIONS) else { return };
    let file = leasing.filled("f", 16);
    let script = script(
        "
while True:
    i = end() // BLOCK
    put(i)
    seen = get(i)
    assert seen in (page(i), b'', bytes(BLOCK)), (i, len(seen), seen[:1])
    if i % 8 == 0: os.fdatasync(fd)
    if i % 16 == 0: print(i, flush=True)
",
    );
    let mut program = Running::start(leasing.python(&script, &file, true));
    let other = std::fs::OpenOptions::new().read(true).write(true).open(&file).unwrap();
    for round in 0..20_u64 {
        let at = program.hear().parse::<u64>().expect("S-357: it goes on");
        match round % 4 {
            0 => other.set_len((at / 2).max(16) * 8192).unwrap(),
            1 => {
                let made = ask(leasing.mounted.root(), &checkpoint(&format!("c{round}")));
                assert!(matches!(made, Answer::Done(_)), "{made:?}");
            }
            2 => rustix::fs::fallocate(
                &other,
                rustix::fs::FallocateFlags::KEEP_SIZE,
                0,
                (at + 100) * 8192,
            )
            .unwrap(),
            _ => other.sync_all().unwrap(),
        }
    }
    drop(program);
    let bytes = std::fs::read(&file).unwrap();
    assert!(bytes.len().is_multiple_of(8192));
    // Where the end was cut behind a write's back, the write left a hole.
    for (i, page) in bytes.chunks(8192).enumerate().skip(8) {
        let is_right = page[0] == (i % 250 + 1) as u8 || page[0] == 0;
        assert!(is_right && page.iter().all(|byte| *byte == page[0]), "S-357: {i}: {}", page[0]);
    }
    drop(other);
    leasing.mounted.finish();
}

/// S-359: a process whose files are limited in size grows them through the mount, which refuses what
/// passes the limit.
#[test]
fn s_359_a_limit_of_the_size_of_files_is_kept() {
    let Some(leasing) = Leasing::new(OPTIONS) else { return };
    let file = leasing.filled("f", 16);
    let script = script(
        "
import errno, resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (20 * BLOCK, resource.RLIM_INFINITY))
try:
    for i in range(8, 30): put(i)
except OSError as error:
    print(i, error.errno == errno.EFBIG)
",
    );
    let (said, _) = leasing.run(&script, &file);
    assert_eq!(said, "20 True\n", "S-359");
    assert_eq!(leasing.report().tails, 0);
    leasing.mounted.finish();
}

/// S-354: a file that was made a moment ago, of which nothing is sealed, grows on the device too.
#[test]
fn s_354_a_new_file_grows_on_the_device() {
    let Some(leasing) = Leasing::new("mode=concurrent,lease=owner,sync=1h") else { return };
    let file = leasing.mounted.path("new");
    std::fs::write(&file, b"").unwrap();
    // Synced, so that it is not a load.
    let script = script(
        "
for i in range(600):
    put(i)
    if i % 20 == 0: os.fdatasync(fd)
",
    );
    let (_, report) = leasing.run(&script, &file);
    assert!(count(&report, "writes") > 580, "S-354: {report}");
    let bytes = std::fs::read(&file).unwrap();
    assert_eq!(bytes.len(), 600 * 8192);
    assert_pages(&bytes, 0..600);
    leasing.mounted.finish();
}

/// S-473: files that a program makes, uses a few times and removes cost no request of the daemon; one
/// that stays gets its lease. Before, SQLite's rollback journals took longer with the library than
/// without.
#[test]
fn s_473_a_new_file_asks_for_its_lease_once_it_is_used() {
    let Some(leasing) = Leasing::new(OPTIONS) else { return };
    let file = leasing.filled("f", 16);
    let script = script(
        "
get(0)
name = os.environ['F'] + '-journal'
for i in range(50):
    fd = os.open(name, os.O_RDWR | os.O_CREAT)
    for i in range(6): put(i)
    os.fdatasync(fd)
    os.close(fd)
    os.unlink(name)
fd = os.open(name, os.O_RDWR | os.O_CREAT)
for i in range(200):
    put(i)
    if i % 20 == 0: os.fdatasync(fd)
for i in range(200): assert get(i) == page(i), i
",
    );
    let (_, report) = leasing.run(&script, &file);
    assert_eq!(count(&report, "new-file"), 50 * 7 + 64, "S-473: {report}");
    assert!(count(&report, "writes") > 100 && count(&report, "reads") > 150, "S-473: {report}");
    assert_pages(&std::fs::read(leasing.mounted.path("f-journal")).unwrap(), 0..200);
    leasing.mounted.finish();
}

/// S-379, S-288: the pages of a file that a program loads wait on the mount, to which it appends them, and
/// are read ahead: of 1492 reads few are the program's own.
#[test]
fn s_379_a_file_that_a_program_loads_rests_on_the_mount() {
    let Some(leasing) = Leasing::new("mode=concurrent,lease=owner,sync=1h") else { return };
    let file = leasing.filled("f", 16);
    let script = script(
        "
for i in range(8, 1500): put(i)
assert end() == 1500 * BLOCK == os.fstat(fd).st_size
for i in range(8, 1500): assert get(i) == page(i), i
",
    );
    let (_, report) = leasing.run(&script, &file);
    assert!(count(&report, "reads") < 500, "S-379: {report}");
    let leases = leasing.report();
    assert!(leases.buffers > 60 && leases.tails < 10, "S-379, S-288: {leases:?}");
    // S-497: there is no other thread that a write could wait for.
    assert_eq!(count(&report, "waited"), 0, "S-497: {report}");
    let bytes = std::fs::read(&file).unwrap();
    assert_eq!(bytes.len(), 1500 * 8192);
    assert_pages(&bytes, 8..1500);
    leasing.mounted.finish();
}

/// S-497: threads that share out places at the end of a file, and write there in whatever order, keep
/// the tail, and lose no byte.
#[test]
fn s_497_threads_make_one_file_grow_together() {
    let Some(leasing) = Leasing::new(OPTIONS) else { return };
    let file = leasing.filled("f", 16);
    let script = script(
        "
import threading
lock, last = threading.Lock(), [7]
def work():
    while True:
        with lock: last[0] += 1; i = last[0]
        if i >= 600: return
        put(i)
        os.fdatasync(fd)
        assert get(i) == page(i), i
threads = [threading.Thread(target=work) for i in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
",
    );
    let (_, report) = leasing.run(&script, &file);
    // Before, one in a hundred.
    assert!(count(&report, "writes") > 300, "S-497: {report}");
    let bytes = std::fs::read(&file).unwrap();
    assert_eq!(bytes.len(), 600 * 8192);
    assert_pages(&bytes, 8..600);
    leasing.mounted.finish();
}
