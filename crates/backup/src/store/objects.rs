//! Objects of a bucket, through the `object_store` crate.
//!
//! Writes go out side by side and are waited for by [`Store::sync`]; reads are fetched before they
//! are asked for. Which chunks are there is listed once, not asked chunk by chunk: a backup of what
//! changed asks for all of them.

mod error;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use futures_util::{StreamExt, TryStreamExt, stream};
use object_store::aws::AmazonS3Builder;
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::path::Path;
use object_store::{
    BackoffConfig, ClientOptions, ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload,
    RetryConfig, WriteMultipart,
};
use tokio::runtime::Runtime;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::lease::Lease;
use super::{Access, Store, Values};
use crate::error::{Error, ErrorKind, Result};

/// How many requests are on their way at once; each write holds up to 1 MiB.
const AT_ONCE: usize = 16;
/// What is larger goes out in parts of this size.
const PART_BYTES: usize = 8 << 20;
// Stores refuse smaller parts, and a chunk goes out as one object.
const _: () = assert!(PART_BYTES >= 5 << 20 && PART_BYTES as u64 >= crate::CHUNK_BYTES);
/// How long a request may take, all its repetitions together.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);
// A command that lost its claim has no request on its way when others take the claim for dead.
const _: () = assert!(REQUEST_TIMEOUT.as_secs() < super::lease::GRACE_SECONDS);

/// A prefix of a bucket.
pub struct Objects {
    pub(super) bucket: Arc<Bucket>,
    runtime: Arc<Runtime>,
    lease: Option<Lease>,
    /// Sizes of what lies in the directories that were asked for, by key.
    known: OnceLock<Mutex<HashMap<Path, u64>>>,
    room: Arc<Semaphore>,
    writes: Mutex<JoinSet<Result<()>>>,
}

/// Where the objects lie.
pub struct Bucket {
    /// The URL, without a `/` at its end.
    pub url: String,
    pub store: Box<dyn ObjectStore>,
    prefix: Path,
}

impl Bucket {
    #[cfg(test)]
    pub fn new(url: String, store: Box<dyn ObjectStore>, prefix: &str) -> Self {
        Self { url, store, prefix: Path::from(prefix) }
    }

    /// Returns where a key lies.
    pub fn path(&self, key: &str) -> Result<Path> {
        let parts = self
            .prefix
            .as_ref()
            .split('/')
            .chain(key.split('/'))
            .filter(|part| !part.is_empty())
            .collect::<Vec<_>>()
            .join("/");
        Path::parse(parts).map_err(|_| {
            Error::new(
                ErrorKind::Usage,
                format!(
                    "'{}' cannot be the name of an object: use letters, digits, - and _",
                    key.escape_debug()
                ),
            )
        })
    }

    /// Returns the key of an object below the prefix.
    fn key(&self, path: &Path) -> String {
        let path = path.as_ref();
        path.strip_prefix(self.prefix.as_ref()).unwrap_or(path).trim_start_matches('/').to_owned()
    }

    /// Makes the failure of a request about a key.
    pub fn failure(&self, doing: &str, key: &str, error: &object_store::Error) -> Error {
        error::failure(&self.url, doing, key, error)
    }

    pub async fn put(&self, key: &str, value: Vec<u8>) -> Result<()> {
        let path = self.path(key)?;
        let put = async {
            if value.len() <= PART_BYTES {
                return self.store.put(&path, PutPayload::from(value)).await.map(drop);
            }
            let mut upload = WriteMultipart::new_with_chunk_size(
                self.store.put_multipart(&path).await?,
                PART_BYTES,
            );
            for part in value.chunks(PART_BYTES) {
                upload.wait_for_capacity(AT_ONCE).await?;
                upload.write(part);
            }
            // What fails here is given up by `finish` itself.
            upload.finish().await.map(drop)
        };
        put.await.map_err(|error| self.failure("write", key, &error))
    }

