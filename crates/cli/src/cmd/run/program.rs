//! Whether a program lets a library go in front of its calls: said before it runs.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::failure::{Failure, Result};

/// As much of a program as says what loads it.
const HEAD_BYTES: u64 = 64 << 10;

const ELF: &[u8] = b"\x7fELF";
const CLASS_64: u8 = 2;
const LITTLE_ENDIAN: u8 = 1;
/// The segment that names the loader, and the one that lists what is loaded.
const INTERPRETER: u32 = 3;
const DYNAMIC: u32 = 2;

/// Finds a program as the system would.
pub fn find(name: &OsStr) -> Result<PathBuf> {
    let is_program = |path: &Path| {
        path.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
    };
    if name.as_bytes().contains(&b'/') {
        return Ok(PathBuf::from(name));
    }
    let search = std::env::var_os("PATH").unwrap_or_else(|| "/usr/local/bin:/usr/bin:/bin".into());
    std::env::split_paths(&search)
        .map(|dir| dir.join(name))
        .find(|path| is_program(path))
        .ok_or_else(|| {
            let name = Path::new(name).display();
            Failure::new("not_found", format!("there is no program '{name}' on the search path"))
        })
}

/// Says why a program has no leases, whatever a mount allows; `None` where nothing is known against
/// it.
pub fn why_not(path: &Path) -> Option<&'static str> {
    let meta = path.metadata().ok()?;
    if !is_own(&meta) {
        return Some("runs with the rights of another user, and the loader then takes no library");
    }
    let mut head = Vec::new();
    File::open(path).ok()?.take(HEAD_BYTES).read_to_end(&mut head).ok()?;
    match interpreter_of_script(&head) {
        Some(interpreter) if interpreter != path => why_not(&interpreter),
        Some(_) => None,
        None => why_not_loaded(&head),
    }
}

/// The set-user-ID and set-group-ID bits.
const SET_USER: u32 = 0o4000;
const SET_GROUP: u32 = 0o2000;

/// Tells whether the program runs with the rights of this process.
fn is_own(meta: &std::fs::Metadata) -> bool {
    let user = meta.mode() & SET_USER == 0 || meta.uid() == rustix::process::geteuid().as_raw();
    let group = meta.mode() & SET_GROUP == 0 || meta.gid() == rustix::process::getegid().as_raw();
    user && group
}

fn interpreter_of_script(head: &[u8]) -> Option<PathBuf> {
    let line = head.strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?;
    let word = line.trim_ascii().split(u8::is_ascii_whitespace).next()?;
    Some(PathBuf::from(OsStr::from_bytes(word)))
}

/// Reads in a program's headers what loads it. What makes no sense there is left to the system.
fn why_not_loaded(head: &[u8]) -> Option<&'static str> {
    if !head.starts_with(ELF) {
        return None;
    }
    if head.get(4) != Some(&CLASS_64) || head.get(5) != Some(&LITTLE_ENDIAN) {
        return Some("is for another kind of processor than the library");
    }
    let (at, size, count) = (number(head, 32, 8)?, number(head, 54, 2)?, number(head, 56, 2)?);
    let segments = (0..count).filter_map(|i| at.checked_add(i.checked_mul(size)?));
    let kinds: Vec<(u64, u64)> =
        segments.filter_map(|at| Some((number(head, at, 4)?, at))).collect();
    let of = |kind: u32| kinds.iter().find(|(found, _)| *found == u64::from(kind));
    let Some((_, segment)) = of(INTERPRETER) else {
        // A loader is a program too, and loads what it is told to.
        let is_loader = of(DYNAMIC).is_some();
        return (!is_loader)
            .then_some("is linked statically, so that no library goes in front of its calls");
    };
    let start = usize::try_from(number(head, segment + 8, 8)?).ok()?;
    let len = usize::try_from(number(head, segment + 32, 8)?).ok()?;
    let loader = head.get(start..start.checked_add(len)?)?;
    let is_musl = loader.windows(4).any(|word| word == b"musl");
    is_musl.then_some("uses another C library (musl) than the library in front of its calls")
}

fn number(head: &[u8], at: u64, len: usize) -> Option<u64> {
    let at = usize::try_from(at).ok()?;
    let bytes = head.get(at..at.checked_add(len)?)?;
    Some(bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program's head with one segment of a kind, which holds `loader`.
    fn program(kind: u32, loader: &[u8]) -> Vec<u8> {
        let mut head = vec![0; 200];
        head[..4].copy_from_slice(ELF);
        (head[4], head[5]) = (CLASS_64, LITTLE_ENDIAN);
        (head[32], head[54], head[56]) = (64, 56, 1);
        head[64..68].copy_from_slice(&kind.to_le_bytes());
        (head[64 + 8], head[64 + 32]) = (130, loader.len() as u8);
        head[130..130 + loader.len()].copy_from_slice(loader);
        head
    }

    #[test]
    fn what_takes_no_library_is_said_before_it_runs() {
        let glibc = program(INTERPRETER, b"/lib64/ld-linux-x86-64.so.2\0");
        assert_eq!(why_not_loaded(&glibc), None);
        let musl = program(INTERPRETER, b"/lib/ld-musl-x86_64.so.1\0");
        assert!(why_not_loaded(&musl).is_some_and(|why| why.contains("musl")));
        assert!(why_not_loaded(&program(1, b"")).is_some_and(|why| why.contains("statically")));
        assert_eq!(why_not_loaded(&program(DYNAMIC, b"")), None, "a loader");
        let mut other = glibc;
        other[4] = 1;
        assert!(why_not_loaded(&other).is_some_and(|why| why.contains("processor")));
        assert_eq!(why_not_loaded(b"anything"), None);
        assert_eq!(why_not(Path::new("/bin/sh")), None);
        // Whatever a head says, looking at it ends well.
        for at in 0..200 {
            let mut odd = program(INTERPRETER, b"/lib64/ld-linux-x86-64.so.2\0");
            odd[at] = 0xff;
            let _ = why_not_loaded(&odd[..]);
            let _ = why_not_loaded(&odd[..at]);
        }
    }

    #[test]
    fn a_script_is_what_its_interpreter_is() {
        let script = |text: &str| interpreter_of_script(text.as_bytes());
        assert_eq!(script("#!/bin/sh -e\nls"), Some(PathBuf::from("/bin/sh")));
        assert_eq!(script("#! /usr/bin/env python3\n"), Some(PathBuf::from("/usr/bin/env")));
        assert_eq!(script("ls"), None);
    }
}
