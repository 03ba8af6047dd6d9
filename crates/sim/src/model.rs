//! The model: what a file system is, in memory and without a device. The live file system is held
//! against it, and so is what recovery makes.

mod apply;
mod content;
mod past;
mod rollback;
mod shown;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bedplate_fs::InodeNo;

use crate::node::{Kind, Node};
use crate::outcome::Outcome;
use crate::view::{DELETES_OLDEST, Seen, View};
use crate::workload::{CheckpointStep, On, RenameKind, Step, StepKind};
pub(crate) use content::allocate;

/// Why the model refuses a step. The file system must refuse it too.
pub(crate) type Refusal = &'static str;

/// A checkpoint: its line, what it shows for good, and what a rollback brings back.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Past {
    line: String,
    shown: Arc<View>,
    nodes: Arc<Nodes>,
}

type Nodes = BTreeMap<InodeNo, Node>;

/// A whole file system.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Model {
    pub(crate) nodes: BTreeMap<InodeNo, Node>,
    held: BTreeMap<u8, InodeNo>,
    /// A file that was found under a name before the step in whose middle it is used now: file
    /// slot, directory slot, inode.
    found: Option<(u8, u8, InodeNo)>,
    /// Slots that remember an inode. What has lost its names is not shown, so nothing else follows
    /// from them.
    retained: BTreeSet<u8>,
    /// The checkpoints by name.
    checkpoints: BTreeMap<String, Past>,
    /// Whether a full volume deletes the oldest of them that may go.
    deletes_oldest: bool,
    /// Every inode number that was ever given out (S-19).
    ever: BTreeSet<InodeNo>,
    pub(crate) block_size: u32,
}

/// How far a step has come with its file when another one comes in its middle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Found {
    /// It is open: it stays until the step is over.
    Opened,
    /// Its number is known: it may be gone when the step comes to it.
    Named,
}

/// The slot of a file that was opened before the step in whose middle it is used.
const EARLY: u8 = u8::MAX;

const NO_SUCH_NAME: Refusal = "there is no such name";
const NOT_A_FILE: Refusal = "it is not a file";
const EXISTS: Refusal = "the name exists";

impl Model {
    /// Makes a model of what a recovery left; `used` are the numbers that had been given out for
    /// good.
    pub(crate) fn recovered(block_size: u32, seen: Seen, used: BTreeSet<InodeNo>) -> Self {
        let Seen { view, nodes, mut past } = seen;
        let name = |line: &str| line.split(' ').nth(1).unwrap_or_default().to_owned();
        let deletes_oldest = view.names.iter().any(|line| line == DELETES_OLDEST);
        let checkpoints = view.checkpoints.into_iter().map(|(line, shown)| {
            let nodes = past.remove(&line).unwrap_or_default();
            (name(&line), Past { line, shown, nodes })
        });
        let checkpoints = checkpoints.collect();
        let ever = nodes.keys().copied().chain(used).collect();
        Self {
            nodes,
            held: BTreeMap::new(),
            found: None,
            retained: BTreeSet::new(),
            checkpoints,
            deletes_oldest,
            ever,
            block_size,
        }
    }

    fn dir_ino(&self, dir: u8) -> Result<InodeNo, Refusal> {
        if dir == 0 {
            Ok(InodeNo::ROOT)
        } else {
            self.root().get(&format!("d{dir}")).copied().ok_or(NO_SUCH_NAME)
        }
    }

    fn root(&self) -> &BTreeMap<String, InodeNo> {
        let Kind::Directory(entries) = &self.nodes[&InodeNo::ROOT].kind else {
            unreachable!("the root is a directory")
        };
        entries
    }

    fn directory(&mut self, dir: u8) -> Result<&mut BTreeMap<String, InodeNo>, Refusal> {
        let ino = self.dir_ino(dir)?;
        match &mut self.nodes.get_mut(&ino).expect("names lead to inodes").kind {
            Kind::Directory(entries) => Ok(entries),
            _ => Err("it is not a directory"),
        }
    }

    fn named(&mut self, file: u8, dir: u8) -> Result<InodeNo, Refusal> {
        self.directory(dir)?.get(&format!("f{file}")).copied().ok_or(NO_SUCH_NAME)
    }

