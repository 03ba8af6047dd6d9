//! Which opens exclude each other, and what a refusal says.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use bedplate_block::{AlignedBuf, DeviceOptions, Error, ErrorKind, create_image, open};

use crate::alone;
use crate::image::Image;
use crate::machine::{Loop, Mount, run};

const SIZE: u64 = 4 << 20;

fn refusal(path: &Path, options: &DeviceOptions) -> Error {
    open(path, options).map(|device| panic!("{} was opened", device.name())).unwrap_err()
}

fn read_only() -> DeviceOptions {
    DeviceOptions { read_only: true, ..DeviceOptions::default() }
}

fn unclaimed() -> DeviceOptions {
    DeviceOptions { exclusive: false, ..DeviceOptions::default() }
}

/// Not a test of its own: the other process of the tests below, which start it with a path.
#[test]
fn helper_holds_a_device() {
    let Ok(path) = std::env::var("BEDPLATE_TEST_HOLD") else { return };
    match open(path, &DeviceOptions::default()) {
        Ok(device) => {
            println!("holding {}", device.name());
            std::thread::sleep(std::time::Duration::from_secs(60));
        }
        Err(error) => println!("refused {error}"),
    }
}

/// The other process, which ends with this value.
struct Holder(Child);

impl Drop for Holder {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// Starts a process that opens a device, and returns what it says of that.
fn open_elsewhere(path: &Path, user: Option<u32>) -> Option<(Holder, String)> {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "claims::helper_holds_a_device", "--nocapture"])
        .env("BEDPLATE_TEST_HOLD", path)
        .stdout(Stdio::piped());
    if let Some(user) = user {
        command.uid(user).gid(user);
    }
    let mut holder = Holder(command.spawn().ok()?);
    let mut lines = BufReader::new(holder.0.stdout.take().unwrap()).lines().map_while(Result::ok);
    // The harness leaves its own words before those of the test.
    let said = lines.find_map(|line| {
        ["holding ", "refused "].iter().find_map(|word| Some(line[line.find(word)?..].to_owned()))
    });
    Some((holder, said.unwrap()))
}

/// Starts a process that holds a device, and returns once it does.
fn hold(path: &Path) -> Holder {
    let (holder, said) = open_elsewhere(path, None).unwrap();
    assert!(said.starts_with("holding"), "{said}");
    holder
}

/// An ordinary user may not open loop devices, and meets the one that uses the image's loop device
/// in the lock on the image.
#[test]
fn s_40_an_image_and_its_loop_device_are_one_for_an_ordinary_user_too() {
    let _alone = alone();
    let image = Image::new(SIZE);
    let Some(disk) = Loop::attach(&image.path) else { return };
    for (path, mode) in [(image.path.parent().unwrap(), 0o755), (&image.path, 0o666)] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    }
    const NOBODY: u32 = 65534;
    let Some((holder, said)) = open_elsewhere(&image.path, Some(NOBODY)) else {
        return println!("skipped: an ordinary user cannot start this program");
    };
    assert!(said.starts_with("holding"), "{said}");
    let error = refusal(&disk.path, &DeviceOptions::default());
    assert!(
        error.kind == ErrorKind::Busy
            && error.detail.contains(&format!("process {}", holder.0.id())),
        "{error}"
    );
    drop(holder);
    let device = open(&disk.path, &DeviceOptions::default()).unwrap();
    let (_holder, said) = open_elsewhere(&image.path, Some(NOBODY)).unwrap();
    assert!(said.starts_with("refused") && said.contains("in use"), "{said}");
    drop(device);
}

fn another_process_keeps_us_out_until_it_dies(path: &Path) {
    let holder = hold(path);
    let error = refusal(path, &DeviceOptions::default());
    assert_eq!(error.kind, ErrorKind::Busy);
    assert!(error.detail.contains(&format!("process {}", holder.0.id())), "{error}");
    assert_eq!(refusal(path, &read_only()).kind, ErrorKind::Busy);
    open(path, &unclaimed()).unwrap();
    drop(holder);
    open(path, &DeviceOptions::default()).unwrap();
}

#[test]
fn an_image_has_one_writer_and_it_is_named_to_the_next() {
    let _alone = alone();
    let image = Image::new(SIZE);
    another_process_keeps_us_out_until_it_dies(&image.path);
}

#[test]
fn a_block_device_has_one_writer_and_it_is_named_to_the_next() {
    let _alone = alone();
    let image = Image::new(SIZE);
    let Some(disk) = Loop::attach(&image.path) else { return };
    another_process_keeps_us_out_until_it_dies(&disk.path);
}

