//! What an NFS server answers a client.
//!
//! What must hold: whatever comes, each call of the client succeeds or fails, in bounded memory, and no
//! longer after the server has ended than its patience is; what succeeds has no more bytes than were
//! asked for.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use bedplate_nfs::wire::numbers as n;
use bedplate_nfs::wire::rpc::{self, Call, Head};
use bedplate_nfs::wire::xdr::{Reader, Writer};
use bedplate_nfs::{Changes, Client, Handle, Mode, OpenOptions};

use crate::input::Input;

/// The longest call that is taken.
const CALL_BYTES_MAX: usize = 1 << 16;

/// Takes an input for what a server says: 0: to the first call, as it is; 1: to each call, as its
/// result; 2: likewise, once a directory is mounted.
pub fn run(data: &[u8]) {
    let Some((way, data)) = data.split_first() else { return };
    let listener = TcpListener::bind("127.0.0.1:0").expect("the system has a port");
    let address = listener.local_addr().expect("it is bound");
    let server = Server {
        way: way % 3,
        input: Mutex::new(Input::new(data)),
        is_over: AtomicBool::new(false),
    };
    std::thread::scope(|scope| {
        scope.spawn(|| server.accept(scope, &listener));
        let port = address.port();
        let url = format!(
            "nfs://127.0.0.1/a/b?nfsport={port}&mountport={port}&soft&retrans=0&timeo=1&nconnect=1\
             &rsize=512&wsize=512"
        );
        if let Ok((client, below)) = Client::connect(&url.parse().expect("it is one")) {
            use_up(&client, &below);
        }
        server.is_over.store(true, SeqCst);
        drop(TcpStream::connect(address));
    });
}

struct Server<'a> {
    way: u8,
    input: Mutex<Input<'a>>,
    is_over: AtomicBool,
}

impl Server<'_> {
    fn accept<'s>(&'s self, scope: &'s std::thread::Scope<'s, '_>, listener: &TcpListener) {
        while let Ok((mut stream, _)) = listener.accept() {
            if self.is_over.load(SeqCst) {
                return;
            }
            scope.spawn(move || {
                // The client may go whenever it likes.
                while self.answer(&mut stream).is_ok_and(|goes_on| goes_on) {}
                let _ended = stream.shutdown(Shutdown::Both);
            });
        }
    }

    /// Answers a call; returns whether the connection goes on.
    fn answer(&self, stream: &mut TcpStream) -> std::io::Result<bool> {
        let mut mark = [0; 4];
        stream.read_exact(&mut mark)?;
        let len = (u32::from_be_bytes(mark) & 0x7fff_ffff) as usize;
        assert!(len <= CALL_BYTES_MAX, "a call of {len} bytes");
        let mut message = vec![0; len];
        stream.read_exact(&mut message)?;
        let Ok(Head::Call(call)) = Head::read(&mut Reader::new(&message)) else {
            panic!("the client calls")
        };
        let mut input = self.input.lock().expect("no thread panics with it");
        if self.way == 0 {
            let all = input.rest();
            drop(input);
            stream.write_all(all)?;
            return Ok(false);
        }
        let mut out = rpc::accepted(call.xid);
        match scripted(&call).filter(|_| self.way == 2) {
            Some(body) => out.0.extend(body.0),
            None if input.is_empty() => out = rpc::no_procedure(call.xid),
            None => {
                let len = usize::from(input.u8());
                out.0.extend(input.bytes(len));
            }
        }
        drop(input);
        let mark = u32::try_from(out.0.len()).expect("it is short") | 1 << 31;
        stream.write_all(&[&mark.to_be_bytes()[..], &out.0].concat())?;
        Ok(true)
    }
}

/// Answers what comes first as a server does.
fn scripted(call: &Call) -> Option<Writer> {
    let mut out = Writer::default();
    out.u32(0);
    match (call.program, call.procedure) {
        (n::MOUNT, _) => {
            out.opaque(b"root");
            out.u32(0);
        }
        (_, n::FSINFO) => {
            for word in [0, 4096, 4096, 1, 4096, 4096, 1, 4096] {
                out.u32(word);
            }
        }
        _ => return None,
    }
    Some(out)
}

/// Makes calls of each kind.
fn use_up(client: &Client, below: &[u8]) {
    let root: Handle = client.root().clone();
    for _round in 0..3 {
        let _found = client.find(below);
        let _listed = client.list(&root, |entry| {
            assert!(!entry.name.is_empty() && entry.name.len() <= n::NAME_BYTES_MAX);
            Ok(())
        });
        if let Ok(file) = client.open(b"x", &OpenOptions::create(Mode::Concurrent)) {
            let mut buf = [0; 700];
            assert!(file.read_at(&mut buf, 3).unwrap_or(0) <= 700, "no more than asked for");
            let _written = file.write_at(&buf, 5);
            let _synced = file.sync();
            let _cut = file.set_size(9);
        }
        let _made = client.make_directory(&root, b"d", 0o700);
        let _linked = client.make_link(&root, b"l", b"to");
        let _renamed = client.rename((&root, b"a"), (&root, b"b"));
        let _removed = client.remove(&root, b"a");
        let _named = client.link(&root, &root, b"c");
        let _changed = client.set_attributes(&root, &Changes::default());
        let _room = client.room();
    }
}
