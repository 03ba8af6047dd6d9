//! The socket of a mount: which users reach it, what comes over it, and what is left of it.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use bedplate_serve::ErrorKind;
use bedplate_serve::control::{self, Answer, Request, Serving};
use bedplate_serve::fuse::MountSettings;
use rustix::fs::{Mode, OFlags};
use rustix::mount::UnmountFlags;

use crate::harness::{
    Mounted, NOBODY, Server, ask, available, checkpoint, done, format_memory, needs_root,
};

/// How long anything may take on a busy machine.
const LIMIT: Duration = Duration::from_secs(120);
/// Environment of a child that asks as another user: the mount, and the descriptor of its socket.
const ASK_OF: &str = "BEDPLATE_TEST_ASK_OF";
const ASK_AT: &str = "BEDPLATE_TEST_ASK_AT";

fn own_user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Returns the socket of a mount of this user, as `crates/serve/src/control/place.rs` says where it
/// lies.
fn socket_of(root: &Path) -> PathBuf {
    let device = std::fs::metadata(root).unwrap().dev();
    let name = format!("{}-{}.sock", rustix::fs::major(device), rustix::fs::minor(device));
    let user = own_user();
    let first =
        if user == 0 { "/run/bedplate".into() } else { format!("/run/user/{user}/bedplate") };
    let mut places = [PathBuf::from(first), Path::new("/tmp").join(format!("bedplate-{user}"))]
        .into_iter()
        .map(|dir| dir.join(&name));
    places.find(|place| place.exists()).expect("the socket lies in one of two places")
}

fn connect(root: &Path) -> UnixStream {
    let stream = UnixStream::connect(socket_of(root)).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream
}

/// Says something, and returns what is answered.
fn say(root: &Path, line: &[u8]) -> String {
    let stream = connect(root);
    // What is refused early need not be read to its end.
    (&stream).write_all(line).unwrap_or_default();
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer).unwrap();
    answer
}

fn names(m: &Mounted) -> Vec<String> {
    let Answer::Done(list) = ask(m.root(), &Request::List) else { panic!("no list") };
    list.as_array().unwrap().iter().map(|made| made["name"].as_str().unwrap().to_owned()).collect()
}

/// S-181: one socket a mount, found by the mount, also by a second place where it is bound; it goes
/// with the mount.
#[test]
fn s_181_each_mount_answers_for_itself_and_ends_with_its_socket() {
    let Some(one) = Mounted::new("") else { return };
    let Some(two) = Mounted::new("") else { return };
    done(&one, &checkpoint("of-one"));
    assert_eq!((names(&one), names(&two)), (vec!["of-one".to_owned()], Vec::new()), "S-181");
    let Answer::Done(serving) = ask(one.root(), &Request::Serving) else {
        panic!("it does not tell what it serves")
    };
    let serving: Serving = serde_json::from_value(serving).unwrap();
    assert!(serving.pid == std::process::id() && serving.group.is_none());
    let (socket, other) = (socket_of(one.root()), socket_of(two.root()));
    assert_ne!(socket, other);
    assert_eq!(
        socket.parent().unwrap().metadata().unwrap().permissions().mode() & 0o777,
        0o700,
        "S-181"
    );
    if needs_root() {
        let elsewhere = tempfile::tempdir().unwrap();
        rustix::mount::mount_bind(one.root(), elsewhere.path()).unwrap();
        let answer = control::ask(elsewhere.path(), &Request::List);
        rustix::mount::unmount(elsewhere.path(), UnmountFlags::DETACH).unwrap();
        assert!(
            matches!(answer.unwrap(), Answer::Done(list) if list[0]["name"] == "of-one"),
            "S-181: bound elsewhere"
        );
    }
    let root = one.root().to_owned();
    let identity = std::fs::metadata(&socket).unwrap().ino();
    one.finish();
    // Another mount may have got the number meanwhile, never the socket.
    assert!(
        std::fs::metadata(&socket).map_or(true, |found| found.ino() != identity),
        "S-181: the socket stays"
    );
    assert_eq!(control::ask(&root, &Request::List).unwrap_err().kind, ErrorKind::Unavailable);
    two.finish();
}

/// S-181: a user that neither mounted the volume nor is root is refused with one sentence, by the
/// directory and, where it let that user pass, by the daemon.
#[test]
fn s_181_another_user_is_refused_with_one_sentence() {
    if !needs_root() {
        return;
    }
    let Some(m) = Mounted::new("allow_other") else { return };
    let socket = socket_of(m.root());
    // The socket itself is opened to all, and handed past its directory.
    std::fs::set_permissions(&socket, std::fs::Permissions::from_mode(0o666)).unwrap();
    let handed: OwnedFd = rustix::fs::open(&socket, OFlags::PATH, Mode::empty()).unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap());
    child
        .args(["--exact", "control::ask_as_a_child", "--nocapture"])
        .current_dir("/")
        .uid(NOBODY)
        .gid(NOBODY);
    child.env(ASK_OF, m.root()).env(ASK_AT, handed.as_raw_fd().to_string());
    let told = child.output().unwrap();
    let told = String::from_utf8_lossy(&told.stdout).into_owned();
    let refusal = "only that user and root may ask";
    let line = |begin: &str| {
        told.lines()
            .find_map(|line| line.split_once(begin))
            .map(|(_, rest)| rest.to_owned())
            .unwrap_or_default()
    };
    assert!(
        line("found: ").starts_with("Permission") && line("found: ").contains(refusal),
        "S-181: {told}"
    );
    assert!(
        line("handed: ").contains("not_permitted") && line("handed: ").contains(refusal),
        "S-181: {told}"
    );
    assert_eq!(names(&m), Vec::<String>::new(), "S-181: it was carried out");
    m.finish();
}

