//! Copies of ranges on a mount: `cp` and `copy_file_range` share blocks.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use crate::data::{ALL, open};
use crate::harness::{Mounted, Random, pattern, shell};

const BYTES: usize = (12 << 20) + 777;

/// Bytes in use on the mount, once some files are on it: `syncfs` does not reach a mount.
fn used(m: &Mounted, files: &[&str]) -> u64 {
    files.iter().for_each(|name| open(m, name).sync_all().unwrap());
    let all = rustix::fs::statvfs(m.root()).unwrap();
    (all.f_blocks - all.f_bfree) * all.f_frsize
}

/// S-531, S-532: `cp` takes no space, and what is written to either file afterwards, through the
/// kernel's page cache too, the other does not show.
#[test]
fn s_531_cp_shares_blocks() {
    for options in ALL {
        let Some(m) = Mounted::new(options) else { return };
        let content = pattern(7, 0, BYTES);
        fs::write(m.path("f"), &content).unwrap();
        // In memory still, of the kernel or of the mount.
        open(&m, "f").write_all_at(&pattern(8, 0, 10_000), 3000).unwrap();
        let mut content = content;
        content[3000..13_000].copy_from_slice(&pattern(8, 0, 10_000));
        let before = used(&m, &["f"]);
        let told = shell(&m, "cd $M; cp f g && cmp f g && cp --sparse=never g h && echo copied");
        assert!(told.contains("copied"), "{options}: {told}");
        let more = used(&m, &["f", "g", "h"]).saturating_sub(before);
        // Two copies, and a step of the metadata's growth.
        assert!(more <= 2 << 20, "{options}: {more} bytes more");
        let [mut first, mut second] = [content.clone(), content.clone()];
        for (name, model, at) in [("f", &mut first, 5000), ("g", &mut second, (8 << 20) - 50)] {
            let bytes = pattern(9, at as u64, 9000);
            open(&m, name).write_all_at(&bytes, at as u64).unwrap();
            model[at..at + bytes.len()].copy_from_slice(&bytes);
        }
        let m = m.again(options);
        for (name, model) in [("f", &first), ("g", &second), ("h", &content)] {
            assert!(fs::read(m.path(name)).unwrap() == *model, "{options}: {name}");
        }
        m.finish();
    }
}

/// S-532, S-533: two files against a model: writes, cuts and copies of ranges between them.
#[test]
fn s_532_random_copies_between_two_files_are_what_they_should_be() {
    for (seed, options) in ALL.into_iter().enumerate() {
        let Some(m) = Mounted::new(options) else { return };
        let mut dice = Random::new(seed as u64 + 77);
        let files = [open(&m, "f"), open(&m, "g")];
        let mut models = [Vec::new(), Vec::new()];
        for step in 0..150 {
            let n = dice.below(2) as usize;
            let on_block =
                |at: u64, dice: &mut Random| if dice.below(3) > 0 { at & !4095 } else { at };
            let (at, into) = (dice.below(200_000), dice.below(200_000));
            let (at, into) = (on_block(at, &mut dice), on_block(into, &mut dice));
            match dice.below(8) {
                0..3 => {
                    let bytes = pattern(step, at, 1 + dice.below(30_000) as usize);
                    files[n].write_all_at(&bytes, at).unwrap();
                    put(&mut models[n], at as usize, &bytes);
                }
                3 => {
                    files[n].set_len(at).unwrap();
                    models[n].resize(at as usize, 0);
                }
                _ => {
                    let len = (1 + dice.below(100_000) as usize)
                        .min(models[n].len().saturating_sub(at as usize));
                    let bytes = models[n].get(at as usize..at as usize + len).unwrap_or(&[]);
                    let bytes = bytes.to_vec();
                    copy(&files[n], at, &files[1 - n], into, bytes.len());
                    put(&mut models[1 - n], into as usize, &bytes);
                }
            }
            if step % 10 == 9 {
                compare(&m, &models, &format!("{options}, step {step}"));
            }
        }
        drop(files);
        let m = m.again(options);
        compare(&m, &models, options);
        m.finish();
    }
}

fn copy(source: &File, at: u64, target: &File, into: u64, len: usize) {
    let (mut from, mut to) = (at, into);
    while from < at + len as u64 {
        let rest = (at + len as u64 - from) as usize;
        let copied =
            rustix::fs::copy_file_range(source, Some(&mut from), target, Some(&mut to), rest);
        assert!(copied.unwrap() > 0, "the source does not end here");
    }
}

fn put(model: &mut Vec<u8>, at: usize, bytes: &[u8]) {
    if bytes.is_empty() {
        return;
    }
    if model.len() < at + bytes.len() {
        model.resize(at + bytes.len(), 0);
    }
    model[at..at + bytes.len()].copy_from_slice(bytes);
}

fn compare(m: &Mounted, models: &[Vec<u8>; 2], what: &str) {
    for (name, model) in ["f", "g"].into_iter().zip(models) {
        let found = fs::read(m.path(name)).unwrap();
        assert_eq!(found.len(), model.len(), "{what}: the size of {name}");
        let wrong = found.iter().zip(model).position(|(is, was)| is != was);
        assert_eq!(wrong, None, "{what}: the first wrong byte of {name}");
    }
}
