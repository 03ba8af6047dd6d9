//! Extended attributes, and the virtual ones below `user.bedplate.` through which any program sees
//! and sets how a file is served.
//!
//! They concern single files, so the permissions of the file decide. What concerns the file system
//! goes through the socket of the mount ([`control`](crate::control)); `info` and `pid` are for
//! programs that do not reach that, in another container for example.
//!
//! | name | on | read | write |
//! | --- | --- | --- | --- |
//! | `mode` | files, directories | the I/O mode set on it | sets it, also while open; removing or an empty value lets it fall back |
//! | `integrity` | files, directories | `on` where what is written gets checksums | `on`; removing it ends that |
//! | `summed_bytes` | files | how many bytes have checksums | – |
//! | `untorn` | files, directories | bytes that are written untorn, and `device` or `redirect` | a size; removing it ends that |
//! | `extsize` | files, directories | how many bytes are wanted in one run of the volume | a size; removing it ends that |
//! | `release_behind` | files, directories | which pages leave the caches behind a sequential read or write | `off`, `read`, `write` or `both`; removing it lets it fall back |
//! | `effective_mode` | files | the mode it is served in now | no |
//! | `counters` | files | its counters, JSON | no |
//! | `extents` | files | its extent map, JSON; one of more than 64 KiB is refused | no |
//! | `extent_count` | files | in how many extents it lies | no |
//! | `extents.OFFSET` | files | its extents from that offset on, as many as fit, JSON | no |
//! | `activity` | files | its counters and latencies, JSON | no |
//! | `opens` | files | the processes that have it open, and how each open is served, JSON | no |
//! | `trial_mode` | files | the mode it is on trial in, whatever is set | begins a trial (`XATTR_CREATE`) or lets it go on (`XATTR_REPLACE`) for ten seconds: a mode and the holder's number; removing it ends it |
//! | `trial` | files | what became of the last trial of another mode, JSON | stores it |
//! | `reset` | files | no | any value: counters and latencies start from zero |
//! | `info` | the root, and directories that are mounted | what the file system tells of itself, JSON | no |
//! | `pid` | the root, and directories that are mounted | the process that serves the mount | no |

use std::sync::Arc;
use std::time::Duration;

use bedplate_fs::{
    AclKind, ErrorKind, FileKind, InodeNo, IoMode, OpenOptions, ReleaseBehind, SetGroupId,
};

use super::errno::{Answer, Errno};
use super::open_files::OpenFile;
use super::privileges::CAPABILITY;
use super::shared::Shared;

const PREFIX: &[u8] = b"user.bedplate.";
/// The one that is stored under its own name.
const TRIAL: &[u8] = b"user.bedplate.trial";
const TRIAL_BYTES_MAX: usize = 8 << 10;
/// How long a file stays in a mode on trial without a renewal.
const TRIAL_TIME: Duration = Duration::from_secs(10);
/// Extents that fit into one value of 64 KiB: each takes at most 140 bytes.
const EXTENTS_MAX: usize = 460;

/// Those that mean something to the kernel: of these there are access control lists alone, where
/// they count.
const SYSTEM: &[u8] = b"system.";

impl Shared {
    /// Without extended attributes the first request of each kind is answered so that the kernel
    /// refuses all others by itself.
    fn need_attributes(&self) -> Answer<()> {
        if self.settings.extended_attributes { Ok(()) } else { Err(Errno::NOSYS) }
    }

    /// Returns the access control list that an attribute is.
    fn acl_named(&self, name: &[u8]) -> Answer<Option<AclKind>> {
        if !name.starts_with(SYSTEM) {
            return Ok(None);
        }
        let kind = AclKind::of_name(name).filter(|_| self.acls);
        kind.map(Some).ok_or(Errno::OPNOTSUPP)
    }

    pub(super) fn getxattr(&self, ino: InodeNo, name: &[u8]) -> Answer<Vec<u8>> {
        self.need_attributes()?;
        self.acl_named(name)?;
        match name.strip_prefix(PREFIX) {
            Some(name) => self.virtual_value(ino, name),
            None => Ok(self.fs.get_xattr(ino, name)?),
        }
    }