    /// Puts a value where its key has none. A store that cannot be asked so takes it as it comes.
    pub async fn put_first(&self, key: &str, value: Vec<u8>) -> Result<()> {
        let path = self.path(key)?;
        let first = PutOptions::from(PutMode::Create);
        match self.store.put_opts(&path, PutPayload::from(value.clone()), first).await {
            Ok(_) | Err(object_store::Error::AlreadyExists { .. }) => Ok(()),
            Err(
                object_store::Error::NotImplemented { .. }
                | object_store::Error::NotSupported { .. },
            ) => self.put(key, value).await,
            Err(error) => Err(self.failure("write", key, &error)),
        }
    }

    async fn get(&self, key: &str, len_max: u64) -> Result<Option<Vec<u8>>> {
        let found = match self.store.get(&self.path(key)?).await {
            Err(error) if error::is_missing(&error) => return Ok(None),
            found => found.map_err(|error| self.failure("read", key, &error))?,
        };
        if found.meta.size > len_max {
            return Ok(Some(Vec::new()));
        }
        let bytes = found.bytes().await.map_err(|error| self.failure("read", key, &error))?;
        Ok(Some(bytes.to_vec()))
    }

    /// Lists what lies below a directory: itself, and the directories in it side by side.
    pub async fn list(&self, dir: &str) -> Result<Vec<object_store::ObjectMeta>> {
        let refused = |error: &object_store::Error| self.failure("list", dir, error);
        let path = self.path(dir)?;
        let top =
            self.store.list_with_delimiter(Some(&path)).await.map_err(|error| refused(&error))?;
        let below = stream::iter(top.common_prefixes)
            .map(|part| async move { self.store.list(Some(&part)).try_collect::<Vec<_>>().await });
        let below: Vec<_> =
            below.buffer_unordered(AT_ONCE).try_collect().await.map_err(|error| refused(&error))?;
        Ok(top.objects.into_iter().chain(below.into_iter().flatten()).collect())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Values of the surroundings whose names begin so, as options of a builder.
fn surroundings(prefix: &str) -> impl Iterator<Item = (String, String)> {
    let prefix = prefix.to_owned();
    std::env::vars_os().filter_map(move |(name, value)| {
        let (name, value) = (name.into_string().ok()?, value.into_string().ok()?);
        name.starts_with(&prefix).then(|| (name.to_ascii_lowercase(), value))
    })
}

fn client() -> ClientOptions {
    ClientOptions::new().with_timeout(REQUEST_TIMEOUT).with_connect_timeout(Duration::from_secs(10))
}

fn retry() -> RetryConfig {
    let backoff = BackoffConfig {
        init_backoff: Duration::from_millis(100),
        max_backoff: Duration::from_secs(10),
        base: 2.0,
    };
    RetryConfig { backoff, max_retries: 6, retry_timeout: REQUEST_TIMEOUT }
}

/// Makes the client of a store from the URL and the surroundings.
fn connect(url: &str, scheme: &str) -> object_store::Result<Box<dyn ObjectStore>> {
    // Only one process-wide choice exists; another one made before is as good.
    let _already = rustls::crypto::ring::default_provider().install_default();
    let endpoint = surroundings("AWS_ENDPOINT").any(|(_, value)| value.starts_with("http://"));
    Ok(match scheme {
        // An endpoint given without encryption is meant so.
        "s3" => {
            let builder = AmazonS3Builder::from_env()
                .with_url(url)
                .with_client_options(client().with_allow_http(endpoint))
                .with_retry(retry());
            Box::new(builder.build()?)
        }
        "gs" => Box::new(
            GoogleCloudStorageBuilder::from_env()
                .with_url(url)
                .with_client_options(client())
                .with_retry(retry())
                .build()?,
        ),
        _ => Box::new(
            MicrosoftAzureBuilder::from_env()
                .with_url(url)
                .with_client_options(client())
                .with_retry(retry())
                .build()?,
        ),
    })
}

impl Objects {
    /// Makes a client of what a URL names; nothing is sent yet.
    pub fn open(url: &str) -> Result<Self> {
        let (scheme, rest) = url.split_once("://").unwrap_or((url, ""));
        let rest = rest.trim_end_matches('/');
        let url = &format!("{scheme}://{rest}");
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        if !["s3", "gs", "az"].contains(&scheme) {
            return Err(Error::new(
                ErrorKind::Usage,
                format!(
                    "{url}: no such storage is known: use a path, file:///, s3://, gs:// or az://"
                ),
            ));
        }
        if bucket.is_empty() {
            return Err(Error::new(
                ErrorKind::Usage,
                format!("{url} names no bucket: write {scheme}://BUCKET/PREFIX"),
            ));
        }
        let prefix = Path::parse(prefix).map_err(|_| {
            Error::new(
                ErrorKind::Usage,
                format!("{url}: '{prefix}' cannot be the beginning of names of objects"),
            )
        })?;
        let store = connect(url, scheme).map_err(|error| error::failure(url, "use", "", &error))?;
        Self::over(Bucket { url: url.to_owned(), store, prefix })
    }

    pub(super) fn over(bucket: Bucket) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .thread_name("bedplate-objects")
            .enable_all()
            .build();
        let runtime = runtime.map_err(|error| {
            Error::new(ErrorKind::Io, format!("no threads for requests can be started: {error}"))
        })?;
        Ok(Self {
            bucket: Arc::new(bucket),
            runtime: Arc::new(runtime),
            lease: None,
            known: OnceLock::new(),
            room: Arc::new(Semaphore::new(AT_ONCE)),
            writes: Mutex::default(),
        })
    }

    #[cfg(test)]
    pub(super) fn runtime(&self) -> Arc<Runtime> {
        Arc::clone(&self.runtime)
    }

    /// Returns the sizes of all that lies in the directory of directories in which a key lies,
    /// listed at the first call.
    fn known(&self, dir: &str) -> Result<&Mutex<HashMap<Path, u64>>> {
        if let Some(known) = self.known.get() {
            return Ok(known);
        }
        let listed = self.runtime.block_on(self.bucket.list(dir))?;
        Ok(self.known.get_or_init(|| {
            Mutex::new(listed.into_iter().map(|object| (object.location, object.size)).collect())
        }))
    }
}

/// Returns the directory of a key that lies in a directory of a directory: only of those, the
/// chunks, there are so many that they are listed.
fn listed_dir(key: &str) -> Option<&str> {
    let (dir, rest) = key.split_once('/')?;
    rest.contains('/').then_some(dir)
}

impl Store for Objects {
    fn shown(&self, key: &str) -> String {
        format!("{}/{key}", self.bucket.url).trim_end_matches('/').to_owned()
    }

