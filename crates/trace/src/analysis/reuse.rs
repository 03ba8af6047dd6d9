//! How often a cache of a size would answer what a trace reads: reuse distances.
//!
//! The reuse distance of a page is the number of other pages that were used since its last use. A
//! cache that keeps the pages used last answers exactly the uses whose distance is less than its
//! size, so one pass over the trace tells the hit rate of every size (Mattson et al., 1970). A long
//! trace is sampled by pages: of those whose hash is below a bound all uses are looked at, and
//! distances are scaled up (Waldspurger et al., "Efficient MRC Construction with SHARDS", FAST
//! 2015).

use std::collections::{BTreeMap, HashMap};

use serde::Serialize;

use crate::slot::Call;
use crate::trace::{Event, Trace};

/// The unit of a cache.
pub const PAGE_BYTES: u64 = 4096;
/// Uses of pages that are looked at one by one; of more a sample is taken.
const USES_MAX: u64 = 4 << 20;
/// Pages of one call, at the most: no call of the kernel moves more.
const CALL_PAGES_MAX: u64 = (2 << 30) / PAGE_BYTES;
/// Parts of the space of hashes.
const HASHES: u64 = 1 << 24;

/// What caches of each size would answer.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ReuseCurve {
    /// Pages that were read, the same one as often as it was.
    pub read_pages: u64,
    /// Bytes of different pages that were read or written.
    pub working_set_bytes: u64,
    /// Which part of the pages was looked at; 1 of an exact curve.
    pub sampled: f64,
    /// Sizes with their hit rates, the smallest first: powers of two, and the working set last.
    pub points: Vec<CachePoint>,
    /// The size behind which more memory gives the least more; none where no size answers anything.
    pub knee_bytes: Option<u64>,
}

/// A cache's size and what it answers.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct CachePoint {
    /// Its size.
    pub bytes: u64,
    /// The part of the read pages that it answers, from 0 to 1.
    pub hit_rate: f64,
}

/// Returns the curve of a trace.
#[must_use]
pub fn reuse_curve(trace: &Trace) -> ReuseCurve {
    curve(trace, USES_MAX)
}

fn curve(trace: &Trace, uses_max: u64) -> ReuseCurve {
    let uses: u64 = trace.events.iter().filter_map(span).map(|(_, pages)| pages).sum();
    let bound = if uses <= uses_max {
        HASHES
    } else {
        ((HASHES as f64 * uses_max as f64 / uses as f64) as u64).max(1)
    };
    let sampled = bound as f64 / HASHES as f64;
    let distances = distances(trace, bound);
    let read_pages: u64 = trace
        .events
        .iter()
        .filter(|event| event.call == Call::Read)
        .filter_map(span)
        .map(|(_, pages)| pages)
        .sum();
    let working_set = (distances.pages as f64 / sampled) as u64 * PAGE_BYTES;
    let points = points(&distances, working_set, sampled, read_pages);
    let knee_bytes = knee(&points);
    ReuseCurve { read_pages, working_set_bytes: working_set, sampled, points, knee_bytes }
}

/// The first page of a read or write, and how many follow with it.
fn span(event: &Event) -> Option<(u64, u64)> {
    let is_one = event.call.is_move() && event.is_done() && event.moved > 0;
    let first = event.offset / PAGE_BYTES;
    let last = event.offset.checked_add(event.moved - u64::from(is_one))? / PAGE_BYTES;
    (is_one && event.file.is_some()).then(|| (first, (last - first + 1).min(CALL_PAGES_MAX)))
}

/// Reads by the distance to the last use of their page.
#[derive(Default)]
struct Distances {
    reads: BTreeMap<u64, u64>,
    /// Reads of sampled pages, those of pages that were not used before among them.
    looked_at: u64,
    /// Different pages.
    pages: u64,
}

