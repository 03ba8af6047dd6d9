//! Backups in a store: chunks and manifests.

use std::collections::HashSet;
use std::ffi::OsStr;

use serde::Serialize;

use crate::CHUNK_BYTES;
use crate::error::{Error, ErrorKind, Result};
use crate::manifest::{Header, Manifest};
use crate::mark::{Mark, Passphrase, Unlock};
use crate::pieces::{Chunk, Form, Piece};
use crate::seal::{OVERHEAD_BYTES, Seal};
use crate::store::{self, Access, CLAIMS, MARK, Store};

const CHUNKS: &str = "chunks";
const MANIFESTS: &str = "manifests";
/// How no name of a backup ends: that of a file that is being written does.
const PARTIAL: &str = ".partial";
/// How the names of chunks end that are compressed.
const ZSTD: &str = ".zst";
/// What compression has to save of a chunk, at least: one part of so many.
const SAVED_PART_MIN: usize = 32;

/// An open repository.
pub struct Repository {
    store: Box<dyn Store>,
    /// The keys of an encrypted one.
    seal: Option<Seal>,
}

/// What a verification found.
#[derive(Debug, Serialize)]
pub struct Verified {
    /// Backups looked at.
    pub backups: usize,
    /// Chunks read and compared with their hashes.
    pub chunks: usize,
    /// One sentence for each thing that is wrong.
    pub faults: Vec<String>,
}

/// A backup in a few words.
#[derive(Debug, Serialize)]
pub struct Summary {
    /// What it is of.
    #[serde(flatten)]
    pub header: Header,
    /// Names in it.
    pub entries: usize,
    /// Bytes of its files.
    pub bytes: u64,
    /// Chunks that it needs.
    pub chunks: usize,
}

impl From<Manifest> for Summary {
    fn from(manifest: Manifest) -> Self {
        let chunks: HashSet<&Chunk> =
            manifest.entries.iter().flat_map(|entry| &entry.data).collect();
        let chunks = chunks.len();
        let bytes = manifest.entries.iter().map(|entry| entry.size).sum();
        Self { entries: manifest.entries.len(), bytes, chunks, header: manifest.header }
    }
}

/// What became free.
#[derive(Debug, Default, Serialize)]
pub struct Pruned {
    /// The backups that are gone.
    pub backups: Vec<String>,
    /// Chunks that no backup needs any more.
    pub chunks: usize,
    /// Their bytes.
    pub bytes: u64,
}

/// A chunk that was stored, or was there.
pub struct Stored {
    /// The chunk.
    pub chunk: Chunk,
    /// The bytes that were written; `None` where it was there.
    pub written: Option<u64>,
}

impl Pruned {
    fn of(names: &[String], unneeded: &[(String, u64)]) -> Self {
        let bytes = unneeded.iter().map(|(_, bytes)| bytes).sum();
        Self { backups: names.to_vec(), chunks: unneeded.len(), bytes }
    }
}

fn chunk(hash: &str, form: Form) -> String {
    debug_assert_eq!(hash.len(), blake3::OUT_LEN * 2, "a chunk is named by its hash: {hash}");
    let ending = match form {
        Form::Raw => "",
        Form::Zstd => ZSTD,
    };
    format!("{CHUNKS}/{}/{hash}{ending}", &hash[..2])
}

/// Returns a frame of zstd, unless it saves too little to be worth it.
fn compressed(bytes: &[u8], level: i32) -> Option<Vec<u8>> {
    let frame = zstd::bulk::compress(bytes, level).ok()?;
    (frame.len() + bytes.len() / SAVED_PART_MIN <= bytes.len()).then_some(frame)
}

fn manifest(id: &str) -> String {
    format!("{MANIFESTS}/{id}")
}

/// Reads the mark. It is the first that is asked of a store, and read where its size would do: only
/// then a bucket says why it refuses.
fn mark_of(store: &dyn Store) -> Result<Option<Vec<u8>>> {
    Ok(store
        .values(Box::new(std::iter::once(MARK.to_owned())), CHUNK_BYTES)
        .next()
        .transpose()?
        .flatten())
}

/// Returns the part of a key behind the last `/`.
fn last_part(key: &str) -> &str {
    key.rsplit('/').next().unwrap_or(key)
}

impl Repository {
    /// Opens a repository to add to it; makes one where there is nothing: encrypted, if a passphrase
    /// is given.
    pub fn create(place: &OsStr, unlock: &Unlock<'_>) -> Result<Self> {
        Self::create_in(store::open(place)?, unlock)
    }

