//! How a file on a server is named: `nfs://HOST[:PORT]/PATH[?OPTION&…]`, as `bedplate export nfs`
//! prints it and as other clients in user space take it.

use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use crate::{Error, Result};

const SCHEME: &str = "nfs://";
/// The longest path, in bytes.
const PATH_BYTES_MAX: usize = 1024;
/// What reads and writes have at most, whatever is asked for.
pub(crate) const TRANSFER_BYTES_MAX: u32 = 1 << 20;
/// And at least: a smaller one makes no progress worth the name.
pub(crate) const TRANSFER_BYTES_MIN: u32 = 512;
const CONNECTIONS_MAX: usize = 64;
const CALLS_MAX: usize = 4096;
/// Of `timeo=`, in tenths of a second.
const TENTHS_MAX: u64 = 36_000;

/// What is done about a server that does not answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Patience {
    /// A call is made again until it is answered.
    Hard,
    /// A call fails once it was made again so often without an answer.
    Soft(u32),
}

/// Whose locks of files are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LocksAt {
    /// This client's: other clients do not see them.
    Client,
    /// The server's; the client is refused where it has none.
    Server,
    /// The server's where it has any, and this client's otherwise.
    Either,
}

/// How durable a write is when it returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stability {
    /// It waits for a sync; this process keeps it until then.
    Unstable,
    /// Its data is durable.
    DataSync,
    /// Its data and the file's attributes are.
    FileSync,
}

/// A file or directory of a server, and how to speak with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Url {
    /// A name or an address, without brackets.
    pub host: String,
    /// From `/` on.
    pub path: Vec<u8>,
    /// The port of NFS; the portmapper is asked where it is `None`.
    pub nfs_port: Option<u16>,
    /// The port of MOUNT; likewise.
    pub mount_port: Option<u16>,
    /// How many connections (`nconnect`).
    pub connections: usize,
    /// How many calls may be in flight at once: the threads (biods) of kernels' clients.
    pub calls: usize,
    /// The most bytes of one read; the server may allow less.
    pub read_bytes: u32,
    /// And of one write.
    pub write_bytes: u32,
    /// How long a call waits for its answer before it is made again.
    pub timeout: Duration,
    /// And how often.
    pub patience: Patience,
    /// As which user calls are made; this process's where it is `None`.
    pub uid: Option<u32>,
    /// And its group.
    pub gid: Option<u32>,
    /// How durable writes are.
    pub stability: Stability,
    /// How many bytes of a file may wait for a commit before a write makes one.
    pub uncommitted_bytes: u64,
    /// Memory of the pages of all files in mode `cached`.
    pub cache_bytes: u64,
    /// The most that is read ahead of a sequential reader of them; 0: nothing.
    pub read_ahead_bytes: u32,
    /// Percent of the pages that may be dirty before a writer waits; half of it before they are
    /// written behind.
    pub dirty_percent: u32,
    /// Which pages leave the cache behind a sequential reader or writer.
    pub release_behind: ReleaseBehind,
    /// Whose locks of files are.
    pub locks: LocksAt,
}

/// Which pages leave the cache behind a sequential reader or writer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReleaseBehind {
    /// None.
    No,
    /// Those that were read.
    Read,
    /// Those that were written.
    Written,
    /// Both.
    Both,
}

/// Returns whether a path is meant as a URL of this kind, though it may be one that is refused.
#[must_use]
pub fn is_nfs_url(path: &Path) -> bool {
    path.as_os_str().as_bytes().starts_with(SCHEME.as_bytes())
}

impl Url {
    /// Makes one of a host and a path, with every option as it comes.
    #[must_use]
    pub fn new(host: &str, path: &[u8]) -> Self {
        Self {
            host: host.to_owned(),
            path: path.to_vec(),
            nfs_port: None,
            mount_port: None,
            connections: 4,
            calls: 64,
            read_bytes: TRANSFER_BYTES_MAX,
            write_bytes: TRANSFER_BYTES_MAX,
            timeout: Duration::from_secs(60),
            patience: Patience::Hard,
            uid: None,
            gid: None,
            stability: Stability::Unstable,
            uncommitted_bytes: 64 << 20,
            cache_bytes: 64 << 20,
            read_ahead_bytes: 2 << 20,
            dirty_percent: 50,
            release_behind: ReleaseBehind::No,
            locks: LocksAt::Client,
        }
    }

    /// Reads a path that is meant as a URL.
    ///
    /// # Errors
    /// `Usage`.
    pub fn of_path(path: &Path) -> Result<Self> {
        let text = path.to_str().ok_or_else(|| {
            Error::usage(format!(
                "{} is no URL: letters beyond ASCII are written %XX",
                path.display()
            ))
        })?;
        text.parse()
    }

    /// Returns the same with another path.
    #[must_use]
    pub fn with_path(&self, path: &[u8]) -> Self {
        Self { path: path.to_vec(), ..self.clone() }
    }

