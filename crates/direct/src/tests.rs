//! Copies against what was there, with sizes and places that fit no block.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{CWD, FileType, Mode, XattrFlags};
use tempfile::TempDir;

use crate::partial::Partial;
use crate::{
    ErrorKind, Method, Options, Range, Reflink, Sink, WINDOW_BYTES, compress, copy, copy_tree,
    read_to,
};

/// A directory on a file system that has direct I/O, as `/tmp` may not.
fn scratch() -> TempDir {
    tempfile::Builder::new().prefix("bedplate-direct-").tempdir().unwrap()
}

fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|at| ((at / 512 * 31 + at + seed) % 251) as u8).collect()
}

fn file(dir: &TempDir, name: &str, content: &[u8]) -> PathBuf {
    let path = dir.path().join(name);
    std::fs::write(&path, content).unwrap();
    path
}

/// Never shares blocks, so that data is copied on any file system.
fn options() -> Options {
    Options { reflink: Reflink::Never, ..Options::default() }
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn a_copy_has_the_bytes_and_attributes_of_its_source() {
    let dir = scratch();
    let sizes =
        [0, 1, 511, 4095, 4096, 4097, WINDOW_BYTES, WINDOW_BYTES + 1, 3 * WINDOW_BYTES + 777];
    for size in sizes {
        let source = file(&dir, "source", &pattern(size, size));
        let target = dir.path().join("target");
        std::fs::set_permissions(&source, PermissionsExt::from_mode(0o640)).unwrap();
        let handle = File::options().write(true).open(&source).unwrap();
        let then = std::time::UNIX_EPOCH + std::time::Duration::new(1_000_000_000, 7000);
        handle.set_modified(then).unwrap();
        let has_xattrs =
            rustix::fs::fsetxattr(&handle, "user.kept", b"value", XattrFlags::empty()).is_ok();
        let done = copy(&source, &target, &Options { verify: true, ..options() }, &|_| {}).unwrap();
        assert!(std::fs::read(&target).unwrap() == pattern(size, size), "{size} bytes");
        let is = target.metadata().unwrap();
        assert_eq!((is.mode() & 0o7777, is.modified().unwrap()), (0o640, then));
        assert_eq!((done.size, done.copied, done.is_verified), (size as u64, size as u64, true));
        if has_xattrs {
            let mut value = [0; 16];
            let len = rustix::fs::getxattr(&target, "user.kept", &mut value).unwrap();
            assert_eq!(&value[..len], b"value");
        }
        assert_eq!(names(dir.path()), ["source", "target"], "nothing else is left");
    }
}

#[test]
fn holes_stay_holes() {
    let dir = scratch();
    let (source, target) = (dir.path().join("source"), dir.path().join("target"));
    let sparse = File::create(&source).unwrap();
    sparse.set_len(1 << 40).unwrap();
    for at in [0, 12_345_678, (1 << 39) + 1, (1 << 40) - 1] {
        sparse.write_all_at(b"x", at).unwrap();
    }
    let done = copy(&source, &target, &options(), &|_| {}).unwrap();
    let is = target.metadata().unwrap();
    assert_eq!(is.len(), 1 << 40);
    assert!(is.blocks() * 512 < 1 << 20, "{} bytes taken", is.blocks() * 512);
    assert!(done.copied < 1 << 20, "{}", done.copied);
    let copied = File::open(&target).unwrap();
    for at in [0, 12_345_678, (1 << 39) + 1, (1 << 40) - 1] {
        let mut byte = [0];
        copied.read_exact_at(&mut byte, at).unwrap();
        assert_eq!(&byte, b"x", "at {at}");
    }
}

#[test]
fn a_range_changes_its_bytes_and_no_other() {
    let dir = scratch();
    let before = pattern(2 * WINDOW_BYTES + 100, 1);
    let content = pattern(2 * WINDOW_BYTES + 5000, 2);
    let source = file(&dir, "source", &content);
    let ranges = [
        (0, 1, 0),
        (1, 1, 4095),
        (5, 10_000, 3),
        (4096, 8192, 4096),
        (513, WINDOW_BYTES + 1, 7),
        (100, 4096, WINDOW_BYTES - 50),
        (0, 200, 2 * WINDOW_BYTES),
        (3, 2 * WINDOW_BYTES, 2 * WINDOW_BYTES + 100),
        (77, 0, 5),
    ];
    for (from, len, to) in ranges {
        let target = file(&dir, "target", &before);
        let range = Range { source: from as u64, len: Some(len as u64), target: to as u64 };
        let options = Options { range: Some(range), verify: true, ..options() };
        copy(&source, &target, &options, &|_| {}).unwrap();
        let mut expected = before.clone();
        expected.resize(before.len().max(to + len), 0);
        expected[to..to + len].copy_from_slice(&content[from..from + len]);
        assert!(std::fs::read(&target).unwrap() == expected, "{len} bytes from {from} to {to}");
    }
    let range = Range { source: content.len() as u64 - 1, len: Some(2), target: 0 };
    let refused = copy(
        &source,
        &file(&dir, "target", &before),
        &Options { range: Some(range), ..options() },
        &|_| {},
    );
    assert_eq!(refused.unwrap_err().kind, ErrorKind::Usage);
    let rest = Range { source: content.len() as u64 - 3, len: None, target: 1 };
    let target = file(&dir, "target", b"abcdef");
    copy(&source, &target, &Options { range: Some(rest), ..options() }, &|_| {}).unwrap();
    let expected = [b"a", &content[content.len() - 3..], b"ef"].concat();
    assert_eq!(std::fs::read(&target).unwrap(), expected);
}

#[test]
fn a_copy_goes_on_from_what_the_same_source_left() {
    let dir = scratch();
    let content = pattern(2 * WINDOW_BYTES + 9, 3);
    let source = file(&dir, "source", &content);
    let target = dir.path().join("target");
    let other = vec![0xee; WINDOW_BYTES];
    let leave = || {
        let (partial, _) = Partial::begin(&target, &source.metadata().unwrap(), true).unwrap();
        let path = dir.path().join(".target.partial");
        File::options().write(true).open(path).unwrap().write_all_at(&other, 0).unwrap();
        partial.mark(WINDOW_BYTES as u64).unwrap();
    };
    leave();
    let resume = Options { resume: true, ..options() };
    let done = copy(&source, &target, &resume, &|_| {}).unwrap();
    assert_eq!(done.resumed_at, WINDOW_BYTES as u64);
    let copied = std::fs::read(&target).unwrap();
    assert!(copied[..WINDOW_BYTES] == other, "what was there is not copied again");
    assert!(copied[WINDOW_BYTES..] == content[WINDOW_BYTES..]);

    leave();
    File::options().write(true).open(&source).unwrap().set_modified(std::time::UNIX_EPOCH).unwrap();
    let done = copy(&source, &target, &resume, &|_| {}).unwrap();
    assert_eq!(done.resumed_at, 0, "another state of the source");
    assert!(std::fs::read(&target).unwrap() == content);

    leave();
    let (mut begun, _) = Partial::begin(&target, &source.metadata().unwrap(), false).unwrap();
    begun.keep();
    drop(begun);
    let done = copy(&source, &target, &resume, &|_| {}).unwrap();
    assert_eq!(done.resumed_at, 0, "a copy that began anew and was killed had written nothing");
    assert!(std::fs::read(&target).unwrap() == content);

    leave();
    let done = copy(&source, &target, &options(), &|_| {}).unwrap();
    assert_eq!(done.resumed_at, 0, "nothing was said of going on");
    assert_eq!(names(dir.path()), ["source", "target"]);
}

#[test]
fn a_source_that_changes_is_told_and_the_target_stays() {
    let dir = scratch();
    let source = file(&dir, "source", &pattern(2 * WINDOW_BYTES, 4));
    let target = file(&dir, "target", b"before");
    let writer = File::options().append(true).open(&source).unwrap();
    let grow = |bytes| {
        if bytes > 0 {
            (&writer).write_all(b"more").unwrap();
        }
    };
    let error = copy(&source, &target, &options(), &grow).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Changed, "{error}");
    assert_eq!(std::fs::read(&target).unwrap(), b"before");
    assert_eq!(names(dir.path()), ["source", "target"]);
    let shrink = |bytes| {
        if bytes > 0 {
            writer.set_len(1).unwrap();
        }
    };
    let one = Options { workers: 1, ..options() };
    let error = copy(&source, &target, &one, &shrink).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Changed, "{error}");
}

