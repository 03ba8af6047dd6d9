//! Attributes and permissions.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, chown};

use rustix::fs::{AtFlags, CWD, Statx, StatxFlags, Timespec, Timestamps, utimensat};

use bedplate_fs::{Tunable, TuneOptions};
use bedplate_serve::control::Request;

use crate::harness::{Mounted, NOBODY, done, errno, needs_root, shell_as};

fn mode(m: &Mounted, name: &str) -> u32 {
    m.path(name).metadata().unwrap().permissions().mode() & 0o7777
}

/// `statx` with the time of birth, which is asked for by a request of its own.
fn statx(path: &std::path::Path) -> Statx {
    rustix::fs::statx(CWD, path, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::ALL).unwrap()
}

#[test]
fn s_439_the_time_of_birth_is_told_and_never_moves() {
    for options in ["", "mode=concurrent"] {
        let Some(m) = Mounted::new(options) else { return };
        File::create(m.path("f")).unwrap();
        fs::create_dir(m.path("d")).unwrap();
        let birth = |m: &Mounted, name: &str| {
            let told = statx(&m.path(name));
            assert!(told.stx_mask & StatxFlags::BTIME.bits() != 0, "S-439: {name}");
            (told.stx_btime.tv_sec, told.stx_btime.tv_nsec)
        };
        let born = ["f", "d"].map(|name| birth(&m, name));
        let made = ["f", "d"].map(|name| {
            let stat = m.path(name).metadata().unwrap();
            (stat.mtime(), stat.mtime_nsec() as u32)
        });
        assert_eq!(born, made, "S-439: nothing has changed them since they were made");
        fs::write(m.path("f"), vec![1; 70_000]).unwrap();
        assert!(m.path("f").metadata().unwrap().created().is_ok());
        // What else it tells is what `stat` tells.
        let (told, stat) = (statx(&m.path("f")), m.path("f").metadata().unwrap());
        assert_eq!(
            (told.stx_ino, told.stx_size, told.stx_blocks, told.stx_nlink, told.stx_blksize),
            (stat.ino(), stat.size(), stat.blocks(), stat.nlink() as u32, stat.blksize() as u32)
        );
        assert_eq!(u32::from(told.stx_mode), stat.mode());
        assert_eq!((told.stx_uid, told.stx_gid), (stat.uid(), stat.gid()));
        assert_eq!(
            [told.stx_atime, told.stx_mtime, told.stx_ctime].map(|time| time.tv_sec),
            [stat.atime(), stat.mtime(), stat.ctime()]
        );
        let times = [(1_000_000, 5), (-2, 7)].map(|(tv_sec, tv_nsec)| Timespec { tv_sec, tv_nsec });
        let set = Timestamps { last_access: times[0], last_modification: times[1] };
        utimensat(CWD, m.path("f"), &set, AtFlags::empty()).unwrap();
        fs::rename(m.path("f"), m.path("d/f")).unwrap();
        let m = m.again(options);
        assert_eq!([birth(&m, "d/f"), birth(&m, "d")], born, "S-439: after a remount");
        assert_eq!(statx(&m.path("d/f")).stx_mtime.tv_sec, -2);
        m.finish();
    }
}

#[test]
fn s_439_statx_tells_devices_apart() {
    if !needs_root() {
        return;
    }
    let Some(m) = Mounted::new("dev") else { return };
    let device = rustix::fs::makedev(259, 70_000);
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    rustix::fs::mknodat(CWD, m.path("b"), rustix::fs::FileType::BlockDevice, mode, device).unwrap();
    let told = statx(&m.path("b"));
    assert_eq!((told.stx_rdev_major, told.stx_rdev_minor), (259, 70_000));
    assert_eq!(m.path("b").metadata().unwrap().rdev(), device);
    m.finish();
}

