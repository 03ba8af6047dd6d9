//! What a user sees of a file system: names with their attributes, and the content of every file.

use std::collections::BTreeMap;
use std::sync::Arc;

use bedplate_fs::{
    AclKind, Attr, CheckpointInfo, DirEntry, File, FileKind, FileSystem, InodeNo, OpenOptions,
    Result, SpacePolicy,
};

use crate::acl::acl;
use crate::node::{Kind, Node, line, root_line};
use crate::workload::AUTOMATIC_PREFIX;

/// What the file system shows.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct View {
    /// One line for each name.
    pub names: Vec<String>,
    /// Content by inode; of what was removed while it is open too, where a model knows it.
    pub contents: BTreeMap<InodeNo, Arc<Vec<u8>>>,
    /// What each checkpoint shows, by its line, which is among the names too.
    pub checkpoints: BTreeMap<String, Arc<View>>,
}

/// The line of a policy that is not `refuse`.
pub(crate) const DELETES_OLDEST: &str = "a full volume deletes its oldest checkpoints";
/// Stands in the line of a checkpoint that it may delete.
pub(crate) const MAY_GO: &str = ", may go,";

/// How the unit of untorn writes and the wish for checksums are stored, which are asked for in
/// another way; and placement, which concerns nothing that a program reads.
const MARKS: [&[u8]; 3] =
    [b"user.bedplate.untorn", b"user.bedplate.integrity", b"user.bedplate.place"];

/// What was read of a mounted file system.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    pub(crate) view: View,
    pub(crate) nodes: BTreeMap<InodeNo, Node>,
    /// What each checkpoint consists of, by its line.
    pub(crate) past: BTreeMap<String, Arc<BTreeMap<InodeNo, Node>>>,
}

/// Reads everything that a user could see.
pub(crate) fn see(fs: &FileSystem) -> Result<Seen> {
    let mut seen = Seen::default();
    let root = fs.attr(InodeNo::ROOT)?;
    see_directory(fs, &root, "", &mut seen)?;
    seen.view.names.extend(root_line(
        fs.untorn(root.ino)?.map(|untorn| untorn.bytes),
        fs.integrity(root.ino)?,
    ));
    // What a rollback leaves to undo it with comes and goes within a step.
    let of_workload = |checkpoint: &CheckpointInfo| {
        !checkpoint.automatic
            || checkpoint.name.starts_with(AUTOMATIC_PREFIX.to_string().as_bytes())
    };
    for checkpoint in fs.checkpoints().into_iter().filter(of_workload) {
        let (line, shown) = see_checkpoint(fs, &checkpoint)?;
        seen.view.checkpoints.insert(line.clone(), Arc::new(shown.view));
        seen.past.insert(line, Arc::new(shown.nodes));
    }
    seen.view.names.extend(seen.view.checkpoints.keys().cloned());
    if fs.checkpoint_counts().policy == SpacePolicy::DeleteOldest {
        seen.view.names.push(DELETES_OLDEST.to_owned());
    }
    Ok(seen)
}

/// Reads a checkpoint: its line, and what it shows.
pub(crate) fn see_checkpoint(
    fs: &FileSystem,
    checkpoint: &CheckpointInfo,
) -> Result<(String, Seen)> {
    let name = String::from_utf8_lossy(&checkpoint.name);
    let root = fs.resolve(format!("/.checkpoints/{name}"))?;
    let mut seen = Seen::default();
    see_directory(fs, &root, "", &mut seen)?;
    let may_go = if checkpoint.automatic && !checkpoint.kept { MAY_GO } else { "" };
    Ok((
        format!("checkpoint {name} epoch {}{may_go} of {:?}", checkpoint.epoch.0, checkpoint.paths),
        seen,
    ))
}

/// The number of an inode, whichever checkpoint it is seen in.
fn number(ino: InodeNo) -> InodeNo {
    InodeNo(ino.0 & 0xffff_ffff_ffff)
}

fn see_directory(fs: &FileSystem, dir: &Attr, path: &str, seen: &mut Seen) -> Result<()> {
    let mut entries = BTreeMap::new();
    for DirEntry { name, ino, kind } in fs.read_dir(dir.ino, None, usize::MAX)? {
        let attr = fs.attr(ino)?;
        assert_eq!(attr.kind, kind, "a name and its inode agree on what it is");
        let name = String::from_utf8_lossy(&name).into_owned();
        let path = format!("{path}/{name}");
        entries.insert(name, number(ino));
        let node = see_node(fs, &attr, &path, seen)?;
        seen.view.names.push(line(&path, number(ino), &node, attr.nlink));
        if attr.kind == FileKind::Directory {
            see_directory(fs, &attr, &path, seen)?;
        } else {
            seen.nodes.insert(number(ino), node);
        }
    }
    seen.nodes.insert(number(dir.ino), node(fs, dir, Kind::Directory(entries))?);
    Ok(())
}

