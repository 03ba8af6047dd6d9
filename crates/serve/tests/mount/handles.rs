//! File handles: what `name_to_handle_at` gave leads to the same file for as long as it is there,
//! as an export over NFS needs it.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::harness::{Mounted, checkpoint, done, has_program, needs_root};

/// `take PATH` prints a handle; `open MOUNT HANDLE` prints what it leads to: a file's content, the
/// names in a directory and the number of its parent, or an error number.
const SCRIPT: &str = r#"
import ctypes, os, sys
class Handle(ctypes.Structure):
    _fields_ = [("size", ctypes.c_uint), ("kind", ctypes.c_int), ("data", ctypes.c_ubyte * 128)]
libc = ctypes.CDLL(None, use_errno=True)
def checked(result):
    if result < 0:
        print("error", ctypes.get_errno())
        sys.exit()
    return result
what, path = sys.argv[1:3]
if what == "take":
    handle = Handle(128)
    checked(libc.name_to_handle_at(-100, path.encode(), ctypes.byref(handle), ctypes.byref(ctypes.c_int()), 0))
    print(handle.kind, bytes(handle.data[:handle.size]).hex())
else:
    data = bytes.fromhex(sys.argv[4])
    handle = Handle(len(data), int(sys.argv[3]), (ctypes.c_ubyte * 128)(*data))
    mount = os.open(path, os.O_RDONLY)
    file = checked(libc.open_by_handle_at(mount, ctypes.byref(handle), os.O_RDONLY))
    if os.path.isdir(f"/proc/self/fd/{file}"):
        print(" ".join(sorted(os.listdir(file))), "in", os.stat("..", dir_fd=file).st_ino)
    else:
        print(os.read(file, 100).decode())
"#;

fn run(arguments: &[&str]) -> String {
    let output = Command::new("python3").args(["-c", SCRIPT]).args(arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

fn take(path: &Path) -> String {
    let handle = run(&["take", path.to_str().unwrap()]);
    assert!(!handle.starts_with("error"), "{handle} of {}", path.display());
    handle
}

fn open(m: &Mounted, handle: &str) -> String {
    let (kind, data) = handle.split_once(' ').unwrap();
    run(&["open", m.root().to_str().unwrap(), kind, data])
}

fn stale() -> String {
    format!("error {}", libc::ESTALE)
}

/// S-131: the kernel, asked for handles, was told that there are none.
#[test]
fn s_131_a_handle_leads_to_its_file_after_a_remount() {
    if !needs_root() || !has_program("python3") {
        return;
    }
    let Some(m) = Mounted::new("") else { return };
    fs::create_dir_all(m.path("d/e")).unwrap();
    for (name, content) in [("d/e/f", "one"), ("gone", "two"), ("moved", "three")] {
        fs::write(m.path(name), content).unwrap();
    }
    let [file, dir, gone, moved, root] =
        ["d/e/f", "d/e", "gone", "moved", ""].map(|name| take(&m.path(name)));
    // The kernel knows nothing of them any more.
    let m = m.again("");
    let number =
        |name: &str| std::os::unix::fs::MetadataExt::ino(&m.path(name).metadata().unwrap());
    assert_eq!(open(&m, &file), "one");
    assert_eq!(open(&m, &dir), format!("f in {}", number("d")));
    assert!(open(&m, &root).starts_with("d gone moved in "));
    fs::rename(m.path("moved"), m.path("d/e/moved")).unwrap();
    assert_eq!(open(&m, &moved), "three");
    fs::remove_file(m.path("gone")).unwrap();
    assert_eq!(open(&m, &gone), stale());
    m.finish();
}

/// S-131: a power cut undoes a creation, and the number is given again. The handle of the file that
/// is lost names its time of birth, too.
#[test]
fn s_131_a_handle_does_not_lead_to_another_file_of_its_number() {
    if !needs_root() || !has_program("python3") {
        return;
    }
    let (Some(before), Some(after)) = (Mounted::new(""), Mounted::new("")) else { return };
    let number =
        |m: &Mounted| std::os::unix::fs::MetadataExt::ino(&m.path("f").metadata().unwrap());
    fs::write(before.path("f"), "lost").unwrap();
    std::thread::sleep(std::time::Duration::from_millis(20));
    fs::write(after.path("f"), "another").unwrap();
    assert_eq!(number(&before), number(&after));
    let lost = take(&before.path("f"));
    assert_eq!(open(&before, &lost), "lost");
    assert_eq!(open(&after, &lost), stale());
    let after = after.again("");
    assert_eq!(open(&after, &lost), stale());
    before.finish();
    after.finish();
}

/// S-131: numbers of what is in a checkpoint are another checkpoint's after a remount.
#[test]
fn s_131_a_handle_of_a_checkpoints_file_ends_with_the_mount() {
    if !needs_root() || !has_program("python3") {
        return;
    }
    let Some(m) = Mounted::new("") else { return };
    fs::write(m.path("f"), "then").unwrap();
    done(&m, &checkpoint("c"));
    let handle = take(&m.path(".checkpoints/c/f"));
    assert_eq!(open(&m, &handle), "then");
    let m = m.again("");
    assert_eq!(open(&m, &handle), stale());
    assert_eq!(fs::read_to_string(m.path(".checkpoints/c/f")).unwrap(), "then");
    m.finish();
}
