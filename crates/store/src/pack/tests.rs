use proptest::prelude::*;

use super::*;
use crate::ErrorKind;

const INO: InodeNo = InodeNo(5);

fn row(start: u64, len: u32, birth: u32, unwritten: bool) -> ExtentRow {
    let state =
        if unwritten { ExtentState::CODES[1 + start as usize % 2] } else { ExtentState::Written };
    ExtentRow { start: BlockNo(start), len, state, birth: Epoch(birth) }
}

/// Extents in the order of the file, of any numbers.
fn any_extents() -> impl Strategy<Value = Vec<Placed>> {
    let near = (0..3_u64, 1..4_u32, 0..1_u64 << 40, 0..4_u32, any::<bool>());
    let wild = (0..1_u64 << 50, any::<u32>(), any::<u64>(), any::<u32>(), any::<bool>());
    let one = prop_oneof![4 => near, 1 => wild];
    (any::<u32>(), proptest::collection::vec(one, 2..80)).prop_map(|(first, parts)| {
        let mut at = u64::from(first);
        let mut place = |(gap, len, start, birth, unwritten): (u64, u32, u64, u32, bool)| {
            let (len, start) = (len.max(1), start.min(u64::MAX - u64::from(u32::MAX)));
            at += gap;
            let placed = (FileBlock(at), row(start, len, birth, unwritten));
            at += u64::from(len);
            placed
        };
        parts.into_iter().map(&mut place).collect()
    })
}

proptest! {
    /// S-270, I-PCK-1: what is packed comes out again, all of it and one by one; between extents
    /// there is nothing.
    #[test]
    fn s_270_i_pck_1_extents_survive_being_packed(extents in any_extents()) {
        let value = encode(INO, &extents);
        let key = pack_key(INO, extents[0].0);
        prop_assert_eq!(decode(&key, &value).unwrap(), extents.clone());
        let pack = Pack::open(&key, &value).unwrap();
        for (at, row) in &extents {
            prop_assert_eq!(pack.find(*at).unwrap(), Some(*row));
            let within = FileBlock(at.0 + 1);
            let next = extents.iter().find(|(at, _)| *at == within).map(|(_, row)| *row);
            prop_assert_eq!(pack.find(within).unwrap(), next);
        }
    }

    /// S-412, I-PCK-1: a pack whose extents get other places, births and states is the one that
    /// they are packed to, to the byte, and each change is told with what was there; what is
    /// anything else is refused.
    #[test]
    fn s_412_i_pck_1_a_changed_pack_is_that_of_its_extents(
        mut extents in any_extents(),
        changes in proptest::collection::btree_map(
            0..80_usize,
            (0..1_u64 << 40, 0..4_u32, any::<bool>(), 0..9_u8),
            0..12,
        ),
    ) {
        let value = encode(INO, &extents);
        let key = pack_key(INO, extents[0].0);
        let widest = extents.windows(2).filter_map(|pair| gap(&pair[0], &pair[1])).max();
        let Some(mut patch) = Patch::open(&key, &value, 4096) else {
            let wild = extents.iter().any(|(at, row)| at.0 > 1 << 45 || row.start.0 > 1 << 45);
            prop_assert!(wild || widest >= Some(2048), "it is an ordinary pack");
            return Ok(());
        };
        prop_assert!(widest < Some(4096));
        prop_assert_eq!(patch.count(), extents.len());
        prop_assert_eq!(patch.last_block(), extents[extents.len() - 1].0);
        let before = extents.clone();
        let count = extents.len();
        for (at, (start, birth, unwritten, kind)) in changes.into_iter().take_while(|c| c.0 < count) {
            let (block, old) = extents[at];
            let new = row(start, old.len, birth, unwritten);
            match kind {
                0 if old.len > 1 => prop_assert_eq!(patch.set(FileBlock(block.0 + 1), new), None),
                1 => {
                    let longer = ExtentRow { len: old.len.wrapping_add(1).max(1), ..new };
                    prop_assert_eq!(patch.set(block, longer), None);
                }
                _ => {
                    prop_assert_eq!(patch.set(block, new), Some(old));
                    extents[at].1 = new;
                }
            }
        }
        let changed = (before != extents).then(|| encode(INO, &extents));
        prop_assert_eq!(patch.finish(), changed);
    }

    /// S-272: any bytes are a pack or an error that names inode and block.
    #[test]
    fn s_272_any_bytes_are_a_pack_or_an_error(body in proptest::collection::vec(any::<u8>(), 0..200)) {
        decode_pack(INO, FileBlock(u64::MAX - 2), &body);
        decode_pack(INO, FileBlock(3), &body);
        let error = decode(&pack_key(INO, FileBlock(3)), &body).expect_err("its checksum is wrong");
        prop_assert_eq!(error.kind, ErrorKind::Corrupt);
        prop_assert!(error.message.contains("inode 5 from its file block 3"), "{}", error);
    }

    /// S-272: a pack in which a byte is another one is not decoded, whatever its checksum says.
    #[test]
    fn s_272_a_changed_pack_is_another_or_none(extents in any_extents(), at in any::<usize>(), flip in 1..=255_u8) {
        let mut value = encode(INO, &extents);
        let at = at % value.len();
        value[at] ^= flip;
        let key = pack_key(INO, extents[0].0);
        prop_assert!(decode(&key, &value).is_err(), "the checksum finds it");
        decode_pack(INO, extents[0].0, &value[4..]);
    }
}

