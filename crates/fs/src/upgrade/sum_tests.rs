//! Checksums of data and what keeps them: older formats, and damage to their rows.

use std::sync::Arc;

use bedplate_block::{AlignedBuf, BlockDevice, MemoryDevice};

use crate::{
    ErrorKind, FileSystem, FindingKind, FormatOptions, InodeNo, IoMode, MountOptions, OpenOptions,
    forge,
};
use bedplate_store::Table;

const BLOCK: u64 = 4096;

fn formatted() -> Arc<dyn BlockDevice> {
    let device: Arc<dyn BlockDevice> = MemoryDevice::new(64 << 20);
    FileSystem::format(&device, None, &FormatOptions::default()).unwrap();
    device
}

fn mount(device: &Arc<dyn BlockDevice>) -> FileSystem {
    let options = MountOptions { mode: IoMode::Concurrent, ..MountOptions::default() };
    FileSystem::mount(Arc::clone(device), None, options).unwrap()
}

fn write(fs: &FileSystem, name: &str, blocks: u64) {
    let mut bytes = AlignedBuf::zeroed((blocks * BLOCK) as usize);
    bytes.iter_mut().zip(0_u32..).for_each(|(byte, at)| *byte = (at / 7) as u8);
    fs.open(name, &OpenOptions::create()).unwrap().write_at(&bytes, 0).unwrap();
}

/// S-286: a volume of version 4 mounts as it is, stays of it and has no table of checksums; a wish
/// for them is refused with what to do; upgraded, it has all that it had, and gives them.
#[test]
fn s_286_a_volume_of_version_4_has_no_checksums_before_its_upgrade() {
    let device = formatted();
    let fs = mount(&device);
    write(&fs, "/f", 20);
    fs.unmount().unwrap();
    forge::make_old(&device, 4).unwrap();
    let fs = mount(&device);
    assert_eq!(fs.info().version, 4);
    let refused = fs.set_integrity(InodeNo::ROOT, true).unwrap_err();
    assert_eq!(refused.kind, ErrorKind::Invalid);
    assert!(refused.message.contains("format version 4") && refused.message.contains("upgrade"));
    fs.set_integrity(InodeNo::ROOT, false).unwrap();
    write(&fs, "/g", 20);
    fs.unmount().unwrap();
    let report = FileSystem::check_data(&device, None).unwrap();
    assert!(report.findings.is_empty() && report.summed_blocks == 0, "{report:?}");
    let report = FileSystem::upgrade(&device, None).unwrap();
    assert_eq!((report.from, report.to), (4, 5));
    let fs = mount(&device);
    fs.set_integrity(InodeNo::ROOT, true).unwrap();
    write(&fs, "/h", 20);
    write(&fs, "/f", 10);
    let summed = |name: &str| fs.summed_bytes(fs.resolve(name).unwrap().ino).unwrap() / BLOCK;
    assert_eq!((summed("/f"), summed("/g"), summed("/h")), (0, 0, 20));
    fs.unmount().unwrap();
    let report = FileSystem::check_data(&device, None).unwrap();
    assert!(report.findings.is_empty() && report.summed_blocks == 20, "{report:?}");
}

/// S-281: where the row of a group of checksums is damaged or gone, reading its blocks fails, a
/// check says so, other files read, and what is written anew reads again.
#[test]
fn s_281_a_row_of_checksums_that_is_damaged_fails_its_blocks_alone() {
    for gone in [false, true] {
        let device = formatted();
        let fs = mount(&device);
        fs.set_integrity(InodeNo::ROOT, true).unwrap();
        write(&fs, "/f", 10);
        write(&fs, "/far", 600);
        let place = |name: &str| {
            let file = fs.open(name, &OpenOptions::read_only()).unwrap();
            file.extents().unwrap()[0].volume_offset / BLOCK / bedplate_store::GROUP_BLOCKS
        };
        let group = place("/f");
        fs.unmount().unwrap();
        let of_group =
            |row: &forge::RowImage| row.table == Table::Sum as u8 && row.key == group.to_be_bytes();
        let mut row = forge::rows(&device).unwrap().into_iter().find(of_group).unwrap();
        match &mut row.value {
            _ if gone => row.value = None,
            Some(value) => *value.last_mut().unwrap() ^= 1,
            None => unreachable!("it was found"),
        }
        forge::put_rows(&device, &[row]).unwrap();
        let report = FileSystem::check_data(&device, None).unwrap();
        assert!(report.findings.iter().any(|it| it.kind == FindingKind::Data), "{report:?}");
        let fs = mount(&device);
        let mut bytes = AlignedBuf::zeroed(BLOCK as usize);
        let file = fs.open("/f", &OpenOptions::read_write()).unwrap();
        let error = file.read_at(&mut bytes, 0).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Corrupt, "{error}");
        assert!(error.message.starts_with("inode 2 at byte 0: "), "{error}");
        let far = fs.open("/far", &OpenOptions::read_only()).unwrap();
        far.read_at(&mut bytes, 500 * BLOCK).unwrap();
        file.write_at(&bytes, 0).unwrap();
        file.read_at(&mut bytes, 0).unwrap();
    }
}
