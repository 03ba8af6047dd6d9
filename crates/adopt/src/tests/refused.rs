//! What is refused, in a sentence, and leaves nothing behind.

use std::path::Path;

use super::image::{Image, alone};
use super::tree::{fill_plainly, through_the_kernel};
use crate::{Error, ErrorKind, make, plan};

fn refused(image: &Image, kind: ErrorKind, words: &str) {
    let error: Error = make(&image.path, &|_, _| {}).unwrap_err();
    assert!(error.kind == kind && error.message.contains(words), "{error:?}");
}

/// Leaves less than a volume needs.
fn fill_up(dir: &Path) {
    for number in 0.. {
        let free = rustix::fs::statvfs(dir).unwrap();
        let free = free.f_bfree * free.f_frsize;
        // Written, XFS would reserve more than it keeps.
        let file = std::fs::File::create(dir.join(number.to_string())).unwrap();
        let taken = rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, 1 << 20);
        if free < 9 << 20 || taken.is_err() {
            return;
        }
    }
}

/// S-605
#[test]
fn s_605_too_little_free_space_is_told_before_anything_is_changed() {
    for kind in ["ext4", "xfs"] {
        let Some(_alone) = alone(kind) else { return };
        let image = Image::new(kind, 320, &[]);
        let before = image.mounted(false, |dir| {
            fill_up(dir);
            through_the_kernel(dir)
        });
        let planned = plan(&image.path).unwrap();
        // XFS takes what it reserves for itself off the free space in mounts for writing alone.
        assert!(kind == "xfs" || planned.needs.missing_bytes() > 0, "S-605: {planned:?}");
        refused(&image, ErrorKind::NoSpace, "remove files of");
        image.check_old();
        let after = image.mounted(true, through_the_kernel);
        assert_eq!(before.keys().collect::<Vec<_>>(), after.keys().collect::<Vec<_>>(), "S-605");
    }
}

/// S-605
#[test]
fn s_605_what_cannot_be_converted_is_refused_in_a_sentence() {
    let Some(_alone) = alone("ext4") else { return };
    let quotas = Image::new("ext4", 64, &["-O", "quota"]);
    refused(&quotas, ErrorKind::Unsupported, "quotas");
    let encrypted = Image::new("ext4", 64, &["-O", "encrypt"]);
    refused(&encrypted, ErrorKind::Unsupported, "encrypted");
    let folded = Image::new("ext4", 64, &["-O", "casefold"]);
    refused(&folded, ErrorKind::Unsupported, "fold case");
    let short = Image::new("ext4", 64, &["-b", "1024"]);
    refused(&short, ErrorKind::Unsupported, "blocks of 1024 bytes");
    let small = Image::new("ext4", 16, &[]);
    refused(&small, ErrorKind::Unsupported, "32 MiB");
    std::fs::write(&small.path, vec![0; 64 << 20]).unwrap();
    refused(&small, ErrorKind::Unsupported, "neither an ext4 nor an XFS");
    let foreign = Image::new("ext4", 64, &[]);
    foreign.mounted(false, |dir| std::fs::write(dir.join(crate::FILE_NAME), b"mine").unwrap());
    refused(&foreign, ErrorKind::Exists, "no conversion made");
    let kept = foreign.mounted(true, |dir| std::fs::read(dir.join(crate::FILE_NAME)).unwrap());
    assert_eq!(kept, b"mine");
}

/// S-605: a device that is mounted, and one that was not unmounted.
#[test]
fn s_605_a_file_system_in_use_is_refused() {
    for kind in ["ext4", "xfs"] {
        let Some(_alone) = alone(kind) else { return };
        let image = Image::new(kind, 320, &[]);
        let cut = image.path.with_extension("cut");
        image.mounted(false, |dir| {
            fill_plainly(dir, 20, |number| 1000 * number as usize);
            refused(&image, ErrorKind::Busy, "");
            rustix::fs::syncfs(std::fs::File::open(dir).unwrap()).unwrap();
            // What a power cut would leave.
            std::fs::copy(&image.path, &cut).unwrap();
        });
        let found = crate::device::open(&cut).and_then(|device| crate::old::look(&*device));
        let error = found.unwrap_err();
        assert!(error.kind == ErrorKind::Damaged && error.message.contains("mount it"), "{error}");
    }
}
