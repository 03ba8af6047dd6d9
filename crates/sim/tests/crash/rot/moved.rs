//! Members that rot before what they hold is moved to another layout, or copied to a member that
//! takes the place of another.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bedplate_block::{AlignedBuf, BlockDevice, MemoryDevice};
use bedplate_fs::OpenOptions;
use bedplate_volume::{Group, Mistake, Role, Shape, Target, Undecided};

use super::live::{
    Asks, ILLS, Ill, Kind, Live, MEMBER_BYTES, MIRROR, PARITY, WAYS, Way, content, live,
};
use super::right;

/// A change of the layout: from what, with how many members more, and to what.
type Change = (Kind, usize, Target);

const MIRROR_OF_THREE: Kind = (Some(Shape::Mirror), 3);

fn changes() -> [Change; 3] {
    let to = Target::default();
    [
        (MIRROR, 0, Target { shape: Some(Shape::Stripe), columns: Some(2), ..to }),
        (MIRROR, 2, Target { columns: Some(2), ..to }),
        (PARITY, 1, Target { columns: Some(4), ..to }),
    ]
}

/// Lets the group ask the file system which copy is right.
fn lend(live: &Live) {
    let asks = Asks::of(live);
    let provider = move || Some(Box::new(asks.clone()) as _);
    live.group.as_ref().unwrap().set_arbiter_provider(Some(Arc::new(provider)));
}

/// Adds members that bring room.
fn add(live: &Live, count: usize) {
    for _ in 0..count {
        let device: Arc<dyn BlockDevice> = MemoryDevice::new(MEMBER_BYTES);
        live.group.as_ref().unwrap().add_member(&device).unwrap();
    }
}

/// Runs `work` while files are read, if that is wanted, and another is written; not on a RAID-5, whose
/// parity may come to fit what has rotted in a row that is written to.
pub fn beside_programs(live: &Live, reads: bool, work: impl FnOnce()) {
    let writes = live.group.as_ref().unwrap().config().volumes[0].layout.copies() > 1;
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            while reads && !ended.load(Ordering::Relaxed) {
                for (path, way) in live.files.keys().zip(WAYS) {
                    right(live, way, path).unwrap();
                }
            }
        });
        let writer = scope.spawn(|| {
            let file = live.fs.open("/w", &OpenOptions::create()).unwrap();
            let mut seed = 1000;
            while writes && !ended.load(Ordering::Relaxed) {
                let written = content(seed);
                file.write_at(&written, 0).unwrap();
                file.sync_data().unwrap();
                let mut read = AlignedBuf::zeroed(written.len());
                file.read_at(&mut read, 0).unwrap();
                assert!(read[..] == written[..], "seed {seed}");
                seed += 1;
            }
        });
        let over = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        ended.store(true, Ordering::Relaxed);
        reader.join().unwrap();
        writer.join().unwrap();
        over.unwrap();
    });
}

/// Lets a member rot, has the group work with a mistake, and returns what is not as it was written.
fn stays_right(
    live: Live,
    (ill, member): (Ill, usize),
    reads: bool,
    mistake: Option<Mistake>,
    work: impl FnOnce(&Group),
) -> Result<(), String> {
    lend(&live);
    ill.befall(&live, member, &live.places(member), member % 3);
    let group = live.group.as_ref().unwrap();
    beside_programs(&live, reads, || {
        bedplate_volume::plant(mistake);
        work(group);
        bedplate_volume::plant(None);
    });
    let what = |e: String| format!("{ill:?}, member {member}: {e}");
    live.files.keys().try_for_each(|path| right(&live, Way::Blocks, path)).map_err(what)?;
    assert_eq!(live.integrity().lost_blocks, 0);
    group.set_arbiter_provider(None);
    live.end();
    Ok(())
}

/// Lets a member rot and changes the layout.
fn moves(
    (kind, added, to): &Change,
    ill: (Ill, usize),
    reads: bool,
    mistake: Option<Mistake>,
) -> Result<(), String> {
    let live = live(*kind);
    add(&live, *added);
    let moved = stays_right(live, ill, reads, mistake, |group| {
        let size_bytes = group.volume(Role::Data).unwrap().size_bytes();
        group.relayout(Role::Data, to, size_bytes).unwrap();
        group.run_relayout(&mut |_| true).unwrap();
        assert!(group.relayout_progress().is_none(), "it is over");
    });
    moved.map_err(|e| format!("{kind:?}, {e}"))
}

/// S-498: whatever has befallen a member, what is moved is what was written, while programs write,
/// and read, or nothing reads it before.
#[test]
fn s_498_what_has_rotted_beneath_files_in_use_is_moved_right() {
    for change in changes() {
        for (number, ill) in ILLS.into_iter().enumerate() {
            let (kind, _, _) = change;
            moves(&change, (ill, number % kind.1), number % 2 == 1, None).unwrap();
        }
    }
}

/// A relayout that does not compare is noticed.
#[test]
fn s_498_a_relayout_that_copies_what_has_rotted() {
    let [change, ..] = changes();
    let mistake = Some(Mistake::SourceNotCompared);
    // Which copy is read does not only follow from which has rotted.
    let found = (0..16).find_map(|turn| moves(&change, (Ill::Bit, turn % 2), false, mistake).err());
    println!("SourceNotCompared: {}", found.expect("nothing noticed it"));
}

/// Lets a member of a mirror of three rot, and another come in the place of the third.
fn fills(ill: Ill, (rotten, gone): (usize, usize), mistake: Option<Mistake>) -> Result<(), String> {
    let new: Arc<dyn BlockDevice> = MemoryDevice::new(MEMBER_BYTES);
    let filled = stays_right(live(MIRROR_OF_THREE), (ill, rotten), false, mistake, |group| {
        group.replace(gone, &new).unwrap();
        group.sync().unwrap();
        let found = group.scrub(false, &Undecided, &mut |_| ()).unwrap().differences;
        assert!(mistake.is_some() || found.is_empty(), "all three are alike: {found:?}");
    });
    filled.map_err(|e| format!("{gone} is replaced, {e}"))
}

/// S-499: whatever has befallen a member, another is filled with what was written.
#[test]
fn s_499_a_member_is_filled_right_beside_one_that_has_rotted() {
    for (number, ill) in ILLS.into_iter().enumerate() {
        let gone = number % 3;
        fills(ill, ((gone + 1 + number / 3) % 3, gone), None).unwrap();
    }
}
