//! Extended attributes, and the virtual ones through which a file's mode is seen and set.

use std::fs::{self, File};
use std::path::Path;

use rustix::fs::{XattrFlags, getxattr, getxattr_query, listxattr, removexattr, setxattr};
use rustix::io::Errno;

use crate::harness::{Mounted, needs_root};

fn get(path: &Path, name: &str) -> Result<String, Errno> {
    let mut buf = vec![0; 1 << 16];
    let len = getxattr(path, name, &mut buf)?;
    Ok(String::from_utf8_lossy(&buf[..len]).into_owned())
}

fn set(path: &Path, name: &str, value: &str) -> Result<(), Errno> {
    setxattr(path, name, value.as_bytes(), XattrFlags::empty())
}

fn list(path: &Path) -> Vec<String> {
    let mut buf = vec![0; 1 << 16];
    let len = listxattr(path, &mut buf).unwrap();
    buf[..len]
        .split(|byte| *byte == 0)
        .filter(|name| !name.is_empty())
        .map(|name| String::from_utf8_lossy(name).into_owned())
        .collect()
}

#[test]
fn attributes_are_set_read_listed_and_removed() {
    let Some(m) = Mounted::new("") else { return };
    let path = m.path("f");
    File::create(&path).unwrap();
    assert_eq!(get(&path, "user.a"), Err(Errno::NODATA));
    set(&path, "user.a", "1").unwrap();
    set(&path, "user.b", "").unwrap();
    assert_eq!(setxattr(&path, "user.a", b"2", XattrFlags::CREATE), Err(Errno::EXIST));
    assert_eq!(setxattr(&path, "user.c", b"2", XattrFlags::REPLACE), Err(Errno::NODATA));
    setxattr(&path, "user.a", b"22", XattrFlags::REPLACE).unwrap();
    assert_eq!(getxattr(&path, "user.a", &mut [0; 1]), Err(Errno::RANGE));
    assert_eq!(getxattr_query(&path, "user.a"), Ok(2));
    let large = "v".repeat(60_000);
    set(&path, "user.large", &large).unwrap();
    let m = m.again("");
    let path = m.path("f");
    assert_eq!(get(&path, "user.a").unwrap(), "22");
    assert_eq!(get(&path, "user.large").unwrap(), large);
    let mut names = list(&path);
    names.sort();
    assert_eq!(names, ["user.a", "user.b", "user.large"]);
    removexattr(&path, "user.a").unwrap();
    assert_eq!(removexattr(&path, "user.a"), Err(Errno::NODATA));
    if needs_root() {
        set(&path, "trusted.t", "1").unwrap();
        assert_eq!(get(&path, "trusted.t").unwrap(), "1");
    }
    // Version 2: the owner, user 1000, the group, the mask, others.
    let entries = [
        (1_u16, 6_u16, u32::MAX),
        (2, 4, 1000),
        (4, 4, u32::MAX),
        (16, 4, u32::MAX),
        (32, 4, u32::MAX),
    ];
    let mut acl = 2_u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        acl.extend([tag.to_le_bytes(), permissions.to_le_bytes()].concat());
        acl.extend(id.to_le_bytes());
    }
    assert_eq!(
        setxattr(&path, "system.posix_acl_access", &acl, XattrFlags::empty()),
        Err(Errno::OPNOTSUPP)
    );
    m.finish();
}

#[test]
fn the_io_mode_is_an_attribute() {
    let Some(m) = Mounted::new("") else { return };
    let path = m.path("f");
    fs::write(&path, b"x").unwrap();
    assert_eq!(get(&path, "user.bedplate.mode"), Err(Errno::NODATA));
    assert_eq!(get(&path, "user.bedplate.effective_mode").unwrap(), "cached");
    set(&path, "user.bedplate.mode", "concurrent").unwrap();
    assert_eq!(get(&path, "user.bedplate.mode").unwrap(), "concurrent");
    assert_eq!(get(&path, "user.bedplate.effective_mode").unwrap(), "concurrent");
    assert_eq!(set(&path, "user.bedplate.mode", "fast"), Err(Errno::INVAL));
    let m = m.again("");
    let path = m.path("f");
    assert_eq!(get(&path, "user.bedplate.mode").unwrap(), "concurrent");
    removexattr(&path, "user.bedplate.mode").unwrap();
    assert_eq!(removexattr(&path, "user.bedplate.mode"), Err(Errno::NODATA));
    assert_eq!(get(&path, "user.bedplate.mode"), Err(Errno::NODATA));
    set(&path, "user.bedplate.mode", "direct").unwrap();
    set(&path, "user.bedplate.mode", "").unwrap();
    assert_eq!(get(&path, "user.bedplate.mode"), Err(Errno::NODATA));
    assert_eq!(list(&path), Vec::<String>::new());
    m.finish();
}

#[test]
fn counters_extents_and_the_volume_tell_of_themselves() {
    let Some(m) = Mounted::new("mode=direct") else { return };
    let path = m.path("f");
    fs::write(&path, vec![1; 1 << 20]).unwrap();
    let extents = get(&path, "user.bedplate.extents").unwrap();
    assert!(extents.starts_with("[{") && extents.contains("\"file_offset\":0"), "{extents}");
    let counters = get(&path, "user.bedplate.counters").unwrap();
    assert!(counters.contains("\"writes\":"), "{counters}");
    let info = get(m.root(), "user.bedplate.info").unwrap();
    assert!(info.contains("\"uuid\"") && info.contains("\"mode\":\"direct\""), "{info}");
    assert_eq!(get(&path, "user.bedplate.info"), Err(Errno::NODATA));
    assert_eq!(get(m.root(), "user.bedplate.counters"), Err(Errno::NODATA));
    assert_eq!(get(&path, "user.bedplate.other"), Err(Errno::NODATA));
    assert_eq!(set(&path, "user.bedplate.counters", "0"), Err(Errno::OPNOTSUPP));
    assert_eq!(removexattr(&path, "user.bedplate.counters"), Err(Errno::OPNOTSUPP));
    m.finish();
}

/// S-181: what concerns more than one file is asked over the socket; of the attributes of the root
/// what `info` tells is left, and can only be read.
#[test]
fn s_181_attributes_of_the_root_change_nothing() {
    let Some(m) = Mounted::new("") else { return };
    assert_eq!(get(m.root(), "user.bedplate.pid").unwrap(), std::process::id().to_string());
    for name in ["request.7", "grow", "reset", "info", "pid"] {
        assert!(set(m.root(), &format!("user.bedplate.{name}"), "1").is_err(), "S-181: {name}");
    }
    for name in ["request.7@0", "checkpoints.0", "held", "schedules", "activities.0", "mover"] {
        assert_eq!(
            get(m.root(), &format!("user.bedplate.{name}")),
            Err(Errno::NODATA),
            "S-181: {name}"
        );
    }
    m.finish();
}
