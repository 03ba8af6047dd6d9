//! Bytes of files, and what is durable of them.

use std::os::unix::fs::PermissionsExt;

use crate::bed::{Bed, trusting};
use crate::client::{
    Args, COMMIT, DATA_SYNC, FILE_SYNC, INVALID, READ, SETATTR, STALE, UNSTABLE, WRITE, place,
    write_args,
};

fn pattern(seed: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|at| (at.wrapping_mul(0x9e37_79b9) >> 7 ^ seed) as u8).collect()
}

#[test]
fn what_is_written_is_read_whatever_its_place_and_length() {
    let Some(bed) = Bed::new(trusting()) else { return };
    let mut client = bed.client();
    let root = client.mount(bed.root.to_str().unwrap()).unwrap();
    let file = client.create(&root, "file");
    let mut expected = vec![0; 3 << 20];
    for (seed, (offset, len)) in
        [(0, 1), (77, 8192), (1 << 20, 1 << 20), ((3 << 20) - 5, 5)].into_iter().enumerate()
    {
        let data = pattern(seed as u64, len);
        client.write(&file, offset as u64, &data, UNSTABLE);
        expected[offset..][..len].copy_from_slice(&data);
    }
    assert!(std::fs::read(bed.path("file")).unwrap() == expected);
    for (offset, count) in [(0, 10), (70, 20_000), (2 << 20, 1 << 20)] {
        let (data, is_end) = client.read(&file, offset, count);
        assert!(data == expected[offset as usize..][..count as usize]);
        assert_eq!(is_end, offset + u64::from(count) == 3 << 20);
    }
    assert_eq!(client.read(&file, (3 << 20) - 5, 100).0, expected[(3 << 20) - 5..]);
    for end in [3 << 20, 1 << 40, u64::MAX] {
        assert_eq!(client.read(&file, end, 100), (vec![], true));
    }
    // More than there is room for in one answer is cut.
    assert_eq!(client.read(&file, 0, u32::MAX).0.len(), 1 << 20);
    assert_eq!(client.fails(WRITE, &write_args(&file, u64::MAX, b"x", 0)), 27);
    assert_eq!(client.fails(WRITE, &write_args(&file, 0, b"x", 3)), INVALID);
    let short = Args::of(&file).u64(0).u32(5).u32(0).opaque(b"four");
    assert_eq!(client.fails(WRITE, &short), INVALID);
    assert_eq!(client.fails(READ, &Args::of(&root).u64(0).u32(1)), 21);
}

#[test]
fn s_463_a_write_is_answered_as_stable_as_it_is_asked_for() {
    let Some(bed) = Bed::new(trusting()) else { return };
    let mut client = bed.client();
    let root = client.mount(bed.root.to_str().unwrap()).unwrap();
    let file = client.create(&root, "file");
    let verifier = client.commit(&file);
    for stable in [UNSTABLE, DATA_SYNC, FILE_SYNC] {
        assert_eq!(client.write(&file, 0, b"data", stable), (stable, verifier));
    }
}

#[test]
fn s_464_the_verifier_is_another_after_a_restart_and_the_same_otherwise() {
    let Some(mut bed) = Bed::new(trusting()) else { return };
    let mut client = bed.client();
    let root = client.mount(bed.root.to_str().unwrap()).unwrap();
    let file = client.create(&root, "file");
    let (_, verifier) = client.write(&file, 0, b"one", UNSTABLE);
    let mut other = bed.client_of(0);
    assert_eq!(other.write(&file, 10, b"two", UNSTABLE).1, verifier);
    assert_eq!((other.commit(&file), client.commit(&file)), (verifier, verifier));
    bed.restart(None);
    let mut client = bed.client();
    let after = client.commit(&file);
    assert_ne!(after, verifier);
    assert_eq!(client.write(&file, 0, b"one", UNSTABLE).1, after);
}

