//! Access control lists: set, followed by the kernel, inherited, and kept.

use std::fs::{self, DirBuilder, File, Permissions};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use rustix::fs::{
    CWD, FileType, Mode, XattrFlags, getxattr, listxattr, mknodat, removexattr, setxattr,
};
use rustix::io::Errno;

use crate::harness::{Mounted, NOBODY, checkpoint, done, forced_rollback, needs_root, shell_as};

const ACCESS: &str = "system.posix_acl_access";
const DEFAULT: &str = "system.posix_acl_default";

const OWNER: u16 = 1;
const USER: u16 = 2;
const OWNING_GROUP: u16 = 4;
const GROUP: u16 = 8;
const MASK: u16 = 16;
const OTHERS: u16 = 32;

/// A list in the bytes of its attribute.
fn list(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut bytes = 2_u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        bytes.extend([tag.to_le_bytes(), permissions.to_le_bytes()].concat());
        let id = if [USER, GROUP].contains(tag) { *id } else { u32::MAX };
        bytes.extend(id.to_le_bytes());
    }
    bytes
}

/// `u::rw- u:USER:PERMISSIONS g::GROUP m::MASK o::---`
fn for_user(uid: u32, permissions: u16, group: u16, mask: u16) -> Vec<u8> {
    list(&[
        (OWNER, 6, 0),
        (USER, permissions, uid),
        (OWNING_GROUP, group, 0),
        (MASK, mask, 0),
        (OTHERS, 0, 0),
    ])
}

/// The list of a directory that lets a user in.
fn let_in(uid: u32) -> Vec<u8> {
    list(&[(OWNER, 7, 0), (USER, 7, uid), (OWNING_GROUP, 5, 0), (MASK, 7, 0), (OTHERS, 0, 0)])
}

fn set(path: &Path, name: &str, value: &[u8]) -> Result<(), Errno> {
    setxattr(path, name, value, XattrFlags::empty())
}

fn get(path: &Path, name: &str) -> Result<Vec<u8>, Errno> {
    let mut buf = vec![0; 8192];
    let len = getxattr(path, name, &mut buf)?;
    buf.truncate(len);
    Ok(buf)
}

fn mode(path: &Path) -> u32 {
    path.metadata().unwrap().mode() & 0o7777
}

fn may(m: &Mounted, script: &str) -> bool {
    shell_as(NOBODY, m, script).0
}

#[test]
fn s_492_the_kernel_follows_lists_of_users_and_groups() {
    if !needs_root() {
        return;
    }
    let Some(m) = Mounted::new("acl,allow_other") else { return };
    let path = m.path("f");
    fs::write(&path, b"x").unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
    assert!(!may(&m, "cat $M/f"));
    set(&path, ACCESS, &for_user(NOBODY, 4, 0, 7)).unwrap();
    assert!(may(&m, "cat $M/f") && !may(&m, "echo y >> $M/f"), "S-492: it may read");
    set(&path, ACCESS, &for_user(NOBODY, 6, 0, 7)).unwrap();
    assert!(may(&m, "echo y >> $M/f"), "S-492: it may write at once");
    fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
    assert!(may(&m, "cat $M/f") && !may(&m, "echo y >> $M/f"), "S-492: the mask bounds it");
    removexattr(&path, ACCESS).unwrap();
    assert!(!may(&m, "cat $M/f"), "S-492: without the list it may nothing");
    // By its group; and a list can take away what the mode's others have.
    let by_group = list(&[
        (OWNER, 6, 0),
        (OWNING_GROUP, 0, 0),
        (GROUP, 4, NOBODY),
        (MASK, 4, 0),
        (OTHERS, 0, 0),
    ]);
    set(&path, ACCESS, &by_group).unwrap();
    assert!(may(&m, "cat $M/f"), "S-492: its group may");
    let against = list(&[
        (OWNER, 6, 0),
        (USER, 0, NOBODY),
        (OWNING_GROUP, 4, 0),
        (MASK, 4, 0),
        (OTHERS, 4, 0),
    ]);
    set(&path, ACCESS, &against).unwrap();
    assert!(!may(&m, "cat $M/f"), "S-492: all but this user may");
    // Only the owner sets one, and root.
    fs::set_permissions(m.root(), Permissions::from_mode(0o777)).unwrap();
    let theirs = "import os,sys\nM=os.environ['M']\n\
                  open(M+'/own','w').close()\n\
                  v=os.getxattr(M+'/l','system.posix_acl_access')\n\
                  os.setxattr(M+'/own','system.posix_acl_access',v)\n\
                  try: os.setxattr(M+'/l','system.posix_acl_access',v)\n\
                  except PermissionError: sys.exit(0)\n\
                  sys.exit('set on the file of another')";
    fs::write(m.path("l"), b"").unwrap();
    set(&m.path("l"), ACCESS, &for_user(NOBODY, 7, 7, 7)).unwrap();
    let (success, said) = shell_as(NOBODY, &m, &format!("python3 -c \"{theirs}\""));
    assert!(success, "S-492: {said}");
    m.finish();
}

