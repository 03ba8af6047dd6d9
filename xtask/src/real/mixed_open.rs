//! Two processes have one file open in conflicting modes.

use std::ffi::OsStr;

use anyhow::{Result, ensure};

use super::Options;
use super::bed::Bed;
use super::peer::{Peer, pattern};

const BLOCK: usize = 8192;
const BLOCKS: u64 = 64;

/// S-20, S-27, S-30: a buffered and a direct open of one file always read what either wrote last,
/// also over partial blocks, and the file is whole after one of them ends and after a remount.
pub fn two_processes(bed: &mut Bed, _: &Options) -> Result<()> {
    let image = bed.format("volume.img", "128M")?;
    let mut content: Vec<u8> = Vec::new();
    for options in ["mode=cached", "mode=concurrent", "mode=concurrent+cache", "mode=direct"] {
        let mounted = bed.mount(&image, options)?;
        let path = mounted.path("shared.db");
        let (mut direct, mut plain) = (Peer::start()?, Peer::start()?);
        direct.ask(&format!("open direct {}", path.display()))?;
        content = (0..BLOCKS).flat_map(|block| pattern(block, BLOCK)).collect();
        for block in 0..BLOCKS {
            direct.ask(&format!("write {} {BLOCK} {block}", block * BLOCK as u64))?;
        }
        plain.ask(&format!("open plain {}", path.display()))?;
        alternate(&mut direct, &mut plain, &mut content, options)?;
        plain.ask("sync")?;
        plain.ask("close")?;
        direct.expect(0, &content, options)?;
        direct.ask(&format!("write 0 {BLOCK} 77"))?;
        content[..BLOCK].copy_from_slice(&pattern(77, BLOCK));
        direct.expect(0, &content, options)?;
        direct.ask("sync")?;
        let stat = bed.json([OsStr::new("stat"), path.as_os_str()])?;
        println!(
            "    {options}: {} transitions",
            super::bad_input::find(&stat, "mode_transitions").unwrap_or(&serde_json::Value::Null)
        );
        direct.ask("close")?;
        mounted.unmount(bed)?;
    }
    let mounted = bed.mount(&image, "")?;
    ensure!(
        std::fs::read(mounted.path("shared.db"))? == content,
        "after a remount the file is not what was written last"
    );
    mounted.unmount(bed)?;
    bed.check(&image)
}

/// Each side writes what the other reads next.
fn alternate(direct: &mut Peer, plain: &mut Peer, content: &mut [u8], what: &str) -> Result<()> {
    for round in 0..BLOCKS * 2 {
        let at = (round * 37 % BLOCKS) as usize * BLOCK;
        let whole = pattern(1000 + round, BLOCK);
        direct.ask(&format!("write {at} {BLOCK} {}", 1000 + round))?;
        content[at..at + BLOCK].copy_from_slice(&whole);
        plain.expect(
            at as u64,
            &content[at..at + BLOCK],
            &format!("{what}: plain after direct, round {round}"),
        )?;
        let (start, len) = (at + 100 + (round as usize * 13 % 3000), 700);
        plain.ask(&format!("write {start} {len} {}", 5000 + round))?;
        content[start..start + len].copy_from_slice(&pattern(5000 + round, len));
        direct.expect(
            at as u64,
            &content[at..at + BLOCK],
            &format!("{what}: direct after plain, round {round}"),
        )?;
    }
    Ok(())
}
