//! Conversion, commit and abandonment of whole trees.

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use bedplate_block::{AlignedBuf, BlockDevice, DeviceOptions, InPlaceHeader, in_place_path};
use bedplate_fs::{FileSystem, MountOptions};

use super::image::{Image, alone};
use super::tree::{Tree, assert_same, fill, fill_plainly, through_the_kernel, through_the_volume};
use crate::{ErrorKind, State, abandon, commit, make, plan, status};

fn read_only(path: &Path) -> Arc<dyn BlockDevice> {
    let options = DeviceOptions { read_only: true, ..DeviceOptions::default() };
    crate::device::when_free(path, || Ok(bedplate_block::open(path, &options)?)).unwrap()
}

/// Bytes of the device outside of the file of the conversion are what they were.
fn same_but_the_file(before: &[u8], image: &Image) {
    let after = std::fs::read(&image.path).unwrap();
    let extents = image.mounted(true, |dir| {
        let file = std::fs::File::open(dir.join(crate::FILE_NAME)).unwrap();
        bedplate_block::file_extents(&file).unwrap()
    });
    let own = |at: usize| {
        let at = at as u64;
        extents.iter().any(|one| one.place <= at && at < one.place + one.len)
    };
    let differs = (0..before.len())
        .step_by(512)
        .find(|at| before[*at..at + 512] != after[*at..at + 512] && !own(*at));
    assert_eq!(differs, None, "I-ADO-2");
}

/// Converts, looks at both, gives it up, converts again and commits.
fn there_and_back(image: &Image) {
    let old: Tree = image.mounted(true, through_the_kernel);
    let planned = plan(&image.path).unwrap();
    assert_eq!(planned.needs.missing_bytes(), 0, "{planned:?}");
    let made = make(&image.path, &|_, _| {}).unwrap();
    println!("{made:?}");
    assert!(made.needs.metadata_bytes <= planned.needs.metadata_bytes);
    assert_eq!(made.needs.copied_bytes, planned.needs.copied_bytes);
    assert_eq!(status(&image.path).unwrap().state, State::Made);
    assert_eq!(make(&image.path, &|_, _| {}).unwrap_err().kind, ErrorKind::Exists);
    let shown = read_only(&in_place_path(&image.path));
    let report = FileSystem::check(&shown, None, false).unwrap();
    assert!(report.findings.is_empty(), "S-598: {:?}", report.findings);
    assert_same(&old, &through_the_volume(&shown));
    drop(shown);
    image.check_old();
    assert_same(&old, &image.mounted(true, through_the_kernel));
    assert_eq!(status(&image.path).unwrap().state, State::Made, "S-600: it was only read");

    let abandoned = abandon(&image.path).unwrap();
    assert!(abandoned.had_volume);
    image.check_old();
    assert_same(&old, &image.mounted(true, through_the_kernel));
    let is_there = image.mounted(true, |dir| dir.join(crate::FILE_NAME).exists());
    assert!(!is_there, "S-602: the file is gone");
    assert_eq!(status(&image.path).unwrap().state, State::None);
    assert_eq!(commit(&image.path).unwrap_err().kind, ErrorKind::NotFound);
    assert_eq!(abandon(&image.path).unwrap_err().kind, ErrorKind::NotFound);

    make(&image.path, &|_, _| {}).unwrap();
    let committed = commit(&image.path).unwrap();
    assert!(!committed.gone_on);
    after_commit(image, &old);
}

/// The device is a volume that is written to, and nothing else.
fn after_commit(image: &Image, old: &Tree) {
    assert_eq!(status(&image.path).unwrap().state, State::Volume);
    for error in [commit(&image.path).unwrap_err(), abandon(&image.path).unwrap_err()] {
        assert_eq!(error.kind, ErrorKind::Committed, "S-603: {error}");
    }
    let refused = crate::old::look(&*read_only(&image.path)).unwrap_err();
    assert_eq!(refused.kind, ErrorKind::Unsupported, "S-601: nothing of the old one is recognized");
    assert_same(old, &through_the_volume(&read_only(&image.path)));
    let device = crate::device::open(&image.path).unwrap();
    assert_eq!(InPlaceHeader::find(&*device).unwrap(), None);
    let fs = FileSystem::mount(Arc::clone(&device), None, MountOptions::default()).unwrap();
    let free = fs.statfs().free_bytes;
    let file = fs.open("/new", &bedplate_fs::OpenOptions::create()).unwrap();
    // Into what was the old file system's, most of it.
    let part = AlignedBuf::from_slice(&vec![0xa5; 1 << 20]);
    let parts = free / (1 << 20) * 9 / 10;
    for at in 0..parts {
        file.write_at(&part, at << 20).unwrap();
    }
    file.sync_data().unwrap();
    drop(file);
    fs.unmount().unwrap();
    let report = FileSystem::check(&device, None, false).unwrap();
    assert!(report.findings.is_empty(), "S-601: {:?}", report.findings);
    let mut now = through_the_volume(&device);
    assert!(now.remove(&b"new"[..]).is_some());
    assert_same(old, &now);
}

