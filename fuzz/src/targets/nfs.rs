//! What reaches the NFS server over a socket.
//!
//! What must hold: any bytes are no call or are answered with a reply of bounded length, and nothing
//! beside the exported directory is touched.

use std::path::{Path, PathBuf};

use bedplate_export::nfs::forge::{Service, messages};
use bedplate_export::nfs::{Rights, Squash, Tree, Users};
use tempfile::TempDir;

use crate::input::Input;

/// Calls that one input may hold.
const CALLS_MAX: usize = 64;
const NFS: u32 = 100_003;
const MOUNT: u32 = 100_005;
const NLM: u32 = 100_021;
const NSM: u32 = 100_024;
/// By what the calls' client is known.
const NAME: &[u8] = b"fuzz";
/// Procedures of locks.
const LOCKS: [u32; 6] = [1, 2, 3, 4, 22, 23];
/// Bytes from which on a call is of locks.
const OF_LOCKS: u8 = 200;

/// Takes an input for the bytes of a client, or for calls that are made of it: their procedures, and
/// arguments behind handles that were given.
pub fn run(data: &[u8]) {
    let Some((way, data)) = data.split_first() else { return };
    let Some(place) = Place::new() else {
        // Nothing is served without the superuser's rights; what is read first still can be.
        let _messages = messages(data, usize::from(*way).max(1));
        return;
    };
    match way % 2 {
        0 => {
            for message in messages(data, 1 + usize::from(*way)) {
                let _answer = place.service.answer(&message);
            }
        }
        _ => calls(&place, data),
    }
    place.is_intact();
}

/// A directory that is served, and one beside it.
struct Place {
    dir: TempDir,
    service: Service,
    root: PathBuf,
}

impl Place {
    fn new() -> Option<Self> {
        let memory = Path::new("/dev/shm");
        let base = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
        let dir = tempfile::tempdir_in(base).expect("there is room");
        let path = dir.path().join("exported");
        for name in ["exported", "exported/inside", "beside"] {
            std::fs::create_dir(dir.path().join(name)).expect("it is new");
        }
        for name in ["exported/file", "beside/kept"] {
            std::fs::write(dir.path().join(name), b"content").expect("there is room");
        }
        let users = Users { squash: Squash::All, ..Users::default() };
        for name in ["exported", "exported/inside", "exported/file"] {
            let owner = Some(users.anonymous_uid);
            if std::os::unix::fs::chown(dir.path().join(name), owner, owner).is_err() {
                return None;
            }
        }
        let tree = Tree::open(&path, Rights { users, ..Rights::default() }).ok()?;
        let root = tree.path().to_owned();
        Some(Self { dir, service: Service::new(tree), root })
    }

    fn is_intact(&self) {
        let beside: Vec<_> = std::fs::read_dir(self.dir.path())
            .expect("it is there")
            .map(|entry| entry.expect("it is listed").file_name())
            .collect();
        assert_eq!(beside.len(), 2, "{beside:?}");
        let kept = std::fs::read(self.dir.path().join("beside/kept"));
        assert_eq!(kept.expect("it is there"), b"content");
    }
}

/// Makes calls; handles that answers hold are used by later ones.
fn calls(place: &Place, data: &[u8]) {
    let mut input = Input::new(data);
    let mut path = Vec::new();
    opaque(&mut path, place.root.to_str().expect("it was made so").as_bytes());
    let mounted = place.service.answer(&call(0, (MOUNT, 3), 1, &path)).expect("it is a call");
    let mut handles = vec![handle_at(&mounted, 28).expect("the directory is there")];
    let mut client = Vec::new();
    [NAME, NAME].iter().for_each(|name| opaque(&mut client, name));
    client.extend([0; 28]);
    place.service.answer(&call(0, (NSM, 1), 2, &client)).expect("it is a call");
    for number in 1..=CALLS_MAX {
        if input.is_empty() {
            return;
        }
        let kind = input.u8();
        let xid = u32::try_from(number).expect("there are few");
        if kind >= OF_LOCKS {
            let (procedure, arguments) = lock_call(&mut input, &handles);
            let answer = place.service.answer(&call(xid, (NLM, 4), procedure, &arguments));
            assert_eq!(answer.expect("it is a call")[..4], xid.to_be_bytes());
            continue;
        }
        let procedure = u32::from(kind % 23);
        let of = usize::from(input.u8()) % handles.len();
        let mut arguments = Vec::new();
        opaque(&mut arguments, &handles[of]);
        if input.u8().is_multiple_of(2) && (3..16).contains(&procedure) {
            let len = usize::from(input.u8() % 16);
            opaque(&mut arguments, input.bytes(len));
        }
        let len = usize::from(input.u8());
        arguments.extend(input.bytes(len));
        let answer = place.service.answer(&call(xid, (NFS, 3), procedure, &arguments));
        let answer = answer.expect("it is a call");
        assert_eq!(answer[..4], xid.to_be_bytes());
        assert_eq!(answer[4..8], [0, 0, 0, 1], "a reply");
        // A handle that LOOKUP found, or that something was made with.
        let at = if procedure == 3 { 28 } else { 32 };
        if (3..12).contains(&procedure) && answer.get(24..28) == Some(&[0; 4]) {
            handles.extend(handle_at(&answer, at));
        }
    }
}

/// Makes a call of locks: of few owners and ranges, so that they meet.
fn lock_call(input: &mut Input<'_>, handles: &[Vec<u8>]) -> (u32, Vec<u8>) {
    let procedure = LOCKS[usize::from(input.u8()) % LOCKS.len()];
    let mut arguments = Vec::new();
    if procedure == 23 {
        opaque(&mut arguments, NAME);
        arguments.extend([0; 4]);
        return (procedure, arguments);
    }
    opaque(&mut arguments, b"cookie");
    let bits = input.u8();
    // Whether it waits, and the kind, as far as the procedure has them.
    let count = match procedure {
        1 => 1,
        4 => 0,
        _ => 2,
    };
    (0..count).for_each(|bit| arguments.extend([0, 0, 0, bits >> bit & 1]));
    opaque(&mut arguments, NAME);
    opaque(&mut arguments, &handles[usize::from(input.u8()) % handles.len()]);
    opaque(&mut arguments, &[input.u8() % 3]);
    arguments.extend([0; 4]);
    for _ in 0..2 {
        let (value, shift) = (u64::from(input.u8()), input.u8() % 64);
        arguments.extend((value << shift).to_be_bytes());
    }
    // Whether it is taken back, and the client's state.
    arguments.extend([0, 0, 0, bits >> 7, 0, 0, 0, 0]);
    (procedure, arguments)
}

fn opaque(to: &mut Vec<u8>, bytes: &[u8]) {
    to.extend(u32::try_from(bytes.len()).expect("it is short").to_be_bytes());
    to.extend(bytes);
    to.resize(to.len().next_multiple_of(4), 0);
}

fn call(xid: u32, (program, version): (u32, u32), procedure: u32, arguments: &[u8]) -> Vec<u8> {
    let words = [xid, 0, 2, program, version, procedure, 0, 0, 0, 0];
    let mut call: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
    call.extend(arguments);
    call
}

fn handle_at(answer: &[u8], at: usize) -> Option<Vec<u8>> {
    let len = u32::from_be_bytes(answer.get(at..at + 4)?.try_into().ok()?) as usize;
    (len <= 64).then(|| answer.get(at + 4..at + 4 + len).map(<[u8]>::to_vec)).flatten()
}