#[test]
fn s_492_a_list_and_the_mode_say_the_same() {
    let Some(m) = Mounted::new("acl") else { return };
    let path = m.path("f");
    File::create(&path).unwrap();
    assert_eq!(get(&path, ACCESS), Err(Errno::NODATA));
    set(&path, ACCESS, &for_user(7, 6, 4, 5)).unwrap();
    assert_eq!(mode(&path), 0o650, "S-492: the group bits are the mask");
    let mut names = [0; 64];
    let len = listxattr(&path, &mut names).unwrap();
    assert_eq!(&names[..len], format!("{ACCESS}\0").as_bytes());
    fs::set_permissions(&path, Permissions::from_mode(0o4706)).unwrap();
    let changed =
        list(&[(OWNER, 7, 0), (USER, 6, 7), (OWNING_GROUP, 4, 0), (MASK, 0, 0), (OTHERS, 6, 0)]);
    assert_eq!(get(&path, ACCESS).unwrap(), changed, "S-492: chmod sets owner, mask and others");
    // Which a mode says alone is none.
    let plain = list(&[(OWNER, 6, 0), (OWNING_GROUP, 4, 0), (OTHERS, 0, 0)]);
    set(&path, ACCESS, &plain).unwrap();
    assert_eq!((get(&path, ACCESS), mode(&path)), (Err(Errno::NODATA), 0o4640), "S-492");
    set(&path, ACCESS, &for_user(7, 6, 4, 6)).unwrap();
    set(&path, ACCESS, &list(&[])).unwrap();
    assert_eq!(get(&path, ACCESS), Err(Errno::NODATA), "S-492: one without entries removes it");
    assert_eq!(mode(&path), 0o4660);
    removexattr(&path, ACCESS).unwrap();
    m.finish();
}

/// As `chmod` by an owner that is not of the file's group.
#[test]
fn s_492_a_list_takes_the_set_group_id_bit_that_its_setter_may_not_set() {
    if !needs_root() {
        return;
    }
    let Some(m) = Mounted::new("acl,allow_other") else { return };
    for (group, left) in [(0, 0o660), (NOBODY, 0o2660)] {
        let path = m.path("f");
        File::create(&path).unwrap();
        std::os::unix::fs::chown(&path, Some(NOBODY), Some(group)).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o2640)).unwrap();
        fs::write(m.path("l"), b"").unwrap();
        set(&m.path("l"), ACCESS, &for_user(NOBODY, 6, 6, 6)).unwrap();
        let copy = "python3 -c \"import os\nM=os.environ['M']\nn='system.posix_acl_access'\n\
                    os.setxattr(M+'/f',n,os.getxattr(M+'/l',n))\"";
        let (success, said) = shell_as(NOBODY, &m, copy);
        assert!(success, "{said}");
        assert_eq!(mode(&path), left, "S-492: group {group}");
        fs::remove_file(&path).unwrap();
    }
    m.finish();
}

