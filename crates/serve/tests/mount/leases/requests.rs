//! Programs that make asynchronous requests under leases, as libaio makes them.

use rustix::process::Signal;

use super::*;

/// `io_submit` and its kin in Python: `Requests(n)` is a context with `n` requests, each with a
/// block of memory.
const AIO: &str = "
import ctypes, mmap, os, sys, time
from ctypes import c_int16, c_int64, c_long, c_uint16, c_uint32, c_uint64
call = ctypes.CDLL(None, use_errno=True).syscall
call.restype = c_long
SIZE = 4096
X86 = os.uname().machine == 'x86_64'
SETUP, DESTROY, GETEVENTS, SUBMIT = (206, 207, 208, 209) if X86 else (0, 1, 4, 2)
class Request(ctypes.Structure):
    _fields_ = [('data', c_uint64), ('key', c_uint32), ('rw', c_uint32), ('op', c_uint16),
                ('prio', c_int16), ('fd', c_uint32), ('buf', c_uint64), ('len', c_uint64),
                ('at', c_int64), ('res', c_uint64), ('flags', c_uint32), ('resfd', c_uint32)]
class Event(ctypes.Structure):
    _fields_ = [('data', c_uint64), ('obj', c_uint64), ('res', c_int64), ('res2', c_int64)]
class Requests:
    def __init__(self, n):
        self.n, self.context = n, c_uint64(0)
        assert call(SETUP, c_long(n), ctypes.byref(self.context)) == 0
        self.map = mmap.mmap(-1, n * SIZE)
        self.base = ctypes.addressof(ctypes.c_char.from_buffer(self.map))
        self.all, self.events = (Request * n)(), (Event * n)()
    def submit(self, many):
        'many: which, 0 to read or 1 to write, descriptor, block, byte'
        for i, op, fd, block, byte in many:
            self.all[i] = Request(data=i, op=op, fd=fd, buf=self.base + i * SIZE, len=SIZE,
                                  at=block * SIZE)
            if op: self.map[i * SIZE:(i + 1) * SIZE] = bytes([byte]) * SIZE
        list = (ctypes.POINTER(Request) * len(many))(*(ctypes.pointer(self.all[m[0]]) for m in many))
        return call(SUBMIT, self.context, c_long(len(many)), list)
    def collect(self, least):
        n = call(GETEVENTS, self.context, c_long(least), c_long(self.n), self.events, None)
        for e in self.events[:n]:
            assert e.obj == ctypes.addressof(self.all[e.data]), 'the request is the program\\'s'
        return [(e.data, e.res) for e in self.events[:max(n, 0)]]
    def memory(self, i):
        return self.map[i * SIZE:(i + 1) * SIZE]
    def destroy(self):
        return call(DESTROY, self.context)
fd = os.open(os.environ['F'], os.O_RDWR)
";

