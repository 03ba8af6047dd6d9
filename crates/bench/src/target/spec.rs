//! The words for a target: `[LABEL=]KIND:PLACE[+PLACE…][,OPTION…]`.

use std::fmt;
use std::os::unix::fs::FileTypeExt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use crate::{Error, Result};
use bedplate::{IoMode, parse_duration, parse_size};

/// Whether a kernel file system's cache is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Caching {
    /// Through the page cache.
    Buffered,
    /// `O_DIRECT`.
    Direct,
}

/// What kind of target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// A block device, a plain file used as one, or memory.
    Raw,
    /// A directory on any mounted file system; on a Bedplate mount `mode` is asked for by the
    /// name's suffix.
    Path {
        /// Buffered or direct.
        caching: Caching,
        /// The I/O mode to ask a Bedplate mount for.
        mode: Option<IoMode>,
    },
    /// A Bedplate volume through the library.
    Volume {
        /// The I/O mode.
        mode: IoMode,
        /// `direct` with the whole inode locked by each writer.
        whole_lock: bool,
        /// A separate device for the intent log.
        log: Option<Place>,
        /// Size of the library cache in bytes; `None`: the library's default.
        cache_bytes: Option<u64>,
        /// Block size in bytes, used when the volume is formatted here.
        block_size: u32,
    },
    /// A directory of an NFS server, through the client of this project.
    Nfs {
        /// How files are opened.
        mode: bedplate_nfs::Mode,
    },
}

impl Kind {
    /// Returns the word that descriptions begin with.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Raw => "raw",
            Self::Path { .. } => "path",
            Self::Volume { .. } => "volume",
            Self::Nfs { .. } => "nfs",
        }
    }
}

/// Where a target lies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// A device, file or directory; of an NFS target its URL.
    Path(PathBuf),
    /// So many bytes of this process's memory, for measuring the processor's part alone.
    Memory(u64),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Path(path) => path.display().fmt(f),
            Self::Memory(size) => write!(f, "memory:{}", bedplate::format_size(*size)),
        }
    }
}

/// A target as the user wrote it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TargetSpec {
    /// The short name in tables.
    pub label: String,
    /// What it is.
    pub kind: Kind,
    /// Where it lies; files go to the places in turn.
    pub places: Vec<Place>,
    /// Delay added to every device operation (memory only).
    pub latency: Duration,
    text: String,
}

const GRAMMAR: &str = "write [LABEL=]raw:DEVICE, [LABEL=]path:DIR[,buffered|direct][,mode=MODE], \
                       [LABEL=]volume:DEVICE[,mode=MODE][,inode-lock=whole] or \
                       [LABEL=]nfs://HOST/DIR[?OPTION&…][,mode=MODE]; memory:SIZE stands for a \
                       device in memory";

impl fmt::Display for TargetSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FromStr for TargetSpec {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let (label, body) = split_label(text);
        let mut parts = body.split(',');
        let (kind_name, places_text) = split_kind(parts.next().unwrap_or(""))?;
        let places = places_text.split('+').map(parse_place).collect::<Result<Vec<_>>>()?;
        let mut spec = Self {
            label: String::new(),
            kind: default_kind(kind_name),
            places,
            latency: Duration::ZERO,
            text: text.to_owned(),
        };
        for option in parts {
            spec.apply(option)?;
        }
        spec.validate()?;
        spec.label = label.map_or_else(|| spec.default_label(), ToOwned::to_owned);
        Ok(spec)
    }
}

/// A label is what stands before the first `=` that comes before any `:` or `/`.
fn split_label(text: &str) -> (Option<&str>, &str) {
    match text.split_once('=') {
        Some((label, rest)) if !label.is_empty() && !label.contains([':', '/', ',']) => {
            (Some(label), rest)
        }
        _ => (None, text),
    }
}

/// The kind's name and the places; a bare path is judged by what lies there.
fn split_kind(head: &str) -> Result<(&str, &str)> {
    for kind in ["raw", "path", "volume"] {
        if let Some(rest) = head.strip_prefix(kind).and_then(|rest| rest.strip_prefix(':')) {
            return if rest.is_empty() {
                Err(Error::usage(format!("the target '{head}' names no place: {GRAMMAR}")))
            } else {
                Ok((kind, rest))
            };
        }
    }
    if bedplate_nfs::is_nfs_url(std::path::Path::new(head)) {
        return Ok(("nfs", head));
    }
    if head.starts_with("memory:") {
        return Ok(("raw", head));
    }
    let first = head.split('+').next().unwrap_or("");
    match std::fs::metadata(first) {
        Ok(meta) if meta.is_dir() => Ok(("path", head)),
        Ok(meta) if meta.is_file() || meta.file_type().is_block_device() => Ok(("raw", head)),
        Ok(_) => Err(Error::usage(format!(
            "the target '{first}' is neither a directory nor a file nor a block device: {GRAMMAR}"
        ))),
        Err(_) => Err(Error::usage(format!(
            "the target '{first}' does not exist and names no kind: {GRAMMAR}"
        ))),
    }
}

