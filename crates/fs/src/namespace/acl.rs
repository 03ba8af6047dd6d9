//! Access control lists as POSIX.1e draft 17 has them, in the bytes that the kernel and `libacl`
//! know, which are stored as they are:
//!
//! ```text
//!   version 2 (u32) │ entry │ entry │ …        entry: tag (u16) │ permissions rwx (u16) │ id (u32)
//!   order: owner · named users · owning group · named groups · mask · others
//! ```
//!
//! With a mask, the group bits of a mode are the mask, and what named users and all groups may do
//! is bounded by it. A list of owner, owning group and others alone says what a mode says, and is
//! not stored.

/// The version of the bytes.
const VERSION: u32 = 2;
const HEADER_BYTES: usize = 4;
const ENTRY_BYTES: usize = 8;
/// The longest list: FUSE takes one page.
const BYTES_MAX: usize = 4096;
/// The id of an entry that names neither a user nor a group.
const UNNAMED: u32 = u32::MAX;
/// Read, write, execute.
const ALL: u16 = 7;

/// Which of the two lists of a directory; files have the first alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AclKind {
    /// Decides which users may do what with the object.
    Access,
    /// What is made in the directory gets it.
    Default,
}

impl AclKind {
    /// Both of them.
    pub const ALL: [Self; 2] = [Self::Access, Self::Default];

    /// Returns the extended attribute that holds the list.
    #[must_use]
    pub const fn name(self) -> &'static [u8] {
        match self {
            Self::Access => b"system.posix_acl_access",
            Self::Default => b"system.posix_acl_default",
        }
    }

    /// Returns the list that an extended attribute holds; `None` for all others.
    #[must_use]
    pub fn of_name(name: &[u8]) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

/// To whom an entry applies, in the order of entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Tag {
    Owner = 0x01,
    User = 0x02,
    OwningGroup = 0x04,
    Group = 0x08,
    Mask = 0x10,
    Others = 0x20,
}

impl Tag {
    fn of_code(code: u16) -> Option<Self> {
        let all =
            [Self::Owner, Self::User, Self::OwningGroup, Self::Group, Self::Mask, Self::Others];
        all.into_iter().find(|tag| *tag as u16 == code)
    }

    fn is_named(self) -> bool {
        matches!(self, Self::User | Self::Group)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Entry {
    tag: Tag,
    permissions: u16,
    id: u32,
}

/// A list that can be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Acl(Vec<Entry>);

impl Acl {
    /// Reads a list; says what is wrong with one that cannot be.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, &'static str> {
        let (version, entries) =
            bytes.split_first_chunk::<HEADER_BYTES>().ok_or("it is shorter than its header")?;
        if u32::from_le_bytes(*version) != VERSION {
            return Err("its version is not 2");
        }
        if bytes.len() > BYTES_MAX {
            return Err("it has more than 4096 bytes");
        }
        let (entries, rest) = entries.as_chunks::<ENTRY_BYTES>();
        if !rest.is_empty() {
            return Err("it ends within an entry");
        }
        let list = Self(entries.iter().map(entry).collect::<Result<_, _>>()?);
        list.check().map(|()| list)
    }

    /// Refuses a list whose entries are not in order, lack one, or have one twice.
    fn check(&self) -> Result<(), &'static str> {
        let ordered = |pair: &[Entry]| {
            pair[0].tag < pair[1].tag || (pair[0].tag == pair[1].tag && pair[0].tag.is_named())
        };
        if !self.0.windows(2).all(ordered) {
            return Err("its entries are not in order, or there is one twice");
        }
        if ![Tag::Owner, Tag::OwningGroup, Tag::Others].iter().all(|tag| self.has(*tag)) {
            return Err("it lacks the entry of the owner, the owning group or others");
        }
        if self.0.iter().any(|entry| entry.tag.is_named()) && !self.has(Tag::Mask) {
            return Err("it names users or groups and has no mask");
        }
        Ok(())
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = VERSION.to_le_bytes().to_vec();
        for entry in &self.0 {
            bytes.extend((entry.tag as u16).to_le_bytes());
            bytes.extend(entry.permissions.to_le_bytes());
            bytes.extend(entry.id.to_le_bytes());
        }
        bytes
    }

    fn has(&self, tag: Tag) -> bool {
        self.0.iter().any(|entry| entry.tag == tag)
    }

    /// Returns whether a mode says all that the list says.
    pub(crate) fn is_mode_alone(&self) -> bool {
        !self.has(Tag::Mask)
    }

    /// The entry that the group bits of a mode are.
    fn group_class(&self) -> Tag {
        if self.has(Tag::Mask) { Tag::Mask } else { Tag::OwningGroup }
    }

    /// The three entries that a mode has bits of, with how far left those stand.
    fn of_mode(&mut self) -> impl Iterator<Item = (&mut Entry, u32)> {
        let group = self.group_class();
        self.0.iter_mut().filter_map(move |entry| match entry.tag {
            Tag::Owner => Some((entry, 6)),
            Tag::Others => Some((entry, 0)),
            tag if tag == group => Some((entry, 3)),
            _ => None,
        })
    }

