//! Certificates: the server's own, and whose clients it serves.

use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};

use crate::{Error, Result};

/// What signs the certificates of clients.
const AUTHORITY: &str = "ca-cert.pem";
/// The server's certificate, and those between it and the authority.
const CERTIFICATE: &str = "server-cert.pem";
const KEY: &str = "server-key.pem";

/// How connections are encrypted.
#[derive(Debug, Clone)]
pub struct Tls(pub(super) Arc<ServerConfig>);

impl Tls {
    /// Reads a directory with `ca-cert.pem`, `server-cert.pem` and `server-key.pem`. Every client
    /// has to show a certificate that the first has signed.
    ///
    /// # Errors
    /// `Usage` where one is missing, or is not what its name says.
    pub fn load(directory: &Path) -> Result<Self> {
        let bad = |name: &str, error: &dyn std::fmt::Display| {
            let path = directory.join(name);
            Error::Usage(format!("{} cannot be used for TLS: {error}", path.display()))
        };
        let certificates = |name: &str| -> Result<Vec<CertificateDer<'static>>> {
            let read = CertificateDer::pem_file_iter(directory.join(name))
                .and_then(Iterator::collect::<std::result::Result<Vec<_>, _>>);
            match read {
                Ok(found) if found.is_empty() => Err(bad(name, &"there is no certificate in it")),
                Ok(found) => Ok(found),
                Err(error) => Err(bad(name, &error)),
            }
        };
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut roots = RootCertStore::empty();
        for certificate in certificates(AUTHORITY)? {
            roots.add(certificate).map_err(|error| bad(AUTHORITY, &error))?;
        }
        let verifier =
            WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider))
                .build()
                .map_err(|error| bad(AUTHORITY, &error))?;
        let key =
            PrivateKeyDer::from_pem_file(directory.join(KEY)).map_err(|error| bad(KEY, &error))?;
        let config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(|error| bad(CERTIFICATE, &error))?
            .with_client_cert_verifier(verifier)
            .with_single_cert(certificates(CERTIFICATE)?, key)
            .map_err(|error| bad(CERTIFICATE, &error))?;
        Ok(Self(Arc::new(config)))
    }
}