#[test]
fn mode_owner_and_times_are_set_and_kept() {
    let Some(m) = Mounted::new("") else { return };
    fs::write(m.path("f"), b"x").unwrap();
    fs::set_permissions(m.path("f"), Permissions::from_mode(0o1751)).unwrap();
    let times = [(1_000_000_000, 123_456_789), (-2, 200_000_000)]
        .map(|(tv_sec, tv_nsec)| Timespec { tv_sec, tv_nsec });
    let set = Timestamps { last_access: times[0], last_modification: times[1] };
    utimensat(CWD, m.path("f"), &set, AtFlags::empty()).unwrap();
    let check = |m: &Mounted| {
        let attr = m.path("f").metadata().unwrap();
        assert_eq!(mode(m, "f"), 0o1751);
        assert_eq!((attr.atime(), attr.atime_nsec()), (1_000_000_000, 123_456_789));
        assert_eq!((attr.mtime(), attr.mtime_nsec()), (-2, 200_000_000));
    };
    check(&m);
    let m = m.again("");
    check(&m);
    m.finish();
}

#[test]
fn s_47_owners_change_and_take_set_id_bits_with_them() {
    if !needs_root() {
        return;
    }
    let Some(m) = Mounted::new("") else { return };
    fs::write(m.path("f"), b"x").unwrap();
    fs::set_permissions(m.path("f"), Permissions::from_mode(0o6755)).unwrap();
    chown(m.path("f"), Some(12), Some(34)).unwrap();
    let attr = m.path("f").metadata().unwrap();
    assert_eq!((attr.uid(), attr.gid()), (12, 34));
    assert_eq!(mode(&m, "f"), 0o755);
    m.finish();
}

/// In every way a write can arrive: collected by the kernel, passed through its cache, and direct.
#[test]
fn s_47_a_write_by_an_ordinary_user_takes_set_id_bits_away() {
    if !needs_root() {
        return;
    }
    for options in ["allow_other", "allow_other,writeback=off", "allow_other,mode=concurrent"] {
        let Some(m) = Mounted::new(options) else { return };
        fs::set_permissions(m.root(), Permissions::from_mode(0o777)).unwrap();
        for script in
            ["echo x >> $M/f", "printf x | dd of=$M/f conv=notrunc 2>&1", "truncate -s 1 $M/f"]
        {
            fs::write(m.path("f"), b"xxxx").unwrap();
            fs::set_permissions(m.path("f"), Permissions::from_mode(0o6777)).unwrap();
            let (success, said) = shell_as(NOBODY, &m, script);
            assert!(success, "{said}");
            assert_eq!(mode(&m, "f"), 0o777, "{options}: {script}");
        }
        // Without group execution, too, where the writer is not of the group.
        for script in ["echo x >> $M/f", "fallocate -o 64K -l 4K $M/f", "truncate -s 1 $M/f"] {
            for (group, left) in [(0, 0o666), (NOBODY, 0o2666)] {
                chown(m.path("f"), Some(0), Some(group)).unwrap();
                fs::set_permissions(m.path("f"), Permissions::from_mode(0o6666)).unwrap();
                let (success, said) = shell_as(NOBODY, &m, script);
                assert!(success, "{said}");
                assert_eq!(mode(&m, "f"), left, "{options}: {script}, group {group}");
            }
        }
        fs::set_permissions(m.path("f"), Permissions::from_mode(0o4777)).unwrap();
        fs::OpenOptions::new()
            .write(true)
            .open(m.path("f"))
            .unwrap()
            .write_all_at(b"root", 0)
            .unwrap();
        assert_eq!(mode(&m, "f"), 0o4777, "root keeps them");
        m.finish();
    }
}