    fn prepare(&self, known: &[&str]) -> Result<()> {
        let refused = |error: &object_store::Error| self.bucket.failure("list", "", error);
        let path = self.bucket.path("")?;
        let listed = self
            .runtime
            .block_on(self.bucket.store.list_with_delimiter(Some(&path)))
            .map_err(|error| refused(&error))?;
        let found = listed
            .common_prefixes
            .iter()
            .chain(listed.objects.iter().map(|object| &object.location));
        if found.map(|path| self.bucket.key(path)).all(|key| known.contains(&key.as_str())) {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Exists,
            format!("{} holds something else than backups: name an empty prefix", self.bucket.url),
        ))
    }

    fn claim(&mut self, access: Access) -> Result<()> {
        if access != Access::Read {
            self.lease = Some(Lease::take(
                Arc::clone(&self.bucket),
                Arc::clone(&self.runtime),
                access == Access::Remove,
            )?);
        }
        Ok(())
    }

    fn still_claimed(&self) -> Result<()> {
        self.lease.as_ref().map_or(Ok(()), Lease::need)
    }

    fn size(&self, key: &str) -> Result<Option<u64>> {
        let path = self.bucket.path(key)?;
        if let Some(dir) = listed_dir(key) {
            return Ok(lock(self.known(dir)?).get(&path).copied());
        }
        match self.runtime.block_on(self.bucket.store.head(&path)) {
            Err(error) if error::is_missing(&error) => Ok(None),
            found => found
                .map(|meta| Some(meta.size))
                .map_err(|error| self.bucket.failure("look at", key, &error)),
        }
    }

