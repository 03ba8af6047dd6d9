//! Power cuts between any two operations of any two members while a mirror is split or joined.

use std::sync::Arc;

use bedplate_block::BlockDevice;
use bedplate_volume::{Group, Id, ImportOptions, Label};

use super::fixture::{Fixture, quiet};
use super::split::{SHAPES, fill, is_whole, others, shown, some, volume, which, write};

type Devices = Vec<Arc<dyn BlockDevice>>;

fn labels(devices: &[Arc<dyn BlockDevice>]) -> Vec<Label> {
    devices.iter().map(|device| Label::read(&**device).unwrap()).collect()
}

/// Returns the devices that belong to a group, as a user's commands find them: those with its
/// identity and those that it takes in.
fn belonging(devices: &[Arc<dyn BlockDevice>], id: Id) -> Devices {
    let labels = labels(devices);
    let newest = labels
        .iter()
        .map(|label| &label.config)
        .filter(|config| config.id == id)
        .max_by_key(|config| config.event);
    let Some(newest) = newest else { return Vec::new() };
    let belongs = |label: &Label| {
        if label.config.id == id {
            label.has_place_in(newest)
        } else {
            label.joined_to(newest).is_some()
        }
    };
    devices
        .iter()
        .zip(&labels)
        .filter(|(_, label)| belongs(label))
        .map(|(device, _)| Arc::clone(device))
        .collect()
}

fn open(devices: &[Arc<dyn BlockDevice>], id: Id, context: &str) -> Group {
    Group::import(&belonging(devices, id), &quiet())
        .unwrap_or_else(|error| panic!("{context}: {error}"))
}

fn cuts(fixture: &Fixture, every: usize, mut judge: impl FnMut(Devices, &str)) -> usize {
    let mut states = 0;
    for (at, moment) in fixture.moments().iter().enumerate().step_by(every) {
        for choice in [0, 1, 2, at as u64 + 4] {
            let left = fixture.after_cut(moment, choice);
            judge(
                left.into_iter().map(|device| device as _).collect(),
                &format!("cut at {at}, choice {choice}"),
            );
            states += 1;
        }
    }
    states
}

/// S-592, I-SPL-1: after a cut in a split the group is whole and in one piece, or it opens with what
/// is left, and the half opens too: at the latest once the group was open.
#[test]
fn s_592_a_cut_in_a_split_leaves_one_group_or_two_whole_ones() {
    let (mut states, mut split) = (0, 0);
    for (shape, copies, count, members) in SHAPES {
        let fixture = Fixture::new(count, 110);
        fixture.create(shape, copies, 0);
        let group = fixture.import();
        fill(&group, 1);
        write(&group, 2, 5);
        let expected = shown(&group);
        let id = group.config().id;
        fixture.make_all_durable();
        group.split(&which(members), "half").unwrap();
        // What the group writes from here on is not the half's.
        write(&group, 3, 6);
        let mut after = expected.clone();
        after[3] = 6;
        drop(group);
        states += cuts(&fixture, 1, |left, context| {
            let context = format!("{shape:?} of {copies}, {context}");
            let group = open(&left, id, &context);
            let told = group.config().split;
            let seen = shown(&group);
            assert!(seen == expected || seen == after, "{context}: {seen:?}");
            group.sync().unwrap();
            if told.is_none() {
                assert_eq!(seen, expected, "{context}: nothing is written before the split");
                is_whole(&group, &seen, &context);
                return;
            }
            split += 1;
            let half: Devices = members.iter().map(|at| Arc::clone(&left[*at])).collect();
            assert!(labels(&half).iter().all(|label| label.config.id != id), "{context}");
            let half = Group::import(&half, &quiet())
                .unwrap_or_else(|error| panic!("{context}: the half: {error}"));
            assert_eq!(half.config().name, "half");
            assert_eq!(shown(&half), expected, "{context}");
            // And they can be joined.
            write(&half, 7, 9);
            drop((group, half));
            let stay: Devices =
                others(count, members).iter().map(|at| Arc::clone(&left[*at])).collect();
            let half: Devices = members.iter().map(|at| Arc::clone(&left[*at])).collect();
            let group = Group::join(&stay, &half, "tank", &quiet())
                .unwrap_or_else(|error| panic!("{context}: {error}"));
            group.sync().unwrap();
            is_whole(&group, &seen, &context);
        });
    }
    assert!(split > 0, "a cut came after the labels");
    println!("power cuts in splits: {states} states tried, {split} of them split, 0 violations");
}

