//! Pages that other processes read: moving to their memory, and what is published.

use std::fs::File;
use std::os::unix::fs::FileExt;

use bedplate_lease::PageReader;

use super::*;
use crate::SharedCache;

/// Another process's view.
struct Other {
    pages: PageReader<bedplate_block::SharedMemory>,
    frames: File,
}

impl Other {
    fn of(shared: &SharedCache) -> Self {
        let frames = File::from(shared.frames.for_readers().expect("a descriptor"));
        let bytes = frames.metadata().expect("a file").len() as usize;
        let SharedCache { directory, uses, .. } = shared.clone();
        Self { pages: PageReader::open(directory, uses, bytes).expect("sound"), frames }
    }

    fn read(&self, file: &CachedFile, page: u64) -> Option<Vec<u8>> {
        let seen = self.pages.find(file.number(), page)?;
        let mut bytes = vec![0; 4096];
        self.frames.read_exact_at(&mut bytes, u64::from(seen.frame) * 4096).expect("is there");
        self.pages.is_still(&seen).then_some(bytes)
    }
}

fn read(t: &Setup, page: u64) -> Vec<u8> {
    let mut buf = vec![0; 4096];
    let (n, _) = t.file.read_at(&mut buf, page * 4096).expect("sound");
    buf.truncate(n);
    buf
}

#[test]
fn a_cache_that_cannot_be_shared_is_as_it_was() {
    let t = setup(&options(200), &pattern(1 << 20));
    (0..64).for_each(|page| drop(read(&t, page)));
    let error = t.cache.share(u64::MAX).expect_err("no machine has so much");
    assert!(error.message.contains("cannot be shared") && t.cache.shared().is_none());
    assert!((0..64).all(|page| read(&t, page) == pattern(1 << 20)[page as usize * 4096..][..4096]));
}

/// I-CACHE-10: pages that are there move; what is used afterwards of a shared file is published,
/// through caps of other sizes.
#[test]
fn i_cache_10_pages_move_and_are_published_when_they_are_used() {
    let sized = |pages| CacheOptions { read_ahead_bytes_max: 0, ..options(pages) };
    let t = setup(&sized(200), &pattern(1 << 20));
    let holds = |page: u64| pattern(1 << 20)[page as usize * 4096..][..4096].to_vec();
    (0..150).for_each(|page| drop(read(&t, page)));
    let other = Other::of(&t.cache.share(4 << 20).expect("memory"));
    assert!(Other::of(&t.cache.share(0).expect("as before")).read(&t.file, 3).is_none());
    (0..150).for_each(|page| assert_eq!(read(&t, page), holds(page)));
    assert!((0..150).all(|page| other.read(&t.file, page).is_none()), "the file is not shared");
    t.file.set_shared(true);
    let mut before = sized(200);
    // Beyond what was shared for too: pages there are this process's own.
    for cap in [200, 70, 20, 300, 2000, 30, 200] {
        t.cache.retune(&before, &sized(cap)).expect("nothing is dirty");
        before = sized(cap);
        for page in 0..240 {
            assert_eq!(read(&t, page), holds(page));
            assert!(other.read(&t.file, page).is_none_or(|bytes| bytes == holds(page)));
        }
        let found = (0..240).filter(|page| other.read(&t.file, *page).is_some()).count();
        assert!(found * 10 >= cap.min(240) as usize * 9, "{found} of {cap}");
    }
    t.file.pause();
    assert!((0..240).all(|page| other.read(&t.file, page).is_none()), "served past the cache");
}
