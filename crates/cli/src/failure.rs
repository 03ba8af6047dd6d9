//! How a command fails: one sentence, a kind for programs, an exit code.

use std::fmt;
use std::io;
use std::path::Path;
use std::process::ExitCode;

use bedplate::{ErrorKind, GroupErrorKind};
use serde::{Deserialize, Serialize};

/// The result of a command.
pub type Result<T> = std::result::Result<T, Failure>;

/// The exit codes, the same for every subcommand. `check` answers 1 for a volume it mended, and
/// what tells the health of volumes 1 for one that is degraded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Exit {
    /// Done; `check`: the volume is clean.
    Done = 0,
    /// Failed; `check`: the volume had faults and all are mended.
    Failed = 1,
    /// The command line is wrong.
    Usage = 2,
    /// The volume is broken.
    Broken = 4,
    /// `check` could not look at the volume.
    Unchecked = 8,
}

impl Exit {
    /// Returns the worst of several; of none `Done`.
    pub fn worst(exits: impl IntoIterator<Item = Self>) -> Self {
        exits.into_iter().max_by_key(|exit| *exit as u8).unwrap_or(Self::Done)
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

impl From<&Failure> for Exit {
    fn from(failure: &Failure) -> Self {
        failure.exit
    }
}

/// Why a command failed.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Failure {
    /// A stable word for programs, as in `busy` or `not_a_volume`.
    pub kind: String,
    /// One sentence: what was wrong, where, what to do.
    pub message: String,
    /// What the command answers to its caller.
    pub exit: Exit,
}

impl Failure {
    /// Makes a failure of the given kind.
    pub fn new(kind: &str, message: impl Into<String>) -> Self {
        Self { kind: kind.to_owned(), message: message.into(), exit: Exit::Failed }
    }

    /// Makes the failure of a wrong command line.
    pub fn usage(message: impl Into<String>) -> Self {
        Self { kind: "usage".to_owned(), message: message.into(), exit: Exit::Usage }
    }

    /// Makes the failure of a system call on `path`; `doing` completes "cannot …".
    pub fn system(doing: &str, path: &Path, error: &io::Error) -> Self {
        let kind = match error.kind() {
            io::ErrorKind::NotFound => "not_found",
            io::ErrorKind::PermissionDenied => "not_permitted",
            io::ErrorKind::AlreadyExists => "exists",
            io::ErrorKind::StorageFull => "no_space",
            io::ErrorKind::ReadOnlyFilesystem => "read_only",
            _ => "io",
        };
        Self::new(kind, format!("cannot {doing} {}: {}", path.display(), plain(error)))
    }

    /// Makes the failure of a mount.
    fn of_mount(kind: bedplate_serve::ErrorKind, message: &str) -> Self {
        let kind = match kind {
            bedplate_serve::ErrorKind::Option => return Self::usage(message),
            bedplate_serve::ErrorKind::MountPoint => "mount_point",
            bedplate_serve::ErrorKind::Part => "part",
            bedplate_serve::ErrorKind::Stale => "stale_mount",
            bedplate_serve::ErrorKind::Busy => "busy",
            bedplate_serve::ErrorKind::Permission => "not_permitted",
            bedplate_serve::ErrorKind::Unavailable => "unavailable",
            bedplate_serve::ErrorKind::Io | bedplate_serve::ErrorKind::FileSystem => "io",
            bedplate_serve::ErrorKind::Broken => "broken",
        };
        Self::new(kind, without_numbers(message))
    }

    /// Answers for a command that tells health: what cannot be opened because of its own state is
    /// broken.
    #[must_use]
    pub fn of_health(self) -> Self {
        const ILL: [&str; 8] = [
            "broken",
            "corrupt",
            "diverged",
            "duplicated_member",
            "foreign_member",
            "missing_member",
            "outdated_member",
            "stale_mount",
        ];
        if ILL.contains(&self.kind.as_str()) { self.exiting(Exit::Broken) } else { self }
    }

    /// Answers with another exit code.
    #[must_use]
    pub fn exiting(mut self, exit: Exit) -> Self {
        self.exit = exit;
        self
    }
}

/// How the options of commands are called that the library's sentences mean.
const OPTIONS: [(&str, &str); 5] = [
    ("only a format by force overwrites it", "add --force to overwrite it"),
    ("it is taken from there by force only", "add --force to take it from there"),
    ("by a relayout without ", "with 'bedplate volume relayout --without', "),
    ("or turn it round", "or turn it round with --reverse"),
    ("or name such a layout and how many columns", "or name such a layout and how many --columns"),
];

/// Says in a command's own words what the library leaves to its caller to call.
fn with_options(message: String) -> String {
    OPTIONS.iter().fold(message, |message, (library, command)| message.replace(library, command))
}

/// Returns the system's words without the error number that Rust appends.
pub fn plain(error: &io::Error) -> String {
    without_numbers(&error.to_string())
}

/// Takes the system's error numbers out of a sentence: `(os error 13)` explains nothing to people.
fn without_numbers(text: &str) -> String {
    let mut kept = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, behind)) = rest.split_once(" (os error ") {
        kept.push_str(before);
        rest = behind.split_once(')').map_or("", |(_number, rest)| rest);
    }
    kept + rest
}

