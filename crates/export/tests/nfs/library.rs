//! The server as the project's own client meets it: names, modes, lists, restarts.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use bedplate_block::AlignedBuf;
use bedplate_nfs::{Changes, Client, ErrorKind, Kind, Mode, OpenOptions, Queue, SetTime, Url};

use crate::bed::{Bed, USER, trusting};

pub fn url(bed: &Bed, below: &str, options: &str) -> Url {
    let (port, root) = (bed.address.port(), bed.root.display());
    let text = format!(
        "nfs://127.0.0.1{root}{below}?version=3&nfsport={port}&mountport={port}&uid={USER}\
         &gid={USER}&timeo=600&{options}"
    );
    text.parse().unwrap()
}

fn client(bed: &Bed, options: &str) -> Client {
    let (client, rest) = Client::connect(&url(bed, "", options)).unwrap();
    assert!(rest.is_empty());
    client
}

#[test]
fn s_578_names_and_attributes_are_those_of_the_directory() {
    let Some(bed) = Bed::new(trusting()) else { return };
    let client = client(&bed, "nconnect=2");
    let root = client.root().clone();
    let dir = client.make_directory(&root, b"dir", 0o750).unwrap();
    let file = client.create(&dir.handle, b"file", 0o640, true).unwrap();
    assert_eq!(client.create(&dir.handle, b"file", 0, true).unwrap_err().kind, ErrorKind::Exists);
    assert_eq!(client.create(&dir.handle, b"file", 0o640, false).unwrap().handle, file.handle);
    let meta = bed.path("dir/file").metadata().unwrap();
    assert_eq!((meta.uid(), meta.mode() & 0o7777), (USER, 0o640));
    let changes = Changes {
        mode: Some(0o600),
        size: Some(1234),
        mtime: SetTime::To([1000, 5]),
        ..Changes::default()
    };
    client.set_attributes(&file.handle, &changes).unwrap();
    let meta = bed.path("dir/file").metadata().unwrap();
    assert_eq!((meta.len(), meta.mode() & 0o777, meta.mtime()), (1234, 0o600, 1000));
    client.link(&file.handle, &root, b"second").unwrap();
    client.make_link(&root, b"link", b"dir/file").unwrap();
    client.make_link(&dir.handle, b"up", b"../second").unwrap();
    client.make_link(&root, b"away", b"/etc/passwd").unwrap();
    for path in [&b"dir/file"[..], b"second", b"link", b"dir/up", b"./dir//file"] {
        let found = client.find(path).unwrap();
        assert_eq!((found.attr.number, found.attr.links), (meta.ino(), 2), "{path:?}");
    }
    assert_eq!(client.find(b"away").unwrap_err().kind, ErrorKind::Unsupported);
    assert_eq!(client.find(b"dir/none").unwrap_err().kind, ErrorKind::NotFound);
    let mut names = BTreeMap::new();
    let listed = client.list(&root, |entry| {
        names.insert(String::from_utf8(entry.name).unwrap(), entry.attr.unwrap().kind);
        Ok(())
    });
    listed.unwrap();
    let told: Vec<_> = names.iter().map(|(name, kind)| (name.as_str(), *kind)).collect();
    let link = Kind::Symlink;
    let expected =
        [("away", link), ("dir", Kind::Directory), ("link", link), ("second", Kind::File)];
    assert_eq!(told, expected);
    client.rename((&root, b"second"), (&dir.handle, b"third")).unwrap();
    assert!(bed.path("dir/third").exists() && !bed.path("second").exists());
    assert_eq!(client.remove_directory(&root, b"dir").unwrap_err().kind, ErrorKind::NotEmpty);
    for name in [&b"file"[..], b"third", b"up"] {
        client.remove(&dir.handle, name).unwrap();
    }
    client.remove_directory(&root, b"dir").unwrap();
    assert!(!bed.path("dir").exists());
    assert_eq!(client.attributes(&file.handle).unwrap_err().kind, ErrorKind::Stale);
    let room = client.room().unwrap();
    assert!(room.total_bytes >= room.free_bytes && room.free_bytes >= room.available_bytes);
}

#[test]
fn s_578_a_directory_of_many_names_is_listed_in_parts() {
    let Some(bed) = Bed::new(trusting()) else { return };
    for at in 0..3000 {
        std::fs::write(bed.path(&format!("a-name-that-takes-some-room-{at:05}")), b"").unwrap();
    }
    let client = client(&bed, "");
    let mut names = Vec::new();
    let list = client.list(client.root(), |entry| {
        names.push(entry.name);
        Ok(())
    });
    list.unwrap();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), 3000);
}

