//! Leases through the kernel: programs with the library in front of their calls, and clients that
//! do what no library would.

mod appends;
mod odd;
mod overwrites;
mod pages;
mod requests;
mod syncs;
mod tail;

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use bedplate_block::{BlockDevice, DeviceOptions};
use bedplate_fs::{FileSystem, FormatOptions, LeaseReport};
use bedplate_serve::control::{Answer, Request};
use tempfile::TempDir;

use crate::harness::{Mounted, NOBODY, ask, available, checkpoint, done, has_program, needs_root};

const OPTIONS: &str = "mode=concurrent,lease=owner,sync=200ms";

/// The library for programs; `None`, with the reason printed, where it cannot be built.
fn library() -> Option<&'static Path> {
    static LIBRARY: OnceLock<Option<PathBuf>> = OnceLock::new();
    let find = || {
        let here = std::env::current_exe().ok()?;
        let library = here.parent()?.parent()?.join("libbedplate_lease.so");
        // The library of the tree as it is, beside the tests of it.
        let target = here.parent()?.parent()?.parent()?;
        let built = Command::new(env!("CARGO"))
            .args(["build", "--offline", "--package", "bedplate-preload", "--target-dir"])
            .arg(target)
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .stderr(Stdio::null())
            .status();
        (built.is_ok_and(|status| status.success()) && library.exists()).then_some(library)
    };
    let library = LIBRARY.get_or_init(find).as_deref();
    if library.is_none() {
        println!("skipped: the library is not built");
    }
    library
}

/// A volume on an image, mounted, that leases.
struct Leasing {
    mounted: Mounted,
    dir: TempDir,
}

impl Leasing {
    fn new(options: &str) -> Option<Self> {
        Self::on(options, |device| device)
    }

    /// On what `wrap` makes of the image's device.
    fn on(
        options: &str,
        wrap: impl FnOnce(Arc<dyn BlockDevice>) -> Arc<dyn BlockDevice>,
    ) -> Option<Self> {
        (available() && has_program("python3") && library().is_some()).then(|| {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("image");
            bedplate_block::create_image(&path, 256 << 20, false).unwrap();
            let device = bedplate_block::open(&path, &DeviceOptions::default()).unwrap();
            let uid = rustix::process::geteuid().as_raw();
            let format = FormatOptions { uid, gid: uid, ..FormatOptions::default() };
            FileSystem::format(&device, None, &format).unwrap();
            Self { mounted: Mounted::on(wrap(device), options), dir }
        })
    }

    /// A file of so many blocks of ones, which may be written directly.
    fn filled(&self, name: &str, blocks: usize) -> PathBuf {
        let path = self.mounted.path(name);
        std::fs::write(&path, vec![1; blocks * 4096]).unwrap();
        for i in 0..3 {
            std::fs::File::open(&path).unwrap().sync_all().unwrap();
            let other = std::fs::File::create(self.mounted.path(&format!("{name}-{i}"))).unwrap();
            other.sync_all().unwrap();
        }
        std::thread::sleep(Duration::from_millis(500));
        path
    }

    /// A program in Python, with `F` the path; with the library where `leased`.
    fn python(&self, script: &str, file: &Path, leased: bool) -> Command {
        let mut command = Command::new("python3");
        command.arg("-c").arg(script).env("F", file).env("SAYS", self.says());
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        if leased {
            command.env("LD_PRELOAD", library().unwrap());
            command.env("BEDPLATE_LEASE_REPORT", self.says());
        }
        command
    }

    fn says(&self) -> PathBuf {
        self.dir.path().join("report")
    }

    /// Runs a program to its end; returns what it printed, and what the library reports of it.
    fn run(&self, script: &str, file: &Path) -> (String, String) {
        drop(std::fs::remove_file(self.says()));
        let output = self.python(script, file, true).stderr(Stdio::inherit()).output().unwrap();
        assert!(output.status.success(), "{script}");
        let said = String::from_utf8(output.stdout).unwrap();
        (said, std::fs::read_to_string(self.says()).unwrap_or_default())
    }