impl From<bedplate::Error> for Failure {
    fn from(error: bedplate::Error) -> Self {
        Self::new(kind_name(error.kind), with_options(without_numbers(&error.message)))
    }
}

impl From<bedplate::DeviceError> for Failure {
    fn from(error: bedplate::DeviceError) -> Self {
        bedplate::Error::from(error).into()
    }
}

impl From<bedplate_backup::Error> for Failure {
    fn from(error: bedplate_backup::Error) -> Self {
        use bedplate_backup::ErrorKind as Kind;
        let kind = match error.kind {
            Kind::Usage => return Self::usage(error.message),
            Kind::NotFound => "not_found",
            Kind::NotPermitted => "not_permitted",
            Kind::Exists => "exists",
            Kind::NotEmpty => "not_empty",
            Kind::NoSpace => "no_space",
            Kind::ReadOnly => "read_only",
            Kind::Io => "io",
            Kind::Corrupt => "corrupt",
            Kind::NewerFormat => "newer_format",
            Kind::Busy => "busy",
            Kind::Unsupported => "unsupported",
            Kind::Invalid => "invalid",
            Kind::StaleMount => "stale_mount",
        };
        Self::new(kind, without_numbers(&error.message))
    }
}

impl From<bedplate_trace::Error> for Failure {
    fn from(error: bedplate_trace::Error) -> Self {
        match error {
            bedplate_trace::Error::Io { action, place, source } => {
                Self::system(action, Path::new(&place), &source)
            }
            foreign @ bedplate_trace::Error::Foreign { .. } => {
                Self::new("not_a_trace", foreign.to_string())
            }
        }
    }
}

impl From<bedplate_nfs::Error> for Failure {
    fn from(error: bedplate_nfs::Error) -> Self {
        use bedplate_nfs::ErrorKind as Kind;
        let kind = match error.kind {
            Kind::Usage => return Self::usage(error.message),
            Kind::NotFound => "not_found",
            Kind::Permission => "not_permitted",
            Kind::Exists => "exists",
            Kind::NotEmpty => "not_empty",
            Kind::NoSpace => "no_space",
            Kind::ReadOnly => "read_only",
            Kind::Unsupported => "unsupported",
            _ => "io",
        };
        Self::new(kind, without_numbers(&error.message))
    }
}

impl From<bedplate_direct::Error> for Failure {
    fn from(error: bedplate_direct::Error) -> Self {
        use bedplate_direct::ErrorKind as Kind;
        let kind = match error.kind {
            Kind::Usage => return Self::usage(error.message),
            Kind::NotFound => "not_found",
            Kind::NotPermitted => "not_permitted",
            Kind::Exists => "exists",
            Kind::NoSpace => "no_space",
            Kind::ReadOnly => "read_only",
            Kind::Closed => "closed",
            Kind::Io => "io",
            Kind::Changed => "changed",
            Kind::Differs => "differs",
            Kind::Busy => "busy",
            Kind::Failed => "failed",
            Kind::Unsupported => "unsupported",
        };
        Self::new(kind, without_numbers(&error.message))
    }
}

impl From<bedplate_adopt::Error> for Failure {
    fn from(error: bedplate_adopt::Error) -> Self {
        use bedplate_adopt::ErrorKind as Kind;
        let kind = match error.kind {
            Kind::NotFound => "not_found",
            Kind::NotPermitted => "not_permitted",
            Kind::Exists => "exists",
            Kind::NoSpace => "no_space",
            Kind::Busy => "busy",
            Kind::Unsupported => "unsupported",
            Kind::Damaged => "corrupt",
            Kind::Changed => "changed",
            Kind::Committed => "committed",
            Kind::Io => "io",
        };
        Self::new(kind, without_numbers(&error.message))
    }
}

impl From<bedplate_export::Error> for Failure {
    fn from(error: bedplate_export::Error) -> Self {
        use bedplate_export::Error as Kind;
        match error {
            Kind::Usage(message) => Self::usage(without_numbers(&message)),
            Kind::Volume(error) => error.into(),
            Kind::Device(error) => error.into(),
            Kind::Sync(message) => Self::new("io", without_numbers(&message)),
            Kind::System { what, path, source } => Self::system(what, &path, &source),
        }
    }
}

