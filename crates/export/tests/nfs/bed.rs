//! Servers for tests, of a directory of the system.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bedplate_export::nfs::{LockTimes, Network, Rights, Server, Settings, Squash, Tree, Users};
use tempfile::TempDir;

use crate::client::Client;

/// The user of most tests.
pub const USER: u32 = 1234;

/// A server with its directory.
pub struct Bed {
    server: Option<Server>,
    pub address: SocketAddr,
    pub root: PathBuf,
    rights: Rights,
    _dir: TempDir,
}

/// Users as they are, the superuser too.
pub fn trusting() -> Rights {
    let users = Users { squash: Squash::None, ..Users::default() };
    Rights { users, ..Rights::default() }
}

/// The same, with little patience with clients that have locks.
pub fn hasty() -> Rights {
    let lock_times =
        LockTimes { grace: Duration::from_secs(2), courtesy: Duration::from_millis(100) };
    Rights { lock_times, ..trusting() }
}

pub fn settings() -> Settings {
    Settings {
        address: SocketAddr::from(([127, 0, 0, 1], 0)),
        allowed: Network::loopback().to_vec(),
        any_port: true,
        connections_max: 2000,
    }
}

impl Bed {
    /// Serves a directory of [`USER`]; `None`, and a word, where the system does not let it.
    pub fn new(rights: Rights) -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("exported");
        std::fs::create_dir(&root).unwrap();
        if !rustix::process::geteuid().is_root() {
            println!("skipped: needs root");
            return None;
        }
        rustix::process::umask(rustix::fs::Mode::empty());
        std::os::unix::fs::chown(&root, Some(USER), Some(USER)).unwrap();
        // Others walk through it.
        let open: std::fs::Permissions = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        for path in [dir.path(), &root] {
            std::fs::set_permissions(path, open.clone()).unwrap();
        }
        let tree = match Tree::open(&root, rights) {
            Ok(tree) => tree,
            Err(error) => {
                println!("skipped: {error}");
                return None;
            }
        };
        let server = Server::start(tree, &settings()).unwrap();
        let address = server.address();
        Some(Self { server: Some(server), address, root, rights, _dir: dir })
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    pub fn client(&self) -> Client {
        Client::connect(self.address, USER)
    }

    pub fn client_of(&self, uid: u32) -> Client {
        Client::connect(self.address, uid)
    }

    /// Ends the server.
    pub fn end(&mut self) {
        self.server = None;
    }

    /// Ends the server and starts another one.
    pub fn restart(&mut self, rights: Option<Rights>) {
        self.server = None;
        let rights = rights.unwrap_or(self.rights);
        let server = Server::start(open(&self.root, rights), &settings()).unwrap();
        self.address = server.address();
        self.server = Some(server);
    }

    /// Ends the server and starts another one at the same address.
    pub fn restart_at(&mut self, address: SocketAddr) {
        self.server = None;
        let settings = Settings { address, ..settings() };
        self.server = Some(Server::start(open(&self.root, self.rights), &settings).unwrap());
    }
}

pub fn open(path: &Path, rights: Rights) -> Tree {
    Tree::open(path, rights).unwrap()
}
