//! What reaches the NBD server over a socket.
//!
//! What must hold: any bytes end the connection or are answered, and take bounded memory; requests
//! that are well formed change and return exactly the bytes that a disk would.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, OnceLock};

use bedplate_block::{BlockDevice, MemoryDevice, Snapshot};
use bedplate_export::nbd::{Export, Exports, forge};
use bedplate_export::{Disk, FileDisk};
use bedplate_fs::{FileSystem, FormatOptions, IoMode, OpenOptions};

use crate::base::{VOLUME_BYTES, options};
use crate::input::Input;

/// Bytes of the disk: no whole number of blocks or sectors.
const DISK_BYTES: u64 = 300_001;
/// Requests that one input may hold.
const REQUESTS_MAX: usize = 200;

/// Takes an input for the bytes of a client (0: from the greeting on, 1: once an export is used),
/// or for requests to be made of it.
pub fn run(data: &[u8]) {
    let Some((way, data)) = data.split_first() else { return };
    let fs = volume();
    let exports = exports(&fs);
    let (client, server) = UnixStream::pair().expect("the system has two descriptors");
    std::thread::scope(|scope| {
        let serving = scope.spawn(move || forge::serve(&exports, server));
        // Dropped when a check fails, so that the server ends.
        let client = client;
        match way % 3 {
            0 => throw(&client, data),
            1 => {
                begin(&client);
                throw(&client, data);
            }
            _ => {
                begin(&client);
                ask(&client, data);
            }
        }
        drop(client);
        let _ended = serving.join().expect("a server does not panic");
    });
    fs.unmount().expect("memory does not fail");
}

fn volume() -> FileSystem {
    static BASE: OnceLock<Snapshot> = OnceLock::new();
    let base = BASE.get_or_init(|| {
        let memory = MemoryDevice::new(VOLUME_BYTES);
        let device: Arc<dyn BlockDevice> = memory.clone();
        FileSystem::format(&device, None, &FormatOptions::default()).expect("it is empty");
        memory.snapshot()
    });
    let device = MemoryDevice::from_snapshot(base, MemoryDevice::GEOMETRY);
    FileSystem::mount(device, None, options(false)).expect("the base is sound")
}

fn exports(fs: &FileSystem) -> Exports {
    let open = OpenOptions { mode: Some(IoMode::Concurrent), ..OpenOptions::create() };
    let file = fs.open("/disk", &open).expect("there is room");
    file.set_size(DISK_BYTES).expect("there is room");
    let disk: Arc<dyn Disk> = Arc::new(FileDisk::new(fs, file, false).expect("it is a file"));
    let export = Export { name: "disk".into(), description: String::new(), disk };
    Exports::new(vec![export]).expect("there is one")
}

/// Sends bytes and takes whatever comes back.
fn throw(client: &UnixStream, data: &[u8]) {
    let (mut writer, mut reader) = (client, client);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            // The server may have heard enough.
            let _sent = writer.write_all(data).and_then(|()| writer.shutdown(Shutdown::Write));
        });
        let mut taken = [0; 65_536];
        while reader.read(&mut taken).is_ok_and(|count| count > 0) {}
        let _closed = client.shutdown(Shutdown::Both);
    });
}

/// Agrees on structured replies, block status and the export.
fn begin(mut client: &UnixStream) {
    let mut message = b"\0\0\0\x03IHAVEOPT\0\0\0\x08\0\0\0\0".to_vec();
    message
        .extend(b"IHAVEOPT\0\0\0\x0a\0\0\0\x1f\0\0\0\x04disk\0\0\0\x01\0\0\0\x0fbase:allocation");
    message.extend(b"IHAVEOPT\0\0\0\x07\0\0\0\x06\0\0\0\0\0\0");
    client.write_all(&message).expect("the server reads");
    // Greeting, an end, a context and an end, size and block sizes and an end.
    let mut answered = [0; 18 + 20 + 20 + 19 + 20 + 20 + 12 + 20 + 14 + 20];
    client.read_exact(&mut answered).expect("the server answers");
    assert_eq!(answered[answered.len() - 8..], [0, 0, 0, 1, 0, 0, 0, 0], "GO is acknowledged");
}