    fn apply(&mut self, key: &str, value: &str) -> Result<(), String> {
        match key {
            "version" | "vers" if value == "3" => {}
            "version" | "vers" => return Err("only version 3 of NFS is spoken".to_owned()),
            "nfsport" | "port" => self.nfs_port = Some(port(value)?),
            "mountport" => self.mount_port = Some(port(value)?),
            "nconnect" => {
                self.connections = number(key, value, 1, CONNECTIONS_MAX as u64)? as usize;
            }
            "calls" => self.calls = number(key, value, 1, CALLS_MAX as u64)? as usize,
            "rsize" => self.read_bytes = transfer(key, value)?,
            "wsize" => self.write_bytes = transfer(key, value)?,
            "timeo" => {
                self.timeout = Duration::from_millis(100 * number(key, value, 1, TENTHS_MAX)?);
            }
            "retrans" => {
                let times = number(key, value, 0, 1000)? as u32;
                // Of a hard client the number means nothing, as in the kernel's.
                if let Patience::Soft(_) = self.patience {
                    self.patience = Patience::Soft(times);
                }
            }
            "soft" if value.is_empty() => {
                self.patience = match self.patience {
                    Patience::Hard => Patience::Soft(SOFT_RETRANS),
                    soft @ Patience::Soft(_) => soft,
                };
            }
            "locks" => {
                self.locks = match value {
                    "local" => LocksAt::Client,
                    "server" => LocksAt::Server,
                    "auto" => LocksAt::Either,
                    _ => return Err("locks= takes local, server or auto".to_owned()),
                };
            }
            "hard" if value.is_empty() => self.patience = Patience::Hard,
            "uid" => self.uid = Some(number(key, value, 0, u64::from(u32::MAX - 1))? as u32),
            "gid" => self.gid = Some(number(key, value, 0, u64::from(u32::MAX - 1))? as u32),
            _ => return self.apply_to_data(key, value),
        }
        Ok(())
    }

    /// Applies what says how bytes are kept.
    fn apply_to_data(&mut self, key: &str, value: &str) -> Result<(), String> {
        match key {
            "writes" => {
                self.stability = match value {
                    "unstable" => Stability::Unstable,
                    "data-sync" => Stability::DataSync,
                    "file-sync" => Stability::FileSync,
                    _ => {
                        return Err("writes= takes unstable, data-sync or file-sync".to_owned());
                    }
                };
            }
            "uncommitted" => {
                self.uncommitted_bytes = number(key, value, 1 << 16, 1 << 40)?;
            }
            "cache" => self.cache_bytes = number(key, value, 1 << 20, 1 << 40)?,
            "readahead" => self.read_ahead_bytes = number(key, value, 0, 64 << 20)? as u32,
            "dirty" => self.dirty_percent = number(key, value, 2, 75)? as u32,
            "release-behind" => {
                self.release_behind = match value {
                    "no" => ReleaseBehind::No,
                    "read" => ReleaseBehind::Read,
                    "written" => ReleaseBehind::Written,
                    "both" => ReleaseBehind::Both,
                    _ => {
                        return Err("release-behind= takes no, read, written or both".to_owned());
                    }
                };
            }
            _ => {
                return Err(format!(
                    "'{key}' is not known: it takes version, nfsport, mountport, nconnect, calls, \
                     rsize, wsize, timeo, retrans, soft, hard, uid, gid, locks, writes, uncommitted, cache, \
                     readahead, dirty and release-behind"
                ));
            }
        }
        Ok(())
    }
}

/// How often a soft client makes a call again where nothing is said.
const SOFT_RETRANS: u32 = 2;

fn number(key: &str, value: &str, least: u64, most: u64) -> Result<u64, String> {
    let digits = value.bytes().all(|byte| byte.is_ascii_digit());
    let told = value.parse::<u64>().ok().filter(|told| digits && (least..=most).contains(told));
    told.ok_or_else(|| format!("{key}= takes a number from {least} to {most}"))
}

fn port(value: &str) -> Result<u16, String> {
    number("a port", value, 1, u64::from(u16::MAX)).map(|port| port as u16)
}

fn transfer(key: &str, value: &str) -> Result<u32, String> {
    let (least, most) = (u64::from(TRANSFER_BYTES_MIN), u64::from(TRANSFER_BYTES_MAX));
    number(key, value, least, most).map(|bytes| bytes as u32)
}

impl FromStr for Url {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let refused =
            |why: String| Error::usage(format!("'{text}' names no file of a server: {why}"));
        let rest = text
            .strip_prefix(SCHEME)
            .ok_or_else(|| refused(format!("it does not begin with {SCHEME}")))?;
        let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
        let at = place.find('/').unwrap_or(place.len());
        let (authority, path) = place.split_at(at);
        if authority.contains('@') {
            return Err(refused("users are named by uid= and gid=".to_owned()));
        }
        let (host, port_text) = split_host(authority)
            .ok_or_else(|| refused("the host is missing, as in nfs://HOST/PATH".to_owned()))?;
        let path = decoded(path).map_err(refused)?;
        if path.len() > PATH_BYTES_MAX || path.contains(&0) {
            return Err(refused(format!(
                "a path has at most {PATH_BYTES_MAX} bytes, and no zeros"
            )));
        }
        let mut url = Self::new(host, if path.is_empty() { b"/" } else { &path });
        if let Some(text) = port_text {
            url.nfs_port = Some(port(text).map_err(refused)?);
        }
        // `retrans` counts for `soft`, in whichever order they come.
        let mut parts: Vec<&str> = query.split('&').filter(|part| !part.is_empty()).collect();
        parts.sort_by_key(|part| !matches!(*part, "soft" | "hard"));
        for part in parts {
            let (key, value) = part.split_once('=').unwrap_or((part, ""));
            url.apply(key, value).map_err(refused)?;
        }
        Ok(url)
    }
}

