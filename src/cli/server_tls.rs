//! The proof by which a command knows a daemon that it speaks to over `https://`, and shows who it is.

use std::path::{Path, PathBuf};

use clap::Args;
use ureq::tls::{Certificate, ClientCert, PemItem, PrivateKey, RootCerts, TlsConfig, parse_pem};

use super::Failure;

/// The files of TLS of a command.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct ServerTls {
    /// For https:// servers: the authority that signed the daemon's certificate, in PEM. Without it the
    /// system's authorities hold.
    #[arg(long, env = "TIDEGATE_TLS_CA", value_name = "FILE")]
    tls_ca: Option<PathBuf>,
    /// The certificate to show, where the daemon asks for one; with --tls-key.
    #[arg(long, env = "TIDEGATE_TLS_CERT", value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// Its private key.
    #[arg(long, env = "TIDEGATE_TLS_KEY", value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
}

impl ServerTls {
    /// Returns what a connection is made with.
    ///
    /// # Errors
    /// A file that cannot be read, or does not hold what it should.
    pub(super) fn config(&self) -> Result<TlsConfig, Failure> {
        let roots: Vec<Certificate<'static>> = match &self.tls_ca {
            Some(path) => certificates("--tls-ca", path)?,
            None => {
                let found = rustls_native_certs::load_native_certs().certs;
                found.iter().map(|certificate| Certificate::from_der(certificate).to_owned()).collect()
            }
        };
        let own = self.tls_cert.as_deref().zip(self.tls_key.as_deref()).map(|(cert, key)| {
            let chain = certificates("--tls-cert", cert)?;
            let text = read("--tls-key", key)?;
            let key = PrivateKey::from_pem(&text).map_err(|_| unfit("--tls-key", key, "private key"))?;
            Ok::<_, Failure>(ClientCert::new_with_certs(&chain, key))
        });
        Ok(TlsConfig::builder().root_certs(RootCerts::from(roots)).client_cert(own.transpose()?).build())
    }
}

fn read(flag: &str, path: &Path) -> Result<Vec<u8>, Failure> {
    std::fs::read(path)
        .map_err(|error| Failure::Usage(format!("{flag}: {} cannot be read: {error}", path.display())))
}

fn unfit(flag: &str, path: &Path, what: &str) -> Failure {
    Failure::Usage(format!("{flag}: {} holds no {what} in PEM", path.display()))
}

fn certificates(flag: &str, path: &Path) -> Result<Vec<Certificate<'static>>, Failure> {
    let text = read(flag, path)?;
    let found: Vec<_> = parse_pem(&text)
        .filter_map(|item| match item {
            Ok(PemItem::Certificate(certificate)) => Some(certificate),
            _ => None,
        })
        .collect();
    if found.is_empty() { Err(unfit(flag, path, "certificate")) } else { Ok(found) }
}
