//! Names: making, finding, listing, moving and removing.

use std::collections::{BTreeSet, HashSet};
use std::os::unix::fs::{FileTypeExt, MetadataExt};

use crate::bed::{Bed, trusting};
use crate::client::{
    Args, BAD_COOKIE, CREATE, Client, EXISTS, FSINFO, FSSTAT, INVALID, LINK, LOOKUP, MKDIR, MKNOD,
    MOUNT, NOT_EMPTY, NOT_FOUND, NOT_SYNCED, PATHCONF, READDIR, READDIRPLUS, READLINK, REMOVE,
    RENAME, RMDIR, SETATTR, SYMLINK, made, place,
};

#[test]
fn every_kind_of_file_is_made_found_and_removed() {
    let Some(bed) = Bed::new(trusting()) else { return };
    let mut client = bed.client();
    let root = client.mount(bed.root.to_str().unwrap()).unwrap();
    let dir = client.mkdir(&root, "dir");
    let file = client.create(&dir, "file");
    let link = Args::of(&dir).opaque(b"link").mode(None).opaque(b"../some/where");
    let link = made(&mut client.done(SYMLINK, &link));
    let pipe = made(&mut client.done(MKNOD, &place(&dir, "pipe").u32(7).mode(Some(0o600))));
    made(&mut client.done(MKNOD, &place(&dir, "socket").u32(6).mode(Some(0o600))));
    let mut root_client = bed.client_of(0);
    let device = place(&dir, "null").u32(4).mode(Some(0o666)).u32(1).u32(3);
    assert_eq!(client.fails(MKNOD, &device), 1, "devices are the superuser's");
    made(&mut root_client.done(MKNOD, &device));
    let kinds = ["dir", "dir/file", "dir/link", "dir/pipe", "dir/socket", "dir/null"]
        .map(|name| bed.path(name).symlink_metadata().unwrap().file_type());
    assert!(kinds[0].is_dir() && kinds[1].is_file() && kinds[2].is_symlink());
    assert!(kinds[3].is_fifo() && kinds[4].is_socket() && kinds[5].is_char_device());
    assert_eq!([&dir, &file, &link, &pipe].map(|handle| client.attr(handle).kind), [2, 1, 5, 7]);
    let mut target = client.done(READLINK, &Args::of(&link));
    target.after().unwrap();
    assert_eq!(target.opaque(), b"../some/where");
    assert_eq!(client.lookup(&dir, ".."), Ok(root.clone()));
    assert_eq!(client.lookup(&root, ".."), Ok(root.clone()), "nothing lies above");
    assert_eq!(client.lookup(&dir, "none"), Err(NOT_FOUND));
    // No pipe is opened, which would wait for a writer.
    assert_eq!(client.fails(crate::client::READ, &Args::of(&pipe).u64(0).u32(1)), INVALID);
    let mut linked = client.done(LINK, &Args::of(&file).opaque(&root).opaque(b"second"));
    assert_eq!(linked.after().unwrap().nlink, 2);
    client.done(RENAME, &place(&dir, "file").opaque(&root).opaque(b"second"));
    client.done(RENAME, &place(&root, "second").opaque(&root).opaque(b"third"));
    assert_eq!(client.lookup(&root, "third"), Ok(file));
    assert_eq!(client.fails(RMDIR, &place(&root, "dir")), NOT_EMPTY);
    assert_eq!(client.fails(REMOVE, &place(&root, "dir")), 21);
    for name in ["file", "link", "pipe", "socket", "null"] {
        client.done(REMOVE, &place(&dir, name));
    }
    client.done(RMDIR, &place(&root, "dir"));
    assert!(!bed.path("dir").exists());
}

#[test]
fn names_that_are_none_are_refused() {
    let Some(bed) = Bed::new(trusting()) else { return };
    let mut client = bed.client();
    let root = client.mount(bed.root.to_str().unwrap()).unwrap();
    for name in ["", "a/b", "../escaped", "a\0b"] {
        assert_eq!(client.fails(LOOKUP, &place(&root, name)), INVALID, "{name:?}");
        assert_eq!(client.fails(MKDIR, &place(&root, name).mode(None)), INVALID, "{name:?}");
    }
    assert_eq!(client.fails(LOOKUP, &place(&root, &"x".repeat(256))), 63);
    assert_eq!(client.fails(RMDIR, &place(&root, ".")), INVALID);
    assert_eq!(client.fails(RMDIR, &place(&root, "..")), EXISTS);
}

