//! Encrypted connections. The certificates are for these tests alone and hold for a hundred years.

use std::io::Read;
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bedplate_block::MemoryDevice;
use bedplate_export::nbd::{Address, Export, Exports, Server, Settings, Tls};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use crate::bed;
use crate::client::{ACK, Client, FUA, GO, LIST, READ, STRUCTURED, information};
use crate::data::pattern;

const STARTTLS: u32 = 5;
const ERR_POLICY: u32 = 1 << 31 | 2;
const ERR_INVALID: u32 = 1 << 31 | 3;
const ERR_TLS_REQD: u32 = 1 << 31 | 5;

fn certificates() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/nbd/certificates")
}

/// Serves a disk of 40 MiB on a port with TLS.
fn server() -> (Server, SocketAddr) {
    let fs = bed::volume(MemoryDevice::new(256 << 20));
    let disk = Arc::new(bed::file_disk(&fs, 40 << 20));
    let export = Export { name: "disk".into(), description: String::new(), disk };
    let settings = Settings {
        addresses: vec![Address::Tcp("127.0.0.1:0".parse().unwrap())],
        connections_max: 8,
        tls: Some(Tls::load(&certificates()).unwrap()),
    };
    let server = Server::start(Exports::new(vec![export]).unwrap(), &settings).unwrap();
    let [Address::Tcp(address)] = server.addresses() else { panic!("one port") };
    let address = *address;
    (server, address)
}

fn connect(address: SocketAddr) -> Client<TcpStream> {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    Client::greet(stream)
}

/// Makes a client's side of TLS, with the certificate of that name.
fn configured(name: Option<&str>) -> Arc<ClientConfig> {
    let certificate = |name: &str| {
        CertificateDer::from_pem_file(certificates().join(format!("{name}-cert.pem"))).unwrap()
    };
    let mut roots = RootCertStore::empty();
    roots.add(certificate("ca")).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    Arc::new(match name {
        None => config.with_no_client_auth(),
        Some(name) => {
            let key = certificates().join(format!("{name}-key.pem"));
            let key = PrivateKeyDer::from_pem_file(key).unwrap();
            config.with_client_auth_cert(vec![certificate(name)], key).unwrap()
        }
    })
}

type Encrypted = Client<StreamOwned<ClientConnection, TcpStream>>;

/// Begins TLS.
fn encrypt(mut client: Client<TcpStream>, name: Option<&str>) -> Encrypted {
    assert_eq!(client.option(STARTTLS, &[]), [(ACK, vec![])]);
    let tls = ClientConnection::new(configured(name), "localhost".try_into().unwrap()).unwrap();
    Client {
        stream: StreamOwned::new(tls, client.stream),
        size: 0,
        flags: 0,
        structured: false,
        cookie: 0,
        reads: std::collections::HashMap::new(),
    }
}

#[test]
fn s_347_a_client_with_a_certificate_is_served_over_tls() {
    let (_server, address) = server();
    let mut client = encrypt(connect(address), Some("client"));
    client.go("disk", true);
    let data = pattern(6, (20 << 20) + 77);
    assert_eq!(client.write(FUA, 1000, &data), 0);
    assert!(client.read(1000, data.len() as u32) == data);
    // More at once than TLS keeps decrypted, so that some of it shows on no socket.
    let sent: Vec<u64> =
        (0..300).map(|number| client.send(READ, 0, number * 4096, 4096, &[])).collect();
    let mut answered: Vec<u64> = (0..300).map(|_| client.answer().cookie).collect();
    answered.sort_unstable();
    assert_eq!(answered, sent);
}

#[test]
fn s_347_nothing_is_told_before_tls_begins_and_what_was_agreed_on_before_does_not_count() {
    let (_server, address) = server();
    let mut client = connect(address);
    for (option, data) in [(LIST, vec![]), (GO, information("disk")), (STRUCTURED, vec![])] {
        assert_eq!(client.option(option, &data)[0].0, ERR_TLS_REQD);
    }
    assert_eq!(client.option(STARTTLS, &[1])[0].0, ERR_INVALID);
    let mut client = encrypt(client, Some("client"));
    assert_eq!(client.option(STARTTLS, &[])[0].0, ERR_INVALID, "it begins once");
    client.go("disk", false);
    assert_eq!(client.read(0, 512), [0; 512]);
    // The old way to begin cannot be told that TLS is missing: it is closed.
    let mut old = connect(address);
    std::io::Write::write_all(&mut old.stream, b"IHAVEOPT\0\0\0\x01\0\0\0\x04disk").unwrap();
    assert_eq!(old.stream.read(&mut [0]).unwrap_or(0), 0);
}

/// What a man in the middle sends in front of the handshake is not taken for the client's.
#[test]
fn s_347_what_comes_with_the_wish_for_tls_ends_the_connection() {
    let (_server, address) = server();
    let mut client = connect(address);
    let mut message = b"IHAVEOPT\0\0\0\x05\0\0\0\0".to_vec();
    message.extend(b"IHAVEOPT\0\0\0\x08\0\0\0\0");
    std::io::Write::write_all(&mut client.stream, &message).unwrap();
    let mut told = Vec::new();
    let end = client.stream.read_to_end(&mut told);
    let waits = end.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock);
    assert!(!waits, "the server does not wait for the handshake");
    assert!(told.len() <= 20, "no more than the answer to the wish: {told:?}");
}

#[test]
fn s_347_a_client_without_a_certificate_or_with_anothers_gets_nothing() {
    let (_server, address) = server();
    for name in [None, Some("stranger"), Some("server")] {
        let mut client = encrypt(connect(address), name);
        let asked = std::io::Write::write_all(&mut client.stream, b"IHAVEOPT\0\0\0\x03\0\0\0\0");
        let mut told = Vec::new();
        let heard = asked.and_then(|()| client.stream.read_to_end(&mut told).map(drop));
        assert!(heard.is_err() && told.is_empty(), "{name:?}: {heard:?}");
    }
}

#[test]
fn certificates_that_are_none_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let told = Tls::load(dir.path()).unwrap_err().to_string();
    assert!(told.contains("ca-cert.pem cannot be used for TLS"), "{told}");
    for name in ["ca-cert.pem", "server-cert.pem"] {
        std::fs::copy(certificates().join(name), dir.path().join(name)).unwrap();
    }
    std::fs::write(dir.path().join("server-key.pem"), "no key").unwrap();
    let told = Tls::load(dir.path()).unwrap_err().to_string();
    assert!(told.contains("server-key.pem cannot be used for TLS"), "{told}");
    let key = certificates().join("client-key.pem");
    std::fs::copy(key, dir.path().join("server-key.pem")).unwrap();
    assert!(Tls::load(dir.path()).is_err(), "a key of another certificate");
}

#[test]
fn a_server_without_certificates_says_that_it_has_no_tls() {
    let bed = bed::Bed::new(bed::Place::Volume, 1 << 20);
    let mut client = Client::connect(&bed.socket);
    assert_eq!(client.option(STARTTLS, &[])[0].0, ERR_POLICY);
}
