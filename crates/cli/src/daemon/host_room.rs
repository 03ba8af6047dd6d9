//! A watch over the hosts of a mount's image files: an event before one of them is full.

use std::path::PathBuf;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

use bedplate::Group;

use crate::device::host;

/// How often it is looked.
const PERIOD: Duration = Duration::from_secs(30);

/// Ends the watch when dropped. The thread is not waited for: a host may stand still.
pub struct HostWatch {
    _end: Sender<()>,
}

/// Watches over the host of `volume`, or of the members of its group, until the watch ends.
pub fn start(volume: PathBuf, group: Option<&Group>) -> HostWatch {
    let group = group.map(Group::downgrade);
    let (end, ended) = channel();
    let paths = move || match &group {
        None => vec![volume.clone()],
        Some(group) => group.upgrade().map_or_else(Vec::new, |group| {
            group.config().members.iter().map(|member| PathBuf::from(&member.path)).collect()
        }),
    };
    std::thread::spawn(move || {
        let mut was_short = false;
        loop {
            was_short = look(&paths(), was_short);
            if ended.recv_timeout(PERIOD) != Err(RecvTimeoutError::Timeout) {
                return;
            }
        }
    });
    HostWatch { _end: end }
}

/// Tells of a host that has become short of room; returns whether one is.
fn look(paths: &[PathBuf], was_short: bool) -> bool {
    let rooms = host::rooms(paths.iter().map(PathBuf::as_path));
    let mut short = rooms.iter().filter(|room| room.is_short()).peekable();
    let is_short = short.peek().is_some();
    for room in short.filter(|_| !was_short) {
        tracing::warn!(event = "host_filling", "{}", room.warning());
    }
    is_short
}
