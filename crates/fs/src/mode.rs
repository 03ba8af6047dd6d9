//! Which I/O mode an open asks for, and which one a file is served in while its opens disagree.
//!
//! An open asks for the mode it names, else the file's, else the mount's (a file takes its
//! directory's mode when it is created, so the directory stands between file and mount). An
//! `O_DIRECT` open never asks for less than `direct`.
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
//! A `cached` open whose caller caches by itself needs no library cache. While all opens are of
//! that kind the library cache only *absorbs*: it takes small writes, so that the caller waits for
//! no device, writes them behind and keeps nothing of them; all else goes past it. Beside opens in
//! other modes such a file is served like `direct`; and as soon as one `cached` open does need the
//! library cache all I/O goes through it, so that all opens see the same bytes.

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
    const COUNT: usize = 4 * (1 + IoMode::ALL.len());

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
        let mode = self.mode.or(file).unwrap_or(mount);
        if self.direct_flag { mode.with_direct_flag() } else { mode }
    }
}

/// How a file is served now, as the word that the data path looks at.
///
/// What every read and write asks of it is a bit of its own, so that none is looked up in a mode:
///
/// ```text
///   bits   0 ‥ 2   3 ‥ 5   6       7         8               9
///          mode    path    mixed   absorbs   library cache   range locks
/// ```
/// 0 is no service: that of a file that was never open.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Service(u16);

impl Service {
    const PATH_SHIFT: u32 = 3;
    const MIXED: u16 = 1 << 6;
    const ABSORBS: u16 = 1 << 7;
    const LIBRARY_CACHE: u16 = 1 << 8;
    const RANGE_LOCKS: u16 = 1 << 9;

    /// Makes the service of a file whose effective mode is `mode` and that the data path serves as
    /// `path`.
    pub(crate) fn new(mode: IoMode, path: IoMode) -> Self {
        let flag = |set: bool, flag: u16| if set { flag } else { 0 };
        Self(
            mode as u16
                | (path as u16) << Self::PATH_SHIFT
                | flag(path.uses_library_cache(), Self::LIBRARY_CACHE)
                | flag(path.locks_ranges(), Self::RANGE_LOCKS),
        )
    }

    /// Returns the same service, of opens that conflict.
    pub(crate) fn with_mixed(self, mixed: bool) -> Self {
        Self(if mixed { self.0 | Self::MIXED } else { self.0 })
    }

    /// Returns the same service, of callers that cache.
    pub(crate) fn with_absorbing(self, absorbs: bool) -> Self {
        Self(if absorbs { self.0 | Self::ABSORBS } else { self.0 })
    }

    /// Returns the effective mode, as users see it.
    pub(crate) fn mode(self) -> IoMode {
        Self::mode_of(self.0)
    }

    /// Returns what the data path does: differs from the mode where `cached` needs no library
    /// cache.
    pub(crate) fn path(self) -> IoMode {
        Self::mode_of(self.0 >> Self::PATH_SHIFT)
    }

    fn mode_of(code: u16) -> IoMode {
        IoMode::ALL[usize::from(code & 7) - 1]
    }

    /// Returns whether opens conflict.
    #[inline]
    pub(crate) fn is_mixed(self) -> bool {
        self.0 & Self::MIXED != 0
    }

    /// Returns whether the library cache takes small writes on their way to the device, and nothing
    /// else: the callers cache.
    #[inline]
    pub(crate) fn absorbs(self) -> bool {
        self.0 & Self::ABSORBS != 0
    }

    /// Returns whether reads and writes go through the library cache.
    #[inline]
    pub(crate) fn uses_library_cache(self) -> bool {
        self.0 & Self::LIBRARY_CACHE != 0
    }

    /// Returns whether each read and write locks its byte range.
    #[inline]
    pub(crate) fn locks_ranges(self) -> bool {
        self.0 & Self::RANGE_LOCKS != 0
    }

    /// Returns whether a read or write of whole sectors asks for nothing but the map and the device.
    pub(crate) fn is_plain(self) -> bool {
        self.0 & (Self::MIXED | Self::LIBRARY_CACHE | Self::RANGE_LOCKS) == 0
    }