#[test]
fn a_copy_that_is_not_what_was_written_is_found() {
    let dir = scratch();
    let source = file(&dir, "source", &pattern(WINDOW_BYTES + 5, 5));
    let target = dir.path().join("target");
    let partial = dir.path().join(".target.partial");
    let done = AtomicBool::new(false);
    // After the first window was written, one of its bytes turns.
    let spoil = |bytes| {
        if bytes == WINDOW_BYTES as u64 && !done.swap(true, Ordering::Relaxed) {
            let file = File::options().write(true).open(&partial).unwrap();
            file.write_all_at(&[0xff], 70_000).unwrap();
        }
    };
    let verify = Options { verify: true, ..options() };
    let error = copy(&source, &target, &verify, &spoil).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Differs, "{error}");
    assert!(!target.exists() && !partial.exists());
}

#[test]
fn nothing_is_copied_onto_or_into_itself() {
    let dir = scratch();
    let source = file(&dir, "source", b"content");
    let link = dir.path().join("link");
    std::fs::hard_link(&source, &link).unwrap();
    for target in [&source, &link] {
        let error = copy(&source, target, &options(), &|_| {}).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Usage, "{error}");
    }
    let inside = dir.path().join("a/b");
    let error = copy_tree(dir.path(), &inside, &options(), &|_| {}).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Usage, "{error}");
    assert_eq!(std::fs::read(&source).unwrap(), b"content");
    let error = copy(&source, Path::new("/dev/null"), &options(), &|_| {}).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Unsupported, "{error}");
}

