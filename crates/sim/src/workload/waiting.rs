//! Directed workloads of writes that wait in memory: odd ones, those that make a file grow, and those
//! that write over it in order; and of reads in order.

use bedplate_fs::IoMode;

use super::directed::{A, B, write};
use super::{Back, Change, On, Step};

/// S-145, S-146: a log that is kept open is written over as headers and pages at odd offsets,
/// grows, and is changed in all other ways in between.
pub(super) fn odd_log() -> Vec<Step> {
    let log = On::Held(0);
    let mut steps = vec![
        Step::Create(0, 0),
        Step::Hold(0, 0, 0, IoMode::Concurrent),
        write(log, 0, 40_960, 1),
        Step::SyncData(log),
    ];
    for round in 0..18u8 {
        let (at, fill) = (32 + u64::from(round % 11) * 4120, 10 * round + 2);
        steps.extend([write(log, at, 24, fill), write(log, at + 24, 4096, fill + 1)]);
        // Over the sector in which the frame ends, or around it.
        let block = (at + 4120) / 4096 * 4096;
        steps.push(match round {
            1 | 8 => write(log, block, 4096, fill + 2),
            3 => Step::Write(A, IoMode::Cached, block + 512, 512, fill + 2, false),
            6 => Step::Allocate(log, Change::Punch, block, 4096),
            12 => Step::Checkpoint(0, None),
            15 => Step::SetSize(log, at + 2000),
            16 => Step::Rollback(0, Back::File(0, 0), true),
            _ => Step::SyncData(log),
        });
        steps.extend([
            write(log, at + 4120, 100, fill + 3),
            Step::Read(log, IoMode::Concurrent, 0, 50_000),
        ]);
    }
    steps.extend([Step::Release(0), Step::Sync]);
    steps
}

/// S-300, S-301: a file that is kept open as a mount does grows in pages and odd pieces, and is
/// changed in all other ways in between.
pub(super) fn delayed_growth() -> Vec<Step> {
    let held = On::Held(1);
    let mut steps = vec![Step::Create(0, 0), Step::Create(1, 0), Step::Sync];
    for round in 0..16u8 {
        let mode = [IoMode::Concurrent, IoMode::Direct, IoMode::ConcurrentCache];
        let mode = mode[usize::from(round % 3)];
        let fill = 14 * round + 1;
        if round % 5 == 0 {
            steps.push(Step::Hold(1, 0, 0, mode));
        }
        steps.extend([
            Step::AppendHeld(1, 8192, fill),
            Step::AppendHeld(1, 8192, fill + 1),
            Step::Read(held, mode, 0, 300_000),
            Step::AppendHeld(1, 700, fill + 2),
        ]);
        steps.push(match round {
            2 => Step::Checkpoint(0, None),
            3 => Step::Write(A, IoMode::Cached, 20_000, 512, fill + 3, false),
            5 => Step::Allocate(held, Change::Punch, 16_384, 8192),
            6 => Step::SetSize(held, 30_000),
            8 => Step::SetIoMode(0, 0, Some(IoMode::Direct)),
            9 => Step::Rollback(0, Back::File(0, 0), true),
            11 => Step::Write(held, mode, 40_000, 4096, fill + 4, false),
            13 => Step::Sync,
            14 => Step::Append(0, 0, mode, 5000, fill + 5, true),
            _ => Step::SyncData(held),
        });
        steps.extend([
            Step::AppendHeld(1, 3000, fill + 6),
            Step::AppendHeld(1, 5192, fill + 7),
            Step::Append(1, 0, mode, 4096, fill + 8, false),
            Step::Read(held, mode, 0, 300_000),
        ]);
    }
    steps.extend([Step::Release(1), Step::SyncAll(A), Step::Sync]);
    steps
}

/// S-546: journals are made, synced, written over at their head, synced and removed, beside a file
/// that is written once they count.
pub(super) fn journals() -> Vec<Step> {
    let mut steps = vec![Step::Create(0, 0), write(A, 0, 30_000, 1), Step::Sync];
    for round in 0..8u8 {
        let mode = IoMode::ALL[usize::from(round) % IoMode::ALL.len()];
        let (slot, fill) = (round / 4 % 2, 20 * round + 2);
        let journal = On::Held(slot);
        let records = 1 + u64::from(round % 3);
        steps.extend([Step::Create(1, 0), Step::Hold(slot, 1, 0, mode), Step::SyncDirectory(0)]);
        steps.push(write(journal, 0, 512, fill));
        steps.extend((0..records).map(|at| write(journal, 512 + at * 4104, 4104, fill + 1)));
        steps.extend([Step::SyncData(journal), write(journal, 8, 20, fill + 2)]);
        steps.push(match round {
            1 => write(journal, 512 + records * 4104, 1000, fill + 3),
            2 => Step::Checkpoint(0, None),
            3 => write(B, 4096, 512, fill + 3),
            5 => Step::SetSize(journal, 3000),
            6 => write(journal, 3000, 2000, fill + 3),
            _ => Step::Read(journal, mode, 0, 20_000),
        });
        steps.extend([
            Step::SyncData(journal),
            write(journal, 12, 16, fill + 4),
            Step::Read(journal, mode, 0, 20_000),
            Step::SyncData(journal),
            write(A, u64::from(round) * 3000, 4096, fill + 5),
            Step::SyncData(A),
            Step::Unlink(1, 0),
            Step::Release(slot),
        ]);
    }
    steps.push(Step::Sync);
    steps
}