    /// Returns the word, for an atomic.
    #[inline]
    pub(crate) fn word(self) -> u16 {
        self.0
    }

    /// Returns the service whose [`word`](Self::word) that is.
    #[inline]
    pub(crate) fn of_word(word: u16) -> Self {
        Self(word)
    }
}

impl std::fmt::Debug for Service {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Service")
            .field("mode", &self.mode())
            .field("path", &self.path())
            .field("mixed", &self.is_mixed())
            .field("absorbs", &self.absorbs())
            .finish()
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
        let library = open(&|class, mode| mode.writes_behind() && !class.caller_caches);
        let callers = open(&|class, mode| mode.writes_behind() && class.caller_caches);
        let past = |wanted: IoMode| !wanted.writes_behind() && open(&|_, mode| mode == wanted);
        let uncached =
            IoMode::ALL.into_iter().filter(|mode| past(*mode)).max_by_key(|mode| mode.strictness());
        let mixed = (library || callers) && uncached.is_some();
        let served = match uncached {
            _ if library => Service::new(IoMode::Cached, IoMode::Cached),
            Some(_) if callers => Service::new(IoMode::Cached, IoMode::Direct),
            Some(mode) => Service::new(mode, mode),
            None => {
                let mode = if callers { IoMode::Cached } else { file.unwrap_or(mount) };
                Service::new(mode, mode).with_absorbing(callers)
            }
        };
        served.with_mixed(mixed)
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
            assert_eq!(table.service(None, Direct), Service::new(Cached, Cached).with_mixed(true));
            table.remove(names(Cached));
            assert_eq!(table.service(None, Direct), Service::new(other, other));
        }
    }

    #[test]
    fn the_stricter_lock_holds_between_uncached_opens() {
        assert_eq!(service(&[names(Concurrent), names(Direct)]).path(), Direct);
        assert_eq!(service(&[names(ConcurrentCache), names(Direct)]).path(), Direct);
        assert_eq!(
            service(&[names(ConcurrentCache), names(Concurrent)]),
            Service::new(Concurrent, Concurrent)
        );
    }

    #[test]
    fn callers_that_cache_need_no_library_cache_until_another_open_does() {
        let caller = OpenClass { caller_caches: true, ..names(Cached) };
        assert_eq!(service(&[caller]), Service::new(Cached, Cached).with_absorbing(true));
        assert_eq!(
            service(&[caller, names(Concurrent)]),
            Service::new(Cached, Direct).with_mixed(true)
        );
        assert_eq!(service(&[caller, names(Cached)]), Service::new(Cached, Cached));
        assert_eq!(
            service(&[OpenClass { caller_caches: true, ..names(Concurrent) }]).path(),
            Concurrent
        );
    }

    #[test]
    fn a_live_change_of_the_file_moves_the_opens_that_name_no_mode() {
        let mut table = OpenTable::default();
        table.add(OpenClass { mode: None, direct_flag: false, caller_caches: false });
        assert_eq!(table.service(None, Cached).path(), Cached);
        assert_eq!(table.service(Some(Concurrent), Cached).path(), Concurrent);
        assert_eq!(table.len(), 1);
    }

    #[test]
    fn a_service_says_what_its_path_asks() {
        for (mode, path) in
            IoMode::ALL.into_iter().flat_map(|mode| IoMode::ALL.map(|path| (mode, path)))
        {
            for (mixed, absorbs) in [(false, false), (true, false), (false, true), (true, true)] {
                let service = Service::new(mode, path).with_mixed(mixed).with_absorbing(absorbs);
                assert_eq!(Service::of_word(service.word()), service);
                assert_eq!((service.mode(), service.path()), (mode, path));
                assert_eq!((service.is_mixed(), service.absorbs()), (mixed, absorbs));
                assert_eq!(service.uses_library_cache(), path.uses_library_cache());
                assert_eq!(service.locks_ranges(), path.locks_ranges());
                assert_ne!(service.word(), 0, "0 is a file that was never open");
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
