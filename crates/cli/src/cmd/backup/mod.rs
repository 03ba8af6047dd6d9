//! `bedplate backup init|create|run|list|show|verify|delete|prune|key change`

mod create;
mod passing;
mod turn;

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::path::{Path, PathBuf};

use bedplate::{Timestamp, format_size, format_time};
use bedplate_backup::{Access, Created, Header, Pruned, Repository, Retention, Summary, Verified};
use clap::{Args, Subcommand};
use serde::Serialize;

use self::passing::Passing;
use super::checkpoint::database::Around;
use crate::failure::{Exit, Failure, Result};
use crate::mount::Mount;
use crate::passphrase;
use crate::reach::Target;
use crate::render::output::{Output, Shown};
use crate::render::{progress, text};

/// How many faults one failure names.
const FAULTS_SHOWN: usize = 10;

/// Back up checkpoints of a mount to a directory or a bucket, in full or by what changed
///
/// Every backup can be restored by itself ('bedplate restore'). One of a later checkpoint reads
/// only what changed, as long as the checkpoint of an earlier backup still exists. An interrupted
/// one is repeated with the same command: what is stored already is not stored again.
///
/// Backups lie in a directory (a path, or file:///PATH) or in object storage: s3://BUCKET/PREFIX,
/// gs://BUCKET/PREFIX, az://CONTAINER/PREFIX. Credentials come from the usual variables:
/// AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION, AWS_ENDPOINT_URL;
/// GOOGLE_APPLICATION_CREDENTIALS; AZURE_STORAGE_ACCOUNT_NAME …
///
/// 'init --encrypt' makes a place in which everything is encrypted. The passphrase comes from
/// --key-file, from the variable BEDPLATE_BACKUP_PASSPHRASE, or is asked for at the terminal. One
/// that is given is never ignored: a place that is not encrypted is refused then.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Read the passphrase of an encrypted repository from this file
    #[arg(long, value_name = "FILE", global = true)]
    key_file: Option<PathBuf>,
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Make a directory or a bucket ready for backups; without it, the first 'create' does
    Init {
        /// The directory of backups (an empty one, or none yet), or a bucket: s3://BUCKET/PREFIX
        repository: OsString,
        /// Encrypt everything, under a key that a passphrase opens. Without the passphrase, or
        /// without the file 'bedplate-backup' in it, nothing can be restored
        #[arg(long)]
        encrypt: bool,
    },
    /// Change the passphrase of an encrypted repository
    Key {
        #[command(subcommand)]
        action: KeyAction,
    },
    /// Back a checkpoint up; a volume that is not mounted is mounted read-only meanwhile
    Create {
        #[command(flatten)]
        target: Target,
        /// The checkpoint
        checkpoint: OsString,
        /// The directory of backups (one that 'create' made, an empty one, or none yet), or a
        /// bucket: s3://BUCKET/PREFIX
        repository: OsString,
        /// The backup's name; without it, that of the checkpoint
        #[arg(long)]
        name: Option<String>,
        /// Read everything, whatever earlier backups hold
        #[arg(long)]
        full: bool,
        /// Compress data with zstd at this level, 1 to 19, or store it as it is: 'none'. Data that
        /// does not become smaller is stored as it is at any level
        #[arg(long, value_name = "LEVEL", default_value = "3", value_parser = level)]
        compress: Level,
    },
    /// Make a checkpoint, back it up, and delete what is needed no longer: for a timer or cron
    ///
    /// The checkpoint is named by the time, as backup-2026-11-26T02:00:00Z. The one of the newest
    /// backup stays, so that the next turn reads only what changed; older ones that this command
    /// made are deleted, but for those marked with 'checkpoint keep'. A turn that fails leaves
    /// none. With rules, backups that none of them keeps are deleted from the repository. A volume
    /// that is not mounted is mounted meanwhile.
    #[command(group(clap::ArgGroup::new("rules").multiple(true)))]
    Run {
        #[command(flatten)]
        target: Target,
        /// The directory of backups, or a bucket: s3://BUCKET/PREFIX
        repository: OsString,
        /// What names of checkpoints and backups begin with
        #[arg(long, value_name = "NAME", default_value = "backup", value_parser = turn::prefix)]
        prefix: String,
        #[command(flatten)]
        bracket: Around,
        /// Read everything, whatever earlier backups hold
        #[arg(long)]
        full: bool,
        /// Compress data with zstd at this level, 1 to 19, or store it as it is: 'none'
        #[arg(long, value_name = "LEVEL", default_value = "3", value_parser = level)]
        compress: Level,
        #[command(flatten)]
        keep: Keep,
    },
    /// List the backups
    List {
        /// The directory or bucket of backups
        repository: OsString,
    },
    /// Tell what a backup holds, and what deleting it would free
    Show {
        /// The directory or bucket of backups
        repository: OsString,
        /// The backup
        name: String,
    },
    /// Read backups, and compare all data with its hashes
    Verify {
        /// The directory or bucket of backups
        repository: OsString,
        /// The backup; without it: all
        name: Option<String>,
    },
    /// Delete backups, and the data that no other one needs
    Delete {
        /// The directory or bucket of backups
        repository: OsString,
        /// The backups; without any: only data that none needs
        names: Vec<String>,
    },
    /// Delete the backups that no rule keeps, and the data that no other one needs
    ///
    /// A backup is kept if any of the rules keeps it. Days, weeks (from Monday) and months are
    /// those in which a checkpoint was made, by UTC; ones without a backup do not count. Backups of
    /// different volumes count apart.
    #[command(group(clap::ArgGroup::new("rules").required(true).multiple(true)))]
    Prune {
        /// The directory or bucket of backups
        repository: OsString,
        #[command(flatten)]
        keep: Keep,
        /// Tell what would be deleted, and delete nothing
        #[arg(long)]
        dry_run: bool,
    },
}