/// Splits `HOST[:PORT]` and `[ADDRESS][:PORT]`.
fn split_host(authority: &str) -> Option<(&str, Option<&str>)> {
    let (host, rest) = match authority.strip_prefix('[') {
        Some(rest) => rest.split_once(']')?,
        None => authority.split_at(authority.find(':').unwrap_or(authority.len())),
    };
    match (host, rest.strip_prefix(':')) {
        ("", _) => None,
        (_, None) if !rest.is_empty() => None,
        (host, port) => Some((host, port)),
    }
}

/// Takes `%` and two digits back.
fn decoded(text: &str) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [byte, tail @ ..] = rest {
        if *byte != b'%' {
            bytes.push(*byte);
            rest = tail;
            continue;
        }
        let digit = |at: usize| tail.get(at).and_then(|digit| char::from(*digit).to_digit(16));
        let (Some(high), Some(low)) = (digit(0), digit(1)) else {
            return Err("'%' is followed by two hexadecimal digits".to_owned());
        };
        bytes.push((high << 4 | low) as u8);
        rest = &tail[2..];
    }
    Ok(bytes)
}

/// The place alone, as messages name it.
impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let host = &self.host;
        if host.contains(':') {
            write!(f, "{SCHEME}[{host}]")?;
        } else {
            write!(f, "{SCHEME}{host}")?;
        }
        write!(f, "{}", self.path.escape_ascii())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s_570_a_url_names_a_server_a_path_and_how_to_speak_with_it() {
        let url: Url = "nfs://10.0.0.1/mnt/a%20b?version=3&nfsport=2049&mountport=2050&nconnect=8\
                        &rsize=8192&wsize=65536&timeo=5&retrans=7&soft&uid=5&gid=6&calls=9\
                        &writes=file-sync&uncommitted=1048576&cache=2097152&readahead=0&dirty=20\
                        &release-behind=both"
            .parse()
            .unwrap();
        let told = Url {
            nfs_port: Some(2049),
            mount_port: Some(2050),
            connections: 8,
            calls: 9,
            read_bytes: 8192,
            write_bytes: 65_536,
            timeout: Duration::from_millis(500),
            patience: Patience::Soft(7),
            uid: Some(5),
            gid: Some(6),
            stability: Stability::FileSync,
            uncommitted_bytes: 1 << 20,
            cache_bytes: 2 << 20,
            read_ahead_bytes: 0,
            dirty_percent: 20,
            release_behind: ReleaseBehind::Both,
            ..Url::new("10.0.0.1", b"/mnt/a b")
        };
        assert_eq!(url, told);
        assert_eq!(url.to_string(), "nfs://10.0.0.1/mnt/a b");
        let plain: Url = "nfs://[::1]:77".parse().unwrap();
        assert_eq!(plain, Url { nfs_port: Some(77), ..Url::new("::1", b"/") });
        assert!(is_nfs_url(Path::new("nfs://x")) && !is_nfs_url(Path::new("/nfs://x")));
    }

    #[test]
    fn s_570_what_names_no_file_is_refused_in_one_sentence() {
        for (told, part) in [
            ("http://host/x", "begin with nfs://"),
            ("nfs:///x", "host is missing"),
            ("nfs://[::1/x", "host is missing"),
            ("nfs://me@host/x", "uid="),
            ("nfs://host:0/x", "a port= takes a number"),
            ("nfs://host/x?version=4", "only version 3"),
            ("nfs://host/x?nconnect=0", "nconnect= takes a number from 1 to 64"),
            ("nfs://host/x?rsize=100", "rsize= takes"),
            ("nfs://host/x?timeo=-1", "timeo= takes"),
            ("nfs://host/x?writes=maybe", "writes= takes"),
            ("nfs://host/x?dirty=80", "dirty= takes"),
            ("nfs://host/x?release-behind=x", "release-behind= takes"),
            ("nfs://host/x?sec=krb5", "'sec' is not known"),
            ("nfs://host/%4", "hexadecimal"),
            ("nfs://host/%00", "no zeros"),
        ] {
            let message = told.parse::<Url>().unwrap_err().message;
            assert!(message.contains(part) && !message.contains('\n'), "{told}: {message}");
        }
        assert!(format!("nfs://host/{}", "x".repeat(1025)).parse::<Url>().is_err());
    }
}
