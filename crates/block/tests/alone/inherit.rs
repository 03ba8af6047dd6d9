//! What a program that this process starts inherits.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::process::Command;

use bedplate_block::close_descriptors_on_exec;

use crate::alone;

#[test]
fn a_descriptor_open_for_inheritance_is_not_inherited_and_still_works() {
    let _alone = alone();
    let file = File::open("/proc/self/stat").unwrap();
    rustix::io::fcntl_setfd(&file, rustix::io::FdFlags::empty()).unwrap();
    let inherited = || {
        Command::new("test")
            .args(["-e", &format!("/proc/self/fd/{}", file.as_raw_fd())])
            .status()
            .unwrap()
            .success()
    };
    assert!(inherited());
    close_descriptors_on_exec().unwrap();
    assert!(!inherited());
    file.metadata().unwrap();
}
