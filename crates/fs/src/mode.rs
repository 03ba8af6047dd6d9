//! Which I/O mode an open asks for, and which one a file is served in while its opens disagree.
//!
//! An open asks for the mode it names, else the file's, else the mount's (a file takes its directory's mode when it is created, so the
//! directory stands between file and mount). An `O_DIRECT` open never asks for less than `direct`.
//!
//! Opens of one file at once; those that conflict are a *mixed open*:
//!
//! | open are                                       | served as                                     | conflict |
//! | ---------------------------------------------- | --------------------------------------------- | -------- |
//! | one mode                                       | that mode                                     | no       |
//! | `cached` and any other                         | `cached`, until the last conflicting one goes | yes      |
//! | `direct` and `concurrent` (`+cache`)           | `direct`: its order holds against every writer | no       |
//! | `concurrent` and `concurrent+cache`            | `concurrent`: nothing is kept in the cache    | no       |
//!
//! A `cached` open whose caller caches by itself needs no library cache. While all `cached` opens are of that kind the file is *served*
//! like `direct`, conflict or not; as soon as one of them is not, all I/O goes through the library cache, so that all opens see the same bytes.

use crate::IoMode;

/// What one open says about its mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OpenClass {
    /// The mode it names.
    pub(crate) mode: Option<IoMode>,
    /// It carried `O_DIRECT`.
    pub(crate) direct_flag: bool,
    /// Its caller caches by itself.
    pub(crate) caller_caches: bool,
}

impl OpenClass {
    const COUNT: usize = 20;

    fn index(self) -> usize {
        let mode = self.mode.map_or(0, |mode| mode as usize);
        mode * 4 + usize::from(self.direct_flag) * 2 + usize::from(self.caller_caches)
    }

    fn all() -> impl Iterator<Item = Self> {
        let modes = std::iter::once(None).chain(IoMode::ALL.into_iter().map(Some));
        modes.flat_map(|mode| {
            [(false, false), (false, true), (true, false), (true, true)]
                .map(|(direct_flag, caller_caches)| Self { mode, direct_flag, caller_caches })
        })
    }

    /// Returns the mode that such an open asks for, of a file with `file` mode on a mount with
    /// `mount` mode.
    pub(crate) fn requested(self, file: Option<IoMode>, mount: IoMode) -> IoMode {
        match self.mode.or(file).unwrap_or(mount) {
            IoMode::Cached if self.direct_flag => IoMode::Direct,
            mode => mode,
        }
    }
}

/// How a file is served now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Service {
    /// The effective mode, as users see it.
    pub(crate) mode: IoMode,
    /// What the data path does: differs from `mode` where `cached` needs no library cache.
    pub(crate) path: IoMode,
    /// Opens conflict.
    pub(crate) mixed: bool,
}

impl Service {
    const MIXED: u8 = 1 << 6;

    /// Returns the service as one byte, for an atomic.
    pub(crate) fn encode(self) -> u8 {
        self.mode as u8 | ((self.path as u8) << 3) | if self.mixed { Self::MIXED } else { 0 }
    }

    /// Returns the service that [`encode`](Self::encode) gave.
    pub(crate) fn decode(byte: u8) -> Self {
        let mode = |code: u8| IoMode::ALL[usize::from(code & 7) - 1];
        Self { mode: mode(byte), path: mode(byte >> 3), mixed: byte & Self::MIXED != 0 }
    }
}

/// Counts the opens of one file by what they say about their mode.
#[derive(Debug, Default)]
pub(crate) struct OpenTable {
    counts: [u32; OpenClass::COUNT],
}

impl OpenTable {
    /// Adds an open.
    pub(crate) fn add(&mut self, class: OpenClass) {
        self.counts[class.index()] += 1;
    }

    /// Takes an open away.
    pub(crate) fn remove(&mut self, class: OpenClass) {
        let count = &mut self.counts[class.index()];
        *count = count.checked_sub(1).expect("an open is closed once");
    }

    /// Returns the number of opens.
    pub(crate) fn len(&self) -> u32 {
        self.counts.iter().sum()
    }

