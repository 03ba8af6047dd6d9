//! What a relayout needs to know of a volume between two steps.

use std::time::Duration;

/// How long writes to a step's range wait at first for those who went by an older space.
const PATIENCE: Duration = Duration::from_millis(10);

/// What a volume remembers between steps. A leaf lock guards it.
#[derive(Debug)]
pub(crate) struct Travel {
    pub patience: Duration,
    /// What the last step failed with.
    pub trouble: Option<String>,
}

impl Default for Travel {
    fn default() -> Self {
        Self { patience: PATIENCE, trouble: None }
    }
}