    pub(super) fn setxattr(
        &self,
        ino: InodeNo,
        name: &[u8],
        value: &[u8],
        flags: i32,
        kills_set_gid: bool,
    ) -> Answer<()> {
        self.need_attributes()?;
        if let Some(kind) = self.acl_named(name)? {
            // The kernel has checked that the caller owns the file, and the list.
            let set_gid = if kills_set_gid { SetGroupId::Clear } else { SetGroupId::Keep };
            return Ok(self.fs.set_acl(ino, kind, value, set_gid)?);
        }
        if let Some(name) = name.strip_prefix(PREFIX) {
            return match name {
                b"mode" => self.set_mode(ino, value),
                b"untorn" => self.set_untorn(ino, value),
                b"integrity" if value.trim_ascii_end() == b"on" => {
                    Ok(self.fs.set_integrity(ino, true)?)
                }
                b"integrity" => Err(Errno::INVAL),
                b"extsize" => self.set_extent_size(ino, value),
                b"release_behind" => self.set_release_behind(ino, value),
                b"trial_mode" => self.set_trial_mode(ino, value, flags),
                b"trial" => self.set_trial(ino, value),
                b"reset" => {
                    self.need_file(ino)?;
                    Ok(self.fs.reset_statistics(Some(ino))?)
                }
                _ => Err(Errno::OPNOTSUPP),
            };
        }
        let (create, replace) = (flags & libc::XATTR_CREATE != 0, flags & libc::XATTR_REPLACE != 0);
        self.fs.set_xattr(ino, name, value, create, replace)?;
        if name == CAPABILITY {
            self.privileges.granted();
        }
        Ok(())
    }

    pub(super) fn removexattr(&self, ino: InodeNo, name: &[u8]) -> Answer<()> {
        self.need_attributes()?;
        if self.acl_named(name)?.is_some() {
            // One that is missing is no error, as on other local file systems.
            return match self.fs.remove_xattr(ino, name) {
                Err(error) if error.kind == ErrorKind::NoAttribute => Ok(()),
                removed => Ok(removed?),
            };
        }
        match name.strip_prefix(PREFIX) {
            Some(b"mode") if self.fs.attr(ino)?.io_mode.is_none() => Err(Errno::NODATA),
            Some(b"mode") => Ok(self.fs.set_io_mode(ino, None)?),
            Some(b"trial_mode") => self.fs.end_trial(ino)?.then_some(()).ok_or(Errno::NODATA),
            Some(b"untorn") if self.fs.untorn(ino)?.is_none() => Err(Errno::NODATA),
            Some(b"untorn") => Ok(self.fs.set_untorn(ino, None)?),
            Some(b"integrity") if !self.fs.integrity(ino)? => Err(Errno::NODATA),
            Some(b"integrity") => Ok(self.fs.set_integrity(ino, false)?),
            Some(b"extsize") if self.fs.extent_size(ino)?.is_none() => Err(Errno::NODATA),
            Some(b"extsize") => Ok(self.fs.set_extent_size(ino, None)?),
            Some(b"release_behind") if self.fs.release_behind(ino)?.is_none() => Err(Errno::NODATA),
            Some(b"release_behind") => Ok(self.fs.set_release_behind(ino, None)?),
            Some(_) => Err(Errno::OPNOTSUPP),
            None => Ok(self.fs.remove_xattr(ino, name)?),
        }
    }

    /// Returns the names, each ended by a zero byte, without the virtual ones: tools that copy
    /// attributes must not copy those.
    pub(super) fn listxattr(&self, ino: InodeNo) -> Answer<Vec<u8>> {
        self.need_attributes()?;
        let mut list = Vec::new();
        let is_shown =
            |name: &Vec<u8>| !name.starts_with(PREFIX) && (self.acls || !name.starts_with(SYSTEM));
        for name in self.fs.list_xattr(ino)?.into_iter().filter(is_shown) {
            list.extend_from_slice(&name);
            list.push(0);
        }
        Ok(list)
    }

    fn virtual_value(&self, ino: InodeNo, name: &[u8]) -> Answer<Vec<u8>> {
        if let Some(from) = name.strip_prefix(b"extents.") {
            let from: u64 =
                str::from_utf8(from).ok().and_then(|text| text.parse().ok()).ok_or(Errno::INVAL)?;
            return json(&self.some_open(ino)?.extents_from(from, EXTENTS_MAX)?);
        }
        match name {
            b"mode" => Ok(self.fs.attr(ino)?.io_mode.ok_or(Errno::NODATA)?.name().into()),
            b"untorn" => {
                let untorn = self.fs.untorn(ino)?.ok_or(Errno::NODATA)?;
                Ok(format!(
                    "{} {}",
                    untorn.bytes,
                    if untorn.by_device { "device" } else { "redirect" }
                )
                .into())
            }
            b"integrity" if self.fs.integrity(ino)? => Ok(b"on".to_vec()),
            b"summed_bytes" => {
                self.need_file(ino)?;
                Ok(self.fs.summed_bytes(ino)?.to_string().into())
            }
            b"extsize" => Ok(self.fs.extent_size(ino)?.ok_or(Errno::NODATA)?.to_string().into()),
            b"release_behind" => {
                Ok(self.fs.release_behind(ino)?.ok_or(Errno::NODATA)?.name().into())
            }
            b"effective_mode" => Ok(self.some_open(ino)?.effective_mode().name().into()),
            b"counters" => json(&self.some_open(ino)?.counters()),
            b"trial_mode" => Ok(self.fs.trial_mode(ino).ok_or(Errno::NODATA)?.name().into()),
            b"trial" => Ok(self.fs.get_xattr(ino, TRIAL)?),
            b"activity" => {
                self.need_file(ino)?;
                json(&self.fs.activity(ino)?)
            }
            b"opens" => {
                self.need_file(ino)?;
                json(&self.opens_of(ino))
            }
            b"extent_count" => json(&self.some_open(ino)?.extent_count()?),
            b"extents" => json(&self.some_open(ino)?.extents()?),
            b"info" if self.is_shown_as_root(ino) => json(&self.fs.info()),
            b"pid" if self.is_shown_as_root(ino) => Ok(std::process::id().to_string().into_bytes()),
            _ => Err(Errno::NODATA),
        }
    }