    /// Opens a repository.
    pub fn open(place: &OsStr, unlock: &Unlock<'_>, access: Access) -> Result<Self> {
        Self::open_in(store::open(place)?, unlock, access)
    }

    /// Makes a repository where there is none: encrypted, if a passphrase is given.
    ///
    /// # Errors
    /// `Exists` where one is, and those of the store.
    pub fn init(place: &OsStr, passphrase: Option<&Passphrase>) -> Result<()> {
        let store = store::open(place)?;
        if mark_of(&*store)?.is_some() {
            let message = format!("{} holds backups already", store.shown(""));
            return Err(Error::new(ErrorKind::Exists, message));
        }
        Self::mark(&*store, &passphrase.map_or(Ok(Mark::Plain), Mark::encrypted)?)
    }

    /// Makes another passphrase open an encrypted repository, and `old` no more. What is stored
    /// stays as it is. `new` is called once the old one has opened it.
    ///
    /// # Errors
    /// `Invalid` for a repository that is not encrypted, and those of opening it.
    pub fn change_passphrase(
        place: &OsStr,
        old: &Unlock<'_>,
        new: &dyn Fn() -> Result<Passphrase>,
    ) -> Result<()> {
        let mut store = store::open(place)?;
        // Two that change it one after the other: the later one is given what the first one set.
        let (place, _) = (store.shown(MARK), Self::found(&*store)?);
        store.claim(Access::Remove)?;
        let Mark::Encrypted(wrapped) = Self::found(&*store)? else {
            let message = format!("{} is not encrypted", store.shown(""));
            return Err(Error::new(ErrorKind::Invalid, message));
        };
        let data_key = match old {
            Unlock::With(passphrase) => wrapped.open(passphrase, &place),
            Unlock::Ask(ask) => wrapped.open(&ask(&store.shown(""))?, &place),
        }?;
        let wrapped = wrapped.again(&data_key, &new()?)?;
        store.still_claimed()?;
        store.write(MARK, Mark::Encrypted(wrapped).text())?;
        store.sync()
    }

    fn mark(store: &dyn Store, mark: &Mark) -> Result<()> {
        store.prepare(&[CHUNKS, MANIFESTS, CLAIMS])?;
        // Of two that make one at once the first decides with which key.
        store.write_first(MARK, mark.text())
    }

    pub(crate) fn create_in(store: Box<dyn Store>, unlock: &Unlock<'_>) -> Result<Self> {
        if mark_of(&*store)?.is_none() {
            let mark = match unlock {
                Unlock::With(passphrase) => Mark::encrypted(passphrase)?,
                Unlock::Ask(_) => Mark::Plain,
            };
            Self::mark(&*store, &mark)?;
        }
        Self::open_in(store, unlock, Access::Add)
    }

    /// Reads the mark of a repository that has to be there.
    fn found(store: &dyn Store) -> Result<Mark> {
        let mark = mark_of(store)?.ok_or_else(|| {
            Error::new(ErrorKind::NotFound, format!("{} holds no backups", store.shown("")))
        })?;
        Mark::read(&mark, &store.shown(MARK))
    }

    pub(crate) fn open_in(
        mut store: Box<dyn Store>,
        unlock: &Unlock<'_>,
        access: Access,
    ) -> Result<Self> {
        let data_key = match (Self::found(&*store)?, unlock) {
            (Mark::Plain, Unlock::Ask(_)) => None,
            (Mark::Plain, Unlock::With(_)) => {
                return Err(Error::new(
                    ErrorKind::Invalid,
                    format!(
                        "{} is not encrypted, and a passphrase is given: leave it out, or name \
                         another place",
                        store.shown("")
                    ),
                ));
            }
            (Mark::Encrypted(wrapped), unlock) => {
                let place = store.shown(MARK);
                Some(match unlock {
                    Unlock::With(passphrase) => wrapped.open(passphrase, &place),
                    Unlock::Ask(ask) => wrapped.open(&ask(&store.shown(""))?, &place),
                }?)
            }
        };
        store.claim(access)?;
        Ok(Self { store, seal: data_key.as_ref().map(Seal::new) })
    }

    /// Returns whether what it holds is encrypted.
    pub fn is_encrypted(&self) -> bool {
        self.seal.is_some()
    }

    /// Returns the hash by which a chunk is named.
    fn hash(&self, content: &[u8]) -> String {
        let open = || blake3::hash(content).to_hex().to_string();
        self.seal.as_ref().map_or_else(open, |seal| seal.hash(content))
    }

    /// Returns what the manifest of a backup is called.
    fn id(&self, name: &str) -> String {
        self.seal.as_ref().map_or_else(|| name.to_owned(), |seal| seal.name(name))
    }

