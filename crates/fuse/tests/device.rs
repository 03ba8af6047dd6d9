//! The transport through a descriptor, with a socket whose other end speaks as the kernel does.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use bedplate_block::AlignedBuf;
use bedplate_fuse::{Connection, Flags, Reply, Terms, is_serving, opcode};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, Shutdown, SocketFlags, SocketType, recv, send, shutdown,
    socketpair,
};

const PAYLOAD_BYTES: usize = 1 << 16;

/// A server, and the kernel's end of its connection.
struct Served {
    kernel: OwnedFd,
    ended: Option<JoinHandle<std::io::Result<()>>>,
}

impl Served {
    /// Agrees with a server, and has it serve with `threads`.
    fn new(threads: usize, serve: impl Fn(Reply) + Send + Sync + 'static) -> Self {
        let (kernel, server) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .unwrap();
        let terms = Terms {
            required: Flags::ASYNC_DIO,
            welcome: Flags::NONE,
            payload_bytes: PAYLOAD_BYTES,
            background_max: 8,
        };
        let ended = thread::spawn(move || {
            Connection::open(server, &terms)?.serve(threads, &(Arc::new(serve) as _))?.join()
        });
        let served = Self { kernel, ended: Some(ended) };
        let mut init = [0; 64];
        for (at, word) in [(0, 7_u32), (4, 45), (12, u32::MAX), (16, u32::MAX)] {
            init[at..at + 4].copy_from_slice(&word.to_ne_bytes());
        }
        served.ask(opcode::INIT, 1, &init);
        let (unique, error, out) = served.answer();
        assert_eq!((unique, error, out.len()), (1, 0, 64));
        served
    }

    /// Sends a request of inode 5.
    fn ask(&self, code: u32, unique: u64, body: &[u8]) {
        let mut message = vec![0; 40];
        message[..4].copy_from_slice(&(40 + body.len() as u32).to_ne_bytes());
        message[4..8].copy_from_slice(&code.to_ne_bytes());
        message[8..16].copy_from_slice(&unique.to_ne_bytes());
        message[16..24].copy_from_slice(&5_u64.to_ne_bytes());
        message.extend_from_slice(body);
        self.say(&message);
    }

    fn say(&self, message: &[u8]) {
        send(&self.kernel, message, SendFlags::NOSIGNAL).unwrap();
    }

    /// Returns which request is answered, the error, and the payload.
    fn answer(&self) -> (u64, i32, Vec<u8>) {
        let mut answer = vec![0; 16 + PAYLOAD_BYTES];
        let (len, _) = recv(&self.kernel, &mut answer[..], RecvFlags::empty()).unwrap();
        answer.truncate(len);
        let word = |at: usize| u32::from_ne_bytes(answer[at..at + 4].try_into().unwrap());
        assert_eq!(word(0) as usize, len);
        let unique = u64::from_ne_bytes(answer[8..16].try_into().unwrap());
        (unique, word(4).cast_signed(), answer.split_off(16))
    }

    fn end(mut self) -> std::io::Result<()> {
        shutdown(&self.kernel, Shutdown::Both).unwrap();
        self.ended.take().unwrap().join().unwrap()
    }
}

/// Answers with what the request says: its operation's header, and its payload.
fn echo(mut reply: Reply) {
    assert!(is_serving());
    let request = reply.request();
    let said = [request.operation, request.payload].concat();
    reply.payload()[..said.len()].copy_from_slice(&said);
    reply.send(said.len());
}

#[test]
fn the_data_of_a_write_is_aligned_and_so_is_an_answer() {
    let served = Served::new(1, |mut reply| {
        let request = reply.request();
        assert_eq!((request.header.node, request.operation.len()), (5, 40));
        assert!(request.payload.iter().all(|byte| *byte == 7));
        let mut len = request.payload.len();
        if !request.payload.as_ptr().addr().is_multiple_of(AlignedBuf::ALIGN) {
            len = 0;
        }
        let payload = reply.payload();
        assert!(payload.as_ptr().addr().is_multiple_of(AlignedBuf::ALIGN));
        payload[..8].copy_from_slice(&len.to_ne_bytes());
        reply.send(8);
    });
    for (unique, len) in [(2, 8192), (3, 1), (4, PAYLOAD_BYTES), (5, 0)] {
        served.ask(opcode::WRITE, unique, &[vec![0; 40], vec![7; len]].concat());
        assert_eq!(served.answer(), (unique, 0, len.to_ne_bytes().to_vec()));
    }
    served.end().unwrap();
}

