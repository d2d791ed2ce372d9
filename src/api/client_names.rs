//! The names that a client's certificate must have, beside the signature of an authority.

use std::sync::Arc;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::client::verify_server_name;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, Error, SignatureScheme};

/// Lets in the clients whose certificate an authority signed and that has one of some names.
#[derive(Debug)]
pub(super) struct NamedClients {
    authorities: Arc<dyn ClientCertVerifier>,
    names: Vec<ServerName<'static>>,
}

impl NamedClients {
    /// Asks for one of these names what these authorities signed. No names: their signature is enough.
    ///
    /// # Errors
    /// The name that is none.
    pub(super) fn verifier(
        authorities: Arc<dyn ClientCertVerifier>,
        names: &[String],
    ) -> Result<Arc<dyn ClientCertVerifier>, String> {
        if names.is_empty() {
            return Ok(authorities);
        }
        let read = names.iter().map(|name| match ServerName::try_from(name.as_str()) {
            Ok(read) => Ok(read.to_owned()),
            Err(_) => Err(name.clone()),
        });
        Ok(Arc::new(Self { authorities, names: read.collect::<Result<_, _>>()? }))
    }
}

impl ClientCertVerifier for NamedClients {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.authorities.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let signed = self.authorities.verify_client_cert(end_entity, intermediates, now)?;
        let certificate = ParsedCertificate::try_from(end_entity)?;
        if self.names.iter().any(|name| verify_server_name(&certificate, name).is_ok()) {
            Ok(signed)
        } else {
            Err(CertificateError::NotValidForName.into())
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.authorities.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.authorities.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.authorities.supported_verify_schemes()
    }
}
