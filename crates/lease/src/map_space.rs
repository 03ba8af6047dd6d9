//! Which part of the map area belongs to which entry: the daemon's own notes.

/// A run of extents in the map area.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Place {
    pub at: usize,
    pub capacity: usize,
}

/// The free runs, sorted, no two of them adjacent.
#[derive(Debug)]
pub(crate) struct MapSpace {
    free: Vec<Place>,
}

impl MapSpace {
    pub fn new(extents: usize) -> Self {
        Self { free: vec![Place { at: 0, capacity: extents }] }
    }

    /// Takes the first run that has room for `count`, with some more to grow into; else the
    /// largest run, which is smaller. Nothing where nothing is free.
    pub fn take(&mut self, count: usize) -> Place {
        let wanted = count + count / 4 + 4;
        let found = (self.free.iter().position(|run| run.capacity >= wanted))
            .or_else(|| (0..self.free.len()).max_by_key(|&i| self.free[i].capacity));
        let Some(i) = found else { return Place::default() };
        let run = &mut self.free[i];
        let taken = Place { at: run.at, capacity: run.capacity.min(wanted) };
        run.at += taken.capacity;
        run.capacity -= taken.capacity;
        if run.capacity == 0 {
            self.free.remove(i);
        }
        taken
    }

    /// Gives a run back.
    pub fn give(&mut self, place: Place) {
        if place.capacity == 0 {
            return;
        }
        let i = self.free.partition_point(|run| run.at < place.at);
        debug_assert!(
            self.free.get(i).is_none_or(|next| place.at + place.capacity <= next.at)
                && (self.free[..i].last()).is_none_or(|last| last.at + last.capacity <= place.at),
            "what is given back was taken: {place:?} among {:?}",
            self.free
        );
        self.free.insert(i, place);
        for left in [i, i.wrapping_sub(1)] {
            let Some(right) = self.free.get(left.wrapping_add(1)).copied() else { continue };
            let Some(run) = self.free.get_mut(left) else { continue };
            if run.at + run.capacity == right.at {
                run.capacity += right.capacity;
                self.free.remove(left + 1);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_come_back_whole() {
        let mut space = MapSpace::new(100);
        let places: Vec<Place> = (0..5).map(|_| space.take(8)).collect();
        assert!(places.windows(2).all(|two| two[0].at + two[0].capacity == two[1].at));
        for i in [3, 1, 0, 4, 2] {
            space.give(places[i]);
        }
        assert_eq!(space.free, [Place { at: 0, capacity: 100 }]);
    }

    #[test]
    fn what_does_not_fit_gets_the_largest_run() {
        let mut space = MapSpace::new(10);
        assert_eq!(space.take(1000), Place { at: 0, capacity: 10 });
        assert_eq!(space.take(1).capacity, 0);
    }
}
