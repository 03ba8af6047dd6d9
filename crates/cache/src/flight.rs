//! Which reads of the backing ("fills") and which direct writes ("changes") are under way, per
//! group of pages: so that nothing stale enters the cache.
//!
//! A plain value guarded by the shard's lock. A fill is *spoiled* when a change or a write into the
//! cache touched its pages while it was under way: what it read may be older than what is there
//! now, and is not kept (I-CACHE-2). A change is *contended* when another change touched its pages
//! while it was under way: it is not known which of the two the device kept, and the cached copy is
//! dropped (I-CACHE-3).

use std::sync::Arc;

use super::sync::{Condvar, Mutex, rank};

/// Names a fill or a change; unique while the cache lives.
pub(super) type FlightId = u64;

#[derive(Debug)]
enum Kind {
    Fill(Arc<Landing>),
    Change,
}

#[derive(Debug)]
struct Flight {
    id: FlightId,
    file: u64,
    group: u64,
    /// The pages of the group, one bit each.
    pages: u16,
    /// The fill is spoiled, the change contended.
    marred: bool,
    kind: Kind,
}

impl Flight {
    fn meets(&self, file: u64, group: u64, pages: u16) -> bool {
        self.group == group && self.file == file && self.pages & pages != 0
    }
}

/// The fills and changes of one shard.
#[derive(Debug, Default)]
pub(super) struct Flights {
    list: Vec<Flight>,
}

impl Flights {
    /// A fill begins: it is spoiled from the start when a change of its pages is under way.
    pub(super) fn begin_fill(
        &mut self,
        id: FlightId,
        file: u64,
        group: u64,
        pages: u16,
        landing: &Arc<Landing>,
    ) {
        debug_assert!(
            pages != 0 && self.list.iter().all(|flight| flight.id != id || flight.group != group),
            "I-CACHE-2: a fill begins once, and of some pages: {id}"
        );
        let marred =
            self.list.iter().any(|f| matches!(f.kind, Kind::Change) && f.meets(file, group, pages));
        self.list.push(Flight {
            id,
            file,
            group,
            pages,
            marred,
            kind: Kind::Fill(Arc::clone(landing)),
        });
    }

    /// A fill has landed; returns whether what it read may be kept.
    #[must_use]
    pub(super) fn end_fill(&mut self, id: FlightId, group: u64) -> bool {
        !self.end(id, group)
    }

    /// A change begins: it spoils the fills it meets; it and the changes it meets are contended.
    pub(super) fn begin_change(&mut self, id: FlightId, file: u64, group: u64, pages: u16) {
        let mut contended = false;
        for flight in self.list.iter_mut().filter(|f| f.meets(file, group, pages)) {
            flight.marred = true;
            contended |= matches!(flight.kind, Kind::Change);
        }
        self.list.push(Flight { id, file, group, pages, marred: contended, kind: Kind::Change });
        let met = |flight: &&Flight| flight.meets(file, group, pages);
        debug_assert!(
            !contended || self.list.iter().filter(met).all(|flight| flight.marred),
            "I-CACHE-3: changes that overlap in time are all contended"
        );
    }

    /// A change is complete; returns whether it had the pages for itself.
    #[must_use]
    pub(super) fn end_change(&mut self, id: FlightId, group: u64) -> bool {
        !self.end(id, group)
    }

    fn end(&mut self, id: FlightId, group: u64) -> bool {
        let at = self
            .list
            .iter()
            .position(|f| f.id == id && f.group == group)
            .expect("I-CACHE-2, I-CACHE-3: what ends has begun");
        self.list.swap_remove(at).marred
    }

    /// A page is written in the cache: fills of it are late.
    #[inline]
    pub(super) fn spoil(&mut self, file: u64, group: u64, pages: u16) {
        for flight in self
            .list
            .iter_mut()
            .filter(|f| matches!(f.kind, Kind::Fill(_)) && f.meets(file, group, pages))
        {
            flight.marred = true;
        }
    }

    /// Returns the landing of a sound fill that will bring one of these pages.
    pub(super) fn coming(&self, file: u64, group: u64, pages: u16) -> Option<Arc<Landing>> {
        self.list.iter().filter(|f| !f.marred && f.meets(file, group, pages)).find_map(|f| match &f
            .kind
        {
            Kind::Fill(landing) => Some(Arc::clone(landing)),
            Kind::Change => None,
        })
    }
}

/// Where readers wait for what a fill brings.
#[derive(Debug, Default)]
pub(super) struct Landing {
    /// A leaf.
    landed: Mutex<bool, { rank::CACHE_LEAF }>,
    wake: Condvar,
}

impl Landing {
    pub(super) fn land(&self) {
        *self.landed.lock() = true;
        self.wake.notify_all();
    }

    pub(super) fn wait(&self) {
        let mut landed = self.landed.lock();
        while !*landed {
            self.wake.wait(&mut landed);
        }
    }
}
