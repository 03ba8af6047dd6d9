//! What users may do.

use bedplate_export::nfs::{Rights, Server, Settings, Squash, Users};

use crate::bed::{self, Bed, USER, trusting};
use crate::client::{
    ACCESS, Args, CREATE, Client, DENIED, LOOKUP, MKDIR, NOT_OWNER, READ, READ_ONLY, READDIR,
    REMOVE, RENAME, SETATTR, UNSTABLE, WRITE, place, write_args,
};

#[test]
fn s_466_requests_are_carried_out_as_the_user_with_its_groups() {
    let Some(bed) = Bed::new(trusting()) else { return };
    let mut client = bed.client();
    let root = client.mount(bed.root.to_str().unwrap()).unwrap();
    let file = client.create(&root, "file");
    client.done(SETATTR, &Args::of(&file).mode(Some(0o640)).u32(0));
    client.write(&file, 0, b"secret", UNSTABLE);
    let read = Args::of(&file).u64(0).u32(6);
    let granted = |client: &mut Client| {
        let mut result = client.done(ACCESS, &Args::of(&file).u32(0x3f));
        result.after().unwrap();
        result.u32()
    };
    let mut stranger = bed.client_of(77);
    assert_eq!(stranger.fails(READ, &read), DENIED);
    assert_eq!(stranger.fails(WRITE, &write_args(&file, 0, b"x", 0)), DENIED);
    assert_eq!(stranger.fails(CREATE, &place(&root, "new").u32(1).mode(None)), DENIED);
    assert_eq!(stranger.fails(MKDIR, &place(&root, "new").mode(None)), DENIED);
    assert_eq!(stranger.fails(REMOVE, &place(&root, "file")), DENIED);
    assert_eq!(stranger.fails(RENAME, &place(&root, "file").opaque(&root).opaque(b"x")), DENIED);
    assert_eq!(stranger.fails(SETATTR, &Args::of(&file).mode(Some(0o777)).u32(0)), NOT_OWNER);
    assert_eq!((granted(&mut stranger), granted(&mut client)), (0, 0x0d));
    // A further group.
    stranger.groups = vec![5, USER];
    assert_eq!(stranger.read(&file, 0, 6).0, b"secret");
    assert_eq!(granted(&mut stranger), 0x01);
    assert_eq!(stranger.fails(WRITE, &write_args(&file, 0, b"x", 0)), DENIED);
    // What the owner took from itself it may go on with, as with a file that is open.
    client.done(SETATTR, &Args::of(&file).mode(Some(0)).u32(0));
    assert_eq!(client.read(&file, 0, 6).0, b"secret");
    assert_eq!(bed.client_of(0).read(&file, 0, 6).0, b"secret");
    // A directory that others may neither list nor walk through.
    let dir = client.mkdir(&root, "dir");
    client.create(&dir, "inside");
    client.done(SETATTR, &Args::of(&dir).mode(Some(0o700)).u32(0));
    assert_eq!(stranger.fails(LOOKUP, &place(&dir, "inside")), DENIED);
    assert_eq!(stranger.fails(LOOKUP, &place(&dir, "..")), DENIED);
    assert_eq!(stranger.fails(READDIR, &Args::of(&dir).u64(0).u64(0).u32(4096)), DENIED);
    // New files are the user's.
    assert_eq!((client.attr(&dir).uid, client.attr(&dir).gid), (USER, USER));
}

#[test]
fn s_466_the_superuser_of_a_client_is_not_the_servers() {
    let Some(mut bed) = Bed::new(Rights::default()) else { return };
    let mut root_client = bed.client_of(0);
    let root = root_client.mount(bed.root.to_str().unwrap()).unwrap();
    assert_eq!(root_client.fails(MKDIR, &place(&root, "dir").mode(None)), DENIED);
    let dir = bed.client().mkdir(&root, "dir");
    bed.client().done(SETATTR, &Args::of(&dir).mode(Some(0o777)).u32(0));
    let made = root_client.create(&dir, "by-root");
    assert_eq!(root_client.attr(&made).uid, 65_534);
    let users = Users { squash: Squash::All, anonymous_uid: USER, anonymous_gid: 7 };
    bed.restart(Some(Rights { users, ..trusting() }));
    let mut anyone = bed.client_of(99);
    let made = anyone.create(&root, "by-anyone");
    assert_eq!((anyone.attr(&made).uid, anyone.attr(&made).gid), (USER, 7));
}

#[test]
fn s_472_a_read_only_export_refuses_every_change() {
    let Some(mut bed) = Bed::new(trusting()) else { return };
    let root = bed.client().mount(bed.root.to_str().unwrap()).unwrap();
    let file = bed.client().create(&root, "file");
    bed.restart(Some(Rights { read_only: true, ..trusting() }));
    let mut client = bed.client();
    let other = |args: Args| args.opaque(&root).opaque(b"other");
    for (procedure, args) in [
        (SETATTR, Args::of(&file).mode(Some(0)).u32(0)),
        (WRITE, write_args(&file, 0, b"x", 0)),
        (CREATE, place(&root, "new").u32(0).mode(None)),
        (CREATE, place(&root, "new").u32(2).u64(1)),
        (MKDIR, place(&root, "new").mode(None)),
        (10, Args::of(&root).opaque(b"new").mode(None).opaque(b"x")),
        (11, place(&root, "new").u32(7).mode(None)),
        (REMOVE, place(&root, "file")),
        (13, place(&root, "file")),
        (RENAME, other(place(&root, "file"))),
        (15, other(Args::of(&file))),
        (21, Args::of(&file).u64(0).u32(0)),
    ] {
        assert_eq!(client.fails(procedure, &args), READ_ONLY, "procedure {procedure}");
    }
    assert_eq!(client.read(&file, 0, 1), (vec![], true));
    let mut granted = client.done(ACCESS, &Args::of(&root).u32(0x3f));
    granted.after().unwrap();
    assert_eq!(granted.u32(), 0x03);
}

#[test]
fn s_468_clients_of_other_addresses_and_of_ports_of_any_user_are_not_served() {
    let Some(bed) = Bed::new(trusting()) else { return };
    let is_served = |settings: &Settings| {
        let server = Server::start(bed::open(&bed.root, trusting()), settings).unwrap();
        let mut client = Client::connect(server.address(), USER);
        let mut answer = [0; 4];
        let record = client.record(crate::client::NFS, 0, &Args::default());
        // The server may have closed it already.
        let _sent = std::io::Write::write_all(&mut client.stream, &record);
        std::io::Read::read_exact(&mut client.stream, &mut answer).is_ok()
    };
    assert!(is_served(&bed::settings()));
    let elsewhere = vec!["192.0.2.0/24".parse().unwrap()];
    assert!(!is_served(&Settings { allowed: elsewhere, ..bed::settings() }));
    assert!(!is_served(&Settings { any_port: false, ..bed::settings() }));
}
