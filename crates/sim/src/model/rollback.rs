//! Rollback in the model: nodes of the past become those of the present.

use std::collections::BTreeMap;

use bedplate_fs::InodeNo;

use super::{Kind, Model, NO_SUCH_NAME, Nodes, Refusal};
use crate::workload::Back;

/// Inodes that a name leads to, each with how many names it has within.
type Inside = BTreeMap<InodeNo, u32>;

impl Model {
    /// S-56, S-57: what is rolled back is what the checkpoint shows; files that are held stand in
    /// the way unless forced.
    pub(super) fn roll_back(&mut self, name: &str, back: Back, force: bool) -> Result<(), Refusal> {
        let past = self.checkpoints.get(name).ok_or(NO_SUCH_NAME)?;
        let (then, everything) = (past.nodes.clone(), past.is_of_everything());
        match back.path() {
            None if !everything => Err("the checkpoint is of named files"),
            None => self.roll_back_everything(&then, force),
            Some(path) => self.roll_back_below(&then, &path, force),
        }
    }

    fn roll_back_everything(&mut self, then: &Nodes, force: bool) -> Result<(), Refusal> {
        if !self.held.is_empty() && !force {
            return Err("open files stand in the way");
        }
        let nameless = self
            .nodes
            .iter()
            .filter(|(ino, _)| !then.contains_key(ino))
            .map(|(ino, node)| (*ino, node.clone()));
        let nodes = then.iter().map(|(ino, node)| (*ino, node.clone())).chain(nameless).collect();
        self.nodes = nodes;
        self.drop_nameless();
        Ok(())
    }

    fn roll_back_below(&mut self, then: &Nodes, path: &str, force: bool) -> Result<(), Refusal> {
        let (parent, name) = path.rsplit_once('/').expect("paths begin at the root");
        let root_then = walk(then, path).ok_or(NO_SUCH_NAME)?;
        if matches!(then[&root_then].kind, Kind::Symlink(_)) {
            return Err("it was neither a file nor a directory then");
        }
        let dir = walk(&self.nodes, parent).ok_or(NO_SUCH_NAME)?;
        let root_now = walk(&self.nodes, path);
        let before = inside(then, root_then);
        let now = root_now.map(|ino| inside(&self.nodes, ino)).unwrap_or_default();
        if !force && self.held.values().any(|ino| now.contains_key(ino) || before.contains_key(ino))
        {
            return Err("open files stand in the way");
        }
        let names = self.names();
        let elsewhere = |ino: &InodeNo| {
            names.get(ino).copied().unwrap_or(0) > now.get(ino).copied().unwrap_or(0)
        };
        if before.keys().any(elsewhere) {
            return Err("something of it has got a name elsewhere since");
        }
        for ino in before.keys() {
            self.nodes.insert(*ino, then[ino].clone());
        }
        match &mut self.nodes.get_mut(&dir).expect("it was found").kind {
            Kind::Directory(entries) => entries.insert(name.to_owned(), root_then),
            _ => return Err("it is not a directory"),
        };
        self.drop_nameless();
        Ok(())
    }
}

/// Follows a path from the root.
fn walk(nodes: &Nodes, path: &str) -> Option<InodeNo> {
    path.split('/').filter(|name| !name.is_empty()).try_fold(
        InodeNo::ROOT,
        |dir, name| match &nodes.get(&dir)?.kind {
            Kind::Directory(entries) => entries.get(name).copied(),
            _ => None,
        },
    )
}

fn inside(nodes: &Nodes, root: InodeNo) -> Inside {
    let (mut inside, mut todo) = (Inside::new(), vec![root]);
    while let Some(ino) = todo.pop() {
        *inside.entry(ino).or_default() += 1;
        if let Kind::Directory(entries) = &nodes[&ino].kind {
            todo.extend(entries.values());
        }
    }
    inside
}