#[test]
fn a_link_to_the_target_stays_a_link() {
    let dir = scratch();
    let source = file(&dir, "source", b"new");
    let target = file(&dir, "target", b"old");
    let link = dir.path().join("link");
    std::os::unix::fs::symlink("target", &link).unwrap();
    copy(&source, &link, &options(), &|_| {}).unwrap();
    assert!(link.is_symlink());
    assert_eq!(std::fs::read(&target).unwrap(), b"new");
}

#[test]
fn a_tree_is_copied_with_its_links_and_times() {
    let dir = scratch();
    let (source, target) = (dir.path().join("source"), dir.path().join("target"));
    std::fs::create_dir_all(source.join("deep/er")).unwrap();
    std::fs::write(source.join("deep/er/file"), pattern(10_000, 6)).unwrap();
    std::fs::hard_link(source.join("deep/er/file"), source.join("second")).unwrap();
    std::os::unix::fs::symlink("nowhere", source.join("link")).unwrap();
    rustix::fs::mknodat(CWD, source.join("pipe"), FileType::Fifo, Mode::RUSR, 0).unwrap();
    std::fs::create_dir_all(&target).unwrap();
    std::fs::write(target.join("other"), b"stays").unwrap();
    let then = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000_000);
    for name in ["deep/er", "deep", ""] {
        File::open(source.join(name)).unwrap().set_modified(then).unwrap();
    }
    let done = copy_tree(&source, &target, &options(), &|_| {}).unwrap();
    assert_eq!((done.files, done.directories, done.links), (1, 3, 2), "{done:?}");
    assert_eq!(done.left_out, [source.join("pipe")]);
    assert!(std::fs::read(target.join("second")).unwrap() == pattern(10_000, 6));
    assert_eq!(
        target.join("second").metadata().unwrap().ino(),
        target.join("deep/er/file").metadata().unwrap().ino()
    );
    assert_eq!(std::fs::read_link(target.join("link")).unwrap(), Path::new("nowhere"));
    assert_eq!(std::fs::read(target.join("other")).unwrap(), b"stays");
    for name in ["deep/er", "deep", ""] {
        let modified = target.join(name).metadata().unwrap().modified().unwrap();
        assert_eq!(modified, then, "'{name}'");
    }
    // Once more, onto what is there.
    let again = copy_tree(&source, &target, &options(), &|_| {}).unwrap();
    assert_eq!((again.files, again.links), (1, 2), "{again:?}");
}

#[test]
fn streams_and_files_hold_the_same() {
    let dir = scratch();
    for size in [0, 1, 5000, WINDOW_BYTES, 5 * WINDOW_BYTES + 4097] {
        let content = pattern(size, 7);
        let path = dir.path().join("file");
        std::fs::write(&path, b"longer than nothing").unwrap();
        let mut sink = Sink::create(&path, 3).unwrap();
        for part in content.chunks(100_003) {
            sink.write_all(part).unwrap();
        }
        assert_eq!(sink.finish().unwrap().0, size as u64);
        assert!(std::fs::read(&path).unwrap() == content, "{size} bytes");
        let mut out = Vec::new();
        assert_eq!(read_to(&path, &mut out, 3, None, &|_| {}).unwrap().0, size as u64);
        assert!(out == content, "{size} bytes");
    }
}

#[test]
fn a_reader_that_is_gone_ends_all_workers() {
    struct Gone;
    impl Write for Gone {
        fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
            Err(std::io::ErrorKind::BrokenPipe.into())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let dir = scratch();
    let path = file(&dir, "file", &pattern(9 * WINDOW_BYTES, 8));
    let error = read_to(&path, &mut Gone, 4, None, &|_| {}).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Closed, "{error}");
}

#[test]
fn what_is_compressed_is_read_again() {
    let dir = scratch();
    for size in [0, 1, 2 * WINDOW_BYTES + 33] {
        let content = pattern(size, 9);
        let path = file(&dir, "file", &content);
        let mut zst = Vec::new();
        let (read, written, _) =
            compress(&path, &mut zst, Method::Zstd(3), 3, None, &|_| {}).unwrap();
        assert_eq!((read, written), (size as u64, zst.len() as u64));
        let mut back = Vec::new();
        zstd::stream::read::Decoder::new(&zst[..]).unwrap().read_to_end(&mut back).unwrap();
        assert!(back == content, "zstd, {size} bytes");
        let mut gz = Vec::new();
        compress(&path, &mut gz, Method::Gzip(6), 3, None, &|_| {}).unwrap();
        assert!(gunzip(&gz) == content, "gzip, {size} bytes");
    }
    let refused =
        compress(&file(&dir, "file", b"x"), &mut Vec::new(), Method::Gzip(10), 1, None, &|_| {});
    assert_eq!(refused.unwrap_err().kind, ErrorKind::Usage);
}

/// Reads the members of a gzip file with the system's gzip.
fn gunzip(bytes: &[u8]) -> Vec<u8> {
    let mut child = std::process::Command::new("gzip")
        .args(["-d", "-c"])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    let bytes = bytes.to_vec();
    let writer = std::thread::spawn(move || input.write_all(&bytes));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap().unwrap();
    assert!(output.status.success(), "gzip -d");
    output.stdout
}
