//! The mounts that this process sees, as `/proc/self/mountinfo` lists them.

use std::fs;
use std::path::Path;

use super::probe::DeviceNo;

/// A mounted file system.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Mount {
    pub device: DeviceNo,
    pub dir: String,
    pub kind: String,
    pub source: String,
}

/// Lists the mounts, in the order in which they were made; none where that cannot be read.
pub(super) fn mounts() -> Vec<Mount> {
    parse(&fs::read_to_string("/proc/self/mountinfo").unwrap_or_default())
}

pub(super) fn parse(text: &str) -> Vec<Mount> {
    text.lines().filter_map(parse_line).collect()
}

fn parse_line(line: &str) -> Option<Mount> {
    let (left, right) = line.split_once(" - ")?;
    let mut fields = left.split(' ').skip(2);
    let (device, _root, dir) = (DeviceNo::parse(fields.next()?)?, fields.next()?, fields.next()?);
    let mut fields = right.split(' ');
    let (kind, source) = (fields.next()?, fields.next()?);
    Some(Mount { device, dir: unescape(dir), kind: kind.to_owned(), source: unescape(source) })
}

/// Turns the octal escapes of mountinfo back into characters.
fn unescape(text: &str) -> String {
    [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")]
        .iter()
        .fold(text.to_owned(), |text, (from, to)| text.replace(from, to))
}

/// Finds the mount that an absolute path lies on, by its name alone: no file system is asked.
pub(super) fn mount_of<'a>(mounts: &'a [Mount], path: &Path) -> Option<&'a Mount> {
    let holds = mounts.iter().filter(|mount| path.starts_with(&mount.dir));
    // Of several on one directory the last hides the others, and `max_by_key` returns the last of
    // equals.
    holds.max_by_key(|mount| Path::new(&mount.dir).components().count())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_lies_on_the_innermost_and_last_mount_that_holds_it() {
        let text = "27 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n\
            40 27 0:42 / /data\\040here rw shared:1 - btrfs /dev/vdb rw,space_cache\n\
            41 27 0:43 / /data\\040here rw shared:1 - fuse.bedplate /srv/an\\040image rw\n\
            broken line\n";
        let mounts = parse(text);
        let find = |path: &str| {
            mount_of(&mounts, Path::new(path))
                .map(|mount| (mount.kind.as_str(), mount.source.as_str()))
        };
        assert_eq!(find("/data here/v.img"), Some(("fuse.bedplate", "/srv/an image")));
        assert_eq!(find("/data hereafter/v.img"), Some(("ext4", "/dev/vda")));
        assert_eq!((mounts.len(), find("v.img")), (3, None));
    }
}