    fn report(&self) -> LeaseReport {
        match ask(self.mounted.root(), &Request::Leases) {
            Answer::Done(told) => serde_json::from_value(told).unwrap(),
            failed => panic!("{failed:?}"),
        }
    }

    fn until(&self, what: &str, is_so: impl Fn(&LeaseReport) -> bool) {
        let deadline = Instant::now() + Duration::from_secs(30);
        while !is_so(&self.report()) {
            assert!(Instant::now() < deadline, "{what}: {:?}", self.report());
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// A program under way; killed when dropped.
struct Running {
    child: Child,
    said: BufReader<std::process::ChildStdout>,
}

impl Running {
    fn start(mut command: Command) -> Self {
        let mut child = command.spawn().unwrap();
        let said = BufReader::new(child.stdout.take().unwrap());
        Self { child, said }
    }

    /// Waits for a line of it.
    fn hear(&mut self) -> String {
        let mut line = String::new();
        self.said.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    fn tell(&mut self, line: &str) {
        writeln!(self.child.stdin.as_mut().unwrap(), "{line}").unwrap();
    }

    fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).unwrap();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn count(report: &str, name: &str) -> u64 {
    let of = |word: &str| word.strip_prefix(name)?.strip_prefix('=')?.parse::<u64>().ok();
    report.split_whitespace().filter_map(of).sum()
}

/// S-210: a program as it is, with the library, reads, writes and syncs on the device, and the
/// mount, a second program and a mount after it see the same; times move (S-213).
#[test]
fn s_210_a_program_reads_and_writes_the_device_itself() {
    let Some(leasing) = Leasing::new(OPTIONS) else { return };
    let file = leasing.filled("f", 64);
    let before = file.metadata().unwrap();
    let script = "
import os, time
fd = os.open(os.environ['F'], os.O_RDWR)
for i in range(64):
    assert os.pread(fd, 4096, i * 4096) == b'\\1' * 4096, i
for i in range(0, 64, 2):
    assert os.pwrite(fd, bytes([i]) * 4096, i * 4096) == 4096
os.fdatasync(fd)
for i in range(0, 64, 2):
    assert os.pread(fd, 4096, i * 4096) == bytes([i]) * 4096, i
assert os.pwrite(fd, b'odd', 4096 + 10) == 3
assert os.pread(fd, 3, 4096 + 10) == b'odd'
child = os.fork()
if child == 0:
    assert os.pread(fd, 4096, 8 * 4096) == b'\\x08' * 4096
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
time.sleep(1.2)
os.close(fd)
";
    let (_, report) = leasing.run(script, &file);
    assert!(count(&report, "reads") >= 90 && count(&report, "writes") >= 32, "S-210: {report}");
    assert!(count(&report, "syncs") >= 1, "S-210: {report}");
    assert!(file.metadata().unwrap().mtime_nsec() != before.mtime_nsec(), "S-213");
    assert!(leasing.report().files.is_empty() && leasing.report().clients.is_empty());
    let seen = std::fs::read(&file).unwrap();
    assert!((0..64).step_by(2).all(|i| seen[i * 4096..(i + 1) * 4096] == [i as u8; 4096]));
    assert!(seen[4096 + 10..4096 + 13] == *b"odd" && seen[3 * 4096] == 1);
    leasing.mounted.finish();
}

/// What a client does by hand: attaches, finds the entry of its file, and says that a thread is
/// writing to it.
const BY_HAND: &str = "
import array, fcntl, mmap, os, socket, struct, sys
fd = os.open(os.environ['F'], os.O_RDWR)
def offer():
    told = bytearray(256)
    fcntl.ioctl(fd, 0x8100BE01, told, True)
    reason, = struct.unpack_from('<I', told, 12)
    return reason, bytes(told[32:48]), bytes(told[49:49 + told[48]])
def connect(name):
    s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    s.connect(name)
    return s
def ask(s, kind, what):
    s.send(struct.pack('<II', 8, kind) + what.ljust(56, b'\\0'))
    told, rights, _, _ = s.recvmsg(64, socket.CMSG_SPACE(28))
    fds = array.array('i')
    for level, kind, data in rights:
        fds.frombytes(data)
    version, reason, entry, readonly, generation = struct.unpack_from('<IIIIQ', told)
    return reason, entry, readonly, list(fds)
";

/// S-214: forged, used and foreign tokens, requests that are none, and a stranger's silence are
/// refused, each with its reason, and hurt nothing.
#[test]
fn s_214_what_is_no_request_of_a_client_is_refused() {
    let Some(leasing) = Leasing::new(OPTIONS) else { return };
    let file = leasing.filled("f", 4);
    let script = format!(
        "{BY_HAND}
reason, token, name = offer()
assert reason == 0
s = connect(name)
assert ask(s, 1, bytes(16))[0] == 13, 'a forged token'
assert ask(s, 2, token)[0] == 14, 'not attached'
assert ask(s, 99, b'')[0] == 14, 'no request'
s.send(b'x'); assert struct.unpack_from('<I', s.recv(64), 4)[0] in (12, 14)
s.send(b'y' * 500); assert struct.unpack_from('<I', s.recv(64), 4)[0] in (12, 14)
s.send(struct.pack('<II', 1, 1).ljust(64, b'\\0')); assert struct.unpack_from('<I', s.recv(64), \
         4)[0] == 12
reason, entry, readonly, fds = ask(s, 1, token)
assert (reason, readonly, len(fds)) == (0, 0, 7) and entry > 0, (reason, entry, fds)
assert ask(s, 1, token)[0] == 14, 'attached already'
other = connect(name)
assert ask(other, 1, token)[0] == 13, 'a token twice'
assert ask(s, 2, offer()[1])[0] == 0
for read_only in fds[2], fds[4], fds[5]:
    try:
        mmap.mmap(read_only, 4096, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE); assert False
    except OSError: pass
strangers = [connect(name) for i in range(100)]
assert ask(connect(name), 1, offer()[1])[0] == 0
print('well')"
    );
    let output = leasing.python(&script, &file, false).stderr(Stdio::inherit()).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "well\n");
    leasing.until("its end is noticed", |report| report.clients.is_empty());
    leasing.mounted.finish();
}

/// S-211: a client that says that it is writing, and says no more, holds up what needs the file
/// alone, and nothing else; it is told of; and its end, by whatever means, ends the wait.
#[test]
fn s_211_a_client_that_does_not_go_on_is_told_of_and_its_death_ends_the_wait() {
    let Some(leasing) = Leasing::new(OPTIONS) else { return };
    let (file, other) = (leasing.filled("f", 16), leasing.filled("g", 4));
    let script = format!(
        "{BY_HAND}
reason, token, name = offer()
s = connect(name)
reason, entry, readonly, fds = ask(s, 1, token)
slots = mmap.mmap(fds[3], 8 * 64, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
slots[5 * 8:6 * 8] = struct.pack('<Q', 1)
slots[16 * 8:17 * 8] = struct.pack('<Q', entry << 1 | 1)
print('busy', flush=True)
sys.stdin.readline()"
    );
    let mut client = Running::start(leasing.python(&script, &file, false));
    assert_eq!(client.hear(), "busy");
    client.signal(rustix::process::Signal::STOP);
    let root = leasing.mounted.root().to_owned();
    let cutting = {
        let file = file.clone();
        std::thread::spawn(move || {
            std::fs::OpenOptions::new().write(true).open(file).unwrap().set_len(0).unwrap();
        })
    };
    let making = std::thread::spawn(move || ask(&root, &checkpoint("c")));
    let pid = client.child.id();
    leasing.until("the wait is told of", |report| {
        report.waits.iter().any(|wait| wait.pid == pid && wait.process.contains("stopped"))
    });
    assert_eq!(std::fs::read(&other).unwrap().len(), 4 * 4096, "S-211: others go on");
    std::fs::write(leasing.mounted.path("new"), b"new").unwrap();
    assert!(!cutting.is_finished() && !making.is_finished(), "S-211");
    client.child.kill().unwrap();
    cutting.join().unwrap();
    assert!(matches!(making.join().unwrap(), Answer::Done(_)), "S-211");
    drop(client);
    leasing.until("its end is noticed", |report| report.clients.is_empty());
    leasing.mounted.finish();
}

/// S-211, S-172: programs that are stopped and killed while they write, and checkpoints meanwhile;
/// what a checkpoint shows is of one moment, and nothing is torn or lost.
#[test]
fn s_211_programs_are_stopped_and_killed_while_they_write() {
    let Some(leasing) = Leasing::new(OPTIONS) else { return };
    let file = leasing.filled("f", 64);
    let script = "
import os, random, sys, threading
fd = os.open(os.environ['F'], os.O_RDWR)
def work(n):
    r = random.Random(n)
    while True:
        block, byte = r.randrange(64), r.randrange(256)
        os.pwrite(fd, bytes([byte]) * 4096, block * 4096)
        seen = os.pread(fd, 4096, r.randrange(64) * 4096)
        assert len(seen) == 4096
for n in range(4): threading.Thread(target=work, args=(n,), daemon=True).start()
print('on', flush=True)
sys.stdin.readline()
";
    let whole = |bytes: &[u8]| {
        bytes.len() == 64 * 4096
            && bytes.chunks(4096).all(|block| block.iter().all(|byte| *byte == block[0]))
    };
    for round in 0..4 {
        let mut program = Running::start(leasing.python(script, &file, true));
        assert_eq!(program.hear(), "on");
        leasing.until("it writes directly", |report| {
            report.clients.iter().any(|client| client.writes > 100)
        });
        program.signal(rustix::process::Signal::STOP);
        let root = leasing.mounted.root().to_owned();
        let name = format!("c{round}");
        let making = {
            let name = name.clone();
            std::thread::spawn(move || ask(&root, &checkpoint(&name)))
        };
        std::thread::sleep(Duration::from_millis(150));
        program.signal(rustix::process::Signal::CONT);
        assert!(matches!(making.join().unwrap(), Answer::Done(_)), "S-211");
        std::thread::sleep(Duration::from_millis(100));
        drop(program);
        let past = leasing.mounted.path(&format!(".checkpoints/{name}/f"));
        let first = std::fs::read(&past).unwrap();
        assert!(whole(&first), "S-172: no write is in part");
        assert!(whole(&std::fs::read(&file).unwrap()), "S-211");
        assert_eq!(first, std::fs::read(&past).unwrap());
    }
    leasing.until("their ends are noticed", |report| report.clients.is_empty());
    leasing.mounted.finish();
}

/// S-214: another user's program works as before, through the mount.
#[test]
fn s_214_a_user_that_the_option_does_not_name_has_the_mount() {
    if !needs_root() {
        return;
    }
    let Some(leasing) = Leasing::new(&format!("{OPTIONS},allow_other")) else { return };
    let file = leasing.filled("f", 4);
    std::fs::set_permissions(leasing.mounted.root(), PermissionsExt::from_mode(0o755)).unwrap();
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o666)).unwrap();
    let script = format!(
        "{BY_HAND}
os.setuid({NOBODY})
assert offer()[0] == 2
assert os.pread(fd, 4096, 0) == b'\\1' * 4096
print('well')"
    );
    let output = leasing.python(&script, &file, false).stderr(Stdio::inherit()).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "well\n");
    // A token of root's in the hands of another.
    let script = format!(
        "{BY_HAND}
reason, token, name = offer()
os.setuid({NOBODY})
s = connect(name)
assert struct.unpack_from('<I', s.recv(64), 4)[0] == 2
print('well')"
    );
    let output = leasing.python(&script, &file, false).stderr(Stdio::inherit()).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "well\n");
    assert!(leasing.report().clients.is_empty());
    leasing.mounted.finish();
}