    /// Returns how the file is served, given its own mode and the mount's.
    pub(crate) fn service(&self, file: Option<IoMode>, mount: IoMode) -> Service {
        let open = |wanted: &dyn Fn(OpenClass, IoMode) -> bool| {
            OpenClass::all().any(|class| {
                self.counts[class.index()] > 0 && wanted(class, class.requested(file, mount))
            })
        };
        let library = open(&|class, mode| mode == IoMode::Cached && !class.caller_caches);
        let callers = open(&|class, mode| mode == IoMode::Cached && class.caller_caches);
        let has = |wanted: IoMode| open(&|_, mode| mode == wanted);
        let uncached = [IoMode::Direct, IoMode::Concurrent, IoMode::ConcurrentCache]
            .into_iter()
            .find(|mode| has(*mode));
        let mixed = (library || callers) && uncached.is_some();
        match uncached {
            _ if library => Service { mode: IoMode::Cached, path: IoMode::Cached, mixed },
            _ if callers => Service { mode: IoMode::Cached, path: IoMode::Direct, mixed },
            Some(mode) => Service { mode, path: mode, mixed },
            None => {
                let mode = file.unwrap_or(mount);
                Service { mode, path: mode, mixed }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use IoMode::{Cached, Concurrent, ConcurrentCache, Direct};

    use super::*;

    fn names(mode: IoMode) -> OpenClass {
        OpenClass { mode: Some(mode), direct_flag: false, caller_caches: false }
    }

    fn service(classes: &[OpenClass]) -> Service {
        let mut table = OpenTable::default();
        classes.iter().for_each(|class| table.add(*class));
        table.service(None, Cached)
    }

    #[test]
    fn the_open_goes_before_the_file_and_the_file_before_the_mount() {
        let none = OpenClass { mode: None, direct_flag: false, caller_caches: false };
        assert_eq!(none.requested(None, Direct), Direct);
        assert_eq!(none.requested(Some(Concurrent), Direct), Concurrent);
        assert_eq!(names(ConcurrentCache).requested(Some(Concurrent), Direct), ConcurrentCache);
    }

    #[test]
    fn o_direct_never_gets_less_than_direct() {
        for (file, wanted) in [
            (Cached, Direct),
            (Direct, Direct),
            (Concurrent, Concurrent),
            (ConcurrentCache, ConcurrentCache),
        ] {
            let class = OpenClass { mode: None, direct_flag: true, caller_caches: false };
            assert_eq!(class.requested(Some(file), Cached), wanted);
            assert_eq!(OpenClass { mode: Some(file), ..class }.requested(None, Cached), wanted);
        }
    }

    #[test]
    fn cached_wins_over_every_conflicting_open_until_it_goes() {
        for other in [Direct, Concurrent, ConcurrentCache] {
            let mut table = OpenTable::default();
            table.add(names(other));
            table.add(names(Cached));
            assert_eq!(
                table.service(None, Direct),
                Service { mode: Cached, path: Cached, mixed: true }
            );
            table.remove(names(Cached));
            assert_eq!(
                table.service(None, Direct),
                Service { mode: other, path: other, mixed: false }
            );
        }
    }

    #[test]
    fn the_stricter_lock_holds_between_uncached_opens() {
        assert_eq!(service(&[names(Concurrent), names(Direct)]).path, Direct);
        assert_eq!(service(&[names(ConcurrentCache), names(Direct)]).path, Direct);
        assert_eq!(
            service(&[names(ConcurrentCache), names(Concurrent)]),
            Service { mode: Concurrent, path: Concurrent, mixed: false }
        );
    }

    #[test]
    fn callers_that_cache_need_no_library_cache_until_somebody_else_does() {
        let caller = OpenClass { caller_caches: true, ..names(Cached) };
        assert_eq!(service(&[caller]), Service { mode: Cached, path: Direct, mixed: false });
        assert_eq!(
            service(&[caller, names(Concurrent)]),
            Service { mode: Cached, path: Direct, mixed: true }
        );
        assert_eq!(
            service(&[caller, names(Cached)]),
            Service { mode: Cached, path: Cached, mixed: false }
        );
        assert_eq!(
            service(&[OpenClass { caller_caches: true, ..names(Concurrent) }]).path,
            Concurrent
        );
    }

    #[test]
    fn a_live_change_of_the_file_moves_the_opens_that_name_no_mode() {
        let mut table = OpenTable::default();
        table.add(OpenClass { mode: None, direct_flag: false, caller_caches: false });
        assert_eq!(table.service(None, Cached).path, Cached);
        assert_eq!(table.service(Some(Concurrent), Cached).path, Concurrent);
        assert_eq!(table.len(), 1);
    }

    #[test]
    fn a_service_survives_its_byte() {
        for mode in IoMode::ALL {
            for path in IoMode::ALL {
                for mixed in [false, true] {
                    let service = Service { mode, path, mixed };
                    assert_eq!(Service::decode(service.encode()), service);
                }
            }
        }
    }

    #[test]
    fn classes_have_indexes_of_their_own() {
        let mut seen = [false; OpenClass::COUNT];
        OpenClass::all()
            .for_each(|class| assert!(!std::mem::replace(&mut seen[class.index()], true)));
        assert!(seen.iter().all(|seen| *seen));
    }
}