    /// As [`named`](Self::named), or as it was found before.
    fn reached(&mut self, file: u8, dir: u8) -> Result<InodeNo, Refusal> {
        match self.found.filter(|found| (found.0, found.1) == (file, dir)) {
            None => self.named(file, dir),
            Some((_, _, ino)) if self.nodes.contains_key(&ino) => Ok(ino),
            Some(_) => Err(NO_SUCH_NAME),
        }
    }

    fn node(&mut self, file: u8, dir: u8) -> Result<&mut Node, Refusal> {
        let ino = self.reached(file, dir)?;
        let node = self.nodes.get_mut(&ino).expect("names lead to inodes");
        // A path that ends in a symbolic link is followed, and these lead nowhere.
        if matches!(node.kind, Kind::Symlink(_)) { Err(NOT_A_FILE) } else { Ok(node) }
    }

    /// Finds the file that a step names before another one is carried out: a program opens it, and
    /// what comes in the middle may give the name to another file. Returns whether there is one to
    /// be found.
    pub(crate) fn find_early(&mut self, step: &Step, found: Found) -> bool {
        let Some((file, dir, opens)) = step.reaches() else { return false };
        let Ok(ino) = self.named(file, dir) else { return false };
        self.found = Some((file, dir, ino));
        if found == Found::Opened {
            self.held.insert(EARLY, ino);
        }
        opens || found == Found::Named
    }

    /// Ends what [`find_early`](Self::find_early) began.
    pub(crate) fn forget_found(&mut self) {
        self.found = None;
        self.held.remove(&EARLY);
        self.drop_nameless();
        debug_assert!(self.held.keys().all(|slot| *slot != EARLY), "nothing stays held for a step");
    }

    /// Returns which files are held open, by slot, and what they hold.
    pub(crate) fn held(&self) -> BTreeMap<u8, (InodeNo, Vec<u8>)> {
        let held = |(slot, ino): (&u8, &InodeNo)| {
            let content = self.held_content(*slot).unwrap_or_default().to_vec();
            (*slot, (*ino, content))
        };
        self.held.iter().map(held).collect()
    }

    /// Returns the inode of a file.
    pub(crate) fn ino(&mut self, on: On) -> Result<InodeNo, Refusal> {
        match on {
            On::Name(file, dir) => self.reached(file, dir),
            On::Held(slot) => self.held.get(&slot).copied().ok_or("nothing is held there"),
        }
    }

    /// Returns a file's content.
    pub(crate) fn content(&mut self, on: On) -> Result<Arc<Vec<u8>>, Refusal> {
        let ino = self.ino(on)?;
        match &self.nodes[&ino].kind {
            Kind::File(content) => Ok(Arc::clone(content)),
            _ => Err(NOT_A_FILE),
        }
    }

    fn change(
        &mut self,
        on: On,
        change: impl FnOnce(&mut Vec<u8>) -> Result<(), Refusal>,
    ) -> Result<(), Refusal> {
        let ino = self.ino(on)?;
        match &mut self.nodes.get_mut(&ino).expect("names and opens lead to inodes").kind {
            Kind::File(content) => change(Arc::make_mut(content)),
            _ => Err(NOT_A_FILE),
        }
    }

    /// Returns the file, or without one the directory, that something is set on. A unit below the
    /// block that the device does not write untorn by itself is refused; workloads ask for none.
    fn marked(&mut self, file: Option<u8>, dir: u8) -> Result<&mut Node, Refusal> {
        match file {
            Some(file) => self.node(file, dir),
            None => {
                let ino = self.dir_ino(dir)?;
                Ok(self.nodes.get_mut(&ino).expect("names lead to inodes"))
            }
        }
    }

    fn make(
        &mut self,
        dir: u8,
        name: String,
        node: Node,
        outcome: &Outcome,
    ) -> Result<(), Refusal> {
        let ino = outcome.made.unwrap_or(InodeNo(u64::MAX));
        let parent = &self.nodes[&self.dir_ino(dir)?];
        let inherited = (parent.io_mode, parent.untorn, parent.integrity);
        let entries = self.directory(dir)?;
        if entries.contains_key(&name) {
            return Err(EXISTS);
        }
        entries.insert(name, ino);
        let (io_mode, untorn, integrity) =
            if matches!(node.kind, Kind::Symlink(_)) { (None, None, false) } else { inherited };
        self.nodes.insert(ino, Node { io_mode, untorn, integrity, ..node });
        if self.ever.insert(ino) { Ok(()) } else { Err("S-19: the inode number was used before") }
    }

