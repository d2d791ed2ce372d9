//! The certificates that are accepted: those that an authority of the cluster signed and no list revokes.
//!
//! While authorities are exchanged there are two, which may have one name. Each judges for itself, with the
//! lists that it signed: rustls alone would hold the list of one against the certificates of the other.

use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature,
};
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, ServerName, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, RootCertStore, SignatureScheme,
};
use x509_parser::prelude::{FromDer, ParsedExtension, X509Certificate, X509Extension};
use x509_parser::revocation_list::CertificateRevocationList;

/// The authorities of the cluster, and what they revoked.
#[derive(Debug)]
pub(super) struct Trust {
    /// Anchors of the authorities, one for each.
    anchors: Vec<Anchor>,
    hints: Vec<DistinguishedName>,
    algorithms: WebPkiSupportedAlgorithms,
}

/// One authority.
#[derive(Debug)]
struct Anchor {
    clients: Arc<dyn ClientCertVerifier>,
    servers: Arc<WebPkiServerVerifier>,
}

impl Trust {
    /// Accepts what these authorities signed, and these lists do not revoke.
    ///
    /// # Errors
    /// What is wrong with an authority or a list.
    pub(super) fn new(
        authorities: &[CertificateDer<'static>],
        lists: &[CertificateRevocationListDer<'static>],
        provider: &Arc<CryptoProvider>,
    ) -> Result<Self, String> {
        let (mut anchors, mut hints) = (Vec::new(), Vec::new());
        for authority in authorities {
            let mut roots = RootCertStore::empty();
            roots.add(authority.clone()).map_err(|error| error.to_string())?;
            let (roots, signed) = (Arc::new(roots), lists_of(authority, lists)?);
            hints.extend(roots.subjects());
            let clients =
                WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), Arc::clone(provider))
                    .with_crls(signed.clone())
                    .allow_unknown_revocation_status()
                    .build()
                    .map_err(|error| error.to_string())?;
            let servers = WebPkiServerVerifier::builder_with_provider(roots, Arc::clone(provider))
                .with_crls(signed)
                .allow_unknown_revocation_status()
                .build()
                .map_err(|error| error.to_string())?;
            anchors.push(Anchor { clients, servers });
        }
        if anchors.is_empty() {
            return Err("there is none".to_owned());
        }
        Ok(Self { anchors, hints, algorithms: provider.signature_verification_algorithms })
    }

    /// Checks whether this chain, the node's certificate first, is accepted at a time.
    ///
    /// # Errors
    /// Why it is not.
    pub(super) fn check(&self, chain: &[CertificateDer<'_>], at: UnixTime) -> Result<(), Error> {
        let Some((own, between)) = chain.split_first() else {
            return Err(CertificateError::BadEncoding.into());
        };
        self.verify_client_cert(own, between, at).map(drop)
    }

    /// Checks whether a certificate that was accepted before is still: an authority that is here signed it,
    /// and no list revokes it. That it has ended meanwhile does not count, so that a certificate that nobody
    /// renewed in time cuts no open link.
    ///
    /// # Errors
    /// Why it is not.
    pub(super) fn still_accepts(&self, chain: &[CertificateDer<'_>]) -> Result<(), Error> {
        let own = chain.first().ok_or(CertificateError::BadEncoding)?;
        let (_, read) = X509Certificate::from_der(own).map_err(|_| CertificateError::BadEncoding)?;
        let ends = u64::try_from(read.validity().not_after.timestamp()).unwrap_or(0);
        match self.check(chain, UnixTime::since_unix_epoch(std::time::Duration::from_secs(ends))) {
            Err(Error::InvalidCertificate(
                CertificateError::Expired
                | CertificateError::ExpiredContext { .. }
                | CertificateError::NotValidYet
                | CertificateError::NotValidYetContext { .. },
            )) => Ok(()),
            judged => judged,
        }
    }

    /// True if a list of an authority that signed this chain revokes its first certificate.
    pub(super) fn is_revoked(&self, chain: &[CertificateDer<'_>]) -> bool {
        matches!(self.still_accepts(chain), Err(Error::InvalidCertificate(CertificateError::Revoked)))
    }

    /// Returns what the first authority says that accepts it; where none does, why the one that signed it
    /// does not.
    fn any<T>(&self, verify: impl Fn(&Anchor) -> Result<T, Error>) -> Result<T, Error> {
        let mut refused = Error::InvalidCertificate(CertificateError::UnknownIssuer);
        for anchor in &self.anchors {
            match verify(anchor) {
                Ok(verified) => return Ok(verified),
                Err(error) if signed_by_another(&error) => {}
                Err(error) => refused = error,
            }
        }
        Err(refused)
    }
}

/// True if a certificate is refused because another authority signed it.
pub(super) const fn signed_by_another(error: &Error) -> bool {
    matches!(
        error,
        Error::InvalidCertificate(
            CertificateError::UnknownIssuer
                | CertificateError::BadSignature
                | CertificateError::UnsupportedSignatureAlgorithmForPublicKeyContext { .. }
        )
    )
}

/// The lists that an authority signed. By name and key: of two authorities with one name, each has its own.
fn lists_of(
    authority: &CertificateDer<'_>,
    lists: &[CertificateRevocationListDer<'static>],
) -> Result<Vec<CertificateRevocationListDer<'static>>, String> {
    let (_, authority) = X509Certificate::from_der(authority).map_err(|_| "it cannot be read".to_owned())?;
    let own_key = authority.extensions().iter().find_map(subject_key);
    let mut signed = Vec::new();
    for list in lists {
        let (_, read) = CertificateRevocationList::from_der(list)
            .map_err(|_| "a list of revoked certificates cannot be read".to_owned())?;
        let key = read.extensions().iter().find_map(authority_key);
        let is_named = read.issuer().as_raw() == authority.subject().as_raw();
        if is_named && own_key.zip(key).is_none_or(|(own, key)| own == key) {
            signed.push(list.clone());
        }
    }
    Ok(signed)
}

fn subject_key<'a>(extension: &X509Extension<'a>) -> Option<&'a [u8]> {
    match extension.parsed_extension() {
        ParsedExtension::SubjectKeyIdentifier(key) => Some(key.0),
        _ => None,
    }
}

fn authority_key<'a>(extension: &X509Extension<'a>) -> Option<&'a [u8]> {
    match extension.parsed_extension() {
        ParsedExtension::AuthorityKeyIdentifier(named) => named.key_identifier.as_ref().map(|key| key.0),
        _ => None,
    }
}

impl ClientCertVerifier for Trust {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &self.hints
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.any(|anchor| anchor.clients.verify_client_cert(end_entity, intermediates, now))
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, cert, dss, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, dss, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

impl ServerCertVerifier for Trust {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.any(|anchor| {
            anchor.servers.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)
        })
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, cert, dss, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, dss, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