#[test]
fn a_request_is_in_one_piece_wherever_it_ends() {
    let served = Served::new(1, echo);
    let body: Vec<u8> = (0..2000).map(|i| i as u8).collect();
    for (unique, code, least) in
        [(2, opcode::LOOKUP, 0), (3, opcode::SETATTR, 88), (4, opcode::SETXATTR, 16)]
    {
        for len in [least, 39, 40, 41, 88, 300, 2000].into_iter().filter(|len| *len >= least) {
            served.ask(code, unique, &body[..len]);
            assert_eq!(served.answer(), (unique, 0, body[..len].to_vec()), "{code}: {len} bytes");
        }
    }
    served.end().unwrap();
}

#[test]
fn what_is_shorter_than_its_kind_is_refused_and_what_is_no_request_ends_it() {
    let served = Served::new(1, echo);
    served.ask(opcode::SETATTR, 2, &[0; 87]);
    assert_eq!(served.answer(), (2, -libc::EINVAL, Vec::new()));
    served.ask(opcode::LOOKUP, 3, b"x\0");
    assert_eq!(served.answer(), (3, 0, b"x\0".to_vec()), "it goes on");
    served.say(&[1; 39]);
    assert!(served.end().unwrap_err().to_string().contains("no request"));
    let served = Served::new(1, echo);
    let mut longer = [0; 48];
    longer[0] = 49;
    served.say(&longer);
    assert!(served.end().is_err(), "it says that it is longer than it is");
}

#[test]
fn what_waits_for_no_answer_gets_none_and_what_is_dropped_an_error() {
    let served = Served::new(1, |reply| match reply.request().header.opcode {
        opcode::STATFS => drop(reply),
        opcode::FORGET => reply.refuse(libc::EIO),
        _ => reply.send(0),
    });
    served.ask(opcode::FORGET, 2, &[1, 0, 0, 0, 0, 0, 0, 0]);
    served.ask(opcode::BATCH_FORGET, 3, &[0; 8]);
    served.ask(opcode::STATFS, 4, &[]);
    assert_eq!(served.answer(), (4, -libc::EIO, Vec::new()), "S-45: nothing is left unanswered");
    served.end().unwrap();
}

#[test]
fn an_answer_may_come_from_any_thread_and_in_any_order() {
    let (hand_over, handed) = std::sync::mpsc::sync_channel(64);
    let served = Served::new(1, move |reply| {
        if reply.request().header.opcode == opcode::FSYNC {
            hand_over.send(reply).unwrap();
        } else {
            echo(reply);
        }
    });
    for unique in 2..20 {
        served.ask(opcode::FSYNC, unique, &[unique as u8; 16]);
    }
    served.ask(opcode::LOOKUP, 20, b"x\0");
    assert_eq!(served.answer(), (20, 0, b"x\0".to_vec()), "others wait for nothing");
    let mut waiting: Vec<Reply> = (2..20).map(|_| handed.recv().unwrap()).collect();
    while let Some(mut reply) = waiting.pop() {
        assert!(!is_serving());
        let said = reply.request().operation.to_vec();
        reply.payload()[..16].copy_from_slice(&said);
        reply.send(16);
        let unique = waiting.len() as u64 + 2;
        assert_eq!(served.answer(), (unique, 0, vec![unique as u8; 16]));
    }
    served.end().unwrap();
}

#[test]
fn a_kernel_that_says_goodbye_is_answered_and_the_thread_ends() {
    let mut served = Served::new(1, echo);
    served.ask(opcode::DESTROY, 2, &[]);
    assert_eq!(served.answer(), (2, 0, Vec::new()));
    served.ended.take().unwrap().join().unwrap().unwrap();
}

#[test]
fn what_does_not_begin_with_init_is_no_connection() {
    let (kernel, server) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    let mut message = [0; 40];
    (message[0], message[4]) = (40, opcode::LOOKUP as u8);
    send(&kernel, &message, SendFlags::NOSIGNAL).unwrap();
    let terms = Terms {
        required: Flags::NONE,
        welcome: Flags::NONE,
        payload_bytes: PAYLOAD_BYTES,
        background_max: 1,
    };
    let error = Connection::open(server, &terms).unwrap_err().to_string();
    assert!(error.contains("not INIT"), "{error}");
}