#[derive(Debug, Subcommand)]
enum KeyAction {
    /// Let another passphrase open a repository, and the present one no more; nothing is written
    /// anew but the file 'bedplate-backup'
    ///
    /// The new passphrase comes from --new-key-file, from the variable
    /// BEDPLATE_BACKUP_NEW_PASSPHRASE, or is asked for. The key of the data stays the same:
    /// with the old passphrase and a copy of the old file the repository can still be read.
    Change {
        /// The directory or bucket of backups
        repository: OsString,
        /// Read the new passphrase from this file
        #[arg(long, value_name = "FILE")]
        new_key_file: Option<PathBuf>,
    },
}

/// The rules of retention.
#[derive(Debug, Args)]
struct Keep {
    /// Keep the newest N
    #[arg(long, value_name = "N", group = "rules", value_parser = clap::value_parser!(u32).range(1..))]
    keep_last: Option<u32>,
    /// Keep the newest of each of the newest N days
    #[arg(long, value_name = "N", group = "rules", value_parser = clap::value_parser!(u32).range(1..))]
    keep_daily: Option<u32>,
    /// Keep the newest of each of the newest N weeks
    #[arg(long, value_name = "N", group = "rules", value_parser = clap::value_parser!(u32).range(1..))]
    keep_weekly: Option<u32>,
    /// Keep the newest of each of the newest N months
    #[arg(long, value_name = "N", group = "rules", value_parser = clap::value_parser!(u32).range(1..))]
    keep_monthly: Option<u32>,
}

impl Keep {
    /// Returns whether there is any rule.
    fn is_given(&self) -> bool {
        [self.keep_last, self.keep_daily, self.keep_weekly, self.keep_monthly]
            .iter()
            .any(Option::is_some)
    }
}

/// A level of zstd; `None` stores data as it is.
#[derive(Debug, Clone, Copy)]
struct Level(Option<i32>);

fn level(text: &str) -> std::result::Result<Level, String> {
    match text {
        "none" => Ok(Level(None)),
        _ => match text.parse() {
            Ok(level @ 1..=19) => Ok(Level(Some(level))),
            _ => Err("write a level from 1 to 19, or none".to_owned()),
        },
    }
}

