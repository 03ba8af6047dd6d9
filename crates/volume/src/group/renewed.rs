//! A group under another name and identity, which is otherwise the same.
//!
//! Every identity changes by one *difference*, so the two identities of a group tell those of its
//! members: what a power cut left half-way is recognized, and can be brought to its end. The first
//! four bytes stay, by which sectors of the dirty region logs are known.

use super::Label;
use crate::{Config, Id, MemberState};

/// Bytes of an identity that stay.
const KEPT_BYTES: usize = 4;

/// What the identities of one group differ by from those of another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Difference(pub(super) [u8; 16]);

impl Difference {
    /// Makes one that leads to identities which nothing else has.
    pub fn random() -> Self {
        let mut bytes = Id::random().0;
        bytes[..KEPT_BYTES].fill(0);
        Self(bytes)
    }

    /// Returns what leads from one identity to another, where that may be one of these.
    pub fn between(from: Id, to: Id) -> Option<Self> {
        let difference = Self(std::array::from_fn(|at| from.0[at] ^ to.0[at]));
        let is_one = difference.0[..KEPT_BYTES].iter().all(|byte| *byte == 0);
        is_one.then_some(difference)
    }

    /// Returns the one that a label names; nothing where no two identities differ by that.
    pub fn from_bytes(bytes: [u8; 16]) -> Option<Self> {
        let is_one = bytes[..KEPT_BYTES].iter().all(|byte| *byte == 0) && bytes != [0; 16];
        is_one.then_some(Self(bytes))
    }

    pub fn apply(self, id: Id) -> Id {
        Id(std::array::from_fn(|at| id.0[at] ^ self.0[at]))
    }
}

impl Config {
    /// Returns the same group under another name and identity. Nothing of a member that failed
    /// counts: its device keeps the old identity. It is a half of nothing any more.
    fn renewed(&self, difference: Difference, name: &str) -> Self {
        let mut config = self.with_identities(difference, name);
        config.split = None;
        for index in 0..config.members.len() {
            if config.members[index].state == MemberState::Failed {
                config.forget_last_event(index);
            }
        }
        config
    }

    /// Returns the same group with a name and other identities.
    pub(super) fn with_identities(&self, difference: Difference, name: &str) -> Self {
        let mut config = self.clone();
        (config.id, config.name) = (difference.apply(self.id), name.to_owned());
        for member in &mut config.members {
            member.id = difference.apply(member.id);
            if let Some(relocated) = &mut member.relocated {
                relocated.was = difference.apply(relocated.was);
                relocated
                    .pieces
                    .iter_mut()
                    .for_each(|piece| piece.host = difference.apply(piece.host));
            }
        }
        for finding in &mut config.findings {
            finding.copies.iter_mut().for_each(|(id, _)| *id = difference.apply(*id));
            finding.right = finding.right.map(|id| difference.apply(id));
            finding.wrong = finding.wrong.map(|id| difference.apply(id));
        }
        config
    }
}

impl Label {
    /// Returns the same label of a group under another name and identity.
    pub(crate) fn renewed(&self, difference: Difference, name: &str) -> Self {
        Self {
            member: difference.apply(self.member),
            config: self.config.renewed(difference, name),
        }
    }
}
