//! Files of servers, by `nfs://` URLs.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use bedplate_nfs::{Attr, Client, File, Found, Handle, Kind, Mode, OpenOptions, Url};

use crate::error::{Error, ErrorKind, Result};
use crate::file::{DirectFile, Route};
use crate::windowed::Windowed;

/// Returns whether a path is the URL of a file of a server.
#[must_use]
pub fn is_remote(path: &Path) -> bool {
    bedplate_nfs::is_nfs_url(path)
}

/// Returns whether a URL leads to a directory. What cannot be looked at is none: what is done with
/// it tells why.
#[must_use]
pub fn is_remote_directory(path: &Path) -> bool {
    Place::reach(path)
        .and_then(|place| place.find())
        .is_ok_and(|found| found.attr.kind == Kind::Directory)
}

/// Returns the size in bytes of what a URL leads to; 0 where it cannot be looked at.
#[must_use]
pub fn remote_size(path: &Path) -> u64 {
    Place::reach(path).and_then(|place| place.find()).map_or(0, |found| found.attr.size)
}

/// Returns the last name of a URL's path.
#[must_use]
pub fn remote_name(path: &Path) -> Option<std::ffi::OsString> {
    let url = Url::of_path(path).ok()?;
    Path::new(OsStr::from_bytes(&url.path)).file_name().map(OsStr::to_owned)
}

/// Returns the URL of a name in the directory that a URL leads to.
#[must_use]
pub fn inside_remote(directory: &Path, name: &OsStr) -> PathBuf {
    let whole = directory.as_os_str().as_bytes();
    let at = whole.iter().position(|byte| *byte == b'?').unwrap_or(whole.len());
    let (place, query) = whole.split_at(at);
    let mut url = place.strip_suffix(b"/").unwrap_or(place).to_vec();
    url.push(b'/');
    for byte in name.as_bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(byte) {
            url.push(*byte);
        } else {
            url.extend(format!("%{byte:02X}").bytes());
        }
    }
    url.extend(query);
    PathBuf::from(OsStr::from_bytes(&url))
}

fn explain(path: &Path) -> impl Fn(bedplate_nfs::Error) -> Error + '_ {
    use bedplate_nfs::ErrorKind as K;
    move |error| {
        let kind = match error.kind {
            K::NotFound | K::Stale => ErrorKind::NotFound,
            K::Permission => ErrorKind::NotPermitted,
            K::Exists | K::NotEmpty => ErrorKind::Exists,
            K::NoSpace => ErrorKind::NoSpace,
            K::ReadOnly => ErrorKind::ReadOnly,
            K::Usage => ErrorKind::Usage,
            K::Unsupported | K::IsDirectory | K::NotDirectory => ErrorKind::Unsupported,
            K::Unreached
            | K::TimedOut
            | K::Protocol
            | K::Invalid
            | K::Io
            | K::Closed
            | K::NoLocks => ErrorKind::Io,
        };
        // Some name the place by themselves.
        if error.message.contains("nfs://") {
            return Error::new(kind, error.message);
        }
        Error::new(kind, format!("{}: {error}", path.display()))
    }
}

/// A server that is reached, and a path on it.
struct Place {
    client: Client,
    below: Vec<u8>,
    path: PathBuf,
}

impl Place {
    fn reach(path: &Path) -> Result<Self> {
        let url = Url::of_path(path).map_err(explain(path))?;
        let (client, below) = Client::connect(&url).map_err(explain(path))?;
        Ok(Self { client, below, path: path.to_owned() })
    }

    fn find(&self) -> Result<Found> {
        self.client.find(&self.below).map_err(explain(&self.path))
    }
}

/// A file of a server that is open.
#[derive(Debug)]
pub(crate) struct RemoteFile {
    file: File,
    path: PathBuf,
}

