//! The options of a directory that is mounted beside its volume: its mode, and the flags that the
//! kernel keeps of each mount. All others are of the volume, which is mounted with its own.

use bedplate_fs::IoMode;

use super::options::{is_mount_option, unknown_mount_option};
use super::remount::is_remount_flag;
use crate::{Error, ErrorKind, Result};

/// What was asked for.
#[derive(Debug, Default)]
pub(super) struct PartOptions {
    pub(super) mode: Option<IoMode>,
    /// Flags of the kernel, in the order in which they were given.
    pub(super) flags: Vec<String>,
    pub(super) nonempty: bool,
}

impl PartOptions {
    /// Reads options separated by commas; of two that contradict each other the later one counts.
    pub(super) fn parse(text: &str, volume: &str) -> Result<Self> {
        let mut options = Self::default();
        for option in text.split(',').map(str::trim).filter(|option| !option.is_empty()) {
            let refuse = |why: String| {
                Err(Error::new(ErrorKind::Option, format!("mount option '{option}': {why}")))
            };
            match option.split_once('=').unwrap_or((option, "")) {
                ("mode", mode) => match mode.parse() {
                    Ok(mode) => options.mode = Some(mode),
                    Err(why) => return refuse(why),
                },
                ("nonempty", _) => options.nonempty = true,
                ("defaults", _) => {}
                _ if is_remount_flag(option) => options.flags.push(option.to_owned()),
                (name, _) if is_mount_option(name) => {
                    return refuse(format!(
                        "it is one of the whole volume, and {volume} is mounted with its own; a \
                         directory that is mounted beside it takes mode=, ro, nosuid, nodev, noexec \
                         and nonempty"
                    ));
                }
                _ => return Err(unknown_mount_option(option, &[])),
            }
        }
        Ok(options)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s_512_what_is_of_the_volume_is_refused_with_its_reason() {
        let options =
            PartOptions::parse("mode=direct,ro, nosuid,defaults,mode=cached", "v").unwrap();
        assert_eq!(options.mode, Some(IoMode::Cached));
        assert_eq!(options.flags, ["ro", "nosuid"]);
        for option in ["cache=1g", "lease=owner", "threads=4", "allow_other", "noatime", "fsname=x"]
        {
            let refused = PartOptions::parse(option, "disk.img").unwrap_err();
            assert_eq!(refused.kind, ErrorKind::Option);
            let said = refused.message;
            assert!(said.contains("disk.img is mounted with its own"), "S-512: {said}");
        }
        let refused = PartOptions::parse("frobnicate", "v").unwrap_err();
        assert!(refused.message.contains("unknown"), "S-512: {}", refused.message);
        assert!(PartOptions::parse("mode=fast", "v").unwrap_err().message.contains("use cached"));
    }
}