fn distances(trace: &Trace, bound: u64) -> Distances {
    let mut found = Distances::default();
    let mut last_use: HashMap<(u32, u64), usize> = HashMap::new();
    let mut marks = Marks::default();
    for event in &trace.events {
        let (Some((first, pages)), Some(file)) = (span(event), event.file) else { continue };
        for page in first..first.saturating_add(pages) {
            if hash(file, page) % HASHES >= bound {
                continue;
            }
            let now = marks.push();
            let before = last_use.insert((file, page), now);
            let distance = before.map(|before| marks.between(before, now));
            if let Some(before) = before {
                marks.clear(before);
            }
            if event.call == Call::Read {
                found.looked_at += 1;
                if let Some(distance) = distance {
                    *found.reads.entry(distance).or_default() += 1;
                }
            }
        }
    }
    found.pages = last_use.len() as u64;
    found
}

/// Mixes a page's address (SplitMix64).
fn hash(file: u32, page: u64) -> u64 {
    let mut x = (page ^ u64::from(file) << 44).wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// The last use of each page as a mark in the row of all uses; a Fenwick tree counts those between
/// two places.
#[derive(Default)]
struct Marks {
    /// Counted from 1.
    sums: Vec<u32>,
}

impl Marks {
    /// Adds a marked place at the end.
    fn push(&mut self) -> usize {
        if self.sums.is_empty() {
            self.sums.push(0);
        }
        let at = self.sums.len();
        let low = at & at.wrapping_neg();
        // The sum of what the new node spans: nodes before it, and its own mark.
        let mut sum = 1;
        let mut below = at - 1;
        while below > at - low {
            sum += self.sums[below];
            below &= below - 1;
        }
        self.sums.push(sum);
        at
    }

    fn clear(&mut self, mut at: usize) {
        while at < self.sums.len() {
            self.sums[at] -= 1;
            at += at & at.wrapping_neg();
        }
    }

    fn up_to(&self, mut at: usize) -> u64 {
        let mut sum = 0;
        while at > 0 {
            sum += u64::from(self.sums[at]);
            at &= at - 1;
        }
        sum
    }

    /// Counts marks behind one place and before another.
    fn between(&self, after: usize, before: usize) -> u64 {
        self.up_to(before - 1) - self.up_to(after)
    }
}

/// The smallest cache of a curve.
const SMALLEST_BYTES: u64 = 64 << 10;

fn points(
    distances: &Distances,
    working_set: u64,
    sampled: f64,
    read_pages: u64,
) -> Vec<CachePoint> {
    if read_pages == 0 {
        return Vec::new();
    }
    // The sample has more or fewer reads than it should: that difference is taken for reads of
    // pages that are always there (SHARDS-adj).
    let expected = read_pages as f64 * sampled;
    let adjusted = if sampled < 1.0 { expected - distances.looked_at as f64 } else { 0.0 };
    let mut sizes: Vec<u64> =
        std::iter::successors(Some(SMALLEST_BYTES), |size| size.checked_mul(2))
            .take_while(|size| *size < working_set)
            .collect();
    sizes.push(working_set.max(PAGE_BYTES));
    let rate = |bytes: u64| {
        let pages = ((bytes / PAGE_BYTES) as f64 * sampled) as u64;
        let hits: u64 = distances.reads.range(..pages.max(1)).map(|(_, reads)| reads).sum();
        ((hits as f64 + adjusted) / expected).clamp(0.0, 1.0)
    };
    sizes.into_iter().map(|bytes| CachePoint { bytes, hit_rate: rate(bytes) }).collect()
}

/// The point that lies highest above the line from no cache to the last point (Satopää et al.,
/// "Finding a Kneedle in a Haystack", 2011).
fn knee(points: &[CachePoint]) -> Option<u64> {
    let last = points.last().filter(|last| last.hit_rate > 0.0)?;
    let above = |point: &CachePoint| {
        point.hit_rate / last.hit_rate - point.bytes as f64 / last.bytes as f64
    };
    points.iter().max_by(|a, b| above(a).total_cmp(&above(b))).map(|point| point.bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(call: Call, file: u32, page: u64, pages: u64) -> Event {
        Event {
            process: 0,
            thread: 1,
            call,
            how: 0,
            errno: 0,
            file: Some(file),
            flags: 0,
            begin_ns: 0,
            took_ns: 0,
            offset: page * PAGE_BYTES,
            asked: pages * PAGE_BYTES,
            moved: pages * PAGE_BYTES,
            memory_align: 1,
        }
    }

    fn random(events: usize, pages: u64) -> Trace {
        let mut state = 7_u64;
        let mut next = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695);
            (state >> 33) % below
        };
        let events = (0..events)
            .map(|_| {
                let call = if next(4) == 0 { Call::Write } else { Call::Read };
                // Low pages come more often.
                let page = next(pages).min(next(pages));
                event(call, next(2) as u32, page, 1 + next(3))
            })
            .collect();
        Trace { events, ..Trace::default() }
    }

    /// Hits of a cache that keeps the pages used last, one by one.
    fn naive_hits(trace: &Trace, pages: usize) -> u64 {
        let mut cache: Vec<(u32, u64)> = Vec::new();
        let mut hits = 0;
        for event in &trace.events {
            let (first, count) = span(event).unwrap();
            for page in first..first + count {
                let key = (event.file.unwrap(), page);
                let at = cache.iter().position(|other| *other == key);
                hits += u64::from(at.is_some() && event.call == Call::Read);
                if let Some(at) = at {
                    cache.remove(at);
                }
                cache.insert(0, key);
                cache.truncate(pages);
            }
        }
        hits
    }

    #[test]
    fn s_452_the_curve_is_what_a_cache_of_each_size_answers() {
        let trace = random(3000, 200);
        let curve = reuse_curve(&trace);
        assert_eq!(curve.sampled, 1.0);
        assert!(curve.points.len() > 4, "{curve:?}");
        for point in &curve.points {
            let hits = naive_hits(&trace, (point.bytes / PAGE_BYTES) as usize);
            let rate = hits as f64 / curve.read_pages as f64;
            assert!((point.hit_rate - rate).abs() < 1e-9, "{point:?} and {rate}");
        }
    }

    #[test]
    fn s_452_a_sample_is_near_the_whole() {
        let trace = random(20_000, 4000);
        let (exact, sampled) = (reuse_curve(&trace), curve(&trace, 12_000));
        assert!(sampled.sampled < 0.4, "{}", sampled.sampled);
        let error = |bytes: u64| {
            let rate = |curve: &ReuseCurve| {
                curve.points.iter().find(|point| point.bytes == bytes).map(|point| point.hit_rate)
            };
            Some((rate(&exact)? - rate(&sampled)?).abs())
        };
        let errors: Vec<f64> = exact.points.iter().filter_map(|point| error(point.bytes)).collect();
        assert!(errors.len() > 6 && errors.iter().all(|error| *error < 0.05), "{errors:?}");
    }

    #[test]
    fn the_knee_is_where_the_curve_bends() {
        // 256 pages again and again: nothing below them helps, nothing above them either.
        let events = (0..2560).map(|i| event(Call::Read, 0, i % 256, 1)).collect::<Vec<_>>();
        let mut trace = Trace { events, ..Trace::default() };
        // Pages that come once make the working set larger.
        trace.events.extend((1000..9000).map(|page| event(Call::Read, 0, page, 1)));
        let curve = reuse_curve(&trace);
        assert_eq!(curve.knee_bytes, Some(256 * PAGE_BYTES), "{:?}", curve.points);
        // Pages that all come in turn: nothing but the whole helps.
        let turn = (0..900).map(|i| event(Call::Read, 0, i % 300, 1)).collect();
        let curve = reuse_curve(&Trace { events: turn, ..Trace::default() });
        assert_eq!(curve.knee_bytes, Some(300 * PAGE_BYTES), "{:?}", curve.points);
        let once = Trace {
            events: (0..900).map(|page| event(Call::Read, 0, page, 1)).collect(),
            ..Trace::default()
        };
        assert_eq!(reuse_curve(&once).knee_bytes, None);
    }

    #[test]
    fn wild_places_and_empty_traces_have_a_curve() {
        let wild = Event { offset: u64::MAX - 5, moved: u64::MAX, ..event(Call::Read, 0, 0, 1) };
        let end = Event { offset: u64::MAX - 5, moved: 6, ..wild };
        let curve = reuse_curve(&Trace { events: vec![wild, end], ..Trace::default() });
        assert!(curve.read_pages <= 1, "{curve:?}");
        assert!(reuse_curve(&Trace::default()).points.is_empty());
    }
}