/// The body of a pack of two extents of these heads.
fn body(count: u16, heads: [(u64, u8); COLUMNS], columns: &[u8]) -> Vec<u8> {
    let mut out = count.to_le_bytes().to_vec();
    for (least, width) in heads {
        Head { least, width: width.into() }.encode(&mut out);
    }
    out.extend_from_slice(columns);
    out
}

fn decoded(first: u64, body: &[u8]) -> Result<Vec<Placed>> {
    let key = pack_key(INO, FileBlock(first));
    decode(&key, &[&checksum(&key, body).to_le_bytes(), body].concat())
}

#[test]
fn s_272_hostile_packs_are_refused_for_what_they_are() {
    let sound = [(0, 0), (2, 0), (9, 0), (1, 0), (0, 0)];
    assert_eq!(decoded(0, &body(2, sound, &[])).unwrap()[1], (FileBlock(2), row(9, 2, 1, false)));
    let with = |column: usize, head| {
        let mut heads = sound;
        heads[column] = head;
        heads
    };
    let cases: [(&str, u64, Vec<u8>); 13] = [
        ("says that it has 1 extents", 0, body(1, sound, &[])),
        ("says that it has 5000 extents", 0, body(5000, sound, &[])),
        ("ends early", 0, body(2, with(2, (9, 8)), &[1])),
        ("1 bytes too many", 0, body(2, sound, &[1])),
        ("values of 65 bits", 0, body(2, with(1, (2, 65)), &[])),
        ("longer than its values", 0, body(2, with(1, (2, 8)), &[0, 100])),
        ("longer than its values", 0, body(2, with(1, (2, 4)), &[0x11])),
        ("longer than its values", 0, body(2, with(1, (2, 1)), &[0b110])),
        ("its extent 0 is none", 0, body(2, with(1, (0, 0)), &[])),
        ("its extent 0 is none", 0, body(2, with(1, (1 << 32, 0)), &[])),
        ("its extent 0 is none", 0, body(2, with(2, (u64::MAX, 0)), &[])),
        ("its extent 0 is none", 0, body(2, with(4, (3, 0)), &[])),
        ("its extent 1 is none", u64::MAX - 3, body(2, sound, &[])),
    ];
    for (what, first, body) in cases {
        let error = decoded(first, &body).expect_err(what);
        assert!(
            error.kind == ErrorKind::Corrupt && error.message.contains(what),
            "{what}: {error}"
        );
        decode_pack(INO, FileBlock(first), &body);
    }
}

#[test]
fn s_270_a_regular_file_takes_few_bytes() {
    let mut seed = 7_u64;
    let extents: Vec<Placed> = (0..EXTENTS_OF_PACK as u64)
        .map(|unit| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (FileBlock(2 * unit), row((seed >> 36) & !1, 2, 3, false))
        })
        .collect();
    let bytes = encode(INO, &extents).len();
    assert!(bytes <= 4 * extents.len(), "{bytes} bytes of {} extents of 1 TiB", extents.len());
}

#[test]
fn s_271_packs_sort_among_extents() {
    let at = |block| crate::row::extent_key(INO, FileBlock(block)).to_vec();
    let pack = pack_key(INO, FileBlock(7)).to_vec();
    assert!(at(7) < pack && pack < at(8));
    assert_eq!(split_pack_key(&pack), Some((INO, FileBlock(7))));
    assert_eq!(split_pack_key(&at(7)), None);
    assert_eq!(split_pack_key(&[2; KEY_BYTES]), None);
}