/// S-360, S-364: a program's asynchronous requests go to the device, are counted, move the file's
/// time, and are what the mount reads.
#[test]
fn s_360_asynchronous_requests_read_and_write_the_device() {
    let Some(leasing) = Leasing::new(OPTIONS) else { return };
    let file = leasing.filled("f", 64);
    let before = file.metadata().unwrap();
    let script = format!(
        "{AIO}
r = Requests(64)
assert r.submit([(i, i % 2, fd, i, i + 2) for i in range(64)]) == 64
ends = []
while len(ends) < 64: ends += r.collect(1)
assert sorted(ends) == [(i, 4096) for i in range(64)]
assert all(r.memory(i) == bytes([1]) * 4096 for i in range(0, 64, 2))
for i in range(1, 64, 2): assert os.pread(fd, 4096, i * 4096) == bytes([i + 2]) * 4096
os.fdatasync(fd)
# A child of a fork is a client of its own, and has contexts of its own.
if os.fork() == 0:
    assert r.submit([(0, 0, fd, 0, 0)]) == -1
    r = Requests(8)
    assert r.submit([(0, 1, fd, 0, 99), (1, 0, fd, 1, 0)]) == 2
    assert len(r.collect(2)) == 2 and r.memory(1) == bytes([3]) * 4096
    os._exit(0)
assert os.wait()[1] == 0
assert r.submit([(0, 0, fd, 0, 0)]) == 1 and r.collect(1) == [(0, 4096)]
assert r.memory(0) == bytes([99]) * 4096 and r.destroy() == 0
time.sleep(1.2)"
    );
    let (_, report) = leasing.run(&script, &file);
    assert!(count(&report, "reads") >= 65 && count(&report, "writes") >= 32, "S-360: {report}");
    assert!(file.metadata().unwrap().mtime_nsec() != before.mtime_nsec(), "S-364");
    let total = leasing.report().total;
    assert!(total.reads >= 65 && total.writes >= 33, "S-360: {total:?}");
    let seen = std::fs::read(&file).unwrap();
    assert!((1..64).step_by(2).all(|i| seen[i * 4096..(i + 1) * 4096] == [i as u8 + 2; 4096]));
    leasing.until("its end is noticed", |report| report.clients.is_empty());
    leasing.mounted.finish();
}

/// Keeps 64 writes of one byte in flight on the second half of the file.
const WRITES_ALWAYS: &str = "
r = Requests(64)
free, done, last = list(range(64)), 0, time.time()
print('on', flush=True)
while True:
    many = [(i, 1, fd, 32 + i % 32, 2) for i in free]
    n = max(r.submit(many), 0) if many else 0
    ends = r.collect(1)
    free = [m[0] for m in many[n:]] + [i for i, _ in ends]
";

/// S-362, S-363: blocks that a truncation frees go to another file while requests of programs are
/// in flight, of programs that live and of some that are killed; none reaches the other file. They
/// are long, and so in flight for long.
#[test]
fn s_362_s_363_requests_in_flight_reach_no_block_that_was_freed() {
    let Some(leasing) = Leasing::new(OPTIONS) else { return };
    const BLOCKS: usize = 64 << 6;
    let file = leasing.filled("f", BLOCKS);
    let other = leasing.mounted.path("other");
    let script = format!("{AIO}{WRITES_ALWAYS}").replace("SIZE = 4096", "SIZE = 1 << 18");
    for round in 0..4_u8 {
        let mut program = Running::start(leasing.python(&script, &file, true));
        assert_eq!(program.hear(), "on");
        let pid = program.child.id();
        leasing.until("it writes directly", |report| {
            report.clients.iter().any(|client| client.pid == pid && client.writes > 100)
        });
        if round % 2 == 1 {
            program.signal(Signal::KILL);
        }
        let opened = std::fs::OpenOptions::new().write(true).open(&file).unwrap();
        opened.set_len(32 << 18).unwrap();
        std::fs::write(&other, vec![200 + round; 32 << 18]).unwrap();
        drop(program);
        leasing.until("its end is noticed", |report| report.clients.is_empty());
        let seen = std::fs::read(&other).unwrap();
        assert!(seen.iter().all(|byte| *byte == 200 + round), "S-362, S-363: round {round}");
        std::fs::remove_file(&other).unwrap();
        leasing.filled("f", BLOCKS);
    }
    assert!(leasing.report().request_waits > 0, "S-362: {:?}", leasing.report());
    leasing.mounted.finish();
}