/// S-217: a process of another user that began by reading gets a device that it may write with the
/// first file that it may write, and not before.
#[test]
fn s_217_who_began_by_reading_writes_directly_once_a_file_may_be_written() {
    if !needs_root() {
        return;
    }
    let options = format!("{OPTIONS},lease=owner:{NOBODY},allow_other");
    let Some(leasing) = Leasing::new(&options) else { return };
    let (read, written) = (leasing.filled("r", 4), leasing.filled("f", 4));
    std::fs::set_permissions(leasing.mounted.root(), PermissionsExt::from_mode(0o755)).unwrap();
    std::fs::set_permissions(&read, PermissionsExt::from_mode(0o644)).unwrap();
    std::fs::set_permissions(&written, PermissionsExt::from_mode(0o666)).unwrap();
    std::fs::set_permissions(leasing.dir.path(), PermissionsExt::from_mode(0o777)).unwrap();
    let script = format!(
        "
import os
os.setuid({NOBODY})
def devices():
    modes = []
    for fd in os.listdir('/proc/self/fd'):
        try:
            if os.readlink('/proc/self/fd/' + fd).endswith('/image'):
                text = open('/proc/self/fdinfo/' + fd).read()
                flags = int(text.split('flags:')[1].split()[0], 8)
                modes.append((flags & 3, bool(flags & os.O_DIRECT)))
        except FileNotFoundError:
            pass
    return modes
first = os.open(os.path.dirname(os.environ['F']) + '/r', os.O_RDONLY)
assert os.pread(first, 4096, 0) == b'\\1' * 4096
same = os.open(os.environ['F'], os.O_RDONLY)
assert os.pread(same, 4096, 0) == b'\\1' * 4096
assert devices().count((2, True)) == 1, devices()  # The claim, which does no I/O.
fd = os.open(os.environ['F'], os.O_RDWR)
assert devices().count((2, True)) == 2, devices()
for i in range(4):
    assert os.pwrite(fd, bytes([7 + i]) * 4096, i * 4096) == 4096
    assert os.pread(same, 4096, i * 4096) == bytes([7 + i]) * 4096
os.fdatasync(fd)
if os.fork() == 0:
    assert os.pwrite(fd, bytes([99]) * 4096, 0) == 4096
    os._exit(0)
assert os.wait()[1] == 0
assert os.pread(same, 4096, 0) == bytes([99]) * 4096
print('well')"
    );
    let (said, report) = leasing.run(&script, &written);
    assert_eq!(said, "well\n");
    assert!(report.contains(" writes=4 ") && !report.contains("forbidden"), "S-217: {report}");
    let mut buf = vec![0; 16384];
    std::fs::File::open(&written).unwrap().read_exact(&mut buf).unwrap();
    assert!(buf[..4096] == [99; 4096] && buf[12288..] == [10; 4096], "S-217");
    leasing.mounted.finish();
}