#[test]
fn s_493_what_is_made_inherits_the_default_list_and_the_umask_counts_elsewhere() {
    let Some(m) = Mounted::new("acl") else { return };
    let dir = m.path("d");
    fs::create_dir(&dir).unwrap();
    let default = let_in(7);
    set(&dir, DEFAULT, &default).unwrap();
    assert_eq!(get(&dir, ACCESS), Err(Errno::NODATA), "S-493: it is for what is made");
    let made = |path: &Path| (get(path, ACCESS), mode(path));
    // A process has one umask, which a shell can set for itself alone.
    let uid = rustix::process::geteuid().as_raw();
    let script = "umask 077; cd $M/d && : > file && mkdir dir && mkfifo fifo && ln -s x link && \
                  cd .. && : > file && mkdir dir && mkfifo fifo";
    let (success, said) = shell_as(uid, &m, script);
    assert!(success, "{said}");
    let inherited =
        list(&[(OWNER, 6, 0), (USER, 7, 7), (OWNING_GROUP, 5, 0), (MASK, 6, 0), (OTHERS, 0, 0)]);
    for name in ["file", "fifo"] {
        let expected = (Ok(inherited.clone()), 0o660);
        assert_eq!(made(&dir.join(name)), expected, "S-493: {name}: the umask does not count");
        assert_eq!(made(&m.path(name)), (Err(Errno::NODATA), 0o600), "S-493: {name}: it counts");
    }
    assert_eq!(made(&dir.join("dir")), (Ok(default.clone()), 0o770), "S-493");
    assert_eq!(get(&dir.join("dir"), DEFAULT), Ok(default.clone()), "S-493: and hands it on");
    assert_eq!(made(&m.path("dir")), (Err(Errno::NODATA), 0o700), "S-493");
    assert_eq!(get(&dir.join("file"), DEFAULT), Err(Errno::NODATA));
    let unnamed = fs::OpenOptions::new()
        .write(true)
        .custom_flags(libc::O_TMPFILE)
        .mode(0o604)
        .open(&dir)
        .unwrap();
    assert_eq!(unnamed.metadata().unwrap().mode() & 0o777, 0o600, "S-493: without a name too");
    DirBuilder::new().mode(0o1711).create(dir.join("narrow")).unwrap();
    assert_eq!(mode(&dir.join("narrow")), 0o1710, "S-493: no more than the mode permits");
    mknodat(CWD, dir.join("node"), FileType::RegularFile, Mode::from_raw_mode(0o644), 0).unwrap();
    assert_eq!(mode(&dir.join("node")), 0o640, "S-493: by mknod");
    // One that says a mode alone is a umask of the directory.
    set(&dir, DEFAULT, &list(&[(OWNER, 7, 0), (OWNING_GROUP, 0, 0), (OTHERS, 0, 0)])).unwrap();
    File::create(dir.join("private")).unwrap();
    assert_eq!(made(&dir.join("private")), (Err(Errno::NODATA), 0o600), "S-493");
    removexattr(&dir, DEFAULT).unwrap();
    assert_eq!(get(&dir, DEFAULT), Err(Errno::NODATA));
    drop(unnamed);
    m.finish();
}

