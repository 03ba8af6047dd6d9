//! Groups that change under a live mount that is written to: members that die and come back, other
//! layouts, scrubs on schedule.

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::harness::{Scratch, bedplate, can_mount, pattern, text};
use super::volume_scrubs::checksummed;
use super::volumes::{another, group};

/// How long anything may take in the background.
const LIMIT: Duration = Duration::from_secs(180);

fn show(member: &str) -> Value {
    bedplate(["volume", "show", member, "--json"]).json()
}

/// Asks until what is shown of a group passes.
fn wait(member: &str, what: &str, passes: impl Fn(&Value) -> bool) -> Value {
    let start = Instant::now();
    loop {
        let told = show(member);
        if passes(&told) {
            return told;
        }
        assert!(start.elapsed() < LIMIT, "not {what} after {} s: {told}", LIMIT.as_secs());
    }
}

fn is_whole(told: &Value) -> bool {
    let members = told["members"].as_array().unwrap();
    told["pending_bytes"] == 0
        && members
            .iter()
            .all(|member| !member["has_data"].as_bool().unwrap() || member["state"] == "active")
}

fn has_moved(told: &Value) -> bool {
    told["volumes"][0]["relayout"].is_null() && is_whole(told)
}

/// Writes files one after the other, each durable, and looks at each again.
struct Writer {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<usize>,
}

impl Writer {
    fn start(dir: &Path) -> Self {
        let (stop, dir) = (Arc::new(AtomicBool::new(false)), dir.to_owned());
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let mut rounds = 0;
            while !stopped.load(Ordering::Relaxed) {
                let (path, content) = (
                    dir.join(format!("writer{}", rounds % 4)),
                    pattern(256 << 10 | (rounds % 7) << 9),
                );
                let file = std::fs::File::create(&path).unwrap();
                file.write_all_at(&content, 0).unwrap();
                file.sync_all().unwrap();
                assert!(std::fs::read(&path).unwrap() == content, "round {rounds}");
                rounds += 1;
            }
            rounds
        });
        Self { stop, thread }
    }

    fn finish(self) {
        self.stop.store(true, Ordering::Relaxed);
        assert!(self.thread.join().unwrap() > 0);
    }
}

/// Formats and mounts a group, with a file on it that stays.
fn mounted(scratch: &Scratch, members: &[PathBuf]) -> (PathBuf, Vec<u8>) {
    bedplate(["format", text(&members[0])]).succeeds();
    let (dir, content) = (scratch.directory("mnt"), pattern(6 << 20));
    bedplate(["mount", text(&members[0]), text(&dir)]).succeeds();
    std::fs::write(dir.join("still"), &content).unwrap();
    std::fs::File::open(dir.join("still")).unwrap().sync_all().unwrap();
    (dir, content)
}

/// Ends a mount and looks at everything once more.
fn is_sound(member: &str, content: &[u8]) {
    bedplate(["unmount", member]).succeeds();
    bedplate(["check", member]).succeeds();
    let scrub = bedplate(["volume", "scrub", member]);
    if show(member)["volumes"][0]["copies"] == 1 && show(member)["volumes"][0]["layout"] != "raid5"
    {
        scrub.fails(1, "nothing to compare");
    } else {
        scrub.succeeds().says(" 0 differences");
    }
    assert!(bedplate(["cat", member, "/still"]).succeeds().stdout_bytes() == content);
}

/// S-87, S-88: a member that is cut short dies, moves into what the others keep in reserve, and
/// goes back to its device; writers notice nothing.
#[test]
fn s_87_a_member_that_dies_on_a_live_mount_moves_into_the_reserve_and_back() {
    if !can_mount("volume_live") {
        return;
    }
    let scratch = Scratch::new();
    let members = group(&scratch, "stripe-mirror", 4, &["--reserve", "16M"]);
    let first = text(&members[0]);
    let (dir, content) = mounted(&scratch, &members);
    let writer = Writer::start(&dir);
    let image = std::fs::File::options().write(true).open(&members[1]).unwrap();
    image.set_len(1 << 20).unwrap();
    let (start, mut progress) = (Instant::now(), String::new());
    let relocated = |told: &Value| {
        told["members"][1]["lies_on"].as_array().is_some_and(|hosts| !hosts.is_empty())
    };
    while !(relocated(&show(first)) && is_whole(&show(first))) {
        let shown = bedplate(["volume", "show", first]).stdout();
        progress = shown
            .lines()
            .find(|line| line.contains("to go until all copies agree"))
            .map_or(progress, str::to_owned);
        assert!(start.elapsed() < LIMIT, "{shown}");
    }
    // Twenty MiB may be filled between two looks.
    assert!(
        progress.is_empty() || progress.contains("MiB to go") || progress.contains("KiB to go"),
        "{progress}"
    );
    let told = show(first);
    let hosts: Vec<&str> = told["members"][1]["lies_on"]
        .as_array()
        .unwrap()
        .iter()
        .map(|host| host.as_str().unwrap())
        .collect();
    assert!(
        hosts.iter().all(|host| *host == text(&members[2]) || *host == text(&members[3])),
        "not on what mirrors it: {hosts:?}"
    );
    let shown = bedplate(["volume", "show", first]).succeeds().stdout();
    assert!(
        shown.contains("lies in free space of")
            && shown.contains("volume unrelocate")
            && shown.contains("failed: "),
        "{shown}"
    );
    bedplate(["volume", "relayout", first, "--unit", "32k"])
        .fails(1, "move it back with 'bedplate volume unrelocate' first");
    // Its device is whole again.
    image.set_len(40 << 20).unwrap();
    bedplate(["volume", "unrelocate", first]).succeeds();
    let told = wait(first, "back", |told| is_whole(told) && !relocated(told));
    assert_eq!(
        (told["members"].as_array().unwrap().len(), told["members"][1]["path"].as_str()),
        (4, members[1].to_str())
    );
    writer.finish();
    bedplate(["volume", "unrelocate", first]).fails(1, "no member lies in free space");
    is_sound(first, &content);
    // What moved back is all there is of its part.
    std::fs::remove_file(&members[0]).unwrap();
    bedplate(["volume", "import", "--degraded", text(&members[1])]).succeeds();
    assert!(bedplate(["cat", text(&members[1]), "/still"]).succeeds().stdout_bytes() == content);
}

