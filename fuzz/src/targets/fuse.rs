//! Requests of the kernel's protocol, with bodies that are anything, on a mount without a kernel.
//!
//! Left out is what the kernel is trusted with: giving back no more references than it was given
//! (`FORGET`, `BATCH_FORGET`).

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread;

use bedplate_block::{BlockDevice, MemoryDevice};
use bedplate_fs::FileSystem;
use bedplate_serve::fuse::{MountSettings, WriteBack, serve_connection};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, Shutdown, SocketFlags, SocketType, recv, send, shutdown,
    socketpair,
};

use crate::base::{base, options};
use crate::checked::Watch;
use crate::input::Input;

const FORGET: u32 = 2;
const INIT: u32 = 26;
const DESTROY: u32 = 38;
const BATCH_FORGET: u32 = 42;
/// Bytes before the body of a request.
const HEADER_BYTES: usize = 40;
/// Requests that one input may hold.
const REQUESTS_MAX: u64 = 64;
/// Operation codes go from 1 to about here.
const CODES: u32 = 56;

/// Sends the requests of an input to a mount of a sound volume.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let choice = input.u8();
    let checked = Watch::over(&base(choice).snapshot, base(choice).regions.clone());
    let device: Arc<dyn BlockDevice> = checked.clone();
    let settings = MountSettings {
        file_system: options(choice & 0x40 != 0),
        write_back: if choice & 0x80 == 0 { WriteBack::Off } else { WriteBack::On },
        ..MountSettings::default()
    };
    let fs =
        FileSystem::mount(device, None, settings.file_system.clone()).expect("the base is sound");
    let (kernel, daemon) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .expect("the system has sockets");
    thread::scope(|scope| {
        scope.spawn(|| drain(&kernel));
        scope.spawn(|| talk(&kernel, &mut input));
        // A message that is no request ends the session: an error like any other.
        drop(serve_connection(fs.clone(), &settings, daemon));
        let _closed = shutdown(&kernel, Shutdown::Both);
    });
    fs.unmount().expect("memory does not fail");
    checked.assert_obeyed();
    let device: Arc<dyn BlockDevice> =
        MemoryDevice::from_snapshot(&checked.snapshot(), MemoryDevice::GEOMETRY);
    if choice & 0x40 == 0 {
        let report = FileSystem::check(&device, None, false).expect("it was unmounted");
        assert!(report.findings.is_empty(), "requests broke the volume: {:?}", report.findings);
    }
}

/// Takes the answers off the connection.
fn drain(kernel: &OwnedFd) {
    let mut answer = vec![0; 2 << 20];
    while recv(kernel, &mut answer[..], RecvFlags::empty()).is_ok_and(|(len, _)| len > 0) {}
}

fn talk(kernel: &OwnedFd, input: &mut Input<'_>) {
    let mut init = vec![0; 64];
    for (at, word) in [(0, 7_u32), (4, 45), (8, 1 << 20), (12, u32::MAX), (16, u32::MAX)] {
        init[at..at + 4].copy_from_slice(&word.to_le_bytes());
    }
    let mut sent = request(kernel, INIT, 1, 0, &init);
    for unique in 2..REQUESTS_MAX {
        if input.is_empty() || !sent {
            break;
        }
        let code = u32::from(input.u8()) % CODES;
        let node = node(input);
        let len = usize::from(input.u16()) % 0x3000;
        let body = input.bytes(len);
        if ![FORGET, BATCH_FORGET, DESTROY].contains(&code) {
            sent = request(kernel, code, unique, node, body);
        }
    }
    request(kernel, DESTROY, REQUESTS_MAX, 0, &[]);
}

/// An inode: mostly one that exists.
fn node(input: &mut Input<'_>) -> u64 {
    match input.u8() {
        255 => input.u64(),
        small => u64::from(small),
    }
}

fn request(kernel: &OwnedFd, code: u32, unique: u64, node: u64, body: &[u8]) -> bool {
    let len = HEADER_BYTES + body.len();
    let mut message = Vec::with_capacity(len);
    message.extend_from_slice(&u32::try_from(len).expect("a request is small").to_le_bytes());
    message.extend_from_slice(&code.to_le_bytes());
    message.extend_from_slice(&unique.to_le_bytes());
    message.extend_from_slice(&node.to_le_bytes());
    // Owner, group, process: an ordinary user.
    [1_u32, 1, 1, 0].iter().for_each(|word| message.extend_from_slice(&word.to_le_bytes()));
    send(kernel, &message, SendFlags::NOSIGNAL).is_ok()
}
