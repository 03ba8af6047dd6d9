//! Checkpoints in the model: what one shows, which of them a full volume may delete, and what
//! differs from the present.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use bedplate_fs::InodeNo;

use super::{EXISTS, Kind, Model, NO_SUCH_NAME, Nodes, Past, Refusal};
use crate::outcome::{Diff, Outcome};
use crate::view::{MAY_GO, Seen, View};
use crate::workload::AUTOMATIC_PREFIX;

impl Past {
    /// Its place among the others: larger is newer.
    fn epoch(&self) -> u32 {
        let word =
            self.line.split(' ').skip_while(|word| *word != "epoch").nth(1).unwrap_or_default();
        word.trim_end_matches(',').parse().expect("a line has an epoch")
    }

    /// Says whether a file that it shows at a path is not to be found under that name any more,
    /// wherever its directory is by now.
    fn has_left(
        &self,
        paths: &BTreeMap<String, InodeNo>,
        path: &str,
        ino: InodeNo,
        now: &Nodes,
    ) -> bool {
        let (dir, name) = path.rsplit_once('/').expect("a path begins at the root");
        let dir = paths.get(dir).copied().unwrap_or(InodeNo::ROOT);
        let stays = matches!(now.get(&dir).map(|node| &node.kind), Some(Kind::Directory(entries)) if entries.get(name) == Some(&ino));
        matches!(self.nodes.get(&ino).map(|node| &node.kind), Some(Kind::File(_))) && !stays
    }

    pub(super) fn is_of_everything(&self) -> bool {
        self.line.ends_with(" of []")
    }
}

impl Model {
    /// S-50: a checkpoint that was just made shows what the file system shows, within its scope.
    pub(super) fn checkpoint(
        &mut self,
        name: String,
        dir: Option<u8>,
        outcome: &Outcome,
    ) -> Result<(), Refusal> {
        if self.checkpoints.contains_key(&name) {
            return Err(EXISTS);
        }
        if let Some(dir) = dir {
            self.directory(dir)?;
        }
        let Some((line, seen)) = outcome.checkpoint.clone() else { return Ok(()) };
        let shown = &seen.view;
        let mut present = View::default();
        self.view_directory(InodeNo::ROOT, "", &self.names(), &mut present);
        let holds = |(ino, content): (&InodeNo, &Arc<Vec<u8>>)| matches!(&self.nodes.get(ino).map(|node| &node.kind), Some(Kind::File(now)) if now == content);
        let whole = dir.is_none_or(|dir| dir == 0);
        let names = if whole {
            shown.names == present.names
        } else {
            shown.names.iter().all(|name| present.names.contains(name))
        };
        if !names || !shown.contents.iter().all(holds) {
            return Err("S-50: the checkpoint shows something else than the present");
        }
        let mut nodes = seen.nodes.clone();
        if whole {
            // What is open without a name is in the checkpoint, though no path leads to it.
            let named = self.names();
            let nameless = self.nodes.iter().filter(|(ino, _)| !named.contains_key(ino));
            nodes.extend(nameless.map(|(ino, node)| (*ino, node.clone())));
        }
        let past = Past { line, shown: Arc::new(shown.clone()), nodes: Arc::new(nodes) };
        self.checkpoints.insert(name, past);
        Ok(())
    }

    /// S-82: of the automatic checkpoints those that are not `there` any more were deleted to make
    /// room, the oldest first. Takes them out, and returns what was visible in between: each of
    /// them a state that a power cut may leave.
    pub(crate) fn lose(&mut self, there: &BTreeSet<String>) -> Result<Vec<View>, String> {
        let mut known: Vec<_> = self
            .checkpoints
            .iter()
            .filter(|(name, _)| name.starts_with(AUTOMATIC_PREFIX))
            .collect();
        known.sort_by_key(|(_, past)| past.epoch());
        let goes = |name: &String| !there.contains(name);
        let gone: Vec<String> =
            known.iter().map(|(name, _)| (*name).clone()).filter(goes).collect();
        if gone.is_empty() {
            return Ok(Vec::new());
        }
        if !self.deletes_oldest {
            return Err(format!("S-82: the policy is 'refuse', and {gone:?} are gone"));
        }
        let oldest: Vec<_> = known
            .iter()
            .filter(|(_, past)| past.line.contains(MAY_GO))
            .take(gone.len())
            .map(|(name, _)| (*name).clone())
            .collect();
        if gone != oldest {
            return Err(format!(
                "S-82: {gone:?} are gone, but {oldest:?} are the oldest that may go"
            ));
        }
        let without = |name: &String| {
            self.checkpoints.remove(name);
            self.view()
        };
        Ok(gone.iter().map(without).collect())
    }

