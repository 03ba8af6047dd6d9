//! What an NBD server sends to a device over the network.
//!
//! What must hold: whatever comes, the device opens or is refused, and each request of it succeeds or
//! fails, in bounded memory and without waiting for what cannot come any more; once a connection
//! broke, nothing succeeds.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;

use bedplate_block::{AlignedBuf, BlockDevice, DeviceOptions, open};

/// A greeting, and an export of 1 MiB that takes everything.
const AGREED: [u8; 18 + 20 + 12 + 20] = *b"NBDMAGICIHAVEOPT\0\x03\
    \0\x03\xe8\x89\x04\x55\x65\xa9\0\0\0\x07\0\0\0\x03\0\0\0\x0c\0\0\0\0\0\0\0\x10\0\0\x08\x65\
    \0\x03\xe8\x89\x04\x55\x65\xa9\0\0\0\x07\0\0\0\x01\0\0\0\0";

/// The shortest reply.
const REPLY_BYTES: usize = 16;

/// Takes an input for the bytes of a server: 0: from the greeting on, 1: once the export is agreed on.
/// They are followed by the end of the connection.
pub fn run(data: &[u8]) {
    let Some((way, data)) = data.split_first() else { return };
    let directory = tempfile::tempdir().expect("there is room for a socket");
    let place = directory.path().join("s");
    let listener = UnixListener::bind(&place).expect("the directory is new");
    let said = if way % 2 == 0 { data.to_vec() } else { [&AGREED[..], data].concat() };
    std::thread::scope(|scope| {
        scope.spawn(|| serve(&listener, &said));
        let uri = format!("nbd+unix:///disk?socket={}", place.display());
        // Claims nothing, and so takes one connection.
        let options = DeviceOptions { exclusive: false, ..DeviceOptions::default() };
        if let Ok(device) = open(PathBuf::from(uri), &options) {
            use_up(&*device, said.len() / REPLY_BYTES);
        }
        // Where the device did not come so far, the server waits for a client.
        drop(UnixStream::connect(&place));
    });
}

/// Says all that is to be said to the first client, and hears it out.
fn serve(listener: &UnixListener, said: &[u8]) {
    let Ok((mut client, _)) = listener.accept() else { return };
    let mut reader = client.try_clone().expect("the system has a descriptor");
    std::thread::scope(|scope| {
        scope.spawn(move || {
            // The client may have heard enough.
            let _sent = client.write_all(said).and_then(|()| client.shutdown(Shutdown::Write));
        });
        let mut taken = [0; 65_536];
        while reader.read(&mut taken).is_ok_and(|count| count > 0) {}
    });
}

/// Makes requests of each kind until nothing is left that the server said.
fn use_up(device: &dyn BlockDevice, replies_max: usize) {
    let block = device.geometry().logical_block_size as usize;
    assert!(block >= 512 && block.is_power_of_two(), "a block of {block} bytes");
    assert!(device.size_bytes().is_multiple_of(block as u64), "whole blocks");
    // A server may say that its blocks are as large as it likes.
    if block > 1 << 20 || device.size_bytes() < 2 * block as u64 {
        return;
    }
    let mut buf = AlignedBuf::zeroed(block);
    let len = block as u64;
    for _ in 0..8 {
        let done = [
            device.read_at(&mut buf, 0).is_ok(),
            device.write_at(&buf, len).is_ok(),
            device.flush().is_ok(),
            device.write_zeroes(0, 2 * len).is_ok(),
            device.discard(len, len).is_ok(),
            device.discard_to_zeros(0, len).is_ok(),
        ];
        if done.iter().all(|done| !done) {
            break;
        }
    }
    // The server ends once it has said all: a request that waits for more is answered by that.
    let failed = (0..=replies_max).any(|_| {
        let failed = device.flush();
        failed.is_err_and(|error| error.detail.contains("broke"))
    });
    assert!(failed, "more flushes succeeded than a server of so few bytes can answer");
    assert!(device.flush().is_err(), "I-NDV-1: nothing succeeds after a break");
}
