//! Where backups lie: a directory, or objects of a bucket. Both hold the same keys with the same
//! bytes.

mod directory;
#[cfg(feature = "object-store")]
mod lease;
#[cfg(feature = "object-store")]
mod objects;

use std::ffi::OsStr;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use directory::Directory;

use crate::error::{Error, ErrorKind, Result};

/// The key that marks a place as a repository of backups. In a directory it is locked by a command
/// that changes the repository.
pub const MARK: &str = "bedplate-backup";
/// Where the claims of a bucket stand.
pub const CLAIMS: &str = "claims";

/// What a command is about to do with a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// It reads. In a bucket that needs no right to write; what is deleted meanwhile is missing,
    /// and reported as missing.
    Read,
    /// It adds: beside others that add; excludes removal.
    Add,
    /// It removes: exclusive.
    Remove,
}

/// Values in the order of their keys; `None` for one that is not there.
pub type Values<'a> = Box<dyn Iterator<Item = Result<Option<Vec<u8>>>> + 'a>;

/// Keys with values, as a directory has files and a bucket has objects. A key is parts joined by
/// `/`.
pub trait Store {
    /// Returns where a key lies, for people.
    fn shown(&self, key: &str) -> String;

    /// Makes the place, if there is something to make. An error if it holds `foreign` things: any
    /// but keys that begin with one of `known`.
    fn prepare(&self, known: &[&str]) -> Result<()>;

    /// Claims the store until it is dropped.
    ///
    /// # Errors
    /// `busy`.
    fn claim(&mut self, access: Access) -> Result<()>;

    /// Makes sure that the claim still holds, and will for a while: right before what relies on it
    /// is done.
    fn still_claimed(&self) -> Result<()>;

    /// Returns how many bytes a key has, if it is there.
    fn size(&self, key: &str) -> Result<Option<u64>>;

    /// Returns values of at most `len_max` bytes; a longer one comes empty. They may be fetched
    /// before they are asked for.
    fn values<'a>(
        &'a self,
        keys: Box<dyn Iterator<Item = String> + 'a>,
        len_max: u64,
    ) -> Values<'a>;

    /// Stores a value, whole or not at all. It may still be on its way when this returns; whether
    /// it came to be there, [`sync`](Self::sync) tells.
    fn write(&self, key: &str, value: Vec<u8>) -> Result<()>;

    /// Stores a value for good where its key has none, and leaves what another command put there.
    fn write_first(&self, key: &str, value: Vec<u8>) -> Result<()>;

    /// Returns when everything written is there and durable.
    fn sync(&self) -> Result<()>;

    /// Returns the keys that begin with `dir` and a `/`, with their bytes. What has a name that is
    /// no text is no key, and left out.
    fn list(&self, dir: &str) -> Result<Vec<(String, u64)>>;

    /// Returns where, for people, something lies below `dir` whose name is no text, so that it is
    /// no key.
    fn nameless(&self, dir: &str) -> Result<Vec<String>>;

    /// Removes keys; one that is gone already is no error.
    fn remove(&self, keys: &[String]) -> Result<()>;

    /// Removes what interrupted writes left.
    fn remove_partial(&self) -> Result<()>;
}

/// Opens the place that a person named: a path, or a URL. Nothing is looked at yet.
pub fn open(place: &OsStr) -> Result<Box<dyn Store>> {
    match place.to_str().and_then(|text| text.split_once("://")) {
        Some(("file", path)) => {
            let path = decoded(path).filter(|path| path.is_absolute());
            let path = path.ok_or_else(|| {
                Error::new(
                    ErrorKind::Usage,
                    format!("{} names no file here: write file:///PATH", place.display()),
                )
            })?;
            Ok(Box::new(Directory::new(&path)))
        }
        Some((scheme, _)) => bucket(place.to_str().unwrap_or_default(), scheme),
        None => Ok(Box::new(Directory::new(Path::new(place)))),
    }
}

/// Takes `%20` and the like out of the path of a URL.
fn decoded(path: &str) -> Option<PathBuf> {
    let mut bytes = Vec::with_capacity(path.len());
    let mut rest = path.as_bytes();
    while let Some((first, behind)) = rest.split_first() {
        rest = behind;
        if *first == b'%' {
            let digits = std::str::from_utf8(rest.get(..2)?).ok()?;
            bytes.push(u8::from_str_radix(digits, 16).ok()?);
            rest = &rest[2..];
        } else {
            bytes.push(*first);
        }
    }
    Some(PathBuf::from(std::ffi::OsString::from_vec(bytes)))
}

#[cfg(feature = "object-store")]
fn bucket(url: &str, _scheme: &str) -> Result<Box<dyn Store>> {
    Ok(Box::new(objects::Objects::open(url)?))
}

#[cfg(not(feature = "object-store"))]
fn bucket(url: &str, scheme: &str) -> Result<Box<dyn Store>> {
    let known = ["s3", "gs", "az"].contains(&scheme);
    let why = if known {
        "this bedplate was built without the feature object-store"
    } else {
        "no such storage is known: use a path, file:///, s3://, gs:// or az://"
    };
    Err(Error::new(ErrorKind::Usage, format!("{url}: {why}")))
}

/// Opens a bucket in memory.
#[cfg(all(test, feature = "object-store"))]
pub fn in_memory(bucket: &std::sync::Arc<object_store::memory::InMemory>) -> Box<dyn Store> {
    let bucket: std::sync::Arc<dyn object_store::ObjectStore> = bucket.clone();
    let bucket = objects::Bucket::new("memory://".to_owned(), Box::new(bucket), "deep");
    Box::new(objects::Objects::over(bucket).expect("threads are started"))
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt;

    use super::*;

    #[test]
    fn places_are_paths_or_urls() {
        assert_eq!(open(OsStr::new("/a b/c")).unwrap().shown("k"), "/a b/c/k");
        assert_eq!(open(OsStr::new("file:///a%20b/c")).unwrap().shown("k"), "/a b/c/k");
        assert_eq!(
            open(OsStr::new("s3:/bucket")).unwrap().shown("k"),
            "s3:/bucket/k",
            "a path, if an odd one"
        );
        for wrong in ["file://host/x", "file://%zz", "ftp://host/x", "s4://bucket"] {
            assert_eq!(
                open(OsStr::new(wrong)).err().map(|failure| failure.kind),
                Some(ErrorKind::Usage),
                "{wrong}"
            );
        }
        assert!(open(OsStr::from_bytes(b"odd \xff")).is_ok());
    }
}
