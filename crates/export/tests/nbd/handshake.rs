//! The beginning of a connection.

use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;

use crate::bed::{Bed, Place};
use crate::client::{
    ABORT, ACK, Client, GO, INFO, LIST, SET_META, STRUCTURED, contexts, information,
};

const ERR_UNSUP: u32 = 1 << 31 | 1;
const ERR_INVALID: u32 = 1 << 31 | 3;
const ERR_UNKNOWN: u32 = 1 << 31 | 6;
const ERR_TOO_BIG: u32 = 1 << 31 | 9;

#[test]
fn exports_are_listed_and_told_of() {
    let bed = Bed::new(Place::Volume, 1 << 20);
    let mut client = Client::connect(&bed.socket);
    let replies = client.option(LIST, &[]);
    assert_eq!(replies[0], (2, b"\0\0\0\x04diskof a test".to_vec()));
    assert_eq!((replies[1].0, replies.len()), (ACK, 2));
    let told = client.option(INFO, &information(""));
    assert_eq!(told.len(), 5, "size, block sizes, name, description, end: {told:?}");
    assert!(told.contains(&(3, b"\0\x01disk".to_vec())));
    let sizes = &told.iter().find(|(_, data)| data.starts_with(&[0, 3])).unwrap().1;
    assert_eq!(sizes[2..], [0, 0, 0, 1, 0, 0, 0x20, 0, 2, 0, 0, 0]);
    client.go("disk", false);
    assert_eq!(client.read(0, 512), [0; 512]);
}

#[test]
fn options_that_are_wrong_are_refused_and_the_client_goes_on() {
    let bed = Bed::new(Place::Volume, 1 << 20);
    let mut client = Client::connect(&bed.socket);
    assert_eq!(client.option(GO, &information("none"))[0].0, ERR_UNKNOWN);
    assert_eq!(client.option(GO, &[0xff; 40])[0].0, ERR_INVALID);
    assert_eq!(client.option(LIST, &[1])[0].0, ERR_INVALID);
    assert_eq!(client.option(99, &[])[0].0, ERR_UNSUP);
    assert_eq!(client.option(GO, &vec![0; 100_000])[0].0, ERR_TOO_BIG);
    let asked = contexts("disk", &["base:allocation"]);
    assert_eq!(client.option(SET_META, &asked)[0].0, ERR_INVALID, "structured replies come first");
    assert_eq!(client.option(STRUCTURED, &[])[0].0, ACK);
    let asked = contexts("disk", &["qemu:dirty-bitmap:x"]);
    assert_eq!(client.option(SET_META, &asked), [(ACK, vec![])], "unknown ones are passed over");
    client.go("disk", false);
    client.structured = true;
    assert_eq!(client.read(0, 512), [0; 512]);
    let mut leaving = Client::connect(&bed.socket);
    assert_eq!(leaving.option(ABORT, &[])[0].0, ACK);
    assert_eq!(leaving.stream.read(&mut [0]).unwrap(), 0);
}

#[test]
fn the_old_way_to_begin_is_served() {
    let bed = Bed::new(Place::Volume, 1 << 20);
    let mut client = Client::connect(&bed.socket);
    client.stream.write_all(b"IHAVEOPT\0\0\0\x01\0\0\0\x04disk").unwrap();
    let mut told = [0; 10];
    client.stream.read_exact(&mut told).unwrap();
    assert_eq!(told[..8], (1_u64 << 20).to_be_bytes());
    assert_eq!(client.write(0, 0, b"old"), 0);
    assert_eq!(client.read(0, 3), b"old");
}

#[test]
fn s_346_the_socket_is_its_owners_alone_and_goes_with_the_server() {
    let mut bed = Bed::new(Place::Volume, 1 << 20);
    let mode = bed.socket.metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    bed.end();
    assert!(!bed.socket.exists());
}