    /// Stores a value under a key, encrypted where all is. Returns its bytes there.
    fn put(&self, key: &str, value: Vec<u8>) -> Result<u64> {
        let value = match &self.seal {
            Some(seal) => seal.close(key, &value)?,
            None => value,
        };
        let len = value.len() as u64;
        self.store.write(key, value)?;
        Ok(len)
    }

    /// Returns the value that was stored under a key; `None` where something else lies there.
    fn opened(&self, key: &str, value: Vec<u8>) -> Option<Vec<u8>> {
        match &self.seal {
            Some(seal) => seal.open(key, &value),
            None => Some(value),
        }
    }

    /// Returns how many bytes a value has more in the store than by itself.
    fn overhead(&self) -> u64 {
        if self.is_encrypted() { OVERHEAD_BYTES } else { 0 }
    }

    /// Stores a chunk unless it is there, compressed where a level of zstd is given and it helps.
    pub fn store(&self, bytes: &[u8], level: Option<i32>) -> Result<Stored> {
        debug_assert!(
            (1..=CHUNK_BYTES).contains(&(bytes.len() as u64)),
            "a file is cut into chunks of at most {CHUNK_BYTES} bytes: {}",
            bytes.len()
        );
        debug_assert!(
            bytes.iter().any(|byte| *byte != 0),
            "zeros are a hole of their file and have no chunk"
        );
        let hash = self.hash(bytes);
        let made = |form| Chunk { hash: hash.clone(), len: bytes.len() as u64, form };
        for form in [Form::Zstd, Form::Raw] {
            if self.holds(&made(form))? {
                return Ok(Stored { chunk: made(form), written: None });
            }
        }
        let (form, value) = match level.and_then(|level| compressed(bytes, level)) {
            Some(frame) => (Form::Zstd, frame),
            None => (Form::Raw, bytes.to_vec()),
        };
        let written = Some(self.put(&chunk(&hash, form), value)?);
        Ok(Stored { chunk: made(form), written })
    }

    /// Returns whether a chunk is there; what is in it is not looked at.
    pub fn holds(&self, wanted: &Chunk) -> Result<bool> {
        let size = self.store.size(&chunk(&wanted.hash, wanted.form))?;
        Ok(size
            .is_some_and(|size| wanted.form == Form::Zstd || size == wanted.len + self.overhead()))
    }

