//! Pages that leave the cache because what they held is gone, has changed below, or is not wanted any
//! more.

use std::ops::Range;

use super::core::FileCore;
use super::layout::{GroupSpan, group_spans};
use super::pages::PageCache;
use super::shard::{Key, ShardState};

/// What is not forgotten.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Spare<'a> {
    /// Dirty pages and those being written.
    Pinned,
    /// Pages being written, and dirty ones of runs that were taken to be written: these are copied
    /// out a moment later.
    Flying(&'a [Range<u64>]),
    None,
}

/// Forgets the pages of a run that could not be written, of a file that was closed meanwhile.
pub(super) fn forget_failed(cache: &PageCache, core: &FileCore, pages: &Range<u64>) {
    for span in group_spans(pages.clone()) {
        let mut state = cache.shard(core.id, span.group).state.write();
        forget_span(cache, core, &mut state, span, Spare::None);
    }
}

/// Forgets the pages of a span but those that are spared.
pub(super) fn forget_span(
    cache: &PageCache,
    core: &FileCore,
    state: &mut ShardState,
    span: GroupSpan,
    spare: Spare<'_>,
) {
    let key = Key { file: core.id, group: span.group };
    for page in span.first..span.end {
        let Some(at) = state.lookup(key, page) else { continue };
        let pinned = state.frame(at).is_pinned();
        if match spare {
            Spare::Pinned => pinned,
            Spare::Flying(taken) => {
                state.frame(at).flying != 0
                    || (pinned && taken.iter().any(|run| run.contains(&page)))
            }
            Spare::None => false,
        } {
            continue;
        }
        assert_eq!(
            state.frame(at).flying,
            0,
            "I-CACHE-4: a page that is being written is not forgotten"
        );
        state.forget(at);
        if pinned {
            cache.count_unpinned(core);
        }
    }
}