    /// Takes over a checkpoint that another judge holds against what it should show.
    pub(crate) fn add_checkpoint(&mut self, line: String, seen: &Seen) -> Result<(), Refusal> {
        let name = line.split(' ').nth(1).unwrap_or_default().to_owned();
        let past =
            Past { line, shown: Arc::new(seen.view.clone()), nodes: Arc::new(seen.nodes.clone()) };
        self.checkpoints.insert(name, past).map_or(Ok(()), |_| Err(EXISTS))
    }

    /// S-77: what is told of turns what was into what is. S-121: of a checkpoint of named files
    /// this is said of those.
    pub(super) fn diff(&self, name: &str, told: Option<&Diff>) -> Result<(), Refusal> {
        let past = self.checkpoints.get(name).ok_or(NO_SUCH_NAME)?;
        let Some(told) = told else { return Ok(()) };
        let (then, now) = (paths(&past.nodes), paths(&self.nodes));
        // What lies in a directory moves with it.
        let is_told = |path: &String| {
            path.match_indices('/')
                .skip(1)
                .map(|(at, _)| &path[..at])
                .chain([path.as_str()])
                .any(|path| told.paths.contains(path))
        };
        let moved = |from: &BTreeMap<String, InodeNo>, to: &BTreeMap<String, InodeNo>| {
            from.iter()
                .filter(|(path, ino)| to.get(*path) != Some(ino))
                .all(|(path, _)| is_told(path))
        };
        if past.is_of_everything() && (!moved(&then, &now) || !moved(&now, &then)) {
            return Err("S-77: a name came, went or moved and is not told of");
        }
        if !then
            .iter()
            .filter(|(path, ino)| past.has_left(&then, path, **ino, &self.nodes))
            .all(|(path, _)| is_told(path))
        {
            return Err("S-121: a file left its name and is not told of");
        }
        let named: BTreeSet<InodeNo> = now.values().copied().collect();
        // What is open and has no name is asked for by none.
        for (ino, node) in self.nodes.iter().filter(|(ino, _)| named.contains(ino)) {
            let Kind::File(content) = &node.kind else { continue };
            let Some(ranges) = told.ranges.get(ino) else {
                if past.is_of_everything() || past.nodes.contains_key(ino) {
                    return Err("S-121: nothing is told of the changed ranges of a file that the \
                                checkpoint is of");
                }
                continue;
            };
            let before = past.nodes.get(ino).map(|node| &node.kind);
            let before = match before {
                Some(Kind::File(before)) => before.as_slice(),
                _ => &[],
            };
            if past.nodes.contains_key(ino)
                && before != content.as_slice()
                && !told.inodes.contains(ino)
            {
                return Err("S-77: a file's content changed and it is not told of");
            }
            if patched(before, content, ranges) != **content {
                return Err(
                    "S-77: the changed ranges, put over what the file held, do not make what it \
                     holds",
                );
            }
        }
        Ok(())
    }
}

/// Returns what a file held, with the ranges that changed put over it.
fn patched(before: &[u8], content: &[u8], ranges: &[(Range<u64>, bool)]) -> Vec<u8> {
    let mut patched = before.to_vec();
    patched.resize(content.len(), 0);
    debug_assert!(
        ranges.iter().all(|(range, _)| range.start <= range.end),
        "a range that changed begins before it ends: {ranges:?}"
    );
    for (range, hole) in ranges {
        let index = |at: u64| usize::try_from(at).unwrap_or(usize::MAX).min(content.len());
        let range = index(range.start)..index(range.end);
        if *hole {
            patched[range].fill(0);
        } else {
            patched[range.clone()].copy_from_slice(&content[range]);
        }
    }
    patched
}

/// Every path but the root's, and the inode it leads to.
fn paths(nodes: &Nodes) -> BTreeMap<String, InodeNo> {
    let (mut paths, mut todo) = (BTreeMap::new(), vec![(String::new(), InodeNo::ROOT)]);
    while let Some((path, dir)) = todo.pop() {
        let Some(Kind::Directory(entries)) = nodes.get(&dir).map(|node| &node.kind) else {
            continue;
        };
        for (name, ino) in entries {
            let path = format!("{path}/{name}");
            todo.push((path.clone(), *ino));
            paths.insert(path, *ino);
        }
    }
    paths
}
