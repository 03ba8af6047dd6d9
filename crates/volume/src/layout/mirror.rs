//! Mirrored: every byte on every plex.

use super::{Layout, Run};

/// Plexes that hold the same bytes. All count as large as the smallest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mirror {
    plexes: Vec<Layout>,
    size_bytes: u64,
}

impl Mirror {
    /// Makes a mirror of plexes.
    #[must_use]
    pub fn new(plexes: Vec<Layout>) -> Self {
        let size_bytes = plexes.iter().map(Layout::size_bytes).min().unwrap_or(0);
        Self { plexes, size_bytes }
    }

    /// Returns the plexes.
    #[must_use]
    pub fn plexes(&self) -> &[Layout] {
        &self.plexes
    }

    pub(super) fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    #[inline]
    pub(super) fn locate(&self, at: u64) -> Run {
        assert!(
            at < self.size_bytes,
            "address {at} lies beyond a mirror of {} bytes",
            self.size_bytes
        );
        let mut run = self.plexes[0].locate(at).at_most(self.size_bytes - at);
        for plex in &self.plexes[1..] {
            run.join(&plex.locate(at));
        }
        debug_assert!(
            run.copies().len() >= self.plexes.len(),
            "every plex has a copy of byte {at}: {run:?}"
        );
        run
    }

    /// Returns the plexes where all are stripes of the same unit and width.
    pub(crate) fn alike_stripes(&self) -> Option<Vec<&super::Stripe>> {
        let stripes: Option<Vec<&super::Stripe>> = self
            .plexes
            .iter()
            .map(|plex| if let Layout::Stripe(stripe) = plex { Some(stripe) } else { None })
            .collect();
        stripes.filter(|stripes| {
            let shape = |stripe: &super::Stripe| (stripe.unit_bytes(), stripe.columns().len());
            stripes.windows(2).all(|pair| shape(pair[0]) == shape(pair[1]))
        })
    }

    pub(super) fn survives(&self, good: &dyn Fn(u16) -> bool) -> bool {
        match self.alike_stripes() {
            // Equal stripes put the same bytes into the same column, so plexes stand in for each
            // other column by column.
            Some(stripes) => (0..stripes[0].columns().len())
                .all(|column| stripes.iter().any(|stripe| stripe.columns()[column].survives(good))),
            None => self.plexes.iter().any(|plex| plex.survives(good)),
        }
    }
}
