//! `cached`: the same memory divided two ways. The database's own cache shrinks, a second-level
//! cache gets what it gives up. VERITAS, figure 1.

use std::collections::BTreeMap;

use super::oltp::Oltp;
use super::{Env, Work, list};
use crate::results::{Case, Measurement};
use crate::target::{PageCacheLimit, Role, Target, TargetInfo};
use crate::{Error, Result};

/// Options of `cached`.
#[derive(Debug, Clone)]
pub struct Cached {
    /// The database; its number of clients and its cache are set here instead.
    pub database: Oltp,
    /// Clients.
    pub clients: usize,
    /// Memory for both caches together in percent of the data.
    pub memory_percent: f64,
    /// The database's own cache in percent of the data; each is a case.
    pub cache_percents: Vec<f64>,
}

impl Default for Cached {
    fn default() -> Self {
        let database = Oltp { updates_percent: 25, ..Oltp::default() };
        Self {
            database,
            clients: 16,
            memory_percent: 60.0,
            cache_percents: vec![50.0, 30.0, 15.0, 5.0],
        }
    }
}

/// Says why the cache of a target cannot be made as small as the others.
pub(super) fn unlimited(target: &TargetInfo) -> Option<String> {
    if target.is_path() && matches!(target.role, Role::ConcurrentCache) {
        return Some("the cache of a mount is its daemon's: measure it as volume:DEVICE".into());
    }
    if target.is_path() && target.role == Role::Buffered { PageCacheLimit::why_not() } else { None }
}

impl Work for Cached {
    fn name(&self) -> &'static str {
        "cached"
    }

    fn title(&self) -> &'static str {
        "transactions with a second-level cache while the database's own cache shrinks"
    }

    fn unit(&self) -> &'static str {
        "tps"
    }

    fn options(&self) -> BTreeMap<String, String> {
        let mut options = self.database.options();
        options.insert("clients".into(), self.clients.to_string());
        options.insert("memory".into(), format!("{} %", self.memory_percent));
        options.insert("database-cache".into(), format!("{} %", list(&self.cache_percents)));
        options
    }

    fn validate(&self) -> Result<()> {
        if self.cache_percents.is_empty() || self.clients == 0 {
            return Err(Error::usage(
                "cached has nothing to do: give clients and sizes of the database's cache",
            ));
        }
        if self.cache_percents.iter().any(|p| !(0.0..=self.memory_percent).contains(p)) {
            return Err(Error::usage(format!(
                "the database's cache must lie between 0 and the memory of {} % of the data",
                self.memory_percent
            )));
        }
        self.database.validate()
    }

    fn cases(&self) -> Vec<Case> {
        let case = |&percent: &f64| Case {
            name: format!(
                "database cache {percent} %, second level {} %",
                self.memory_percent - percent
            ),
            curve: "transactions".into(),
            axis: "database cache %".into(),
            x: percent,
        };
        self.cache_percents.iter().map(case).collect()
    }

    fn space_bytes(&self) -> u64 {
        self.database.space_bytes()
    }

    fn refuses(&self, _case: usize, target: &TargetInfo) -> Option<String> {
        self.database.refuses_moves(target).or_else(|| unlimited(target))
    }

    fn prepare(&self, target: &dyn Target) -> Result<()> {
        self.database.prepare(target)
    }

    fn run(&self, case: usize, target: &dyn Target, env: &Env<'_>) -> Result<Measurement> {
        let percent = self.cache_percents[case];
        let second_level =
            (self.memory_percent - percent) / 100.0 * self.database.data_bytes as f64;
        target.make_cold()?;
        let _limit = target.set_cache_bytes(second_level as u64)?;
        self.database.warm(target)?;
        self.database.measure(self.database.variant(self.clients), percent, target, env)
    }

    fn clean(&self, target: &dyn Target) -> Result<()> {
        self.database.clean(target)
    }
}
