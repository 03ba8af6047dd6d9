//! Reading directories.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;

use rustix::fs::Dir;

use crate::harness::Mounted;

/// More than several chunks of the stream and many requests.
const COUNT: usize = 1600;

fn fill(m: &Mounted) -> BTreeSet<Vec<u8>> {
    fs::create_dir(m.path("d")).unwrap();
    let names: BTreeSet<Vec<u8>> =
        (0..COUNT).map(|i| format!("{}-{i}", "name".repeat(i % 20 + 1)).into_bytes()).collect();
    for name in &names {
        File::create(m.path("d").join(std::ffi::OsStr::from_bytes(name))).unwrap();
    }
    names
}

fn names_of(dir: &mut Dir) -> Vec<Vec<u8>> {
    dir.map(|entry| entry.unwrap().file_name().to_bytes().to_vec()).collect()
}

#[test]
fn a_large_directory_is_read_whole_with_its_dots() {
    let Some(m) = Mounted::new("") else { return };
    let mut expected = fill(&m);
    expected.extend([b".".to_vec(), b"..".to_vec()]);
    let mut dir = Dir::new(File::open(m.path("d")).unwrap()).unwrap();
    for _ in 0..2 {
        let names = names_of(&mut dir);
        assert_eq!(names.len(), expected.len());
        assert_eq!(names.into_iter().collect::<BTreeSet<_>>(), expected);
        dir.rewind();
    }
    let dots: Vec<u64> =
        dir.by_ref().map(Result::unwrap).take(2).map(|entry| entry.ino()).collect();
    assert_eq!(dots, [m.path("d").metadata().unwrap().ino(), m.root().metadata().unwrap().ino()]);
    drop(dir);
    m.finish();
}

#[test]
fn s_48_a_stream_goes_on_from_any_place_told_before() {
    let Some(m) = Mounted::new("") else { return };
    fill(&m);
    let mut dir = Dir::new(File::open(m.path("d")).unwrap()).unwrap();
    let told: Vec<(i64, Vec<u8>)> = dir
        .by_ref()
        .map(Result::unwrap)
        .map(|entry| (entry.offset(), entry.file_name().to_bytes().to_vec()))
        .collect();
    for at in [0, 1, 2, 511, 512, 513, 514, 1025, COUNT, COUNT - 1] {
        dir.seek(told[at].0).unwrap();
        let next = dir.next().unwrap().unwrap();
        assert_eq!(next.file_name().to_bytes(), told[at + 1].1, "after {at}");
    }
    dir.seek(told[COUNT + 1].0).unwrap();
    assert!(dir.next().is_none());
    drop(dir);
    m.finish();
}

#[test]
fn s_18_names_that_stay_are_read_once_while_others_come_and_go() {
    let Some(m) = Mounted::new("") else { return };
    let names = fill(&m);
    let mut seen = Vec::new();
    for (i, entry) in fs::read_dir(m.path("d")).unwrap().enumerate() {
        let name = entry.unwrap().file_name();
        // Every second name is removed once read, and new ones appear before and behind it.
        if i % 2 == 0 {
            fs::remove_file(m.path("d").join(&name)).unwrap();
        }
        File::create(m.path(&format!("d/a-{i}"))).unwrap();
        File::create(m.path(&format!("d/zz-{i}"))).unwrap();
        if names.contains(name.as_bytes()) {
            seen.push(name.as_bytes().to_vec());
        }
        if i > 4 * COUNT {
            break;
        }
    }
    assert_eq!(seen.len(), names.len());
    assert_eq!(seen.into_iter().collect::<BTreeSet<_>>(), names);
    m.finish();
}

#[test]
fn removing_everything_while_reading_leaves_an_empty_directory() {
    let Some(m) = Mounted::new("") else { return };
    fill(&m);
    fs::remove_dir_all(m.path("d")).unwrap();
    assert_eq!(fs::read_dir(m.root()).unwrap().count(), 0);
    m.finish();
}

#[test]
fn a_directory_is_synced() {
    let Some(m) = Mounted::new("") else { return };
    fs::create_dir(m.path("d")).unwrap();
    File::create(m.path("d/f")).unwrap();
    File::open(m.path("d")).unwrap().sync_all().unwrap();
    File::open(m.path("d")).unwrap().sync_data().unwrap();
    m.finish();
}