/// Why a member left stood in the mount's log alone.
#[test]
fn a_member_that_failed_on_a_live_mount_is_shown_with_the_reason() {
    if !can_mount("volume_live") {
        return;
    }
    let scratch = Scratch::new();
    let members = group(&scratch, "mirror", 2, &[]);
    let first = text(&members[0]);
    let (dir, content) = mounted(&scratch, &members);
    std::fs::File::options().write(true).open(&members[1]).unwrap().set_len(1 << 20).unwrap();
    let file = std::fs::File::create(dir.join("more")).unwrap();
    file.write_all_at(&content, 0).unwrap();
    file.sync_all().unwrap();
    drop(file);
    let told = wait(first, "degraded", |told| told["members"][1]["state"] == "failed");
    let failed = format!("{} failed: ", text(&members[1]));
    assert!(
        told["notes"]
            .as_array()
            .unwrap()
            .iter()
            .any(|note| note.as_str().unwrap().starts_with(&failed)),
        "{told}"
    );
    let shown = bedplate(["volume", "show", first]).ends(1).stdout();
    assert!(shown.contains(&failed) && shown.contains("no spare stands in for it"), "{shown}");
    bedplate(["unmount", first]).succeeds();
}

/// S-89, S-91: to a RAID-5 and back, paused, resumed and turned round by command, during writes.
#[test]
fn s_89_a_live_mount_becomes_a_raid5_and_is_what_it_was_again() {
    if !can_mount("volume_live") {
        return;
    }
    let raid5 = &["--layout", "raid5", "--columns", "3"][..];
    becomes_and_is_again(
        "stripe",
        1,
        ("raid5", raid5),
        &["--layout", "stripe", "--columns", "2", "--yes"],
    );
    becomes_and_is_again("mirror", 2, ("raid5", raid5), &["--layout", "mirror", "--plexes", "2"]);
}

/// S-91: members that are concatenated become a stripe of the same, and back.
#[test]
fn s_91_a_live_concatenation_becomes_a_stripe_of_the_same_members_and_is_one_again() {
    if can_mount("volume_live") {
        becomes_and_is_again(
            "concat",
            0,
            ("stripe", &["--layout", "stripe"]),
            &["--layout", "concat"],
        );
    }
}

/// A mounted group of two members of a layout, and so many more, becomes something else and what it
/// was.
fn becomes_and_is_again(layout: &str, added: usize, (next, to): (&str, &[&str]), back: &[&str]) {
    let scratch = Scratch::new();
    let members = group(&scratch, layout, 2, &[]);
    let first = text(&members[0]);
    let (dir, content) = mounted(&scratch, &members);
    for number in 0..added {
        bedplate([
            "volume",
            "add",
            first,
            text(&another(&scratch, &format!("m{}.img", 2 + number))),
        ])
        .succeeds();
    }
    bedplate(["volume", "tune", first, "--foreground", "off"]).succeeds();
    let writer = Writer::start(&dir);
    let relayout = |more: &[&str]| bedplate(["volume", "relayout", first].iter().chain(more));
    relayout(&[to, &["--step", "256K"]].concat()).succeeds();
    relayout(&["--pause"]).succeeds();
    let moved = || show(first)["volumes"][0]["relayout"]["moved_bytes"].as_u64().unwrap();
    let stands = (
        wait(first, "paused", |told| told["volumes"][0]["relayout"]["state"] == "paused"),
        moved(),
    )
        .1;
    assert_eq!(moved(), stands);
    let shown = bedplate(["volume", "show", first]).succeeds().stdout();
    assert!(shown.contains(&format!("becomes {next}, paused: ")), "{shown}");
    relayout(to).fails(1, "a relayout is under way");
    relayout(&["--resume"]).succeeds();
    // It may be over by now: then there is nothing to turn round.
    if relayout(&["--reverse"]).code() == 0 {
        wait(first, "turned round", has_moved);
        assert_eq!(show(first)["volumes"][0]["layout"].as_str(), Some(layout));
        relayout(to).succeeds();
    }
    wait(first, "moved", has_moved);
    assert_eq!(show(first)["volumes"][0]["layout"].as_str(), Some(next));
    assert!(std::fs::read(dir.join("still")).unwrap() == content);
    // It took the room of all its members, and the file system did not.
    if layout == "mirror" {
        bedplate(["volume", "shrink", first, "36M"]).succeeds();
        wait(first, "smaller", has_moved);
    }
    relayout(back).succeeds();
    wait(first, "moved back", has_moved);
    writer.finish();
    assert_eq!(show(first)["volumes"][0]["layout"].as_str(), Some(layout));
    is_sound(first, &content);
}