fn see_node(fs: &FileSystem, attr: &Attr, path: &str, seen: &mut Seen) -> Result<Node> {
    let kind = match attr.kind {
        FileKind::Symlink => {
            Kind::Symlink(String::from_utf8_lossy(&fs.read_link(attr.ino)?).into_owned())
        }
        FileKind::File => {
            let content = match seen.view.contents.get(&number(attr.ino)) {
                Some(content) => Arc::clone(content),
                None => Arc::new(read(
                    &fs.open_inode(attr.ino, &OpenOptions::read_only())?,
                    attr.size,
                    path,
                )?),
            };
            seen.view.contents.insert(number(attr.ino), Arc::clone(&content));
            Kind::File(content)
        }
        _ => Kind::Directory(BTreeMap::new()),
    };
    node(fs, attr, kind)
}

fn node(fs: &FileSystem, attr: &Attr, kind: Kind) -> Result<Node> {
    let mut attributes = BTreeMap::new();
    let untorn = fs.untorn(attr.ino)?.map(|untorn| untorn.bytes);
    for name in
        fs.list_xattr(attr.ino)?.into_iter().filter(|name| !MARKS.contains(&name.as_slice()))
    {
        let value = fs.get_xattr(attr.ino, &name)?;
        // A list that does not say what the mode says is shown as none of the model's.
        let is_torn = AclKind::of_name(&name).is_some() && value != acl(attr.mode);
        let len = if is_torn { 0 } else { value.len() };
        attributes.insert(String::from_utf8_lossy(&name).into_owned(), len);
    }
    let (io_mode, integrity) = (attr.io_mode, fs.integrity(attr.ino)?);
    Ok(Node { kind, mode: attr.mode, uid: attr.uid, io_mode, untorn, integrity, attributes })
}

fn read(file: &File, size: u64, path: &str) -> Result<Vec<u8>> {
    let mut content = vec![0; usize::try_from(size).expect("workloads write small files")];
    let len = file.read_at(&mut content, 0)?;
    assert_eq!(len, content.len(), "a read of {path} ends before its size");
    assert_seeks(file, &content, path)?;
    Ok(content)
}

/// S-13: a seek for data passes over zeros only, and a seek for a hole stops where nothing but
/// zeros is allocated.
fn assert_seeks(file: &File, content: &[u8], path: &str) -> Result<()> {
    let mut at = 0;
    while at < content.len() {
        let data = file
            .seek_data(at as u64)?
            .map_or(content.len(), |data| usize::try_from(data).expect("within the file"));
        assert!(
            is_zero(&content[at..data]),
            "S-13: SEEK_DATA from byte {at} of {path} passes over data before byte {data}"
        );
        if data == content.len() {
            break;
        }
        let hole = file
            .seek_hole(data as u64)?
            .map_or(content.len(), |hole| usize::try_from(hole).expect("within the file"));
        assert!(hole > data, "S-13: byte {data} of {path} is data and hole at once");
        at = hole;
    }
    Ok(())
}

/// Says whether all bytes are zero.
pub(crate) fn is_zero(bytes: &[u8]) -> bool {
    const ZEROS: [u8; 4096] = [0; 4096];
    bytes.chunks(ZEROS.len()).all(|part| *part == ZEROS[..part.len()])
}

/// The first difference between two views.
pub(crate) fn difference(seen: &View, expected: &View) -> Option<String> {
    if seen.names != expected.names {
        return Some(format!(
            "names\n   found:    {:#?}\n   expected: {:#?}",
            seen.names, expected.names
        ));
    }
    let (ino, content) =
        seen.contents.iter().find(|(ino, content)| expected.contents.get(ino) != Some(*content))?;
    let wanted = expected.contents.get(ino).map_or(&[][..], |wanted| wanted);
    let at = content
        .iter()
        .zip(wanted)
        .position(|(a, b)| a != b)
        .unwrap_or_else(|| content.len().min(wanted.len()));
    let (found, due) = (content.get(at), wanted.get(at));
    Some(format!(
        "inode {} holds {found:x?} at byte {at} where {due:x?} is due ({} bytes, {} due)",
        ino.0,
        content.len(),
        wanted.len()
    ))
}
