//! What happens to checkpoints on a full volume: the policy, and what it did since the mount.

use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use serde::Serialize;

use crate::Result;
use bedplate_store::{MetaStore, Table};

/// Name of the setting that holds the policy: 1 deletes the oldest; missing or 0 refuses.
pub(crate) const SPACE_POLICY: &[u8] = b"checkpoint_policy";

/// What happens to checkpoints when a change of the present finds the volume full.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum SpacePolicy {
    /// The change is refused, and every checkpoint stays.
    #[default]
    Refuse,
    /// The oldest automatic checkpoint that is not marked as kept is deleted, and the next, until
    /// the change can go on.
    DeleteOldest,
}

impl fmt::Display for SpacePolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Refuse => "refuse",
            Self::DeleteOldest => "delete-oldest",
        })
    }
}

impl FromStr for SpacePolicy {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        match text {
            "refuse" => Ok(Self::Refuse),
            "delete-oldest" => Ok(Self::DeleteOldest),
            _ => Err(format!(
                "'{text}' is no policy of a full volume: it is 'refuse' or 'delete-oldest'"
            )),
        }
    }
}

/// The policy in memory, and what it did since the mount.
#[derive(Debug, Default)]
pub(crate) struct SpacePolicyState {
    deletes_oldest: AtomicBool,
    deleted: AtomicU64,
}

/// The checkpoints in numbers, for `info`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct CheckpointCounts {
    /// How many there are.
    pub count: u64,
    /// How many of them retention or a full volume may delete.
    pub removable: u64,
    /// How many are deleted, and hold space still that becomes free step by step.
    pub deleting: u64,
    /// What happens to them when the volume is full.
    pub policy: SpacePolicy,
    /// How many were deleted since the mount because the volume was full.
    pub deleted_for_space: u64,
}

impl SpacePolicyState {
    /// Reads the policy; one that does not decode deletes nothing.
    pub(crate) fn load(&self, meta: &MetaStore) -> Result<()> {
        let stored = meta.get(Table::Setting, SPACE_POLICY)?;
        let policy = stored.as_deref().map_or(Some(SpacePolicy::Refuse), decode_policy);
        if policy.is_none() {
            tracing::warn!(
                "the setting 'checkpoint_policy' is damaged: a full volume refuses until it is set \
                 again"
            );
        }
        self.deletes_oldest.store(policy == Some(SpacePolicy::DeleteOldest), Ordering::Relaxed);
        Ok(())
    }

    pub(crate) fn policy(&self) -> SpacePolicy {
        if self.deletes_oldest.load(Ordering::Relaxed) {
            SpacePolicy::DeleteOldest
        } else {
            SpacePolicy::Refuse
        }
    }

    /// Takes over another policy.
    pub(crate) fn set_policy(&self, policy: SpacePolicy) {
        self.deletes_oldest.store(policy == SpacePolicy::DeleteOldest, Ordering::Relaxed);
    }

    /// Returns how many checkpoints were deleted since the mount because the volume was full.
    pub(crate) fn deleted(&self) -> u64 {
        self.deleted.load(Ordering::Relaxed)
    }

    /// Counts a checkpoint that was deleted because the volume was full.
    pub(crate) fn count_deleted(&self) {
        self.deleted.fetch_add(1, Ordering::Relaxed);
    }
}

/// Reads the setting's value.
pub(crate) fn decode_policy(bytes: &[u8]) -> Option<SpacePolicy> {
    match bytes {
        [0] => Some(SpacePolicy::Refuse),
        [1] => Some(SpacePolicy::DeleteOldest),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_survives_text_and_a_damaged_one_deletes_nothing() {
        for policy in [SpacePolicy::Refuse, SpacePolicy::DeleteOldest] {
            assert_eq!(policy.to_string().parse(), Ok(policy));
        }
        assert!("newest".parse::<SpacePolicy>().unwrap_err().contains("'newest'"));
        assert_eq!([&[][..], &[2], &[1, 0]].map(decode_policy), [None; 3]);
    }
}
