//! Workloads of I/O that passes the library cache because it is large.

use bedplate_fs::IoMode;

use super::directed::{A, B};
use super::{Back, Change, On, Step};

/// From here on it is large.
const LARGE_KIB: u8 = 16;

/// S-519, S-520: large reads and writes of a file beside small ones whose pages are dirty, over
/// everything else that a file goes through.
pub(super) fn large() -> Vec<Step> {
    let held = On::Held(0);
    let cached = IoMode::Cached;
    let put = |offset: u64, len: u32, fill: u8| Step::Write(held, cached, offset, len, fill, false);
    let get = |offset: u64, len: u32| Step::Read(held, cached, offset, len);
    let above = Step::DirectAbove(LARGE_KIB);
    let mut steps = vec![
        Step::Create(0, 0),
        Step::Create(1, 0),
        above.clone(),
        Step::Hold(0, 0, 0, cached),
        put(0, 65_536, 2),
        Step::SyncAll(held),
    ];
    for round in 0..16_u8 {
        let (at, fill) = (u64::from(round % 5) * 8192, 8 * round + 4);
        // Pages that are dirty on an edge, and within.
        steps.extend([put(at + 8000, 700, fill), put(at + 16_384, 4096, fill + 2)]);
        steps.push(get(at + 8192, 16_384));
        steps.extend([put(at + 20_480, 300, fill + 4), put(at + 4096, 20_480, fill + 6)]);
        steps.push(match round {
            0 => Step::SyncData(held),
            1 => put(at + 65_536, 16_384, fill + 1),
            2 => Step::SetSize(held, at + 18_000),
            3 => Step::Checkpoint(0, None),
            4 => put(at + 512, 24_576, fill + 1),
            5 => Step::SetIntegrity(Some(0), 0, true),
            6 => Step::Rollback(0, Back::File(0, 0), true),
            7 => Step::Append(0, 0, cached, 16_384, fill + 1, true),
            8 => Step::Allocate(held, Change::Punch, at + 8192, 20_480),
            9 => Step::Write(A, cached, at + 8192, 16_384, fill, true),
            10 => Step::Write(A, IoMode::Direct, at + 4096, 16_384, fill + 1, false),
            11 => Step::Clone(None, 0, 0, 2),
            12 => Step::Kill,
            13 => Step::SetUntorn(Some(0), 0, Some(8192)),
            14 => Step::Write(B, cached, 12_288, 32_768, fill, false),
            _ => Step::Sync,
        });
        if round == 12 {
            steps.extend([above.clone(), Step::Hold(0, 0, 0, cached)]);
        }
        // Past what the device knows of the end, too.
        steps.extend([get(at, 32_768), get(40_960, 65_536), get(at + 8192, 4096)]);
        if round % 4 == 3 {
            steps.push(Step::SyncData(held));
        }
    }
    steps.extend([Step::Hold(0, 0, 0, IoMode::ConcurrentCache), get(0, 65_536), Step::Sync]);
    steps
}