fn parse_place(text: &str) -> Result<Place> {
    match text.strip_prefix("memory:") {
        Some(size) => Ok(Place::Memory(parse_size(size).map_err(Error::usage)?)),
        None if text.is_empty() => {
            Err(Error::usage(format!("a place of the target is empty: {GRAMMAR}")))
        }
        None => Ok(Place::Path(PathBuf::from(text))),
    }
}

fn default_kind(name: &str) -> Kind {
    match name {
        "path" => Kind::Path { caching: Caching::Direct, mode: None },
        "volume" => Kind::Volume {
            mode: IoMode::Concurrent,
            whole_lock: false,
            log: None,
            cache_bytes: None,
            block_size: 4096,
        },
        "nfs" => Kind::Nfs { mode: bedplate_nfs::Mode::Concurrent },
        _ => Kind::Raw,
    }
}

impl TargetSpec {
    fn apply(&mut self, option: &str) -> Result<()> {
        let (name, value) = option.split_once('=').map_or((option, None), |(n, v)| (n, Some(v)));
        match (&mut self.kind, name, value) {
            (Kind::Path { caching, .. }, "buffered", None) => *caching = Caching::Buffered,
            (Kind::Path { caching, .. }, "direct", None) => *caching = Caching::Direct,
            (Kind::Path { mode, .. }, "mode", Some(v)) => {
                *mode = Some(v.parse().map_err(Error::usage)?);
            }
            (Kind::Nfs { mode }, "mode", Some(v)) => {
                *mode = v.parse().map_err(|e: bedplate_nfs::Error| Error::usage(e.message))?;
            }
            (Kind::Volume { mode, .. }, "mode", Some(v)) => {
                *mode = v.parse().map_err(Error::usage)?;
            }
            (Kind::Volume { whole_lock, .. }, "inode-lock", Some("whole")) => *whole_lock = true,
            (Kind::Volume { whole_lock, .. }, "inode-lock", Some("range")) => *whole_lock = false,
            (Kind::Volume { log, .. }, "log", Some(v)) => *log = Some(parse_place(v)?),
            (Kind::Volume { cache_bytes, .. }, "cache", Some(v)) => {
                *cache_bytes = Some(parse_size(v).map_err(Error::usage)?);
            }
            (Kind::Volume { block_size, .. }, "block", Some(v)) => {
                *block_size = u32::try_from(parse_size(v).map_err(Error::usage)?)
                    .map_err(|_| Error::usage(format!("block={v} is too large for a block")))?;
            }
            (_, "latency", Some(v)) => self.latency = parse_duration(v).map_err(Error::usage)?,
            _ => {
                return Err(Error::usage(format!(
                    "the target '{}' has no option '{option}': {GRAMMAR}",
                    self.text
                )));
            }
        }
        Ok(())
    }

    fn validate(&self) -> Result<()> {
        let memory = self.places.iter().any(|p| matches!(p, Place::Memory(_)));
        if !self.latency.is_zero() && self.places.iter().any(|p| matches!(p, Place::Path(_))) {
            return Err(Error::usage(format!(
                "'{}': a latency can be added to memory only; a real device has its own",
                self.text
            )));
        }
        match &self.kind {
            Kind::Nfs { .. } => {
                let urls = self.places.iter().map(|place| {
                    bedplate_nfs::Url::of_path(place.as_path())
                        .map(drop)
                        .map_err(|e| Error::usage(e.message))
                });
                urls.collect()
            }
            Kind::Path { .. } if memory => Err(Error::usage(format!(
                "'{}': a path lies on a mounted file system, not in memory",
                self.text
            ))),
            Kind::Volume { mode, whole_lock: true, .. } if !mode.locks_ranges() => {
                Err(Error::usage(format!(
                    "'{}': inode-lock=whole is a setting of mode=direct; '{mode}' does not take \
                     that lock",
                    self.text
                )))
            }
            _ => Ok(()),
        }
    }