#[test]
fn s_471_an_exclusive_file_is_made_once_and_the_same_request_finds_it() {
    let Some(mut bed) = Bed::new(trusting()) else { return };
    let mut client = bed.client();
    let root = client.mount(bed.root.to_str().unwrap()).unwrap();
    let args = |verifier: u64| place(&root, "lock").u32(2).u64(verifier);
    let first = made(&mut client.done(CREATE, &args(0xfedc_ba98_7654_3210)));
    assert_eq!(made(&mut client.done(CREATE, &args(0xfedc_ba98_7654_3210))), first);
    assert_eq!(client.fails(CREATE, &args(1)), EXISTS);
    bed.restart(None);
    let mut client = bed.client();
    assert_eq!(made(&mut client.done(CREATE, &args(0xfedc_ba98_7654_3210))), first);
    assert_eq!(client.fails(CREATE, &args(1)), EXISTS);
    assert_eq!(client.fails(CREATE, &place(&root, "lock").u32(1).mode(None)), EXISTS);
    assert_eq!(std::fs::read_dir(&bed.root).unwrap().count(), 1);
}

#[test]
fn attributes_are_set_where_the_guard_holds() {
    let Some(bed) = Bed::new(trusting()) else { return };
    let mut client = bed.client_of(0);
    let root = client.mount(bed.root.to_str().unwrap()).unwrap();
    let file = client.create(&root, "file");
    let then = client.attr(&file).ctime;
    let all = |args: Args| {
        // Mode, user, group, no size, and both times.
        let args = args.u32(1).u32(0o640).u32(1).u32(5).u32(1).u32(6).u32(0);
        args.u32(2).u32(1000).u32(7).u32(2).u32(2000).u32(8)
    };
    let guard =
        |args: Args, [seconds, nanoseconds]: [u32; 2]| args.u32(1).u32(seconds).u32(nanoseconds);
    let wrong = guard(all(Args::of(&file)), [then[0], then[1] ^ 1]);
    assert_eq!(client.fails(SETATTR, &wrong), NOT_SYNCED);
    client.done(SETATTR, &guard(all(Args::of(&file)), then));
    let attr = client.attr(&file);
    assert_eq!((attr.mode, attr.uid, attr.gid, attr.mtime), (0o640, 5, 6, [2000, 8]));
    let meta = bed.path("file").metadata().unwrap();
    assert_eq!((meta.atime(), meta.atime_nsec(), meta.mtime()), (1000, 7, 2000));
    // "Leave it" is no user.
    let nobody = Args::of(&file).u32(0).u32(1).u32(u32::MAX).u32(0).u32(0).u32(0).u32(0).u32(0);
    assert_eq!(client.fails(SETATTR, &nobody), INVALID);
}

fn list_all(client: &mut Client, dir: &[u8], bytes: u32, mut between: impl FnMut()) -> Vec<String> {
    let (mut cookie, mut verifier, mut all) = (0, 0, Vec::new());
    loop {
        let (names, told, is_end) = client.list(dir, cookie, verifier, bytes);
        verifier = told;
        cookie = names.last().map_or(cookie, |(_, cookie)| *cookie);
        all.extend(names.into_iter().map(|(name, _)| name));
        if is_end {
            return all;
        }
        between();
    }
}

#[test]
fn s_469_a_listing_holds_each_name_once_while_the_directory_changes_and_across_a_restart() {
    let Some(mut bed) = Bed::new(trusting()) else { return };
    for number in 0..2000 {
        std::fs::write(bed.path(&format!("stays-{number}")), b"").unwrap();
    }
    let mut client = bed.client();
    let root = client.mount(bed.root.to_str().unwrap()).unwrap();
    let mut round = 0;
    let root_path = bed.root.clone();
    let all = list_all(&mut client, &root, 3000, || {
        std::fs::write(root_path.join(format!("new-{round}")), b"").unwrap();
        if round > 0 {
            std::fs::remove_file(root_path.join(format!("new-{}", round - 1))).unwrap();
        }
        round += 1;
    });
    let stays: Vec<_> = all.iter().filter(|name| name.starts_with("stays-")).collect();
    assert_eq!((stays.len(), stays.iter().collect::<BTreeSet<_>>().len()), (2000, 2000));
    assert!(all.contains(&".".into()) && all.contains(&"..".into()));
    // A listing that begins finds what was made before it.
    std::fs::write(bed.path("fresh"), b"").unwrap();
    assert!(list_all(&mut client, &root, 3000, || {}).contains(&"fresh".into()));
    // It goes on where it was after the server has started again.
    let (first, verifier, is_end) = client.list(&root, 0, 0, 3000);
    assert!(!is_end);
    bed.restart(None);
    let mut client = bed.client();
    let mut names: HashSet<String> = first.iter().map(|(name, _)| name.clone()).collect();
    let mut cookie = first.last().unwrap().1;
    let bad = Args::of(&root).u64(cookie).u64(verifier ^ 1).u32(3000);
    assert_eq!(client.fails(READDIR, &bad), BAD_COOKIE);
    loop {
        let (more, _, is_end) = client.list(&root, cookie, verifier, 3000);
        cookie = more.last().map_or(cookie, |(_, cookie)| *cookie);
        for (name, _) in more {
            assert!(names.insert(name));
        }
        if is_end {
            break;
        }
    }
    assert_eq!(names.len(), std::fs::read_dir(&bed.root).unwrap().count() + 2);
}