    /// Reads chunks in order, and compares each with its hash.
    pub fn load<'a>(
        &'a self,
        chunks: impl Iterator<Item = &'a Chunk> + Clone + 'a,
    ) -> impl Iterator<Item = Result<Vec<u8>>> + 'a {
        let keys = chunks.clone().map(|wanted| chunk(&wanted.hash, wanted.form));
        let values = self.store.values(Box::new(keys), CHUNK_BYTES + self.overhead());
        values.zip(chunks).map(|(value, wanted)| self.checked(value?, wanted))
    }

    /// Returns the content of a chunk, which is as long as is said of it and has its hash.
    fn checked(&self, value: Option<Vec<u8>>, wanted: &Chunk) -> Result<Vec<u8>> {
        let key = chunk(&wanted.hash, wanted.form);
        let shown = || self.store.shown(&key);
        let Some(value) = value else {
            return Err(Error::new(
                ErrorKind::Corrupt,
                format!("{} is missing: back up again, in full, or use another backup", shown()),
            ));
        };
        let content = match wanted.form {
            Form::Raw => self.opened(&key, value),
            // No more is made of it than the chunk may have.
            Form::Zstd => self
                .opened(&key, value)
                .and_then(|frame| zstd::bulk::decompress(&frame, wanted.len as usize).ok()),
        };
        let is_it = |content: &Vec<u8>| {
            content.len() as u64 == wanted.len && self.hash(content) == wanted.hash
        };
        content.filter(is_it).ok_or_else(|| {
            Error::new(
                ErrorKind::Corrupt,
                format!(
                    "{} does not hold what its name says: remove it and back up again, in full",
                    shown()
                ),
            )
        })
    }

    /// Adds a backup: from here on it is there.
    /// Returns the bytes of its manifest.
    pub fn add(&self, backup: &Manifest) -> Result<u64> {
        debug_assert!(
            backup.is_readable(),
            "a backup that is added can be read: '{}'",
            backup.header.name
        );
        let mut text = Vec::new();
        backup.write(&mut text).map_err(|error| {
            Error::new(ErrorKind::Io, format!("the manifest cannot be written: {error}"))
        })?;
        // The chunks are durable, and protected from removal, before anything names them.
        self.store.sync()?;
        self.store.still_claimed()?;
        self.need_free(&backup.header.name)?;
        let len = self.put(&manifest(&self.id(&backup.header.name)), text)?;
        self.store.sync()?;
        Ok(len)
    }

    /// Refuses a name that cannot be one, or is taken.
    pub fn need_free(&self, name: &str) -> Result<()> {
        if name.is_empty()
            || name.starts_with('.')
            || name.contains('/')
            || name.ends_with(PARTIAL)
            || name.len() > 200
        {
            return Err(Error::new(
                ErrorKind::Usage,
                format!("'{name}' cannot be the name of a backup"),
            ));
        }
        if self.store.size(&manifest(&self.id(name)))?.is_some() {
            return Err(Error::new(
                ErrorKind::Exists,
                format!("a backup '{name}' exists in {}", self.store.shown("")),
            ));
        }
        Ok(())
    }

    /// Reads a backup.
    pub fn backup(&self, name: &str) -> Result<Manifest> {
        let found = self.backups(&[self.id(name)]).next().expect("one was asked for");
        found?.ok_or_else(|| self.no_backup(name))
    }

    /// Reads the manifests that are called so; `None` for one that is not there.
    fn backups<'a>(
        &'a self,
        ids: &'a [String],
    ) -> impl Iterator<Item = Result<Option<Manifest>>> + 'a {
        let values = self.store.values(Box::new(ids.iter().map(|id| manifest(id))), u64::MAX);
        values.zip(ids).map(|(value, id)| {
            let (Some(value), key) = (value?, manifest(id)) else { return Ok(None) };
            let place = self.store.shown(&key);
            let damaged = |what: &str| {
                let message = format!("{place}: the manifest {what}: use another backup");
                Error::new(ErrorKind::Corrupt, message)
            };
            let text = self.opened(&key, value).ok_or_else(|| {
                damaged(
                    "does not open with the key of its repository, so it is not what was put there",
                )
            })?;
            let found = Manifest::read(&text, &place)?;
            // It is looked for by what it calls itself when the next one is made against it.
            if self.id(&found.header.name) != *id {
                return Err(damaged("is that of another backup"));
            }
            Ok(Some(found))
        })
    }

    fn no_backup(&self, name: &str) -> Error {
        Error::new(
            ErrorKind::NotFound,
            format!("there is no backup '{name}' in {}", self.store.shown("")),
        )
    }

    /// Returns what the manifests are called: the names of their backups, unless they are hidden.
    fn ids(&self) -> Result<Vec<String>> {
        let mut ids: Vec<String> =
            self.store.list(MANIFESTS)?.iter().map(|(key, _)| last_part(key).to_owned()).collect();
        ids.sort_unstable();
        Ok(ids)
    }

    /// Returns a sentence for each file among the manifests whose name no backup can have.
    fn nameless(&self) -> Result<Vec<String>> {
        let told = |place| {
            format!(
                "{place}: the name is no text, so this is the manifest of no backup: move it away, \
                 or give it its name back"
            )
        };
        Ok(self.store.nameless(MANIFESTS)?.into_iter().map(told).collect())
    }

    /// Returns what the backups are of, oldest checkpoint first, and a sentence for each whose
    /// manifest is damaged.
    pub fn summaries(&self) -> Result<(Vec<Summary>, Vec<String>)> {
        let (mut found, mut damaged) = (Vec::new(), self.nameless()?);
        for backup in self.backups(&self.ids()?) {
            match backup {
                Ok(manifest) => found.extend(manifest.map(Summary::from)),
                Err(failure) if failure.kind == ErrorKind::Corrupt => damaged.push(failure.message),
                Err(failure) => return Err(failure),
            }
        }
        found.sort_by_key(|backup| (backup.header.created, backup.header.epoch));
        Ok((found, damaged))
    }

    /// As [`summaries`](Self::summaries), what the backups are of alone.
    pub fn headers(&self) -> Result<(Vec<Header>, Vec<String>)> {
        let (found, damaged) = self.summaries()?;
        Ok((found.into_iter().map(|backup| backup.header).collect(), damaged))
    }

    /// Reads everything that a backup, or all of them, need.
    pub fn verify(&self, name: Option<&str>, mut progress: impl FnMut(u64)) -> Result<Verified> {
        let ids = name.map_or_else(|| self.ids(), |name| Ok(vec![self.id(name)]))?;
        let faults = if name.is_none() { self.nameless()? } else { Vec::new() };
        let mut verified = Verified { backups: ids.len(), chunks: 0, faults };
        let mut seen = HashSet::new();
        for (backup, id) in self.backups(&ids).zip(&ids) {
            let manifest = match backup {
                Ok(Some(manifest)) => manifest,
                Ok(None) => return Err(self.no_backup(name.unwrap_or(id))),
                Err(failure) if failure.kind == ErrorKind::Corrupt => {
                    verified.faults.push(failure.message);
                    continue;
                }
                Err(failure) => return Err(failure),
            };
            let all = manifest.entries.iter().flat_map(|entry| {
                let at = |pieces: Vec<Piece>| pieces.first().map_or(0, |piece| piece.offset);
                let offsets = entry.content().by_chunk().into_iter().map(at);
                entry.data.iter().zip(offsets).map(move |(wanted, at)| (entry, at, wanted))
            });
            let new: Vec<_> = all.filter(|(.., wanted)| seen.insert((*wanted).clone())).collect();
            for (bytes, (entry, offset, _)) in
                self.load(new.iter().map(|(.., wanted)| *wanted)).zip(&new)
            {
                match bytes {
                    Ok(bytes) => progress(bytes.len() as u64),
                    Err(failure) if failure.kind == ErrorKind::Corrupt => {
                        let path = entry.path.path();
                        verified.faults.push(format!(
                            "backup '{}', {}, byte {offset}: {}",
                            manifest.header.name,
                            path.display(),
                            failure.message
                        ));
                    }
                    Err(failure) => return Err(failure),
                }
            }
        }
        verified.chunks = seen.len();
        Ok(verified)
    }

    /// Returns what removing backups would free: the keys of chunks that no other one needs, and
    /// their bytes.
    fn unneeded(&self, removed: &[String]) -> Result<Vec<(String, u64)>> {
        // A backup that cannot be read may need any chunk.
        if let Some(nameless) = self.nameless()?.into_iter().next() {
            return Err(Error::new(ErrorKind::Corrupt, nameless));
        }
        let mut needed = HashSet::new();
        let kept: Vec<String> =
            self.ids()?.into_iter().filter(|id| !removed.contains(id)).collect();
        for (backup, id) in self.backups(&kept).zip(&kept) {
            let backup = backup?.ok_or_else(|| self.no_backup(id))?;
            let chunks = backup.entries.into_iter().flat_map(|entry| entry.data);
            needed.extend(chunks.map(|needed| chunk(&needed.hash, needed.form)));
        }
        let listed = self.store.list(CHUNKS)?;
        Ok(listed.into_iter().filter(|(key, _)| !needed.contains(key)).collect())
    }

    /// Returns what the manifests of backups are called. One that does not open is named by that.
    ///
    /// # Errors
    /// `NotFound`: what cannot be read can be removed all the same; what does not exist cannot.
    fn ids_of(&self, names: &[String]) -> Result<Vec<String>> {
        let known = self.ids()?;
        let id = |name: &String| {
            let id = self.id(name);
            let found = [&id, name].into_iter().find(|id| known.contains(id));
            found.cloned().ok_or_else(|| self.no_backup(name))
        };
        names.iter().map(id).collect()
    }

    /// Tells what [`prune`](Self::prune) would free, and removes nothing.
    pub fn would_prune(&self, names: &[String]) -> Result<Pruned> {
        Ok(Pruned::of(names, &self.unneeded(&self.ids_of(names)?)?))
    }

    /// Removes backups, and the chunks that no other one needs. A crash leaves chunks too many at
    /// most.
    pub fn prune(&self, names: &[String]) -> Result<Pruned> {
        // Everything is read before anything is removed.
        let ids = self.ids_of(names)?;
        let unneeded = self.unneeded(&ids)?;
        self.remove(&ids.iter().map(|id| manifest(id)).collect::<Vec<_>>())?;
        self.store.remove_partial()?;
        self.remove(&unneeded.iter().map(|(key, _)| key.clone()).collect::<Vec<_>>())?;
        Ok(Pruned::of(names, &unneeded))
    }

    /// Removes keys for good: a manifest that a power cut brought back would name chunks that are
    /// gone.
    fn remove(&self, keys: &[String]) -> Result<()> {
        const AT_ONCE: usize = 1000;
        debug_assert!(
            keys.iter().all(|key| key.starts_with(CHUNKS) || key.starts_with(MANIFESTS)),
            "only chunks and manifests are removed: {keys:?}"
        );
        for keys in keys.chunks(AT_ONCE) {
            self.store.still_claimed()?;
            self.store.remove(keys)?;
        }
        self.store.sync()
    }
}
