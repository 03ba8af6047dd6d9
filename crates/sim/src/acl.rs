//! The access control lists of workloads.

/// An access control list that names a user, with permissions of owner, mask and others.
pub(crate) fn acl(bits: u32) -> Vec<u8> {
    let entries = [(1_u16, bits >> 6, u32::MAX), (2, 6, 1000), (4, 4, u32::MAX)];
    let rest = [(16, bits >> 3, u32::MAX), (32, bits, u32::MAX)];
    let mut bytes = 2_u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries.into_iter().chain(rest) {
        let permissions = (permissions & 7) as u16;
        bytes.extend([tag.to_le_bytes(), permissions.to_le_bytes()].concat());
        bytes.extend(id.to_le_bytes());
    }
    bytes
}

/// The attribute that holds it.
pub(crate) fn acl_name() -> String {
    String::from_utf8_lossy(bedplate_fs::AclKind::Access.name()).into_owned()
}
