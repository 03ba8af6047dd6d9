//! Numbers that the kernel knows files by, and the handles that the server does.

use std::collections::HashMap;
use std::sync::Arc;

use bedplate_nfs::{Attr, Client, Handle};
use parking_lot::Mutex;

use super::requests::ROOT;
use crate::fuse::errno::{Answer, Errno};

/// A file, directory or what else the kernel knows.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) number: u64,
    pub(super) handle: Handle,
    pub(super) state: Mutex<NodeState>,
}

#[derive(Debug, Default)]
pub(super) struct NodeState {
    /// How often it is open.
    pub(super) opens: u32,
    /// The name that it keeps until the last close.
    pub(super) hidden: Option<Hidden>,
    /// What the kernel was told of it last: size, and times of the last changes.
    told: Option<Told>,
}

type Told = (u64, [u32; 2], [u32; 2]);

/// A name of a file that was removed while it is open.
#[derive(Debug)]
pub(super) struct Hidden {
    pub(super) dir: Handle,
    pub(super) name: Vec<u8>,
    /// As the user that removed it.
    pub(super) client: Client,
}

impl Node {
    /// Notes what the kernel is told. Returns whether it was told something else before.
    pub(super) fn note(&self, attr: &Attr) -> bool {
        let now = (attr.size, attr.mtime, attr.ctime);
        self.state.lock().told.replace(now).is_some_and(|before| before != now)
    }

    pub(super) fn is_hidden(&self) -> bool {
        self.state.lock().hidden.is_some()
    }
}

/// All that the kernel knows.
#[derive(Debug)]
pub(super) struct Nodes {
    table: Mutex<Table>,
}

#[derive(Debug)]
struct Table {
    /// Each with how often the kernel was told of it.
    nodes: HashMap<u64, (Arc<Node>, u64)>,
    numbers: HashMap<Handle, u64>,
    last: u64,
}

impl Nodes {
    pub(super) fn new(root: &Handle) -> Self {
        let nodes = Self {
            table: Mutex::new(Table { nodes: HashMap::new(), numbers: HashMap::new(), last: 0 }),
        };
        assert_eq!(nodes.retain(root).number, ROOT, "the root is the first");
        nodes
    }

    /// Returns what the kernel calls by a number.
    pub(super) fn get(&self, number: u64) -> Answer<Arc<Node>> {
        let table = self.table.lock();
        table.nodes.get(&number).map(|(node, _)| Arc::clone(node)).ok_or(Errno::STALE)
    }

    /// Returns what the kernel knows by a handle, where it does.
    pub(super) fn find(&self, handle: &Handle) -> Option<Arc<Node>> {
        let table = self.table.lock();
        let number = table.numbers.get(handle)?;
        table.nodes.get(number).map(|(node, _)| Arc::clone(node))
    }

    /// Returns the node of a handle, of which the kernel is about to be told.
    pub(super) fn retain(&self, handle: &Handle) -> Arc<Node> {
        let mut table = self.table.lock();
        let known = table.numbers.get(handle).copied();
        let number = known.unwrap_or_else(|| {
            table.last += 1;
            let number = table.last;
            table.numbers.insert(handle.clone(), number);
            number
        });
        let new = || {
            let (handle, state) = (handle.clone(), Mutex::default());
            (Arc::new(Node { number, handle, state }), 0)
        };
        let (node, count) = table.nodes.entry(number).or_insert_with(new);
        *count += 1;
        Arc::clone(node)
    }

    /// Takes back that the kernel was told of a node so often.
    pub(super) fn forget(&self, number: u64, count: u64) {
        let mut table = self.table.lock();
        let Some((node, told)) = table.nodes.get_mut(&number) else { return };
        *told = told.saturating_sub(count);
        if *told == 0 && number != ROOT {
            let handle = node.handle.clone();
            table.nodes.remove(&number);
            table.numbers.remove(&handle);
        }
    }
}