/// Makes requests one by one, and compares with a disk of a vector.
fn ask(client: &UnixStream, data: &[u8]) {
    let mut input = Input::new(data);
    let mut model = vec![0_u8; DISK_BYTES as usize];
    for number in 0..REQUESTS_MAX {
        if input.is_empty() {
            return;
        }
        let (kind, flags) = (u16::from(input.u8() % 9), u16::from(input.u8() & 0x1f));
        let offset = input.u24() % (DISK_BYTES + 100);
        let len = [input.u16().into(), input.u24() as u32][usize::from(flags & 1)];
        // 2 would end it.
        let kind = if kind == 2 { 1 } else { kind };
        let seed = number as u8 + 1;
        one(client, kind, flags, offset, len, seed, &mut model);
    }
}

fn one(
    mut client: &UnixStream,
    kind: u16,
    flags: u16,
    offset: u64,
    len: u32,
    seed: u8,
    model: &mut [u8],
) {
    let mut request = 0x2560_9513_u32.to_be_bytes().to_vec();
    request.extend(flags.to_be_bytes());
    request.extend(kind.to_be_bytes());
    request.extend(u64::from(seed).to_be_bytes());
    request.extend(offset.to_be_bytes());
    request.extend(len.to_be_bytes());
    if kind == 1 {
        request.resize(request.len() + len as usize, seed);
    }
    // A large write is refused only once it is read, so the answer never waits for this end.
    client.write_all(&request).expect("the server reads");
    let (errno, answer) = answer(client, seed.into());
    let (from, to) = (offset as usize, offset.saturating_add(len.into()) as usize);
    let fits = len > 0 && to <= model.len();
    let allowed = match kind {
        0 => flags & !5 == 0,
        1 | 4 => flags & !1 == 0,
        3 => flags & !1 == 0,
        6 => flags & !0x13 == 0,
        7 => flags & !9 == 0,
        _ => false,
    };
    assert_eq!(errno == 0, allowed && (fits || kind == 3), "kind {kind}, flags {flags}");
    if errno != 0 || kind == 3 {
        return;
    }
    match kind {
        0 => assert!(answer == model[from..to], "a read of {len} bytes at {offset}"),
        1 => model[from..to].fill(seed),
        6 => model[from..to].fill(0),
        4 => {
            // Whole blocks may be zeros now.
            let found = read(client, model.len());
            let same =
                |at: usize| found[at] == model[at] || (from..to).contains(&at) && found[at] == 0;
            assert!((0..model.len()).all(same), "a trim of {len} bytes at {offset}");
            model.copy_from_slice(&found);
        }
        _ => tells_the_truth(&answer, &model[from..to]),
    }
}

/// Reads the whole disk.
fn read(mut client: &UnixStream, len: usize) -> Vec<u8> {
    let mut request = 0x2560_9513_u32.to_be_bytes().to_vec();
    request.extend([0; 20]);
    request.extend((len as u32).to_be_bytes());
    client.write_all(&request).expect("the server reads");
    answer(client, 0).1
}

/// Takes one reply; returns its error number and its data.
fn answer(mut client: &UnixStream, cookie: u64) -> (u32, Vec<u8>) {
    let mut head = [0; 16];
    client.read_exact(&mut head).expect("the server answers");
    let number = |bytes: &[u8]| bytes.iter().fold(0, |n: u64, byte| n << 8 | u64::from(*byte));
    if head[..4] == 0x6744_6698_u32.to_be_bytes() {
        assert_eq!(number(&head[8..]), cookie);
        return (number(&head[4..8]) as u32, Vec::new());
    }
    assert_eq!(head[..4], 0x668e_33ef_u32.to_be_bytes(), "a reply begins as one");
    assert_eq!(number(&head[8..]), cookie);
    let mut len = [0; 4];
    client.read_exact(&mut len).expect("a chunk has a length");
    let mut payload = vec![0; number(&len) as usize];
    client.read_exact(&mut payload).expect("a chunk is whole");
    match number(&head[6..8]) {
        1 => (0, payload.split_off(8)),
        5 => (0, payload.split_off(4)),
        0x8001 => (number(&payload[..4]) as u32, Vec::new()),
        kind => panic!("a chunk of kind {kind}"),
    }
}

/// Compares block status with what is there.
fn tells_the_truth(answer: &[u8], content: &[u8]) {
    let mut at = 0;
    for run in answer.chunks(8) {
        let len = u32::from_be_bytes(run[..4].try_into().expect("four bytes")) as usize;
        assert!(len > 0 && at + len <= content.len(), "runs lie in the range");
        let reads_zero = run[7] & 2 != 0;
        assert!(!reads_zero || content[at..at + len].iter().all(|byte| *byte == 0));
        at += len;
    }
    assert!(at > 0, "there is one run at least");
}