    fn default_label(&self) -> String {
        let place = match &self.places[0] {
            Place::Memory(_) => "memory".to_owned(),
            Place::Path(path) => path
                .file_name()
                .map_or_else(|| path.display().to_string(), |n| n.to_string_lossy().into_owned()),
        };
        match &self.kind {
            Kind::Raw => format!("raw {place}"),
            Kind::Path { caching: Caching::Buffered, mode: None } => format!("{place} buffered"),
            Kind::Path { caching: Caching::Direct, mode: None } => format!("{place} direct"),
            Kind::Path { mode: Some(mode), .. } => format!("{place} {mode}"),
            Kind::Volume { whole_lock: true, .. } => "direct whole-lock".to_owned(),
            Kind::Volume { mode, .. } => mode.to_string(),
            Kind::Nfs { mode } => format!("nfs {mode}"),
        }
    }

    /// Returns the names that must be typed back before this target overwrites what it holds: those
    /// of raw devices and raw files.
    #[must_use]
    pub fn overwrites(&self) -> Vec<&std::path::Path> {
        let path = |place: &'_ Place| match place {
            Place::Path(_) => true,
            Place::Memory(_) => false,
        };
        match self.kind {
            Kind::Raw => self.places.iter().filter(|p| path(p)).map(Place::as_path).collect(),
            Kind::Path { .. } | Kind::Volume { .. } | Kind::Nfs { .. } => Vec::new(),
        }
    }
}

impl Place {
    pub(super) fn as_path(&self) -> &std::path::Path {
        match self {
            Self::Path(path) => path,
            Self::Memory(_) => std::path::Path::new("memory"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(text: &str) -> TargetSpec {
        text.parse().unwrap_or_else(|e| panic!("{text}: {e}"))
    }

    #[test]
    fn every_kind_is_understood() {
        assert_eq!(spec("raw:/dev/x").kind, Kind::Raw);
        let nfs = spec("one=nfs://[::1]/x?nconnect=8&rsize=8192,mode=direct");
        assert_eq!(nfs.kind, Kind::Nfs { mode: bedplate_nfs::Mode::Direct });
        assert_eq!(nfs.places, [Place::Path("nfs://[::1]/x?nconnect=8&rsize=8192".into())]);
        assert_eq!(
            (nfs.label.as_str(), spec("nfs://h/x").label.as_str()),
            ("one", "nfs concurrent")
        );
        assert_eq!(spec("path:/mnt/x").kind, Kind::Path { caching: Caching::Direct, mode: None });
        assert_eq!(
            spec("path:/mnt/x,buffered").kind,
            Kind::Path { caching: Caching::Buffered, mode: None }
        );
        let whole = spec("jfs=volume:/dev/x,mode=direct,inode-lock=whole");
        assert_eq!(whole.label, "jfs");
        assert!(matches!(whole.kind, Kind::Volume { mode: IoMode::Direct, whole_lock: true, .. }));
        let logged = |text: &str| match spec(text).kind {
            Kind::Volume { log, .. } => log,
            kind => panic!("{kind:?}"),
        };
        assert_eq!(logged("volume:/dev/x,log=/dev/y"), Some(Place::Path("/dev/y".into())));
        assert_eq!(logged("volume:memory:64M,log=memory:8M"), Some(Place::Memory(8 << 20)));
        assert!(
            matches!(spec("volume:/dev/x,cache=64M,block=8K").kind, Kind::Volume { cache_bytes: Some(c), block_size: 8192, .. } if c == 64 << 20)
        );
    }

    #[test]
    fn places_and_labels() {
        let many = spec("raw:/dev/a+/dev/b");
        assert_eq!(many.places.len(), 2);
        assert_eq!(many.label, "raw a");
        assert_eq!(spec("memory:64M,latency=200us").latency, Duration::from_micros(200));
        assert_eq!(spec("volume:memory:64M").label, "concurrent");
        assert_eq!(spec("volume:memory:64M,mode=direct").label, "direct");
        assert_eq!(spec("/tmp").kind, Kind::Path { caching: Caching::Direct, mode: None });
    }

    #[test]
    fn only_raw_paths_are_overwritten() {
        assert_eq!(spec("raw:/dev/a+/dev/b").overwrites().len(), 2);
        assert!(spec("memory:1M").overwrites().is_empty());
        assert!(spec("path:/mnt").overwrites().is_empty());
    }

    #[test]
    fn nonsense_gets_one_sentence() {
        for bad in [
            "raw:",
            "nothing",
            "raw:/x,mode=direct",
            "path:/x,mode=fast",
            "volume:/x,inode-lock=whole",
            "path:memory:1M",
            "nfs://host/x,mode=fast",
            "nfs://host/x?sec=krb5",
            "raw:/x,latency=1ms",
            "raw:/a+",
        ] {
            let message = bad.parse::<TargetSpec>().unwrap_err().to_string();
            assert!(message.len() > 20 && !message.contains('\n'), "{bad}: {message}");
        }
    }
}
