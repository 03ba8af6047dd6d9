//! The calls of locks as bytes: clients that die, come back, forge and flood.

use std::fs::File;
use std::io::{Read, Write};
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::Duration;

use bedplate_block::try_lock_record;

use crate::bed::{Bed, USER, hasty, trusting};
use crate::client::{Args, Client, Result};

const NLM: u32 = 100_021;
const NSM: u32 = 100_024;
const TEST: u32 = 1;
const LOCK: u32 = 2;
const CANCEL: u32 = 3;
const UNLOCK: u32 = 4;
const FREE_ALL: u32 = 23;

const GRANTED: u32 = 0;
const DENIED: u32 = 1;
const NO_LOCKS: u32 = 2;
const GRACE: u32 = 4;
const READ_ONLY: u32 = 6;
const STALE: u32 = 7;
const TOO_LARGE: u32 = 8;
const FAILED: u32 = 9;

impl Client {
    /// Calls a program of another version than NFS has.
    fn call_as(&mut self, program: u32, version: u32, procedure: u32, args: &Args) -> Result {
        let sent = self.send_as(program, version, procedure, args);
        let (xid, mut result) = self.reply();
        assert_eq!(xid, sent);
        assert_eq!([0; 4].map(|_| result.u32()), [0; 4], "accepted and carried out");
        result
    }

    fn send_as(&mut self, program: u32, version: u32, procedure: u32, args: &Args) -> u32 {
        self.xid += 1;
        let mut record = self.record(program, procedure, args);
        // Behind the mark: number, call, version of RPC, program.
        record[20..24].copy_from_slice(&version.to_be_bytes());
        self.stream.write_all(&record).unwrap();
        self.xid
    }

    /// Makes the connection a client's; returns whether it failed, and the state.
    fn monitor(&mut self, name: &str, place: u32, secret: u8) -> (u32, u32) {
        let args = Args::of(name.as_bytes()).opaque(b"me").u32(0).u32(0).u32(place);
        let secret = u32::from_be_bytes([secret; 4]);
        let args = (0..4).fold(args, |args, _| args.u32(secret));
        let mut result = self.call_as(NSM, 1, 2, &args);
        (result.u32(), result.u32())
    }

    fn nlm(&mut self, procedure: u32, args: &Args) -> u32 {
        let mut result = self.call_as(NLM, 4, procedure, args);
        assert_eq!(result.opaque(), b"cookie");
        result.u32()
    }

    fn lock(&mut self, target: Target<'_>, is_exclusive: bool) -> u32 {
        self.nlm(LOCK, &lock_args(target, is_exclusive, false))
    }
}

/// The client's name, the file, the owner, the first byte and how many.
type Target<'a> = (&'a str, &'a [u8], &'a [u8], u64, u64);

fn target_args(args: Args, (name, file, owner, offset, len): Target<'_>) -> Args {
    args.opaque(name.as_bytes()).opaque(file).opaque(owner).u32(77).u64(offset).u64(len)
}

fn lock_args(target: Target<'_>, is_exclusive: bool, is_reclaim: bool) -> Args {
    let args = Args::of(b"cookie").u32(0).u32(u32::from(is_exclusive));
    target_args(args, target).u32(u32::from(is_reclaim)).u32(1)
}

fn unlock_args(target: Target<'_>) -> Args {
    target_args(Args::of(b"cookie"), target)
}

/// A connection of a client and a file. No two make a call of the same number.
fn begun(bed: &Bed, name: &str, place: u32) -> (Client, Vec<u8>) {
    static NUMBERS: AtomicU32 = AtomicU32::new(1);
    let mut client = bed.client();
    client.xid = NUMBERS.fetch_add(1, SeqCst) << 16;
    let root = client.mount(&bed.root.display().to_string()).unwrap();
    let file = match client.lookup(&root, "file") {
        Ok(file) => file,
        Err(_) => client.create(&root, "file"),
    };
    let (failed, state) = client.monitor(name, place, name.len() as u8);
    assert_eq!((failed, state % 2), (0, 1));
    (client, file)
}