    fn values<'a>(
        &'a self,
        keys: Box<dyn Iterator<Item = String> + 'a>,
        len_max: u64,
    ) -> Values<'a> {
        // Manifests may be large: one after the other.
        let at_once = if len_max == u64::MAX { 1 } else { AT_ONCE };
        let fetch = move |key: String| {
            let bucket = Arc::clone(&self.bucket);
            // On its own: it goes on while its caller does something with the one before.
            self.runtime.spawn(async move { bucket.get(&key, len_max).await })
        };
        let mut values = Box::pin(stream::iter(keys).map(fetch).buffered(at_once));
        Box::new(std::iter::from_fn(move || {
            self.runtime
                .block_on(values.next())
                .map(|value| value.expect("a request does not panic"))
        }))
    }

    fn write(&self, key: &str, value: Vec<u8>) -> Result<()> {
        let len = value.len() as u64;
        let room = self
            .runtime
            .block_on(Arc::clone(&self.room).acquire_owned())
            .expect("the semaphore is never closed");
        let (bucket, owned) = (Arc::clone(&self.bucket), key.to_owned());
        let mut writes = lock(&self.writes);
        while let Some(done) = writes.try_join_next() {
            done.expect("a request does not panic")?;
        }
        writes.spawn_on(
            async move {
                let done = bucket.put(&owned, value).await;
                drop(room);
                done
            },
            self.runtime.handle(),
        );
        drop(writes);
        if let (Some(_), Some(known)) = (listed_dir(key), self.known.get()) {
            lock(known).insert(self.bucket.path(key)?, len);
        }
        Ok(())
    }

    fn write_first(&self, key: &str, value: Vec<u8>) -> Result<()> {
        self.runtime.block_on(self.bucket.put_first(key, value))
    }

    fn sync(&self) -> Result<()> {
        let mut writes = std::mem::take(&mut *lock(&self.writes));
        while let Some(done) = self.runtime.block_on(writes.join_next()) {
            done.expect("a request does not panic")?;
        }
        Ok(())
    }

    fn list(&self, dir: &str) -> Result<Vec<(String, u64)>> {
        let listed = self.runtime.block_on(self.bucket.list(dir))?;
        Ok(listed
            .into_iter()
            .map(|object| (self.bucket.key(&object.location), object.size))
            .collect())
    }

    fn nameless(&self, _dir: &str) -> Result<Vec<String>> {
        // Names of objects are text.
        Ok(Vec::new())
    }

    fn remove(&self, keys: &[String]) -> Result<()> {
        let paths = keys.iter().map(|key| self.bucket.path(key)).collect::<Result<Vec<_>>>()?;
        let removed =
            self.bucket.store.delete_stream(stream::iter(paths.into_iter().map(Ok)).boxed());
        self.runtime.block_on(async {
            let mut removed = removed;
            while let Some(done) = removed.next().await {
                match done {
                    Err(error) if !error::is_missing(&error) => {
                        return Err(self.bucket.failure("remove", "", &error));
                    }
                    _ => {}
                }
            }
            Ok(())
        })
    }

    fn remove_partial(&self) -> Result<()> {
        // What never became an object has no name that could be listed; stores drop unfinished
        // uploads by a rule of the bucket.
        Ok(())
    }
}
