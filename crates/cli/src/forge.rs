//! What others send to a command or leave for it, as bytes: for fuzzers, which see no other part of
//! this crate.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use bedplate::{BlockDevice, Group, GroupConfig};
use bedplate_backup::{Manifest, Repository, Target, Unlock, restore};

use bedplate_serve::control::{Answer, Newcomer, Request, wire};

use crate::daemon::control::{Reply, act, answer_of};
use crate::failure::Failure;
use crate::mount::live;
use crate::render::output::harmless;

/// Reads a request as the daemon of a mount does and carries it out on an open group; `open` gives
/// the devices that it names. Returns the answer as it is sent.
pub fn control_request(
    request: &[u8],
    group: &Group,
    open: &dyn Fn(&Path) -> Option<Arc<dyn BlockDevice>>,
) -> Vec<u8> {
    let open = |new: &Newcomer, _: &GroupConfig| {
        open(new.path()).ok_or_else(|| {
            Failure::new("not_found", format!("there is no {}", new.path().display()))
        })
    };
    let reply = match wire::read_request(&mut &request[..]) {
        Ok(Some(Request::Group { ask })) => answer_of(act(group, None, &ask, &open)),
        Ok(_) => Answer::Failed("invalid".into(), "this asks nothing of a group".into()),
        Err(error) => Answer::of(Err(error)),
    };
    let mut sent = Vec::new();
    wire::write(&mut sent, &reply).expect("memory takes it");
    sent
}

/// Reads an answer as a command does, and does with it what commands do. Returns all of what people
/// would see, or the failure's sentence.
///
/// # Errors
/// What the answer tells, or that it is none.
pub fn control_reply(reply: &[u8]) -> Result<String, String> {
    let told = wire::read_answer(&mut &reply[..])
        .map_err(|error| harmless(&error.to_string()).into_owned())?;
    let shown =
        match live::understood(told).map_err(|failure| harmless(&failure.message).into_owned())? {
            Reply::Status(status) => {
                let since = status.clone().since(&status);
                let relayouts: Vec<String> = status
                    .volumes
                    .iter()
                    .filter_map(|volume| volume.relayout.as_ref())
                    .map(ToString::to_string)
                    .collect();
                format!(
                    "{status}\n{}\n{}\n{}\n{}",
                    status.statistics(),
                    since.statistics(),
                    status.health(),
                    relayouts.join("\n")
                )
            }
            Reply::Scrubbed(scrubbed) => scrubbed.to_string(),
        };
    Ok(harmless(&shown).into_owned())
}

/// Answers a request for metrics of a volume that has `text` to tell; `None` where no answer is
/// awaited.
#[must_use]
pub fn metrics_request(mut request: &[u8], text: &str) -> Option<Vec<u8>> {
    crate::metrics::http_answer(&mut request, || Some(text.to_owned())).ok()
}

/// A directory of backups.
pub struct Backups {
    dir: PathBuf,
    repository: Repository,
}

/// What became of a manifest that was read.
pub struct Restored {
    /// The paths in it.
    pub paths: Vec<Vec<u8>>,
    /// Whether every name and all data were restored.
    pub whole: bool,
}

impl Backups {
    /// Makes one with chunks in it, each compressed at a level of zstd or as it is; returns their
    /// hashes, too.
    #[must_use]
    pub fn new(dir: &Path, chunks: &[(&[u8], Option<i32>)]) -> (Self, Vec<String>) {
        let open = Unlock::Ask(&|_| unreachable!("it is not encrypted"));
        let told = "a new directory can be made and filled";
        let repository = Repository::create(dir.as_os_str(), &open).expect(told);
        let names = chunks
            .iter()
            .map(|(chunk, level)| repository.store(chunk, *level).expect(told).chunk.hash)
            .collect();
        (Self { dir: dir.to_owned(), repository }, names)
    }

    /// Puts the lines of a manifest there, with an end that fits, as the only backup; lists,
    /// verifies and restores it into `target`.
    ///
    /// # Errors
    /// Why it is refused, in one sentence; nothing is restored then.
    pub fn exercise(&self, lines: &[u8], target: &Path) -> Result<Restored, String> {
        let name = "backup";
        let manifests = self.dir.join("manifests");
        std::fs::create_dir_all(&manifests).expect("there is room");
        std::fs::write(manifests.join(name), Manifest::sealed(lines)).expect("there is room");
        let shown = crate::cmd::backup_listing(&self.repository)
            .map_err(|failure| failure.message)?
            .to_string();
        assert!(!shown.is_empty(), "a backup is listed, or called damaged");
        let manifest = self.repository.backup(name).map_err(|failure| failure.message)?;
        let sound = self
            .repository
            .verify(Some(name), |_| ())
            .map_err(|failure| failure.message)?
            .faults
            .is_empty();
        let paths = manifest.entries.iter().map(|entry| entry.path.get().to_vec()).collect();
        let prepared = Target::prepare(target, |_| Ok::<_, bedplate_backup::Error>(false));
        let restored =
            prepared.and_then(|target| restore(&self.repository, &manifest, target, |_, _| ()));
        if let Err(error) = &restored {
            assert!(error.message.len() > 10, "{error:?} explains nothing");
        }
        assert!(sound || restored.is_err(), "data that does not verify was restored");
        let whole = restored.is_ok_and(|restored| restored.left_out.is_empty());
        Ok(Restored { paths, whole })
    }
}
