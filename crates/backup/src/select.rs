//! A part of a backup: what one path names, and what is below it.

use std::collections::HashMap;
use std::path::Path;

use crate::error::{Error, ErrorKind, Result};
use crate::manifest::{Bytes, Entry, Kind, Manifest};

impl Manifest {
    /// Returns a backup of one path alone: of a directory what is in it, of anything else that
    /// itself, under its name. `path` is one from the root of the volume, with or without a `/`
    /// before it.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn only(&self, path: &Path) -> Result<Self> {
        use std::os::unix::ffi::OsStrExt;
        let wanted = path.as_os_str().as_bytes().to_vec();
        let trimmed: Vec<u8> = {
            let from = wanted.iter().position(|byte| *byte != b'/').unwrap_or(wanted.len());
            let to = wanted.iter().rposition(|byte| *byte != b'/').map_or(from, |last| last + 1);
            wanted[from..to].to_vec()
        };
        let found = self.entries.iter().find(|entry| entry.path.get() == trimmed);
        let (Some(top), Some(root)) = (found, self.entries.first()) else {
            return Err(Error::new(
                ErrorKind::NotFound,
                format!("backup '{}' holds no {}", self.header.name, path.display()),
            ));
        };
        let is_dir = top.kind == Kind::Directory;
        // The directory restored into is dressed as the one that was named, or held the file.
        let parent = trimmed.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
        let holder = self.entries.iter().find(|entry| entry.path.get() == &trimmed[..parent]);
        let root = if is_dir { top } else { holder.unwrap_or(root) };
        let mut entries = vec![Entry { path: Vec::new().into(), ..root.clone() }];
        let prefix = if is_dir { trimmed.as_slice() } else { &trimmed[..parent] };
        let mut links = Links { of: self, first: HashMap::new() };
        for entry in &self.entries {
            let old = entry.path.get();
            let below = old.strip_prefix(trimmed.as_slice());
            let below = below.filter(|rest| trimmed.is_empty() || rest.starts_with(b"/"));
            let is_wanted =
                if is_dir { below.is_some() && !old.is_empty() } else { old == trimmed };
            if is_wanted {
                let rest = &old[prefix.len()..];
                let new = rest.strip_prefix(b"/").unwrap_or(rest).to_vec();
                entries.push(links.moved(entry, new.into()));
            }
        }
        Ok(Self { header: self.header.clone(), entries })
    }
}

/// Names of one file: the first of them that is taken has the content.
struct Links<'a> {
    of: &'a Manifest,
    /// The new path of the first name that was taken, by the first name of all.
    first: HashMap<Vec<u8>, Bytes>,
}

impl Links<'_> {
    fn moved(&mut self, entry: &Entry, path: Bytes) -> Entry {
        let original = entry.link.as_ref().unwrap_or(&entry.path).get();
        let first = self.first.get(original).cloned();
        if first.is_none() {
            self.first.insert(original.to_vec(), path.clone());
        }
        let with_content = self.of.entries.iter().find(|other| other.path.get() == original);
        match (&entry.link, first, with_content) {
            (Some(_), Some(first), _) => Entry { path, link: Some(first), ..entry.clone() },
            (Some(_), None, Some(original)) => Entry { path, ..original.clone() },
            _ => Entry { path, ..entry.clone() },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest() -> Manifest {
        let lines = r#"{"format":1,"name":"one","volume":"v","checkpoint":"c","epoch":1,"created":0,"base":null}
{"path":"","kind":"directory","mode":16877,"uid":0,"gid":0,"mtime":0,"ino":1}
{"path":"a","kind":"file","mode":33188,"uid":1,"gid":0,"mtime":0,"ino":2,"size":9}
{"path":"d","kind":"directory","mode":16832,"uid":0,"gid":0,"mtime":0,"ino":3}
{"path":"d/b","kind":"file","mode":33188,"uid":1,"gid":0,"mtime":0,"ino":2,"link":"a"}
{"path":"d/c","kind":"file","mode":33188,"uid":1,"gid":0,"mtime":0,"ino":2,"link":"a"}
{"path":"d2","kind":"file","mode":33188,"uid":0,"gid":0,"mtime":0,"ino":4,"size":3}
"#;
        let hash = blake3::hash(lines.as_bytes()).to_hex().to_string();
        let text = format!("{lines}{{\"entries\":6,\"hash\":\"{hash}\"}}\n");
        Manifest::read(text.as_bytes(), "here").unwrap()
    }

    /// S-233: a part is the path and what is below it, nothing beside it; names of one file stay
    /// names of one file, also where the first of them is not in that part.
    #[test]
    fn s_233_a_part_is_what_the_path_names() {
        let told = |path: &str| {
            let part = manifest().only(Path::new(path)).unwrap();
            let text = |bytes: &Bytes| String::from_utf8(bytes.get().to_vec()).unwrap();
            // It is a backup as any other.
            let mut written = Vec::new();
            part.write(&mut written).unwrap();
            let told =
                |entry: &Entry| (text(&entry.path), entry.size, entry.link.as_ref().map(text));
            part.entries.iter().map(told).collect::<Vec<_>>()
        };
        let entry =
            |path: &str, size, link: Option<&str>| (path.into(), size, link.map(Into::into));
        let d = [entry("", 0, None), entry("b", 9, None), entry("c", 0, Some("b"))];
        for path in ["d", "/d", "/d/"] {
            assert_eq!(told(path), d, "S-233: {path}");
        }
        assert_eq!(told("d/c"), [entry("", 0, None), entry("c", 9, None)], "S-233");
        assert_eq!(told("d2"), [entry("", 0, None), entry("d2", 3, None)], "S-233");
        assert_eq!(told("/").len(), 6, "S-233: everything");
        assert!(
            manifest().only(Path::new("d/none")).is_err()
                && manifest().only(Path::new("x")).is_err()
        );
    }
}