fn claims_hold_within_a_process(path: &Path) {
    let writer = open(path, &DeviceOptions::default()).unwrap();
    let error = refusal(path, &DeviceOptions::default());
    assert!(error.kind == ErrorKind::Busy && error.detail.contains("this very process"), "{error}");
    drop(writer);
    let (one, two) = (open(path, &read_only()).unwrap(), open(path, &read_only()).unwrap());
    assert_eq!(refusal(path, &DeviceOptions::default()).kind, ErrorKind::Busy);
    drop((one, two));
    // Not even a queue that was used leaves its claim behind.
    for _ in 0..20 {
        let device = open(path, &DeviceOptions::default()).unwrap();
        let mut queue = device
            .queue(&bedplate_block::QueueOptions { buffers: 2, buffer_bytes: 4096, depth_max: 4 })
            .unwrap();
        let first = bedplate_block::Segment { offset: 0, len: 4096 };
        let (kind, buf) = (bedplate_block::RequestKind::Read, queue.take_buffer());
        queue
            .push(bedplate_block::Request { token: 0, kind, buf, first, rest: Vec::new() })
            .unwrap();
        assert_eq!(queue.complete(1, &mut Vec::new()).unwrap(), 1);
    }
}

#[test]
fn an_image_has_one_writer_or_many_readers() {
    let _alone = alone();
    let image = Image::new(SIZE);
    claims_hold_within_a_process(&image.path);
}

#[test]
fn a_block_device_has_one_writer_or_many_readers() {
    let _alone = alone();
    let image = Image::new(SIZE);
    let Some(disk) = Loop::attach(&image.path) else { return };
    claims_hold_within_a_process(&disk.path);
}

#[test]
fn a_mounted_device_is_refused_with_its_mount_point_and_so_is_its_image() {
    let _alone = alone();
    let image = Image::new(64 << 20);
    let Some(disk) = Loop::attach(&image.path) else { return };
    // Attached and idle is no obstacle.
    drop(open(&image.path, &DeviceOptions::default()).unwrap());
    let disk_path = disk.path.to_str().unwrap();
    if run("mkfs.ext4", &["-q", disk_path]).is_none() {
        return;
    }
    let mount = Mount::new("ext4", "rw", disk_path).unwrap();
    for (path, options) in [
        (&disk.path, DeviceOptions::default()),
        (&disk.path, read_only()),
        (&image.path, DeviceOptions::default()),
    ] {
        let error = refusal(path, &options);
        assert_eq!(error.kind, ErrorKind::Busy);
        assert!(error.detail.contains(mount.path().to_str().unwrap()), "{error}");
    }
    assert!(refusal(&image.path, &DeviceOptions::default()).detail.contains(disk_path));
}

#[test]
fn an_image_whose_loop_device_is_in_use_is_refused() {
    let _alone = alone();
    let image = Image::new(SIZE);
    let Some(disk) = Loop::attach(&image.path) else { return };
    let holder = open(&disk.path, &DeviceOptions::default()).unwrap();
    let error = refusal(&image.path, &DeviceOptions::default());
    assert!(
        error.kind == ErrorKind::Busy && error.detail.contains(disk.path.to_str().unwrap()),
        "{error}"
    );
    drop(holder);
    drop(open(&image.path, &DeviceOptions::default()).unwrap());
}

#[test]
fn what_is_no_device_is_refused_in_one_sentence() {
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let error = refusal(&dir.path().join("nothing"), &DeviceOptions::default());
    assert!(
        error.kind == ErrorKind::NotFound
            && error.to_string().ends_with("nothing: open: there is no such file or device"),
        "{error}"
    );
    let error = refusal(dir.path(), &DeviceOptions::default());
    assert!(error.kind == ErrorKind::Unsupported && error.detail.contains("directory"), "{error}");
    assert_eq!(
        refusal(Path::new("/dev/null"), &DeviceOptions::default()).kind,
        ErrorKind::Unsupported
    );
}

#[test]
fn a_read_only_device_reads_and_refuses_writes() {
    let _alone = alone();
    let image = Image::new(SIZE);
    let device = open(&image.path, &read_only()).unwrap();
    assert!(device.geometry().read_only);
    let mut buf = AlignedBuf::zeroed(4096);
    device.read_at(&mut buf, 0).unwrap();
    assert_eq!(device.write_at(&buf, 0).unwrap_err().kind, ErrorKind::ReadOnly);
    assert_eq!(device.write_zeroes(0, 4096).unwrap_err().kind, ErrorKind::ReadOnly);
    assert_eq!(device.discard(0, 4096).unwrap_err().kind, ErrorKind::ReadOnly);
    device.flush().unwrap();
    drop(device);
    let Some(disk) = Loop::attach_read_only(&image.path) else { return };
    let error = refusal(&disk.path, &DeviceOptions::default());
    assert!(error.kind == ErrorKind::ReadOnly && error.detail.contains("read-only"), "{error}");
    open(&disk.path, &read_only()).unwrap();
}