/// S-153, I-LEA-6: a mapping of the file, of another program, and opens in other modes see what
/// leased writes wrote, and leased reads what they write.
#[test]
fn s_153_mappings_and_other_modes_see_the_same_bytes() {
    let Some(leasing) = Leasing::new(OPTIONS) else { return };
    let file = leasing.filled("f", 16);
    let script = "
import os, sys
fd = os.open(os.environ['F'], os.O_RDWR)
for line in sys.stdin:
    what, block, byte = line.split()
    block, byte = int(block), int(byte)
    if what == 'write':
        os.pwrite(fd, bytes([byte]) * 4096, block * 4096)
        print('done', flush=True)
    else:
        seen = os.pread(fd, 4096, block * 4096)
        print(seen[0] if seen == bytes([seen[0]]) * 4096 else 'torn', flush=True)
";
    let mut program = Running::start(leasing.python(script, &file, true));
    let mut tell = |line: &str| {
        program.tell(line);
        program.hear()
    };
    assert_eq!(tell("write 0 7"), "done");
    leasing.until("it has leases", |report| report.files.iter().any(|file| file.handed_out));
    for round in 0..3_u8 {
        let cached = leasing.mounted.path("f::cached");
        let other = std::fs::OpenOptions::new().read(true).write(true).open(&cached).unwrap();
        let mut block = [0; 4096];
        other.read_exact_at(&mut block, 0).unwrap();
        assert_eq!(block, [7 + round; 4096], "S-153");
        assert_eq!(tell(&format!("write 0 {}", 8 + round)), "done");
        other.read_exact_at(&mut block, 0).unwrap();
        assert_eq!(block, [8 + round; 4096], "S-153: the cache sees it");
        other.write_all_at(&[100 + round; 4096], 4096).unwrap();
        assert_eq!(tell("read 1 0"), (100 + round).to_string(), "S-153");
        drop(other);
        leasing.until("it comes back", |report| report.files.iter().any(|file| file.handed_out));
        assert_eq!(tell(&format!("write 2 {round}")), "done");
        let mut again = std::fs::File::open(&cached).unwrap();
        let mut bytes = Vec::new();
        again.read_to_end(&mut bytes).unwrap();
        assert_eq!(bytes[2 * 4096], round, "S-153: no page of the kernel's is older");
        drop(again);
        leasing.until("it comes back", |report| report.files.iter().any(|file| file.handed_out));
    }
    let mapping = "
import mmap, os, sys
fd = os.open(os.environ['F'], os.O_RDWR)
m = mmap.mmap(fd, 65536)
print(m[0], flush=True)
sys.stdin.readline()
print(m[0], flush=True)
m[3 * 4096] = 200
m.flush()
print('flushed', flush=True)
sys.stdin.readline()
";
    let mut mapper = Running::start(leasing.python(mapping, &file, false));
    assert_eq!(mapper.hear(), "10");
    assert_eq!(tell("write 0 99"), "done");
    mapper.tell("");
    assert_eq!(mapper.hear(), "99", "S-153: the mapping sees it");
    assert_eq!(mapper.hear(), "flushed");
    assert_eq!(tell("read 3 0"), "torn", "S-153: one byte of the block is the mapping's");
    assert!(leasing.report().files.iter().all(|file| !file.handed_out));
    drop(mapper);
    drop(program);
    leasing.mounted.finish();
}

