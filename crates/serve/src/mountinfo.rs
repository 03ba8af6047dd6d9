//! The system's list of mounts, read without touching the mounts themselves: a dead one answers
//! nothing.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// One mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MountEntry {
    /// `major:minor` of the device that `stat` reports for what lies below.
    pub(crate) device: String,
    pub(crate) mountpoint: PathBuf,
    pub(crate) fs_type: String,
    /// Options of the mount, as the kernel writes them: `rw,nosuid`.
    pub(crate) flags: String,
    /// Options of the file system, as its driver prints them.
    pub(crate) options: String,
}

impl MountEntry {
    /// Returns the uid that a FUSE file system was mounted by.
    pub(crate) fn owner(&self) -> Option<u32> {
        self.options.split(',').find_map(|option| option.strip_prefix("user_id=")?.parse().ok())
    }
}

/// Returns what is mounted on `mountpoint`, the topmost where there are several.
pub(crate) fn find(mountpoint: &Path) -> std::io::Result<Option<MountEntry>> {
    let text = std::fs::read("/proc/self/mountinfo")?;
    let mut entries = text.split(|byte| *byte == b'\n').filter_map(parse);
    Ok(entries.rfind(|entry| entry.mountpoint == mountpoint))
}

/// Tells whether a process, by its directory below `/proc`, has a mount of the device `major:minor`
/// in its mount namespace.
pub(crate) fn has_device(process: &Path, device: &str) -> bool {
    let Ok(text) = std::fs::read(process.join("mountinfo")) else { return false };
    text.split(|byte| *byte == b'\n').filter_map(parse).any(|entry| entry.device == device)
}

/// Parses a line: `36 35 98:0 root /mnt rw,noatime master:1 - ext3 source rw,errors=continue`.
fn parse(line: &[u8]) -> Option<MountEntry> {
    let mut fields = line.split(|byte| *byte == b' ');
    let text = |field: &[u8]| String::from_utf8_lossy(field).into_owned();
    let device = text(fields.nth(2)?);
    let mountpoint = PathBuf::from(OsString::from_vec(unescape(fields.nth(1)?)));
    let flags = text(fields.next()?);
    let mut rest = fields.skip_while(|field| *field != b"-").skip(1);
    let fs_type = text(rest.next()?);
    let options = text(rest.nth(1)?);
    Some(MountEntry { device, mountpoint, fs_type, flags, options })
}

/// Undoes the kernel's `\040` for a space and the like.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, tail)) = rest.split_first() {
        let code = tail.get(..3).filter(|code| {
            *first == b'\\' && code.iter().all(|digit| (b'0'..=b'7').contains(digit))
        });
        let value = code.and_then(|code| {
            u8::try_from(
                code.iter().fold(0_u32, |value, digit| value * 8 + u32::from(digit - b'0')),
            )
            .ok()
        });
        out.push(value.unwrap_or(*first));
        rest = if value.is_some() { &tail[3..] } else { tail };
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_taken_apart() {
        let line = br"61 28 0:52 / /mnt/my\040data rw,nosuid shared:3 - fuse.bedplate disk.img rw,user_id=1000,group_id=1000";
        let entry = parse(line).unwrap();
        assert_eq!(entry.device, "0:52");
        assert_eq!(entry.mountpoint, Path::new("/mnt/my data"));
        assert_eq!(entry.fs_type, "fuse.bedplate");
        assert_eq!((entry.owner(), entry.flags.as_str()), (Some(1000), "rw,nosuid"));
    }

    #[test]
    fn what_is_no_line_is_none() {
        for line in [&b""[..], b"1 2", b"1 2 0:1 / /mnt rw", b"1 2 0:1 / /mnt rw - ext4"] {
            assert_eq!(parse(line), None);
        }
        assert_eq!(unescape(br"a\04"), br"a\04");
        assert_eq!(unescape(br"\777"), br"\777");
    }

    #[test]
    fn this_machine_has_a_root() {
        let root = find(Path::new("/")).unwrap().unwrap();
        assert!(has_device(Path::new("/proc/self"), &root.device));
        assert!(!has_device(Path::new("/proc/self"), "4095:1"));
    }
}