impl From<bedplate_serve::Error> for Failure {
    fn from(error: bedplate_serve::Error) -> Self {
        Self::of_mount(error.kind, &error.message)
    }
}

impl From<bedplate_crashlab::Error> for Failure {
    fn from(error: bedplate_crashlab::Error) -> Self {
        use bedplate_crashlab::ErrorKind as Kind;
        let kind = match error.kind {
            Kind::Usage => return Self::usage(error.message),
            Kind::FileSystem(kind) => kind_name(kind),
            Kind::Mount(kind) => return Self::of_mount(kind, &error.message),
            Kind::NotFound => "not_found",
            Kind::NotPermitted => "not_permitted",
            Kind::Exists => "exists",
            Kind::NoSpace => "no_space",
            Kind::ReadOnly => "read_only",
            Kind::Io => "io",
            Kind::Corrupt => "corrupt",
            Kind::Invalid => "invalid",
            Kind::Interrupted => "interrupted",
            Kind::Setup => "setup",
            Kind::Command => "command",
            Kind::Checker => "checker",
        };
        Self::new(kind, without_numbers(&error.message))
    }
}

impl From<bedplate_bench::Error> for Failure {
    fn from(error: bedplate_bench::Error) -> Self {
        let kind = match error.kind {
            bedplate_bench::ErrorKind::Usage => return Self::usage(error.to_string()),
            bedplate_bench::ErrorKind::Target => "target",
            bedplate_bench::ErrorKind::NotConfirmed => "not_confirmed",
            bedplate_bench::ErrorKind::Io => "io",
            bedplate_bench::ErrorKind::Interrupted => "interrupted",
            bedplate_bench::ErrorKind::Results => "results",
        };
        Self::new(kind, without_numbers(&error.to_string()))
    }
}

impl From<bedplate::GroupError> for Failure {
    fn from(error: bedplate::GroupError) -> Self {
        let kind = match error.kind {
            GroupErrorKind::Invalid => "invalid",
            GroupErrorKind::NotFound => "not_found",
            GroupErrorKind::NotAMember => "not_a_member",
            GroupErrorKind::Foreign => "foreign_member",
            GroupErrorKind::Outdated => "outdated_member",
            GroupErrorKind::Diverged => "diverged",
            GroupErrorKind::Missing => "missing_member",
            GroupErrorKind::Duplicated => "duplicated_member",
            GroupErrorKind::Divided => "divided",
            GroupErrorKind::NewerFormat => "newer_format",
            GroupErrorKind::Corrupt => "corrupt",
            GroupErrorKind::Busy => "busy",
            GroupErrorKind::Broken => "broken",
            GroupErrorKind::Device => "io",
        };
        Self::new(kind, with_options(error.message))
    }
}

/// Returns the stable word for a kind.
fn kind_name(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::NotFound => "not_found",
        ErrorKind::Exists => "exists",
        ErrorKind::NotDirectory => "not_directory",
        ErrorKind::IsDirectory => "is_directory",
        ErrorKind::NotEmpty => "not_empty",
        ErrorKind::Invalid => "invalid",
        ErrorKind::NameTooLong => "name_too_long",
        ErrorKind::TooLarge => "too_large",
        ErrorKind::TooManyLinks => "too_many_links",
        ErrorKind::NoSpace => "no_space",
        ErrorKind::NoAttribute => "no_attribute",
        ErrorKind::Range => "range",
        ErrorKind::ReadOnly => "read_only",
        ErrorKind::Io => "io",
        ErrorKind::Corrupt => "corrupt",
        ErrorKind::NotAVolume => "not_a_volume",
        ErrorKind::NewerFormat => "newer_format",
        ErrorKind::Busy => "busy",
        ErrorKind::Unsupported => "unsupported",
        ErrorKind::NotPermitted => "not_permitted",
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_library_asks_for_is_called_by_the_options_of_commands() {
        let error = bedplate::Error::new(
            ErrorKind::Exists,
            "v.img holds a volume: only a format by force overwrites it",
        );
        assert_eq!(
            Failure::from(error).message,
            "v.img holds a volume: add --force to overwrite it"
        );
    }

    #[test]
    fn a_system_failure_says_what_where_and_why_without_the_number() {
        let failure = Failure::system("open", Path::new("/x"), &io::Error::from_raw_os_error(2));
        assert_eq!(
            (failure.kind.as_str(), failure.message.as_str()),
            ("not_found", "cannot open /x: No such file or directory")
        );
        assert_eq!(
            without_numbers("a (Denied (os error 13)) and b: Full (os error 28)"),
            "a (Denied) and b: Full"
        );
    }
}