/// S-122: the file says so itself, and no other one does.
fn explained(group: &str, dir: &Path, repaired: bool) {
    let of = |name: &str| bedplate(["--json", "explain", text(&dir.join(name))]).succeeds().json();
    let damage = |told: &Value| {
        told["findings"]
            .as_array()
            .unwrap()
            .iter()
            .find(|finding| finding["kind"] == "copies_differ")
            .cloned()
    };
    let finding = damage(&of("some.db")).unwrap();
    let change = if repaired { "nothing" } else { "volume scrub --repair" };
    assert!(
        finding["what"].as_str().unwrap().contains("the last scrub, which ended 20"),
        "{finding}"
    );
    assert!(
        finding["what"].as_str().unwrap().contains("SQLite page 17")
            && finding["change"].as_str().unwrap().contains(change),
        "{finding}"
    );
    assert_eq!(damage(&of("still")), None);
    bedplate(["explain", text(dir)]).succeeds().says("some.db, byte 70144, SQLite page 17");
    bedplate(["volume", "stat", group]).succeeds().says("some.db, byte 70144, SQLite page 17");
}

/// S-64, S-96, S-106: a bit that turned on one plex is found by the schedule of a live mount,
/// judged by its database page, told with file, page and member, and mended when that is asked for.
#[test]
fn s_106_a_scrub_on_schedule_finds_a_page_on_a_live_mount_and_tells_of_it() {
    if !can_mount("volume_live") {
        return;
    }
    const PAGE_BYTES: usize = 4096;
    let scratch = Scratch::new();
    let members = group(&scratch, "mirror", 2, &[]);
    let (first, wrong) = (text(&members[0]), text(&members[1]));
    let (dir, still) = mounted(&scratch, &members);
    let content = checksummed(PAGE_BYTES, 64);
    std::fs::write(dir.join("some.db"), &content).unwrap();
    std::fs::File::open(dir.join("some.db")).unwrap().sync_all().unwrap();
    let writer = Writer::start(&dir);
    let image = std::fs::File::options().read(true).write(true).open(&members[1]).unwrap();
    let bytes = std::fs::read(&members[1]).unwrap();
    let needle = &content[17 * PAGE_BYTES..17 * PAGE_BYTES + 64];
    let at =
        (bytes.windows(needle.len()).rposition(|window| window == needle).unwrap() + 1000) as u64;
    image.write_all_at(&[bytes[at as usize] ^ 4], at).unwrap();
    image.sync_all().unwrap();
    let ended = |told: &Value| told["scrub"]["last"]["ended_s"].is_u64();
    for (how, repaired) in [(&["--every", "7d"][..], false), (&["--every", "7d", "--repair"], true)]
    {
        // Turned on, it begins at once.
        bedplate(["volume", "scrub", first, "--every", "off"]).succeeds();
        bedplate(["volume", "scrub", first].iter().chain(how)).succeeds();
        let told = wait(first, "scrubbed", ended);
        let last = &told["scrub"]["last"];
        assert_eq!(
            (last["differences"].as_u64(), last["left"].as_u64()),
            (Some(1), Some(u64::from(!repaired))),
            "{told}"
        );
        let found = &last["found"][0];
        assert_eq!(
            (found["right"].as_str(), found["repaired"].as_bool()),
            (Some(first), Some(repaired)),
            "{told}"
        );
        assert_eq!(found["file"].as_str(), Some("/some.db, byte 70144, SQLite page 17"), "{told}");
        assert!(
            found["copies"][1][0] == wrong
                && found["copies"][1][1].as_u64().unwrap().abs_diff(at) < 512,
            "{told}"
        );
        explained(first, &dir, repaired);
    }
    writer.finish();
    is_sound(first, &still);
    // What it found is told also when the group is not mounted.
    let shown = bedplate(["volume", "show", wrong]).succeeds().stdout();
    assert!(
        shown.contains("1 difference, 0 left")
            && shown.contains("SQLite page 17): ")
            && shown.contains("the others are mended from it"),
        "{shown}"
    );
}
