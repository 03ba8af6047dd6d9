//! Requests of a volume's queue that are in flight on members.

use std::sync::Arc;
use std::time::Instant;

use bedplate_block::{AlignedBuf, DeviceQueue, RequestKind, Segment};

use super::epoch::LayoutEpoch;
use super::plan::Piece;
use crate::group::{Handles, MemberHandle};

/// What one member does for a request.
pub(crate) struct MemberPart {
    pub lane: usize,
    pub covers: u64,
    /// Where its bytes stand in the caller's buffer; empty where the member has that itself.
    pub pieces: Vec<Piece>,
    /// Where it ends on the member, and how many bytes it moves.
    pub end: u64,
    pub len: u64,
    pub error: Option<bedplate_block::Error>,
    pub ended: bool,
}

/// A member and this queue's own to it.
pub(crate) struct Lane {
    pub handle: Arc<MemberHandle>,
    pub queue: Option<Box<dyn DeviceQueue>>,
}

/// What requests go by that began under it. A queue's own, so that its requests count their holds
/// where no other processor looks; the one hold that others see lasts until the last of them has
/// ended.
pub(crate) struct RequestContext {
    pub epoch: Arc<LayoutEpoch>,
    pub handles: Arc<Handles>,
    pub versions: (u64, u64),
}

/// A request on its way.
pub(crate) struct RequestInFlight {
    pub token: u64,
    pub start: Instant,
    pub kind: RequestKind,
    /// The caller's buffer, unless a member has it.
    pub buf: Option<AlignedBuf>,
    pub first: Segment,
    pub rest: Vec<Segment>,
    pub parts: Vec<MemberPart>,
    pub open: usize,
    /// How long a part waited for a thread of a member, at most.
    pub waited_ns: u64,
    /// What it goes by to its end.
    pub context: Arc<RequestContext>,
}

impl RequestInFlight {
    pub fn segments(&self) -> impl Iterator<Item = &Segment> + Clone {
        std::iter::once(&self.first).chain(&self.rest)
    }
}
