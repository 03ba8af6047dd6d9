//! Copies of files, also from and to servers.

use std::fs::Metadata;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use bedplate_nfs::{Attr, Changes, SetTime};
use rustix::fs::{Timespec, Timestamps};

use crate::copy::{Copied, Options, Transfer, changed, copy_one, refuse_change};
use crate::error::{Error, ErrorKind, Result, system};
use crate::file::DirectFile;
use crate::partial::Partial;
use crate::remote::{RemoteFile, RemotePartial, is_remote};
use crate::share::Reflink;
use crate::span::{self, Span};
use crate::windowed::Windowed;
use crate::{Progress, Route};

/// What the copy cannot have.
const LEFT: &str = "owner and extended attributes (not copied over NFS)";

/// A source with what is known of it.
enum Source {
    Local(DirectFile, Metadata),
    Remote(RemoteFile, Attr),
}

impl Source {
    fn open(path: &Path) -> Result<Self> {
        if is_remote(path) {
            let file = RemoteFile::open(path)?;
            let attr = file.attributes()?;
            return Ok(Self::Remote(file, attr));
        }
        let file = DirectFile::open(path)?;
        let is = file.metadata()?;
        Ok(Self::Local(file, is))
    }

    fn file(&self) -> &dyn Windowed {
        match self {
            Self::Local(file, _) => file,
            Self::Remote(file, _) => file,
        }
    }

    /// Returns what of it is data; of a file of a server that is not told.
    fn spans(&self, size: u64, grid: u64) -> Result<Vec<Span>> {
        match self {
            Self::Local(file, _) => span::data(file, size, grid.max(file.grid())),
            Self::Remote(..) if size == 0 => Ok(Vec::new()),
            Self::Remote(..) => Ok(vec![Span { source: 0, target: 0, len: size }]),
        }
    }

    /// A copy of a file that changed meanwhile is of no one moment.
    fn refuse_change(&self) -> Result<()> {
        match self {
            Self::Local(file, was) => refuse_change(file, was),
            Self::Remote(file, was) => {
                let is = file.attributes()?;
                let state = |of: &Attr| (of.size, of.mtime);
                if state(&is) == state(was) { Ok(()) } else { Err(changed(file.path())) }
            }
        }
    }

    /// Returns permissions, and the times of the last read and write.
    fn kept(&self) -> (u32, [[i64; 2]; 2]) {
        match self {
            Self::Local(_, is) if is.is_file() => (
                is.permissions().mode() & 0o777,
                [[is.atime(), is.atime_nsec()], [is.mtime(), is.mtime_nsec()]],
            ),
            Self::Local(_, is) => {
                (0o600, [[is.mtime(), is.mtime_nsec()], [is.mtime(), is.mtime_nsec()]])
            }
            Self::Remote(_, attr) => {
                (attr.mode & 0o777, [attr.atime, attr.mtime].map(|time| time.map(i64::from)))
            }
        }
    }
}

/// Copies a file: data, holes, owner, mode, extended attributes and times. The target is whole or
/// as it was before: a partial file beside it takes its name once it is synced. A block device as
/// the target, and a target of [`Options::range`], are written in place. Of a file that comes from a
/// server, or goes to one, by its `nfs://` URL, owner and extended attributes are not copied.
///
/// # Errors
/// When a file cannot be opened, read or written, no room is left (told before anything is
/// copied, where the file system can say it), the source changes meanwhile, or the comparison finds
/// a difference.
pub fn copy(
    source: &Path,
    target: &Path,
    options: &Options,
    progress: Progress<'_>,
) -> Result<Copied> {
    if is_remote(source) || is_remote(target) {
        over_network(source, target, options, progress)
    } else {
        copy_one(source, target, options, true, progress)
    }
}

/// Copies a file of which one side, or both, lies on a server: data, mode and times. The target is
/// whole or as it was before.
fn over_network(
    source: &Path,
    target: &Path,
    options: &Options,
    progress: Progress<'_>,
) -> Result<Copied> {
    if options.resume || options.range.is_some() || options.reflink == Reflink::Always {
        return Err(Error::new(
            ErrorKind::Usage,
            "a copy from or to a server can neither share blocks nor be gone on with, and is of \
             the whole file",
        ));
    }
    let from = Source::open(source)?;
    if is_remote(target) {
        let partial = RemotePartial::begin(target)?;
        let (size, copied) = fill(&from, &partial.file, options, progress)?;
        let (mode, [atime, mtime]) = from.kept();
        let changes = Changes {
            mode: Some(mode),
            atime: to_protocol(atime),
            mtime: to_protocol(mtime),
            ..Changes::default()
        };
        partial.finish(&changes)?;
        return Ok(done(&from, size, copied, options, Route::Direct));
    }
    let there = std::fs::metadata(target);
    if there.as_ref().is_ok_and(|there| !there.is_file()) {
        return Err(Error::new(
            ErrorKind::Unsupported,
            format!("{} is no file, and a server's file is copied to files", target.display()),
        ));
    }
    // A link to the target stays a link.
    let target = if there.is_ok() {
        target.canonicalize().map_err(system("look at", target))?
    } else {
        target.to_owned()
    };
    let partial = Partial::begin_anew(&target)?;
    let (size, copied) = fill(&from, &partial.file, options, progress)?;
    let (mode, times) = from.kept();
    let [last_access, last_modification] =
        times.map(|[seconds, nanoseconds]| Timespec { tv_sec: seconds, tv_nsec: nanoseconds });
    let file = partial.file.system();
    file.set_permissions(std::fs::Permissions::from_mode(mode))
        .map_err(system("set the mode of", &target))?;
    rustix::fs::futimens(file, &Timestamps { last_access, last_modification })
        .map_err(system("set the times of", &target))?;
    let write = partial.file.route();
    partial.finish(true)?;
    Ok(done(&from, size, copied, options, write))
}

/// Copies the data; returns how many bytes there are, and how many were moved.
fn fill(
    from: &Source,
    into: &dyn Windowed,
    options: &Options,
    progress: Progress<'_>,
) -> Result<(u64, u64)> {
    let size = from.file().size()?;
    let spans = from.spans(size, into.grid())?;
    let copied = spans.iter().map(|span| span.len).sum();
    into.set_size(size)?;
    let transfer = Transfer::new(from.file(), into, options, spans, progress);
    transfer.run(None, 0)?;
    // The last block was written whole.
    into.set_size(size)?;
    from.refuse_change()?;
    into.sync()?;
    transfer.verify()?;
    Ok((size, copied))
}

fn done(from: &Source, size: u64, copied: u64, options: &Options, write: Route) -> Copied {
    Copied {
        size,
        copied,
        resumed_at: 0,
        is_shared: false,
        is_verified: options.verify,
        read: from.file().route(),
        write,
        left: vec![LEFT.to_owned()],
    }
}

/// The protocol has no time before 1970 or after 2106.
fn to_protocol([seconds, nanoseconds]: [i64; 2]) -> SetTime {
    let seconds = u32::try_from(seconds.max(0)).unwrap_or(u32::MAX);
    SetTime::To([seconds, u32::try_from(nanoseconds).unwrap_or(0)])
}
