//! Clones of which one extent is the file's own in part.

use bedplate_fs::{InodeNo, IoMode, OpenOptions};

use crate::checkpoints::sound;
use crate::clones::{content, present};
use crate::support::{Random, device, format, mount_as};

/// S-76: of a file that gave a block up to its clone, that block is the clone's own, and its
/// neighbours in the same extent are shared still. A write of the clone that began within the one
/// and went on into the others filled the head of the first with zeros: what is shared was asked of
/// the whole extent, and not of its blocks.
#[test]
fn s_76_a_write_across_what_is_shared_in_part_keeps_what_surrounds_it() {
    const BLOCK: u64 = 4096;
    const BLOCKS: u64 = 24;
    for (seed, (mode, integrity)) in
        IoMode::ALL.iter().flat_map(|mode| [(*mode, false), (*mode, true)]).enumerate()
    {
        let device = device(48 << 20, 512);
        format(&device, BLOCK as u32);
        let fs = mount_as(&device, mode);
        fs.set_integrity(InodeNo::ROOT, integrity && seed % 4 > 1).unwrap();
        let mut random = Random::new(seed as u64 + 900);
        let mut model = vec![0; (BLOCKS * BLOCK) as usize];
        random.fill(&mut model);
        let first = fs.open("/f", &OpenOptions::create()).unwrap();
        first.write_at(&model, 0).unwrap();
        fs.clone_files(&present("/f"), "/g").unwrap();
        let second = fs.open("/g", &OpenOptions::read_write()).unwrap();
        fs.set_integrity(second.ino(), integrity).unwrap();
        let mut models = [model.clone(), model];
        let files = [first, second];
        // What one gives up becomes the other's own: every third block.
        for block in (1..BLOCKS).step_by(3) {
            let giver = (block / 3 % 2) as usize;
            let at = (block * BLOCK) as usize;
            let mut bytes = vec![0; BLOCK as usize];
            random.fill(&mut bytes);
            files[giver].write_at(&bytes, at as u64).unwrap();
            models[giver][at..at + bytes.len()].copy_from_slice(&bytes);
        }
        files.iter().for_each(|file| file.sync_data().unwrap());
        for round in 0..60 {
            let side = random.below(2) as usize;
            let mut bytes = vec![0; 1 + random.below(5 * BLOCK / 2) as usize];
            random.fill(&mut bytes);
            let mut at = random.below(BLOCKS * BLOCK - bytes.len() as u64);
            if round % 3 == 0 {
                at -= at % BLOCK;
            } else if round % 3 == 1 {
                let past = (at as usize + bytes.len()) % BLOCK as usize;
                bytes.truncate(bytes.len().saturating_sub(past).max(1));
            }
            files[side].write_at(&bytes, at).unwrap();
            models[side][at as usize..at as usize + bytes.len()].copy_from_slice(&bytes);
            if round % 5 == 0 {
                files[side].sync_data().unwrap();
            }
        }
        drop(files);
        fs.unmount().unwrap();
        sound(&device);
        let fs = mount_as(&device, mode);
        for (path, model) in ["/f", "/g"].iter().zip(&models) {
            let found = content(&fs, path);
            let wrong = found.iter().zip(model).position(|(is, was)| is != was);
            assert_eq!(wrong, None, "{mode}, {integrity}: the first wrong byte of {path}");
        }
    }
}