impl RemoteFile {
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let place = Place::reach(path)?;
        let options = OpenOptions::read_only(Mode::Concurrent);
        let file = place.client.open(&place.below, &options).map_err(explain(path))?;
        Ok(Self { file, path: path.to_owned() })
    }

    pub(crate) fn create(path: &Path) -> Result<Self> {
        let place = Place::reach(path)?;
        let options = OpenOptions { truncate: true, ..OpenOptions::create(Mode::Concurrent) };
        let file = place.client.open(&place.below, &options).map_err(explain(path))?;
        Ok(Self { file, path: path.to_owned() })
    }

    pub(crate) fn attributes(&self) -> Result<Attr> {
        self.file.attributes().map_err(explain(&self.path))
    }
}

impl Windowed for RemoteFile {
    fn path(&self) -> &Path {
        &self.path
    }

    fn grid(&self) -> u64 {
        1
    }

    fn route(&self) -> Route {
        Route::Direct
    }

    fn is_regular(&self) -> Result<bool> {
        Ok(true)
    }

    fn size(&self) -> Result<u64> {
        self.file.size().map_err(explain(&self.path))
    }

    fn read(&self, buf: &mut [u8], at: u64) -> Result<usize> {
        self.file.read_at(buf, at).map_err(explain(&self.path))
    }

    fn write(&self, bytes: &[u8], at: u64) -> Result<()> {
        self.file.write_at(bytes, at).map_err(explain(&self.path))
    }

    fn sync(&self) -> Result<()> {
        self.file.sync().map_err(explain(&self.path))
    }

    fn set_size(&self, size: u64) -> Result<()> {
        self.file.set_size(size).map_err(explain(&self.path))
    }
}

/// Opens a file to read it.
pub(crate) fn open(path: &Path) -> Result<Box<dyn Windowed>> {
    Ok(if is_remote(path) {
        Box::new(RemoteFile::open(path)?)
    } else {
        Box::new(DirectFile::open(path)?)
    })
}

/// Makes a file, or empties it, to write it.
pub(crate) fn create(path: &Path) -> Result<Box<dyn Windowed>> {
    Ok(if is_remote(path) {
        Box::new(RemoteFile::create(path)?)
    } else {
        Box::new(DirectFile::create(path, true, 0o666)?)
    })
}

/// The file on a server that a copy fills before it takes the target's name. Removed when it is
/// dropped before it has it.
#[derive(Debug)]
pub(crate) struct RemotePartial {
    pub(crate) file: RemoteFile,
    client: Client,
    directory: Handle,
    partial: Vec<u8>,
    name: Vec<u8>,
    is_named: bool,
}

impl RemotePartial {
    pub(crate) fn begin(target: &Path) -> Result<Self> {
        let explain = explain(target);
        let place = Place::reach(target)?;
        let (directory, name) = place.client.find_parent(&place.below).map_err(&explain)?;
        let partial = [b".", name, b".partial"].concat();
        let made =
            place.client.create(&directory.handle, &partial, 0o600, false).map_err(&explain)?;
        let options = OpenOptions { truncate: true, ..OpenOptions::create(Mode::Concurrent) };
        let file = place.client.open_found(&made, &options).map_err(&explain)?;
        Ok(Self {
            file: RemoteFile { file, path: target.to_owned() },
            directory: directory.handle,
            name: name.to_vec(),
            partial,
            client: place.client,
            is_named: false,
        })
    }

    /// Makes it durable and gives it the target's name.
    pub(crate) fn finish(mut self, changes: &bedplate_nfs::Changes) -> Result<()> {
        self.file.sync()?;
        let explain = explain(&self.file.path);
        self.client.set_attributes(self.file.file.handle(), changes).map_err(&explain)?;
        let (from, to) = ((&self.directory, &self.partial[..]), (&self.directory, &self.name[..]));
        self.client.rename(from, to).map_err(&explain)?;
        self.is_named = true;
        Ok(())
    }
}

impl Drop for RemotePartial {
    fn drop(&mut self) {
        if !self.is_named {
            // Removed on the way out of an error, which says what happened.
            let _removed = self.client.remove(&self.directory, &self.partial);
        }
    }
}