/// Not a test of its own: what another user says. Without the environment there is no mount to ask.
#[test]
fn ask_as_a_child() {
    let Some(root) = std::env::var_os(ASK_OF) else { return };
    let refused = control::ask(Path::new(&root), &checkpoint("by-another")).unwrap_err();
    println!("\nfound: {:?} {refused}", refused.kind);
    let handed = PathBuf::from(format!("/proc/self/fd/{}", std::env::var(ASK_AT).unwrap()));
    let stream = UnixStream::connect(handed).unwrap();
    (&stream)
        .write_all(&[&serde_json::to_vec(&checkpoint("by-another")).unwrap()[..], b"\n"].concat())
        .unwrap_or_default();
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer).unwrap();
    println!("\nhanded: {answer}");
}

/// S-181, S-99: more connections than there is room for say nothing, half of something, or rubbish;
/// requests are answered, and the unmount is not held up.
#[test]
fn s_181_what_says_nothing_or_rubbish_holds_nothing_up() {
    let Some(m) = Mounted::new("threads=1") else { return };
    let silent: Vec<UnixStream> = (0..200).map(|_| connect(m.root())).collect();
    done(&m, &checkpoint("beside-the-silent"));
    let half: Vec<UnixStream> = (0..100).map(|_| connect(m.root())).collect();
    half.iter()
        .for_each(|stream| (&*stream).write_all(b"{\"request\":\"delete\",").unwrap_or_default());
    done(&m, &checkpoint("beside-halves"));
    drop(half);
    let endless = vec![b'['; 3 << 20];
    let deep = [vec![b'['; 500_000], b"\n".to_vec()].concat();
    for rubbish in [
        &b"\n"[..],
        b"rubbish\n",
        b"{}\n",
        b"\xff\0\xfe\n",
        b"{\"request\":\"explode\"}\n",
        b"[[[[\n",
        &deep,
        &endless,
    ] {
        let answer = say(m.root(), rubbish);
        let Answer::Failed(kind, sentence) = serde_json::from_str(&answer).unwrap() else {
            panic!("rubbish was taken: {answer}")
        };
        assert!(
            ["invalid", "io"].contains(&kind.as_str())
                && sentence.len() > 20
                && !sentence.contains('\n'),
            "S-181: {answer}"
        );
    }
    // A request whose caller does not wait for the answer is carried out like any other.
    let gone = connect(m.root());
    (&gone)
        .write_all(
            &[&serde_json::to_vec(&checkpoint("of-one-that-left")).unwrap()[..], b"\n"].concat(),
        )
        .unwrap();
    drop(gone);
    let began = Instant::now();
    while names(&m).len() < 3 {
        assert!(began.elapsed() < LIMIT, "S-181: {:?}", names(&m));
    }
    let waiting: Vec<UnixStream> = (0..10).map(|_| connect(m.root())).collect();
    m.finish();
    for stream in waiting.into_iter().chain(silent) {
        let said = (&stream).read(&mut [0; 16]);
        assert!(matches!(said, Ok(0) | Err(_)), "S-181: a connection outlived the mount");
    }
}

/// S-181: what a killed process left is in the way of nothing.
#[test]
fn s_181_after_a_kill_the_next_mount_has_its_socket() {
    if !available() {
        return;
    }
    let mut server = Server::start(own_user(), "");
    assert!(matches!(ask(server.dir.path(), &Request::Serving), Answer::Done(_)));
    server.process.kill().unwrap();
    server.process.wait().unwrap();
    assert_eq!(
        control::ask(server.dir.path(), &Request::Serving).unwrap_err().kind,
        ErrorKind::Unavailable
    );
    let settings = MountSettings::default();
    let fs = bedplate_fs::FileSystem::mount(format_memory(), None, settings.file_system.clone())
        .unwrap();
    let mount = bedplate_serve::fuse::Mount::start(fs, server.dir.path(), &settings).unwrap();
    assert!(matches!(ask(server.dir.path(), &Request::Serving), Answer::Done(_)), "S-181");
    mount.unmount().unwrap();
}

/// A user's runtime directory goes at the logout, and the mount stays.
#[test]
fn s_181_a_socket_that_was_removed_is_made_again() {
    let Some(m) = Mounted::new("") else { return };
    std::fs::remove_file(socket_of(m.root())).unwrap();
    let began = Instant::now();
    while control::ask(m.root(), &Request::Serving).is_err() {
        assert!(began.elapsed() < LIMIT, "S-181: it does not come back");
        std::thread::sleep(Duration::from_millis(50));
    }
    m.finish();
}

/// A read-only mount takes requests as every other: what they may change its file system decides.
#[test]
fn s_181_a_read_only_mount_answers_and_changes_nothing() {
    let Some(m) = Mounted::new("") else { return };
    done(&m, &checkpoint("c"));
    let aside = tempfile::tempdir().unwrap();
    done(&m, &Request::Mount { name: b"c".to_vec(), dir: aside.path().to_owned() });
    assert_eq!(
        control::ask(aside.path(), &Request::List).unwrap_err().kind,
        ErrorKind::Unavailable,
        "the volume's mount answers for it"
    );
    let m = m.again("ro");
    assert_eq!(names(&m), ["c"]);
    let refused = ask(m.root(), &Request::Delete { name: b"c".to_vec() });
    assert!(
        matches!(&refused, Answer::Failed(kind, _) if kind == "read_only"),
        "S-181: {refused:?}"
    );
    assert!(matches!(ask(m.root(), &Request::Tunables), Answer::Done(_)));
    m.mount.unmount().unwrap();
}