#[test]
fn s_606_each_procedure_answers_as_the_protocol_says() {
    let Some(bed) = Bed::new(trusting()) else { return };
    let (mut client, file) = begun(&bed, "one", 0);
    let at = |owner: &'static [u8], offset, len| ("one", &file[..], owner, offset, len);
    assert!(client.call_as(NLM, 4, 0, &Args::default()).0.is_empty());
    assert!(client.call_as(NSM, 1, 0, &Args::default()).0.is_empty());
    assert_eq!(client.lock(at(b"a", 5, 10), true), GRANTED);
    assert_eq!(client.lock(at(b"b", 14, 0), false), DENIED);
    let waits = target_args(Args::of(b"cookie").u32(1).u32(0), at(b"b", 14, 0)).u32(0).u32(0);
    assert_eq!(client.nlm(LOCK, &waits), DENIED, "nothing calls back");
    let cancel = target_args(Args::of(b"cookie").u32(1).u32(0), at(b"b", 14, 0));
    assert_eq!(client.nlm(CANCEL, &cancel), GRANTED);
    let test = target_args(Args::of(b"cookie").u32(0), at(b"b", 0, 0));
    let mut found = client.call_as(NLM, 4, TEST, &test);
    assert_eq!((found.opaque(), found.u32()), (b"cookie".to_vec(), DENIED));
    assert_eq!((found.u32(), found.u32(), found.opaque()), (1, 77, b"a".to_vec()));
    assert_eq!((found.u64(), found.u64()), (5, 10));
    assert_eq!(client.nlm(UNLOCK, &unlock_args(at(b"a", 0, 0))), GRANTED);
    assert_eq!(client.nlm(UNLOCK, &unlock_args(at(b"a", 0, 0))), GRANTED, "nothing is there");
    assert_eq!(client.lock(at(b"b", 14, u64::MAX), true), GRANTED);
    assert_eq!(client.lock(at(b"b", 1 << 63, 5), true), TOO_LARGE);
    // All at once, by the client's own name alone.
    for (name, stat) in [("two", DENIED), ("one", GRANTED)] {
        let args = Args::of(name.as_bytes()).u32(3);
        assert!(client.call_as(NLM, 4, FREE_ALL, &args).0.is_empty());
        assert_eq!(client.lock(at(b"a", 14, 1), true), stat);
    }
    for (program, version, procedure, accepted) in
        [(NLM, 4, 5, 3), (NLM, 4, 20, 3), (NLM, 3, LOCK, 2), (NSM, 1, 6, 3), (NSM, 2, 2, 2)]
    {
        client.send_as(program, version, procedure, &Args::default());
        let (_, mut reply) = client.reply();
        assert_eq!([0; 4].map(|_| reply.u32()), [0, 0, 0, accepted], "{program} {procedure}");
    }
}