    /// Stores the result of a trial, as an attribute like others; the kernel has checked that the
    /// caller may write the file.
    fn set_trial(&self, ino: InodeNo, value: &[u8]) -> Answer<()> {
        self.need_file(ino)?;
        let is_document = value.len() <= TRIAL_BYTES_MAX
            && serde_json::from_slice::<serde_json::Map<String, serde_json::Value>>(value).is_ok();
        if is_document {
            Ok(self.fs.set_xattr(ino, TRIAL, value, false, false)?)
        } else {
            Err(Errno::INVAL)
        }
    }

    fn set_mode(&self, ino: InodeNo, value: &[u8]) -> Answer<()> {
        let text = str::from_utf8(value).map_err(|_| Errno::INVAL)?.trim_end_matches(['\0', '\n']);
        let mode = if text.is_empty() {
            None
        } else {
            Some(text.parse::<IoMode>().map_err(|_| Errno::INVAL)?)
        };
        Ok(self.fs.set_io_mode(ino, mode)?)
    }

    /// Begins a trial of a mode, or lets one go on.
    fn set_trial_mode(&self, ino: InodeNo, value: &[u8], flags: i32) -> Answer<()> {
        let (mode, holder) =
            str::from_utf8(value).ok().and_then(|text| text.split_once(' ')).ok_or(Errno::INVAL)?;
        let (mode, holder) = (
            mode.parse::<IoMode>().map_err(|_| Errno::INVAL)?,
            holder.parse().map_err(|_| Errno::INVAL)?,
        );
        match flags {
            libc::XATTR_CREATE => Ok(self.fs.begin_trial(ino, mode, holder, TRIAL_TIME)?),
            libc::XATTR_REPLACE => Ok(self.fs.renew_trial(ino, holder, TRIAL_TIME)?),
            _ => Err(Errno::INVAL),
        }
    }

    fn need_file(&self, ino: InodeNo) -> Answer<()> {
        if self.fs.attr(ino)?.kind == FileKind::File { Ok(()) } else { Err(Errno::NODATA) }
    }

    fn set_untorn(&self, ino: InodeNo, value: &[u8]) -> Answer<()> {
        let bytes = u32::try_from(size(value)?).map_err(|_| Errno::INVAL)?;
        Ok(self.fs.set_untorn(ino, Some(bytes))?)
    }

    fn set_extent_size(&self, ino: InodeNo, value: &[u8]) -> Answer<()> {
        Ok(self.fs.set_extent_size(ino, Some(size(value)?))?)
    }

    fn set_release_behind(&self, ino: InodeNo, value: &[u8]) -> Answer<()> {
        let text = str::from_utf8(value).map_err(|_| Errno::INVAL)?.trim_end_matches(['\0', '\n']);
        let release: ReleaseBehind = text.parse().map_err(|_| Errno::INVAL)?;
        Ok(self.fs.set_release_behind(ino, Some(release))?)
    }

    /// Returns an open of the file: one that exists, so that asking does not change the mode in
    /// which the file is served, or else a new one.
    fn some_open(&self, ino: InodeNo) -> Answer<SomeOpen> {
        if let Some(open) = self.files.any_of(ino) {
            return Ok(SomeOpen::Existing(open));
        }
        self.need_file(ino)?;
        let options = OpenOptions { caller_caches: self.write_back, ..OpenOptions::read_only() };
        Ok(SomeOpen::New(Box::new(self.fs.open_inode(ino, &options)?)))
    }
}

enum SomeOpen {
    Existing(Arc<OpenFile>),
    New(Box<bedplate_fs::File>),
}

impl std::ops::Deref for SomeOpen {
    type Target = bedplate_fs::File;

    fn deref(&self) -> &bedplate_fs::File {
        match self {
            Self::Existing(open) => &open.file,
            Self::New(file) => file,
        }
    }
}

/// Reads a size as people write it.
fn size(value: &[u8]) -> Answer<u64> {
    let text = str::from_utf8(value).map_err(|_| Errno::INVAL)?.trim_end_matches(['\0', '\n']);
    bedplate_fs::parse_size(text).map_err(|_| Errno::INVAL)
}

fn json(value: &impl serde::Serialize) -> Answer<Vec<u8>> {
    serde_json::to_vec(value).map_err(|_| Errno::IO)
}