/// S-211: a mount is taken away by force while programs write: it ends, the programs get errors,
/// and the volume is clean.
#[test]
fn s_211_a_mount_ends_while_programs_write() {
    let Some(leasing) = Leasing::new(OPTIONS) else { return };
    let file = leasing.filled("f", 16);
    let script = "
import os, sys, threading
fd = os.open(os.environ['F'], os.O_RDWR)
def work():
    try:
        while True: os.pwrite(fd, b'\\2' * 4096, 4096)
    except OSError as e: print('error', e.errno, flush=True)
threading.Thread(target=work, daemon=True).start()
print('on', flush=True)
sys.stdin.readline()
";
    let mut program = Running::start(leasing.python(script, &file, true));
    assert_eq!(program.hear(), "on");
    leasing.until("it writes directly", |report| {
        report.clients.iter().any(|client| client.writes > 10)
    });
    leasing.mounted.mount.force_unmount().unwrap();
    assert!(program.hear().starts_with("error"), "S-211");
    drop(program);
    let device = leasing.mounted.device.clone();
    drop(leasing);
    let report = FileSystem::check(&device, None, false).unwrap();
    assert!(report.findings.is_empty() && report.clean_unmount, "{:#?}", report.findings);
}

/// S-214: without the option there is no lease, and the library leaves everything as it is.
#[test]
fn s_214_a_mount_without_the_option_hands_out_nothing() {
    let Some(leasing) = Leasing::new("mode=concurrent") else { return };
    let file = leasing.filled("f", 4);
    let script = "
import os
fd = os.open(os.environ['F'], os.O_RDWR)
assert os.pread(fd, 4096, 0) == b'\\1' * 4096
os.pwrite(fd, b'\\2' * 4096, 0)
os.fdatasync(fd)
";
    let (_, report) = leasing.run(script, &file);
    assert_eq!((count(&report, "reads"), count(&report, "writes")), (0, 0), "{report}");
    assert_eq!(std::fs::read(&file).unwrap()[..2], [2, 2]);
    assert!(
        matches!(ask(leasing.mounted.root(), &Request::Leases), Answer::Done(told) if told.is_null())
    );
    done(&leasing.mounted, &checkpoint("c"));
    leasing.mounted.finish();
}