    fn unlink(&mut self, file: u8, dir: u8) -> Result<(), Refusal> {
        self.directory(dir)?.remove(&format!("f{file}")).ok_or(NO_SUCH_NAME)?;
        self.drop_nameless();
        Ok(())
    }

    fn remove_directory(&mut self, dir: u8) -> Result<(), Refusal> {
        // The root has no name, but its slot's number may be a directory's.
        let ino = self.root().get(&format!("d{dir}")).copied().ok_or(NO_SUCH_NAME)?;
        if matches!(&self.nodes[&ino].kind, Kind::Directory(entries) if !entries.is_empty()) {
            return Err("the directory is not empty");
        }
        self.directory(0)?.remove(&format!("d{dir}"));
        self.drop_nameless();
        Ok(())
    }

    fn rename(
        &mut self,
        from: (u8, String),
        to: (u8, String),
        kind: RenameKind,
    ) -> Result<(), Refusal> {
        let (source, target) = (
            self.directory(from.0)?.get(&from.1).copied(),
            self.directory(to.0)?.get(&to.1).copied(),
        );
        let source = source.ok_or(NO_SUCH_NAME)?;
        if target == Some(source) {
            return Ok(());
        }
        match (kind, target) {
            (RenameKind::Exchange, None) => return Err(NO_SUCH_NAME),
            (RenameKind::Exchange, Some(target)) => {
                self.directory(from.0)?.insert(from.1, target);
            }
            (RenameKind::Replace, target) => {
                if target.is_some_and(|target| matches!(&self.nodes[&target].kind, Kind::Directory(entries) if !entries.is_empty())) {
                    return Err("the directory is not empty");
                }
                self.directory(from.0)?.remove(&from.1);
            }
        }
        self.directory(to.0)?.insert(to.1, source);
        self.drop_nameless();
        Ok(())
    }

    fn link(&mut self, file: u8, dir: u8, to: u8, to_dir: u8) -> Result<(), Refusal> {
        self.node(file, dir)?;
        let ino = self.reached(file, dir)?;
        let entries = self.directory(to_dir)?;
        if entries.contains_key(&format!("f{to}")) {
            return Err(EXISTS);
        }
        entries.insert(format!("f{to}"), ino);
        Ok(())
    }

    fn hold(&mut self, slot: u8, file: u8, dir: u8) -> Result<(), Refusal> {
        self.content(On::Name(file, dir))?;
        let ino = self.reached(file, dir)?;
        self.held.insert(slot, ino);
        self.drop_nameless();
        Ok(())
    }

    fn release(&mut self, slot: u8) -> Result<(), Refusal> {
        self.held.remove(&slot).ok_or("nothing is held there")?;
        self.drop_nameless();
        Ok(())
    }

    /// What a clone is made of: the nodes of a checkpoint or of the present.
    fn source(&self, slot: Option<u8>) -> Result<&BTreeMap<InodeNo, Node>, Refusal> {
        match slot {
            None => Ok(&self.nodes),
            Some(slot) => self
                .checkpoints
                .get(&format!("c{slot}"))
                .map(|past| past.nodes.as_ref())
                .ok_or(NO_SUCH_NAME),
        }
    }

    /// S-75: a clone is what it is of.
    fn clone_file(
        &mut self,
        slot: Option<u8>,
        file: u8,
        dir: u8,
        to: &str,
        outcome: &Outcome,
    ) -> Result<(), Refusal> {
        let nodes = self.source(slot)?;
        let dir =
            if dir == 0 { InodeNo::ROOT } else { entry(nodes, InodeNo::ROOT, &format!("d{dir}"))? };
        let node = nodes
            .get(&entry(nodes, dir, &format!("f{file}"))?)
            .filter(|node| matches!(node.kind, Kind::File(_)))
            .cloned();
        let node = node.ok_or(NOT_A_FILE)?;
        self.add_clone(to, node, outcome)
    }