#[test]
fn s_578_a_url_leads_to_a_file_below_what_the_server_lets_mount() {
    let Some(bed) = Bed::new(trusting()) else { return };
    std::fs::create_dir_all(bed.path("a/b")).unwrap();
    std::fs::write(bed.path("a/b/file"), b"content").unwrap();
    let (client, rest) = Client::connect(&url(&bed, "/a/b/file", "")).unwrap();
    assert_eq!(rest, b"file");
    let file = client.open(&rest, &OpenOptions::read_only(Mode::Concurrent)).unwrap();
    let mut buf = [0; 10];
    assert_eq!((file.read_at(&mut buf, 0), &buf[..7]), (Ok(7), &b"content"[..]));
    let (_, rest) = Client::connect(&url(&bed, "/a/b", "")).unwrap();
    assert!(rest.is_empty());
    let (_, rest) = Client::connect(&url(&bed, "/a/none/file", "")).unwrap();
    assert_eq!(rest, b"none/file");
    let port = Some(bed.address.port());
    let elsewhere = Url { nfs_port: port, mount_port: port, ..Url::new("127.0.0.1", b"/etc") };
    let error = Client::connect(&elsewhere).unwrap_err();
    assert_eq!(error.kind, ErrorKind::NotFound, "{error}");
    let closed = Url { nfs_port: Some(1), mount_port: Some(1), ..Url::new("127.0.0.1", b"/x") };
    let error = Client::connect(&closed).unwrap_err();
    assert!(error.kind == ErrorKind::Unreached && error.message.contains("127.0.0.1:1"), "{error}");
}

#[test]
fn s_578_what_a_user_may_not_is_refused_when_the_file_is_opened() {
    let Some(bed) = Bed::new(trusting()) else { return };
    let own = client(&bed, "");
    let file = own.create(own.root(), b"file", 0o600, true).unwrap();
    let stranger = url(&bed, "", "uid=77&gid=77");
    let (stranger, _) = Client::connect(&stranger).unwrap();
    let open = stranger.open_found(&file, &OpenOptions::read_only(Mode::Direct));
    assert_eq!(open.unwrap_err().kind, ErrorKind::Permission);
    let error = stranger.create(stranger.root(), b"new", 0o600, true).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Permission);
    let root = own.find(b"").unwrap();
    let error = own.open_found(&root, &OpenOptions::read_only(Mode::Direct)).unwrap_err();
    assert_eq!(error.kind, ErrorKind::IsDirectory);
}

/// Bytes that differ from block to block.
fn stamp(block: u64, round: u8) -> Vec<u8> {
    let mut bytes = vec![round; 4096];
    bytes[..8].copy_from_slice(&block.to_le_bytes());
    bytes
}

#[test]
fn s_573_writes_under_which_the_server_is_started_again_are_all_in_the_file() {
    let Some(mut bed) = Bed::new(trusting()) else { return };
    let port = bed.address;
    let client = client(&bed, "nconnect=3&calls=16");
    let open = OpenOptions::create(Mode::Concurrent);
    let file = Arc::new(client.open(b"file", &open).unwrap());
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..3_u64)
            .map(|writer| {
                let file = Arc::clone(&file);
                scope.spawn(move || {
                    let mut queue = Queue::new(8);
                    let mut done = Vec::new();
                    for round in 1..=20 {
                        for at in 0..16 {
                            let block = writer * 16 + at;
                            let mut buf = AlignedBuf::zeroed(4096);
                            buf.copy_from_slice(&stamp(block, round));
                            while queue.in_flight() == 8 {
                                queue.complete(1, &mut done);
                            }
                            queue.write(&file, buf, block * 4096, block).unwrap();
                        }
                        queue.complete(8, &mut done);
                        file.sync().unwrap();
                    }
                    assert_eq!(done.len(), 20 * 16);
                    assert!(done.iter().all(|end| end.result == Ok(4096)));
                })
            })
            .collect();
        let ended = &ended;
        scope.spawn(move || {
            while !ended.load(SeqCst) {
                bed.restart_at(port);
                std::thread::sleep(Duration::from_millis(40));
            }
            bed.end();
            let whole = std::fs::read(bed.path("file")).unwrap();
            for block in 0..48 {
                let at = block as usize * 4096;
                assert!(whole[at..at + 4096] == stamp(block, 20)[..], "block {block}");
            }
        });
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        ended.store(true, SeqCst);
    });
}

#[test]
fn s_575_lists_read_what_was_written_in_every_mode() {
    let Some(bed) = Bed::new(trusting()) else { return };
    for mode in Mode::ALL {
        let client = client(&bed, "nconnect=4&rsize=8192&wsize=16384");
        let name = mode.to_string();
        let file = client.open(name.as_bytes(), &OpenOptions::create(mode)).unwrap();
        let content: Vec<u8> = (0..300_001_u32).map(|at| ((at * 31) >> 3) as u8).collect();
        file.write_at(&content, 0).unwrap();
        let file = Arc::new(file);
        let mut queue = Queue::new(64);
        for at in 0..30 {
            queue.read(&file, AlignedBuf::zeroed(20_000), at * 11_111, at).unwrap();
        }
        let mut done = Vec::new();
        queue.complete(30, &mut done);
        for end in &done {
            let at = end.token as usize * 11_111;
            let expected = &content[at.min(content.len())..(at + 20_000).min(content.len())];
            assert_eq!(end.result, Ok(expected.len()));
            assert!(end.buf[..expected.len()] == *expected);
        }
        file.set_size(5).unwrap();
        drop(queue);
        Arc::into_inner(file).unwrap().close().unwrap();
        assert_eq!(std::fs::read(bed.path(&name)).unwrap(), content[..5]);
    }
}