pub fn run(arguments: &Arguments, output: &Output) -> Result<()> {
    let key_file = arguments.key_file.as_deref();
    let open = |place: &OsStr, access| -> Result<Repository> {
        Ok(Repository::open(place, &passphrase::unlock(key_file)?, access)?)
    };
    match &arguments.action {
        Action::Init { repository, encrypt } => init(repository, *encrypt, key_file, output),
        Action::Key { action: KeyAction::Change { repository, new_key_file } } => {
            let (old, place) = (passphrase::unlock(key_file)?, repository);
            Repository::change_passphrase(place, &old, &|| {
                passphrase::other(new_key_file.as_deref())
            })?;
            output.show(&Changes { repository: place.to_string_lossy().into_owned() })
        }
        Action::Create { target, checkpoint, repository, name, full, compress } => {
            let how = create::How { name: name.as_deref(), full: *full, level: compress.0 };
            let open = || Ok(Repository::create(repository, &passphrase::unlock(key_file)?)?);
            let created = while_mounted(target, &["ro"], |mount| {
                create::create(mount, checkpoint, open, &how, output)
            });
            output.show(&Shown(created?))
        }
        Action::Run { target, repository, prefix, bracket, full, compress, keep } => {
            let turn = turn::Turn {
                prefix,
                bracket,
                how: create::How { name: None, full: *full, level: compress.0 },
                keep: keep.is_given().then_some(keep),
            };
            let open_for = |removing: bool| -> Result<Repository> {
                let key = passphrase::unlock(key_file)?;
                Ok(if removing {
                    Repository::open(repository, &key, Access::Remove)?
                } else {
                    Repository::create(repository, &key)?
                })
            };
            output.show(&while_mounted(target, &[], |mount| turn.run(mount, &open_for, output))?)
        }
        Action::List { repository } => list(&open(repository, Access::Read)?, output),
        Action::Verify { repository, name } => {
            verify(&open(repository, Access::Read)?, name.as_deref(), output)
        }
        Action::Delete { repository, names } => {
            output.show(&Shown(open(repository, Access::Remove)?.prune(names)?))
        }
        Action::Show { repository, name } => {
            show_one(&open(repository, Access::Read)?, name, output)
        }
        Action::Prune { repository, keep, dry_run } => {
            let access = if *dry_run { Access::Read } else { Access::Remove };
            output.show(&prune(&open(repository, access)?, keep, *dry_run)?)
        }
    }
}

/// Does `work` on the mount of a volume, its own or one for the time of the work. The first failure
/// counts.
fn while_mounted<T>(
    target: &Target,
    options: &[&str],
    work: impl FnOnce(Mount) -> Result<T>,
) -> Result<T> {
    let passing = Passing::new(target, options)?;
    let worked = work(passing.mount().clone());
    let ended = passing.end();
    let result = worked?;
    ended?;
    Ok(result)
}

/// A repository that was made.
#[derive(Serialize)]
struct Made {
    repository: String,
    encrypted: bool,
}

fn init(place: &OsStr, encrypt: bool, key_file: Option<&Path>, output: &Output) -> Result<()> {
    let passphrase = match (encrypt, passphrase::given_for_new(key_file)?) {
        (false, Some(_)) => {
            return Err(Failure::usage(
                "a passphrase is given, and the backups would not be encrypted: add --encrypt, or \
                 leave it out",
            ));
        }
        (false, None) => None,
        (true, _) => Some(passphrase::for_new(key_file)?),
    };
    Repository::init(place, passphrase.as_ref())?;
    let repository = place.to_string_lossy().into_owned();
    output.show(&Made { repository, encrypted: encrypt })
}

/// A repository that another passphrase opens.
#[derive(Serialize)]
struct Changes {
    repository: String,
}

/// What a backup holds, and holds alone.
#[derive(Serialize)]
struct Whole {
    #[serde(flatten)]
    summary: Summary,
    /// What deleting it would free.
    alone_bytes: u64,
}

fn show_one(repository: &Repository, name: &str, output: &Output) -> Result<()> {
    let summary = Summary::from(repository.backup(name)?);
    // What is there without any backup is freed by any deletion, and none of this one's.
    let left = repository.would_prune(&[])?.bytes;
    let alone_bytes = repository.would_prune(&[name.to_owned()])?.bytes.saturating_sub(left);
    output.show(&Whole { summary, alone_bytes })
}

/// What a rule deleted, or would have.
#[derive(Serialize)]
struct Retained {
    #[serde(flatten)]
    pruned: Pruned,
    kept: usize,
    dry_run: bool,
}

fn prune(repository: &Repository, keep: &Keep, dry_run: bool) -> Result<Retained> {
    let (headers, damaged) = repository.headers()?;
    if let Some(damaged) = damaged.into_iter().next() {
        let what = format!("nothing is deleted while a backup cannot be read: {damaged}");
        return Err(Failure::new("corrupt", what));
    }
    let count = |rule: Option<u32>| rule.unwrap_or(0) as usize;
    let rule = Retention {
        last: count(keep.keep_last),
        daily: count(keep.keep_daily),
        weekly: count(keep.keep_weekly),
        monthly: count(keep.keep_monthly),
    };
    let expired = rule.expired(&headers);
    let kept = headers.len() - expired.len();
    let pruned =
        if dry_run { repository.would_prune(&expired) } else { repository.prune(&expired) }?;
    Ok(Retained { pruned, kept, dry_run })
}