    fn clone_directory(
        &mut self,
        slot: Option<u8>,
        from: u8,
        to: &str,
        outcome: &Outcome,
    ) -> Result<(), Refusal> {
        let nodes = self.source(slot)?;
        let top = nodes[&entry(nodes, InodeNo::ROOT, &format!("d{from}"))?].clone();
        let Kind::Directory(entries) = &top.kind else { return Err("it is not a directory") };
        let below: Vec<_> = entries
            .iter()
            .map(|(name, ino)| (name.clone(), *ino, nodes.get(ino).cloned()))
            .collect();
        // One that failed told no numbers: it gets such as no file has.
        let invented = |of: InodeNo| InodeNo(u64::MAX - of.0);
        let told = match outcome.made {
            Some(_) => outcome.entries.clone(),
            None => below.iter().map(|(name, of, _)| (name.clone(), invented(*of))).collect(),
        };
        if !told.keys().eq(entries.keys()) {
            return Err("S-75: the clone has other names");
        }
        self.add_clone(to, Node { kind: Kind::Directory(told.clone()), ..top }, outcome)?;
        let mut clones: BTreeMap<InodeNo, InodeNo> = BTreeMap::new();
        for (name, of, node) in below {
            let (Some(ino), Some(node)) = (told.get(&name), node) else { continue };
            if *clones.entry(of).or_insert(*ino) != *ino {
                return Err("S-75: two names of one file lead to two clones");
            }
            if self.nodes.insert(*ino, node).is_none() && !self.ever.insert(*ino) {
                return Err("S-19: the inode number was used before");
            }
        }
        Ok(())
    }

    fn add_clone(&mut self, name: &str, node: Node, outcome: &Outcome) -> Result<(), Refusal> {
        let ino = outcome.made.unwrap_or(InodeNo(u64::MAX));
        let entries = self.directory(0)?;
        if entries.contains_key(name) {
            return Err(EXISTS);
        }
        entries.insert(name.to_owned(), ino);
        self.nodes.insert(ino, node);
        if self.ever.insert(ino) { Ok(()) } else { Err("S-19: the inode number was used before") }
    }

    /// The model after a step that made a clone and failed all the same: it has the numbers that
    /// are seen, which nothing else tells. `None` where there is no clone.
    pub(crate) fn with_clone_of(&self, step: &Step, seen: &Seen) -> Option<Self> {
        let StepKind::Checkpoints(kind) = step.kind() else { return None };
        let name = match kind {
            CheckpointStep::Clone(.., to) => format!("f{to}"),
            CheckpointStep::CloneDirectory(.., to) => format!("d{to}"),
            _ => return None,
        };
        let entries_of = |ino| match seen.nodes.get(&ino).map(|node| &node.kind) {
            Some(Kind::Directory(entries)) => entries.clone(),
            _ => BTreeMap::new(),
        };
        let made = *entries_of(InodeNo::ROOT).get(&name)?;
        let outcome = Outcome { made: Some(made), entries: entries_of(made), ..Outcome::default() };
        let mut model = self.clone();
        model.apply(step, &outcome).ok().map(|()| model)
    }

    /// The content of what a slot holds open.
    pub(crate) fn held_content(&self, slot: u8) -> Option<&[u8]> {
        match &self.nodes.get(self.held.get(&slot)?)?.kind {
            Kind::File(content) => Some(content),
            _ => None,
        }
    }

    pub(super) fn drop_nameless(&mut self) {
        let held: BTreeSet<InodeNo> = self.held.values().copied().collect();
        loop {
            let (names, before) = (self.names(), self.nodes.len());
            self.nodes.retain(|ino, _| names.contains_key(ino) || held.contains(ino));
            // What was in a directory that went goes with it.
            if self.nodes.len() == before {
                debug_assert!(self.nodes.contains_key(&InodeNo::ROOT), "the root has no name");
                return;
            }
        }
    }
}

/// What a name in a directory leads to.
fn entry(nodes: &BTreeMap<InodeNo, Node>, dir: InodeNo, name: &str) -> Result<InodeNo, Refusal> {
    match nodes.get(&dir).map(|node| &node.kind) {
        Some(Kind::Directory(entries)) => entries.get(name).copied().ok_or(NO_SUCH_NAME),
        _ => Err(NO_SUCH_NAME),
    }
}

/// Where a symbolic link of this length leads: nowhere.
pub(crate) fn target(len: u16) -> String {
    "x".repeat(len.max(1).into())
}

/// The name of an attribute slot.
pub(crate) fn attribute(which: u8) -> String {
    format!("user.{which}")
}
