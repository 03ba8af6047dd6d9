//! What reaches a command, or the daemon of a mount, over a socket.
//!
//! What must hold: a request does what its user could do, or is refused with a reason, and no byte
//! that the volume keeps changes; what an answer makes a command write does nothing to a terminal;
//! a question for metrics gets an answer whose length it tells.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use bedplate_block::{AlignedBuf, BlockDevice, MemoryDevice, Snapshot};
use bedplate_cli::forge;
use bedplate_volume::{Arrangement, Group, ImportOptions, NewGroup, Role, Shape, create};

use crate::checked::{Checked, Watch};

const MEMBER_BYTES: u64 = 5 << 20;
/// Requests that one input may hold.
const REQUESTS_MAX: usize = 12;
const QUIET: ImportOptions = ImportOptions { read_only: false, degraded: true, background: false };

/// A group to ask, and what its volume holds.
struct Base {
    members: Vec<Snapshot>,
    content: AlignedBuf,
}

fn base(number: u8) -> &'static Base {
    static BASES: [OnceLock<Base>; 4] = [const { OnceLock::new() }; 4];
    let number = usize::from(number) % BASES.len();
    let (shape, count) =
        [(Shape::Concat, 1), (Shape::Mirror, 2), (Shape::Stripe, 2), (Shape::Raid5, 3)][number];
    BASES[number].get_or_init(|| {
        let memory: Vec<_> = (0..count).map(|_| MemoryDevice::new(MEMBER_BYTES)).collect();
        let members: Vec<Arc<dyn BlockDevice>> =
            memory.iter().map(|member| Arc::clone(member) as _).collect();
        let data = Arrangement { shape, unit_bytes: 16 << 10, plexes: 2 };
        let new = NewGroup {
            name: "tank".into(),
            data,
            members,
            log_members: Vec::new(),
            spares: Vec::new(),
            region_bytes: Some(64 << 10),
            reserve_bytes: 0,
            force: false,
        };
        create(&new).expect("members of memory fit together");
        let group = Group::import(&new.members, &QUIET).expect("it was just made");
        let volume = group.volume(Role::Data).expect("every group has one");
        let mut content =
            AlignedBuf::zeroed(usize::try_from(volume.size_bytes()).expect("it is small"));
        content
            .chunks_mut(512)
            .enumerate()
            .for_each(|(at, sector)| sector.fill((at % 251) as u8 + 1));
        volume.write_at(&content, 0).expect("memory does not fail");
        volume.flush().expect("memory does not fail");
        drop((volume, group));
        Base { members: memory.iter().map(|member| member.snapshot()).collect(), content }
    })
}

/// Sends each line of an input to the daemon of a group. Devices it may name: `new0` to `new9`.
pub fn request(data: &[u8]) {
    let Some((choice, lines)) = data.split_first() else { return };
    let base = base(*choice);
    let new: BTreeMap<PathBuf, Arc<Checked>> = (0..10)
        .map(|n| {
            (
                PathBuf::from(format!("new{n}")),
                Watch::over(&MemoryDevice::new(MEMBER_BYTES).snapshot(), Vec::new()),
            )
        })
        .collect();
    let checked: Vec<_> =
        base.members.iter().map(|member| Watch::over(member, Vec::new())).collect();
    let devices: Vec<Arc<dyn BlockDevice>> =
        checked.iter().map(|member| Arc::clone(member) as _).collect();
    let open = |path: &Path| new.get(path).map(|device| Arc::clone(device) as Arc<dyn BlockDevice>);
    let group = Group::import(&devices, &QUIET).expect("the base is sound");
    for line in lines.split(|byte| *byte == b'\n').take(REQUESTS_MAX) {
        let sent = forge::control_request(line, &group, &open);
        let shown = forge::control_reply(&sent);
        assert!(
            shown.as_ref().is_ok_and(|text| text.contains("group tank"))
                || shown.as_ref().is_err_and(|why| why.len() > 10),
            "{shown:?}"
        );
        // Some steps of a relayout between two requests.
        let mut steps = 0;
        let moved = group.run_relayout(&mut |_| {
            steps += 1;
            steps < 3
        });
        assert!(moved.is_ok(), "memory does not fail: {moved:?}");
        keeps(&group, base);
    }
    drop(group);
    // As the next mount finds them.
    let all: Vec<Arc<dyn BlockDevice>> =
        devices.iter().cloned().chain(new.values().map(|device| Arc::clone(device) as _)).collect();
    let members: Vec<_> =
        all.into_iter().filter(|device| bedplate_volume::Label::read(&**device).is_ok()).collect();
    let placed = newest(&members);
    let group = Group::import(&placed, &QUIET).expect("requests leave a group that can be opened");
    keeps(&group, base);
    checked.iter().chain(new.values()).for_each(|member| member.assert_obeyed());
}

/// Leaves out what lost its place in the group.
fn newest(members: &[Arc<dyn BlockDevice>]) -> Vec<Arc<dyn BlockDevice>> {
    let labels: Vec<_> =
        members.iter().filter_map(|device| bedplate_volume::Label::read(&**device).ok()).collect();
    let config = labels
        .iter()
        .max_by_key(|label| label.config.event)
        .map(|label| label.config.clone())
        .expect("a group has members");
    let placed = |label: &bedplate_volume::Label| config.index_of(label.member).is_some();
    members
        .iter()
        .zip(&labels)
        .filter(|(_, label)| placed(label))
        .map(|(device, _)| Arc::clone(device))
        .collect()
}

fn keeps(group: &Group, base: &Base) {
    let volume = group.volume(Role::Data).expect("every group has one");
    assert!(
        volume.size_bytes() >= base.content.len() as u64,
        "the volume has {} bytes and had {}",
        volume.size_bytes(),
        base.content.len()
    );
    let mut found = AlignedBuf::zeroed(base.content.len());
    volume.read_at(&mut found, 0).expect("memory does not fail");
    let other = found.iter().zip(base.content.iter()).position(|(found, was)| found != was);
    assert_eq!(other, None, "a byte of the volume changed");
}

/// Takes an input for the answer of a process that took a daemon's place.
pub fn reply(data: &[u8]) {
    let shown = forge::control_reply(data).unwrap_or_else(|why| why);
    assert!(
        !shown.contains(|c: char| c.is_control() && c != '\n' && c != '\t'),
        "{}",
        shown.escape_debug()
    );
}

/// Asks for metrics.
pub fn metrics(data: &[u8]) {
    const TEXT: &str = "m 1\n";
    let Some(answer) = forge::metrics_request(data, TEXT) else { return };
    let answer = String::from_utf8(answer).expect("an answer is text");
    let (head, body) = answer.split_once("\r\n\r\n").expect("an answer has a head");
    assert!(head.starts_with("HTTP/1.1 ") && head.contains("\r\nConnection: close"), "{head}");
    let len = head
        .split("\r\n")
        .find_map(|line| line.strip_prefix("Content-Length: "))
        .expect("its length is told");
    assert!(
        len == body.len().to_string() || data.starts_with(b"HEAD ") && body.is_empty(),
        "{answer}"
    );
    assert_eq!(
        body == TEXT,
        head.starts_with("HTTP/1.1 200") && !data.starts_with(b"HEAD "),
        "{answer}"
    );
}