#[test]
fn s_609_a_client_that_dies_has_its_locks_a_while_and_one_that_comes_back_keeps_them() {
    let Some(bed) = Bed::new(hasty()) else { return };
    let (mut first, file) = begun(&bed, "first", 0);
    let (mut second, _) = begun(&bed, "second", 0);
    let own = ("first", &file[..], &b"a"[..], 0, 10);
    let others = ("second", &file[..], &b"a"[..], 0, 10);
    let (_, state) = begun(&bed, "first", 1).0.monitor("first", 1, 5);
    assert_eq!(state, 0, "a connection is one client's, once");
    assert_eq!(first.lock(own, true), GRANTED);
    // Of two connections one stays.
    let (mut beside, _) = begun(&bed, "first", 1);
    drop(first);
    for _ in 0..30 {
        assert_eq!(second.lock(others, false), DENIED);
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(beside.nlm(UNLOCK, &unlock_args(own)), GRANTED);
    assert_eq!(beside.lock(own, true), GRANTED);
    drop(beside);
    while second.lock(others, true) == DENIED {
        std::thread::sleep(Duration::from_millis(20));
    }
    // It is told by another state, and by what it asks back.
    let (mut again, _) = begun(&bed, "first", 0);
    assert_eq!(again.nlm(LOCK, &lock_args(own, true, true)), GRACE);
    assert_eq!(again.lock(own, true), DENIED);
    assert_eq!(second.nlm(LOCK, &lock_args(others, true, true)), GRANTED, "it has it");
    assert_eq!(second.nlm(LOCK, &lock_args(others, false, true)), GRACE, "not that kind");
}

#[test]
fn s_608_only_clients_that_had_locks_take_any_back_and_only_for_a_while() {
    let Some(mut bed) = Bed::new(hasty()) else { return };
    let (mut one, file) = begun(&bed, "one", 0);
    let own = ("one", &file[..], &b"a"[..], 0, 10);
    assert_eq!(one.lock(own, true), GRANTED);
    bed.restart(None);
    let (mut other, _) = begun(&bed, "other", 0);
    let of_other = ("other", &file[..], &b"a"[..], 0, 10);
    assert_eq!(other.nlm(LOCK, &lock_args(of_other, true, true)), GRACE, "it had none");
    assert_eq!(other.lock(of_other, true), GRACE);
    let local = File::options().read(true).write(true).open(bed.path("file")).unwrap();
    let (mut one, _) = begun(&bed, "one", 0);
    assert_eq!(one.nlm(LOCK, &lock_args(own, true, true)), GRANTED);
    assert!(!try_lock_record(&local, 5..6, false).unwrap());
    while other.lock(of_other, true) == GRACE {
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(other.lock(of_other, true), DENIED);
    drop(one);
    while other.lock(of_other, true) == DENIED {
        std::thread::sleep(Duration::from_millis(20));
    }
    let mut note = [0; 100];
    let len = rustix::fs::getxattr(&bed.root, c"trusted.bedplate.nfs-locks", &mut note);
    assert_eq!(len, Ok(1 + 16), "I-NLM-2: one client has locks, and the note names no more");
    // What was taken from it before is not its to take back after one more start.
    bed.restart(None);
    let (mut one, _) = begun(&bed, "one", 0);
    let stat = one.nlm(LOCK, &lock_args(own, true, true));
    assert_eq!(stat, GRACE, "I-NLM-2: the note named it no more when its lock was taken");
}

#[test]
fn s_612_locks_are_given_to_clients_alone_and_are_bounded() {
    let Some(mut bed) = Bed::new(trusting()) else { return };
    let (mut client, file) = begun(&bed, "one", 0);
    let at = |offset| ("one", &file[..], &b"a"[..], offset, 1);
    let mut stranger = bed.client();
    assert_eq!(stranger.lock(at(0), true), NO_LOCKS, "its connection is no client's");
    assert_eq!(stranger.monitor("one", 0, 99).0, 0, "another secret is another client");
    assert_eq!(stranger.lock(("two", &file, b"a", 0, 1), true), NO_LOCKS, "of another name");
    assert_eq!(client.lock(at(0), true), GRANTED);
    assert_eq!(stranger.lock(at(0), true), DENIED);
    let mut count = 1;
    while client.lock(at(2 * count), true) == GRANTED {
        count += 1;
        assert!(count <= 4096, "there is a bound");
    }
    assert!(count >= 4000, "and it is far away");
    assert_eq!(client.lock(at(2 * count), true), NO_LOCKS);
    assert_eq!(stranger.lock(at(2 * count), true), GRANTED, "others have their own");
    let forged = ("one", &b"forged"[..], &b"a"[..], 0, 1);
    assert_eq!(client.nlm(UNLOCK, &unlock_args(forged)), STALE);
    let root = client.mount(&bed.root.display().to_string()).unwrap();
    assert_eq!(client.nlm(UNLOCK, &unlock_args(at(0))), GRANTED);
    assert_eq!(client.lock(("one", &root, b"a", 0, 1), false), FAILED, "a directory");
    client.uid = 77;
    assert_eq!(client.lock(at(0), false), GRANTED, "what may be read");
    assert_eq!(client.lock(at(2), true), FAILED, "what may not be written");
    client.uid = USER;
    for long in [Args::of(&[b'x'; 65]), Args::of(b"c").u32(0).u32(0).opaque(&[b'x'; 256])] {
        client.send_as(NLM, 4, LOCK, &long);
        let (_, mut reply) = client.reply();
        assert_eq!([0; 4].map(|_| reply.u32()), [0, 0, 0, 4], "too long a name is garbage");
    }
    bed.restart(Some(bedplate_export::nfs::Rights { read_only: true, ..trusting() }));
    let (mut client, _) = begun(&bed, "new", 0);
    assert_eq!(client.lock(("new", &file, b"a", 0, 1), true), READ_ONLY);
}

#[test]
fn s_613_what_a_client_has_said_again_over_a_new_connection_is_not_carried_out_over_the_old_one() {
    let Some(bed) = Bed::new(trusting()) else { return };
    let (mut old, file) = begun(&bed, "one", 3);
    let own = ("one", &file[..], &b"a"[..], 0, 10);
    assert_eq!(old.lock(own, true), GRANTED);
    let (mut beside, _) = begun(&bed, "one", 4);
    let (mut new, _) = begun(&bed, "one", 3);
    // The one in the other place goes on; the one before in its own has ended.
    assert_eq!(beside.lock(own, true), GRANTED);
    old.send_as(NLM, 4, UNLOCK, &unlock_args(own));
    assert!(matches!(old.stream.read(&mut [0; 4]), Ok(0) | Err(_)));
    let mut other = begun(&bed, "another", 0).0;
    let others = ("another", &file[..], &b"a"[..], 0, 10);
    assert_eq!(other.lock(others, true), DENIED, "it was not carried out");
    // An unlock that comes again over any connection is answered as before.
    assert_eq!(new.nlm(UNLOCK, &unlock_args(own)), GRANTED);
    assert_eq!(beside.lock(own, true), GRANTED);
    beside.xid = new.xid - 1;
    assert_eq!(beside.nlm(UNLOCK, &unlock_args(own)), GRANTED);
    assert_eq!(other.lock(others, true), DENIED, "what was locked since stays locked");
}