#[test]
fn a_listing_with_attributes_leads_to_what_it_names() {
    let Some(bed) = Bed::new(trusting()) else { return };
    let mut client = bed.client();
    let root = client.mount(bed.root.to_str().unwrap()).unwrap();
    let dir = client.mkdir(&root, "dir");
    let file = client.create(&root, "file");
    let args = Args::of(&root).u64(0).u64(0).u32(4096).u32(8192);
    let mut result = client.done(READDIRPLUS, &args);
    result.after().unwrap();
    result.u64();
    let mut found = std::collections::HashMap::new();
    while result.u32() == 1 {
        let number = result.u64();
        let name = String::from_utf8(result.opaque()).unwrap();
        result.u64();
        assert_eq!(result.after().unwrap().number, number);
        assert_eq!(result.u32(), 1);
        found.insert(name, result.opaque());
    }
    assert_eq!(result.u32(), 1, "the end");
    assert_eq!((found.len(), &found["dir"], &found["file"]), (4, &dir, &file));
    assert_eq!((&found["."], &found[".."]), (&root, &root));
    // Room for not one name.
    let none = Args::of(&root).u64(0).u64(0).u32(4096).u32(100);
    assert_eq!(client.fails(READDIRPLUS, &none), 10_005);
}

#[test]
fn facts_of_the_file_system_are_told() {
    let Some(bed) = Bed::new(trusting()) else { return };
    let mut client = bed.client();
    let root = client.mount(bed.root.to_str().unwrap()).unwrap();
    let mut totals = client.done(FSSTAT, &Args::of(&root));
    totals.after().unwrap();
    assert!(totals.u64() > totals.u64());
    let mut info = client.done(FSINFO, &Args::of(&root));
    info.after().unwrap();
    assert_eq!((info.u32(), info.u32()), (1 << 20, 1 << 20));
    let mut limits = client.done(PATHCONF, &Args::of(&root));
    limits.after().unwrap();
    assert_eq!((limits.u32() > 1000, limits.u32()), (true, 255));
}

#[test]
fn the_mount_protocol_shows_what_is_exported_and_leads_nowhere_else() {
    let Some(bed) = Bed::new(trusting()) else { return };
    std::fs::create_dir_all(bed.path("dir/below")).unwrap();
    std::os::unix::fs::symlink("/", bed.path("dir/out")).unwrap();
    let mut client = bed.client();
    let root = bed.root.to_str().unwrap();
    let handle = client.mount(root).unwrap();
    let dir = client.lookup(&handle, "dir").unwrap();
    assert_eq!(client.mount(&format!("{root}/dir")), Ok(dir));
    assert!(client.mount(&format!("{root}/dir/below")).is_ok());
    for wrong in ["/", "/etc", &format!("{root}/.."), &format!("{root}/dir/out/etc")] {
        assert!(client.mount(wrong).is_err(), "{wrong}");
    }
    assert_eq!(client.mount(&format!("{root}/none")), Err(NOT_FOUND));
    let mut exports = client.call(MOUNT, 5, &Args::default());
    assert_eq!((exports.u32(), exports.opaque()), (1, root.as_bytes().to_vec()));
    let mut mounts = client.call(MOUNT, 2, &Args::default());
    assert_eq!((mounts.u32(), mounts.opaque()), (1, b"127.0.0.1".to_vec()));
    client.call(MOUNT, 3, &Args::of(root.as_bytes()));
    client.call(MOUNT, 4, &Args::default());
    assert_eq!(client.call(MOUNT, 2, &Args::default()).u32(), 0);
}