fn list(repository: &Repository, output: &Output) -> Result<()> {
    output.show(&listing(repository)?)
}

/// Looks at all backups.
pub fn listing(repository: &Repository) -> Result<Listing> {
    let (backups, damaged) = repository.summaries()?;
    Ok(Listing { backups, damaged })
}

fn verify(repository: &Repository, name: Option<&str>, output: &Output) -> Result<()> {
    let mut progress = progress::Bytes::new(output, "verifying", 0);
    let verified = repository.verify(name, |bytes| progress.advance(bytes))?;
    drop(progress);
    if verified.faults.is_empty() {
        return output.show(&Shown(verified));
    }
    let more = verified.faults.len().saturating_sub(FAULTS_SHOWN);
    let more = if more > 0 { format!("; and {more} more") } else { String::new() };
    let faults: Vec<&str> = verified.faults.iter().take(FAULTS_SHOWN).map(String::as_str).collect();
    Err(Failure::new("corrupt", format!("{}{more}", faults.join("; "))).exiting(Exit::Broken))
}

/// What a directory of backups holds.
#[derive(Serialize)]
pub struct Listing {
    backups: Vec<Summary>,
    /// One sentence for each that cannot be read.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    damaged: Vec<String>,
}

impl fmt::Display for Listing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.backups.is_empty() && self.damaged.is_empty() {
            return f.write_str("no backups");
        }
        self.backups.iter().try_for_each(|backup| writeln!(f, "{}", Line(backup)))?;
        self.damaged.iter().try_for_each(|what| writeln!(f, "damaged: {what}"))
    }
}

/// A backup in one line.
struct Line<'a>(&'a Summary);

impl fmt::Display for Line<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Summary { header, entries, bytes, .. } = self.0;
        let Header { name, created, volume, base, .. } = header;
        let base =
            base.as_ref().map_or_else(|| "in full".to_owned(), |base| format!("since {base}"));
        write!(
            f,
            "{}: {} UTC, {}, {}, of volume {volume}, {base}",
            name.escape_debug(),
            format_time(Timestamp(*created)),
            text::count(*entries as u64, "name"),
            format_size(*bytes),
        )
    }
}

impl fmt::Display for Made {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = text::one_line(&self.repository);
        if !self.encrypted {
            return write!(f, "{place}: ready for backups");
        }
        write!(
            f,
            "{place}: ready for encrypted backups; keep the passphrase, and a copy of the file \
             'bedplate-backup' in it: without either nothing can be restored"
        )
    }
}

impl fmt::Display for Changes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: opens with the new passphrase", text::one_line(&self.repository))
    }
}

impl fmt::Display for Whole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", Line(&self.summary))?;
        write!(
            f,
            "{}; deleting it would free {}",
            text::count(self.summary.chunks as u64, "chunk"),
            format_size(self.alone_bytes)
        )
    }
}

impl fmt::Display for Retained {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pruned, kept, dry_run } = self;
        let (deleted, freed) =
            if *dry_run { ("would be deleted", "would be freed") } else { ("deleted", "freed") };
        pruned
            .backups
            .iter()
            .try_for_each(|name| writeln!(f, "{deleted}: {}", name.escape_debug()))?;
        write!(
            f,
            "{} kept, {} {deleted}, {} {freed}",
            text::count(*kept as u64, "backup"),
            pruned.backups.len(),
            format_size(pruned.bytes)
        )
    }
}

impl fmt::Display for Shown<Created> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Created { name, base, entries, bytes, read_bytes, written_bytes, .. } = &self.0;
        write!(f, "{}: {entries} names, {} of data", name.escape_debug(), format_size(*bytes))?;
        if let Some(base) = base {
            write!(f, ", since {}", base.escape_debug())?;
        }
        write!(f, ": {} read, {} stored", format_size(*read_bytes), format_size(*written_bytes))
    }
}

impl fmt::Display for Shown<Verified> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}, {}: all is there and as it was",
            text::count(self.0.backups as u64, "backup"),
            text::count(self.0.chunks as u64, "chunk")
        )
    }
}

impl fmt::Display for Shown<Pruned> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} deleted, {} freed",
            text::count(self.0.backups.len() as u64, "backup"),
            format_size(self.0.bytes)
        )
    }
}