/// S-365, S-366: a file that is kept open as a mount does is written over in order, page by page, and
/// changed in all other ways in between, also where what was written waits.
pub(super) fn written_over() -> Vec<Step> {
    let held = On::Held(1);
    let mut steps = vec![
        Step::Create(0, 0),
        Step::Create(1, 0),
        write(A, 0, 90_000, 1),
        write(B, 0, 9000, 2),
        Step::Sync,
    ];
    for round in 0..15u8 {
        let mode = [IoMode::Concurrent, IoMode::Direct, IoMode::ConcurrentCache];
        let mode = mode[usize::from(round % 3)];
        let (fill, from) = (15 * round + 3, u64::from(round % 4) * 8192);
        steps.push(Step::Hold(1, 0, 0, mode));
        steps.extend(
            (0..5).map(|page| write(held, from + u64::from(page) * 4096, 4096, fill + page)),
        );
        steps.push(Step::Read(held, mode, 0, 100_000));
        // The last of these pages wait.
        steps.push(match round {
            2 => Step::Write(A, IoMode::Cached, from + 8192, 4096, fill + 6, false),
            0 | 1 | 3 | 9 => Step::Write(A, mode, from + 12_288, 4096, fill + 6, false),
            4 => Step::Allocate(held, Change::Punch, from + 8192, 8192),
            5 => Step::Write(A, mode, from + 14_000, 700, fill + 6, true),
            6 => Step::SetSize(held, from + 10_000),
            14 => Step::Rollback(0, Back::File(0, 0), true),
            8 => Step::SetIoMode(0, 0, Some(IoMode::Direct)),
            10 => write(held, from + 15_000, 300, fill + 6),
            12 => Step::Sync,
            11 => Step::Checkpoint(0, None),
            13 => Step::Append(0, 0, mode, 5000, fill + 6, true),
            _ => Step::SyncData(held),
        });
        steps.extend([
            Step::Read(held, mode, 0, 100_000),
            write(held, from + 20_480, 4096, fill + 7),
            write(held, from + 24_576, 4096, fill + 8),
            Step::Append(1, 0, mode, 4096, fill + 9, false),
            Step::Read(held, mode, 0, 100_000),
        ]);
    }
    steps.extend([Step::Release(1), Step::SyncAll(A), Step::Sync]);
    steps
}

/// S-368, S-369: a file that is kept open as a mount does is read in order, and what was read ahead is
/// changed in all ways before it is read.
pub(super) fn read_in_order() -> Vec<Step> {
    let held = On::Held(1);
    let mut steps = vec![
        Step::Create(0, 0),
        Step::Create(1, 0),
        write(A, 0, 120_000, 1),
        write(B, 0, 9000, 2),
        Step::Sync,
    ];
    for round in 0..14u8 {
        let mode = [IoMode::Concurrent, IoMode::Direct][usize::from(round % 2)];
        let (fill, from) = (15 * round + 3, u64::from(round % 5) * 8192);
        let read = |page: u64| Step::Read(held, mode, from + page * 4096, 4096);
        steps.push(Step::Hold(1, 0, 0, mode));
        steps.extend((0..4).map(read));
        // The pages behind them were read ahead.
        steps.push(match round {
            0 | 4 => Step::Write(A, mode, from + 16_384, 4096, fill, false),
            1 => Step::Write(A, mode, from + 20_000, 700, fill, true),
            2 => Step::Allocate(held, Change::Punch, from + 16_384, 8192),
            3 => Step::Checkpoint(0, None),
            5 => write(held, from + 16_384, 12_288, fill),
            6 => Step::SetSize(held, from + 18_000),
            7 => Step::Rollback(0, Back::File(0, 0), true),
            8 => Step::SetIoMode(0, 0, Some(IoMode::Direct)),
            9 => Step::Allocate(held, Change::Collapse, from + 16_384, 4096),
            10 => Step::Write(A, IoMode::Cached, from + 16_384, 4096, fill, false),
            11 => Step::Defragment(held, true),
            12 => Step::Append(0, 0, mode, 5000, fill, true),
            _ => Step::SyncData(held),
        });
        steps.extend([
            // What was freed is used again.
            Step::Write(B, mode, u64::from(round) * 4096, 4096, fill + 1, true),
            Step::Write(A, mode, from + 24_576, 4096, fill + 2, false),
        ]);
        steps.extend((4..9).map(read));
    }
    steps.extend([Step::Release(1), Step::SyncAll(A), Step::Sync]);
    steps
}