#[test]
fn s_47_file_capabilities_go_with_the_first_write_truncation_or_change_of_owner() {
    if !needs_root() {
        return;
    }
    // cap_net_raw, effective, revision 2.
    let capability = [1, 0, 0, 2, 0, 32, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    for options in ["", "mode=direct"] {
        let Some(m) = Mounted::new(options) else { return };
        let file = File::create(m.path("f")).unwrap();
        file.write_all_at(b"1", 0).unwrap();
        for _ in 0..2 {
            let name = "security.capability";
            rustix::fs::fsetxattr(&file, name, &capability, rustix::fs::XattrFlags::empty())
                .unwrap();
            assert_eq!(rustix::fs::fgetxattr(&file, name, &mut [0; 64]).unwrap(), capability.len());
            file.write_all_at(b"2", 0).unwrap();
            file.sync_all().unwrap();
            assert_eq!(
                rustix::fs::fgetxattr(&file, name, &mut [0; 64]).unwrap_err(),
                rustix::io::Errno::NODATA,
                "{options}"
            );
        }
        // Root, too, loses them.
        let changes: [(&str, &dyn Fn()); 2] = [
            ("truncation", &|| file.set_len(1).unwrap()),
            ("change of owner", &|| std::os::unix::fs::fchown(&file, Some(12), Some(34)).unwrap()),
        ];
        for (what, change) in changes {
            let name = "security.capability";
            rustix::fs::fsetxattr(&file, name, &capability, rustix::fs::XattrFlags::empty())
                .unwrap();
            change();
            assert_eq!(
                rustix::fs::fgetxattr(&file, name, &mut [0; 64]).unwrap_err(),
                rustix::io::Errno::NODATA,
                "{options}: {what}"
            );
        }
        drop(file);
        m.finish();
    }
}

#[test]
fn s_44_permissions_are_enforced() {
    if !needs_root() {
        return;
    }
    let Some(m) = Mounted::new("allow_other") else { return };
    fs::write(m.path("secret"), b"x").unwrap();
    fs::set_permissions(m.path("secret"), Permissions::from_mode(0o600)).unwrap();
    fs::create_dir(m.path("tmp")).unwrap();
    fs::set_permissions(m.path("tmp"), Permissions::from_mode(0o1777)).unwrap();
    fs::write(m.path("tmp/roots"), b"x").unwrap();
    for refused in [
        "cat $M/secret",
        "echo x > $M/secret",
        "touch $M/new",
        "rm -f $M/tmp/roots",
        "chmod 777 $M/secret",
        "chown 65534 $M/secret",
    ] {
        let (success, said) = shell_as(NOBODY, &m, refused);
        assert!(!success, "{refused}: {said}");
        assert!(said.contains("ermi"), "{refused}: {said}");
    }
    let (success, said) =
        shell_as(NOBODY, &m, "echo x > $M/tmp/own && rm $M/tmp/own && test -x $M/tmp");
    assert!(success, "{said}");
    assert_eq!(m.path("secret").metadata().unwrap().uid(), 0);
    m.finish();
}

#[test]
fn without_allow_other_the_mount_is_its_owners_alone() {
    if !needs_root() {
        return;
    }
    let Some(m) = Mounted::new("") else { return };
    fs::set_permissions(m.root(), Permissions::from_mode(0o777)).unwrap();
    let (success, said) = shell_as(NOBODY, &m, "ls $M");
    assert!(!success && said.contains("ermi"), "{said}");
    m.finish();
}

#[test]
fn sizes_go_up_and_down() {
    for options in ["", "mode=concurrent"] {
        let Some(m) = Mounted::new(options) else { return };
        fs::write(m.path("f"), vec![1; 10_000]).unwrap();
        let file = fs::OpenOptions::new().read(true).write(true).open(m.path("f")).unwrap();
        file.set_len(5000).unwrap();
        file.set_len(20_000).unwrap();
        let content = fs::read(m.path("f")).unwrap();
        assert!(
            content.len() == 20_000
                && content[..5000] == vec![1; 5000]
                && content[5000..] == vec![0; 15_000]
        );
        rustix::fs::ftruncate(File::options().write(true).open(m.path("f")).unwrap(), 0).unwrap();
        assert_eq!(file.metadata().unwrap().len(), 0);
        assert_eq!(errno(file.set_len(i64::MAX as u64)), libc::EFBIG);
        drop(file);
        m.finish();
    }
}

#[test]
fn totals_follow_what_is_stored() {
    let Some(m) = Mounted::new("mode=direct") else { return };
    let before = rustix::fs::statvfs(m.root()).unwrap();
    fs::write(m.path("f"), vec![1; 8 << 20]).unwrap();
    // What waits in memory has its blocks, which count as free until it has left.
    File::open(m.path("f")).unwrap().sync_all().unwrap();
    let after = rustix::fs::statvfs(m.root()).unwrap();
    assert_eq!(after.f_namemax, 255);
    assert!((before.f_bfree - after.f_bfree) * after.f_frsize >= 8 << 20);
    assert!(after.f_bavail < after.f_bfree && after.f_bfree < after.f_blocks);
    assert_eq!(m.path("f").metadata().unwrap().blocks(), (8 << 20) / 512);
    m.finish();
}

/// Tools that compare times must see that a file changed, whichever way it was written.
#[test]
fn every_write_moves_the_modification_time() {
    for options in ["", "writeback=off", "mode=direct", "mode=concurrent", "mode=concurrent+cache"]
    {
        let Some(m) = Mounted::new(options) else { return };
        let file = File::create(m.path("f")).unwrap();
        let long_ago = std::fs::FileTimes::new().set_modified(std::time::UNIX_EPOCH);
        file.set_times(long_ago).unwrap();
        assert_eq!(file.metadata().unwrap().mtime(), 0);
        file.write_all_at(b"x", 0).unwrap();
        assert_ne!(file.metadata().unwrap().mtime(), 0, "{options}");
        file.sync_all().unwrap();
        drop(file);
        let m = m.again("");
        assert_ne!(m.path("f").metadata().unwrap().mtime(), 0, "{options}");
        m.finish();
    }
}

/// The kernel's own bound for FUSE stops writers at a hundredth of what it allows the machine.
#[test]
fn the_kernel_collects_as_many_dirty_pages_as_the_mount_says() {
    if !needs_root() {
        return;
    }
    for (options, percent) in
        [("", "25"), ("kernel-dirty=60", "60"), ("writeback=off", "1"), ("mode=concurrent", "1")]
    {
        let Some(m) = Mounted::new(options) else { return };
        let device = m.root().metadata().unwrap().dev();
        let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
        let kept = fs::read_to_string(format!("/sys/class/bdi/{major}:{minor}/max_ratio")).unwrap();
        assert_eq!(kept.trim(), percent, "{options}");
        m.finish();
    }
}

#[test]
fn a_read_only_mount_refuses_every_change() {
    let Some(m) = Mounted::new("") else { return };
    fs::write(m.path("f"), b"x").unwrap();
    let m = m.again("ro");
    assert_eq!(fs::read(m.path("f")).unwrap(), b"x");
    for result in [
        fs::write(m.path("f"), b"y"),
        fs::remove_file(m.path("f")),
        fs::create_dir(m.path("d")),
        fs::set_permissions(m.path("f"), Permissions::from_mode(0o777)),
    ] {
        assert_eq!(errno(result), libc::EROFS);
    }
    drop(m);
}

/// Reads through an open with `O_NOATIME` moved the access time all the same.
#[test]
fn an_open_that_keeps_the_access_time_keeps_it() {
    for options in ["", "mode=direct", "mode=concurrent", "mode=concurrent+cache"] {
        let Some(mut m) = Mounted::new(options) else { return };
        fs::write(m.path("f"), [1; 5000]).unwrap();
        File::open(m.path("f"))
            .unwrap()
            .set_times(fs::FileTimes::new().set_accessed(std::time::UNIX_EPOCH))
            .unwrap();
        for (flags, moves) in [(libc::O_NOATIME, false), (0, true)] {
            // After a mount the kernel has no pages, and asks for those that it reads.
            m = m.again(options);
            let file =
                fs::OpenOptions::new().read(true).custom_flags(flags).open(m.path("f")).unwrap();
            file.read_exact_at(&mut [0; 5000], 0).unwrap();
            drop(file);
            m = m.again(options);
            assert_eq!(
                m.path("f").metadata().unwrap().atime() != 0,
                moves,
                "{options}: {flags:#o}"
            );
        }
        m.finish();
    }
}

/// The kernel kept the attributes that it got with the name: `du` showed nothing of a database as
/// long as that was running.
#[test]
fn the_blocks_of_a_file_that_is_being_written_are_shown() {
    for options in ["", "writeback=off"] {
        let Some(m) = Mounted::new(options) else { return };
        let file = File::create(m.path("f")).unwrap();
        assert_eq!(file.metadata().unwrap().blocks(), 0);
        let mut size = 0;
        let shown = |size: u64| {
            // The kernel is told after it has been answered, and asks again a second later at the
            // latest.
            (0..30_000).any(|_| {
                std::thread::sleep(std::time::Duration::from_millis(1));
                m.path("f").metadata().unwrap().blocks() * 512 >= size
            })
        };
        for how in ["syncfs", "fsync", "syncfs", "fsync"] {
            file.write_all_at(&[1; 1 << 20], size).unwrap();
            size += 1 << 20;
            if how == "fsync" || options == "writeback=off" {
                file.sync_all().unwrap();
            } else {
                rustix::fs::syncfs(&file).unwrap();
            }
            assert!(shown(size), "{options}: {size} bytes, {how}");
        }
        drop(file);
        m.finish();
    }
}

/// Once every file told 4 KiB, and programs that go by that asked for every 4 KiB by themselves.
#[test]
fn s_482_the_preferred_size_is_told_of_files_past_the_kernels_caches() {
    let Some(m) = Mounted::new("mode=concurrent,preferred-io=300k") else { return };
    let told = |name: &str| m.path(name).metadata().unwrap().blksize();
    let make = |name: &str| drop(File::create(m.path(name)).unwrap());
    ["f", "cached"].iter().for_each(|name| make(name));
    fs::create_dir(m.path("d")).unwrap();
    assert_eq!(told("f"), 256 << 10, "S-482: the power of two below");
    assert_eq!(u64::from(statx(&m.path("f")).stx_blksize), 256 << 10, "S-482");
    assert_eq!(told("d"), 4096, "S-482: a directory");
    // A mode of its own counts, and at once.
    let set = |name: &str, mode: &str| {
        let flags = rustix::fs::XattrFlags::empty();
        rustix::fs::setxattr(m.path(name), "user.bedplate.mode", mode.as_bytes(), flags).unwrap();
    };
    assert_eq!(told("cached"), 256 << 10);
    set("cached", "cached");
    assert_eq!(told("cached"), 4096, "S-482");
    for mode in ["direct", "concurrent+cache"] {
        set("cached", mode);
        assert_eq!(told("cached"), 256 << 10, "S-482: {mode}");
    }
    let tune = |tunable: Tunable, value: u64| {
        let change = TuneOptions { changes: vec![(tunable, Some(value))], live_only: true };
        done(&m, &Request::Tune(change));
    };
    tune(Tunable::PreferredIo, 1 << 20);
    make("later");
    assert_eq!(told("later"), 1 << 20, "S-482");
    tune(Tunable::PreferredIo, 0);
    make("none");
    assert_eq!(told("none"), 4096, "S-482");
    // A reader that goes by it makes that many reads of the device.
    tune(Tunable::ReadWindow, 0);
    let reads = |name: &str, preferred: u64| {
        tune(Tunable::PreferredIo, preferred);
        fs::write(m.path(name), vec![7; 1 << 20]).unwrap();
        let file = File::open(m.path(name)).unwrap();
        file.sync_all().unwrap();
        let before = m.device.counters().reads;
        let (size, mut at) = (told(name), 0);
        let mut buf = vec![0; size as usize];
        while at < 1 << 20 {
            file.read_exact_at(&mut buf, at).unwrap();
            at += size;
        }
        m.device.counters().reads - before
    };
    let (small, large) = (reads("small", 0), reads("large", 1 << 20));
    assert!(small >= 256 && large <= 8, "S-482: {small} and {large} reads of the device");
    m.finish();
}
