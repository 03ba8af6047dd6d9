//! What lies between a client and a server, and can be cut.

use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

/// A relay of connections.
pub struct Relay {
    pub address: SocketAddr,
    state: Arc<Mutex<State>>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct State {
    /// Connections end as they begin.
    is_cut: bool,
    is_over: bool,
    open: Vec<TcpStream>,
}

impl Relay {
    pub fn start(server: SocketAddr) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::<Mutex<State>>::default();
        let own = Arc::clone(&state);
        let thread = std::thread::spawn(move || {
            for client in listener.incoming() {
                let client = client.unwrap();
                let mut state = own.lock().unwrap();
                if state.is_over {
                    return;
                }
                if state.is_cut {
                    continue;
                }
                let server = TcpStream::connect(server).unwrap();
                for (from, to) in [(&client, &server), (&server, &client)] {
                    let (mut from, mut to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    std::thread::spawn(move || {
                        let _ended = std::io::copy(&mut from, &mut to);
                        let _shut = to.shutdown(Shutdown::Both);
                    });
                }
                state.open.extend([client, server]);
            }
        });
        Self { address, state, thread: Some(thread) }
    }

    /// Ends all connections, and those that come.
    pub fn cut(&self) {
        let mut state = self.state.lock().unwrap();
        state.is_cut = true;
        for socket in state.open.drain(..) {
            let _shut = socket.shutdown(Shutdown::Both);
        }
    }

    pub fn mend(&self) {
        self.state.lock().unwrap().is_cut = false;
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.cut();
        self.state.lock().unwrap().is_over = true;
        let _last = TcpStream::connect(self.address);
        self.thread.take().unwrap().join().unwrap();
    }
}
