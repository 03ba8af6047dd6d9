//! What of the model is visible: a view of all names and contents.

use std::collections::BTreeMap;
use std::sync::Arc;

use bedplate_fs::InodeNo;

use super::Model;
use crate::node::{Kind, root_line};
use crate::view::{DELETES_OLDEST, View};

impl Model {
    pub(super) fn names(&self) -> BTreeMap<InodeNo, u32> {
        let mut names = BTreeMap::from([(InodeNo::ROOT, 1)]);
        for node in self.nodes.values() {
            if let Kind::Directory(entries) = &node.kind {
                entries.values().for_each(|ino| *names.entry(*ino).or_default() += 1);
            }
        }
        names
    }

    /// Returns what a user sees.
    pub(crate) fn view(&self) -> View {
        let mut view = View::default();
        self.view_directory(InodeNo::ROOT, "", &self.names(), &mut view);
        view.names.extend(root_line(
            self.nodes[&InodeNo::ROOT].untorn,
            self.nodes[&InodeNo::ROOT].integrity,
        ));
        view.checkpoints = self
            .checkpoints
            .values()
            .map(|past| (past.line.clone(), Arc::clone(&past.shown)))
            .collect();
        view.names.extend(view.checkpoints.keys().cloned());
        view.names.extend(self.deletes_oldest.then(|| DELETES_OLDEST.to_owned()));
        // Files without a name too: after a crash that lost the removal they are back, with what
        // was written to them since.
        for (ino, node) in &self.nodes {
            if let Kind::File(content) = &node.kind {
                view.contents.insert(*ino, Arc::clone(content));
            }
        }
        view
    }

    pub(super) fn view_directory(
        &self,
        dir: InodeNo,
        path: &str,
        names: &BTreeMap<InodeNo, u32>,
        view: &mut View,
    ) {
        let Kind::Directory(entries) = &self.nodes[&dir].kind else {
            unreachable!("only directories are walked")
        };
        for (name, ino) in entries {
            let (path, node) = (format!("{path}/{name}"), &self.nodes[ino]);
            let subdirectories = |entries: &BTreeMap<String, InodeNo>| {
                u32::try_from(
                    entries
                        .values()
                        .filter(|ino| matches!(self.nodes[ino].kind, Kind::Directory(_)))
                        .count(),
                )
                .expect("a few")
            };
            let nlink = match &node.kind {
                Kind::Directory(entries) => 2 + subdirectories(entries),
                _ => names[ino],
            };
            view.names.push(crate::node::line(&path, *ino, node, nlink));
            if matches!(node.kind, Kind::Directory(_)) {
                self.view_directory(*ino, &path, names, view);
            }
        }
    }
}