/// S-598, S-600, S-601, S-602, S-603
#[test]
fn s_598_an_xfs_image_becomes_a_volume_of_the_same_files() {
    let Some(_alone) = alone("xfs") else { return };
    let image = Image::new("xfs", 400, &[]);
    image.mounted(false, |dir| {
        fill(dir);
        // Files that share blocks: one of them keeps them.
        let odd = dir.join("odd");
        let (from, to) = (odd.join("one"), odd.join("shared"));
        let target = std::fs::File::create(to).unwrap();
        let source = std::fs::File::open(from).unwrap();
        rustix::fs::ioctl_ficlone(&target, &source).unwrap();
        target.write_all_at(&[3; 4096], 8192 * 7).unwrap();
    });
    there_and_back(&image);
}

/// S-598
#[test]
fn s_598_an_ext4_image_becomes_a_volume_of_the_same_files() {
    let Some(_alone) = alone("ext4") else { return };
    let image = Image::new("ext4", 300, &["-O", "inline_data", "-I", "256"]);
    image.mounted(false, fill);
    there_and_back(&image);
}

/// S-598: files without extents, blocks in clusters, a small device.
#[test]
fn s_598_other_kinds_of_ext4_and_xfs_are_converted_too() {
    let cases: [(&'static str, &[&str]); 3] = [
        ("ext4", &["-t", "ext3"]),
        ("ext4", &["-O", "bigalloc", "-C", "65536"]),
        ("xfs", &["-s", "size=4096", "-i", "size=2048"]),
    ];
    for (kind, options) in cases {
        let Some(_alone) = alone(kind) else { return };
        let image = Image::new(kind, 320, options);
        image.mounted(false, |dir| fill_plainly(dir, 120, |number| 1000 * number as usize));
        let old = image.mounted(true, through_the_kernel);
        let made = make(&image.path, &|_, _| {}).unwrap();
        assert!(made.needs.copied_bytes < 1 << 20, "{options:?}: {made:?}");
        assert_same(&old, &through_the_volume(&read_only(&in_place_path(&image.path))));
        image.check_old();
        commit(&image.path).unwrap();
        assert_same(&old, &through_the_volume(&read_only(&image.path)));
    }
}

/// I-ADO-2: what is written before the commit lies in one file.
#[test]
fn i_ado_2_a_conversion_writes_to_its_own_file_alone() {
    for kind in ["ext4", "xfs"] {
        let Some(_alone) = alone(kind) else { return };
        let image = Image::new(kind, 320, &[]);
        image.mounted(false, |dir| fill_plainly(dir, 50, |number| 1000 * number as usize));
        let old = crate::old::look(&*read_only(&image.path)).unwrap();
        // The first half: the file is there, nothing else is written.
        crate::mounted::in_private(|| {
            let mounted = crate::mounted::Mounted::mount(&image.path, kind, false)?;
            mounted.make_file(64 << 20)?;
            mounted.unmount()
        })
        .unwrap();
        crate::device::when_free(&image.path, || crate::device::open(&image.path).map(drop))
            .unwrap();
        assert_eq!(crate::old::look(&*read_only(&image.path)).unwrap().size_bytes, old.size_bytes);
        assert!(!abandon(&image.path).unwrap().had_volume, "S-602: one that was killed");
        make(&image.path, &|_, _| {}).unwrap();
        let made = std::fs::read(&image.path).unwrap();
        let device = crate::device::open(&image.path).unwrap();
        let header = InPlaceHeader::find(&*device).unwrap().unwrap();
        assert_eq!(header.first_change(&*device).unwrap(), None);
        drop(device);
        same_but_the_file(&made, &image);
    }
}

/// S-604: a conversion of which the old file system is written to is of no use any more.
#[test]
fn s_604_a_commit_is_refused_once_the_old_file_system_was_mounted_for_writing() {
    for kind in ["ext4", "xfs"] {
        let Some(_alone) = alone(kind) else { return };
        let image = Image::new(kind, 320, &[]);
        image.mounted(false, |dir| fill_plainly(dir, 30, |number| 1000 * number as usize));
        make(&image.path, &|_, _| {}).unwrap();
        image.mounted(false, |dir| std::fs::write(dir.join("later"), b"later").unwrap());
        assert_eq!(status(&image.path).unwrap().state, State::Changed, "S-604: {kind}");
        assert_eq!(commit(&image.path).unwrap_err().kind, ErrorKind::Changed, "S-604");
        let options = DeviceOptions { read_only: true, ..DeviceOptions::default() };
        let opened = bedplate_block::open(in_place_path(&image.path), &options);
        assert!(opened.unwrap_err().detail.contains("written to since"), "S-604");
        abandon(&image.path).unwrap();
        image.check_old();
        let old = image.mounted(true, through_the_kernel);
        assert!(old.contains_key(&b"later"[..]));
        make(&image.path, &|_, _| {}).unwrap();
        commit(&image.path).unwrap();
        assert_same(&old, &through_the_volume(&read_only(&image.path)));
    }
}
