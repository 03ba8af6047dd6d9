//! Access control lists.

use bedplate_store::{Table, pair_key};

use super::{Forged, put};
use crate::{AclKind, ErrorKind, FindingKind};

/// S-495: bytes of a list that are none are found, and give the rights of no list.
#[test]
fn s_495_lists_that_are_none_are_found_and_the_note_on_lists_is_mended() {
    let list =
        [(1_u16, 6_u16), (4, 4), (32, 4)].iter().fold(vec![2, 0, 0, 0], |mut list, entry| {
            list.extend([entry.0.to_le_bytes(), entry.1.to_le_bytes()].concat());
            list.extend(u32::MAX.to_le_bytes());
            list
        });
    let name = AclKind::Access.name();
    let v = Forged::new();
    v.put(&[put(Table::Xattr, pair_key(v.one, name), list.clone())]);
    v.finds(&[(FindingKind::Setting, "1 access control lists")], true);
    assert!(v.mount().unwrap().has_acls());
    v.put(&[put(Table::Xattr, pair_key(v.one, name), list[..9].to_vec())]);
    let fs = v.mount().unwrap();
    let refused = fs.get_xattr(v.one, name).unwrap_err();
    assert_eq!(refused.kind, ErrorKind::Corrupt, "S-495: {refused}");
    fs.unmount().unwrap();
    v.finds(&[(FindingKind::Row, "is no access control list")], false);
}