/// S-362, S-172: checkpoints are made while requests are in flight, and show what they showed first.
#[test]
fn s_362_a_checkpoint_is_not_changed_by_requests_that_began_before() {
    let Some(leasing) = Leasing::new(OPTIONS) else { return };
    let file = leasing.filled("f", 64);
    let script = format!("{AIO}{WRITES_ALWAYS}").replace("32 + i % 32, 2)", "i, os.urandom(1)[0])");
    let mut program = Running::start(leasing.python(&script, &file, true));
    assert_eq!(program.hear(), "on");
    let whole = |bytes: &[u8]| bytes.chunks(4096).all(|block| block.iter().all(|b| *b == block[0]));
    for round in 0..5 {
        let was = leasing.report().total.writes;
        leasing.until("it writes directly", |report| report.total.writes > was + 200);
        done(&leasing.mounted, &checkpoint(&format!("c{round}")));
        let past = leasing.mounted.path(&format!(".checkpoints/c{round}/f"));
        let first = std::fs::read(&past).unwrap();
        assert!(first.len() == 64 * 4096 && whole(&first), "S-172: no write is in part");
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(first, std::fs::read(&past).unwrap(), "S-172");
    }
    drop(program);
    leasing.until("its end is noticed", |report| report.clients.is_empty());
    assert!(whole(&std::fs::read(&file).unwrap()));
    leasing.mounted.finish();
}

/// S-363: what tells the daemon, and a later mount, that a process has its memory is mapped, and so
/// stays until the kernel has ended its requests; a child of a fork has none of it.
#[test]
fn s_363_the_memory_of_a_process_keeps_the_device_claimed() {
    let Some(leasing) = Leasing::new(OPTIONS) else { return };
    let file = leasing.filled("f", 4);
    let script = format!(
        "{AIO}
def kept():
    lines = [line.split() for line in open('/proc/self/maps')]
    return [line[1] for line in lines
            if any(word.endswith('/image') or 'bedplate-life' in word for word in line)]
assert os.pread(fd, 4096, 0) == bytes([1]) * 4096 and kept() == []
r = Requests(8)
assert r.submit([(0, 0, fd, 0, 0)]) == 1 and r.collect(1) == [(0, 4096)]
assert kept() == ['---p', '---p'], kept()
if os.fork() == 0:
    assert kept() == [], kept()
    r = Requests(8)
    assert r.submit([(0, 0, fd, 0, 0)]) == 1 and r.collect(1) == [(0, 4096)]
    assert kept() == ['---p', '---p'], kept()
    os._exit(0)
assert os.wait()[1] == 0"
    );
    let (_, report) = leasing.run(&script, &file);
    assert_eq!(count(&report, "reads"), 2, "{report}");
    leasing.mounted.finish();
}

/// S-362, S-363: a program that never collects what it began, closes the file, and becomes another
/// program, holds nothing up; nor does one that stands still.
#[test]
fn s_363_requests_that_nothing_collects_hold_nothing_up() {
    let Some(leasing) = Leasing::new(OPTIONS) else { return };
    let file = leasing.filled("f", 16);
    let script = format!(
        "{AIO}
r = Requests(16)
assert r.submit([(i, 1, fd, i, 7) for i in range(16)]) == 16
print('begun', flush=True)
sys.stdin.readline()
os.close(fd)
print('closed', flush=True)
sys.stdin.readline()
fd = os.open(os.environ['F'], os.O_RDWR)
assert r.submit([(i, 1, fd, i, 8) for i in range(4)]) > 0
os.environ.pop('LD_PRELOAD')
os.execvp('python3', ['python3', '-c', 'print(\"another\", flush=True); input()'])"
    );
    let mut program = Running::start(leasing.python(&script, &file, true));
    assert_eq!(program.hear(), "begun");
    let cut = |blocks: u64| {
        let began = Instant::now();
        let file = std::fs::OpenOptions::new().write(true).open(&file).unwrap();
        file.set_len(blocks * 4096).unwrap();
        assert!(began.elapsed() < Duration::from_secs(5), "S-363");
    };
    program.signal(Signal::STOP);
    cut(15);
    assert_eq!(std::fs::read(&file).unwrap(), [7; 15 * 4096]);
    program.signal(Signal::CONT);
    program.tell("");
    assert_eq!(program.hear(), "closed");
    cut(14);
    leasing.filled("f", 16);
    program.tell("");
    assert_eq!(program.hear(), "another");
    cut(13);
    drop(program);
    leasing.until("its end is noticed", |report| report.clients.is_empty());
    leasing.mounted.finish();
}