#[test]
fn s_494_lists_are_kept_and_followed_by_later_mounts() {
    let Some(m) = Mounted::new("acl") else { return };
    let (path, dir) = (m.path("f"), m.path("d"));
    fs::write(&path, b"x").unwrap();
    fs::create_dir(&dir).unwrap();
    let (first, default) = (for_user(7, 6, 4, 6), let_in(8));
    set(&path, ACCESS, &first).unwrap();
    set(&dir, DEFAULT, &default).unwrap();
    done(&m, &checkpoint("c"));
    let later = for_user(9, 4, 4, 4);
    set(&path, ACCESS, &later).unwrap();
    removexattr(&dir, DEFAULT).unwrap();
    let seen = m.path(".checkpoints/c/f");
    assert_eq!(get(&seen, ACCESS), Ok(first.clone()), "S-494: in a checkpoint");
    done(&m, &forced_rollback("c", None));
    assert_eq!((get(&path, ACCESS), mode(&path)), (Ok(first.clone()), 0o660), "S-494: rolled back");
    assert_eq!(get(&dir, DEFAULT), Ok(default), "S-494: rolled back");
    // Without an option: by what the volume holds.
    let m = m.again("");
    assert_eq!(get(&m.path("f"), ACCESS), Ok(first.clone()), "S-494: by a later mount");
    fs::set_permissions(m.path("f"), Permissions::from_mode(0o600)).unwrap();
    let m = m.again("noacl");
    let path = m.path("f");
    assert_eq!(get(&path, ACCESS), Err(Errno::OPNOTSUPP));
    assert_eq!(set(&path, ACCESS, &first), Err(Errno::OPNOTSUPP));
    assert_eq!(listxattr(&path, &mut [0; 64]), Ok(0), "S-494: nor is one shown");
    fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
    let m = m.again("");
    let followed =
        list(&[(OWNER, 6, 0), (USER, 6, 7), (OWNING_GROUP, 4, 0), (MASK, 4, 0), (OTHERS, 4, 0)]);
    assert_eq!(get(&m.path("f"), ACCESS), Ok(followed), "S-494: chmod without lists moves them");
    m.finish();
}

#[test]
fn s_495_what_is_no_list_is_refused_and_changes_nothing() {
    let Some(m) = Mounted::new("acl") else { return };
    let path = m.path("f");
    fs::write(&path, b"x").unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
    let mut old = for_user(7, 6, 4, 6);
    old[0] = 1;
    let whole = for_user(7, 6, 4, 6);
    let long: Vec<(u16, u16, u32)> = [(OWNER, 7, 0)]
        .into_iter()
        .chain((0..510).map(|id| (USER, 7, id)))
        .chain([(OWNING_GROUP, 7, 0), (MASK, 7, 0), (OTHERS, 7, 0)])
        .collect();
    for (what, bytes, errno) in [
        ("half a header", vec![2, 0], Errno::INVAL),
        ("another version", old, Errno::OPNOTSUPP),
        ("half an entry", whole[..whole.len() - 3].to_vec(), Errno::INVAL),
        ("no others", whole[..whole.len() - 8].to_vec(), Errno::INVAL),
        (
            "no mask",
            list(&[(OWNER, 7, 0), (USER, 7, 7), (OWNING_GROUP, 7, 0), (OTHERS, 7, 0)]),
            Errno::INVAL,
        ),
        ("an unknown kind", list(&[(OWNER, 7, 0), (OWNING_GROUP, 7, 0), (64, 7, 0)]), Errno::INVAL),
        (
            "out of order",
            list(&[(OWNING_GROUP, 7, 0), (OWNER, 7, 0), (OTHERS, 7, 0)]),
            Errno::INVAL,
        ),
        (
            "too many bits",
            list(&[(OWNER, 9, 0), (OWNING_GROUP, 7, 0), (OTHERS, 7, 0)]),
            Errno::INVAL,
        ),
        ("more than a page", list(&long), Errno::TOOBIG),
    ] {
        assert_eq!(set(&path, ACCESS, &bytes), Err(errno), "S-495: {what}");
        assert_eq!((get(&path, ACCESS), mode(&path)), (Err(Errno::NODATA), 0o640), "{what}");
    }
    assert_eq!(set(&path, DEFAULT, &let_in(7)), Err(Errno::ACCESS), "S-495: it is no directory");
    std::os::unix::fs::symlink("f", m.path("s")).unwrap();
    let link = rustix::fs::lsetxattr(m.path("s"), ACCESS, &whole, XattrFlags::empty());
    assert_eq!(link, Err(Errno::OPNOTSUPP), "S-495: a symbolic link has none");
    assert_eq!(set(&path, "system.other", b"x"), Err(Errno::OPNOTSUPP));
    m.finish();
}