/// S-594: after a cut in a join the halves are as they were, or the kept one opens with all devices
/// and ends it; no read of it ever returns what the other one wrote.
#[test]
fn s_594_a_cut_in_a_join_leaves_both_halves_or_the_kept_one() {
    let (mut states, mut begun) = (0, 0);
    for (shape, copies, count, members) in SHAPES {
        for keeps_half in [false, true] {
            let fixture = Fixture::new(count, 111);
            fixture.create(shape, copies, 0);
            let group = fixture.import();
            fill(&group, 1);
            group.split(&which(members), "half").unwrap();
            let stay = others(count, members);
            let half = Group::import(&some(&fixture, members), &quiet()).unwrap();
            write(&group, 2, 7);
            write(&group, 4, 7);
            write(&half, 4, 8);
            write(&half, 5, 8);
            let both = [(group.config().id, shown(&group)), (half.config().id, shown(&half))];
            drop((group, half));
            fixture.make_all_durable();
            let sides = [some(&fixture, &stay), some(&fixture, members)];
            let (kept, other) = if keeps_half { (1, 0) } else { (0, 1) };
            let group = Group::join(&sides[kept], &sides[other], "tank", &quiet()).unwrap();
            group.sync().unwrap();
            group.clean_up().unwrap();
            group.clean_up().unwrap();
            drop(group);
            let (kept, lost) = (&both[kept], &both[other]);
            states += cuts(&fixture, 5, |left, context| {
                let context =
                    format!("{shape:?} of {copies}, the half kept: {keeps_half}, {context}");
                let begins = labels(&left).iter().any(|label| {
                    label.config.id == kept.0
                        && label.config.split.as_ref().is_none_or(|split| split.joins)
                });
                let group = open(&left, kept.0, &context);
                assert_eq!(shown(&group), kept.1, "{context}");
                group.sync().unwrap();
                if begins {
                    begun += 1;
                    is_whole(&group, &kept.1, &context);
                    assert_eq!(group.config().members.len(), count);
                    drop(group);
                    let again = Group::import(&left, &quiet()).unwrap();
                    is_whole(&again, &kept.1, &context);
                    return;
                }
                let other = open(&left, lost.0, &context);
                assert_eq!(shown(&other), lost.1, "{context}");
            });
        }
    }
    assert!(begun > 0, "a cut came after the decision");
    println!("power cuts in joins: {states} states tried, {begun} of them begun, 0 violations");
}

/// S-594: cut in a join, the half that is not kept is used once more as what it was, and the kept one
/// grows apart from it too: what either wrote is copied when the join goes on.
#[test]
fn s_594_a_half_that_was_used_after_the_decision_is_written_over_all_the_same() {
    for (shape, copies, count, members) in SHAPES {
        let fixture = Fixture::new(count, 112);
        fixture.create(shape, copies, 0);
        let group = fixture.import();
        fill(&group, 1);
        group.split(&which(members), "half").unwrap();
        let ids = [
            group.config().id,
            Group::import(&some(&fixture, members), &quiet()).unwrap().config().id,
        ];
        drop(group);
        fixture.make_all_durable();
        let stay = others(count, members);
        drop(
            Group::join(&some(&fixture, &stay), &some(&fixture, members), "tank", &quiet())
                .unwrap(),
        );
        let mut apart = 0;
        cuts(&fixture, 2, |left, context| {
            let context = format!("{shape:?} of {copies}, {context}");
            let all = labels(&left);
            let begins = all.iter().any(|label| {
                label.config.id == ids[0]
                    && label.config.split.as_ref().is_none_or(|split| split.joins)
            });
            let half: Devices = members.iter().map(|at| Arc::clone(&left[*at])).collect();
            if !begins || labels(&half).iter().any(|label| label.config.id != ids[1]) {
                return;
            }
            apart += 1;
            let half =
                Group::import(&half, &quiet()).unwrap_or_else(|error| panic!("{context}: {error}"));
            (6..9).for_each(|region| write(&half, region, 8));
            drop(half);
            let stay: Devices = stay.iter().map(|at| Arc::clone(&left[*at])).collect();
            // Its labels may count them as members that are away.
            let alone = ImportOptions { degraded: true, ..quiet() };
            let group = Group::import(&stay, &alone).unwrap();
            write(&group, 8, 7);
            let expected = shown(&group);
            drop(group);
            let group = open(&left, ids[0], &context);
            assert_eq!(shown(&group), expected, "{context}");
            assert!(volume(&group).size_bytes() > 0);
            group.sync().unwrap();
            is_whole(&group, &expected, &context);
        });
        assert!(apart > 0, "{shape:?}: a cut came between the decision and the first label");
    }
}
