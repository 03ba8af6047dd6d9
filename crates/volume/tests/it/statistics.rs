//! What volumes, plexes and members are told to have done.

use bedplate_block::{AlignedBuf, QueueOptions, Request, RequestKind, Segment};
use bedplate_volume::{MemberStatistics, Role, Shape};

use super::fixture::Fixture;

/// S-97
#[test]
fn s_97_statistics_add_up_from_members_to_plexes_and_are_apart_from_the_volumes() {
    let cases: [(Shape, usize, &[&[usize]]); 5] = [
        (Shape::Stripe, 4, &[&[0, 1, 2, 3]]),
        (Shape::Mirror, 3, &[&[0], &[1], &[2]]),
        (Shape::StripeMirror, 4, &[&[0, 2], &[1, 3]]),
        (Shape::MirrorStripe, 4, &[&[0, 1], &[2, 3]]),
        (Shape::Raid5, 4, &[&[0, 1, 2, 3]]),
    ];
    for (shape, members, plexes) in cases {
        let fixture = Fixture::new(members, 50);
        fixture.create(shape, 2, 0);
        let group = fixture.import();
        group.sync().unwrap();
        let device = group.volume(Role::Data).unwrap();
        device.write_at(&AlignedBuf::zeroed(4096), 0).unwrap();
        group.reset_statistics();
        assert!(group.plex_statistics(Role::Data).iter().map(|plex| &plex.statistics).all(
            |told| *told
                == MemberStatistics {
                    measured_us: told.measured_us,
                    ..MemberStatistics::default()
                }
        ));
        let mut queue =
            device.queue(&QueueOptions { depth_max: 8, ..QueueOptions::default() }).unwrap();
        for n in 0..5 {
            let first = Segment { offset: n * 4096, len: 4096 };
            let request = Request {
                token: n,
                kind: RequestKind::Write,
                buf: Some(AlignedBuf::zeroed(4096)),
                first,
                rest: Vec::new(),
            };
            queue.push(request).unwrap();
        }
        let mut done = Vec::new();
        while done.len() < 5 {
            queue.complete(1, &mut done).unwrap();
        }
        device.write_at(&AlignedBuf::zeroed(8192), 32 << 10).unwrap();
        device.read_at(&mut AlignedBuf::zeroed(4096), 0).unwrap();
        device.flush().unwrap();
        let told = group.volume_statistics(Role::Data).unwrap();
        assert_eq!(
            (
                told.writes.operations,
                told.writes.bytes,
                told.reads.operations,
                told.flushes.operations
            ),
            (6, 28_672, 1, 1),
            "{shape:?}"
        );
        assert_eq!(
            (
                told.queue_depth,
                told.writes.errors,
                told.writes.histogram.iter().map(|(_, count)| count).sum::<u64>()
            ),
            (0, 0, 6)
        );
        let (found, each) = (group.plex_statistics(Role::Data), group.statistics());
        assert_eq!(
            found.iter().map(|plex| &plex.members[..]).collect::<Vec<_>>(),
            plexes,
            "{shape:?}"
        );
        for plex in &found {
            let sum: u64 = plex
                .members
                .iter()
                .map(|member| each[*member].as_ref().unwrap().writes.bytes)
                .sum();
            assert_eq!(plex.statistics.writes.bytes, sum);
            if shape != Shape::Raid5 {
                assert_eq!(sum, 28_672, "{shape:?}: every plex gets every write");
            }
        }
        assert!(found.iter().any(|plex| plex.statistics.reads.operations > 0), "{shape:?}");
        drop(queue);
    }
}