#[test]
fn an_image_is_made_once_and_whole_or_not_at_all() {
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    assert_eq!(create_image(&path, 1000, false).unwrap_err().kind, ErrorKind::Unaligned);
    assert_eq!(create_image(&path, 0, false).unwrap_err().kind, ErrorKind::Unaligned);
    create_image(&path, 1 << 40, false).unwrap();
    assert_eq!(open(&path, &DeviceOptions::default()).unwrap().size_bytes(), 1 << 40);
    let error = create_image(&path, SIZE, false).unwrap_err();
    assert!(error.detail.contains("exists"), "{error}");
    let reserved = dir.path().join("reserved");
    create_image(&reserved, SIZE, true).unwrap();
    assert!(std::os::unix::fs::MetadataExt::blocks(&reserved.metadata().unwrap()) * 512 >= SIZE);
    assert_eq!(
        create_image(dir.path().join("no/such/dir"), SIZE, false).unwrap_err().kind,
        ErrorKind::NotFound
    );
}

#[test]
fn a_full_host_file_system_is_no_space_and_leaves_nothing_behind() {
    let _alone = alone();
    let Some(mount) = Mount::new("tmpfs", "size=1m", "none") else { return };
    let path = mount.path().join("image");
    assert_eq!(create_image(&path, SIZE, true).unwrap_err().kind, ErrorKind::NoSpace);
    assert!(!path.exists());
    create_image(&path, SIZE, false).unwrap();
    let device = open(&path, &DeviceOptions::default()).unwrap();
    let error = device.write_at(&AlignedBuf::zeroed(2 << 20), 0).unwrap_err();
    assert!(error.kind == ErrorKind::NoSpace && error.errno == Some(libc::ENOSPC), "{error}");
    device.write_at(&AlignedBuf::zeroed(4096), 0).unwrap();
}

#[test]
fn a_device_that_grows_says_so_when_asked_and_one_cut_short_fails_cleanly() {
    let _alone = alone();
    let image = Image::new(SIZE);
    let device = open(&image.path, &DeviceOptions::default()).unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(&image.path).unwrap();
    file.set_len(2 * SIZE + 100).unwrap();
    let mut buf = AlignedBuf::zeroed(4096);
    assert_eq!(device.read_at(&mut buf, SIZE).unwrap_err().kind, ErrorKind::OutOfRange);
    assert_eq!(device.refresh_size().unwrap(), 2 * SIZE);
    device.read_at(&mut buf, SIZE).unwrap();
    file.set_len(SIZE).unwrap();
    for error in [device.read_at(&mut buf, SIZE).unwrap_err(), queued_read_error(&*device, SIZE)] {
        assert!(error.kind == ErrorKind::Io && error.detail.contains("cut short"), "{error}");
    }
    // A write behind the new end succeeds, because a file grows with it; a flush tells all the
    // same.
    device.write_at(&buf, SIZE + 8192).unwrap();
    for error in [device.flush().unwrap_err(), queued_flush_error(&*device)] {
        assert!(error.kind == ErrorKind::Io && error.detail.contains("cut short"), "{error}");
    }
    file.set_len(SIZE).unwrap();
    // Half of it is there.
    let mut buf = AlignedBuf::zeroed(8192);
    assert_eq!(device.read_at(&mut buf, SIZE - 4096).unwrap_err().offset, Some(SIZE));
}

fn queued_flush_error(device: &dyn bedplate_block::BlockDevice) -> Error {
    let mut queue = device.queue(&bedplate_block::QueueOptions::default()).unwrap();
    let first = bedplate_block::Segment { offset: 0, len: 0 };
    queue
        .push(bedplate_block::Request {
            token: 0,
            kind: bedplate_block::RequestKind::Flush,
            buf: None,
            first,
            rest: Vec::new(),
        })
        .unwrap();
    let mut out = Vec::new();
    queue.complete(1, &mut out).unwrap();
    out.pop().unwrap().result.unwrap_err()
}

fn queued_read_error(device: &dyn bedplate_block::BlockDevice, offset: u64) -> Error {
    let mut queue = device.queue(&bedplate_block::QueueOptions::default()).unwrap();
    let first = bedplate_block::Segment { offset: offset - 4096, len: 8192 };
    let buf = Some(AlignedBuf::zeroed(8192));
    queue
        .push(bedplate_block::Request {
            token: 0,
            kind: bedplate_block::RequestKind::Read,
            buf,
            first,
            rest: Vec::new(),
        })
        .unwrap();
    let mut out = Vec::new();
    queue.complete(1, &mut out).unwrap();
    out.pop().unwrap().result.unwrap_err()
}