#[test]
fn s_465_a_handle_leads_to_its_file_after_restarts_and_renames_and_nowhere_when_it_is_gone() {
    let Some(mut bed) = Bed::new(trusting()) else { return };
    let mut client = bed.client();
    let root = client.mount(bed.root.to_str().unwrap()).unwrap();
    let dir = client.mkdir(&root, "dir");
    let file = client.create(&dir, "file");
    client.write(&file, 0, b"content", FILE_SYNC);
    bed.restart(None);
    std::fs::rename(bed.path("dir/file"), bed.path("moved")).unwrap();
    let mut client = bed.client();
    assert_eq!(client.mount(bed.root.to_str().unwrap()), Ok(root.clone()));
    assert_eq!(client.read(&file, 0, 100), (b"content".to_vec(), true));
    assert_eq!(client.lookup(&root, "moved"), Ok(file.clone()));
    std::fs::remove_file(bed.path("moved")).unwrap();
    std::fs::remove_dir(bed.path("dir")).unwrap();
    // The server has just used it, and no longer holds it.
    for (procedure, args) in [
        (READ, Args::of(&file).u64(0).u32(1)),
        (WRITE, write_args(&file, 0, b"x", 0)),
        (COMMIT, Args::of(&file).u64(0).u32(0)),
        (SETATTR, Args::of(&dir).mode(Some(0o700)).u32(0)),
    ] {
        assert_eq!(client.fails(procedure, &args), STALE, "procedure {procedure}");
    }
    let new = client.create(&root, "moved");
    assert_ne!(new, file);
    assert_eq!(client.fails(READ, &Args::of(&file).u64(0).u32(1)), STALE);
}

/// A file is removed through the server while it is open there: its blocks are free.
#[test]
fn s_465_a_file_that_is_removed_while_the_server_has_it_open_is_gone() {
    let Some(bed) = Bed::new(trusting()) else { return };
    let mut client = bed.client();
    let root = client.mount(bed.root.to_str().unwrap()).unwrap();
    let file = client.create(&root, "file");
    client.write(&file, 0, &pattern(1, 1 << 20), UNSTABLE);
    client.done(crate::client::REMOVE, &place(&root, "file"));
    assert_eq!(client.fails(READ, &Args::of(&file).u64(0).u32(1)), STALE);
    let links = std::fs::read_dir("/proc/self/fd")
        .unwrap()
        .filter_map(|fd| fd.ok()?.path().read_link().ok());
    let held = format!("{} (deleted)", bed.path("file").display());
    assert!(links.into_iter().all(|path| path.to_str() != Some(&held)));
}

#[test]
fn a_write_of_another_user_takes_set_id_bits_away() {
    let Some(bed) = Bed::new(trusting()) else { return };
    let mut client = bed.client();
    let root = client.mount(bed.root.to_str().unwrap()).unwrap();
    let file = client.create(&root, "program");
    client.done(SETATTR, &Args::of(&file).mode(Some(0o4777)).u32(0));
    assert_eq!(client.attr(&file).mode, 0o4777);
    bed.client_of(77).write(&file, 0, b"other", FILE_SYNC);
    assert_eq!(client.attr(&file).mode, 0o777);
    assert_eq!(bed.path("program").metadata().unwrap().permissions().mode() & 0o7777, 0o777);
}

#[test]
fn sizes_are_cut_and_grown() {
    let Some(bed) = Bed::new(trusting()) else { return };
    let mut client = bed.client();
    let root = client.mount(bed.root.to_str().unwrap()).unwrap();
    let file = client.create(&root, "file");
    client.write(&file, 0, b"0123456789", UNSTABLE);
    client.done(SETATTR, &Args::of(&file).size(4).u32(0));
    client.done(SETATTR, &Args::of(&file).size(6).u32(0));
    assert_eq!(client.read(&file, 0, 100), (b"0123\0\0".to_vec(), true));
    assert_eq!(client.attr(&file).size, 6);
    // Made once more without a guard, and with a size: cut.
    let again = client.done(crate::client::CREATE, &place(&root, "file").u32(0).size(0));
    assert_eq!(crate::client::made(&mut again.clone()), file);
    assert_eq!(client.attr(&file).size, 0);
}