    /// Returns the permission bits `0o777` of a mode.
    pub(crate) fn mode_bits(&self) -> u32 {
        let group = self.group_class();
        let bits = |tag| {
            let entry = self.0.iter().find(|entry| entry.tag == tag);
            u32::from(entry.expect("a list that can be has one for each class").permissions)
        };
        bits(Tag::Owner) << 6 | bits(group) << 3 | bits(Tag::Others)
    }

    /// Lets the list permit what a mode permits (`chmod`).
    pub(crate) fn follow_mode(&mut self, mode: u32) {
        self.of_mode().for_each(|(entry, shift)| entry.permissions = permissions(mode, shift));
    }

    /// Lets the list permit no more than a mode permits that something is made with.
    pub(crate) fn restrict_to_mode(&mut self, mode: u32) {
        self.of_mode().for_each(|(entry, shift)| entry.permissions &= permissions(mode, shift));
    }
}

fn permissions(mode: u32, shift: u32) -> u16 {
    (mode >> shift) as u16 & ALL
}

fn entry(bytes: &[u8; ENTRY_BYTES]) -> Result<Entry, &'static str> {
    let half = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
    let tag = Tag::of_code(half(0)).ok_or("one of its entries is of no known kind")?;
    let permissions = half(2);
    let id = u32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]);
    if permissions > ALL {
        return Err("one of its entries permits more than to read, write and execute");
    }
    if tag.is_named() == (id == UNNAMED) {
        return Err("one of its entries names nobody, or somebody where it must not");
    }
    Ok(Entry { tag, permissions, id })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(entries: &[(u16, u16, u32)]) -> Vec<u8> {
        let mut bytes = VERSION.to_le_bytes().to_vec();
        for (tag, permissions, id) in entries {
            bytes.extend([tag.to_le_bytes(), permissions.to_le_bytes()].concat());
            bytes.extend(id.to_le_bytes());
        }
        bytes
    }

    const NO: u32 = u32::MAX;
    const NAMED: [(u16, u16, u32); 5] =
        [(1, 7, NO), (2, 6, 1000), (4, 5, NO), (16, 6, NO), (32, 4, NO)];
    const PLAIN: [(u16, u16, u32); 3] = [(1, 6, NO), (4, 4, NO), (32, 0, NO)];

    #[test]
    fn lists_are_what_they_were_and_say_a_mode() {
        let named = Acl::decode(&bytes(&NAMED)).unwrap();
        assert_eq!(named.encode(), bytes(&NAMED));
        assert_eq!((named.mode_bits(), named.is_mode_alone()), (0o764, false));
        let plain = Acl::decode(&bytes(&PLAIN)).unwrap();
        assert_eq!((plain.mode_bits(), plain.is_mode_alone()), (0o640, true));
    }

    #[test]
    fn a_mode_sets_the_mask_or_without_one_the_owning_group() {
        let mut named = Acl::decode(&bytes(&NAMED)).unwrap();
        named.follow_mode(0o100_613);
        let expected = [(1, 6, NO), (2, 6, 1000), (4, 5, NO), (16, 1, NO), (32, 3, NO)];
        assert_eq!(named.encode(), bytes(&expected));
        let mut plain = Acl::decode(&bytes(&PLAIN)).unwrap();
        plain.restrict_to_mode(0o727);
        assert_eq!(plain.mode_bits(), 0o600, "no more than both");
    }

    #[test]
    fn what_cannot_be_is_refused_with_its_reason() {
        let named = bytes(&NAMED);
        let mut old = named.clone();
        old[0] = 1;
        let mut long = bytes(&[(1, 7, NO)]);
        for id in 0..510 {
            long.extend(&bytes(&[(2, 7, id)])[HEADER_BYTES..]);
        }
        long.extend(&bytes(&[(4, 7, NO), (16, 7, NO), (32, 7, NO)])[HEADER_BYTES..]);
        let with = |at: usize, entry: (u16, u16, u32)| {
            let mut entries = NAMED.to_vec();
            entries[at] = entry;
            bytes(&entries)
        };
        let without = |at: usize| {
            let mut entries = NAMED.to_vec();
            entries.remove(at);
            bytes(&entries)
        };
        for (wrong, why) in [
            (vec![], "header"),
            (named[..3].to_vec(), "header"),
            (old, "version"),
            (long, "4096"),
            (named[..named.len() - 1].to_vec(), "within an entry"),
            (bytes(&[]), "lacks"),
            (without(0), "lacks"),
            (without(2), "lacks"),
            (without(4), "lacks"),
            (without(3), "no mask"),
            (with(1, (64, 7, 5)), "known kind"),
            (with(1, (2, 8, 5)), "permits more"),
            (with(1, (2, 7, NO)), "names nobody"),
            (with(0, (1, 7, 0)), "names nobody"),
            (with(1, (1, 7, NO)), "twice"),
            (with(3, (2, 7, 5)), "in order"),
        ] {
            let refused = Acl::decode(&wrong).unwrap_err();
            assert!(refused.contains(why), "{wrong:?}: {refused}");
        }
    }
}
