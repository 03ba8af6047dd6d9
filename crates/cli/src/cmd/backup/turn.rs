//! `bedplate backup run`: a checkpoint, its backup, and the removal of what neither needs any more,
//! as one command for a timer.

use std::ffi::OsString;
use std::fmt;
use std::fs::File;
use std::time::Duration;

use bedplate::{Timestamp, format_time};
use bedplate_backup::{Created, Repository};
use bedplate_serve::control::Request;
use rustix::fs::{FlockOperation, flock};
use serde::Serialize;
use serde_json::Value;

use super::create::{How, create};
use super::{Keep, Retained, prune};
use crate::cmd::checkpoint::database::Around;
use crate::cmd::checkpoint::show::{self, Checkpoint};
use crate::device::Access;
use crate::failure::{Failure, Result};
use crate::metrics::turns;
use crate::mount::Mount;
use crate::reach::Reach;
use crate::render::output::{Output, Shown};

/// How often, and how long after each other, the checkpoint of a turn that failed is deleted: the kernel
/// tells the mount that a file was closed after it told the program, so it may seem to be read still.
const BUSY_TRIES: u32 = 40;
const BUSY_PAUSE: Duration = Duration::from_millis(50);

/// Reads what names begin with.
///
/// # Errors
/// It cannot be the beginning of a name.
pub fn prefix(text: &str) -> std::result::Result<String, String> {
    let fits = !text.is_empty()
        && text.len() <= 100
        && !text.starts_with('.')
        && !text.contains(['/', '\0', '\n']);
    if fits {
        Ok(text.to_owned())
    } else {
        Err("write the beginning of a file's name, of at most 100 bytes".to_owned())
    }
}

/// One turn.
pub struct Turn<'a> {
    pub prefix: &'a str,
    pub bracket: &'a Around,
    pub how: How<'a>,
    /// Which backups stay; none: all.
    pub keep: Option<&'a Keep>,
}

/// What a turn did.
#[derive(Serialize)]
pub struct Done {
    checkpoint: String,
    backup: Shown<Created>,
    /// Checkpoints of earlier turns.
    deleted_checkpoints: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retained: Option<Retained>,
}

impl Turn<'_> {
    /// Carries it out on a mount. `open` opens the repository to write, or to remove.
    ///
    /// # Errors
    /// Another turn of the mount is under way; those of checkpoints and of backups. The checkpoint
    /// of a turn that fails is deleted.
    pub fn run(
        &self,
        mount: Mount,
        open: &dyn Fn(bool) -> Result<Repository>,
        output: &Output,
    ) -> Result<Done> {
        // A second turn would take the checkpoint away that the first one reads.
        let _alone = alone(&mount)?;
        self.bracket.is_given()?;
        // What cannot be opened needs no checkpoint; and each opening of an encrypted one takes half
        // a second, or asks a person.
        let repository = open(false)?;
        let reach = Reach::Mounted(mount.clone());
        let name = self.name(Timestamp::now());
        let request = Request::Create {
            name: name.clone().into_bytes(),
            paths: Vec::new(),
            keep: false,
            automatic: true,
        };
        self.bracket
            .carry_out(|| reach.ask::<Checkpoint>(&request, Access::ReadWrite, output).map(drop))?;
        let made = create(mount, &OsString::from(&name), || Ok(repository), &self.how, output);
        let backup = match made {
            Ok(backup) => Shown(backup),
            Err(failure) => return Err(without(&reach, &name, failure, output)),
        };
        let deleted_checkpoints = self.delete_older(&reach, &name, output)?;
        let retained = self.keep.map(|keep| prune(&open(true)?, keep, false)).transpose()?;
        Ok(Done { checkpoint: name, backup, deleted_checkpoints, retained })
    }

    /// The name of a checkpoint made now.
    fn name(&self, now: Timestamp) -> String {
        format!("{}-{}Z", self.prefix, format_time(now).replace(' ', "T"))
    }

    /// Returns whether a name is one that turns give.
    fn gave(&self, name: &[u8]) -> bool {
        turns::prefix(name) == Some(self.prefix.as_bytes())
    }

    /// Deletes the checkpoints of earlier turns; one that is being read waits for the next turn.
    fn delete_older(&self, reach: &Reach, new: &str, output: &Output) -> Result<Vec<String>> {
        let mut deleted = Vec::new();
        for checkpoint in show::all(reach, output)? {
            let name = checkpoint.name();
            if name == new.as_bytes() || checkpoint.is_kept() || !self.gave(name) {
                continue;
            }
            let request = Request::Delete { name: name.to_vec() };
            match reach.ask::<Value>(&request, Access::ReadWrite, output) {
                Ok(_) => deleted.push(bedplate::readable_name(name)),
                Err(failure) if failure.kind == "busy" || failure.kind == "not_found" => {}
                Err(failure) => return Err(failure),
            }
        }
        Ok(deleted)
    }
}

/// Keeps other turns of the mount away until it is dropped.
fn alone(mount: &Mount) -> Result<File> {
    let root =
        File::open(&mount.dir).map_err(|error| Failure::system("open", &mount.dir, &error))?;
    flock(&root, FlockOperation::NonBlockingLockExclusive).map_err(|error| {
        if error == rustix::io::Errno::WOULDBLOCK {
            let what = format!("another 'backup run' of {} is under way", mount.dir.display());
            Failure::new("busy", what)
        } else {
            Failure::system("lock", &mount.dir, &error.into())
        }
    })?;
    Ok(root)
}

/// Deletes the checkpoint of a turn that failed; where that fails, too, the failure names it.
fn without(reach: &Reach, name: &str, mut failure: Failure, output: &Output) -> Failure {
    let request = Request::Delete { name: name.as_bytes().to_vec() };
    let delete = || reach.ask::<Value>(&request, Access::ReadWrite, output);
    let mut deleted = delete();
    for _ in 0..BUSY_TRIES {
        if !deleted.as_ref().is_err_and(|second| second.kind == "busy") {
            break;
        }
        std::thread::sleep(BUSY_PAUSE);
        deleted = delete();
    }
    if let Err(second) = deleted {
        let more = format!("; its checkpoint '{name}' stays: {}", second.message);
        failure.message.push_str(&more);
    }
    failure
}

impl fmt::Display for Done {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.backup)?;
        for name in &self.deleted_checkpoints {
            write!(f, "\ncheckpoint deleted: {name}")?;
        }
        self.retained.as_ref().map_or(Ok(()), |retained| write!(f, "\n{retained}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_known_again_and_those_of_people_are_not() {
        let turn = |prefix| Turn {
            prefix,
            bracket: &Around::NONE,
            how: How { name: None, full: false, level: None },
            keep: None,
        };
        let of_backup = turn("backup");
        let name = of_backup.name(Timestamp(1_795_659_977_000_000_000));
        assert_eq!(name, "backup-2026-11-26T02:26:17Z");
        assert!(of_backup.gave(name.as_bytes()));
        assert!(!turn("back").gave(name.as_bytes()));
        for other in ["backup", "backup-", "backup-monday", "backup-2026-11-26T02:26Z", "x"] {
            assert!(!of_backup.gave(other.as_bytes()), "{other}");
        }
        assert!(prefix("db").is_ok());
        ["", "a/b", ".hidden"].into_iter().for_each(|text| assert!(prefix(text).is_err()));
    }
}
